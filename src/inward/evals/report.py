"""A report of runs: warnings first, then a table a data set, paired differences, failures, and what was run with what."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from inward.errors import UsageError
from inward.evals.folder import OUTCOMES, RUN
from inward.evals.intervals import Difference, Estimate
from inward.evals.metrics import Setting
from inward.evals.score import Scores, Spread, Summary, corrected, differences, read_scores, save_metrics, summarise, warnings_of
from inward.explain import harmless

UNAIDED = "no-retrieval"
BASELINES = (UNAIDED, "single-step")
COLUMNS = ("em", "f1", "acc", "acc_text", "R@5", "retrieval", "skip error", "consistency", "AUROC", "PRR")
COSTS = ("calls", "searches", "prompt_tokens", "generated_tokens")
COMPARED = ("em", "f1", "acc")
_FAILURES = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """A number as it is shown."""

    text: str
    detail: str = ""
    """Its interval, or why there is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A run in a table."""

    label: str
    n: int
    cells: tuple[Cell, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Runs over one data set."""

    title: str
    header: tuple[str, ...]
    rows: tuple[Row, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """All that a page shows."""

    title: str
    warnings: tuple[str, ...]
    tables: tuple[Table, ...]
    comparisons: tuple[Table, ...]
    failures: tuple[str, ...]
    settings: tuple[tuple[str, str], ...]
    notes: tuple[str, ...]


def find_runs(paths: Sequence[str | Path]) -> list[Path]:
    """Return the folders of runs at or below `paths`, sorted.

    Raises:
        UsageError: there is none.
    """
    found: list[Path] = []
    for path in map(Path, paths):
        below = sorted({file.parent.resolve() for file in path.rglob(RUN)}) if path.is_dir() else []
        if not below:
            raise UsageError(f"no run at or below {str(path)!r}: a run's folder holds {RUN} and {OUTCOMES}")
        found += [folder for folder in below if folder not in found and (folder / OUTCOMES).exists()]
    if not found:
        raise UsageError(f"no run at or below {', '.join(repr(str(path)) for path in paths)} has an outcome yet")
    return found


def make_report(
    paths: Sequence[str | Path],
    *,
    setting: Setting | None = None,
    seen: Collection[str] = (),
    title: str = "inward: evaluation",
    seed: int = 0,
) -> Report:
    """Score the runs at or below `paths`, write each one's `metrics.json`, and put them side by side.

    Args:
        paths: folders of runs, or folders that hold them.
        setting: how answers are compared.
        seen: hashes (`inward.evals.questions.text_hash`) of questions that something was trained on.
        title: of the page.
        seed: of the resamples.
    """
    runs = [read_scores(folder, setting) for folder in find_runs(paths)]
    groups: dict[str, list[Scores]] = {}
    for scores in runs:
        groups.setdefault(scores.data, []).append(scores)
    tables, comparisons, said = [], [], []
    for data, group in groups.items():
        group.sort(key=lambda s: (BASELINES.index(s.strategy) if s.strategy in BASELINES else len(BASELINES), s.label))
        said += [f"{data}: {text}" for text in _unlike(group)]
        unaided = _unaided(group)
        said += [f"{data}: {text}" for text in _several_unaided(group, unaided)]
        summaries = [summarise(s, s if s.strategy == UNAIDED else unaided.get(s.conditions), seed=seed) for s in group]
        for scores, summary in zip(group, summaries, strict=True):
            save_metrics(scores, summary)
            said += [f"{data}/{scores.label}: {text}" for text in warnings_of(scores, seen)]
        tables.append(_table(data, group, summaries))
        comparisons += _comparisons(data, group, seed)
    failures = [f"{s.data}/{s.label} {id}: {error}" for s in runs for id, error in s.failures.items()]
    hidden = [f"and {len(failures) - _FAILURES} more, in the runs' outcomes.jsonl"] if len(failures) > _FAILURES else []
    return Report(
        title=title,
        warnings=tuple(said),
        tables=tuple(tables),
        comparisons=tuple(comparisons),
        failures=tuple([*failures[:_FAILURES], *hidden]),
        settings=tuple(_settings(runs)),
        notes=_notes(setting or Setting()),
    )


def _unaided(group: Sequence[Scores]) -> dict[tuple[str, ...], Scores]:
    """Return the unaided run of each conditions: of several the one with most questions, and of those the first."""
    found: dict[tuple[str, ...], Scores] = {}
    for scores in group:
        if scores.strategy == UNAIDED and len(scores.ids) > len(getattr(found.get(scores.conditions), "ids", ())):
            found[scores.conditions] = scores
    return found


def _several_unaided(group: Sequence[Scores], unaided: Mapping[tuple[str, ...], Scores]) -> list[str]:
    return [
        f"{scores.label} is an unaided run too; gates are judged by {unaided[scores.conditions].label}"
        for scores in group
        if scores.strategy == UNAIDED and unaided.get(scores.conditions, scores) is not scores
    ]


def _names(group: Sequence[Scores]) -> list[str]:
    """Name runs by their labels; where two have the same, by the folder of their suite, too."""
    labels = Counter(scores.label for scores in group)
    return [s.label if labels[s.label] == 1 else f"{Path(s.folder).resolve().parents[1].name}/{s.label}" for s in group]


def _unlike(group: Sequence[Scores]) -> list[str]:
    """Say in what runs of one table differ that should not."""
    said = []
    for name, words in (
        ("data", "questions"),
        ("model_fingerprint", "models"),
        ("index_fingerprint", "indexes"),
        ("seed", "seeds"),
    ):
        values = {str(s.identity[name]) for s in group if s.identity.get(name) is not None}
        if len(values) > 1:
            said.append(f"the runs are of different {words}: compare them with care")
    prompts = {str(s.identity.get("options", {}).get("prompt")) for s in group}
    return [*said, *(["the runs are of different prompts: compare them with care"] if len(prompts) > 1 else [])]


def _table(data: str, group: Sequence[Scores], summaries: Sequence[Summary]) -> Table:
    rows = []
    for name, scores, summary in zip(_names(group), group, summaries, strict=True):
        numbers = {**summary.means, **summary.gate}
        cells = [*(show(numbers[column]) for column in COLUMNS), *(show_spread(summary.costs[cost]) for cost in COSTS)]
        rows.append(Row(label=name, n=len(scores.ids), cells=tuple(cells)))
    return Table(title=data, header=(*COLUMNS, *COSTS), rows=tuple(rows))


def _comparisons(data: str, group: Sequence[Scores], seed: int) -> list[Table]:
    """Compare every run with the baselines of its conditions; p values are corrected over all comparisons of the data set."""
    names = dict(zip(map(id, group), _names(group), strict=True))
    pairs = [
        (a, b)
        for b in group
        if b.strategy in BASELINES
        for a in group
        if a is not b and a.conditions == b.conditions and not (a.strategy in BASELINES and group.index(a) < group.index(b))
    ]
    found = [(a, b, differences(a, b, COMPARED, seed=seed)) for a, b in pairs]
    flat = corrected([one[name] for _, _, one in found for name in COMPARED])
    rows = []
    for place, (a, b, one) in enumerate(found):
        cells = [show_difference(flat[place * len(COMPARED) + i]) for i in range(len(COMPARED))]
        rows.append(Row(label=f"{names[id(a)]} − {names[id(b)]}", n=max(d.delta.n for d in one.values()), cells=tuple(cells)))
    return [Table(title=data, header=COMPARED, rows=tuple(rows))] if rows else []


def show(number: Estimate) -> Cell:
    """Show an estimate with its interval, or a dash with the reason."""
    if number.value is None:
        return Cell(text="–", detail=number.why)
    interval = "" if number.low is None or number.high is None else f"{number.low:.3f} to {number.high:.3f}"
    return Cell(text=f"{number.value:.3f}", detail=interval)


def show_spread(cost: Spread | None) -> Cell:
    """Show a cost: mean, then median and 95th percentile."""
    if cost is None:
        return Cell(text="–", detail="no question is done")
    return Cell(text=f"{cost.mean:,.1f}", detail=f"p50 {cost.p50:,.0f}, p95 {cost.p95:,.0f}")


def show_difference(found: Difference) -> Cell:
    """Show a difference with its interval and both p values."""
    if found.delta.value is None or found.p is None:
        return Cell(text="–", detail=found.delta.why)
    shown = show(found.delta)
    corrected_p = "" if found.p_holm is None else f", corrected {_p(found.p_holm)}"
    return Cell(text=f"{found.delta.value:+.3f}", detail=f"{shown.detail}; p {_p(found.p)}{corrected_p}")


def _p(p: float) -> str:
    return "< 0.001" if p < 0.001 else f"{p:.3f}"


def _settings(runs: Sequence[Scores]) -> list[tuple[str, str]]:
    found: dict[str, list[str]] = {}

    def add(name: str, value: Any) -> None:
        text = str(value)
        if value not in (None, "", [], {}) and text not in found.setdefault(name, []):
            found[name].append(text)

    for scores in runs:
        manifest = scores.manifest
        model = manifest.get("model", {})
        add("model", f"{model.get('name')}, fingerprint {model.get('fingerprint')}, {model.get('dtype')}, {model.get('threads')} threads")
        add("chat template", model.get("chat_template"))
        for prompt in manifest.get("prompts", ()):
            add("prompt", str(prompt.get("fingerprint"))[:16])
        index = manifest.get("index") or {}
        if index:
            add("index", f"{index.get('name')}, {index.get('passages')} passages, fingerprint {index.get('fingerprint')}")
        data = manifest.get("data", {})
        add("data", f"{scores.data}: {data.get('file')}, {len(scores.ids)} questions, hash {data.get('data_hash')}")
        for threshold in manifest.get("thresholds", ()):
            add("threshold", f"{scores.data}/{scores.label}: {threshold.get('value')} ({threshold.get('file') or 'given as a number'})")
        add("seed", manifest.get("seed"))
        add("versions", ", ".join(f"{k} {v}" for k, v in {"inward": manifest.get("inward"), **manifest.get("versions", {})}.items()))
        add("machine", manifest.get("platform"))
    return [(name, "\n".join(values)) for name, values in found.items()]


def _notes(setting: Setting) -> tuple[str, ...]:
    own = "left out" if setting.ignore_identical_ids else "counted"
    return (
        f"Answers are compared in the form '{setting.normaliser}'. Brackets hold 95 % bootstrap intervals over questions, "
        "exact binomial ones where all questions agree. "
        "`inward metrics list` defines every column.",
        "AUROC: how well the gate's first value tells wrong unaided answers from right ones. "
        "Skip error: wrong answers among questions that were not looked up. "
        "Consistency: of the questions right without retrieval, the share still right. "
        "PRR: share of the possible gain that the gate's ranking brings over chance. Costs: mean, then median and 95th percentile.",
        f"A passage with the question's own id is {own}.",
        "Differences are between runs of the same questions, model, prompt and seed. "
        "p values are two-sided, and corrected (Holm) over all comparisons of a data set.",
    )


def to_markdown(report: Report) -> str:
    """Return the report as Markdown."""
    lines = [f"# {_md(report.title)}", ""]
    lines += ["## Warnings", "", *(f"- {_md(text)}" for text in report.warnings), ""] if report.warnings else ["No warnings.", ""]
    for name, tables in (("Results", report.tables), ("Differences on the same questions", report.comparisons)):
        lines += [f"## {name}", ""] if tables else []
        for table in tables:
            lines += _md_table(table)
    lines += ["## Failures", "", *(f"- {_md(text)}" for text in report.failures), ""] if report.failures else []
    lines += ["## Settings", "", "| | |", "|---|---|", *(f"| {_md(k)} | {_md(v)} |" for k, v in report.settings), ""]
    return "\n".join([*lines, *(f"{note}\n" for note in report.notes)])


def _md_table(table: Table) -> list[str]:
    head = f"| | n | {' | '.join(map(_md, table.header))} |"
    rows = [f"| {_md(row.label)} | {row.n} | {' | '.join(map(_md_cell, row.cells))} |" for row in table.rows]
    return [f"### {_md(table.title)}", "", head, "|---" * (len(table.header) + 2) + "|", *rows, ""]


def _md_cell(cell: Cell) -> str:
    return _md(f"{cell.text} [{cell.detail}]" if cell.detail else cell.text)


_MARKUP = str.maketrans({c: f"\\{c}" for c in "\\`*_[]|!"} | {"<": "&lt;", ">": "&gt;", "&": "&amp;"})


def _md(text: str) -> str:
    """Make text harmless in Markdown: it must not end a cell or a line, nor become a link, an image or HTML."""
    return " ".join(harmless(text).replace("\n", "; ").split()).translate(_MARKUP)


def to_html(report: Report) -> str:
    """Return the report as one HTML page that needs nothing else."""
    from jinja2 import Environment

    source = (resources.files("inward") / "data" / "report.html.j2").read_text(encoding="utf-8")
    page: str = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True).from_string(source).render(report=report)
    return page
