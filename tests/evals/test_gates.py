"""Gate metrics: against scikit-learn, a slow pairwise count, and closed forms; ties and one class included."""

from __future__ import annotations

from itertools import pairwise, permutations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import average_precision_score, roc_auc_score

from inward.errors import UsageError
from inward.evals.gates import aurc, auroc, consistency, ece, pr_auc, prr, skip_error

graded = st.lists(st.tuples(st.integers(0, 4).map(float), st.sampled_from([0.0, 1.0])), min_size=2, max_size=30).filter(
    lambda rows: len({w for _, w in rows}) == 2
)


@given(graded)
def test_auroc_and_pr_auc_are_those_of_scikit_learn_and_of_counting_pairs(rows: list[tuple[float, float]]):
    values, wrong = [v for v, _ in rows], [w for _, w in rows]
    pairs = [(v > u) + (v == u) / 2 for v, w in rows if w for u, x in rows if not x]
    assert auroc(values, wrong, draws=5).value == pytest.approx(np.mean(pairs))
    assert auroc(values, wrong, draws=5).value == pytest.approx(roc_auc_score(wrong, values))
    assert pr_auc(values, wrong, draws=5).value == pytest.approx(average_precision_score(wrong, values))


def test_the_interval_of_auroc_is_that_of_resampling():
    rng = np.random.default_rng(0)
    wrong = (rng.random(150) < 0.4).astype(float)
    values = wrong + rng.normal(0, 1.2, 150)
    found = auroc(values.tolist(), wrong.tolist(), draws=2000)
    drawn = [roc_auc_score(wrong[i], values[i]) for i in rng.integers(0, 150, (800, 150))]
    assert (found.low, found.high) == pytest.approx(np.percentile(drawn, (2.5, 97.5)), abs=0.015)


def test_a_value_that_is_not_finite_is_the_most_uncertain():
    assert auroc([0.1, None, 0.2], [0.0, 1.0, 0.0]).value == 1
    assert auroc([0.1, float("nan"), 0.2], [0.0, 1.0, 0.0]).value == 1


@pytest.mark.parametrize(
    ("wrong", "why"), [([1.0, 1.0], "all answers are wrong"), ([0.0, 0.0], "all answers are right"), ([], "no questions")]
)
def test_one_class_is_not_a_number_but_a_reason(wrong: list[float], why: str):
    for measure in (auroc, pr_auc, prr):
        found = measure([0.5] * len(wrong), wrong)
        assert found.value is None
        assert found.why.startswith(why)


def test_aurc_by_hand():
    """Sure to unsure: right, wrong, right: errors 0, 1/2, 1/3."""
    assert aurc([0.1, 0.2, 0.3], [0.0, 1.0, 0.0]).value == pytest.approx((0 + 1 / 2 + 1 / 3) / 3)
    assert aurc([0.3, 0.2, 0.1], [1.0, 1.0, 0.0]).value == pytest.approx((0 + 1 / 2 + 2 / 3) / 3)


@given(st.lists(st.tuples(st.integers(0, 1).map(float), st.sampled_from([0.0, 1.0])), min_size=1, max_size=5))
def test_ties_are_taken_in_every_order(rows: list[tuple[float, float]]):
    orders = [order for order in permutations(rows) if all(a[0] <= b[0] for a, b in pairwise(order))]
    slow = np.mean([np.mean([np.mean([w for _, w in order[: i + 1]]) for i in range(len(rows))]) for order in orders])
    assert aurc([v for v, _ in rows], [w for _, w in rows], draws=3).value == pytest.approx(slow)


def test_prr_is_one_for_the_best_ranking_zero_for_none_and_negative_for_the_worst():
    wrong = [0.0, 0.0, 1.0, 1.0]
    assert prr([1, 2, 3, 4], wrong).value == pytest.approx(1)
    assert prr([1, 1, 1, 1], wrong).value == pytest.approx(0)
    assert prr([4, 3, 2, 1], wrong).value < 0


def test_ece_by_hand():
    assert ece([0.9, 0.9, 0.1, 1.0], [1.0, 0.0, 0.0, 1.0]).value == pytest.approx(
        (0.8 + 0.1 + 0.0) / 4
    )  # 0.9, 0.9 and 1.0 share a bin: |2.8 - 2|
    assert ece([0.9, 0.9], [1.0, None]).n == 1
    assert ece([None, None], [1.0, 0.0]).why.startswith("no confidences")


def test_skip_error_and_consistency_by_hand():
    searched, right, unaided = [0.0, 0.0, 1.0, 0.0], [1.0, 0.0, 0.0, 1.0], [1.0, 0.0, 1.0, 1.0]
    assert skip_error(searched, right).value == pytest.approx(1 / 3)
    assert consistency(unaided, right).value == pytest.approx(2 / 3)
    assert skip_error([1.0], [1.0]).why == "every question was looked up"
    assert skip_error([None, 1.0], [0.0, 1.0]).why == "no question was answered without retrieval"
    assert skip_error([None, 0.0], [0.0, 1.0]).value == 0.0, "a failed question was not skipped"
    assert skip_error([0.0], [None]).why == "there are no gold answers"
    assert consistency([0.0], [1.0]).why == "no question is right without retrieval"


@pytest.mark.parametrize("bad", [-0.5, 1.0001, float("nan"), float("inf")])
def test_a_confidence_that_is_no_share_is_refused(bad: float):
    with pytest.raises(UsageError, match="a confidence lies between 0 and 1"):
        ece([0.5, bad], [1.0, 1.0])
