"""Questions with their gold answers, from files, folders, standard input or Python.

Ids are text and stay what they are: "007" and "7" are two questions, and so are "7" and the number 7 beside it. Where a
file has none, an id is made from the question and its answers, so that it survives another order of the rows.
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import Any, TypeAlias

from inward.errors import BadInput, UnknownName, UsageError
from inward.evals.formats import SHAPES, Raw, Row, shape_of
from inward.evals.normalise import normalise_squad, normalise_unicode
from inward.evals.record import Question
from inward.evals.sources import Opened, Source, decoded, open_source

Columns: TypeAlias = Mapping[str, str]
"""Field of a question (`id`, `question`, `answers`, `supporting`) -> column that holds it."""

FIELDS = ("id", "question", "answers", "supporting")
_SHOWN = 5


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
    """16 hexadecimal digits over ids, questions and answers, whatever their order."""
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


def load_questions(
    source: Source,
    *,
    format: str | None = None,
    columns: Columns | None = None,
    limit: int | None = None,
    sample_seed: int = 0,
    ids: Sequence[str] | None = None,
    split: str | None = None,
    dataset: str = "",
) -> QuestionSet:
    """Read questions.

    Args:
        source: a JSON, JSONL, TSV or Parquet file, gzipped or not; a BEIR folder; "-" for standard input; or rows, such as
            a `datasets.Dataset`.
        format: one of `inward.evals.formats.SHAPES`; found out from the first row if None.
        columns: which column holds which field, where the names are others.
        limit: take this many, chosen by a hash of `sample_seed` and id: the same ones whatever the order of the rows.
        sample_seed: another seed, another sample.
        ids: take exactly these.
        split: of a BEIR folder: the name of a file in `qrels`, which says which queries count.
        dataset: a name kept with each question.

    Raises:
        UsageError: there is no such file, or an argument means nothing.
        BadInput: rows without question or answer, or ids that come twice; the first ones are named. Or no question at all.
    """
    found = read_questions(source, format=format, columns=columns, split=split, dataset=dataset)
    if fatal := [problem for problem in found.problems if problem.fatal]:
        shown = "; ".join(map(str, fatal[:_SHOWN]))
        more = f"; and {len(fatal) - _SHOWN} more" if len(fatal) > _SHOWN else ""
        raise BadInput(f"{found.name}: {shown}{more}. `inward data validate` lists them all")
    if not found.questions:
        left_out = f"; {found.unanswerable} rows have no answer by the data set's own word" if found.unanswerable else ""
        raise BadInput(f"{found.name} holds no question{left_out}")
    return choose(found, limit=limit, sample_seed=sample_seed, ids=ids)


def choose(found: QuestionSet, *, limit: int | None = None, sample_seed: int = 0, ids: Sequence[str] | None = None) -> QuestionSet:
    """Take a sample or named questions, in the order of the file.

    Raises:
        UsageError: `limit` is below 1, or an id is not there.
    """
    taken = found.questions
    if ids is not None:
        have = set(found.ids)
        if missing := [id for id in ids if id not in have]:
            raise UsageError(f"{found.name} holds no question with id {missing[0]!r} ({len(missing)} of {len(ids)} ids are not there)")
        wanted = set(ids)
        taken = tuple(q for q in taken if q.id in wanted)
    if limit is not None:
        if limit < 1:
            raise UsageError(f"limit must be at least 1, got {limit!r}")
        best = set(sorted((q.id for q in taken), key=lambda id: (_rank(sample_seed, id), id))[:limit])
        taken = tuple(q for q in taken if q.id in best)
    return replace(found, questions=taken, data_hash=data_hash(taken))


def read_ids(path: str | Path) -> tuple[str, ...]:
    """Read one id a line, as written by a run or by hand.

    Raises:
        UsageError: there is no such file, or no id in it.
    """
    try:
        text = decoded(Path(path).read_bytes(), str(path))
    except OSError as error:
        raise UsageError(f"no file of ids can be read at {str(path)!r} ({error.strerror})") from error
    ids = tuple(line.rstrip("\r\n") for line in io.StringIO(text) if line.strip())
    if not ids:
        raise UsageError(f"{str(path)!r} holds no id")
    return ids


def data_hash(questions: Iterable[Question]) -> str:
    """Return 16 hexadecimal digits over ids, questions and answers, whatever their order."""
    whole = hashlib.blake2b(digest_size=8)
    for row in sorted(json.dumps([q.id, q.question, q.answers], ensure_ascii=True) for q in questions):
        whole.update(row.encode() + b"\n")
    return whole.hexdigest()


def text_hash(question: str) -> str:
    """Return 16 hexadecimal digits that equal questions share, spelling aside: case, punctuation, spaces, Unicode forms."""
    plain = normalise_unicode(question)
    return hashlib.blake2b(plain.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()


def read_questions(
    source: Source, *, format: str | None = None, columns: Columns | None = None, split: str | None = None, dataset: str = ""
) -> QuestionSet:
    """Read all questions and list what is wrong with them; see `load_questions`."""
    if format is not None and format not in SHAPES:
        raise UnknownName("format", format, SHAPES)
    for name in columns or {}:
        if name not in FIELDS:
            raise UnknownName("field of a question", name, FIELDS)
    if isinstance(source, str | Path) and source != "-" and Path(source).is_dir():
        return _beir(Path(source), split, dataset)
    opened = open_source(source)
    first = next(iter(opened.rows), None)
    kind = "inward" if columns else format or (shape_of(first) if first is not None else "inward")
    if kind is None:
        keys = ", ".join(map(repr, first or ()))
        raise UsageError(f"{opened.name}: a row with the fields {keys} is of no known format; name it with format=, or columns=")
    return _gather(opened, kind, columns, dataset)


def _gather(opened: Opened, kind: str, columns: Columns | None, dataset: str) -> QuestionSet:
    gathering = _Gathering(dataset)
    for place, row in zip(opened.places, opened.rows, strict=True):
        mapped = row if columns is None else _mapped(row, columns, place)
        try:
            raws = list(SHAPES[kind].read(mapped))
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            gathering.problems.append(Problem(place=place, what=f"is no {kind} row ({type(error).__name__}: {error})"))
            continue
        for raw in raws:
            gathering.take(raw, place)
    return gathering.result(opened, kind)


class _Gathering:
    """Questions on their way in: checked, counted, with ids that are there once."""

    def __init__(self, dataset: str) -> None:
        self.dataset = dataset
        self.problems: list[Problem] = []
        self.questions: dict[str, Question] = {}
        self.warnings: list[str] = []
        self._seen: dict[tuple[bool, str], str] = {}
        self._numbers: list[tuple[Question, str]] = []
        self.rows = self.unanswerable = self.repeated = 0

    def take(self, raw: Raw, place: str) -> None:
        """Keep a row, count it, or say what is wrong with it."""
        self.rows += 1
        if not isinstance(raw.question, str) or not raw.question.strip():
            self.problems.append(Problem(place=place, what=f"has no question, got {raw.question!r}"))
            return
        if not raw.answerable:
            self.unanswerable += 1
            return
        answers = _answers(raw.answers)
        if not answers:
            what = f"question {raw.question[:60]!r} has no answer, which em, f1 and acc need (looked for: answers, answer, golden_answers)"
            self.problems.append(Problem(place=place, what=what))
            return
        if not any(normalise_squad(a) or not a.isascii() for a in answers):
            what = f"answers {list(answers)!r} normalise to nothing: containment and F1 cannot see them"
            self.problems.append(Problem(place=place, what=what, fatal=False))
        has_id = raw.id is not None and not (isinstance(raw.id, str) and not raw.id)
        id = str(raw.id) if has_id else made_id(raw.question, answers)
        question = Question(
            id=id, question=raw.question, answers=answers, dataset=self.dataset, supporting=raw.supporting, metadata=raw.metadata
        )
        if not has_id and id in self.questions:
            self.repeated += 1
            return
        key = (isinstance(raw.id, str), id)
        if key in self._seen:
            self.problems.append(Problem(place=place, what=f"id {id!r} is that of {self._seen[key]} too"))
            return
        self._seen[key] = place
        if has_id and not isinstance(raw.id, str):
            self._numbers.append((question, place))
        self.questions.setdefault(id, question)
        if isinstance(raw.id, str):  # the text keeps the name, whichever came first
            self.questions[id] = question

    def result(self, opened: Opened, kind: str) -> QuestionSet:
        """Give number ids a name of their own where a text has it, and put it all together."""
        for question, place in self._numbers:
            if self.questions[question.id] is not question:
                name = f"int:{question.id}"
                self.warnings.append(f"{place}: the number {question.id} and the text {question.id!r} are both ids; the number is {name!r}")
                self.questions[name] = _renamed(question, name)
        questions = tuple(self.questions.values())
        return QuestionSet(
            questions=questions,
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


def _renamed(question: Question, id: str) -> Question:
    import msgspec

    return msgspec.structs.replace(question, id=id)


def made_id(question: str, answers: Sequence[str]) -> str:
    """Return an id made of what a row holds, so that it does not depend on the row's place."""
    content = json.dumps([question, sorted(answers)], ensure_ascii=True)
    return "q" + hashlib.blake2b(content.encode(), digest_size=6).hexdigest()


