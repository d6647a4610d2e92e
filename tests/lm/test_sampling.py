"""Tokens are drawn from the distribution that was asked for, each row by its own key; scores are those of the raw logits."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from draws import LOGITS, check_distribution, check_rows_alone, draw, exact, keys, mixed
from inward.lm.sampling import Choice, choose, gumbel, score_rows, step_key, top_ids
from inward.trace import draw_key
from inward.types import Sampling


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"temperature": 0.5},
        {"temperature": 3.0},
        {"top_k": 4},
        {"top_p": 0.7},
        {"top_k": 6, "top_p": 0.8},
        {"top_k": 3, "top_p": 0.5, "temperature": 1.7},
        {"top_k": 1},
        {"top_p": 1e-9},
        {"top_k": 500},
    ],
    ids=str,
)
def test_draws_follow_the_distribution(settings):
    check_distribution(draw(LOGITS, **settings), exact(LOGITS, **settings))


def test_the_distribution_check_can_fail():
    """A temperature a quarter off, and one token too many, are both seen."""
    with pytest.raises(AssertionError, match="sigmas"):
        check_distribution(draw(LOGITS, temperature=1.25), exact(LOGITS))
    with pytest.raises(AssertionError, match="outside the nucleus"):
        check_distribution(draw(LOGITS, top_k=5), exact(LOGITS, top_k=4))


def test_the_nucleus_is_of_the_renormalised_top_k():
    """Of .4 .3 .2 .1 the two best are .57 and .43: half of the mass is in the first alone; un-renormalised it is not."""
    logits = torch.tensor([0.4, 0.3, 0.2, 0.1]).log()
    assert set(draw(logits, 500, top_k=2, top_p=0.5)) == {0}
    assert set(draw(logits, 500, top_p=0.5)) == {0, 1}


def test_a_nucleus_that_needs_most_of_a_large_vocabulary():
    torch.manual_seed(0)
    logits = torch.randn(5000) * 0.1
    p = exact(logits, top_p=0.9)
    inside = set(np.flatnonzero(p))
    assert 4000 < len(inside) < 5000
    drawn = Counter(draw(logits, 2000, top_p=0.9))
    assert set(drawn) <= inside
    assert max(drawn.values()) < 8


def test_draws_of_neighbouring_steps_and_samples_are_independent():
    base = draw_key(3, "q")
    rows = [step_key(base, sample, step) for sample in range(80) for step in range(81)]
    ids = np.array(choose(LOGITS.expand(len(rows), -1), [Choice(sampling=Sampling(temperature=1.0), key=k) for k in rows]).ids)
    table = ids.reshape(80, 81)
    p = exact(LOGITS)
    joint = np.outer(p, p).ravel()
    check_distribution((table[:, :-1] * 12 + table[:, 1:]).ravel().tolist(), joint)
    check_distribution((table[:-1] * 12 + table[1:]).ravel().tolist(), joint)


def test_noise_is_standard_gumbel():
    noise = gumbel(keys(100), torch.arange(500)[None].expand(100, -1)).flatten().numpy()
    assert abs(noise.mean() - 0.5772) < 0.02
    assert abs(noise.std() - math.pi / math.sqrt(6)) < 0.02
    uniform = np.exp(-np.exp(-noise))
    assert np.abs(np.histogram(uniform, 20, (0, 1))[0] / len(noise) - 0.05).max() < 0.005
    assert len(np.unique(noise)) == len(noise)


def test_noise_depends_on_key_and_token_alone():
    ids = torch.tensor([[5, 900, 261_000]])
    one = gumbel([77], ids)
    assert torch.equal(gumbel([1, 77, 2], ids.expand(3, -1))[1], one[0])
    assert torch.equal(gumbel([77], ids.flip(1)).flip(1), one)
    assert not torch.equal(gumbel([78], ids), one)


def test_noise_is_the_same_for_ever():
    """Recorded runs can be repeated: these values may never change."""
    key = step_key(draw_key(0, "q"), 0, 0)
    assert key == 0x296D4ECE6A0366B8
    noise = gumbel([step_key(12345, 2, 7)], torch.arange(3)[None])[0].tolist()
    assert noise == pytest.approx([0.5203720236471903, -0.0014043464151455673, 0.582174052786175], abs=1e-12)


# -- rows do not see each other ----------------------------------------------------------------------------


def test_a_rows_choice_does_not_depend_on_the_batch():
    check_rows_alone()


def test_logits_are_left_as_they_are():
    logits, choices = mixed()
    before = logits.clone()
    choose(logits, choices)
    assert torch.equal(logits, before)


@pytest.mark.parametrize("noise", [1e-6, 1e-5])
def test_rounding_flips_few_draws(noise: float):
    """Gumbel-max flips where the two best are closer than the noise: about once in 1e5 draws for 1e-5."""
    torch.manual_seed(3)
    logits = torch.randn(2000, 1000) * 2
    choices = [Choice(sampling=Sampling(temperature=1.0, top_k=50), key=key) for key in keys(2000)]
    a, b = (choose(x, choices).ids for x in (logits, logits + noise * torch.randn_like(logits)))
    assert sum(x != y for x, y in zip(a, b, strict=True)) <= 1


def test_biases_of_one_token_add_up():
    ids = choose(torch.zeros(1, 8), [Choice(sampling=Sampling(logit_bias=((3, 1.0), (5, 1.5), (3, 1.0))), key=0)]).ids
    assert ids == [3]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_forbidden_token_is_never_chosen(temperature: float):
    sampling = Sampling(temperature=temperature, logit_bias=((0, -math.inf), (1, -math.inf)))
    drawn = choose(LOGITS.expand(500, -1), [Choice(sampling=sampling, key=key) for key in keys(500)]).ids
    assert not {0, 1} & set(drawn)


# -- no sort of the vocabulary -----------------------------------------------------------------------------


@pytest.mark.parametrize("k", [1, 5, 50, 500])
@pytest.mark.parametrize("vocabulary", [10, 512, 5000, 70_001])
def test_top_ids_are_those_of_topk(vocabulary: int, k: int):
    torch.manual_seed(k)
    logits = torch.randn(3, vocabulary)
    logits[1] = logits[1].sort().values  # all the best in the last, incomplete block
    logits[2] = logits[2].sort(descending=True).values
    assert torch.equal(top_ids(logits, k), logits.topk(min(k, vocabulary), dim=-1).indices)


@given(st.integers(0, 2**32), st.integers(1, 8))
@settings(max_examples=30, deadline=None)
def test_among_ties_the_values_are_those_of_topk(seed: int, k: int):
    logits = torch.randint(0, 5, (2, 9000), generator=torch.Generator().manual_seed(seed)).float()
    assert torch.equal(logits.gather(1, top_ids(logits, k)), logits.topk(k, dim=-1).values)
    assert all(len(set(row)) == k for row in top_ids(logits, k).tolist())


def check_never_sorts(monkeypatch) -> None:
    """Drawing from a large vocabulary looks for a few best and orders these alone."""
    vocabulary, wanted = 262_144, []
    topk = Tensor.topk
    monkeypatch.setattr(Tensor, "topk", lambda x, k, *args, **kwargs: wanted.append((x.shape[-1], k)) or topk(x, k, *args, **kwargs))
    for name in ("sort", "argsort", "msort"):
        monkeypatch.setattr(Tensor, name, lambda *_, **__: pytest.fail("a sort"))
        monkeypatch.setattr(torch, name, lambda *_, **__: pytest.fail("a sort"))
    logits = torch.randn(2, vocabulary) * 3
    for candidates in ({"top_k": 50}, {"top_k": 50, "top_p": 0.9}, {}):
        choose(logits, [Choice(sampling=Sampling(temperature=1.0, **candidates), key=k) for k in (1, 2)])
    assert max(width for width, _ in wanted) < vocabulary // 4
    wanted.clear()
    choose(logits, [Choice(sampling=Sampling(temperature=1.0, top_p=0.5), key=k) for k in (1, 2)])
    assert max(k for _, k in wanted) < vocabulary // 4


def test_the_vocabulary_is_never_sorted(monkeypatch):
    check_never_sorts(monkeypatch)


# -- scores ------------------------------------------------------------------------------------------------


def test_scores_by_hand():
    """Probabilities 1/4 and 3/4: entropy 0.5623 nats; energy of (0, ln 3) is ln 4."""
    logits = torch.tensor([[0.0, math.log(3)]])
    logprob, energy, entropy = (float(x[0]) for x in score_rows(logits, torch.tensor([1]), entropies=True))
    assert logprob == pytest.approx(math.log(0.75), abs=1e-6)
    assert energy == pytest.approx(math.log(4), abs=1e-6)
    assert entropy == pytest.approx(-0.25 * math.log(0.25) - 0.75 * math.log(0.75), abs=1e-6)


@pytest.mark.parametrize("scale", [0.0, 0.1, 3.0, 30.0])
def test_scores_of_a_large_vocabulary_are_exact(scale: float):
    torch.manual_seed(4)
    logits = torch.randn(6, 262_144) * scale + 17.0
    ids = torch.tensor([0, 5, 262_143, 7, 8, 9])
    rows = logits.double().log_softmax(-1)
    expected = [rows.gather(1, ids[:, None])[:, 0], logits.double().logsumexp(-1), -(rows.exp() * rows).sum(-1)]
    for got, want in zip(score_rows(logits, ids, entropies=True), expected, strict=True):
        assert (got - want).abs().max() < 2e-4


def test_scores_with_forbidden_entries_are_numbers():
    logits = torch.tensor([[0.0, -math.inf, 0.0], [-math.inf, 0.0, -math.inf]])
    logprob, energy, entropy = score_rows(logits, torch.tensor([0, 1]), entropies=True)
    assert logprob.tolist() == pytest.approx([-math.log(2), 0.0])
    assert energy.tolist() == pytest.approx([math.log(2), 0.0])
    assert entropy.tolist() == pytest.approx([math.log(2), 0.0])


def test_bf16_logits_are_scored_in_fp32():
    logits = (torch.randn(4, 1000, generator=torch.Generator().manual_seed(5)) * 4).bfloat16()
    ids = torch.tensor([1, 2, 3, 4])
    expected = logits.double().log_softmax(-1).gather(1, ids[:, None])[:, 0]
    assert (score_rows(logits, ids, entropies=False)[0] - expected).abs().max() < 1e-5
