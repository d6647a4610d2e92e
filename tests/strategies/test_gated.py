"""The gate: one trace per branch with doubles, then the real models."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from math import inf, nan

import pytest

from inward.evals.run import answer
from inward.protocols import LM
from inward.signals import SIGNALS, load_signal
from inward.signals.tokens import TokenSignal
from inward.strategies import load_strategy
from inward.testing import FixedRetriever, FunctionLM, ScriptedSignal
from inward.trace import Outcome

QUESTION = "What is the capital of France?"


@pytest.fixture
def lm(say: Callable) -> FunctionLM:
    """Right with the passages, wrong and unsure (two nats a word) without."""

    def unsure_without(text: str) -> float:
        return -0.1 if "Paris" in text else -2.0

    return FunctionLM(lambda prompt: say("Paris" if "Zymurgia" in prompt else "Lyon"), scores={"logprobs": unsure_without})


def test_an_unsure_draft_is_looked_up_and_written_again(lm: FunctionLM, index: FixedRetriever, run: Callable, shape: Callable):
    outcome = run(load_strategy("gated(mean-nll)", lm=lm, retriever=index, threshold=1.0))
    assert shape(outcome) == ["Generated", "mean-nll:open", "Searched", "Generated"]
    assert outcome.answer.short == "Paris"
    assert [passage.id for passage in outcome.answer.passages] == ["paris", "lyon"]
    [gate] = outcome.gates
    assert (gate.value, gate.above) == (pytest.approx(2.0), 1.0)
    assert outcome.searches[0].query == QUESTION
    assert (outcome.usage.generate_calls, outcome.usage.search_calls) == (2, 1)


def test_a_sure_draft_stands(lm: FunctionLM, index: FixedRetriever, run: Callable, shape: Callable):
    outcome = run(load_strategy("gated(mean-nll)", lm=lm, retriever=index, threshold=2.5))
    assert shape(outcome) == ["Generated", "mean-nll:closed"]
    assert (outcome.answer.short, outcome.answer.passages, outcome.usage.search_calls) == ("Lyon", (), 0)


@pytest.mark.parametrize(
    ("value", "threshold", "opens"),
    [
        (0.5, 0.5, False),
        (0.5000001, 0.5, True),
        (nan, inf, True),
        (inf, inf, True),
        (-5.0, -inf, True),
        (5.0, inf, False),
        (-7.0, -6.0, False),
    ],
)
def test_the_gate_opens_above_its_threshold_and_for_broken_signals(
    value: float, threshold: float, opens: bool, lm: FunctionLM, index: FixedRetriever, run: Callable
):
    outcome = run(load_strategy("gated", lm=lm, retriever=index, threshold=threshold, signal=ScriptedSignal(value)))
    assert (outcome.gates[0].open, outcome.usage.search_calls) == (opens, int(opens))


def test_a_draft_of_no_words_is_no_evidence_of_confidence(index: FixedRetriever, run: Callable):
    silent = FunctionLM(lambda _: "", scores={"logprobs": lambda text: -0.1})
    outcome = run(load_strategy("gated", lm=silent, retriever=index, threshold=100.0))
    assert outcome.gates[0].open
    assert outcome.usage.search_calls == 1


def test_several_rounds_read_the_new_draft_and_search_with_it(lm: FunctionLM, index: FixedRetriever, run: Callable, shape: Callable):
    strategy = load_strategy("gated", lm=lm, retriever=index, signal=ScriptedSignal(2.0, 2.0, 0.0), threshold=1.0, max_retrievals=3)
    outcome = run(strategy)
    step = ["Generated", "scripted:open", "Searched"]
    assert shape(outcome) == [*step, *step, "Generated", "scripted:closed"]
    first, second = (search.query for search in outcome.searches)
    assert first == QUESTION
    assert second.startswith(QUESTION)
    assert "Paris" in second


def test_rounds_are_limited(lm: FunctionLM, index: FixedRetriever, run: Callable):
    for rounds in (0, 1, 4):
        strategy = load_strategy("gated", lm=lm, retriever=index, signal=ScriptedSignal(9.0), threshold=1.0, max_retrievals=rounds)
        usage = run(strategy).usage
        assert (usage.search_calls, usage.generate_calls) == (rounds, rounds + 1)


def test_an_empty_search_leaves_the_draft(lm: FunctionLM, run: Callable, shape: Callable):
    outcome = run(load_strategy("gated", lm=lm, retriever=FixedRetriever(), threshold=1.0))
    assert shape(outcome) == ["Generated", "mean-nll:open", "Searched", "nothing found"]
    assert outcome.answer.short == "Lyon"


def test_the_signal_reads_the_draft_and_not_the_answer_that_was_forced_out_of_it(index: FixedRetriever, run: Callable, shape: Callable):
    """A forced answer has other odds than the model's own words: reading it would compare two kinds of number."""
    lm = FunctionLM(
        lambda prompt: "It is a city." if prompt.count("It is a city.") == 0 else "Paris.",
        scores={"logprobs": lambda text: -3.0 if "city" in text else -0.001},
    )
    outcome = run(load_strategy("gated", lm=lm, retriever=index, threshold=1.0))
    assert shape(outcome)[:4] == ["Generated", "Generated", "mean-nll:open", "Searched"]
    assert outcome.gates[0].value == pytest.approx(3.0)


