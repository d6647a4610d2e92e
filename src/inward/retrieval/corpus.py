"""Reading documents from files, folders, standard input or Python, one at a time.

| source | documents |
| --- | --- |
| `.jsonl`, `.json`, `.ndjson` | one object a line: `id` or `_id`, `title`, `text`, or FlashRAG's `contents` |
| `.tsv` | `id`, `text`, `title` (DPR's `psgs_w100.tsv`), or the columns that a header names |
| a folder with `corpus.jsonl` | BEIR |
| a folder | every `.txt` and `.md` below it; the path is the id |
| `-` | standard input, JSONL or TSV by its first character |
| an iterable of mappings | the same fields as a JSONL object |

Gzip is recognised by its first bytes, in all of them. Files are UTF-8, with or without BOM; lines may end in
CRLF. A line that makes no document is a `BadLine`; a byte that is not UTF-8 says that the whole file is in
another encoding and raises.
"""

from __future__ import annotations

import gzip
import io
import json
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO, Literal, NamedTuple, TypeAlias, cast, get_args

import msgspec

from inward.errors import BadInput, UsageError
from inward.textfile import DAMAGED_GZIP, GZIP, damaged_gzip, not_utf8, readable, tsv_fields

Format: TypeAlias = Literal["jsonl", "tsv", "text"]
Source: TypeAlias = "str | Path | Iterable[Mapping[str, Any]]"

_FORMATS: dict[str, Format] = {".jsonl": "jsonl", ".ndjson": "jsonl", ".json": "jsonl", ".tsv": "tsv", ".txt": "text", ".md": "text"}
_KNOWN = frozenset({"id", "_id", "title", "text", "contents", "metadata"})
_RESERVED = frozenset({"doc", "start", "end"})
"""Metadata keys that hold a passage's document and span."""
_MAX_ID_BYTES = 1000
_BOM = b"\xef\xbb\xbf"
_SURROGATE = re.compile("[\ud800-\udfff]")
_TELL_EVERY = 256
"""Lines between two looks at the position in the file: each is a system call."""
_GZIP_GROWTH = 3.5
"""Text to gzip, in bytes, where the file does not say."""


class Document(NamedTuple):
    """A document as it came."""

    line: int
    """1-based; 0 for a document that is a file of its own."""
    id: str
    title: str
    text: str
    metadata: dict[str, Any]


class BadLine(NamedTuple):
    """A line that makes no document."""

    line: int
    reason: str


