"""Two runs on the same questions: how much they differ, how sure that is, and which answers changed."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from inward.errors import UsageError
from inward.evals.intervals import Difference
from inward.evals.metrics import METRICS, Setting
from inward.evals.report import show_difference
from inward.evals.score import Scores, corrected, differences, read_scores

COMPARED = ("em", "f1", "acc", "acc_text", "retrieval", "calls", "searches", "prompt_tokens", "generated_tokens")
_SHOWN = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Changed:
    """A question that one run answers rightly and the other does not."""

    id: str
    a: str
    b: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Run A against run B."""

    a: str
    b: str
    shared: int
    only_a: int
    only_b: int
    differences: dict[str, Difference]
    """Metric -> A minus B, p values corrected over the metrics of answers and decisions."""
    better: tuple[Changed, ...]
    """Right in A, wrong in B (exact match)."""
    worse: tuple[Changed, ...]


def compare_runs(a: str | Path, b: str | Path, *, setting: Setting | None = None, seed: int = 0) -> Comparison:
    """Compare two runs' folders on the questions that both have.

    Raises:
        UsageError: they have no question in common, or answer other questions under the same ids.
    """
    one, two = read_scores(a, setting), read_scores(b, setting)
    places = {id: place for place, id in enumerate(two.ids)}
    shared = [id for id in one.ids if id in places]
    if not shared:
        raise UsageError(f"{str(a)!r} and {str(b)!r} have no question in common: they are runs of different data")
    _check_texts(one, two)
    found = differences(one, two, COMPARED, seed=seed)
    tested = [name for name in COMPARED if METRICS[name].kind != "cost"]
    found |= dict(zip(tested, corrected([found[name] for name in tested]), strict=True))
    answers_a, answers_b = dict(zip(one.ids, one.shorts, strict=True)), dict(zip(two.ids, two.shorts, strict=True))
    right_a, right_b = one.column("em", shared), two.column("em", shared)
    changed = [(id, x, y) for id, x, y in zip(shared, right_a, right_b, strict=True) if x != y]
    return Comparison(
        a=str(a),
        b=str(b),
        shared=len(shared),
        only_a=len(one.ids) - len(shared),
        only_b=len(two.ids) - len(shared),
        differences=found,
        better=tuple(Changed(id=id, a=answers_a[id], b=answers_b[id]) for id, x, y in changed if (x or 0) > (y or 0)),
        worse=tuple(Changed(id=id, a=answers_a[id], b=answers_b[id]) for id, x, y in changed if (x or 0) < (y or 0)),
    )


def _check_texts(one: Scores, two: Scores) -> None:
    texts = dict(zip(two.ids, two.text_hashes, strict=True))
    for id, text in zip(one.ids, one.text_hashes, strict=True):
        if texts.get(id, text) != text:
            raise UsageError(f"question {id!r} is another one in {two.folder!r} than in {one.folder!r}: they are runs of different data")
    gold = dict(zip(two.ids, two.gold, strict=True))
    for id, answers in zip(one.ids, one.gold, strict=True):
        if gold.get(id, answers) != answers:
            raise UsageError(
                f"question {id!r} has other gold answers in {two.folder!r} than in {one.folder!r}: "
                "what is right in one may be wrong in the other"
            )


def to_text(found: Comparison) -> str:
    """Return the comparison as lines."""
    lines = [f"A {found.a}", f"B {found.b}", f"{found.shared} questions in both, {found.only_a} in A alone, {found.only_b} in B alone", ""]
    for name, one in found.differences.items():
        cell = show_difference(one)
        lines.append(f"{name:<17} {cell.text:>9}  [{cell.detail}]")
    for title, changed in (("right in A, wrong in B", found.better), ("wrong in A, right in B", found.worse)):
        lines += ["", f"{title}: {len(changed)}"]
        lines += [f"  {one.id!r}: {one.a!r}, {one.b!r}" for one in changed[:_SHOWN]]
        lines += [f"  and {len(changed) - _SHOWN} more"] if len(changed) > _SHOWN else []
    return "\n".join(lines)
