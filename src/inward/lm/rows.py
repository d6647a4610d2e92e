"""One completion in the making: its text, its stops, its scores."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from inward.lm.encode import Encoder, IncrementalDecoder
from inward.types import F32, Completion, Finish, Sampling


@dataclass(slots=True, eq=False)
class Text:
    """Tokens so far, their characters, and where a stop string cuts them. Only generated text is looked at."""

    decoder: IncrementalDecoder
    stop: tuple[str, ...]
    ids: list[int] = field(default_factory=list)
    cut: int | None = None
    """Where the earliest stop string begins, in characters."""

    def push(self, token: int) -> bool:
        """Add a token; return whether a stop string is complete."""
        self.ids.append(token)
        before = len(self.decoder.text)
        new = self.decoder.push(token)
        if not new or not self.stop:
            return False
        text = self.decoder.text
        found = [(place, order) for order, stop in enumerate(self.stop) if (place := text.find(stop, max(0, before - len(stop) + 1))) >= 0]
        if found:
            self.cut = min(found)[0]
        return self.cut is not None

    @property
    def kept(self) -> int:
        """How many tokens survive: those with text before the cut."""
        if self.cut is None:
            return len(self.ids)
        kept = len(self.ids)
        spans = self.decoder.spans
        while kept and spans[kept - 1][0] >= self.cut:
            kept -= 1
        return kept

    @property
    def safe(self) -> int:
        """How many tokens no stop string can cut off any more."""
        text = self.decoder.text
        held = 0
        for stop in self.stop:
            for length in range(min(len(stop) - 1, len(text)), held, -1):
                if text.endswith(stop[:length]):
                    held = length
                    break
        limit = len(text) - held
        spans = self.decoder.spans
        safe = len(self.ids)
        while safe and held and spans[safe - 1][1] > limit:
            safe -= 1
        # tokens in the middle of a character have no width: they share the fate of what follows
        while safe and spans[safe - 1][0] == spans[safe - 1][1]:
            safe -= 1
        return safe

    def result(self) -> tuple[str, list[tuple[int, int]]]:
        """Return the kept text and the spans of the kept tokens in it."""
        text = self.decoder.text if self.cut is None else self.decoder.text[: self.cut]
        return text, [(min(a, len(text)), min(b, len(text))) for a, b in self.decoder.spans[: self.kept]]


@dataclass(slots=True, eq=False)
class Row:
    """One sample of one request."""

    sampling: Sampling
    sample: int
    key: int
    text: Text
    scores: dict[str, list[float]] = field(default_factory=dict)
    watched: list[list[float]] = field(default_factory=list)
    finish: Finish | None = None
    end_id: int | None = None
    """The end token that was sampled."""
    sampled: int = 0

    @classmethod
    def start(cls, encoder: Encoder, prompt_ids: tuple[int, ...], sampling: Sampling, sample: int, key: int) -> Row:
        """Begin a completion of a prompt."""
        return cls(
            sampling, sample, key, Text(IncrementalDecoder(encoder, prompt_ids), sampling.stop), {n: [] for n in sampling.token_scores}
        )

    def accept(self, token: int, eos_ids: frozenset[int], scores: dict[str, float], watched: list[float] | None) -> None:
        """Take a sampled token; sets `finish` when the completion is over."""
        self.sampled += 1
        if token in eos_ids:
            self.finish, self.end_id = "eos", token
            return
        for name in self.scores:
            self.scores[name].append(scores[name])
        if watched is not None:
            self.watched.append(watched)
        if self.text.push(token):
            self.finish = "stop"
        elif self.sampled >= self.sampling.max_tokens:
            self.finish = "length"

    def completion(self, states: F32 | None, attention: F32 | None = None) -> Completion:
        """Return the finished completion."""
        kept, watched = self.text.kept, len(self.sampling.watch)
        text, spans = self.text.result()

        def column(name: str) -> F32 | None:
            return np.array(self.scores[name][:kept], np.float32) if name in self.scores else None

        return Completion(
            text=text,
            token_ids=tuple(self.text.ids[:kept]),
            tail_ids=tuple(self.text.ids[kept:]),
            finish=self.finish or "length",
            spans=np.array(spans, np.int32).reshape(-1, 2),
            logprobs=column("logprobs"),
            entropies=column("entropies"),
            energies=column("energies"),
            watched_logprobs=np.array(self.watched[:kept], np.float32).reshape(kept, watched) if watched else None,
            states=states,
            attention=attention,
        )