class Corpus:
    """A source of documents, read once, front to back."""

    def __init__(self, source: Source, *, format: Format | None = None) -> None:
        """Find out what the source is; nothing is read yet but its first bytes.

        Raises:
            UsageError: there is no such file, or nothing says what is in it.
        """
        if format is not None and format not in get_args(Format):
            raise UsageError(f"format must be one of {', '.join(get_args(Format))}, got {format!r}")
        self._format = format
        self._rows: Iterable[Mapping[str, Any]] | None = None
        self._root: Path | None = None
        self._files: list[Path] = []
        self.bytes: int | None = None
        """Size of the files as stored; None where it is not known."""
        self.text_bytes: int | None = None
        """Estimated size unpacked."""
        self.ignored = 0
        """Files of a folder that are not read."""
        self.bytes_read = 0
        """Of `bytes`; not counted where that is not known."""
        if source == "-":
            self.name = "standard input"
        elif isinstance(source, str | Path):
            self._find(Path(source))
        elif isinstance(source, Mapping) or not isinstance(source, Iterable):
            raise UsageError(f"a source is a path, '-' or an iterable of mappings, got {type(source).__name__}")
        else:
            self.name, self._rows = type(source).__name__, source
        self.name = readable(self.name)

    def _find(self, path: Path) -> None:
        self.name = path.name or path.resolve().name
        if path.is_dir():
            beir = [path / name for name in ("corpus.jsonl", "corpus.jsonl.gz") if (path / name).is_file()]
            self._files = beir[:1] or sorted(p for p in path.rglob("*") if _is_text(p, path))
            self._root = path
            if not beir:
                self.ignored = sum(p.is_file() for p in path.rglob("*")) - len(self._files)
            if not self._files:
                raise UsageError(f"folder {str(path)!r} holds no corpus.jsonl and no .txt or .md file")
        elif path.exists():
            self._files = [path]
        else:
            raise UsageError(f"no such corpus: {str(path)!r}")
        if all(file.is_file() for file in self._files):  # a pipe has no size
            self.bytes = sum(file.stat().st_size for file in self._files)
            self.text_bytes = sum(map(_unpacked_bytes, self._files))

    def __iter__(self) -> Iterator[Document | BadLine]:
        """Yield documents and bad lines in order; memory holds one line (one file, for text)."""
        if self._rows is not None:
            for number, row in enumerate(self._rows, 1):
                yield from_mapping(row, number)
            return
        if self._files:
            for file in self._files:
                with file.open("rb") as stored:
                    yield from self._read(stored, file)
            return
        yield from self._read(sys.stdin.buffer, None)

    def _read(self, stored: BinaryIO, file: Path | None) -> Iterator[Document | BadLine]:
        name = str(file) if file else self.name
        before = self.bytes_read
        buffered = stored if isinstance(stored, io.BufferedReader) else io.BufferedReader(cast(io.RawIOBase, stored))
        packed = buffered.peek(2).startswith(GZIP)
        lines = io.BufferedReader(cast(io.RawIOBase, gzip.GzipFile(fileobj=buffered))) if packed else buffered
        try:
            head = lines.peek(4)
            form = self._format or (_format_of(file) if file else None) or _sniff(head, name)
            if head[:2] in (b"\xff\xfe", b"\xfe\xff"):
                raise BadInput(f"{name} is UTF-16, not UTF-8; convert it with: iconv -f utf-16 -t utf-8")
            if form == "text":
                yield self._text_document(lines.read(), file, name)
            else:
                read_line: Callable[[bytes, int], Document | BadLine | None] = _jsonl_line if form == "jsonl" else _TsvReader()
                for number, raw in enumerate(lines, 1):
                    if self.bytes is not None and not number % _TELL_EVERY:
                        self.bytes_read = before + buffered.tell()
                    if number == 1 and raw.startswith(_BOM):
                        raw = raw[len(_BOM) :]
                    line = raw.strip(b"\r\n") if form == "tsv" else raw.strip()
                    if not line:
                        continue
                    try:
                        row = read_line(line, number)
                    except UnicodeDecodeError as error:
                        raise not_utf8(name, number, error) from error
                    if row is not None:
                        yield row
        except DAMAGED_GZIP as error:
            raise damaged_gzip(name, error) from error
        if file and self.bytes is not None:
            self.bytes_read = before + file.stat().st_size

    def _text_document(self, raw: bytes, file: Path | None, name: str) -> Document:
        try:
            text = raw.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            raise not_utf8(name, raw.count(b"\n", 0, error.start) + 1, error) from error
        text = text.replace("\r\n", "\n").replace("\r", "\n")
        if file is None:
            return Document(0, "stdin", "", text, {})
        heading = re.match(r"\s*#\s+(.+)", text)
        inside = file.relative_to(self._root).as_posix() if self._root else file.name
        return Document(0, inside, heading.group(1).strip() if heading else _bare(file).stem, text, {})


def from_mapping(row: object, line: int) -> Document | BadLine:
    """Turn a decoded JSON object (or a row of a data set) into a document, or say why it is none."""
    if not isinstance(row, Mapping):
        return BadLine(line, f"an object with id and text is needed, got {type(row).__name__}")
    id = row.get("id", row.get("_id"))
    if type(id) is int:
        id = str(id)
    if not isinstance(id, str) or not id:
        return BadLine(line, 'no "id" or "_id" that is text or a whole number')
    if not (id.isascii() and len(id) <= _MAX_ID_BYTES) and not _good_id(id):
        return BadLine(line, f"the id {id[:50]!r} has a lone surrogate or more than {_MAX_ID_BYTES} bytes")
    title, text = row.get("title") or "", row.get("text")
    if text is None and isinstance(row.get("contents"), str):
        title, text = _from_contents(title, row["contents"])
    if not isinstance(text, str) or not isinstance(title, str):
        return BadLine(line, f'"text" (or "contents") and "title" of {id!r} must be text')
    given = row.get("metadata") or {}
    if not isinstance(given, Mapping):
        return BadLine(line, f'"metadata" of {id!r} must be an object, got {type(given).__name__}')
    metadata = {key: value for key, value in row.items() if key not in _KNOWN}
    metadata.update(given)
    for key in _RESERVED.intersection(metadata):
        metadata[f"source_{key}"] = metadata.pop(key)
    return Document(line, id, _whole(title), _whole(text), metadata)