def _answers(raw: Any) -> tuple[str, ...]:
    """Return gold answers as texts, each once; a text alone is one answer, yes and no are those of StrategyQA."""
    if raw is None:
        return ()
    if isinstance(raw, bool):
        return ("yes" if raw else "no",)
    if isinstance(raw, str | int | float):
        return (str(raw),) if str(raw).strip() else ()
    if isinstance(raw, Mapping):  # datasets' SQuAD: {"text": [...], "answer_start": [...]}; TriviaQA: {"value": ..., "aliases": [...]}
        found = [*_answers(raw.get("text")), *_answers(raw.get("value")), *_answers(raw.get("aliases"))]
        return tuple(dict.fromkeys(found))
    return tuple(dict.fromkeys(chain.from_iterable(map(_answers, raw))))


def _mapped(row: Row, columns: Columns, place: str) -> Row:
    if missing := [column for column in columns.values() if column not in row]:
        raise BadInput(f"{place} has no column {missing[0]!r}; it has {', '.join(map(repr, row))}")
    return {name: row[column] for name, column in columns.items()} | {k: v for k, v in row.items() if k not in columns.values()}


def _rank(seed: int, id: str) -> bytes:
    return hashlib.blake2b(f"{seed}\0{id}".encode("utf-8", "surrogatepass"), digest_size=8).digest()


