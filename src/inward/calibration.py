"""Thresholds with names and guarantees, for any gate whose value rises with uncertainty.

A gate opens above its threshold. A question is *skipped* when its value is at or below it; skipping costs something when the
unaided answer is wrong and retrieval would have put it right. Every function takes the values of calibration questions and, where
it needs it, that loss, and returns a `Threshold` that says what was asked for, what was found, and over how many questions.

The guarantees hold for new questions that are exchangeable with the calibration ones, and for the first gate of a question.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from math import floor, inf, isfinite

import msgspec
import numpy as np
from numpy.typing import NDArray

from inward.errors import BadInput, UsageError

NEVER, ALWAYS = inf, -inf
_NAMED = re.compile(r"(?P<name>[a-z-]+)(?:=(?P<level>[0-9.]+))?(?:\s*,\s*confidence=(?P<confidence>[0-9.]+))?")
_CONFIDENCE = 0.9


class Threshold(msgspec.Struct, frozen=True, kw_only=True):
    """Where a gate opens, and what that is worth."""

    value: float
    """The gate opens above it; infinity never opens, minus infinity always does."""
    name: str
    """As asked for, such as "max-skip-error=0.05"."""
    n: int
    """Calibration questions."""
    retrieval_rate: float
    """Share of them that is looked up."""
    skip_error: float | None = None
    """Share of *all* of them that is skipped, wrong, and would be right with passages; None where not known."""
    skip_error_among_skipped: float | None = None
    guarantee: str = ""
    """In words."""
    scale: str = ""
    """What the gate's values are, where one signal has several: "logits" or "probabilities" of a prober."""
    warnings: tuple[str, ...] = ()


class _Sorted:
    """Calibration questions by rising value, and what is lost if all up to one are skipped."""

    def __init__(self, values: Sequence[float], lost: Sequence[bool] | None) -> None:
        if not len(values):
            raise BadInput("a threshold needs calibration questions, got none")
        if lost is not None and len(lost) != len(values):
            raise UsageError(f"a threshold needs one loss a value, got {len(lost)} losses and {len(values)} values")
        raw = np.asarray(values, np.float64)
        order = np.argsort(np.where(np.isfinite(raw), raw, inf), kind="stable")
        self.values: NDArray[np.float64] = np.where(np.isfinite(raw), raw, inf)[order]
        self.lost = None if lost is None else np.asarray(lost, bool)[order]
        self.n = len(values)
        finite = self.values[np.isfinite(self.values)]
        self.cuts = np.unique(finite)
        """Thresholds that make a difference: at each, the questions of that value are skipped as well."""

    def skipped(self, threshold: float) -> int:
        """Count the questions that are skipped; a value that is not finite never is."""
        return int(np.searchsorted(self.values, threshold, side="right")) if isfinite(threshold) else self._all_or_none(threshold)

    def _all_or_none(self, threshold: float) -> int:
        return int(np.isfinite(self.values).sum()) if threshold > 0 else 0

    def losses(self, threshold: float) -> int:
        """Count the skipped questions that are lost."""
        assert self.lost is not None
        return int(self.lost[: self.skipped(threshold)].sum())

    def named(self, value: float, name: str, guarantee: str, warnings: Sequence[str] = ()) -> Threshold:
        """Say what a threshold is worth on the calibration questions."""
        skipped = self.skipped(value)
        lost = None if self.lost is None else self.losses(value)
        return Threshold(
            value=value,
            name=name,
            n=self.n,
            retrieval_rate=1 - skipped / self.n,
            skip_error=None if lost is None else lost / self.n,
            skip_error_among_skipped=None if lost is None or not skipped else lost / skipped,
            guarantee=guarantee,
            warnings=tuple(warnings),
        )


