"""Closed forms of the signals that read several samples, and what they make of samples that are not there."""

from __future__ import annotations

import asyncio
import json
from math import isnan, log
from pathlib import Path

import numpy as np
import pytest

from inward.signals import SIGNALS, load_signal
from inward.signals.samples import SampleSignal, alike, ln_entropy, mean_perplexity, meanings, rouge_l
from inward.signals.tokens import energy
from inward.types import Completion, Generation, Sampling, Usage

REFERENCE = json.loads((Path(__file__).parents[1] / "seakr_reference_values.json").read_text(encoding="utf-8"))


def sample(text: str, logprobs: tuple[float, ...] = (-0.5,)) -> Completion:
    return Completion(
        text=text,
        token_ids=tuple(range(len(logprobs))),
        finish="eos",
        spans=np.zeros((len(logprobs), 2), np.int32),
        logprobs=np.array(logprobs, np.float32),
        energies=np.array(logprobs, np.float32),
    )


def value(name: str, *texts: str) -> float:
    generation = Generation(completions=tuple(sample(f"So. Answer: {text}" if text else "") for text in texts), usage=Usage())
    return asyncio.run(load_signal(name)(generation)).value


@pytest.mark.parametrize(
    ("texts", "counts"),
    [(["Paris", "paris.", "The Paris"], [3]), (["Paris", "Rome", "Paris"], [2, 1]), (["A", "the"], [1, 1]), (["3.5", "35"], [1, 1])],
)
def test_answers_mean_the_same_as_exact_match_would_say(texts: list[str], counts: list[int]):
    assert meanings(texts) == counts


def test_equivalence_may_be_another():
    assert meanings(["NYC", "New York", "Rome"], lambda a, b: {a, b} <= {"NYC", "New York"} or alike(a, b)) == [2, 1]


def test_entropy_of_meanings():
    assert value("semantic-entropy", *["Paris"] * 5) == 0
    assert value("semantic-entropy", "Paris", "Rome") == pytest.approx(log(2))
    assert value("semantic-entropy", "Paris", "Paris", "Paris", "Rome") == pytest.approx(-(0.75 * log(0.75) + 0.25 * log(0.25)))
    assert value("semantic-entropy", *"abcd".replace("a", "e")) == pytest.approx(log(4))


def test_share_of_the_commonest_answer():
    assert value("self-inconsistency", "Paris", "Paris", "Rome", "Oslo") == pytest.approx(0.5)
    assert value("self-inconsistency", "Paris", "paris") == 0


def test_rouge_l_by_hand():
    assert rouge_l(["the", "police", "killed", "the", "gunman"], ["police", "kill", "the", "gunman"]) == pytest.approx(2 * 3 / 9)
    assert rouge_l(["a", "b", "c", "d"], ["d", "c", "b", "a"]) == pytest.approx(2 * 1 / 8)
    assert rouge_l([], []) == 1
    assert rouge_l(["x"], []) == 0
    assert value("lexical-dissimilarity", "x y", "x y") == 0


@pytest.mark.parametrize("name", [name for name in SIGNALS if isinstance(load_signal(name), SampleSignal)])
def test_order_and_blank_samples_change_nothing_and_one_sample_has_no_value(name: str):
    texts = ["Paris", "Rome", "Paris", "Oslo"]
    found = value(name, *texts)
    assert value(name, *texts[::-1]) == pytest.approx(found)
    assert value(name, "", *texts, "") == pytest.approx(found)
    assert isnan(value(name, "Paris"))
    assert isnan(value(name, "", ""))
    asked = load_signal(name).wants(Sampling(max_tokens=3))
    assert (asked.n, asked.temperature, asked.top_p, asked.top_k) == (20, 1.0, 1.0, 0)


def test_both_readings_of_length_normalised_entropy_are_the_reference_values():
    """The terminator's entry, the last one, is not among the kept tokens."""
    cases = [c["token_logprobs_including_terminator"][:-1] for c in REFERENCE["perplexity"]["cases"]]
    samples = [sample("x", tuple(case)) for case in cases if case]
    assert mean_perplexity(samples) == pytest.approx(REFERENCE["ln_entropy"]["as_coded_for_the_perplexity_cases"], rel=1e-6)
    assert ln_entropy(samples) == pytest.approx(REFERENCE["ln_entropy"]["textbook_mean_of_mean_NLL"], rel=1e-6)
    for case in REFERENCE["perplexity"]["cases"]:
        kept = tuple(case["token_logprobs_including_terminator"][:-1])
        if kept:
            one = asyncio.run(load_signal("perplexity")(Generation(completions=(sample("x", kept),), usage=Usage())))
            assert one.value == pytest.approx(case["perplexity"], rel=1e-6)


def test_energy_has_the_sign_of_uncertainty():
    shown = Generation(completions=(sample("x", tuple(REFERENCE["energy"]["per_token_logsumexp"])),), usage=Usage())
    assert asyncio.run(energy(shown)).value == pytest.approx(REFERENCE["energy"]["textbook_energy_T1"], rel=1e-6)
    assert energy.wants(Sampling()).token_scores == ("energies",)


def test_X9_repeated_samples_never_leave_the_range():
    assert value("semantic-entropy", *["x"] * 5) == 0
    assert value("semantic-entropy", "x", "x", "y") == pytest.approx(-(2 / 3 * log(2 / 3) + 1 / 3 * log(1 / 3)))
    assert 0 <= value("semantic-entropy", *"abcdefghij") <= log(10) + 1e-12
