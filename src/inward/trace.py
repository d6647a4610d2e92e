"""What happened while a question was answered, recorded without the strategy's help.

The language model and the retriever emit into a ContextVar; a strategy only calls `gate`. Events are
numbered when they are issued, not when they complete, so the trace of a question does not depend on what
shares the batch.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from itertools import count
from math import isfinite
from typing import TypeAlias

from inward.types import Answer, Finish, Passage, Prompt, Usage


@dataclass(frozen=True, slots=True, kw_only=True)
class Generated:
    """A call of the model."""

    number: int
    prompt: Prompt
    texts: tuple[str, ...]
    finishes: tuple[Finish, ...]
    usage: Usage


@dataclass(frozen=True, slots=True, kw_only=True)
class Scored:
    """A teacher-forced pass over given text."""

    number: int
    prompt: Prompt
    text: str
    usage: Usage


@dataclass(frozen=True, slots=True, kw_only=True)
class Searched:
    """A search and what it found, best first."""

    number: int
    query: str
    passages: tuple[Passage, ...]
    usage: Usage


@dataclass(frozen=True, slots=True, kw_only=True)
class Gated:
    """A decision: open when `value` is above `above`."""

    number: int
    name: str
    value: float
    above: float
    open: bool
    parts: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Noted:
    """Something a reader should know: passages dropped, a query capped, a fallback taken."""

    number: int
    what: str
    detail: str


Event: TypeAlias = Generated | Scored | Searched | Gated | Noted


@dataclass(slots=True)
class Trace:
    """The events of one question."""

    question: str | None = None
    seed: int = 0
    id: int | None = None
    """Unique in this process; None for a trace that nobody reads."""
    _events: list[Event] = field(default_factory=list)
    _issued: int = 0

    def issue(self) -> int:
        """Return the number of the next event, before it completes."""
        self._issued += 1
        return self._issued

    def add(self, event: Event) -> None:
        """Keep a completed event."""
        self._events.append(event)

    @property
    def events(self) -> tuple[Event, ...]:
        """Events in the order in which they were issued."""
        return tuple(sorted(self._events, key=lambda event: event.number))

    @property
    def usage(self) -> Usage:
        """Sum over all events."""
        return sum((e.usage for e in self.events if not isinstance(e, Gated | Noted)), Usage())

    @property
    def gates(self) -> tuple[Gated, ...]:
        """The decisions, in order."""
        return tuple(e for e in self.events if isinstance(e, Gated))

    @property
    def draw_key(self) -> int | None:
        """64 bits for random draws, from run seed and question; None when there is no question."""
        return None if self.question is None else draw_key(self.seed, self.question)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What became of one question."""

    question: str
    answer: Answer
    events: tuple[Event, ...]
    usage: Usage
    confidence: float | None = None
    """Calibrated probability that the answer is right; None unless a calibration was given."""
    error: str | None = None
    """What went wrong; the answer is empty then."""

    @property
    def gates(self) -> tuple[Gated, ...]:
        """The decisions, in order."""
        return tuple(e for e in self.events if isinstance(e, Gated))

    @property
    def searches(self) -> tuple[Searched, ...]:
        """The searches, in order."""
        return tuple(e for e in self.events if isinstance(e, Searched))

    @property
    def cited(self) -> tuple[Passage, ...]:
        """The passages read whose title or text holds the short answer word for word, best first."""
        from inward.explain import names

        return tuple(passage for passage in self.answer.passages if names(passage, self.answer.short))

    def explain(self) -> str:
        """Say in plain text what was drafted, decided, searched and answered, and why."""
        from inward.explain import explain

        return explain(self)


_ids = count(1)
_current: ContextVar[Trace | None] = ContextVar("inward_trace", default=None)


def draw_key(seed: int, text: str) -> int:
    """Hash a run seed and a text into 64 bits."""
    return int.from_bytes(hashlib.blake2b(f"{seed}\0{text}".encode("utf-8", "surrogatepass"), digest_size=8).digest(), "little")


@contextmanager
def record(question: str | None = None, *, seed: int = 0) -> Iterator[Trace]:
    """Collect the events of the enclosed awaits, child tasks included."""
    trace = Trace(question=question, seed=seed, id=next(_ids))
    token = _current.set(trace)
    try:
        yield trace
    finally:
        _current.reset(token)


def current() -> Trace:
    """Return the trace in force, or a fresh one that nobody reads."""
    return _current.get() or Trace()


def gate(name: str, value: float, *, above: float, parts: Mapping[str, float] | None = None) -> bool:
    """Decide, and leave value and threshold in the trace so that the decision can be replayed at another threshold.

    A value that is not finite opens the gate: a signal that broke is no evidence of confidence.
    """
    is_open = not (isfinite(value) and value <= above)
    trace = current()
    trace.add(Gated(number=trace.issue(), name=name, value=float(value), above=float(above), open=is_open, parts=parts or {}))
    return is_open


def note(what: str, detail: str) -> None:
    """Leave a remark in the trace."""
    trace = current()
    trace.add(Noted(number=trace.issue(), what=what, detail=detail))