def test_a_decision_can_be_replayed_at_another_threshold(lm: FunctionLM, index: FixedRetriever, run: Callable):
    """Single-step prompts do not depend on the threshold, so one run that forces the round tells all decisions."""
    forced = run(load_strategy("gated", lm=lm, retriever=index, threshold=-inf)).gates[0].value
    for threshold in (forced - 0.01, forced, forced + 0.01):
        assert run(load_strategy("gated", lm=lm, retriever=index, threshold=threshold)).gates[0].open == (forced > threshold)


# --- the real models ---

TOKEN = [name for name in SIGNALS if isinstance(load_signal(name), TokenSignal)]


@pytest.mark.real
@pytest.mark.parametrize("model", ["gemma", "smollm"])
def test_real_models_take_both_branches(model: str, request: pytest.FixtureRequest, index: FixedRetriever):
    lm = request.getfixturevalue(model)

    def outcomes(thresholds: dict[str, float]) -> dict[str, Outcome]:
        async def together() -> list[Outcome]:
            bound = [load_strategy("gated", lm=lm, retriever=index, signal=name, threshold=above) for name, above in thresholds.items()]
            return await asyncio.gather(*(answer(strategy, QUESTION) for strategy in bound))

        return dict(zip(thresholds, asyncio.run(together()), strict=True))

    opened = outcomes(dict.fromkeys(TOKEN, -inf))
    values = {name: outcome.gates[0].value for name, outcome in opened.items()}
    closed = outcomes({name: value + 1e-3 for name, value in values.items()})
    assert len(set(values.values())) == len(TOKEN)
    for name in TOKEN:
        assert "Paris" in opened[name].answer.text
        assert (opened[name].usage.generate_calls, opened[name].usage.search_calls) == (2, 1)
        assert closed[name].gates[0].value == pytest.approx(values[name], rel=1e-4)
        assert (closed[name].gates[0].open, closed[name].usage.search_calls) == (False, 0)


@pytest.mark.real
def test_a_signal_of_samples_leaves_the_answer_greedy(smollm: LM, index: FixedRetriever):
    """The draft is read from twenty samples of the same prompt; what is answered is what every strategy would have answered."""
    plain = asyncio.run(answer(load_strategy("no-retrieval", lm=smollm), QUESTION))
    gated = asyncio.run(answer(load_strategy("gated(semantic-entropy)", lm=smollm, retriever=index, threshold=inf), QUESTION))
    assert gated.answer.text == plain.answer.text
    assert (gated.usage.generate_calls, gated.usage.sequences) == (2, 21)
    assert 0 <= gated.gates[0].value <= 3.0
    assert not gated.gates[0].open
