"""The tantivy index inside a data folder: its fields, and how passages become documents of it."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from hashlib import blake2b
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple
from zlib import crc32

import msgspec
import tantivy

from inward.errors import IndexUnusable, UsageError
from inward.retrieval.analysis import char_analyser, prepare, word_analyser
from inward.types import Passage

WORDS, CHARS, DOC, FACET, PART, ROW = "words", "chars", "doc", "facet", "part", "row"
PARTS = 1024
"""Documents fall into this many parts by hash, so that all passages can be read with little memory."""
CONTENT_MODULUS = 1 << 128
_MAX_FACET_BYTES = 200
CHECKED = ("del", "fast", "fieldnorm", "idx", "pos", "store", "term")
"""Kinds of files that end in a footer with their checksum."""
_TAIL, _MAGIC = struct.Struct("<II"), 1337
_SPAN = frozenset({"doc", "start", "end"})


class Row(msgspec.Struct, array_like=True):
    """A passage as stored."""

    id: str
    title: str
    text: str
    metadata: dict[str, Any]

    def passage(self, score: float = 0.0) -> Passage:
        """Return it as callers see it."""
        return Passage(id=self.id, title=self.title, text=self.text, score=score, metadata=self.metadata)


class Stored(NamedTuple):
    """What an index holds of one document."""

    passages: int
    content: int
    """Sum of the hashes of its passages."""


_row_decoder = msgspec.json.Decoder(Row)
_encode = msgspec.json.Encoder().encode


def create(folder: Path) -> tantivy.Index:
    """Make an empty index in an empty folder."""
    folder.mkdir()
    builder = tantivy.SchemaBuilder()
    builder.add_text_field(WORDS, tokenizer_name="inward_words", index_option="freq")
    builder.add_text_field(CHARS, tokenizer_name="inward_chars", index_option="freq")
    builder.add_text_field(DOC, tokenizer_name="raw", index_option="basic")
    builder.add_text_field(FACET, tokenizer_name="raw", index_option="basic")
    builder.add_unsigned_field(PART, indexed=True)
    builder.add_bytes_field(ROW, stored=True)
    return _configure(tantivy.Index(builder.build(), path=str(folder)))


def open_segments(folder: Path, name: str = "") -> tantivy.Index:
    """Open an index; its files are memory-mapped, none is read.

    Raises:
        IndexUnusable: a file is missing or damaged.
    """
    try:
        with panics_are_damage(name or folder.name):
            return _configure(tantivy.Index.open(str(folder)))
    except (ValueError, OSError) as error:
        raise IndexUnusable(
            f"the index data in {(name or folder.name)!r} cannot be opened ({first_line(error)}); build the index again"
        ) from error


@contextmanager
def panics_are_damage(name: str) -> Iterator[None]:
    """Make what tantivy panics at, reading damaged files, an error of ours.

    Raises:
        IndexUnusable: it panicked.
    """
    try:
        yield
    except BaseException as error:
        if type(error).__name__ == "PanicException":  # of no module that can be imported, and no Exception
            raise IndexUnusable(f"the index data in {name!r} is damaged ({error}); build the index again") from None
        raise


def damaged_files(folder: Path, names: Iterable[str]) -> list[str]:
    """Return which of these files are not as they were written, by the checksum that tantivy puts at the end of each."""
    return [name for name in names if (folder / name).exists() and not _is_as_written(folder / name)]


def _is_as_written(file: Path) -> bool:
    """Compare a file with its footer: JSON with a CRC-32 of what is before it, its length, and a magic number."""
    size = file.stat().st_size
    with file.open("rb") as stored:
        stored.seek(max(0, size - _TAIL.size))
        tail = stored.read()
        length, magic = _TAIL.unpack(tail) if len(tail) == _TAIL.size else (0, 0)
        end = size - _TAIL.size - length
        if magic != _MAGIC or end < 0:
            return False
        stored.seek(end)
        try:
            said = msgspec.json.decode(stored.read(length), type=_Footer)
        except msgspec.DecodeError:
            return False
        stored.seek(0)
        found, left = 0, end
        while left and (part := stored.read(min(left, 1 << 20))):
            found, left = crc32(part, found), left - len(part)
    return found == said.crc


class _Version(msgspec.Struct, forbid_unknown_fields=True):
    major: int
    minor: int
    patch: int
    index_format_version: int


class _Footer(msgspec.Struct, forbid_unknown_fields=True):
    """As tantivy writes it; it opens no index where a name in it is another."""

    version: _Version
    crc: int


def open_read_only(folder: Path) -> tantivy.Index:
    """Open an index for searching, from a place that may not be written too.

    tantivy makes a lock file to open an index. Where it cannot, it is shown the same files in a folder of links,
    which goes at once: by then the files are mapped.

    Raises:
        IndexUnusable: a file is missing or damaged, or there is no room for the links.
    """
    if os.access(folder, os.W_OK):
        return open_segments(folder)
    try:
        with TemporaryDirectory(prefix="inward-index-") as links:
            for file in folder.iterdir():
                if file.suffix != ".lock":
                    (Path(links) / file.name).symlink_to(file.resolve())
            return open_segments(Path(links), folder.name)
    except OSError as error:
        raise IndexUnusable(
            f"the index in {str(folder.parent)!r} cannot be written, so it is opened by links in the folder for temporary files, "
            f"and that failed ({error}); set TMPDIR to a folder that takes links, or copy the index to one that can be written"
        ) from error


def first_line(error: Exception) -> str:
    """Return what an error says, without the backtrace that tantivy may add, and not at length."""
    lines = str(error).splitlines() or [type(error).__name__]
    return lines[0][:200]


def _configure(index: tantivy.Index) -> tantivy.Index:
    index.config_reader("manual", 0)  # no thread that watches the files: the retriever looks before it searches
    index.register_tokenizer("inward_words", word_analyser())
    index.register_tokenizer("inward_chars", char_analyser())
    return index


class Entry(NamedTuple):
    """A passage made ready for the index."""

    document: tantivy.Document
    content: int
    """128-bit hash of all that is stored of it."""


def entry(doc: str, row: Row) -> Entry:
    """Make a passage of document `doc` ready for the index."""
    stored = _encode(row)
    content = int.from_bytes(blake2b(stored, digest_size=16).digest(), "little")
    words, chars = prepare(f"{row.title} {row.text}")
    document = tantivy.Document()
    document.add_text(WORDS, words)
    if chars:
        document.add_text(CHARS, chars)
    document.add_text(DOC, doc)
    for key, value in row.metadata.items():
        if key not in _SPAN:
            for one in value if isinstance(value, list | tuple) else (value,):
                if one is None or isinstance(one, str | int | float):
                    document.add_text(FACET, facet(key, one))
    document.add_unsigned(PART, crc32(doc.encode()) % PARTS)
    document.add_bytes(ROW, stored)
    return Entry(document, content)


def facet(key: str, value: object) -> str:
    """Return the term under which a metadata value is found: types count, `7` is not `"7"`, but `7.0` is `7`.

    Raises:
        UsageError: the value is no text, number, truth value or null.
    """
    if value is not None and not isinstance(value, str | int | float):
        raise UsageError(f"where[{key!r}] must be text, a number, true, false, null or a list of these, got {value!r}")
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, str):
        value = value.encode("utf-8", "replace").decode()
    term = f"{key}={_encode(value).decode()}"
    if len(term) * 4 > _MAX_FACET_BYTES and len(term.encode()) > _MAX_FACET_BYTES:
        return f"{key[:20]}#{blake2b(term.encode(), digest_size=16).hexdigest()}"
    return term


def load_row(searcher: tantivy.Searcher, address: tantivy.DocAddress) -> Row:
    """Read a stored passage."""
    row: Row = _row_decoder.decode(searcher.doc(address).get_first(ROW))
    return row


def rows_of(index: tantivy.Index, searcher: tantivy.Searcher, doc: str) -> list[Row]:
    """Return the passages of a document, in the order of their ids."""
    return _rows_with(index, searcher, DOC, doc)


def parts(index: tantivy.Index, searcher: tantivy.Searcher) -> Iterator[list[Row]]:
    """Yield all passages in parts, the passages of a document in one; the order depends on the passages alone."""
    for part in range(PARTS):
        yield _rows_with(index, searcher, PART, part)


def _rows_with(index: tantivy.Index, searcher: tantivy.Searcher, field: str, value: str | int) -> list[Row]:
    count = searcher.doc_freq(field, value)  # deleted ones included
    if not count:
        return []
    found = searcher.search(tantivy.Query.term_query(index.schema, field, value, "basic"), count, count=False).hits
    return sorted((load_row(searcher, address) for _, address in found), key=lambda row: row.id)


def stored_content(row: Row) -> int:
    """Return the hash of a passage as `entry` computes it."""
    return int.from_bytes(blake2b(_encode(row), digest_size=16).digest(), "little")
