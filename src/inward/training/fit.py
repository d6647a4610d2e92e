"""From drafts to a prober: labels, question-disjoint parts, training, temperatures, calibration, and what it is worth."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import msgspec
import numpy as np
from numpy.typing import NDArray

from inward import __version__
from inward.errors import BadInput
from inward.probers.card import CalibrationRow, ProberCard
from inward.probers.prober import Prober
from inward.probers.train import PARTS, SHARES, Bools, Recipe, Trained, part_questions, train
from inward.training.drafts import Drafts, Row
from inward.training.labels import Label, check_answers
from inward.training.measures import measure
from inward.types import F32

POSITIONS = {
    "mean": "mean over the kept generated tokens; the end token is not among them",
    "last": "the last kept generated token",
    "eos": "the end token, fed after the kept ones",
}
_RIDGE = 1e-3


@dataclass(frozen=True, slots=True, kw_only=True)
class FitPlan:
    """How a prober is made from drafts."""

    label: Label
    layers: tuple[int, ...] = ()
    """0-based blocks; none is all that the drafts hold."""
    recipe: Recipe = field(default_factory=Recipe)
    shares: Mapping[str, float] = field(default_factory=lambda: SHARES)
    """Part -> share of the questions."""
    thresholds: tuple[str, ...] = ("balanced",)
    """Named thresholds for the card; the first is the prober's default."""
    test_keys: frozenset[str] = frozenset()
    """Hashes of questions that must not be among these, see `text_hash`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Labelled drafts and the part of each."""

    rows: tuple[Row, ...]
    right: Bools
    parts: NDArray[np.str_]
    """`[N]`, one of `PARTS`."""

    def of(self, part: str) -> NDArray[np.intp]:
        """Return the rows of a part."""
        return np.flatnonzero(self.parts == part)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fitted:
    """A prober and how it came to be."""

    prober: Prober
    trained: Trained
    table: Table


def label_rows(drafts: Drafts, label: Label) -> tuple[tuple[Row, ...], Bools]:
    """Return the drafts that a rule can judge, and whether each is right.

    Raises:
        BadInput: a question has no answers and the rule needs them, or no draft can be judged.
    """
    check_answers(label, [made.question for made in drafts.questions])
    said = [(row, label.of(row.draft, row.question)) for row in drafts.rows]
    known = [(row, right) for row, right in said if right is not None]
    if not known:
        raise BadInput(f"label {label.name!r} says of none of {len(said)} drafts whether it is right")
    return tuple(row for row, _ in known), np.array([right for _, right in known], bool)


def tabulate(drafts: Drafts, plan: FitPlan) -> Table:
    """Label drafts and give each question to one part; equal questions, whatever their data set, go together.

    Raises:
        BadInput: a question is one of those kept for testing, or see `label_rows`.
    """
    rows, right = label_rows(drafts, plan.label)
    if shared := sorted({f"{row.dataset}/{row.question.id}" for row in rows if row.key in plan.test_keys}):
        raise BadInput(f"{len(shared)} questions are among those kept for testing, such as {shared[0]!r}: train on others")
    strata = {row.key: row.dataset for row in rows}
    parts = part_questions(strata, shares=plan.shares, seed=plan.recipe.seed)
    return Table(rows=rows, right=right, parts=np.array([parts[row.key] for row in rows]))


def fit(drafts: Drafts, plan: FitPlan) -> Fitted:
    """Train, scale and calibrate a prober, and measure it on questions that nothing else has seen.

    Raises:
        BadInput: a part has right drafts only, or wrong ones only, or too few for a threshold.
    """
    table = tabulate(drafts, plan)
    layers = plan.layers or drafts.layers
    states = drafts.of(table.rows, layers)
    at = {part: table.of(part) for part in PARTS}
    learn, early = at["train"], at["early-stopping"]
    trained = train(states[learn], table.right[learn], states[early], table.right[early], plan.recipe)
    prober = Prober(trained.probes, _card(drafts, plan, layers, trained, table))
    calibration = at["calibration"]
    margins = prober.margins(states[calibration]) if len(calibration) else np.empty((0, len(layers)), np.float32)
    prober = calibrate(prober, [table.rows[i] for i in calibration], table.right[calibration], margins, plan.thresholds)
    test = at["test"]
    if len(test):
        rows = [table.rows[i] for i in test]
        measured = measure(prober.margins(states[test]), rows, table.right[test], layers, prober)
        prober = _with(prober, measured=measured)
    return Fitted(prober=prober, trained=trained, table=table)


