"""The seams: what a language model, a backend, a retriever, a signal and a strategy must offer."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol, TypeAlias, runtime_checkable

from inward.types import Answer, Capture, Completion, Filter, Generation, Passage, Prompt, Reading, Sampling

Feature: TypeAlias = Literal["logprobs", "states", "attention", "samples", "logit_bias", "watch", "score", "chat"]
"""What a backend may offer; a strategy's needs are checked against it when the strategy is loaded."""

_GREEDY = Sampling()


@runtime_checkable
class LM(Protocol):
    """What strategies see of a language model."""

    @property
    def supports(self) -> frozenset[Feature]:
        """What this model's backend can give."""
        ...

    @property
    def context(self) -> int:
        """The longest prompt and completion together, in tokens."""
        ...

    def count(self, prompt: Prompt) -> int:
        """Tokens of the prompt as the model would read it."""
        ...

    async def generate(self, prompt: Prompt, sampling: Sampling = _GREEDY, *, capture: Capture | None = None) -> Generation:
        """Continue the prompt; `sampling.n` completions share one prefill."""
        ...

    async def score(
        self, prompt: Prompt, continuation: str | Sequence[int], *, sampling: Sampling = _GREEDY, capture: Capture | None = None
    ) -> Completion:
        """Read a given continuation as if it had been generated (teacher forcing); nothing is sampled."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One call of a language model, as a backend sees it."""

    prompt: Prompt
    sampling: Sampling
    capture: Capture | None = None
    continuation: str | tuple[int, ...] | None = None
    """Given text or ids to read instead of sampling (`score`)."""
    draw_key: int | None = None
    """64 bits that random draws derive from; None lets the prompt stand in."""
    group: int | None = None
    """Requests of one question carry the same number: equal prompts among them are counted once."""


RequestId: TypeAlias = int


class Finished(NamedTuple):
    """A request is done."""

    id: RequestId
    generation: Generation


class Failed(NamedTuple):
    """A request cannot be done; the others go on."""

    id: RequestId
    error: Exception


Progress: TypeAlias = Finished | Failed


class Backend(Protocol):
    """What an engine author writes: blocking, called from one thread, no asyncio."""

    @property
    def supports(self) -> frozenset[Feature]:
        """What this backend can give."""
        ...

    @property
    def context(self) -> int:
        """The longest prompt and completion together, in tokens."""
        ...

    @property
    def budget(self) -> int:
        """How much `cost` may run at once."""
        ...

    def count(self, prompt: Prompt) -> int:
        """Tokens of the prompt; may be called from any thread."""
        ...

    def check(self, request: Request) -> None:
        """Raise if the request can never run; called from any thread before the request waits."""
        ...

    def cost(self, request: Request) -> int:
        """Return what the request may need at most, in tokens of key-value cache."""
        ...

    def add(self, request: Request) -> RequestId:
        """Let the request join the running batch at the next step."""
        ...

    def step(self) -> list[Progress]:
        """Advance every row by one forward pass.

        Raises:
            OutOfMemory: fewer rows may succeed. The caller drops every request and adds them again.
        """
        ...

    def drop(self, id: RequestId) -> None:
        """Take a request out of the batch; unknown ids are ignored."""
        ...


@runtime_checkable
class Retriever(Protocol):
    """Where passages come from."""

    async def search(self, query: str, k: int = 5, *, where: Filter | None = None) -> list[Passage]:
        """Return at most `k` passages, best first; `where` filters before ranking."""
        ...


class Signal(Protocol):
    """How unsure the model is of a generation; higher is less sure."""

    @property
    def name(self) -> str:
        """Name in tables and traces."""
        ...

    @property
    def capture(self) -> Capture | None:
        """Internal states that the generation must carry."""
        ...

    def wants(self, sampling: Sampling) -> Sampling:
        """Return `sampling` with what this signal reads switched on (token scores, samples)."""
        ...

    async def __call__(self, generation: Generation) -> Reading:
        """Read the generation."""
        ...


Strategy: TypeAlias = Callable[[str], Awaitable[Answer]]
"""A strategy with everything but the question bound."""
