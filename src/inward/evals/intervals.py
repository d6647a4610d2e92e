"""How sure a number is: bootstrap intervals, paired tests, correction for many tests, correlations.

Intervals are percentile bootstrap intervals of 95 % over questions (Efron and Tibshirani 1993, section 13.3): all metrics of a run
are resampled together, so that a report of ten thousand questions takes seconds. Where every question of a measure between 0 and 1 is
at the same end, resampling sees no spread; the interval is then the exact binomial one (Clopper and Pearson 1934).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import atanh, isfinite, nan, sqrt, tanh
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from inward.errors import UsageError

Floats: TypeAlias = NDArray[np.float64]

DRAWS = 2000
"""Bootstrap resamples."""
FLIPS = 10_000
"""Sign flips of a paired test."""
_EXACT_UP_TO = 13
"""Differences that are not zero up to which all sign flips are looked at."""
_CELLS = 4_000_000
"""Numbers held at once while resampling."""
_LEVEL = (2.5, 97.5)


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """A number with its 95 % interval."""

    value: float | None
    """None where it is not defined; `why` says why."""
    low: float | None = None
    high: float | None = None
    n: int = 0
    """Questions that it is over."""
    why: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """How much A differs from B on the same questions."""

    delta: Estimate
    """Mean of A minus B."""
    p: float | None
    """Two-sided, of no difference."""
    test: str
    p_holm: float | None = None
    """Corrected for the tests that it was made with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Correlation:
    """A correlation coefficient with its 95 % interval."""

    kind: str
    value: float | None
    low: float | None
    high: float | None
    n: int
    p: float | None


def undefined(why: str, n: int = 0) -> Estimate:
    """Return the estimate of what is not defined."""
    return Estimate(value=None, n=n, why=why)


