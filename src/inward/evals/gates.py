"""How well a gate tells what the model knows: ranking, rejection, calibration, and what its decisions cost.

`values` rise with uncertainty; `wrong` is 1 where the model's own answer, without retrieval, is wrong. A value that is not finite
counts as the most uncertain: that is how a gate treats it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from inward.errors import UsageError
from inward.evals.intervals import DRAWS, Estimate, Floats, from_draws, means, undefined, weights

BINS = 10
"""Of the calibration error, of equal width."""
_ONE_CLASS = "all answers are {}: there is nothing to tell apart"


class _Ranked(NamedTuple):
    """Questions by rising uncertainty, those of equal value together."""

    order: np.ndarray
    starts: np.ndarray
    wrong: Floats


def _rank(values: Sequence[float | None], wrong: Sequence[float]) -> _Ranked:
    uncertain = np.array([np.inf if v is None else v for v in values], np.float64)
    uncertain = np.where(np.isfinite(uncertain), uncertain, np.inf)
    order = np.argsort(uncertain, kind="stable")
    ranked = uncertain[order]
    starts = np.flatnonzero(np.r_[True, ranked[1:] != ranked[:-1]])
    return _Ranked(order, starts, np.asarray(wrong, np.float64)[order])


def _one_class(wrong: Sequence[float]) -> Estimate | None:
    kinds = set(wrong)
    if not wrong:
        return undefined("no questions")
    if len(kinds) == 1:
        return undefined(_ONE_CLASS.format("wrong" if kinds == {1.0} else "right"), len(wrong))
    return None


def auroc(values: Sequence[float | None], wrong: Sequence[float], *, draws: int = DRAWS, seed: int = 0) -> Estimate:
    """Return the probability that a wrong answer is the more uncertain one of a wrong and a right one; ties count half."""
    if refused := _one_class(wrong):
        return refused
    ranked = _rank(values, wrong)
    whole = float(_auroc(ranked, np.ones((1, len(wrong))))[0])
    drawn = np.concatenate([np.empty(0), *(_auroc(ranked, w[:, ranked.order]) for w in weights(len(wrong), draws, seed))])
    return from_draws(whole, drawn, len(wrong))


def _auroc(ranked: _Ranked, weight: Floats) -> Floats:
    """Return `[draws]` for weights `[draws, n]` in ranked order."""
    wrong = np.add.reduceat(weight * ranked.wrong, ranked.starts, axis=1)
    right = np.add.reduceat(weight * (1 - ranked.wrong), ranked.starts, axis=1)
    below = np.cumsum(right, axis=1) - right
    pairs = wrong.sum(1) * right.sum(1)
    with np.errstate(invalid="ignore", divide="ignore"):
        found: Floats = (wrong * (below + right / 2)).sum(1) / pairs
    return found


def pr_auc(values: Sequence[float | None], wrong: Sequence[float], *, draws: int = DRAWS, seed: int = 0) -> Estimate:
    """Return the average precision of finding wrong answers by falling uncertainty."""
    if refused := _one_class(wrong):
        return refused
    ranked = _rank(values, wrong)
    whole = float(_average_precision(ranked, np.ones((1, len(wrong))))[0])
    drawn = np.concatenate([_average_precision(ranked, w[:, ranked.order]) for w in weights(len(wrong), draws, seed)])
    return from_draws(whole, drawn, len(wrong))


def _average_precision(ranked: _Ranked, weight: Floats) -> Floats:
    wrong = np.add.reduceat(weight * ranked.wrong, ranked.starts, axis=1)[:, ::-1]
    all_of = np.add.reduceat(weight, ranked.starts, axis=1)[:, ::-1]
    with np.errstate(invalid="ignore", divide="ignore"):
        precision = np.nan_to_num(np.cumsum(wrong, axis=1) / np.cumsum(all_of, axis=1))
        found: Floats = (wrong * precision).sum(1) / wrong.sum(1)
    return found


def aurc(values: Sequence[float | None], wrong: Sequence[float], *, draws: int = DRAWS, seed: int = 0) -> Estimate:
    """Return the area under the risk-coverage curve: the mean, over coverages, of the error among the most certain answers.

    Equal values are taken in random order, in expectation (Geifman and El-Yaniv 2017). Lower is better.
    """
    if not wrong:
        return undefined("no questions")
    ranked = _rank(values, wrong)
    whole = _aurc(ranked.wrong, ranked.starts)
    rng = np.random.default_rng(seed)
    n, some = len(wrong), min(draws, 500)
    uncertain = np.repeat(np.arange(len(ranked.starts)), np.diff(np.r_[ranked.starts, n]))
    drawn = np.empty(some)
    for i in range(some):
        picks = np.sort(rng.integers(0, n, n))
        groups = uncertain[picks]
        drawn[i] = _aurc(ranked.wrong[picks], np.flatnonzero(np.r_[True, groups[1:] != groups[:-1]]))
    return from_draws(whole, drawn, n)


def _aurc(wrong: Floats, starts: np.ndarray) -> float:
    sizes = np.diff(np.r_[starts, len(wrong)])
    share = np.repeat(np.add.reduceat(wrong, starts) / sizes, sizes)
    return float((np.cumsum(share) / np.arange(1, len(wrong) + 1)).mean())


def prr(values: Sequence[float | None], wrong: Sequence[float]) -> Estimate:
    """Return the share of the possible gain that a ranking brings over chance: 1 is the best ranking, 0 is chance.

    (AURC at random - AURC) / (AURC at random - AURC of the best ranking); AURC at random is the error rate.
    """
    if refused := _one_class(wrong):
        return refused
    ranked = _rank(values, wrong)
    chance = float(np.mean(wrong))
    best = _aurc(np.sort(np.asarray(wrong, np.float64)), np.arange(len(wrong)))
    return Estimate(value=(chance - _aurc(ranked.wrong, ranked.starts)) / (chance - best), n=len(wrong))


def ece(confidences: Sequence[float | None], right: Sequence[float | None], *, bins: int = BINS) -> Estimate:
    """Return the expected calibration error: how far confidence and share of right answers are apart, over bins of equal width."""
    pairs = [(c, r) for c, r in zip(confidences, right, strict=True) if c is not None and r is not None]
    if not pairs:
        return undefined("no confidences: no calibration was given")
    said, was = np.array(pairs, np.float64).T
    if len(wrong := said[~((said >= 0) & (said <= 1))]):
        raise UsageError(f"a confidence lies between 0 and 1, got {float(wrong[0])!r}")
    places = np.minimum((said * bins).astype(int), bins - 1)
    gaps = [abs(said[places == b].sum() - was[places == b].sum()) for b in range(bins)]
    return Estimate(value=float(sum(gaps) / len(pairs)), n=len(pairs))


def skip_error(searched: Sequence[float | None], right: Sequence[float | None], *, draws: int = DRAWS, seed: int = 0) -> Estimate:
    """Return the share of wrong answers among the questions answered without retrieval.

    Args:
        searched: 1 where something was searched, 0 where not, None where the question failed before it was answered.
        right: 1 or 0; None where there is no gold answer.
        draws: bootstrap resamples.
        seed: of the resamples.
    """
    if not any(s == 0 for s in searched):
        return undefined("every question was looked up" if all(searched) else "no question was answered without retrieval")
    column = [1.0 - r if s == 0 and r is not None else None for s, r in zip(searched, right, strict=True)]
    if all(value is None for value in column):
        return undefined("there are no gold answers")
    return means([column], bounds=(0.0, 1.0), draws=draws, seed=seed)[0]


def consistency(unaided: Sequence[float | None], right: Sequence[float | None], *, draws: int = DRAWS, seed: int = 0) -> Estimate:
    """Return, of the questions right without retrieval, the share still right (Probing-RAG, table 4)."""
    column = [r if u == 1.0 else None for u, r in zip(unaided, right, strict=True)]
    if all(value is None for value in column):
        return undefined("no question is right without retrieval")
    return means([column], bounds=(0.0, 1.0), draws=draws, seed=seed)[0]