def calibrate(prober: Prober, rows: Sequence[Row], right: Bools, margins: F32, thresholds: Sequence[str]) -> Prober:
    """Return the prober with these questions to choose thresholds on, and a calibrated confidence.

    Args:
        prober: whose margins they are.
        rows: `[N]` drafts of calibration questions, as many of them right as there are in life.
        right: `[N]`.
        margins: `[N, L]`.
        thresholds: named ones for the card.

    Raises:
        BadInput: there are none, or too few for a threshold.
    """
    with_passages = {(row.dataset, row.question.id): bool(r) for row, r in zip(rows, right, strict=True) if row.draft.mode == "with"}
    kept = [
        CalibrationRow(
            data=row.dataset,
            margins=tuple(float(m) for m in margin),
            right_without=bool(is_right),
            right_with=with_passages.get((row.dataset, row.question.id)),
        )
        for row, is_right, margin in zip(rows, right, margins, strict=True)
        if row.draft.mode == "without"
    ]
    if not kept:
        raise BadInput("there are no calibration questions: give more questions, or the part a share above 0")
    modes = np.array([row.draft.mode for row in rows])
    sums = margins.astype(np.float64).sum(1)
    confidence = {mode: logistic(sums[modes == mode], right[modes == mode]) for mode in dict.fromkeys(modes.tolist())}
    prober = Prober(prober.probes, msgspec.structs.replace(prober.card, confidence=confidence), combine=prober.combine, calibration=kept)
    return _with(prober, thresholds=tuple(prober.combined("logits").threshold(name) for name in thresholds))


def _with(prober: Prober, **fields: object) -> Prober:
    card = msgspec.structs.replace(prober.card, **fields)
    return Prober(prober.probes, card, combine=prober.combine, calibration=prober.calibration)


def logistic(x: NDArray[np.float64], right: Bools) -> tuple[float, float]:
    """Fit P(right) = 1 / (1 + exp(-(a + b x))) (Platt 1999): likelihood with a slight pull to 0, so that it always ends."""
    from scipy.optimize import minimize

    scale = float(np.abs(x).mean()) or 1.0
    z = x / scale
    # Platt's targets: with few questions, none is right or wrong for certain
    yes, no = int(right.sum()), int((~right).sum())
    target = np.where(right, (yes + 1) / (yes + 2), 1 / (no + 2))

    def cost(ab: NDArray[np.float64]) -> float:
        t = ab[0] + ab[1] * z
        return float((np.logaddexp(0, t) - target * t).sum() + _RIDGE * (ab**2).sum())

    a, b = minimize(cost, np.zeros(2), method="BFGS").x
    return float(a), float(b / scale)


def _card(drafts: Drafts, plan: FitPlan, layers: tuple[int, ...], trained: Trained, table: Table) -> ProberCard:
    identity, manifest = drafts.run.identity, drafts.run.manifest
    bound = {"model": identity["model"], "engine": "", "dtype": "", **manifest["conditions"]}
    bound["stop"] = tuple(bound["stop"])
    recipe = plan.recipe
    count: Counter[str] = Counter()
    right: Counter[str] = Counter()
    for row, part, is_right in zip(table.rows, table.parts, table.right, strict=True):
        count[f"{part}, {row.draft.mode} passages"] += 1
        right[f"{part}, {row.draft.mode} passages"] += bool(is_right)
    return ProberCard(
        layers=layers,
        site=identity["site"],
        pool=identity["pool"],
        **bound,
        positions=POSITIONS[identity["pool"]],
        width=identity["width"],
        label=plan.label.name,
        hidden=recipe.hidden,
        depth=recipe.depth,
        dropout=recipe.dropout,
        temperatures=trained.temperatures,
        model_name=manifest["model"],
        inward=__version__,
        rows=dict(sorted(count.items())),
        right=dict(sorted(right.items())),
        question_hashes=tuple(sorted({row.key for row in table.rows})),
        sources=tuple(f"{name}: {digest}" for name, digest in identity["data"].items()),
        training={
            "recipe": recipe,
            "shares": dict(plan.shares),
            "query": identity["query"],
            "k": identity["k"],
            "best_epochs": list(trained.best_epochs),
        },
    )
