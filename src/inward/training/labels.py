"""When a draft counts as right: rules by name, columns of the questions, or a function of your own."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from inward.errors import BadInput, UnknownName, UsageError
from inward.evals.answers import contains, exact_match, f1
from inward.evals.record import Question
from inward.loading_code import function_of
from inward.training.drafts import DraftRecord

Rule: TypeAlias = Callable[[DraftRecord, Question], bool | None]
_F1 = re.compile(r"f1>=(?P<share>[0-9.]+)")
_IN_FILE = re.compile(r"(?P<path>.+\.py):(?P<function>\w+)")
NAMES = {
    "answer": "a gold answer stands in the answer, at word boundaries",
    "text": "a gold answer stands in the text, rationale included",
    "em": "the answer equals a gold answer",
    "f1>=T": "the answer shares tokens with a gold answer, F1 of at least T",
    "column": "the question says so itself: right_without, right_with",
    "file.py:function": "a function of the draft (its text, its short answer, its mode) and the question",
}
"""How a rule is named, and what it says. Answers are compared as everywhere: `inward.evals.normalise`."""


@dataclass(frozen=True, slots=True)
class Label:
    """A rule by which drafts are right or wrong."""

    name: str
    of: Rule
    """None where it cannot say; such a draft is left out."""
    needs_answers: bool


def load_label(name: str) -> Label:
    """Return a rule by name, see `NAMES`.

    Raises:
        UnknownName: there is none of that name.
        UsageError: a level that is no share, or a file that cannot be used.
    """
    if name in _RULES:
        return Label(name, _RULES[name], True)
    if name == "column":
        return Label(name, _by_column, False)
    if match := _F1.fullmatch(name.replace(" ", "")):
        least = _share(match["share"], name)
        return Label(name, lambda draft, question: f1(draft.short, question.answers) >= least, True)
    if match := _IN_FILE.fullmatch(name):
        return Label(name, _of_file(Path(match["path"]), match["function"]), False)
    raise UnknownName("label", name, NAMES)


def check_answers(label: Label, questions: list[Question]) -> None:
    """Refuse questions by which a rule cannot judge.

    Raises:
        BadInput: some have no answers; the first are named.
    """
    if label.needs_answers and (without := [q.id for q in questions if not q.answers]):
        raise BadInput(
            f"label {label.name!r} compares with gold answers, and {len(without)} of {len(questions)} questions have none, such as "
            f"{without[0]!r}: give them answers, or use the label `column` or a function of yours"
        )


def _share(text: str, name: str) -> float:
    try:
        share = float(text)
    except ValueError:
        share = -1.0
    if not 0 < share <= 1:
        raise UsageError(f"label {name!r} needs a share above 0 and up to 1, such as f1>=0.5")
    return share


_RULES: dict[str, Rule] = {
    "answer": lambda draft, question: contains(draft.short, question.answers) == 1,
    "text": lambda draft, question: contains(draft.text, question.answers) == 1,
    "em": lambda draft, question: exact_match(draft.short, question.answers) == 1,
}


def _by_column(draft: DraftRecord, question: Question) -> bool | None:
    name = f"right_{draft.mode}"
    value = question.metadata.get(name)
    if value is None:
        return None
    if value not in (True, False, 0, 1):
        raise BadInput(f"question {question.id!r}: {name} must be true or false, got {value!r}")
    return bool(value)


def _of_file(path: Path, name: str) -> Rule:
    function: Any = function_of(path, name, "label")

    def rule(draft: DraftRecord, question: Question) -> bool | None:
        said = function(draft, question)
        if said is not None and not isinstance(said, bool):
            raise UsageError(f"the label {name!r} of {str(path)!r} must return True, False or None, got {said!r}")
        return said

    return rule