def weights(n: int, draws: int, seed: int) -> Iterator[Floats]:
    """Yield how often each of `n` questions is in each resample, `[some draws, n]` at a time."""
    rng = np.random.default_rng(seed)
    step = max(1, _CELLS // max(n, 1))
    for start in range(0, draws, step):
        rows = min(step, draws - start)
        picks = rng.integers(0, n, (rows, n))
        flat = picks + n * np.arange(rows)[:, None]
        yield np.bincount(flat.ravel(), minlength=rows * n).reshape(rows, n).astype(np.float64)


def means(
    columns: Sequence[Sequence[float | None]], *, bounds: tuple[float, float] | None = None, draws: int = DRAWS, seed: int = 0
) -> list[Estimate]:
    """Return the mean of each column over the questions for which it is defined.

    Args:
        columns: one value a question each, all over the same questions; None where not defined.
        bounds: between which values lie, so that questions that are all alike still leave doubt; without, they have no interval.
        draws: bootstrap resamples.
        seed: of the resamples.
    """
    if not columns or not len(columns[0]):
        return [undefined("no questions") for _ in columns]
    matrix = np.array([[nan if v is None else v for v in column] for column in columns], np.float64).T  # [n, M]
    there = np.isfinite(matrix)
    filled = np.where(there, matrix, 0.0)
    counts = there.sum(0)
    drawn = np.concatenate([_ratios(w @ filled, w @ there) for w in weights(len(matrix), draws, seed)])
    found = []
    for place, count in enumerate(counts):
        values = drawn[:, place][np.isfinite(drawn[:, place])]
        if not count:
            found.append(undefined("defined for no question"))
            continue
        mean = float(filled[:, place].sum() / count)
        if np.ptp(filled[there[:, place], place]) > 0:
            low, high = np.percentile(values, _LEVEL)
            found.append(Estimate(value=mean, low=float(low), high=float(high), n=int(count)))
        elif bounds is None:
            found.append(Estimate(value=mean, n=int(count)))
        else:  # as far as the exact binomial bound lets others be, and those as far off as they can be
            doubt = 1 - 0.025 ** (1 / int(count))
            low, high = mean - doubt * (mean - bounds[0]), mean + doubt * (bounds[1] - mean)
            found.append(Estimate(value=mean, low=low, high=high, n=int(count)))
    return found


def _ratios(sums: Floats, counts: Floats) -> Floats:
    with np.errstate(invalid="ignore", divide="ignore"):
        ratios: Floats = sums / counts
    return ratios


def from_draws(value: float, drawn: Floats, n: int) -> Estimate:
    """Return an estimate whose interval is that of its resampled values; those that are not defined are left out."""
    kept = drawn[np.isfinite(drawn)]
    if not len(kept) or np.ptp(kept) == 0:  # resamples that all agree say nothing of how sure this is
        return Estimate(value=value, n=n)
    low, high = np.percentile(kept, _LEVEL)
    return Estimate(value=value, low=float(low), high=float(high), n=n)


def paired(a: Sequence[float | None], b: Sequence[float | None], *, draws: int = DRAWS, seed: int = 0) -> Difference:
    """Compare two runs on the same questions, those for which both are defined.

    Where all values are 0 or 1 the test is McNemar's exact one, a binomial test of the questions that changed; else the mean
    difference is compared with those under random signs (all of them where few differ).

    Raises:
        UsageError: the runs are of different length.
    """
    if len(a) != len(b):
        raise UsageError(f"a paired comparison needs the same questions, got {len(a)} and {len(b)}")
    pairs = np.array([(x, y) for x, y in zip(a, b, strict=True) if x is not None and y is not None], np.float64).reshape(-1, 2)
    if not len(pairs):
        return Difference(delta=undefined("no question in both"), p=None, test="none")
    differences = pairs[:, 0] - pairs[:, 1]
    binary = bool(np.isin(pairs, (0.0, 1.0)).all())
    shares = bool(((pairs >= 0) & (pairs <= 1)).all())
    (delta,) = means([differences.tolist()], bounds=(-1.0, 1.0) if shares else None, draws=draws, seed=seed)
    if binary:
        return Difference(delta=delta, p=mcnemar(int((differences > 0).sum()), int((differences < 0).sum())), test="McNemar, exact")
    return Difference(delta=delta, p=sign_flips(differences, seed=seed), test="sign flips")


def mcnemar(better: int, worse: int) -> float:
    """Return the two-sided exact p of McNemar's test, from how many questions changed which way."""
    from scipy.stats import binomtest

    return float(binomtest(better, better + worse).pvalue) if better + worse else 1.0


def sign_flips(differences: Floats, *, flips: int = FLIPS, seed: int = 0) -> float:
    """Return the two-sided p of a mean difference under random signs (Fisher's randomisation test)."""
    moved = differences[differences != 0]
    n = len(moved)
    if not n:
        return 1.0
    seen = abs(moved.sum()) - 1e-9 * np.abs(moved).sum()  # what is equal but for rounding counts as equal
    if n <= _EXACT_UP_TO:
        signs = 1 - 2 * ((np.arange(1 << n)[:, None] >> np.arange(n)) & 1)
        return float((np.abs(signs @ moved) >= seen).mean())
    rng = np.random.default_rng(seed)
    step = max(1, _CELLS // n)
    as_far = 0
    for start in range(0, flips, step):
        signs = 1 - 2 * rng.integers(0, 2, (min(step, flips - start), n))
        as_far += int((np.abs(signs @ moved) >= seen).sum())
    return (as_far + 1) / (flips + 1)


def holm(ps: Sequence[float | None]) -> list[float | None]:
    """Return p values corrected for their number (Holm 1979); those that are None stay None and do not count."""
    ranked = sorted((p, place) for place, p in enumerate(ps) if p is not None)
    corrected: list[float | None] = [None] * len(ps)
    highest = 0.0
    for rank, (p, place) in enumerate(ranked):
        highest = max(highest, min(1.0, p * (len(ranked) - rank)))
        corrected[place] = highest
    return corrected


def correlation(x: Sequence[float | None], y: Sequence[float | None], kind: Literal["pearson", "spearman", "kendall"]) -> Correlation:
    """Return how two quantities go together, over the questions for which both are finite.

    Intervals come from Fisher's transformation, with the variances of Bonett and Wright (2000) for ranks.

    Raises:
        UsageError: the lists are of different length.
    """
    from scipy import stats

    if len(x) != len(y):
        raise UsageError(f"a correlation needs pairs, got {len(x)} and {len(y)} values")
    both = [(a, b) for a, b in zip(x, y, strict=True) if a is not None and b is not None and isfinite(a) and isfinite(b)]
    n = len(both)
    constant = n < 2 or len({a for a, _ in both}) < 2 or len({b for _, b in both}) < 2
    if constant:
        return Correlation(kind=kind, value=None, low=None, high=None, n=n, p=None)
    tests: dict[str, Any] = {"pearson": stats.pearsonr, "spearman": stats.spearmanr, "kendall": stats.kendalltau}
    found = tests[kind](*map(list, zip(*both, strict=True)))
    r = float(found.statistic)
    spread = {"pearson": _root(1, n - 3), "spearman": _root(1 + r * r / 2, n - 3), "kendall": _root(0.437, n - 4)}[kind]
    if spread is None or abs(r) >= 1:
        return Correlation(kind=kind, value=r, low=None, high=None, n=n, p=float(found.pvalue))
    low, high = (tanh(atanh(r) + sign * 1.959963984540054 * spread) for sign in (-1, 1))
    return Correlation(kind=kind, value=r, low=low, high=high, n=n, p=float(found.pvalue))


def _root(variance: float, n: int) -> float | None:
    return sqrt(variance / n) if n > 0 else None
