"""Answers compared: closed forms, the named normalisers, and other people's scorers on unpleasant cases."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inward.evals.answers import contains, exact_match, f1, substring
from inward.evals.normalise import NORMALISERS, NormaliserName

INDEPENDENT = json.loads((Path(__file__).parent / "independent.json").read_text(encoding="utf-8"))
REFERENCE = json.loads((Path(__file__).parents[1] / "seakr_reference_values.json").read_text(encoding="utf-8"))["metrics"]


@pytest.mark.parametrize("case", INDEPENDENT["cases"], ids=lambda case: case["answer"][:20] or "empty")
def test_em_and_f1_are_those_of_an_independent_scorer(case: dict):
    assert exact_match(case["answer"], case["golds"], "squad") == pytest.approx(case["em"])
    assert f1(case["answer"], case["golds"], "squad") == pytest.approx(case["f1"])


@pytest.mark.parametrize("case", REFERENCE, ids=lambda case: case["prediction"][:20] or "empty")
def test_em_and_f1_are_the_reference_values(case: dict):
    assert exact_match(case["prediction"], case["gold"]) == case["em"]
    assert f1(case["prediction"], case["gold"]) == pytest.approx(case["f1"])


def test_X2_normalisers_have_names_and_differ():
    assert exact_match("1990–95", ["1990-95"], "squad") == 0
    assert exact_match("1990–95", ["1990-95"], "unicode") == 1
    assert f1("yes it is", ["yes"], "squad") == 0.5
    assert f1("yes it is", ["yes"], "hotpot") == 0
    assert f1("Barack Hussein Obama", ["Barack Obama"]) == pytest.approx(0.8)
    assert exact_match("«Le Monde»", ["Le Monde"], "unicode") == 1
    assert exact_match("ＡＢＣ", ["abc"], "unicode") == 1


@pytest.mark.parametrize("name", NORMALISERS)
@pytest.mark.parametrize("gold", ["Montreal", "City of Montréal"])
def test_S8_every_gold_answer_counts(name: NormaliserName, gold: str):
    golds = ["Montreal", "City of Montréal"]
    for score in (exact_match, f1, contains, substring):
        assert score(gold, golds, name) == 1


@given(st.text(max_size=30), st.lists(st.text(max_size=30), min_size=1, max_size=4), st.sampled_from(list(NORMALISERS)))
def test_bounds_and_order(answer: str, golds: list[str], name: NormaliserName):
    em, overlap = exact_match(answer, golds, name), f1(answer, golds, name)
    assert em in (0, 1)
    assert em <= overlap <= 1
    assert contains(answer, golds, name) <= substring(answer, golds, name)
    assert overlap == max(f1(answer, [gold], name) for gold in golds) == f1(answer, golds[::-1], name)


@pytest.mark.parametrize(
    ("text", "golds", "expected"),
    [
        ("It is in Paris, France.", ["Paris"], 1),
        ("known", ["no"], 0),
        ("No, it is not known", ["no"], 1),
        ("the Parisians", ["Paris"], 0),
        ("Saint Petersburg", ["St. Petersburg", "saint petersburg"], 1),
        ("new york city", ["york new"], 0),
        ("anything", ["The The", "the"], 0),
        ("The the", ["The The"], 1),
        ("", ["Paris"], 0),
        ("", [""], 0),
        ("anything", [], 0),
    ],
)
def test_containment_is_of_whole_tokens(text: str, golds: list[str], expected: float):
    assert contains(text, golds) == expected


def test_a_plain_substring_is_another_metric():
    assert substring("known", ["no"]) == 1


def test_no_answer_is_never_right():
    for golds in (["The The"], ["a"], ["x"]):
        assert exact_match("", golds) == f1(" \n", golds) == 0
    assert exact_match("The The", ["The The"]) == f1("The The", ["The The"]) == 1
    assert exact_match("", [""]) == 1


def test_what_normalises_to_nothing_is_compared_as_it_is():
    for other in ("The", "!!!", "an", "B"):
        assert exact_match(other, ["A"]) == f1(other, ["A"]) == contains(other, ["A"]) == 0
    assert exact_match("a", ["A"]) == f1("A", ["A"]) == contains("A", ["A"]) == substring("A", ["A"]) == 1
    assert exact_match("the", ["a"], "squad") == 1, "what the SQuAD script says"
