"""Building an index: beside the old one, in a stream, and in force only when it is whole."""

from __future__ import annotations

import errno
import shutil
import sqlite3
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import tantivy

from inward import __version__
from inward.errors import BadInput, InwardError, StorageFull, UsageError
from inward.retrieval.analysis import AnalyserSpec
from inward.retrieval.card import CARD, DATA_PREFIX, LOCK, NEXT_CARD, IndexCard, committed, sweep, write_card, writing
from inward.retrieval.corpus import Corpus, Format, Source
from inward.retrieval.intake import Intake, Tally
from inward.retrieval.segments import create
from inward.retrieval.split import SplitSpec
from inward.whole import is_left_over

HEAP_BYTES = 256_000_000
"""What tantivy may gather in memory before it writes a segment."""
_DISK_PER_TEXT = 1.2
"""Bytes on disk while building, segments being merged included, per byte of text; benchmarks/index.py measures it."""


_NEARLY_FULL = 16_000_000
"""tantivy does not say why its writing thread died; with less free than this, the disk is why."""


class BuildReport(msgspec.Struct, frozen=True, kw_only=True):
    """What a build read and made."""

    path: str
    source: str
    documents: int
    """In the index."""
    passages: int
    """In the index."""
    bad_lines: int
    empty: int
    """Documents without text, dropped."""
    repeated: int
    """Documents that came again, equal."""
    replaced: int
    """Documents that came again with another content: the last one is in the index."""
    problems: tuple[str, ...]
    """The first hundred bad, replaced or empty ones, each with its number."""
    fingerprint: str
    seconds: float
    bytes: int
    """On disk."""
    ignored: int = 0
    """Files of the folder that were not read: neither .txt nor .md, or hidden."""


def build_index(
    source: Source,
    path: str | Path,
    *,
    size: int = 100,
    overlap: int = 0,
    format: Format | None = None,
    strict: bool = False,
    progress: bool = True,
) -> BuildReport:
    """Build a lexical index from a corpus.

    An index that is already at `path` stays in force until the new one is whole, and is replaced in one step.

    Args:
        source: a file, a folder, `"-"` for standard input, or mappings with `id`, `text` and more; see `inward.retrieval.corpus`.
        path: folder of the index.
        size: words of a passage, about; 0 keeps documents whole, and their ids.
        overlap: words that a passage repeats of the one before it, about.
        format: of the source, where its name does not say.
        strict: fail on the first bad line, and on an id that comes twice with different contents.
        progress: show a bar on standard error if that is a terminal.

    Raises:
        UsageError: an argument means nothing, or `path` holds something else.
        BadInput: the corpus is not UTF-8, damaged, or without a single passage.
        BadCorpus: in strict mode, a bad line.
        StorageFull: the disk has no room.
        IndexUnusable: another process is writing there.
    """
    spec = SplitSpec(size=size, overlap=overlap)
    corpus = Corpus(source, format=format)
    path = Path(path)
    began = time.perf_counter()
    existed = path.exists()
    _check_target(path)
    try:
        path.mkdir(parents=True, exist_ok=True)
        with writing(path):
            sweep(path, keep=_folder_in_force(path))
            require_space(path, corpus.name, bytes_needed(corpus))
            card, tally = _build(corpus, path, spec, strict=strict, progress=progress)
    except BaseException:
        if not existed:
            _remove_if_unused(path)
        raise
    return BuildReport(
        path=str(path),
        source=corpus.name,
        documents=card.documents,
        passages=card.passages,
        bad_lines=tally.bad,
        empty=tally.empty,
        repeated=tally.repeated,
        replaced=tally.replaced,
        problems=tuple(tally.problems),
        fingerprint=card.fingerprint,
        seconds=time.perf_counter() - began,
        bytes=bytes_of(path / card.data),
        ignored=corpus.ignored,
    )


def _build(corpus: Corpus, path: Path, spec: SplitSpec, *, strict: bool, progress: bool) -> tuple[IndexCard, Tally]:
    data = path / f"{DATA_PREFIX}{uuid.uuid4().hex[:12]}"
    tally = Tally()
    try:
        with disk_guard(path, data, bytes_needed(corpus)), writer_of(create(data)) as writer:
            Intake(writer, spec, tally, strict=strict).feed(corpus, progress=progress)
            if not tally.passages:
                first = f"; {tally.problems[0]}" if tally.problems else ""
                raise BadInput(f"{corpus.name} holds no passage ({tally.bad} bad lines, {tally.empty} empty documents){first}")
            commit(writer)
            card = new_card(data, spec, tally, corpus.name)
            put_in_force(card, path)
    except BaseException:
        if _folder_in_force(path) != data.name:
            shutil.rmtree(data, ignore_errors=True)
        raise
    return card, tally