def _good_id(id: str) -> bool:
    return not _SURROGATE.search(id) and len(id.encode()) <= _MAX_ID_BYTES


def _whole(text: str) -> str:
    """Replace lone surrogates, one character by one, so that offsets stay."""
    return text if text.isascii() else _SURROGATE.sub("\ufffd", text)


def _from_contents(title: str, contents: str) -> tuple[str, str]:
    """Take FlashRAG's `contents` apart: its first line is the title in quotes."""
    first, newline, rest = contents.partition("\n")
    first = first.strip()
    if newline and len(first) > 1 and first[0] == first[-1] == '"':
        return title or first[1:-1], rest
    return title, contents


_decode = msgspec.json.Decoder().decode


def _jsonl_line(line: bytes, number: int) -> Document | BadLine:
    try:
        row = _decode(line)
    except msgspec.DecodeError as error:
        line.decode()  # raises where the line is not UTF-8
        if number == 1 and line.startswith(b"["):
            raise BadInput("this is one JSON array, not an object a line; convert it with: jq -c '.[]'") from error
        if b"\\u" not in line:
            return BadLine(number, f"not valid JSON: {error}")
        try:
            row = json.loads(line)  # lone surrogates
        except ValueError:
            return BadLine(number, f"not valid JSON: {error}")
    except RecursionError:
        return BadLine(number, "nested too deeply")
    return from_mapping(row, number)


class _TsvReader:
    """Reads DPR's format: tabs, fields with quotes in quotes, one record a line."""

    def __init__(self) -> None:
        self._columns: list[str] = ["id", "text", "title"]
        self._first = True

    def __call__(self, line: bytes, number: int) -> Document | BadLine | None:
        text = line.decode()
        fields = tsv_fields(text)
        first, self._first = self._first, False
        if first and {"id", "text"} <= {field.strip().lower() for field in fields}:
            self._columns = [field.strip().lower() for field in fields]
            return None
        if not 2 <= len(fields) <= len(self._columns):
            return BadLine(number, f"{len(self._columns)} columns expected ({', '.join(self._columns)}), got {len(fields)}")
        return from_mapping(dict(zip(self._columns, fields, strict=False)), number)


def _bare(file: Path) -> Path:
    return file.with_suffix("") if file.suffix == ".gz" else file


def _is_text(file: Path, root: Path) -> bool:
    hidden = any(part.startswith(".") for part in file.relative_to(root).parts)
    return _format_of(file) == "text" and not hidden and file.is_file()


def _format_of(file: Path) -> Format | None:
    return _FORMATS.get(_bare(file).suffix.lower())


def _sniff(head: bytes, name: str) -> Format:
    start = head.removeprefix(_BOM).lstrip()
    if not start or start[:1] in (b"{", b"["):
        return "jsonl"
    if b"\t" in head:
        return "tsv"
    raise UsageError(f"{name} looks like neither JSONL nor TSV; name its format (jsonl, tsv or text)")


def _unpacked_bytes(file: Path) -> int:
    size = file.stat().st_size
    if file.suffix != ".gz" or size < 18:
        return size
    with file.open("rb") as stored:
        stored.seek(-4, io.SEEK_END)
        said = int.from_bytes(stored.read(4), "little")  # modulo 4 GiB, of the last member
    return said if said > size else int(size * _GZIP_GROWTH)
