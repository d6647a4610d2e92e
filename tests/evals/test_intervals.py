"""Intervals, paired tests, correction, correlations: against scipy, hand calculation and simulation."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from inward.errors import UsageError
from inward.evals.gates import auroc
from inward.evals.intervals import DRAWS, correlation, holm, mcnemar, means, paired, sign_flips, weights


def test_a_mean_has_the_interval_of_scipys_percentile_bootstrap():
    rng = np.random.default_rng(1)
    values = rng.normal(3, 2, 200)
    (found,) = means([values.tolist()], draws=20_000)
    theirs = stats.bootstrap((values,), np.mean, method="percentile", n_resamples=20_000, rng=np.random.default_rng(2)).confidence_interval
    assert found.value == pytest.approx(values.mean())
    assert (found.low, found.high) == pytest.approx((theirs.low, theirs.high), abs=0.02)
    assert found.n == 200


def test_an_interval_covers_the_truth_as_often_as_it_says():
    """400 samples of 60 coins of 0.3: an interval of 95 % misses between 2 and 9 % of the time (percentile intervals run short)."""
    rng = np.random.default_rng(0)
    found = [means([(rng.random(60) < 0.3).astype(float).tolist()], draws=400, seed=i)[0] for i in range(400)]
    inside = sum(e.low <= 0.3 <= e.high for e in found) / 400  # type: ignore[operator]
    assert 0.91 <= inside <= 0.98


def test_what_is_not_defined_is_left_out_and_counted():
    found = means([[1.0, None, 0.0, None], [None] * 4, [2.0] * 4])
    assert (found[0].value, found[0].n) == (0.5, 2)
    assert (found[1].value, found[1].n, found[1].why) == (None, 0, "defined for no question")
    assert (found[2].low, found[2].value, found[2].high) == (None, 2.0, None)
    assert means([[]])[0].why == "no questions"


def test_resamples_are_the_same_whatever_is_measured_beside():
    a, b = [0.0, 1.0] * 30, list(range(60))
    assert means([a])[0] == means([b, a])[1]
    assert means([a], seed=1)[0] != means([a], seed=2)[0]


def test_resamples_hold_as_many_questions_and_come_in_parts():
    rows = np.concatenate(list(weights(7, 50, 0)))
    assert rows.shape == (50, 7)
    assert (rows.sum(1) == 7).all()
    assert sum(len(part) for part in weights(3_000_000, 3, 0)) == 3


def test_X8_a_run_against_itself():
    values = [0.0, 1.0, 0.5, None, 1.0]
    for column in (values, [0.0, 1.0, 1.0]):
        found = paired(column, column)
        assert (found.delta.value, found.p) == (0, 1)
        assert found.delta.low == -found.delta.high, "few questions that agree leave doubt"


def test_X8_ten_items_have_a_paired_interval():
    found = paired([1.0] * 7 + [0.0] * 3, [0.0] * 6 + [1.0] + [0.0] * 3)
    assert found.delta.value == 0.6
    assert 0.2 <= found.delta.low < 0.6 < found.delta.high <= 0.9  # type: ignore[operator]
    assert (found.test, found.p) == ("McNemar, exact", 2 / 64)
    assert found.delta.n == 10


@pytest.mark.parametrize(("better", "worse", "p"), [(0, 0, 1), (5, 0, 2 / 32), (6, 1, 2 * 8 / 128), (3, 3, 1)])
def test_mcnemar_is_a_binomial_test_of_what_changed(better: int, worse: int, p: float):
    assert mcnemar(better, worse) == mcnemar(worse, better) == pytest.approx(p)


def test_sign_flips_are_exact_for_few_and_near_the_t_test_for_many():
    assert sign_flips(np.array([1.0, 2.0, 3.0])) == pytest.approx(2 / 8)
    assert sign_flips(np.array([0.0, 0.0])) == 1
    assert sign_flips(np.array([0.1, 0.2, 0.3, -0.6])) == 1
    rng = np.random.default_rng(3)
    for shift in (0.0, 0.15, 0.3):
        values = rng.normal(shift, 1, 150)
        assert sign_flips(values) == pytest.approx(stats.ttest_1samp(values, 0).pvalue, abs=0.02)


def test_pairs_are_of_the_same_questions():
    with pytest.raises(UsageError, match="the same questions, got 2 and 3"):
        paired([1.0, 0.0], [1.0, 0.0, 1.0])
    assert paired([None], [1.0]).p is None


def test_holm_by_hand():
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.5, None, 0.9, 0.001]) == [1.0, None, 1.0, pytest.approx(0.003)]
    assert holm([]) == []


@given(st.lists(st.floats(0, 1), max_size=8))
def test_holm_only_raises_and_keeps_the_order(ps: list[float]):
    found = holm(ps)
    assert all(p <= q <= 1 for p, q in zip(ps, found, strict=True))
    ranked = [q for _, q in sorted(zip(ps, found, strict=True))]
    assert ranked == sorted(ranked)


@pytest.mark.parametrize("kind", ["pearson", "spearman", "kendall"])
def test_correlations_have_n_and_an_interval(kind):
    rng = np.random.default_rng(5)
    x = rng.normal(size=80)
    y = x + rng.normal(size=80)
    found = correlation([*x.tolist(), None, 1.0], [*y.tolist(), 2.0, float("nan")], kind)
    assert found.n == 80
    assert found.low < found.value < found.high
    if kind == "pearson":
        theirs = stats.pearsonr(x, y).confidence_interval()
        assert (found.low, found.high) == pytest.approx((theirs.low, theirs.high))
    drawn = [correlation(x[i].tolist(), y[i].tolist(), kind).value for i in rng.integers(0, 80, (300, 80))]
    assert (found.low, found.high) == pytest.approx(np.percentile(drawn, (2.5, 97.5)), abs=0.08)
    assert correlation([1.0, 1.0, 1.0], [1.0, 2.0, 3.0], kind).value is None


def test_the_number_of_draws_is_stated():
    assert DRAWS >= 1000


@pytest.mark.parametrize("n", [1, 5, 300])
def test_where_all_agree_the_interval_is_the_exact_one(n: int):
    right, wrong = means([[1.0] * n, [0.0] * n], bounds=(0.0, 1.0))
    exact = stats.binomtest(n, n).proportion_ci(0.95, method="exact")
    assert (right.low, right.high) == pytest.approx((exact.low, exact.high))
    assert (wrong.low, wrong.high) == pytest.approx((1 - exact.high, 1 - exact.low))
    (cost,) = means([[1.0] * n])
    assert (cost.value, cost.low, cost.high) == (1.0, None, None), "a cost of one call each says nothing of the next"


@pytest.mark.parametrize("n", [1, 3, 40])
def test_differences_that_are_all_alike_still_leave_doubt(n: int):
    """Zero width would say certainty where the p value beside it says that nothing is known."""
    found = paired([1.0] * n, [0.0] * n).delta
    exact = stats.binomtest(n, n).proportion_ci(0.95, method="exact")
    assert (found.value, found.low, found.high) == (1.0, pytest.approx(2 * exact.low - 1), 1.0)
    same = paired([1.0] * n, [1.0] * n).delta
    assert (same.value, same.low, same.high) == (0.0, pytest.approx(exact.low - 1), pytest.approx(1 - exact.low))
    calls = paired([3.0] * n, [1.0] * n).delta
    assert (calls.value, calls.low, calls.high) == (2.0, None, None)


def test_resamples_without_spread_give_no_interval():
    found = auroc([0.1, 0.2, 0.9], [0, 0, 1])
    assert (found.value, found.low, found.high, found.n) == (1.0, None, None, 3)
