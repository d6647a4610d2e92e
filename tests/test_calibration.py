"""Thresholds: by hand, and by simulation where the truth is known."""

from __future__ import annotations

from math import inf, nan

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inward.calibration import ALWAYS, NEVER, balanced, choose_threshold, max_skip_error, max_skip_error_among_skipped, retrieval_rate
from inward.errors import BadInput, UsageError

VALUES = [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9]
LOST = [False, False, True, False, False, True, True, True, True]


def world(rng: np.random.Generator, n: int) -> tuple[list[float], list[bool]]:
    """Draw questions: the loss of skipping one has the probability of its value, squared."""
    values = rng.random(n)
    return values.tolist(), (rng.random(n) < values**2).tolist()


def true_skip_error(threshold: float) -> float:
    return float(np.clip(threshold, 0, 1)) ** 3 / 3


def test_max_skip_error_by_hand():
    """n = 9: one loss costs (1 + 1) / 10, two cost 3 / 10."""
    assert max_skip_error(VALUES, LOST, 0.2).value == 0.5
    assert max_skip_error(VALUES, LOST, 0.25).value == 0.5
    assert max_skip_error(VALUES, LOST, 0.3).value == 0.6
    assert max_skip_error(VALUES, LOST, 0.1).value == 0.2
    found = max_skip_error(VALUES, LOST, 0.2)
    assert (found.n, found.retrieval_rate, found.skip_error) == (9, pytest.approx(4 / 9), pytest.approx(1 / 9))
    assert found.skip_error_among_skipped == pytest.approx(1 / 5)


def test_a_level_that_never_retrieving_meets_says_so():
    found = max_skip_error(VALUES, LOST, 0.6)
    assert found.value == NEVER
    assert found.retrieval_rate == 0
    assert "never retrieving already meets 0.6: 0.556 of the questions" in found.warnings[0]


def test_a_level_that_n_cannot_support_is_refused_with_both_numbers():
    with pytest.raises(
        BadInput, match=r"max-skip-error=0\.05 cannot be certified with 9 .*: at least 19 are needed, or a level of 0\.1000"
    ):
        max_skip_error(VALUES, LOST, 0.05)
    with pytest.raises(BadInput, match="infinitely many"):
        max_skip_error(VALUES, LOST, 0)
    assert max_skip_error([1.0] * 19, [True] * 19, 0.05).value == ALWAYS


def test_the_expected_skip_error_stays_below_the_level():
    """400 calibration sets of 60: the mean true skip error is at most the level, and not idly far below it."""
    rng = np.random.default_rng(0)
    for alpha in (0.05, 0.15):
        found = np.array([true_skip_error(max_skip_error(*world(rng, 60), alpha).value) for _ in range(400)])
        error = found.std() / 20
        assert found.mean() <= alpha + 2 * error
        assert found.mean() >= alpha - 1 / 61 - 3 * error - 0.01


def test_the_share_among_the_skipped_holds_as_often_as_promised():
    """400 calibration sets of 200: the true share of losses among skipped questions, t^2 / 3, exceeds the level in at most a tenth."""
    rng = np.random.default_rng(1)
    broken = 0
    for _ in range(400):
        threshold = max_skip_error_among_skipped(*world(rng, 200), 0.1, confidence=0.9).value
        broken += threshold > ALWAYS and threshold**2 / 3 > 0.1
    assert broken <= 0.1 * 400 + 2 * np.sqrt(400 * 0.09)


def test_a_grid_from_elsewhere_uses_every_question():
    rng = np.random.default_rng(2)
    grid = np.linspace(0, 1, 41).tolist()
    found = [max_skip_error_among_skipped(*world(rng, 200), 0.1, grid=grid) for _ in range(100)]
    assert all(t.n == 200 for t in found)
    assert sum(t.value > ALWAYS and t.value**2 / 3 > 0.1 for t in found) <= 16
    assert np.mean([t.value for t in found if t.value > ALWAYS]) > 0.2


