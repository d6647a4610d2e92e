"""Questions with their gold answers, from files, folders, standard input or Python.

Ids are text and stay what they are: "007" and "7" are two questions, and so are "7" and the number 7 beside it. Where a
file has none, an id is made from the question and its answers, so that it survives another order of the rows.
"""

from __future__ import annotations

import hashlib
import io
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

import msgspec

from inward.errors import BadInput, UnknownName, UsageError
from inward.evals.formats import SHAPES, Raw, Row, names_of, shape_of
from inward.evals.gathering import Gathering, QuestionSet, data_hash
from inward.evals.record import Question
from inward.evals.sources import Opened, Source, open_source
from inward.textfile import decoded, readable

Columns: TypeAlias = Mapping[str, str]
"""Field of a question (`id`, `question`, `answers`, `supporting`) -> column that holds it."""

FIELDS = ("id", "question", "answers", "supporting")
_OURS = frozenset({*FIELDS, "_id", "answer", "golden_answers", "metadata"})
_SHOWN = 5


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


def text_hash(question: str) -> str:
    """Return 16 hexadecimal digits that equal questions share, spelling aside: case, quotes, spaces, Unicode forms, what ends them."""
    folded = unicodedata.normalize("NFKC", question).casefold()
    kept = "".join("-" if (kind := unicodedata.category(c)) == "Pd" else "" if kind in ("Pi", "Pf") or c in "\"'`" else c for c in folded)
    plain = " ".join(kept.split()).rstrip(" ?.!\u00bf\u061f")
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
    if isinstance(source, str | Path) and source != "-":
        if not str(source):
            raise UsageError("questions are named by their file, or '-' for standard input, got ''")
        if Path(source).is_dir():
            return _beir(Path(source), split, dataset)
    opened = open_source(source)
    kind = "inward" if columns else format or next(filter(None, map(shape_of, opened.rows)), None)
    if kind is None and opened.rows:
        keys = ", ".join(map(repr, opened.rows[0]))
        raise UsageError(f"{opened.name}: rows with the fields {keys} are of no known format; name it with format=, or columns=")
    return _gather(opened, kind or "inward", columns, dataset)


def _gather(opened: Opened, kind: str, columns: Columns | None, dataset: str) -> QuestionSet:
    for field_name, column in (columns or {}).items():
        if opened.rows and not any(column in row for row in opened.rows):
            has = ", ".join(map(repr, opened.rows[0]))
            raise UsageError(f"no row of {opened.name} has the column {column!r} for {field_name}; the first has {has}")
    gathering = Gathering(dataset)
    for place, row in zip(opened.places, opened.rows, strict=True):
        if "" in row:
            gathering.refuse(place, f"has {len(row[''])} more cells than the header has names")
            continue
        try:
            raws = list(SHAPES[kind].read(row)) if columns is None else [_by_columns(row, columns)]
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            gathering.refuse(place, f"is no {kind} row ({type(error).__name__}: {error})")
            continue
        for raw in raws:
            gathering.take(raw, place)
    return gathering.result(opened, kind)


def _by_columns(row: Row, columns: Columns) -> Raw:
    """Read a row by its columns' names; a field that has none keeps its own name."""
    plain = next(iter(SHAPES["inward"].read({k: v for k, v in row.items() if k not in columns.values() and k not in columns})))
    own = {"id": plain.id, "question": plain.question, "answers": plain.answers, "supporting": plain.supporting}
    given = own | {name: row.get(column) for name, column in columns.items()}
    return Raw(given["id"], given["question"], given["answers"], names_of(given["supporting"]), plain.metadata)


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
    gold = _judged(folder / "qrels" / f"{split}.tsv")
    opened = open_source(folder / "queries.jsonl")
    gathering = Gathering(dataset)
    for place, row in zip(opened.places, opened.rows, strict=True):
        id = row.get("_id")
        if id is None or id == "":
            gathering.refuse(place, "has no _id")
        elif str(id) in gold:
            gathering.take(Raw(str(id), row.get("text"), _first_of(row), tuple(gold[str(id)]), {}), place, answered=False)
    return gathering.result(opened._replace(name=readable(folder.name)), "beir")


def _judged(path: Path) -> dict[str, list[str]]:
    """Read the judgements of a split: query -> passages judged relevant."""
    gold: dict[str, list[str]] = {}
    lines = decoded(path.read_bytes(), path.name).split("\n")
    for number, line in enumerate(lines, 1):
        if not line.strip() or (number == 1 and not _is_judgement(line)):
            continue  # the first line is a header, unless it is none
        cells = line.strip().split("\t")
        try:
            query, passage, score = cells
            relevant = float(score) > 0
        except ValueError as error:
            raise BadInput(f"{path.name}, line {number}: query-id, corpus-id and a score are expected, got {line.strip()!r}") from error
        if relevant:
            gold.setdefault(query, []).append(passage)
    return gold


def _is_judgement(line: str) -> bool:
    cells = line.strip().split("\t")
    return len(cells) == 3 and cells[2].lstrip("+-").replace(".", "", 1).isdigit()


def _first_of(row: Row) -> Any:
    metadata = row.get("metadata")
    inner = metadata if isinstance(metadata, Mapping) else {}
    return next((source[name] for source in (row, inner) for name in ("answers", "answer") if name in source), None)


def encode_question(question: Question) -> bytes:
    """Return a question as a line of our JSONL: other fields beside ours, under `metadata` where they have one of our names."""
    named: dict[str, Any] = {"id": question.id, "question": question.question, "answers": question.answers}
    if question.supporting:
        named["supporting"] = question.supporting
    beside = {k: v for k, v in question.metadata.items() if k not in _OURS}
    inside = {k: v for k, v in question.metadata.items() if k in _OURS}
    return msgspec.json.encode({**named, **beside, **({"metadata": inside} if inside else {})}, enc_hook=str) + b"\n"