def new_card(data: Path, spec: SplitSpec, tally: Tally, source: str) -> IndexCard:
    """Describe a data folder that has just been committed."""
    analyser = AnalyserSpec()
    return IndexCard(
        data=data.name,
        opstamp=committed(data),
        analyser=analyser,
        analyser_fingerprint=analyser.fingerprint,
        split=spec,
        documents=tally.documents,
        passages=tally.passages,
        content=f"{tally.content:032x}",
        source=source,
        tantivy=tantivy.__version__,
        inward=__version__,
        built=datetime.now(UTC).isoformat(timespec="seconds"),
    )


def put_in_force(card: IndexCard, path: Path) -> None:
    """Replace the card, which replaces the index, and remove what it replaced."""
    write_card(card, path / CARD)
    (path / NEXT_CARD).unlink(missing_ok=True)
    sweep(path, keep=card.data)


@contextmanager
def writer_of(index: tantivy.Index) -> Iterator[tantivy.IndexWriter]:
    """Open an index for writing, with one thread: the same corpus then makes the same segments.

    If the work fails, the thread is stopped and the lock released before anyone clears away its files.
    """
    writer = index.writer(HEAP_BYTES, 1)
    try:
        yield writer
    except BaseException:
        for give_up in (writer.rollback, writer.wait_merging_threads):
            with suppress(ValueError, RuntimeError):  # the writer may be what broke, or be used up
                give_up()
        raise


def commit(writer: tantivy.IndexWriter) -> None:
    """Make what was written the index's state, in one step, and let running merges end."""
    writer.commit()
    writer.wait_merging_threads()


def _folder_in_force(path: Path) -> str:
    """Name the data folder that must not be touched, whatever else is wrong with the index."""
    try:
        return str(msgspec.json.decode((path / CARD).read_bytes())["data"])
    except (OSError, msgspec.DecodeError, KeyError, TypeError):
        return ""


def _check_target(path: Path) -> None:
    if not path.exists():
        return
    if not path.is_dir():
        raise UsageError(f"an index is a folder, {str(path)!r} is a file")
    foreign = sorted(
        p.name
        for p in path.iterdir()
        if p.name not in (LOCK, CARD, NEXT_CARD)
        and not p.name.startswith(DATA_PREFIX)
        and not any(is_left_over(p, name) for name in (CARD, NEXT_CARD))
    )
    if foreign:
        raise UsageError(f"folder {str(path)!r} holds something else ({foreign[0]!r}); name an empty or a new one")


def _remove_if_unused(path: Path) -> None:
    if path.is_dir() and {p.name for p in path.iterdir()} <= {LOCK}:
        shutil.rmtree(path, ignore_errors=True)


def bytes_of(data: Path) -> int:
    """Return the size of a data folder; 0 if there is none."""
    return sum(file.stat().st_size for file in data.iterdir()) if data.exists() else 0


def bytes_needed(corpus: Corpus) -> int | None:
    """Estimate what building an index of the corpus takes on disk; None where its size is not known."""
    return None if corpus.text_bytes is None else int(corpus.text_bytes * _DISK_PER_TEXT)


def free_space(path: Path) -> int:
    """Return the bytes free on the disk that `path` is, or will be, on."""
    while not path.exists() and path != path.parent:
        path = path.parent
    return shutil.disk_usage(path).free


def require_space(path: Path, name: str, needed: int | None) -> None:
    """Refuse to begin what the disk cannot hold.

    Raises:
        StorageFull: naming what is needed and what is free.
    """
    free = free_space(path)
    if needed is not None and needed > free:
        raise StorageFull(
            f"an index of {name} needs about {in_words(needed)}, the disk of {str(path)!r} has {in_words(free)} free; "
            "make room or choose another disk"
        )


@contextmanager
def disk_guard(path: Path, data: Path, needed: int | None = None) -> Iterator[None]:
    """Turn every way in which a full disk shows into `StorageFull`; to be left before anything is cleared away."""
    before = bytes_of(data)
    try:
        yield
    except InwardError:
        raise
    except (OSError, ValueError, RuntimeError, sqlite3.OperationalError) as error:
        free = shutil.disk_usage(path).free
        if not _says_full(error, free):
            raise
        written = f"{in_words(max(bytes_of(data) - before, 0))} written" + (f" of about {in_words(needed)}" if needed else "")
        raise StorageFull(
            f"the disk of {str(path)!r} is full ({written}, {in_words(free)} free); nothing has changed; make room and start again"
        ) from error


def _says_full(error: Exception, free: int) -> bool:
    if isinstance(error, OSError):
        return error.errno in (errno.ENOSPC, errno.EDQUOT)
    text = str(error)
    said = "No space left" in text or "os error 28" in text or "disk is full" in text
    return said or ("writer was killed" in text and free < _NEARLY_FULL)


def in_words(count: float) -> str:
    """Write a number of bytes for people: `1.2 GB`."""
    for unit in ("bytes", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "bytes" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"
