"""Files of questions opened and parsed, whatever their shape: JSON, JSONL, TSV, Parquet, gzipped or not, standard input."""

from __future__ import annotations

import csv
import gzip
import hashlib
import io
import json
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from inward.errors import BadInput, MissingExtra, UsageError
from inward.evals.formats import Row

Source: TypeAlias = "str | Path | Iterable[Mapping[str, Any]]"


class Opened(NamedTuple):
    """The rows of a source, and where each stands in it."""

    name: str
    sha256: str
    """Of the bytes; of the rows as JSON where they come from Python."""
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
            raise UsageError(f"no such file of questions: {str(path)!r}")
        if path.suffix == ".parquet":
            return _parquet(path)
        return _parse(path.name, path.read_bytes(), path.with_name("id_aliases.json"))
    if isinstance(source, str | Path):
        return _parse("standard input", sys.stdin.buffer.read(), None)
    if isinstance(source, Mapping) or not isinstance(source, Iterable):
        raise UsageError(f"questions come from a path, '-' or rows, got {type(source).__name__}")
    rows: list[Row] = [dict(row) for row in source]
    digest = hashlib.sha256("\n".join(json.dumps(row, sort_keys=True, default=str) for row in rows).encode("utf-8", "surrogatepass"))
    return Opened(type(source).__name__, digest.hexdigest(), rows, [f"row {n}" for n in range(1, len(rows) + 1)])


def _parquet(path: Path) -> Opened:
    try:
        from pyarrow import parquet
    except ImportError as error:
        raise MissingExtra("reading Parquet", "parquet", error) from error
    rows = parquet.read_table(path).to_pylist()
    return Opened(path.name, hashlib.sha256(path.read_bytes()).hexdigest(), rows, [f"row {n}" for n in range(1, len(rows) + 1)])


def decoded(raw: bytes, name: str) -> str:
    """Return the text of a file, unpacked, without a byte order mark.

    Raises:
        BadInput: it is damaged, or not UTF-8.
    """
    if raw[:2] == b"\x1f\x8b":
        try:
            raw = gzip.decompress(raw)
        except (OSError, EOFError) as error:
            raise BadInput(f"{name} is a damaged gzip file ({error}); fetch it again") from error
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw[: error.start].count(b"\n") + 1
        raise BadInput(f"{name}, line {line}: byte 0x{raw[error.start]:02x} is not UTF-8; convert the file to UTF-8") from error


def _parse(name: str, raw: bytes, aliases: Path | None) -> Opened:
    text, digest = decoded(raw, name), hashlib.sha256(raw).hexdigest()
    if name.removesuffix(".gz").endswith(".tsv"):
        table = list(csv.DictReader(io.StringIO(text), delimiter="\t"))
        return Opened(name, digest, list(table), [f"line {n}" for n in range(2, len(table) + 2)])
    rows, places = _whole(text, name) if _is_whole(text) else _lines(text, name)
    if aliases is not None and aliases.is_file() and any("answer_id" in row for row in rows):
        rows = _with_aliases(rows, aliases)
    return Opened(name, digest, rows, places)


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


def _whole(text: str, name: str) -> tuple[list[Row], list[str]]:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise BadInput(f"{name} is no JSON ({error})") from error
    rows = value if isinstance(value, list) else [value]
    for number, row in enumerate(rows, 1):
        if not isinstance(row, dict):
            raise BadInput(f"{name}, row {number} is no object, got {str(row)[:60]!r}")
    return rows, [f"row {n}" for n in range(1, len(rows) + 1)]


def _lines(text: str, name: str) -> tuple[list[Row], list[str]]:
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
    return rows, places


def _with_aliases(rows: list[Row], path: Path) -> list[Row]:
    """Add 2WikiMultiHopQA's aliases of answers, from the file that its release keeps beside the questions."""
    named = {
        row["Q_id"]: [*row.get("aliases", ()), *row.get("demonyms", ())]
        for row in _lines(decoded(path.read_bytes(), path.name), path.name)[0]
    }
    return [{**row, "answer": [row.get("answer"), *named.get(row.get("answer_id"), ())]} for row in rows]
