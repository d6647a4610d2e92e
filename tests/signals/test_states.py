"""SeaKR's score against the reference values, its invariances, and what it makes of samples that are not there."""

from __future__ import annotations

import asyncio
import json
from math import inf, isnan, log
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inward.errors import UsageError
from inward.signals.states import ALPHA, EigenScore, gram_log_det, identical_floor, middle_layer
from inward.types import Completion, Generation, Sampling, Usage

REFERENCE = json.loads((Path(__file__).parents[1] / "seakr_reference_values.json").read_text(encoding="utf-8"))


def spread(seed: int, scale: float, noise: float) -> np.ndarray:
    rng = np.random.default_rng(seed)
    base = rng.standard_normal(4096) * scale
    return base[None] + noise * rng.standard_normal((20, 4096))


LARGE = {
    "rand_20x64_seed15": lambda: np.round(np.random.default_rng(15).standard_normal((20, 64)) * 0.1, 4),
    "rand_20x4096_seed16_scale0.02": lambda: np.round(np.random.default_rng(16).standard_normal((20, 4096)) * 0.02, 6),
    "near_identical_20x4096_seed17": lambda: spread(17, 0.02, 0.002),
    "float32_breakdown_20x4096_seed18": lambda: spread(18, 10, 1e-3),
}


@pytest.mark.parametrize("case", REFERENCE["eigen_score_cases"], ids=lambda case: case["name"])
def test_it_is_the_reference_value(case: dict):
    states = np.array(case["matrix"], np.float64) if "matrix" in case else LARGE[case["name"]]()
    found = gram_log_det(states, case["alpha"])
    assert found == pytest.approx(case["expected_eigen_score"], abs=case["abs_tol_float64"])
    for name, wrong in case.get("wrong_variants_for_diagnosis", {}).items():
        if wrong is not None and abs(wrong - case["expected_eigen_score"]) > 1e-3:
            assert abs(found - wrong) > 1e-6, f"looks like {name}"


@pytest.mark.parametrize("case", REFERENCE["identical_sample_floor"]["values"])
def test_equal_samples_have_the_floor(case: dict):
    assert identical_floor(case["k"], case["centred_squared_norm"], case["alpha"]) == pytest.approx(case["floor"])
    row = np.zeros(8)
    row[:2] = (case["centred_squared_norm"] / 2) ** 0.5 * np.array([1, -1])
    assert gram_log_det(np.tile(row, (case["k"], 1)), case["alpha"]) == pytest.approx(case["floor"], abs=1e-6)


@given(st.integers(0, 2**32 - 1), st.integers(2, 12), st.integers(3, 40))
def test_its_invariances(seed: int, k: int, d: int):
    rng = np.random.default_rng(seed)
    rows = rng.normal(0, 3, (k, d))
    found = gram_log_det(rows)
    assert gram_log_det(rows[rng.permutation(k)]) == pytest.approx(found, abs=1e-6)
    assert gram_log_det(rows[:, rng.permutation(d)]) == pytest.approx(found, abs=1e-6)
    assert gram_log_det(rows + rng.normal(0, 3, (k, 1))) == pytest.approx(found, abs=1e-6)
    assert gram_log_det(rows * rng.choice([-1, 1], (k, 1))) == pytest.approx(found, abs=1e-6)
    assert found >= log(ALPHA)


def test_one_vector_added_to_all_rows_moves_it():
    rows = np.random.default_rng(0).normal(0, 0.1, (20, 64))
    assert gram_log_det(rows + np.linspace(-3, 3, 64)) > gram_log_det(rows) + 0.05


def test_states_of_a_residual_stream_stay_finite():
    """In single precision this is minus infinity, which `> threshold` takes for certainty."""
    assert -10 < gram_log_det(np.tile(np.float32(1e4) * np.random.default_rng(0).normal(0, 1, 64).astype(np.float32), (20, 1))) < 5


def test_what_is_no_matrix_of_states_is_refused():
    for bad in (np.zeros((0, 4)), np.zeros(4), np.zeros((2, 3, 4))):
        with pytest.raises(UsageError, match=r"states are \[k, d\]"):
            gram_log_det(bad)
    with pytest.raises(UsageError, match="alpha must be above 0"):
        gram_log_det(np.zeros((2, 3)), 0.0)
    assert isnan(gram_log_det(np.array([[1.0, np.inf], [0.0, 1.0]])))


def sample(text: str, state: np.ndarray | None) -> Completion:
    count = len(text.split())
    return Completion(
        text=text,
        token_ids=tuple(range(count)),
        finish="eos",
        spans=np.zeros((count, 2), np.int32),
        states=None if state is None else state[None].astype(np.float32),
    )


def read(*samples: Completion) -> object:
    return asyncio.run(EigenScore(layer=3)(Generation(completions=samples, usage=Usage())))


def test_blank_samples_are_left_out_and_k_shrinks():
    rows = np.random.default_rng(1).normal(0, 1, (4, 16))
    shown = [sample("yes", rows[0]), sample(" \n", rows[1]), sample("no", rows[2]), sample("", rows[3])]
    found = read(*shown)
    assert found.value == pytest.approx(gram_log_det(rows[[0, 2]].astype(np.float32)))
    assert found.parts == {"samples": 2.0}


@pytest.mark.parametrize("texts", [["", " "], ["yes"], ["yes", ""]])
def test_with_fewer_than_two_samples_there_is_no_score(texts: list[str]):
    rows = np.ones((len(texts), 4))
    assert read(*(sample(text, row) for text, row in zip(texts, rows, strict=True))).value == inf


def test_a_state_that_is_not_finite_gives_no_score():
    assert read(sample("a", np.array([1.0, np.nan])), sample("b", np.array([1.0, 2.0]))).value == inf


def test_it_asks_for_samples_and_for_the_state_of_the_end_token():
    signal = EigenScore(layer=8, k=5)
    asked = signal.wants(Sampling(max_tokens=7, stop=("x",)))
    assert (asked.n, asked.temperature, asked.top_p, asked.top_k, asked.max_tokens, asked.stop) == (5, 1.0, 0.9, 50, 7, ("x",))
    assert (signal.capture.layers, signal.capture.site, signal.capture.pool) == ((8,), "mlp_raw", "eos")
    assert [middle_layer(n) for n in (32, 18, 30)] == [15, 8, 14]


def test_E2_nearly_singular_matrices_have_a_finite_score():
    half = np.random.default_rng(3).normal(0, 1, 64).astype(np.float16).astype(np.float64)
    half -= half.mean()
    same = np.tile(half / np.linalg.norm(half), (20, 1))
    assert gram_log_det(same) == pytest.approx(-6.4126, abs=1e-3)
    orthonormal = np.zeros((20, 64))
    for row in range(20):
        orthonormal[row, 2 * row : 2 * row + 2] = (0.5**0.5, -(0.5**0.5))
    assert gram_log_det(orthonormal) == pytest.approx(0.0010, abs=1e-4)
    assert gram_log_det(same[:1]) == pytest.approx(log(1 + ALPHA))
    assert read(sample("only one", same[0])).value == inf
