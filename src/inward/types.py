"""Values that cross module boundaries. Frozen; arrays are read-only by convention; shapes in brackets.

Letters: `B` rows, `T` generated tokens, `L` captured layers, `d` hidden size, `k` samples, `V` vocabulary,
`W` watched tokens, `P` prompt tokens. Units: nats, tokens, seconds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Literal, Self, TypeAlias

import numpy as np
from numpy.typing import NDArray

from inward.errors import CaptureMissing, UsageError

F32: TypeAlias = NDArray[np.float32]
I32: TypeAlias = NDArray[np.int32]
Role: TypeAlias = Literal["system", "user", "assistant"]
Site: TypeAlias = Literal["resid_post", "resid_mid", "attn_out", "mlp_out", "mlp_raw"]
Pool: TypeAlias = Literal["mean", "last", "eos", "none"]
Over: TypeAlias = Literal["generated", "prompt_last"]
Finish: TypeAlias = Literal["eos", "stop", "length"]
TokenScore: TypeAlias = Literal["logprobs", "entropies", "energies"]
Filter: TypeAlias = Mapping[str, Any]
"""Metadata that a passage must carry: key -> value, or key -> list of allowed values."""

SITES: tuple[Site, ...] = ("resid_post", "resid_mid", "attn_out", "mlp_out", "mlp_raw")


@dataclass(frozen=True, slots=True)
class Message:
    """One turn of a prompt."""

    role: Role
    content: str
    """Data, never markup: special tokens in it are plain characters."""


Prompt: TypeAlias = str | tuple[Message, ...]
"""Raw text, continued as it stands; or messages, put into the model's own template.

A last message of the assistant is text to continue.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How to turn next-token distributions into text.

    There is no seed: draws derive from (run seed, question, sample, step, token), the prompt standing in
    where there is no question. So a draw never depends on what shares the batch.
    """

    max_tokens: int = 128
    temperature: float = 0.0
    """0 is greedy."""
    top_k: int = 0
    """0 keeps the whole vocabulary."""
    top_p: float = 1.0
    """Applied after `top_k`, to the renormalised rest."""
    n: int = 1
    """Completions drawn from one prefill of the prompt."""
    stop: tuple[str, ...] = ()
    """Text that ends a completion; looked for in generated text alone, not part of `Completion.text`."""
    token_scores: tuple[TokenScore, ...] = ()
    """Which per-token scores to bring back; each costs a pass over the logits."""
    watch: tuple[int, ...] = ()
    """`[W]` token ids whose log-probabilities are wanted at every step."""
    logit_bias: tuple[tuple[int, float], ...] = ()
    """Pairs (token id, nats) added to the raw logits before anything is chosen; scores ignore it."""

    def __post_init__(self) -> None:
        """Refuse values that mean nothing, by name."""
        _require(self.max_tokens >= 1, "max_tokens", self.max_tokens, "at least 1")
        _require(self.temperature >= 0, "temperature", self.temperature, "0 (greedy) or more")
        _require(self.top_k >= 0, "top_k", self.top_k, "0 (off) or more")
        _require(0 < self.top_p <= 1, "top_p", self.top_p, "in (0, 1]")
        _require(self.n >= 1, "n", self.n, "at least 1")
        _require(isinstance(self.stop, tuple), "stop", self.stop, "a tuple of strings")
        _require(all(self.stop), "stop", self.stop, "a tuple without empty strings")


@dataclass(frozen=True, slots=True, kw_only=True)
class Capture:
    """Which internal states to bring back with a generation."""

    layers: tuple[int, ...]
    """Zero-based decoder blocks; `L = len(layers)`."""
    site: Site = "resid_post"
    over: Over = "generated"
    """`"prompt_last"` reads the prompt's last token instead of the generated ones."""
    pool: Pool = "mean"
    """Over kept tokens, on the device. `"eos"` feeds the end token after them and reads its state."""
    attention: int | None = None
    """A block whose attention rows `score` brings back."""

    def __post_init__(self) -> None:
        """Refuse values that mean nothing, by name."""
        _require(self.site in SITES, "site", self.site, f"one of {', '.join(SITES)}")
        _require(self.pool in ("mean", "last", "eos", "none"), "pool", self.pool, "mean, last, eos or none")
        _require(self.over in ("generated", "prompt_last"), "over", self.over, "generated or prompt_last")
        _require(all(layer >= 0 for layer in self.layers), "layers", self.layers, "0-based blocks")
        _require(bool(self.layers) or self.attention is not None, "layers", self.layers, "at least one block")


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """One generated continuation of `T` tokens."""

    text: str
    token_ids: tuple[int, ...]
    """`[T]` the ids whose text survives; the end token and what a stop string cut off are not among them."""
    finish: Finish
    spans: I32
    """`[T, 2]` start and end of each token in `text`, in characters; joined they rebuild `text`."""
    tail_ids: tuple[int, ...] = ()
    """Ids that were sampled but cut off by a stop string; an end token is not among them."""
    logprobs: F32 | None = None
    """`[T]` nats of each kept token under the raw logits at temperature 1; None unless asked for."""
    entropies: F32 | None = None
    """`[T]` nats of the same distributions; None unless asked for."""
    energies: F32 | None = None
    """`[T]` log-sum-exp of the raw logits; None unless asked for."""
    watched_logprobs: F32 | None = None
    """`[T, W]` nats of the watched tokens; None unless asked for."""
    states: F32 | None = None
    """`[L, d]` when pooled, `[L, T, d]` for `pool="none"`; None unless captured. With `T = 0`, nan when pooled over nothing."""
    attention: F32 | None = None
    """`[H, T, P + T]` attention rows of the kept tokens, from `score` with `Capture.attention`."""

    def score(self, name: TokenScore) -> F32:
        """Return `logprobs`, `entropies` or `energies` `[T]`.

        Raises:
            CaptureMissing: the generation was not asked for them.
        """
        values: F32 | None = getattr(self, name)
        if values is None:
            raise CaptureMissing(f"{name} were not recorded: ask with Sampling(token_scores=({name!r},))")
        return values


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """What work cost. Adds up over calls, questions and runs."""

    generate_calls: int = 0
    forward_calls: int = 0
    """Teacher-forced passes (`score`)."""
    classifier_calls: int = 0
    sequences: int = 0
    """Completions generated, all samples counted."""
    search_calls: int = 0
    prompt_tokens: int = 0
    """Once per prefill however many completions share it, given text included; no padding."""
    cached_tokens: int = 0
    """The part of `prompt_tokens` whose keys and values were already there."""
    completion_tokens: int = 0
    """Tokens sampled, over all completions, end tokens and cut-off tails included."""
    device_seconds: float = 0.0
    """This request's share, by tokens, of the wall time of the steps it rode in."""

    def __add__(self, other: Usage) -> Usage:
        """Add field by field."""
        return Usage(**{f.name: getattr(self, f.name) + getattr(other, f.name) for f in fields(self)})


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """All completions of one prompt."""

    completions: tuple[Completion, ...]
    usage: Usage
    prompt_state: F32 | None = None
    """`[L, d]` state of the prompt's last token, for `Capture(over="prompt_last")`."""

    @property
    def text(self) -> str:
        """Text of the first completion."""
        return self.completions[0].text

    @property
    def states(self) -> F32:
        """States of the first completion (or of the prompt, when that was asked for).

        Raises:
            CaptureMissing: the generation was made without `capture=`.
        """
        states = self.prompt_state if self.prompt_state is not None else self.completions[0].states
        if states is None:
            raise CaptureMissing("this generation was requested without `capture=Capture(layers=...)`")
        return states


