"""Files of questions opened and parsed, whatever their shape: JSON, JSONL, TSV, Parquet, gzipped or not, standard input."""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from inward.errors import BadInput, MissingExtra, UsageError
from inward.evals.formats import Row
from inward.textfile import decoded, readable, tsv_fields

Source: TypeAlias = "str | Path | Iterable[Mapping[str, Any]]"


class Opened(NamedTuple):
    """The rows of a source, and where each stands in it."""

    name: str
    sha256: str
    """Of the bytes; of the rows as JSON where they come from Python."""
    rows: list[Row]
    places: list[str]


class Parsed(NamedTuple):
    """Rows and their places."""

    rows: list[Row]
    places: list[str]


def open_source(source: Source) -> Opened:
    """Read a source whole.

    Raises:
        UsageError: there is no such file.
        BadInput: it is no JSON, or not UTF-8; the message names the line.
    """
    if isinstance(source, str | Path) and source != "-":
        path = Path(source)
        if not path.exists():
            raise UsageError(f"no such file of questions: {str(source)!r}")
        if path.suffix == ".parquet":
            return _parquet(path)
        return _parse(readable(path.name), path.read_bytes(), path.with_name("id_aliases.json"))
    if isinstance(source, str | Path):
        return _parse("standard input", sys.stdin.buffer.read(), None)
    if isinstance(source, Mapping) or not isinstance(source, Iterable):
        raise UsageError(f"questions come from a path, '-' or rows, got {type(source).__name__}")
    rows: list[Row] = [dict(row) for row in source]
    digest = hashlib.sha256("\n".join(json.dumps(row, sort_keys=True, default=str) for row in rows).encode("utf-8", "surrogatepass"))
    return Opened(type(source).__name__, digest.hexdigest(), rows, _rows_of(rows))


def _parquet(path: Path) -> Opened:
    try:
        from pyarrow import parquet
    except ImportError as error:
        raise MissingExtra("reading Parquet", "parquet", error) from error
    from pyarrow import ArrowException

    try:
        rows = parquet.read_table(path).to_pylist()
    except ArrowException as error:
        raise BadInput(f"{path.name} is no Parquet file ({error})") from error
    return Opened(readable(path.name), hashlib.sha256(path.read_bytes()).hexdigest(), rows, _rows_of(rows))


def _parse(name: str, raw: bytes, aliases: Path | None) -> Opened:
    text, digest = decoded(raw, name), hashlib.sha256(raw).hexdigest()
    try:
        rows, places = _table(text) if name.removesuffix(".gz").endswith(".tsv") else _json(text, name)
    except RecursionError as error:
        raise BadInput(f"{name} is nested too deeply to be questions") from error
    if aliases is not None and aliases.is_file() and any("answer_id" in row for row in rows):
        rows = _with_aliases(rows, aliases)
    return Opened(name, digest, rows, places)


def _json(text: str, name: str) -> Parsed:
    return _whole(text, name) if _is_whole(text) else _lines(text, name)


def _table(text: str) -> Parsed:
    """Read tab-separated lines under a header; a cell that is a JSON list is one, cells without a name come under ""."""
    lines = [line.removesuffix("\r") for line in text.split("\n")]
    names = [name.strip() for name in tsv_fields(lines[0])]
    rows: list[Row] = []
    places: list[str] = []
    for number, line in enumerate(lines[1:], 2):
        if line.strip():
            cells = tsv_fields(line)
            extra = {"": cells[len(names) :]} if len(cells) > len(names) else {}
            rows.append({name: _cell(cell) for name, cell in zip(names, cells, strict=False)} | extra)
            places.append(f"line {number}")
    return Parsed(rows, places)


def _cell(text: str) -> Any:
    if not text.startswith("["):
        return text
    try:
        value = json.loads(text)
    except ValueError:
        return text
    return value if isinstance(value, list) else text


def _rows_of(rows: list[Row]) -> list[str]:
    return [f"row {number}" for number in range(1, len(rows) + 1)]


def _is_whole(text: str) -> bool:
    """Whether the text is one JSON value: a list, or an object that goes over lines or holds the whole data set."""
    start = text.lstrip()[:1]
    if start != "{":
        return start == "["
    try:
        first = json.loads(text.lstrip().partition("\n")[0])
    except ValueError:
        return True
    return isinstance(first, dict) and ("Data" in first or isinstance(first.get("data"), list))


def _whole(text: str, name: str) -> Parsed:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise BadInput(f"{name} is no JSON ({error})") from error
    rows = value if isinstance(value, list) else [value]
    for number, row in enumerate(rows, 1):
        if not isinstance(row, dict):
            raise BadInput(f"{name}, row {number} is no object, got {str(row)[:60]!r}")
    return Parsed(rows, _rows_of(rows))


def _lines(text: str, name: str) -> Parsed:
    rows: list[Row] = []
    places: list[str] = []
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except ValueError as error:
            raise BadInput(f"{name}, line {number} is no JSON ({error})") from error
        if not isinstance(row, dict):
            raise BadInput(f"{name}, line {number} is no object, got {line[:60]!r}")
        rows.append(row)
        places.append(f"line {number}")
    return Parsed(rows, places)


def _with_aliases(rows: list[Row], path: Path) -> list[Row]:
    """Add 2WikiMultiHopQA's aliases of answers, from the file that its release keeps beside the questions."""
    listed = _lines(decoded(path.read_bytes(), path.name), path.name).rows
    named = {row["Q_id"]: [*row.get("aliases", ()), *row.get("demonyms", ())] for row in listed}
    return [{**row, "answer": [row.get("answer"), *named.get(row.get("answer_id"), ())]} for row in rows]
