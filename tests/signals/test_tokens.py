"""Closed forms by hand, and the properties that the table in `inward.signals.tokens` promises."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from math import exp, isnan, log

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inward.errors import CaptureMissing, UnknownName
from inward.protocols import Signal
from inward.signals import SIGNALS, load_signal
from inward.signals.tokens import TokenSignal
from inward.types import Completion, Generation, Sampling, TokenScore, Usage

TOKEN = [name for name in SIGNALS if isinstance(load_signal(name), TokenSignal)]
PROBABILITIES = (0.5, 0.25, 1.0)
LOGPROBS = tuple(map(log, PROBABILITIES))
ENTROPIES = (0.1, 0.7, 0.4)


def generation(logprobs=LOGPROBS, entropies=ENTROPIES, samples: int = 1) -> Generation:
    count = len(logprobs)
    completion = Completion(
        text="x" * count,
        token_ids=tuple(range(count)),
        finish="eos",
        spans=np.array([[i, i + 1] for i in range(count)], np.int32).reshape(count, 2),
        logprobs=np.array(logprobs, np.float32),
        entropies=np.array(entropies, np.float32),
        energies=np.array(entropies, np.float32),
    )
    return Generation(completions=(completion,) * samples, usage=Usage())


def value(signal: Signal, of: Generation) -> float:
    return asyncio.run(signal(of)).value


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("mean-nll", (log(2) + log(4)) / 3),
        ("max-nll", log(4)),
        ("perplexity", exp((log(2) + log(4)) / 3)),  # = 2, as 0.5 * 0.25 * 1 = 2 ** -3
        ("least-probability", 0.75),
        ("mean-entropy", 0.4),
        ("max-entropy", 0.7),
    ],
)
def test_closed_form(name: str, expected: float):
    assert value(load_signal(name), generation()) == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("name", SIGNALS)
def test_the_name_in_the_table_is_the_name_in_the_trace(name: str):
    assert load_signal(name).name == name


@pytest.mark.parametrize("name", SIGNALS)
def test_a_completion_without_tokens_has_no_value(name: str):
    assert isnan(value(load_signal(name), generation((), ())))


@pytest.mark.parametrize("name", [name for name in TOKEN if name != "energy"])
def test_a_certain_completion_has_the_least_value(name: str):
    assert value(load_signal(name), generation((0.0, 0.0), (0.0, 0.0))) == (1.0 if name == "perplexity" else 0.0)


@pytest.mark.parametrize("name", TOKEN)
def test_X9_duplicates_among_samples_change_nothing(name: str):
    assert value(load_signal(name), generation(samples=5)) == value(load_signal(name), generation(samples=1))


UNSURE = st.lists(st.floats(min_value=-30, max_value=0), min_size=1, max_size=20)


@pytest.mark.parametrize("name", ["mean-nll", "max-nll", "perplexity", "least-probability"])
@given(logprobs=UNSURE, less=st.floats(min_value=0.01, max_value=5))
def test_X9_less_probable_tokens_never_lower_the_value_and_the_range_holds(name: str, logprobs: list[float], less: float):
    low, high = {"least-probability": (0, 1), "perplexity": (1, float("inf"))}.get(name, (0, float("inf")))
    before = value(load_signal(name), generation(logprobs, [0.0] * len(logprobs)))
    after = value(load_signal(name), generation([lp - less for lp in logprobs], [0.0] * len(logprobs)))
    assert low <= before <= after <= high


@pytest.mark.parametrize("name", ["mean-entropy", "max-entropy"])
@given(entropies=st.lists(st.floats(min_value=0, max_value=12), min_size=1, max_size=20))
def test_X9_entropies_lie_between_the_smallest_and_the_largest(name: str, entropies: list[float]):
    got = value(load_signal(name), generation([-1.0] * len(entropies), entropies))
    assert min(entropies) - 1e-5 <= got <= max(entropies) + 1e-5


@pytest.mark.parametrize(("name", "score"), [("mean-nll", "logprobs"), ("max-entropy", "entropies")])
def test_wants_switches_on_what_is_read_and_keeps_the_rest(name: str, score: TokenScore):
    asked = Sampling(max_tokens=7, stop=("\n",), token_scores=("energies",))
    assert load_signal(name).wants(asked) == replace(asked, token_scores=("energies", score))
    assert load_signal(name).wants(load_signal(name).wants(asked)).token_scores == ("energies", score)


def test_a_generation_without_scores_is_refused_with_the_remedy():
    bare = generation()
    bare = replace(bare, completions=(replace(bare.completions[0], logprobs=None),))
    with pytest.raises(CaptureMissing, match=r"token_scores=\('logprobs',\)"):
        value(load_signal("mean-nll"), bare)


def test_an_unknown_signal_is_refused_with_a_suggestion():
    with pytest.raises(UnknownName, match="did you mean 'mean-nll'"):
        load_signal("mean_nll")


def test_N5_three_signals_read_one_generation():
    asked = Sampling()
    for name in ("mean-nll", "max-nll", "max-entropy"):
        asked = load_signal(name).wants(asked)
    assert asked.token_scores == ("logprobs", "entropies")
