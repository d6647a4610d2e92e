"""Changing an index in place: add, delete, and merge away what deleted passages left in the statistics."""

from __future__ import annotations

import shutil
import time
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from itertools import chain
from pathlib import Path

import msgspec
import tantivy
from tqdm import tqdm

from inward.errors import IndexUnusable
from inward.retrieval.build import HEAP_BYTES, bytes_needed, bytes_of, commit, disk_guard, new_card, put_in_force, require_space, writer_of
from inward.retrieval.card import CARD, DATA_PREFIX, NEXT_CARD, IndexCard, committed, read_card, settle, write_card, writing
from inward.retrieval.corpus import Corpus, Format, Source
from inward.retrieval.intake import Intake, Tally
from inward.retrieval.segments import (
    CONTENT_MODULUS,
    DOC,
    Stored,
    create,
    entry,
    open_segments,
    panics_are_damage,
    parts,
    rows_of,
    stored_content,
)


class EditReport(msgspec.Struct, frozen=True, kw_only=True):
    """What an edit changed."""

    path: str
    documents: int
    """In the index now."""
    passages: int
    """In the index now."""
    added: int = 0
    updated: int = 0
    """Documents that were there with another content."""
    unchanged: int = 0
    """Documents that were there as they are."""
    deleted: int = 0
    missing: tuple[str, ...] = ()
    """Ids to delete that were not there."""
    bad_lines: int = 0
    empty: int = 0
    repeated: int = 0
    replaced: int = 0
    problems: tuple[str, ...] = ()
    fingerprint: str
    seconds: float
    bytes: int
    """On disk."""


def add(source: Source, path: str | Path, *, format: Format | None = None, strict: bool = False, progress: bool = True) -> EditReport:
    """Add documents, in one commit; a document whose id is there is replaced. They are split as the index was.

    Scores equal those of a full rebuild at once where nothing was replaced, and after `merge` where something was.

    Raises:
        IndexUnusable: there is no index, or another process is writing to it.
        BadInput, BadCorpus, StorageFull: as for `build_index`; the index is as it was.
    """
    corpus, path, began = Corpus(source, format=format), Path(path), time.perf_counter()
    with _editing(path) as edit:
        require_space(path, corpus.name, bytes_needed(corpus))
        with edit.transaction(bytes_needed(corpus)):
            Intake(edit.writer, edit.card.split, edit.tally, strict=strict, present=edit.present).feed(corpus, progress=progress)
        tally, card = edit.tally, edit.card
    return _report(
        path,
        card,
        began,
        added=tally.added,
        updated=tally.updated,
        unchanged=tally.unchanged,
        bad_lines=tally.bad,
        empty=tally.empty,
        repeated=tally.repeated,
        replaced=tally.replaced,
        problems=tuple(tally.problems),
    )


def delete(ids: Iterable[str], path: str | Path) -> EditReport:
    """Delete documents with all their passages, in one commit. Ids that are not there are reported, not refused.

    Raises:
        IndexUnusable: there is no index, or another process is writing to it.
    """
    path, began = Path(path), time.perf_counter()
    deleted, missing = 0, []
    with _editing(path) as edit:
        with edit.transaction():
            for doc in dict.fromkeys(ids):
                stored = edit.present(doc)
                if stored is None:
                    missing.append(doc)
                    continue
                edit.writer.delete_documents_by_term(DOC, doc)
                edit.tally.release(stored)
                deleted += 1
        card = edit.card
    return _report(path, card, began, deleted=deleted, missing=tuple(missing))


def merge(path: str | Path, *, progress: bool = True) -> EditReport:
    """Rewrite the index without deleted passages, beside the old one: scores then equal those of a rebuild.

    Raises:
        IndexUnusable: there is no index, it is damaged, or another process is writing to it.
        StorageFull: there is no room for a second copy.
    """
    path, began = Path(path), time.perf_counter()
    with _editing(path) as edit:
        require_space(path, "the merged passages", bytes_of(path / edit.card.data))
        card = _rewrite(edit, path, progress=progress)
    return _report(path, card, began)


def _rewrite(edit: _Edit, path: Path, *, progress: bool) -> IndexCard:
    old, data = edit.card, path / f"{DATA_PREFIX}{uuid.uuid4().hex[:12]}"
    tally = Tally(documents=old.documents)
    try:
        with disk_guard(path, data, bytes_of(path / old.data)), writer_of(create(data)) as writer:
            rows = chain.from_iterable(parts(edit.index, edit.index.searcher()))
            for row in tqdm(rows, total=old.passages, delay=1, desc="merging", unit="passage", disable=None if progress else True):
                made = entry(row.metadata["doc"], row)
                writer.add_document(made.document)
                tally.passages += 1
                tally.content = (tally.content + made.content) % CONTENT_MODULUS
            if f"{tally.content:032x}" != old.content:
                raise IndexUnusable(f"the index at {str(path)!r} does not hold what its card says; build it again")
            commit(writer)
            card = msgspec.structs.replace(new_card(data, old.split, tally, old.source), built=old.built)
            put_in_force(card, path)
    except BaseException:
        if settle(path).data != data.name:
            shutil.rmtree(data, ignore_errors=True)
        raise
    return card


class _Edit:
    """An index opened for writing. Its folder's lock is held."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.card = settle(path)
        self.index = open_segments(path / self.card.data)
        self.tally = Tally(documents=self.card.documents, passages=self.card.passages, content=int(self.card.content, 16))
        self.writer: tantivy.IndexWriter
        self._searcher = self.index.searcher()

    def present(self, doc: str) -> Stored | None:
        """Say what the index holds of a document."""
        rows = rows_of(self.index, self._searcher, doc)
        return Stored(len(rows), sum(map(stored_content, rows)) % CONTENT_MODULUS) if rows else None

    @contextmanager
    def transaction(self, needed: int | None = None) -> Iterator[None]:
        """Commit what `writer` was given if all goes well; else leave the index as it was, and no file behind."""
        data = self.path / self.card.data
        try:
            with disk_guard(self.path, data, needed), writer_of(self.index) as self.writer:
                yield
                self._commit(data)
        except BaseException:
            with suppress(ValueError):
                self.index.writer(HEAP_BYTES, 1).garbage_collect_files()
            raise

    def _commit(self, data: Path) -> None:
        """Commit inside the data folder; the card that describes the result lies ready before (see `card.py`)."""
        tally = self.tally
        card = msgspec.structs.replace(self.card, documents=tally.documents, passages=tally.passages, content=f"{tally.content:032x}")
        write_card(card, self.path / NEXT_CARD)
        commit(self.writer)
        self.card = msgspec.structs.replace(card, opstamp=committed(data))
        write_card(self.card, self.path / CARD)
        (self.path / NEXT_CARD).unlink()


@contextmanager
def _editing(path: Path) -> Iterator[_Edit]:
    read_card(path)  # says what is missing before a lock file is left there
    with writing(path), panics_are_damage(str(path)):
        yield _Edit(path)


def _report(path: Path, card: IndexCard, began: float, **counts: object) -> EditReport:
    return EditReport(
        path=str(path),
        documents=card.documents,
        passages=card.passages,
        fingerprint=card.fingerprint,
        seconds=time.perf_counter() - began,
        bytes=bytes_of(path / card.data),
        **counts,  # type: ignore[arg-type]
    )
