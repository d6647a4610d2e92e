"""What is on its way through the decode loop: requests, the prompts they wait for, and their running rows."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from torch import Tensor

from inward.lm.capture import States
from inward.lm.kv import Seat, Segment
from inward.lm.rows import Row
from inward.protocols import Request, RequestId
from inward.types import F32, Generation, Usage

PASSES = 1 << 16
"""Passes that an engine remembers, for tests and benchmarks."""


@dataclass(slots=True, eq=False)
class Live:
    """A row in the batch."""

    row: Row
    call: Call
    seat: Seat
    base: int
    """Own tokens of the prompt in the row's slot."""
    feed: int
    states: States | None
    closing: deque[int] | None = None
    """Tokens still to be fed, once the text is over, for their states alone."""

    @property
    def fed(self) -> int:
        """Generated tokens that have been fed."""
        return self.seat.length - self.base


@dataclass(slots=True, eq=False)
class Call:
    """A request in the batch."""

    id: RequestId
    request: Request
    prompt_ids: tuple[int, ...]
    given: tuple[int, ...] = ()
    """Ids to read instead of sampling, an end token not among them."""
    end_id: int | None = None
    """The end token that the given ids ended with."""
    done: dict[int, tuple[Row, F32 | None, F32 | None]] = field(default_factory=dict)
    """Sample number -> its row, states and attention."""
    live: list[Live] = field(default_factory=list)
    prompt_state: F32 | None = None
    usage: Usage = field(default_factory=Usage)
    seconds: float = 0.0

    @property
    def n(self) -> int:
        """Completions wanted."""
        return self.request.sampling.n

    @property
    def reads(self) -> bool:
        """Whether given text is read instead of sampled."""
        return self.request.continuation is not None

    @property
    def complete(self) -> bool:
        """Whether every completion is over."""
        return len(self.done) == (1 if self.reads else self.n)

    def generation(self) -> Generation:
        """Return the finished completions in the order of their sample numbers."""
        rows = [self.done[sample] for sample in sorted(self.done)]
        usage = self.usage + Usage(completion_tokens=sum(row.sampled for row, _, _ in rows), device_seconds=self.seconds)
        completions = tuple(row.completion(states, attention) for row, states, attention in rows)
        return Generation(completions=completions, usage=usage, prompt_state=self.prompt_state)


@dataclass(slots=True, eq=False)
class Job:
    """A run of tokens to be fed before anything is sampled: a shared prefix, a prompt, a prompt with given text."""

    segment: Segment
    calls: list[Call] = field(default_factory=list)
    attention: list[Tensor] = field(default_factory=list)
    row: Row | None = None
    states: States | None = None

    @property
    def reads(self) -> bool:
        """Whether it holds given text."""
        return bool(self.calls) and self.calls[0].reads
