"""Doubles for testing strategies without weights: each is small, deterministic, and leaves the same trace as the real thing."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from inward.errors import ContextLengthExceeded, Unsupported
from inward.protocols import Feature
from inward.trace import Generated, Scored, Searched, current
from inward.types import F32, Capture, Completion, Filter, Finish, Generation, Passage, Prompt, Reading, Sampling, TokenScore, Usage

if TYPE_CHECKING:
    from inward.lm import BatchedLM
    from inward.testing_models import Family

PerToken: TypeAlias = Callable[[str], float | Sequence[float]]
"""Completion text -> one number for every token, or a number per token (the last one repeats)."""

_GREEDY = Sampling()
_WORD = re.compile(r"\s*\S+|\s+$")


class FunctionLM:
    """A language model that answers with a function of the prompt; its tokens are words.

    Args:
        answer: prompt text -> completion text, or one text per sample.
        scores: what `token_scores` bring back, such as `{"logprobs": lambda text: -0.1}`.
        states: (completion text, capture) -> `[L, d]` or `[L, T, d]`.
        context: the longest prompt and completion together, in words.
        supports: what it claims; by default what the functions given above allow.
    """

    def __init__(
        self,
        answer: Callable[[str], str | Sequence[str]],
        *,
        scores: Mapping[TokenScore, PerToken] | None = None,
        states: Callable[[str, Capture], F32] | None = None,
        context: int = 100_000,
        supports: frozenset[Feature] | None = None,
    ) -> None:
        self._answer, self._scores, self._states, self.context = answer, dict(scores or {}), states, context
        able: set[Feature] = {"samples", "score", "chat"}
        if scores:
            able.add("logprobs")
        if states:
            able.add("states")
        self.supports: frozenset[Feature] = frozenset(able) if supports is None else supports

    def count(self, prompt: Prompt) -> int:
        """Count words."""
        return len(words(prompt_text(prompt)))

    async def generate(self, prompt: Prompt, sampling: Sampling = _GREEDY, *, capture: Capture | None = None) -> Generation:
        """Answer the prompt, cut at stops and `max_tokens` as a model would."""
        needed = self.count(prompt) + sampling.max_tokens
        if needed > self.context:
            raise ContextLengthExceeded(f"prompt and completion need {needed} words; there is room for {self.context}")
        trace = current()
        number = trace.issue()
        said = self._answer(prompt_text(prompt))
        texts = [said] * sampling.n if isinstance(said, str) else list(said)[: sampling.n]
        completions = tuple(self._completion(text, sampling, capture) for text in texts)
        cost = Usage(
            generate_calls=1,
            sequences=len(texts),
            prompt_tokens=self.count(prompt),
            completion_tokens=sum(len(words(c.text)) + (c.finish == "eos") for c in completions),
        )
        shown, finishes = tuple(c.text for c in completions), tuple(c.finish for c in completions)
        trace.add(Generated(number=number, prompt=prompt, texts=shown, finishes=finishes, usage=cost))
        return Generation(completions=completions, usage=cost)

    async def score(
        self, prompt: Prompt, continuation: str | Sequence[int], *, sampling: Sampling = _GREEDY, capture: Capture | None = None
    ) -> Completion:
        """Read a given text; the answer function is not asked."""
        if not isinstance(continuation, str):
            raise Unsupported(f"FunctionLM has no vocabulary: score text, not token ids, got {continuation!r}")
        trace = current()
        cost = Usage(forward_calls=1, prompt_tokens=self.count(prompt) + len(words(continuation)))
        trace.add(Scored(number=trace.issue(), prompt=prompt, text=continuation, usage=cost))
        whole = Sampling(max_tokens=max(1, len(words(continuation))), token_scores=sampling.token_scores)
        return self._completion(continuation, whole, capture)

    def _completion(self, text: str, sampling: Sampling, capture: Capture | None) -> Completion:
        finish: Finish = "eos"
        cuts = [at for stop in sampling.stop if (at := text.find(stop)) >= 0]
        if cuts:
            text, finish = text[: min(cuts)], "stop"
        pieces = words(text)
        if len(pieces) > sampling.max_tokens:
            pieces, finish = pieces[: sampling.max_tokens], "length"
        text = "".join(pieces)
        ends = np.cumsum([0, *map(len, pieces)])
        return Completion(
            text=text,
            token_ids=tuple(range(len(pieces))),
            finish=finish,
            spans=np.stack([ends[:-1], ends[1:]], axis=1).astype(np.int32),
            states=None if capture is None or self._states is None else self._states(text, capture),
            logprobs=self._per_token("logprobs", text, sampling),
            entropies=self._per_token("entropies", text, sampling),
            energies=self._per_token("energies", text, sampling),
        )

    def _per_token(self, name: TokenScore, text: str, sampling: Sampling) -> F32 | None:
        if name not in sampling.token_scores:
            return None
        count, values = len(words(text)), self._scores[name](text)
        row = [float(values)] if isinstance(values, int | float) else list(values)
        return np.array((row + row[-1:] * count)[:count], np.float32)


class ScriptedSignal:
    """A signal that reads its values from a list; the last one repeats."""

    capture: Capture | None = None

    def __init__(self, *values: float, name: str = "scripted") -> None:
        self.name, self._values = name, list(values)

    def wants(self, sampling: Sampling) -> Sampling:
        """Ask for nothing."""
        return sampling

    async def __call__(self, generation: Generation) -> Reading:
        """Return the next value, whatever was generated."""
        return Reading(value=self._values.pop(0) if len(self._values) > 1 else self._values[0])


class FixedRetriever:
    """A retriever that finds what it was given: passages for every query, or those of the query's entry."""

    def __init__(self, passages: Sequence[Passage] | Mapping[str, Sequence[Passage]] = ()) -> None:
        self._passages = passages

    async def search(self, query: str, k: int = 5, *, where: Filter | None = None) -> list[Passage]:
        """Return the first `k` that pass the filter."""
        trace = current()
        found = self._passages.get(query, ()) if isinstance(self._passages, Mapping) else self._passages
        kept = [passage for passage in found if _passes(passage, where or {})][:k]
        trace.add(Searched(number=trace.issue(), query=query, passages=tuple(kept), usage=Usage(search_calls=1)))
        return kept