def choose_threshold(wanted: str, values: Sequence[float], *, wrong: Sequence[bool], lost: Sequence[bool]) -> Threshold:
    """Pick the threshold of a name.

    Args:
        wanted: `balanced`, `retrieval-rate=R`, `max-skip-error=A` or `max-skip-error-among-skipped=A, confidence=C`.
        values: of the gate, one a calibration question.
        wrong: whether the unaided answer is wrong.
        lost: whether it is wrong *and* retrieval would have put it right.

    Raises:
        UsageError: there is no such name, or a level is not between 0 and 1.
        BadInput: the questions are too few for the guarantee asked for; the message says how many would do.
    """
    name, level, confidence = read_name(wanted)
    if name == "balanced":
        return balanced(values, wrong=wrong, lost=lost)
    if name == "retrieval-rate":
        return retrieval_rate(values, level, lost=lost)
    if name == "max-skip-error":
        return max_skip_error(values, lost, level)
    return max_skip_error_among_skipped(values, lost, level, confidence=confidence)


def read_name(wanted: str) -> tuple[str, float, float]:
    """Read the name of a threshold into name, level and confidence.

    Raises:
        UsageError: there is no such name, or a level is not between 0 and 1.
    """
    match = _NAMED.fullmatch(wanted.strip())
    name = match["name"] if match else wanted
    if not match or name not in NAMES:
        raise UsageError(f"a threshold is a number or one of {', '.join(NAMES.values())}; got {wanted!r}")
    if match["confidence"] and name != "max-skip-error-among-skipped":
        raise UsageError(f"{name} takes no confidence, got {wanted!r}")
    level = 0.0 if name == "balanced" else _share(match["level"], wanted)
    return name, level, _share(match["confidence"], wanted) if match["confidence"] else _CONFIDENCE


NAMES = {
    "balanced": "balanced",
    "retrieval-rate": "retrieval-rate=R",
    "max-skip-error": "max-skip-error=A",
    "max-skip-error-among-skipped": "max-skip-error-among-skipped=A, confidence=C",
}
"""Name -> how it is written."""


def _share(text: str | None, wanted: str) -> float:
    try:
        level = float(text or "")
    except ValueError:
        level = -1.0
    if not 0 <= level <= 1:
        raise UsageError(f"{wanted!r} needs a level between 0 and 1, such as max-skip-error=0.05")
    return level


def balanced(values: Sequence[float], *, wrong: Sequence[bool], lost: Sequence[bool] | None = None) -> Threshold:
    """Pick the threshold with the largest mean of sensitivity and specificity; of equal ones, the one that looks up least.

    Raises:
        BadInput: all answers are wrong, or all are right.
    """
    ranked = _Sorted(values, lost)
    is_wrong = _Sorted(values, wrong)
    assert is_wrong.lost is not None
    bad, good = int(is_wrong.lost.sum()), int((~is_wrong.lost).sum())
    if not bad or not good:
        raise BadInput(f"balanced accuracy needs right and wrong answers, got {good} right and {bad} wrong")
    candidates = [ALWAYS, *ranked.cuts.tolist()]

    def accuracy(threshold: float) -> float:
        skipped_wrong = is_wrong.losses(threshold)
        skipped_right = is_wrong.skipped(threshold) - skipped_wrong
        return ((bad - skipped_wrong) / bad + skipped_right / good) / 2

    best = max(candidates, key=lambda t: (accuracy(t), t))
    said = f"balanced accuracy {accuracy(best):.3f} on {ranked.n} calibration questions; no bound on what is skipped"
    return ranked.named(best, "balanced", said)


def retrieval_rate(values: Sequence[float], rate: float, *, lost: Sequence[bool] | None = None) -> Threshold:
    """Pick the smallest threshold at which at most the share `rate` of the calibration questions is looked up."""
    ranked = _Sorted(values, lost)
    candidates = [ALWAYS, *ranked.cuts.tolist(), NEVER]
    most = floor(rate * ranked.n + 1e-9)  # in questions: a share is not exact in floating point
    best = next(t for t in candidates if ranked.n - ranked.skipped(t) <= most or t == NEVER)
    said = f"{1 - ranked.skipped(best) / ranked.n:.3f} of {ranked.n} calibration questions are looked up"
    return ranked.named(best, f"retrieval-rate={rate:g}", said)


