"""From names and files to drafts and probers: what the commands do, for Python too."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from inward.errors import InwardError, UsageError
from inward.evals.questions import load_questions, text_hash
from inward.lm import load_lm
from inward.probers.conditions import default_layers
from inward.probers.prober import Prober
from inward.prompts import PromptTemplate
from inward.protocols import LM
from inward.retrieval import load_retriever
from inward.training.drafting import DraftData, DraftPlan, write_drafts
from inward.training.drafts import Drafts, Row, read_drafts
from inward.training.fit import FitPlan, Fitted, calibrate, fit, label_rows
from inward.training.labels import load_label
from inward.training.measures import measure
from inward.types import Capture

OWN = "-"
"""Index of a data set that has none: its questions are drafted without passages only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sources:
    """Questions and passages by name, and how to read them."""

    data: Mapping[str, str]
    """Name -> file of questions."""
    index: Mapping[str, str] = field(default_factory=dict)
    """Name of a data set -> index; "" holds for all others; "-" is none."""
    limit: int | None = None
    """Questions of each."""

    def load(self) -> list[DraftData]:
        """Read all of them.

        Raises:
            UsageError: an index is named for a data set that is not there, or cannot be read.
            BadInput: a file of questions cannot be used.
        """
        if unknown := [name for name in self.index if name and name not in self.data]:
            raise UsageError(f"an index is given for {unknown[0]!r}, which is no data set here: {', '.join(self.data)}")
        if not self.data:
            raise UsageError("no questions are given: name a file of them, see `inward data validate`")
        loaded = []
        for name, path in self.data.items():
            questions = load_questions(path, limit=self.limit, dataset=name)
            index = self.index.get(name, self.index.get("", "demo"))
            retriever = None if index == OWN else load_retriever(index)
            loaded.append(DraftData(name=name, questions=questions, index=None if index == OWN else index, retriever=retriever))
        return loaded


def make_drafts(
    sources: Sources,
    folder: str | Path,
    *,
    model: str = "demo",
    model_options: Mapping[str, Any] | None = None,
    layers: Sequence[int] | str = "default",
    progress: bool = False,
    retry_failed: bool = False,
    allow_failed: bool = False,
    **plan: Any,
) -> Drafts:
    """Write the drafts that are not there yet, and open them.

    Args:
        sources: questions and passages.
        folder: where the drafts are kept.
        model: a name for `load_lm`.
        model_options: what `load_lm` takes besides.
        layers: 0-based blocks; "default" is every second from one third of the depth on, "all" is all.
        progress: show a bar.
        retry_failed: draft questions again that ended in an error.
        allow_failed: go on without questions that did.
        plan: fields of `DraftPlan`: prompt, k, query, site, pool, concurrency, seed.

    Raises:
        UsageError, BadInput, ModelError: something given cannot be used; found before a model is loaded where it can be.
        InwardError: questions ended in an error.
    """
    loaded = sources.load()
    prompt = plan.pop("prompt", None)
    template = prompt if isinstance(prompt, PromptTemplate) else PromptTemplate.load(prompt)
    site, pool = plan.pop("site", "resid_post"), plan.pop("pool", "mean")
    if pool == "none":
        raise UsageError("a prober reads pooled states: pool is mean, last or eos")
    if not isinstance(layers, str):
        Capture(layers=tuple(layers), site=site, pool=pool)  # refuses what means nothing before a model is loaded
    lm = load_lm(model, **dict(model_options or {}))
    chosen = _layers(layers, lm)
    how = DraftPlan(capture=Capture(layers=chosen, site=site, pool=pool), prompt=template, **plan)
    write_drafts(loaded, lm, how, folder, model=model, progress=progress, retry_failed=retry_failed)
    drafts = read_drafts(folder)
    if drafts.failed and not allow_failed:
        first = drafts.failed[0]
        many = f"{len(drafts.failed)} of {len(drafts.questions)} questions failed, such as {first.id!r} ({first.error})"
        raise InwardError(f"{many}; --retry-failed drafts them again, --allow-failed goes on without them")
    return drafts


def _layers(layers: Sequence[int] | str, lm: LM) -> tuple[int, ...]:
    if not isinstance(layers, str):
        return tuple(layers)
    depth = getattr(getattr(lm, "backend", None), "num_layers", None)
    if depth is None:
        raise UsageError("this model does not say how many blocks it has: name the layers")
    return tuple(range(depth)) if layers == "all" else default_layers(depth)


def test_keys(files: Sequence[str | Path]) -> frozenset[str]:
    """Return the hashes of questions that are kept for testing."""
    return frozenset(text_hash(question.question) for file in files for question in load_questions(file).questions)


def train_prober(drafts: Drafts, out: str | Path, plan: FitPlan) -> Fitted:
    """Train a prober on drafts and save it."""
    fitted = fit(drafts, plan)
    fitted.prober.save_pretrained(out)
    return fitted


def _fitting(prober: Prober, drafts: Drafts) -> tuple[tuple[Row, ...], Any, Any]:
    """Label drafts as the prober's were, and return rows, labels and margins.

    Raises:
        UsageError: the drafts are of another model, prompt, site or pool than the prober.
    """
    identity = drafts.run.identity
    conditions = {**drafts.run.manifest["conditions"]}
    conditions["stop"] = tuple(conditions["stop"])
    prober.check(**conditions, site=identity["site"], pool=identity["pool"])
    rows, right = label_rows(drafts, load_label(prober.card.label))
    return rows, right, prober.margins(drafts.of(rows, prober.card.layers))


def recalibrate(prober: Prober, drafts: Drafts, thresholds: Sequence[str]) -> Prober:
    """Return the prober with thresholds and confidence from these drafts, all of whose questions it must not have seen.

    Raises:
        UsageError: the prober was made with one of the questions, or the drafts do not fit it.
        BadInput: too few questions for a threshold.
    """
    rows, right, margins = _fitting(prober, drafts)
    _refuse_seen(prober, rows, "calibrate")
    return calibrate(prober, rows, right, margins, thresholds)


def evaluate_prober(prober: Prober, drafts: Drafts) -> Any:
    """Measure a prober on drafts of questions that it has not seen.

    Raises:
        UsageError: see `recalibrate`.
    """
    rows, right, margins = _fitting(prober, drafts)
    _refuse_seen(prober, rows, "measure")
    return measure(margins, rows, right, prober.card.layers, prober)


def _refuse_seen(prober: Prober, rows: Sequence[Row], what: str) -> None:
    seen = set(prober.card.question_hashes)
    if shared := sorted({f"{row.dataset}/{row.question.id}" for row in rows if row.key in seen}):
        raise UsageError(f"this prober was made with {len(shared)} of these questions, such as {shared[0]!r}: {what} it on others")
