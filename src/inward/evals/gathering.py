"""Questions on their way in: rows checked and counted, ids that are there once, and what was noticed."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from math import isfinite
from typing import Any, NamedTuple

import msgspec

from inward.evals.formats import Raw
from inward.evals.normalise import normalise_squad
from inward.evals.record import Question
from inward.evals.sources import Opened

_A_LIST = re.compile(r"""\[\s*(['"]).*\1\s*\]""", re.DOTALL)
_SURROGATE = re.compile("[\ud800-\udfff]")


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """Something wrong with a row."""

    place: str
    """Such as "row 3"; rows count from 1, for lines of a file they are its lines."""
    what: str
    fatal: bool = True
    """Whether the row cannot be used; else it is only worth a look."""

    def __str__(self) -> str:
        """Say where and what."""
        return f"{self.place}: {self.what}"


@dataclass(frozen=True, slots=True, kw_only=True)
class QuestionSet:
    """Questions that were read, and what was noticed."""

    questions: tuple[Question, ...]
    name: str
    format: str
    sha256: str
    """Of the file's bytes; of the rows as JSON for rows that come from Python."""
    data_hash: str
    """16 hexadecimal digits over ids, questions, answers and gold passages, whatever their order."""
    rows: int
    """That the source holds."""
    unanswerable: int = 0
    """Left out because the data set says that they have no answer."""
    repeated: int = 0
    """Left out because an equal question without an id had come before."""
    problems: tuple[Problem, ...] = ()
    warnings: tuple[str, ...] = ()
    ids: tuple[str, ...] = field(init=False, default=())

    def __post_init__(self) -> None:
        """List the ids."""
        object.__setattr__(self, "ids", tuple(question.id for question in self.questions))


class Gathering:
    """Questions on their way in: checked, counted, with ids that are there once."""

    def __init__(self, dataset: str) -> None:
        self.dataset = dataset
        self.problems: list[Problem] = []
        self.warnings: list[str] = []
        self._kept: dict[tuple[bool, str], _Kept] = {}
        """(whether the id is a text, the id as a text) -> question; a number beside a text of the same signs is another question."""
        self.rows = self.unanswerable = self.repeated = 0

    def refuse(self, place: str, what: str) -> None:
        """Count a row that cannot be used, and say why."""
        self.rows += 1
        self.problems.append(Problem(place=place, what=what))

    def take(self, raw: Raw, place: str, *, answered: bool = True) -> None:
        """Keep a row, count it, or say what is wrong with it; `answered`: whether it must have an answer."""
        if not isinstance(raw.question, str) or not raw.question.strip():
            self.refuse(place, f"has no question, got {raw.question!r}")
            return
        if not raw.answerable:
            self.rows += 1
            self.unanswerable += 1
            return
        try:
            answers = answers_of(raw.answers)
        except (TypeError, RecursionError) as error:
            self.refuse(place, f"has answers that are no texts ({error})")
            return
        if answered and not answers:
            looked = "looked for: answers, answer, golden_answers"
            self.refuse(place, f"question {raw.question[:60]!r} has no answer, which em, f1 and acc need ({looked})")
            return
        has_id = raw.id is not None and raw.id != ""
        id = str(raw.id) if has_id else made_id(raw.question, answers)
        if broken := [text for text in (id, raw.question, *answers, *raw.supporting) if _SURROGATE.search(text)]:
            self.refuse(place, f"{broken[0][:60]!r} holds half of a surrogate pair: it is no valid Unicode")
            return
        key = (isinstance(raw.id, str), id)
        if key in self._kept and has_id:
            self.refuse(place, f"id {id!r} is that of {self._kept[key].place} too")
            return
        self.rows += 1
        if key in self._kept:
            self.repeated += 1
            return
        if answers and not any(normalise_squad(a) or not a.isascii() for a in answers):
            what = f"answers {list(answers)!r} normalise to nothing: only the very same text matches them"
            self.problems.append(Problem(place=place, what=what, fatal=False))
        if written := [a for a in answers if _A_LIST.fullmatch(a)]:
            what = f"the answer {written[0][:60]!r} looks like a list written as text: one answer that nothing matches"
            self.problems.append(Problem(place=place, what=what, fatal=False))
        question = Question(
            id=id,
            question=raw.question,
            answers=answers,
            dataset=self.dataset,
            supporting=raw.supporting,
            metadata={str(k): _valid(v) for k, v in raw.metadata.items()},
        )
        self._kept[key] = _Kept(question, place)

    def result(self, opened: Opened, kind: str) -> QuestionSet:
        """Give numbers a name of their own where a text has it, and put it all together."""
        taken = {id for is_text, id in self._kept if is_text}
        questions: list[Question] = []
        for (is_text, id), kept in self._kept.items():
            name = id
            while not is_text and name in taken:
                name = f"int:{name}"
            if name != id:
                self.warnings.append(f"{kept.place}: the number {id} and the text {id!r} are both ids; the number is {name!r}")
            taken.add(name)
            questions.append(msgspec.structs.replace(kept.question, id=name))
        return QuestionSet(
            questions=tuple(questions),
            name=opened.name,
            format=kind,
            sha256=opened.sha256,
            data_hash=data_hash(questions),
            rows=self.rows,
            unanswerable=self.unanswerable,
            repeated=self.repeated,
            problems=tuple(self.problems),
            warnings=tuple(self.warnings),
        )


class _Kept(NamedTuple):
    question: Question
    place: str


def _valid(value: Any) -> Any:
    """Return a plain value with lone surrogates replaced: no file could hold them."""
    if isinstance(value, str):
        return _SURROGATE.sub("\ufffd", value)
    if isinstance(value, Mapping):
        return {_valid(k): _valid(v) for k, v in value.items()}
    return [_valid(each) for each in value] if isinstance(value, list | tuple) else value


def made_id(question: str, answers: Sequence[str]) -> str:
    """Return an id made of what a row holds, so that it does not depend on the row's place."""
    content = json.dumps([question, sorted(answers)], ensure_ascii=True)
    return "q" + hashlib.blake2b(content.encode(), digest_size=6).hexdigest()


def answers_of(raw: Any) -> tuple[str, ...]:
    """Return gold answers as texts, each once; a text alone is one answer, yes and no are those of StrategyQA."""
    if raw is None:
        return ()
    if isinstance(raw, bool):
        return ("yes" if raw else "no",)
    if isinstance(raw, float):
        if not isfinite(raw):
            raise TypeError(f"{raw!r} is no answer")
        return (str(int(raw)) if raw.is_integer() else str(raw),)  # tables read with gaps in them have their years as 1949.0
    if isinstance(raw, str | int):
        return (str(raw),) if str(raw).strip() else ()
    if isinstance(raw, Mapping):  # datasets' SQuAD: {"text": [...], "answer_start": [...]}; TriviaQA: {"value": ..., "aliases": [...]}
        found = [*answers_of(raw.get("text")), *answers_of(raw.get("value")), *answers_of(raw.get("aliases"))]
        return tuple(dict.fromkeys(found))
    return tuple(dict.fromkeys(chain.from_iterable(map(answers_of, raw))))


def data_hash(questions: Iterable[Question]) -> str:
    """Return 16 hexadecimal digits over ids, questions, answers and gold passages, whatever their order."""
    whole = hashlib.blake2b(digest_size=8)
    for row in sorted(json.dumps([q.id, q.question, q.answers, q.supporting], ensure_ascii=True) for q in questions):
        whole.update(row.encode() + b"\n")
    return whole.hexdigest()
