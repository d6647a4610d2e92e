"""Algorithm 1: one trace per branch, with a prober whose verdict is in plain sight, then a real model."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from math import inf
from pathlib import Path

import msgspec
import pytest
from knowing import knowing_prober, states_of

from inward.calibration import Threshold
from inward.errors import ModelError, UnknownName, Unsupported, UsageError
from inward.evals.run import answer
from inward.probers.card import CalibrationRow
from inward.prompts import PromptTemplate
from inward.strategies import load_strategy
from inward.strategies.probing_rag import query_of
from inward.testing import FixedRetriever, FunctionLM
from inward.trace import Outcome
from inward.types import Answer, Passage

QUESTION = "What is the capital of France?"


@pytest.fixture
def lm(say: Callable) -> FunctionLM:
    """Knows with the passages, and not without."""
    return FunctionLM(lambda prompt: say("Paris" if "Zymurgia" in prompt else "Lyon"), states=states_of)


@pytest.fixture
def lost(say: Callable) -> FunctionLM:
    """Never knows."""
    return FunctionLM(lambda prompt: say("Lyon"), states=states_of)


def load(lm: FunctionLM, index: FixedRetriever, **options: object):
    return load_strategy("probing-rag", lm=lm, retriever=index, **{"prober": knowing_prober(), "threshold": 0.0, **options})


def test_it_searches_until_the_probers_are_content(lm: FunctionLM, index: FixedRetriever, run: Callable, shape: Callable):
    outcome = run(load(lm, index))
    assert shape(outcome) == ["Generated", "prober:open", "Searched", "Generated", "prober:closed"]
    assert outcome.answer.short == "Paris"
    first, second = outcome.gates
    assert (first.value, second.value, first.above) == (pytest.approx(4.0, rel=1e-3), pytest.approx(-4.0, rel=1e-3), 0.0)
    assert list(first.parts) == ["layer 2", "layer 5"]
    assert first.value == pytest.approx(sum(first.parts.values()))
    assert outcome.searches[0].query == f"{QUESTION} I think so. Answer: Lyon."


def test_a_draft_that_the_model_knows_stands(say: Callable, index: FixedRetriever, run: Callable, shape: Callable):
    outcome = run(load(FunctionLM(lambda prompt: say("Paris"), states=states_of), index))
    assert shape(outcome) == ["Generated", "prober:closed"]
    assert (outcome.answer.passages, outcome.usage.search_calls) == ((), 0)


def several(times: int) -> FixedRetriever:
    """An index that finds another passage for every query."""

    class Index(FixedRetriever):
        found = 0

        async def search(self, query: str, k: int = 5, *, where: object = None) -> list[Passage]:
            Index.found += 1
            self._passages = (Passage(id=f"p{min(Index.found, times)}", text="Nothing of note."),)
            return await super().search(query, k)

    return Index()


@pytest.mark.parametrize("limit", [0, 1, 2, 3])
def test_after_the_last_search_it_writes_once_more(limit: int, lost: FunctionLM, run: Callable, shape: Callable):
    outcome = run(load(lost, several(99), max_retrievals=limit))
    assert shape(outcome) == ["Generated", "prober:open", *["Searched", "Generated", "prober:open"] * limit]
    assert [p.id for p in outcome.answer.passages] == ([f"p{limit}"] if limit else [])


def test_the_papers_literal_loop_never_reads_what_it_found_last(lost: FunctionLM, run: Callable, shape: Callable):
    outcome = run(load(lost, several(99), max_retrievals=2, after_last="paper"))
    assert shape(outcome) == [
        *["Generated", "prober:open", "Searched", "Generated", "prober:open", "Searched"],
        "the paper's literal loop",
    ]
    assert [p.id for p in outcome.answer.passages] == ["p1"]


def test_it_ends_where_a_search_brings_nothing_new(lost: FunctionLM, index: FixedRetriever, run: Callable, shape: Callable):
    assert shape(run(load(lost, index))) == [
        *["Generated", "prober:open", "Searched", "Generated", "prober:open", "Searched"],
        "nothing new found",
    ]
    assert shape(run(load(lost, FixedRetriever())))[-2:] == ["Searched", "nothing new found"]


def test_queries_of_each_form():
    draft, shown = Answer(text="He did. Answer: X", short="X"), (Passage(id="1", text="One."), Passage(id="2", text="Two."))
    assert query_of("draft", "Q?", draft, shown, "whole") == "Q? He did. Answer: X"
    assert query_of("paper", "Q?", draft) == "Q? He did. Answer: X"
    assert query_of("paper", "Q?", draft, shown) == "Q? One. Two. He did. Answer: X"
    assert query_of("question", "Q?", draft, shown) == "Q?"
    assert query_of("code", "Q?", draft) == "Q?"
    assert query_of("code", "Q?", draft, shown, "the whole prompt") == "the whole prompt He did. Answer: X"


def test_the_released_query_is_the_whole_prompt(lost: FunctionLM, run: Callable):
    outcome = run(load(lost, several(99), query="code", max_retrievals=2))
    first, second = (search.query for search in outcome.searches)
    assert first == QUESTION
    shown = PromptTemplate.load().demonstrations[0].question
    assert shown in second
    assert "Nothing of note." in second


# -- thresholds ----------------------------------------------------------------------------------------------


def test_theta_is_minus_threshold_and_both_are_reported(lm: FunctionLM, index: FixedRetriever, run: Callable):
    """Higher theta retrieves more (algorithm 1, table 8); the prose of section 3.3 reads the other way round."""
    more, less = load(lm, index, threshold=None, theta=2.0), load(lm, index, threshold=None, theta=-5.0)
    assert (more.options["threshold"], more.options["theta"]) == (-2.0, 2.0)
    assert (less.options["threshold"], less.options["theta"]) == (5.0, -5.0)
    assert (run(more).usage.search_calls, run(less).usage.search_calls) == (1, 0)
    with pytest.raises(UsageError, match="theta or threshold, not both"):
        load(lm, index, theta=1.0)


def test_a_gate_never_opens_at_infinity(lost: FunctionLM, index: FixedRetriever, run: Callable):
    assert run(load(lost, index, threshold=inf)).usage.search_calls == 0
    assert run(load(lost, index, threshold=-inf, max_retrievals=1)).usage.search_calls == 1


def test_probabilities_are_summed_on_their_own_scale(lm: FunctionLM, index: FixedRetriever, run: Callable, tmp_path: Path):
    outcome = run(load(lm, index, combine="probabilities"))
    share = 1 / (1 + 2.718281828**-2)
    assert outcome.gates[0].value == pytest.approx(2 * (2 * share - 1), rel=1e-3)
    with pytest.raises(UsageError, match=r"between -2 and 2, and the threshold is 3\.5"):
        load(lm, index, combine="probabilities", threshold=3.5)
    file = tmp_path / "threshold.json"
    file.write_bytes(msgspec.json.encode(Threshold(value=1.0, name="x", n=3, retrieval_rate=0.5, scale="logits")))
    assert load(lm, index, threshold=str(file)).options["threshold"] == 1.0
    with pytest.raises(UsageError, match="is one of summed logits; this prober sums probabilities"):
        load(lm, index, combine="probabilities", threshold=str(file))


def rows(values: list[float], right: list[bool]) -> tuple[CalibrationRow, ...]:
    return tuple(
        CalibrationRow(data="d", margins=(value / 2, value / 2), right_without=ok, right_with=True)
        for value, ok in zip(values, right, strict=True)
    )


def test_named_thresholds_are_chosen_on_the_scale_in_use(lm: FunctionLM, index: FixedRetriever):
    prober = knowing_prober(calibration=rows([-3.0, -1.0, 1.0, 3.0], [True, True, False, False]))
    bound = load(lm, index, prober=prober, threshold="balanced")
    assert bound.options["threshold"] == -1.0
    import math

    on_shares = load(lm, index, prober=prober, threshold="balanced", combine="probabilities")
    assert on_shares.options["threshold"] == pytest.approx(2 * math.tanh(-0.25))
    with pytest.raises(UsageError, match="one of balanced"):
        load(lm, index, prober=prober, threshold="balnced")
    with pytest.raises(UsageError, match="needs calibration questions"):
        load(lm, index, threshold="balanced")
    with pytest.raises(UsageError, match="card has no threshold"):
        load(lm, index, threshold=None)


# -- confidence ----------------------------------------------------------------------------------------------


def test_the_outcome_carries_a_calibrated_confidence(lm: FunctionLM, index: FixedRetriever, run: Callable):
    """Of the final draft, by the fit of its own kind: 1 / (1 + exp(-(0 - 0.25 * -4))) with passages."""
    assert run(load(lm, index)).confidence == pytest.approx(1 / (1 + 2.718281828**-1), rel=1e-3)
    assert run(load(lm, index, threshold=inf)).confidence == pytest.approx(1 / (1 + 2.718281828**2), rel=1e-3)
    same = run(load(lm, index, combine="probabilities"))
    assert same.confidence == pytest.approx(1 / (1 + 2.718281828**-1), rel=1e-3)
    assert run(load(lm, index, prober=knowing_prober(confidence={}))).confidence is None


def test_an_unsure_answer_may_be_withheld(lost: FunctionLM, index: FixedRetriever, run: Callable):
    outcome = run(load(lost, index, abstain_below=0.5))
    assert outcome.answer.short == ""
    assert "abstained" in outcome.answer.flags
    assert "Lyon" in outcome.events[-1].detail
    assert run(load(lost, index, abstain_below=0.1)).answer.short == "Lyon"


# -- what is refused -----------------------------------------------------------------------------------------


def test_a_prober_of_another_prompt_or_model_is_refused(lm: FunctionLM, index: FixedRetriever, caplog: pytest.LogCaptureFixture):
    class Known(FunctionLM):
        fingerprint = "this model"

    named = Known(lambda prompt: "x", states=states_of)
    with pytest.raises(UsageError, match=r"made for model 'another', and meets 'this model'"):
        load(named, index, prober=knowing_prober(model="another"))
    load(named, index, prober=knowing_prober(model="this model"))
    for field, value in (("prompt", "other"), ("stop", ("##",)), ("max_tokens", 7)):
        with pytest.raises(UsageError, match=f"made for {field} "):
            load(lm, index, prober=knowing_prober(**{field: value}))

    class Backend:
        engine, dtype = "vllm", "torch.bfloat16"

    named.backend = Backend()
    with caplog.at_level(logging.WARNING):
        load(named, index, prober=knowing_prober(model="this model", engine="packed", dtype="float32", flip_rate=0.02))
    assert "meets 'vllm'" in caplog.text
    assert "'bfloat16'" in caplog.text
    assert "flips: 2.00%" in caplog.text


def test_a_model_without_states_is_refused(say: Callable, index: FixedRetriever):
    with pytest.raises(Unsupported, match="needs states"):
        load(FunctionLM(lambda prompt: say("x")), index)


def test_options_are_checked_by_name(lm: FunctionLM, index: FixedRetriever):
    with pytest.raises(UnknownName, match="thetta"):
        load(lm, index, thetta=1.0)
    with pytest.raises(ModelError, match="it is no prober"):
        load(lm, index, prober=str(Path(__file__).parent))


# -- together ------------------------------------------------------------------------------------------------


def test_D2_questions_at_once_are_read_together_and_get_their_own_verdict(index: FixedRetriever, say: Callable):
    lm = FunctionLM(lambda prompt: say("Paris" if prompt.rpartition("Question:")[2].count("knows") else "Lyon"), states=states_of)
    bound = load(lm, index, max_retrievals=0)

    async def all_of_them() -> list[Outcome]:
        return await asyncio.gather(*(answer(bound, f"{'knows' if n % 3 else 'not'} {n}?") for n in range(30)))

    outcomes = asyncio.run(all_of_them())
    assert [outcome.gates[0].open for outcome in outcomes] == [n % 3 == 0 for n in range(30)]