def test_the_among_skipped_bound_by_hand():
    """22 skipped and none lost bound the share at 1 - 0.1^(1/22) = 0.0994; 21 do not reach 0.1."""
    values, grid = [float(n) for n in range(30)], [20.0, 21.0]
    assert max_skip_error_among_skipped(values, [False] * 30, 0.1, grid=grid).value == 21.0
    assert max_skip_error_among_skipped(values, [True] + [False] * 29, 0.1, grid=grid).value == ALWAYS
    with pytest.raises(BadInput, match="cannot be certified with 15 questions: at least 22 skipped ones"):
        max_skip_error_among_skipped(values, [False] * 30, 0.1)


def test_balanced_by_hand():
    wrong = [False, False, False, True, False, True, True, True, True]
    found = balanced(VALUES, wrong=wrong, lost=LOST)
    assert found.value == 0.5  # all 4 right but 1 wrong skipped: (4/5 + 4/4) / 2
    assert "balanced accuracy 0.900" in found.guarantee
    with pytest.raises(BadInput, match="0 right and 9 wrong"):
        balanced(VALUES, wrong=[True] * 9)


@pytest.mark.parametrize(("rate", "value"), [(0.0, 0.9), (0.34, 0.6), (0.33, 0.7), (1.0, ALWAYS)])
def test_retrieval_rate_by_hand(rate: float, value: float):
    found = retrieval_rate(VALUES, rate)
    assert found.value == value
    assert found.retrieval_rate <= rate


@given(st.lists(st.one_of(st.floats(allow_nan=True), st.just(nan)), min_size=1, max_size=30), st.floats(0, 1))
def test_a_value_that_is_not_finite_is_never_skipped(values: list[float], rate: float):
    found = retrieval_rate(values, rate)
    skipped = [v for v in values if np.isfinite(v) and v <= found.value]
    assert found.retrieval_rate == pytest.approx(1 - len(skipped) / len(values))


def test_equal_values_are_skipped_together_or_not_at_all():
    found = max_skip_error([0.5] * 50, [True] * 2 + [False] * 48, 0.04)
    assert found.value == ALWAYS
    assert max_skip_error([0.5] * 50 + [0.9] * 50, [True] * 2 + [False] * 48 + [True] * 50, 0.04).value == 0.5


def test_thresholds_go_by_name():
    wrong = [False, True] * 100
    lost = [False, False, False, True] * 50
    values = [float(n) for n in range(200)]
    for wanted in ("balanced", "retrieval-rate=0.3", "max-skip-error=0.05", "max-skip-error-among-skipped=0.4, confidence=0.8"):
        assert choose_threshold(wanted, values, wrong=wrong, lost=lost).name == wanted
    assert choose_threshold("max-skip-error-among-skipped=0.4", values, wrong=wrong, lost=lost).name.endswith("confidence=0.9")
    for bad in ("best", "max-skip-error", "max-skip-error=2", "retrieval-rate=x", "max-skip-error=0.1, confidence=7"):
        with pytest.raises(UsageError):
            choose_threshold(bad, values, wrong=wrong, lost=lost)


def test_no_questions_and_uneven_lists_are_refused():
    with pytest.raises(BadInput, match="got none"):
        max_skip_error([], [], 0.1)
    with pytest.raises(UsageError, match="got 2 losses and 1 values"):
        max_skip_error([1.0], [True, False], 0.1)
    assert retrieval_rate([inf, inf], 0.5).value == NEVER


@pytest.mark.parametrize("n", [10, 20, 33, 50, 100])
def test_a_rate_that_is_a_whole_number_of_questions_is_met_exactly(n: int):
    values = [float(i) for i in range(n)]
    for looked_up in range(n + 1):
        found = retrieval_rate(values, looked_up / n)
        assert sum(v > found.value for v in values) == looked_up, (n, looked_up)
