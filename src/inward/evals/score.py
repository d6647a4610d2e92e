"""Scoring a run from its files, without a model: every record is read once and only numbers are kept."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from inward.evals import gates
from inward.evals.folder import RunFile, read_records, read_run
from inward.evals.intervals import Difference, Estimate, holm, means, paired, undefined
from inward.evals.metrics import METRICS, Setting, measure
from inward.evals.questions import text_hash
from inward.evals.record import GeneratedStep, NotedStep, Record
from inward.whole import write_whole

METRICS_FILE = "metrics.json"
MEANS = tuple(name for name, metric in METRICS.items() if metric.kind != "cost")
COSTS = tuple(name for name, metric in METRICS.items() if metric.kind == "cost")
_ALL_ONE_WAY = 10
"""Questions from which on a gate that always decides alike is worth a warning."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """A cost over questions."""

    mean: float
    p50: float
    p95: float


@dataclass(slots=True, kw_only=True)
class Scores:
    """What is kept of a run: a row of numbers a question, and what to warn of."""

    folder: str
    run: RunFile | None
    setting: Setting
    ids: list[str] = field(default_factory=list)
    columns: dict[str, list[float | None]] = field(default_factory=lambda: {name: [] for name in METRICS})
    shorts: list[str] = field(default_factory=list)
    gate_values: list[float | None] = field(default_factory=list)
    """Of the first decision of each question; infinity where it was not finite."""
    gated: list[bool] = field(default_factory=list)
    confidences: list[float | None] = field(default_factory=list)
    failures: dict[str, str] = field(default_factory=dict)
    opened: Counter[tuple[str, bool]] = field(default_factory=Counter)
    """(name of a gate, whether it opened) -> how often."""
    odd: Counter[str] = field(default_factory=Counter)
    """Flags of answers, notes of traces, and cut texts -> questions."""
    text_hashes: list[str] = field(default_factory=list)
    gold: list[int] = field(default_factory=list)
    """Hash of each question's gold answers, within this process."""
    expected: int = 0

    @property
    def identity(self) -> Mapping[str, Any]:
        """What makes it this run."""
        return self.run.identity if self.run else {}

    @property
    def manifest(self) -> Mapping[str, Any]:
        """What it was made with."""
        return self.run.manifest if self.run else {}

    @property
    def data(self) -> str:
        """Name of the data set."""
        return str(self.manifest.get("data", {}).get("name") or Path(self.folder).resolve().parent.name)

    @property
    def strategy(self) -> str:
        """Name of the strategy."""
        return str(self.identity.get("strategy", self.label))

    @property
    def conditions(self) -> tuple[str, ...]:
        """What two runs must share to be set against each other: questions, model, prompt, seed."""
        prompt = self.identity.get("options", {}).get("prompt")
        names = ("data", "model", "model_options", "model_fingerprint", "seed")
        return (*(str(self.identity.get(name)) for name in names), str(prompt))

    @property
    def label(self) -> str:
        """Name of the run among those of its data set."""
        return Path(self.folder).resolve().name

    def take(self, record: Record) -> None:
        """Keep a record's numbers."""
        for name, value in measure(record, self.setting).items():
            self.columns[name].append(value)
        self.ids.append(record.id)
        self.shorts.append(record.short)
        self.confidences.append(record.confidence)
        self.text_hashes.append(text_hash(record.question))
        self.gold.append(hash(frozenset(record.answers)))
        first = record.gates[0] if record.gates else None
        self.gated.append(first is not None)
        self.gate_values.append(None if first is None else float("inf") if first.value is None else first.value)
        for step in record.gates:
            self.opened[(step.name, step.open)] += 1
        if record.error is not None:
            self.failures[record.id] = record.error
        odd = set(record.flags) | {step.what for step in record.steps if isinstance(step, NotedStep)}
        written = [step for step in record.steps if isinstance(step, GeneratedStep)]
        if written and "length" in written[-1].finishes:
            odd.add("truncated")
        self.odd.update(odd)

    def column(self, name: str, ids: Sequence[str] | None = None) -> list[float | None]:
        """Return a metric of the questions named, or of all."""
        if ids is None:
            return self.columns[name]
        places = {id: place for place, id in enumerate(self.ids)}
        return [self.columns[name][places[id]] if id in places else None for id in ids]


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """The numbers of a run."""

    means: dict[str, Estimate]
    costs: dict[str, Spread | None]
    """None where no question is done."""
    gate: dict[str, Estimate]


def read_scores(folder: str | Path, setting: Setting | None = None) -> Scores:
    """Score a run's folder.

    Raises:
        UsageError: there is no run.
        InwardError: a record is damaged.
    """
    run = read_run(folder)
    scores = Scores(folder=str(folder), run=run, setting=setting or Setting())
    for record in read_records(folder):
        scores.take(record)
    scores.expected = int(run.identity.get("questions", 0)) if run else len(scores.ids)
    return scores