def _beir(folder: Path, split: str | None, dataset: str) -> QuestionSet:
    """Read the queries of a BEIR folder that are judged in a split; gold passages are those judged relevant."""
    found = sorted((folder / "qrels").glob("*.tsv"))
    names = [file.stem for file in found]
    if split is None and len(names) == 1:
        split = names[0]
    if split not in names:
        raise UsageError(f"a BEIR folder is read by split, one of {', '.join(names) or 'none: no qrels/*.tsv'}, got {split!r}")
    gold: dict[str, list[str]] = {}
    table = csv.DictReader(io.StringIO(decoded((folder / "qrels" / f"{split}.tsv").read_bytes(), f"{split}.tsv")), delimiter="\t")
    for row in table:
        if float(row["score"]) > 0:
            gold.setdefault(row["query-id"], []).append(row["corpus-id"])
    opened = open_source(folder / "queries.jsonl")
    questions = tuple(
        Question(id=id, question=str(row["text"]), answers=_answers(_first_of(row)), dataset=dataset, supporting=tuple(gold[id]))
        for row in opened.rows
        if (id := str(row["_id"])) in gold
    )
    return QuestionSet(
        questions=questions, name=folder.name, format="beir", sha256=opened.sha256, data_hash=data_hash(questions), rows=len(opened.rows)
    )


def _first_of(row: Row) -> Any:
    metadata = row.get("metadata")
    inner = metadata if isinstance(metadata, Mapping) else {}
    return next((source[name] for source in (row, inner) for name in ("answers", "answer") if name in source), None)


def encode_question(question: Question) -> bytes:
    """Return a question as a line of our JSONL, metadata beside the fields."""
    import msgspec

    named = {"id": question.id, "question": question.question, "answers": question.answers}
    if question.supporting:
        named["supporting"] = question.supporting
    rest: Iterator[tuple[str, Any]] = ((k, v) for k, v in question.metadata.items() if k not in named)
    return msgspec.json.encode({**named, **dict(rest)}) + b"\n"