@dataclass(frozen=True, slots=True, kw_only=True)
class Passage:
    """A retrieved piece of text."""

    id: str
    text: str
    title: str = ""
    score: float = 0.0
    """Higher is better; comparable within one search only."""
    metadata: Mapping[str, Any] = field(default_factory=dict)
    """Kept as it came; `doc`, `start` and `end` name the source document and the span in it, in characters."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a strategy returns."""

    text: str
    """Everything that was kept: rationale and answer."""
    short: str
    """The answer alone."""
    passages: tuple[Passage, ...] = ()
    """Passages the final answer was conditioned on, best first."""
    flags: tuple[str, ...] = ()
    """What was odd about it: `no_marker`, `unclosed_reasoning`, `truncated`, `abstained`."""
    confidence: float | None = None
    """Calibrated probability that it is right; None where the strategy has no calibration."""

    @classmethod
    def none(cls) -> Self:
        """Return the answer of a question that failed."""
        return cls(text="", short="")


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What a signal says of a generation."""

    value: float
    """Higher is less sure; the gate reads this."""
    parts: Mapping[str, float] = field(default_factory=dict)
    """Named contributions: a layer's verdict, a sample's score."""


def _require(ok: bool, name: str, value: object, must: str) -> None:
    if not ok:
        raise UsageError(f"{name} must be {must}, got {value!r}")


def as_prompt(prompt: Prompt | Sequence[Message]) -> Prompt:
    """Accept any sequence of messages; refuse what is neither text nor messages."""
    if isinstance(prompt, str):
        return prompt
    messages = tuple(prompt)
    if not messages or not all(isinstance(m, Message) for m in messages):
        raise UsageError(f"a prompt is text or a sequence of Message, got {prompt!r}")
    return messages
