"""Checks of random draws against exact distributions, shared by tests and mutations."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from inward.lm.sampling import Choice, choose, step_key
from inward.trace import draw_key
from inward.types import Sampling

DRAWS = 6000
LOGITS = torch.tensor([2.0, 1.5, 1.0, 0.4, 0.0, -0.3, -1.0, -1.2, -2.0, 0.9, -3.0, 0.2])


def exact(logits: Tensor, *, temperature: float = 1.0, top_k: int = 0, top_p: float = 1.0) -> np.ndarray:
    """Probabilities by the definition, with a plain sort: top-k first, then top-p on the renormalised rest."""
    p = (logits.double() / temperature).softmax(-1).numpy()
    order = np.argsort(-p, kind="stable")
    keep = np.zeros(len(p), bool)
    keep[order[: top_k or len(p)]] = True
    p = np.where(keep, p, 0) / p[keep].sum()
    before = np.cumsum(p[order]) - p[order]
    p[order[before >= top_p]] = 0
    return p / p.sum()


def keys(count: int, question: str = "q") -> list[int]:
    """Keys as a run makes them: steps of samples of one question."""
    base = draw_key(0, question)
    return [step_key(base, sample, step) for sample in range(count // 50) for step in range(50)]


def draw(logits: Tensor, count: int = DRAWS, **settings: float) -> list[int]:
    sampling = Sampling(**{"temperature": 1.0, **settings})  # type: ignore[arg-type]
    return choose(logits.expand(count, -1), [Choice(sampling=sampling, key=key) for key in keys(count)]).ids


def check_distribution(drawn: list[int], p: np.ndarray, sigmas: float = 5.0) -> None:
    """Chi-square, by the approximation of Wilson and Hilferty; what has no mass never appears."""
    counts = np.bincount(drawn, minlength=len(p)).astype(float)
    assert not counts[p == 0].any(), f"tokens outside the nucleus: {np.flatnonzero(counts * (p == 0))}"
    expected = p[p > 0] * len(drawn)
    statistic, freedom = float(((counts[p > 0] - expected) ** 2 / expected).sum()), (p > 0).sum() - 1
    if not freedom:
        return
    z = ((statistic / freedom) ** (1 / 3) - (1 - 2 / (9 * freedom))) / math.sqrt(2 / (9 * freedom))
    assert z < sigmas, f"chi-square {statistic:.1f} with {freedom} degrees of freedom: {z:.1f} sigmas"


def mixed(count: int = 40, vocabulary: int = 3000) -> tuple[Tensor, list[Choice]]:
    torch.manual_seed(1)
    logits = torch.randn(count, vocabulary) * 3
    kinds = [
        Sampling(token_scores=("logprobs", "entropies", "energies")),
        Sampling(temperature=1.0, top_k=40, top_p=0.9),
        Sampling(temperature=0.7),
        Sampling(temperature=1.0, top_p=0.6, watch=(3, 7)),
        Sampling(temperature=1.2, logit_bias=((5, 4.0), (9, -1e9))),
        Sampling(temperature=1.0, top_k=40, top_p=0.9, token_scores=("energies",)),
    ]
    return logits, [Choice(sampling=kinds[i % len(kinds)], key=step_key(i, i % 3, i)) for i in range(count)]


def check_rows_alone() -> None:
    """A row's choice and scores are the same alone, and wherever it stands in a batch."""
    logits, choices = mixed()
    batch = choose(logits, choices)
    order = torch.randperm(len(choices), generator=torch.Generator().manual_seed(2)).tolist()
    moved = choose(logits[order], [choices[i] for i in order])
    assert [batch.ids[i] for i in order] == moved.ids
    for place, (row, choice) in enumerate(zip(logits, choices, strict=True)):
        single = choose(row[None], [choice])
        assert single.ids[0] == batch.ids[place]
        for name in choice.sampling.token_scores:
            assert getattr(single, name)[0] == pytest.approx(getattr(batch, name)[place], abs=1e-6)
        if choice.sampling.watch:
            assert single.watched[0] == pytest.approx(batch.watched[place], abs=1e-6)