def tiny_lm(
    family: Family = "llama", *, seed: int = 0, chat: bool = False, prefix_reuse: bool = True, budget: int | None = None, **overrides: Any
) -> BatchedLM:
    """Load a tiny random model with a byte tokenizer through the transformers backend.

    Args:
        family: one of `inward.testing_models.FAMILIES`.
        seed: of the weights.
        chat: give it a chat template.
        prefix_reuse: compute shared prompt prefixes once.
        budget: tokens of keys and values in use at once; None lets the backend choose.
        overrides: fields of the family's configuration.
    """
    from inward.lm import BatchedLM
    from inward.lm.loading import Loaded
    from inward.lm.transformers import TransformersBackend
    from inward.testing_models import tiny_model

    model, tokenizer = tiny_model(family, seed=seed, chat=chat, **overrides)
    loaded = Loaded(model=model, tokenizer=tokenizer, generation_config=model.generation_config, name=f"tiny-{family}")
    return BatchedLM(TransformersBackend(loaded, prefix_reuse=prefix_reuse, budget=budget))


def words(text: str) -> list[str]:
    """Split into words that carry the space before them; joined they are the text."""
    return _WORD.findall(text)


def prompt_text(prompt: Prompt) -> str:
    """Return a prompt as one text, messages joined by blank lines."""
    return prompt if isinstance(prompt, str) else "\n\n".join(message.content for message in prompt)


def _passes(passage: Passage, where: Filter) -> bool:
    allowed = {key: want if isinstance(want, list | tuple | set | frozenset) else [want] for key, want in where.items()}
    return all(passage.metadata.get(key) in want for key, want in allowed.items())
