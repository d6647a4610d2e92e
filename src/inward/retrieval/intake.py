"""Documents on their way into an index: split, compared with what is there, counted."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

import tantivy
from tqdm import tqdm

from inward.errors import BadCorpus
from inward.retrieval.corpus import BadLine, Corpus, Document
from inward.retrieval.segments import CONTENT_MODULUS, DOC, Entry, Row, Stored, entry
from inward.retrieval.split import SplitSpec, split

_NAMED = 100
"""So many problems are named; all are counted."""
_SEEN_CACHE_KIB = 32_768
_MAP_BITS = 27
_MAP_MASK = (1 << _MAP_BITS) - 1
_RECENT = 4096
"""Ids kept in memory before they go to disk together."""


@dataclass(slots=True, kw_only=True)
class Tally:
    """What became of the documents of a corpus, and what the index holds now."""

    documents: int = 0
    """In the index."""
    passages: int = 0
    """In the index."""
    content: int = 0
    """Sum of the hashes of the passages in the index."""
    added: int = 0
    updated: int = 0
    """Documents that were in the index with another content."""
    unchanged: int = 0
    """Documents that were in the index as they are."""
    empty: int = 0
    repeated: int = 0
    """Documents that came again in the same corpus, equal."""
    replaced: int = 0
    """Documents that came again in the same corpus with another content: the last one holds."""
    bad: int = 0
    problems: list[str] = field(default_factory=list)

    def name(self, problem: str) -> None:
        """Keep a problem's description while there are few."""
        if len(self.problems) < _NAMED:
            self.problems.append(problem)

    def hold(self, passages: int, content: int) -> None:
        """Count a document into the index."""
        self.documents += 1
        self.passages += passages
        self.content = (self.content + content) % CONTENT_MODULUS

    def release(self, stored: Stored) -> None:
        """Count a document out of the index."""
        self.documents -= 1
        self.passages -= stored.passages
        self.content = (self.content - stored.content) % CONTENT_MODULUS


class _Seen:
    """Ids met so far in this corpus. They go to disk: memory does not grow with their number.

    A bit map tells new ids, which nearly all are, without a look at the disk. Two ids of one 64-bit hash would
    be taken for one: a chance of one in thirty million for a million documents.
    """

    class Before(NamedTuple):
        stored: Stored
        line: int

    def __init__(self) -> None:
        self._map = bytearray(1 << (_MAP_BITS - 3))
        self._recent: dict[int, _Seen.Before] = {}
        self._db = sqlite3.connect("", isolation_level=None)  # "": a temporary file that SQLite removes
        self._db.execute(f"PRAGMA cache_size=-{_SEEN_CACHE_KIB}")
        self._db.execute("PRAGMA journal_mode=OFF")
        self._db.execute("CREATE TABLE seen (id INTEGER PRIMARY KEY, content BLOB, passages INTEGER, line INTEGER)")
        self._db.execute("BEGIN")

    def meet(self, id: str, stored: Stored, line: int) -> Before | None:
        """Remember the document; return what was remembered under its id."""
        key = hash(id)  # differs from run to run, and is used in this one alone
        byte, bit = (key & _MAP_MASK) >> 3, 1 << (key & 7)
        before = None
        if self._map[byte] & bit:
            before = self._recent.get(key) or self._on_disk(key)
        else:
            self._map[byte] |= bit
        self._recent[key] = self.Before(stored, line)
        if len(self._recent) >= _RECENT:
            rows = [(k, b.stored.content.to_bytes(16, "little"), b.stored.passages, b.line) for k, b in self._recent.items()]
            self._db.executemany("INSERT OR REPLACE INTO seen VALUES (?,?,?,?)", rows)
            self._recent.clear()
        return before

    def _on_disk(self, key: int) -> Before | None:
        found = self._db.execute("SELECT content, passages, line FROM seen WHERE id=?", (key,)).fetchone()
        return self.Before(Stored(found[1], int.from_bytes(found[0], "little")), found[2]) if found else None

    def close(self) -> None:
        self._db.close()


class Intake:
    """Feeds a tantivy writer; nothing is committed here."""

    def __init__(
        self,
        writer: tantivy.IndexWriter,
        spec: SplitSpec,
        tally: Tally,
        *,
        strict: bool,
        present: Callable[[str], Stored | None] | None = None,
    ) -> None:
        """Split as `spec` says and count into `tally`; `present` says what the index already holds of a document."""
        self._writer, self._spec, self._strict, self._present = writer, spec, strict, present
        self.tally = tally

    def feed(self, corpus: Corpus, *, progress: bool) -> None:
        """Take in the whole corpus.

        Raises:
            BadCorpus: in strict mode, at the first bad line or the first id that comes again with another content.
        """
        seen = _Seen()
        unit = "document" if corpus.bytes is None else "B"
        bar = tqdm(
            total=corpus.bytes, unit=unit, unit_scale=True, delay=1, desc=f"indexing {corpus.name}", disable=None if progress else True
        )
        try:
            for row in corpus:
                if isinstance(row, BadLine):
                    self._refuse(row, corpus.name)
                else:
                    self._take(row, seen, corpus.name)
                bar.update(1 if corpus.bytes is None else corpus.bytes_read - bar.n)
        finally:
            bar.close()
            seen.close()

    def _refuse(self, row: BadLine, source: str) -> None:
        self.tally.bad += 1
        self._complain(f"{source}, line {row.line}: {row.reason}")

    def _complain(self, problem: str) -> None:
        if self._strict:
            raise BadCorpus(problem)
        self.tally.name(problem)

    def _take(self, document: Document, seen: _Seen, source: str) -> None:
        tally = self.tally
        try:
            entries = self._entries(document)
        except (TypeError, OverflowError, UnicodeEncodeError) as error:
            self._refuse(BadLine(document.line, f"metadata of {document.id!r} cannot be kept as JSON: {error}"), source)
            return
        if not entries:
            tally.empty += 1
            tally.name(f"{source}{f', line {document.line}' if document.line else ''}: {document.id!r} has no text and is left out")
            return
        stored = Stored(len(entries), sum(e.content for e in entries) % CONTENT_MODULUS)
        before = seen.meet(document.id, stored, document.line)
        held = before.stored if before else self._present(document.id) if self._present else None
        if held == stored:
            tally.repeated += bool(before)
            tally.unchanged += not before
            return
        if before:
            tally.replaced += 1
            self._complain(
                f"{source}, line {document.line}: {document.id!r} stood in line {before.line} with another content; the last one holds"
            )
        if held:
            self._writer.delete_documents_by_term(DOC, document.id)
            tally.release(held)
        tally.updated += bool(held and not before)
        tally.added += not held
        for made in entries:
            self._writer.add_document(made.document)
        tally.hold(*stored)

    def _entries(self, document: Document) -> list[Entry]:
        _, doc, title, text, metadata = document
        entries = []
        for start, end in split(text, self._spec):
            id = f"{doc}#{start}" if self._spec.size else doc
            entries.append(entry(doc, Row(id, title, text[start:end], {**metadata, "doc": doc, "start": start, "end": end})))
        return entries