def max_skip_error(values: Sequence[float], lost: Sequence[bool], alpha: float) -> Threshold:
    """Pick the largest threshold whose expected skip error, over *all* new questions, is at most `alpha`.

    Conformal risk control (Angelopoulos, Bates, Fisch, Lei and Schuster 2024, theorem 1): with losses in {0, 1} that rise with the
    threshold, (losses + 1) / (n + 1) <= alpha bounds the expected loss of the next exchangeable question.

    Raises:
        BadInput: `alpha` is below 1 / (n + 1): even a threshold that always retrieves cannot be certified.
    """
    ranked = _Sorted(values, lost)
    name = f"max-skip-error={alpha:g}"
    said = f"expected share of all questions that are skipped, wrong and would be right with passages: at most {alpha:g}"
    if (ranked.losses(NEVER) + 1) / (ranked.n + 1) <= alpha:
        rate = ranked.losses(NEVER) / ranked.n
        return ranked.named(NEVER, name, said, [f"never retrieving already meets {alpha:g}: {rate:.3f} of the questions would gain by it"])
    if 1 / (ranked.n + 1) > alpha:
        many = f"at least {int(np.ceil(1 / alpha)) - 1}" if alpha else "infinitely many"
        few = f"max-skip-error={alpha:g} cannot be certified with {ranked.n} calibration questions"
        raise BadInput(f"{few}: {many} are needed, or a level of {1 / (ranked.n + 1):.4f} or more")
    best = ALWAYS
    for cut in ranked.cuts.tolist():
        if (ranked.losses(cut) + 1) / (ranked.n + 1) > alpha:
            break
        best = cut
    return ranked.named(best, name, said)


def max_skip_error_among_skipped(
    values: Sequence[float],
    lost: Sequence[bool],
    alpha: float,
    *,
    confidence: float = _CONFIDENCE,
    grid: Sequence[float] | None = None,
) -> Threshold:
    """Pick a threshold below which, with probability `confidence` over calibration sets, at most `alpha` of what is skipped is lost.

    Fixed-sequence testing (Angelopoulos, Bates, Candès, Jordan and Lei 2021, section 3): the thresholds of a grid are tried from the
    lowest on, each with an exact binomial (Clopper-Pearson) upper bound of the loss among the questions that it skips; the last one
    before the first that fails is taken.

    Args:
        values: of the gate, one a calibration question.
        lost: whether skipping the question loses a right answer.
        alpha: share of the skipped questions.
        confidence: that the bound holds.
        grid: thresholds to try, from other questions than these: a grid that comes from the questions it is tested on bounds nothing.
            None takes it from every second question and tests on the others.

    Raises:
        BadInput: so few questions cannot certify any threshold, even if none of them were lost; the message says how many could.
    """
    from scipy.stats import beta

    if grid is None:
        grid, values, lost = [v for v in values[::2] if isfinite(v)], values[1::2], lost[1::2]
    ranked = _Sorted(values, lost)
    name = f"max-skip-error-among-skipped={alpha:g}, confidence={confidence:g}"
    needed = int(np.ceil(np.log(1 - confidence) / np.log(1 - alpha))) if 0 < alpha < 1 else (1 if alpha else ranked.n + 1)
    if needed > ranked.n:
        few = f"{name} cannot be certified with {ranked.n} questions"
        raise BadInput(f"{few}: at least {needed} skipped ones are needed, even if none of them were lost")
    best = ALWAYS
    for cut in sorted(set(grid)):
        skipped, bad = ranked.skipped(cut), ranked.losses(cut)
        if skipped < needed:
            continue  # it could not pass whatever the losses: how many are skipped says nothing of them
        upper = 1.0 if bad == skipped else float(beta.ppf(confidence, bad + 1, skipped - bad))
        if upper > alpha:
            break
        best = cut
    warnings = [] if best > ALWAYS else [f"no question can be skipped at {alpha:g}: every question is looked up"]
    said = f"with probability {confidence:g}, at most {alpha:g} of the skipped questions are wrong and would be right with passages"
    return ranked.named(best, name, said, warnings)