def summarise(scores: Scores, unaided: Scores | None = None, *, seed: int = 0) -> Summary:
    """Return means with intervals, costs, and how well the gate tells what the model knows.

    Args:
        scores: of the run.
        unaided: of a run of the same questions without retrieval: what AUROC and its like, and consistency, need.
        seed: of the resamples.
    """
    found = dict(zip(MEANS, means([scores.columns[name] for name in MEANS], bounds=(0.0, 1.0), seed=seed), strict=True))
    costs = {name: _spread(scores.columns[name]) for name in COSTS}
    return Summary(means=found, costs=costs, gate=_gate(scores, unaided, seed))


def _spread(column: Sequence[float | None]) -> Spread | None:
    values = np.array([v for v in column if v is not None], np.float64)
    if not len(values):
        return None
    p50, p95 = np.percentile(values, (50, 95))
    return Spread(mean=float(values.mean()), p50=float(p50), p95=float(p95))


def _gate(scores: Scores, unaided: Scores | None, seed: int) -> dict[str, Estimate]:
    right = scores.columns["em"]
    searched = [None if failed else s for s, failed in zip(scores.columns["retrieval"], scores.columns["failed"], strict=True)]
    found = {"skip error": gates.skip_error(searched, right, seed=seed), "ECE": gates.ece(scores.confidences, right)}
    if unaided is None:
        lacking = undefined("no run without retrieval of the same questions, model, prompt and seed is there to compare with")
        return {**found, **dict.fromkeys(("consistency", "AUROC", "PR-AUC", "AURC", "PRR"), lacking)}
    known = unaided.column("em", scores.ids)
    found["consistency"] = gates.consistency(known, right, seed=seed)
    rows = [(value, 1.0 - k) for value, gated, k in zip(scores.gate_values, scores.gated, known, strict=True) if gated and k is not None]
    if not rows:
        return {**found, **dict.fromkeys(("AUROC", "PR-AUC", "AURC", "PRR"), undefined("no gate decided anything"))}
    values, wrong = [value for value, _ in rows], [w for _, w in rows]
    return {
        **found,
        "AUROC": gates.auroc(values, wrong, seed=seed),
        "PR-AUC": gates.pr_auc(values, wrong, seed=seed),
        "AURC": gates.aurc(values, wrong, seed=seed),
        "PRR": gates.prr(values, wrong),
    }


def differences(a: Scores, b: Scores, names: Sequence[str] = ("em", "f1", "acc", "retrieval"), *, seed: int = 0) -> dict[str, Difference]:
    """Compare two runs on the questions that both have, A minus B; p values are not yet corrected."""
    have = set(b.ids)
    shared = [id for id in a.ids if id in have]
    return {name: paired(a.column(name, shared), b.column(name, shared), seed=seed) for name in names}


def corrected(found: Sequence[Difference]) -> list[Difference]:
    """Return the comparisons with p values corrected for their number (Holm)."""
    ps = holm([one.p for one in found])
    return [Difference(delta=d.delta, p=d.p, test=d.test, p_holm=p) for d, p in zip(found, ps, strict=True)]


def warnings_of(scores: Scores, seen: Collection[str] = ()) -> list[str]:
    """Return what a reader must know before believing a run's numbers."""
    n = len(scores.ids)
    said: list[str] = []
    if scores.run is not None and (not scores.run.finished or n < scores.expected):
        said.append(f"incomplete: {n} of {scores.expected} questions")
    if scores.failures:
        said.append(f"{len(scores.failures)} of {n} questions failed and count as wrong")
    for name in sorted({name for name, _ in scores.opened}):
        opened, shut = scores.opened[(name, True)], scores.opened[(name, False)]
        if opened + shut >= _ALL_ONE_WAY and not (opened and shut):
            said.append(
                f"the gate {name} was {'open' if opened else 'shut'} every time ({opened + shut} decisions): its threshold decides nothing"
            )
    words = {"truncated": "answers were cut at the token limit", "no_marker": "answers had no cue and were read from their last sentence"}
    for what, count in sorted(scores.odd.items()):
        said.append(f"{count} of {n} {words.get(what, f'questions: {what}')}")
    learnt = {*seen, *(h for prober in scores.manifest.get("probers", ()) for h in prober["question_hashes"])}
    if known := sum(h in learnt for h in scores.text_hashes):
        said.append(f"{known} of {n} questions were seen in training (equal but for case, quotes and spaces)")
    if scores.manifest.get("model", {}).get("leaves_template_out"):
        said.append("the model has a chat template, and chat_template='none' left it out: instruct models often answer worse so")
    return said


def save_metrics(scores: Scores, summary: Summary) -> None:
    """Write a run's numbers beside its outcomes."""
    plain = {
        "normaliser": scores.setting.normaliser,
        "ignore_identical_ids": scores.setting.ignore_identical_ids,
        "questions": len(scores.ids),
        "means": summary.means,
        "gate": summary.gate,
        "costs": summary.costs,
        "failures": scores.failures,
        "warnings": warnings_of(scores),
    }
    write_whole(Path(scores.folder) / METRICS_FILE, msgspec.json.format(msgspec.json.encode(plain), indent=1))
