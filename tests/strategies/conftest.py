"""What all strategy tests share: the shape of a trace, and doubles that answer with the bundled prompt's cue."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from inward.evals.run import answer
from inward.prompts import PromptTemplate
from inward.testing import FixedRetriever
from inward.trace import Gated, Noted, Outcome
from inward.types import Passage

PASSAGES = (
    Passage(id="paris", title="Paris", text="Zymurgia: the capital of France is Paris."),
    Passage(id="lyon", title="Lyon", text="Lyon lies on the Rhone."),
)


@pytest.fixture
def passages() -> tuple[Passage, ...]:
    """Two passages; the word Zymurgia is in the first and in no demonstration."""
    return PASSAGES


@pytest.fixture
def index() -> FixedRetriever:
    """An index that finds both passages for every query."""
    return FixedRetriever(PASSAGES)


@pytest.fixture
def say() -> Callable[[str], str]:
    """Say an answer as the bundled prompt wants it said."""
    cue = PromptTemplate.load().cue
    return lambda short: f"I think so. {cue} {short}."


@pytest.fixture
def run() -> Callable[..., Outcome]:
    """Run a bound strategy on a question."""
    return lambda strategy, question="What is the capital of France?": asyncio.run(answer(strategy, question))


@pytest.fixture
def shape() -> Callable[[Outcome], list[str]]:
    """List the events of an outcome: what a strategy did, in order."""

    def label(event: object) -> str:
        if isinstance(event, Gated):
            return f"{event.name}:{'open' if event.open else 'closed'}"
        return event.what if isinstance(event, Noted) else type(event).__name__

    return lambda outcome: [label(event) for event in outcome.events]
