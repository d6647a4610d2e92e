"""What is kept of one question in a run, as a line of `outcomes.jsonl`: enough to score it again without a model.

Passages are stored once a record, under `passages`; events name them by id. Prompts are left out: the run's
manifest holds their text by hash.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from math import isfinite
from typing import Any, TypeAlias

import msgspec

from inward.explain import finite_only
from inward.trace import Event, Gated, Generated, Noted, Outcome, Scored, Searched
from inward.types import Passage, Usage

_LONGEST_GROUP = 100


class Question(msgspec.Struct, frozen=True, kw_only=True):
    """A question with its gold answers."""

    id: str
    """Text, as the file has it: "007" and "7" differ."""
    question: str
    answers: tuple[str, ...] = ()
    """Any one of them is right, aliases included."""
    dataset: str = ""
    supporting: tuple[str, ...] = ()
    """Ids of the passages that hold the evidence, where known."""
    metadata: dict[str, Any] = {}
    """Every other field of the row, untouched."""


class PassageText(msgspec.Struct, frozen=True, kw_only=True):
    """A passage's words."""

    text: str
    title: str = ""
    document: str = ""
    """Id of the document that the passage was cut from; gold evidence may name either."""


class Hit(msgspec.Struct, frozen=True, kw_only=True):
    """A passage that a search found."""

    id: str
    score: float | None
    """None where it was not finite."""


class _Step(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", omit_defaults=True):
    number: int
    """Place in the trace, from 1, numbered when issued."""


class GeneratedStep(_Step, frozen=True, kw_only=True, tag="generated"):
    """A call of the model."""

    texts: tuple[str, ...]
    finishes: tuple[str, ...]
    usage: dict[str, float]


class ScoredStep(_Step, frozen=True, kw_only=True, tag="scored"):
    """A teacher-forced pass over given text."""

    text: str
    usage: dict[str, float]


class SearchedStep(_Step, frozen=True, kw_only=True, tag="searched"):
    """A search and what it found, best first."""

    query: str
    hits: tuple[Hit, ...]
    usage: dict[str, float]


class GatedStep(_Step, frozen=True, kw_only=True, tag="gated"):
    """A decision: open when `value` is above `above`; a value of None was not finite."""

    name: str
    value: float | None
    above: float | str | None
    """An infinity is the text "inf" or "-inf"."""
    open: bool
    parts: dict[str, float | None] = {}


class NotedStep(_Step, frozen=True, kw_only=True, tag="noted"):
    """Something a reader should know."""

    what: str
    detail: str


Step: TypeAlias = GeneratedStep | ScoredStep | SearchedStep | GatedStep | NotedStep


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """One question of a run: what was asked, decided, found, answered, and what it cost."""

    id: str
    question: str
    answers: tuple[str, ...]
    supporting: tuple[str, ...]
    short: str
    """The answer alone."""
    text: str
    """Rationale and answer."""
    flags: tuple[str, ...]
    used: tuple[str, ...]
    """Ids of the passages the final answer was conditioned on, best first."""
    steps: tuple[Step, ...]
    passages: dict[str, PassageText]
    """Every passage that a step or `used` names."""
    usage: dict[str, float]
    seconds: float
    """Wall time from start to answer, with whatever shared the batch."""
    confidence: float | None = None
    error: str | None = None
    """What went wrong; the question counts as wrong and is listed as failed."""
    metadata: dict[str, Any] = {}
    """What of the question's own can name a group, such as hops or level: single values, no long ones."""

    @property
    def gates(self) -> tuple[GatedStep, ...]:
        """The decisions, in order."""
        return tuple(step for step in self.steps if isinstance(step, GatedStep))

    @property
    def searches(self) -> tuple[SearchedStep, ...]:
        """The searches, in order."""
        return tuple(step for step in self.steps if isinstance(step, SearchedStep))


def record_of(question: Question, outcome: Outcome, seconds: float) -> Record:
    """Turn an outcome into what is kept of it."""
    found = [passage for event in outcome.searches for passage in event.passages]
    return Record(
        id=question.id,
        question=question.question,
        answers=question.answers,
        supporting=question.supporting,
        short=outcome.answer.short,
        text=outcome.answer.text,
        flags=outcome.answer.flags,
        used=tuple(passage.id for passage in outcome.answer.passages),
        steps=tuple(_step(event) for event in outcome.events),
        passages={p.id: _text(p) for p in (*found, *outcome.answer.passages)},
        usage=_cost(outcome.usage),
        seconds=seconds,
        confidence=outcome.confidence,
        error=outcome.error,
        metadata={name: value for name, value in question.metadata.items() if _is_group(value)},
    )


def _is_group(value: object) -> bool:
    return isinstance(value, bool | int | float) or (isinstance(value, str) and len(value) <= _LONGEST_GROUP)


def _text(passage: Passage) -> PassageText:
    return PassageText(text=passage.text, title=passage.title, document=str(passage.metadata.get("doc", "")))


def _step(event: Event) -> Step:
    match event:
        case Generated():
            return GeneratedStep(number=event.number, texts=event.texts, finishes=event.finishes, usage=_cost(event.usage))
        case Scored():
            return ScoredStep(number=event.number, text=event.text, usage=_cost(event.usage))
        case Searched():
            hits = tuple(Hit(id=passage.id, score=_finite(passage.score)) for passage in event.passages)
            return SearchedStep(number=event.number, query=event.query, hits=hits, usage=_cost(event.usage))
        case Gated():
            return GatedStep(
                number=event.number,
                name=event.name,
                value=_finite(event.value),
                above=finite_only(event.above),
                open=event.open,
                parts={name: _finite(value) for name, value in event.parts.items()},
            )
        case Noted():
            return NotedStep(number=event.number, what=event.what, detail=event.detail)


def _cost(usage: Usage) -> dict[str, float]:
    """Return what is not zero, by name: most fields of most events are."""
    return {name: value for name, value in asdict(usage).items() if value}


def _finite(value: float) -> float | None:
    return value if isfinite(value) else None


def cost(usage: Mapping[str, float]) -> Usage:
    """Read a stored cost back."""
    whole = {name: value if name == "device_seconds" else int(value) for name, value in usage.items()}
    return Usage(**whole)  # type: ignore[arg-type]
