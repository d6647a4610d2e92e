"""The folder of a run: what is written when, so that a process may die at any moment and nothing is lost, doubled or done again.

| file | written |
| --- | --- |
| `run.json` | configuration and manifest, before the first question and again at the end, whole |
| `outcomes.jsonl` | a line as each question is done, on the disk at once; at the end, whole, in the order of the questions |
| `run.trec` | at the end, whole: the passages that each question's first search found |

A last line without its line break is what a process left that died while writing: it is cut off, and its question is asked again.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from math import isfinite, ulp
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Generic, NamedTuple, Self, TypeVar
from urllib.parse import quote

import msgspec

from inward.errors import InwardError, UsageError
from inward.evals.record import Record
from inward.whole import clear_left_overs, whole_file, write_whole

T = TypeVar("T")

RUN, OUTCOMES, TREC, LOCK = "run.json", "outcomes.jsonl", "run.trec", ".lock"
FORMAT = 1
_ANOTHER = "Choose another folder, or delete this whole folder"
_STEP = 1e-6
"""Smallest difference of two scores in a TREC file: tools that sort by score alone must find our order."""


class RunFile(msgspec.Struct, frozen=True, kw_only=True):
    """What `run.json` holds."""

    format: int
    identity: dict[str, Any]
    """What makes it this run and no other: strategy, options, data, model, index, seed."""
    manifest: dict[str, Any]
    """What it was made with: versions, texts of prompts, fingerprints, threads, times."""
    finished: bool = False


class _Done(msgspec.Struct, frozen=True):
    """As much of a record as a resumed run needs."""

    id: str
    error: str | None = None


class RunFolder:
    """A run's folder, locked while it is open. Use as a context manager."""

    lines = OUTCOMES
    """Name of the file that gets a line a question."""

    def __init__(self, path: str | Path) -> None:
        """Name the folder; nothing is made yet."""
        self.path = Path(path)
        self.failed: list[str] = []
        """Ids whose record holds an error."""
        self._file: BinaryIO | None = None
        self._lock: Any = None

    def __enter__(self) -> Self:
        """Make the folder and lock it.

        Raises:
            UsageError: another process has it open.
        """
        from filelock import FileLock, Timeout

        self.path.mkdir(parents=True, exist_ok=True)
        self._lock = FileLock(self.path / LOCK)
        try:
            self._lock.acquire(timeout=0)
        except Timeout as error:
            raise UsageError(f"another process is running in {str(self.path)!r}; wait for it, or choose another folder") from error
        clear_left_overs(self.path, RUN, self.lines, TREC)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Close the files and let go of the lock."""
        if self._file is not None:
            self._file.close()
            self._file = None
        self._lock.release()

    def begin(self, run: RunFile) -> None:
        """Say what is run here, or check that it is the same.

        Raises:
            UsageError: the folder holds another run; the message names what differs.
        """
        old = read_run(self.path)
        if old is not None:
            check_same(old, run.identity, self.path)
        elif (lines := self.path / self.lines).exists() and lines.stat().st_size:
            raise UsageError(f"{str(lines)!r} was written by a run that nothing is known of: there is no {RUN}. {_ANOTHER}")
        write_whole(self.path / RUN, msgspec.json.format(msgspec.json.encode(plain(run)), indent=1))

    def done(self) -> set[str]:
        """Return the ids that are done, having cut off what a dying process left half written.

        Raises:
            InwardError: a line in the middle is damaged, or an id is there twice.
        """
        path = self.path / self.lines
        self.failed = []
        if not path.exists():
            return set()
        cut_torn_line(path)
        done = set()
        for line in numbered(path, _Done):
            done.add(line.value.id)
            if line.value.error is not None:
                self.failed.append(line.value.id)
        return done

    def drop_failed(self) -> None:
        """Take the records of failed questions out, so that they are asked again."""
        self.drop(set(self.failed))
        self.failed = []

    def drop(self, ids: set[str]) -> None:
        """Take the records of questions out."""
        path = self.path / self.lines
        with whole_file(path) as file:
            file.writelines(line.raw for line in numbered(path, _Done) if line.value.id not in ids)

    def append(self, record: msgspec.Struct) -> None:
        """Put a record on the disk."""
        if self._file is None:
            self._file = (self.path / self.lines).open("ab")
        self._file.write(msgspec.json.encode(record) + b"\n")
        self._file.flush()
        os.fsync(self._file.fileno())

    def finish(self, ids: Sequence[str], run: RunFile, tag: str) -> None:
        """Bring the outcomes into the order of the questions, write the TREC file, and mark the run as finished.

        Raises:
            InwardError: a question is missing.
        """
        decoder = msgspec.json.Decoder(Record)
        with whole_file(self.path / TREC) as trec:
            for line in self.put_in_order(ids):
                trec.write("".join(trec_lines(decoder.decode(line), tag)).encode())
        write_whole(self.path / RUN, msgspec.json.format(msgspec.json.encode(plain(run)), indent=1))

    def put_in_order(self, ids: Sequence[str]) -> Iterator[bytes]:
        """Bring the lines into the order of the questions, and yield them.

        Raises:
            InwardError: a question is missing.
        """
        if self._file is not None:
            self._file.close()
            self._file = None
        path = self.path / self.lines
        places = {line.value.id: line.start for line in numbered(path, _Done)} if path.exists() else {}
        if missing := [id for id in ids if id not in places]:
            raise InwardError(f"{str(path)!r} lacks {len(missing)} questions, such as {missing[0]!r}; run again")
        with path.open("rb") as source, whole_file(path) as target:
            for id in ids:
                source.seek(places[id])
                line = source.readline()
                target.write(line)
                yield line


def read_run(path: str | Path) -> RunFile | None:
    """Read what a folder says of its run; None where there is none.

    Raises:
        UsageError: it was written by another version, or is damaged.
    """
    file = Path(path) / RUN
    if not file.exists():
        return None
    try:
        run = msgspec.json.decode(file.read_bytes(), type=RunFile)
    except msgspec.DecodeError as error:
        raise UsageError(f"{str(file)!r} is damaged ({error}). {_ANOTHER}") from error
    if run.format != FORMAT:
        raise UsageError(f"{str(file)!r} is of format {run.format}, this version reads {FORMAT}; choose another folder")
    return run


def read_records(path: str | Path) -> Iterator[Record]:
    """Yield the records of a run's folder, one at a time; a last line that was cut short is left out.

    Raises:
        UsageError: there are none.
        InwardError: a line is damaged, or a question is there twice.
    """
    file = Path(path) / OUTCOMES
    if not file.exists():
        raise UsageError(f"{str(path)!r} holds no {OUTCOMES}: it is no run, or none of its questions is done")
    for line in numbered(file, Record):
        record = line.value
        if lost := [hit.id for search in record.searches for hit in search.hits if hit.id not in record.passages]:
            raise InwardError(f"{str(file)!r}: question {record.id!r} is damaged: passage {lost[0]!r} was found and is not there")
        yield record


def check_same(old: RunFile, identity: dict[str, Any], path: Path) -> None:
    """Refuse to go on with another run in the same folder.

    Raises:
        UsageError: something of what makes a run differs; the message names it with both values.
    """
    was, now = _flat(old.identity), _flat(plain({name: value for name, value in identity.items() if name in old.identity}))
    known = {name: value for name, value in was.items() if name.partition(".")[0] in identity}
    names = [*known, *(name for name in now if name not in known)]
    pairs = [(name, known.get(name), now.get(name)) for name in names]
    differs = [f"{name} was {_short(before)}, is now {_short(after)}" for name, before, after in pairs if before != after]
    if differs:
        raise UsageError(f"{str(path)!r} holds another run: {'; '.join(differs)}. Choose another folder, or give this one another label")


def _flat(values: Mapping[str, Any], within: str = "") -> dict[str, Any]:
    """Return nested values under dotted names, so that only what differs is named."""
    found: dict[str, Any] = {}
    for name, value in values.items():
        found |= _flat(value, f"{within}{name}.") if isinstance(value, Mapping) and value else {f"{within}{name}": value}
    return found


def trec_lines(record: Record, tag: str) -> Iterator[str]:
    """Yield the lines `qid Q0 docid rank score tag` of what the first search found.

    Spaces in ids are percent-encoded. A score that does not fall is lowered by the least that shows; one that was not finite follows
    the one before it.
    """
    if not record.searches:
        return
    last: float | None = None
    for rank, hit in enumerate(record.searches[0].hits, 1):
        below = None if last is None else last - max(_STEP, 2 * ulp(last))
        own = None if hit.score is None else round(hit.score, 6)
        last = min(own, below) if own is not None and below is not None else own if own is not None else below if below is not None else 0.0
        yield f"{_plain(record.id)} Q0 {_plain(hit.id)} {rank} {last:.6f} {_plain(tag)}\n"


def _plain(text: str) -> str:
    return "".join(quote(c) if c.isspace() or c == "%" else c for c in text) or "-"


def plain(value: Any) -> Any:
    """Return what JSON makes of a value, with a name for what it has none: so that what was written and what is now compare."""
    if isinstance(value, float) and not isfinite(value):
        return str(value)
    if isinstance(value, Mapping):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(each) for each in value]
    if isinstance(value, str | int | float | bool) or value is None:
        return value
    if isinstance(value, msgspec.Struct):
        return {name: plain(getattr(value, name)) for name in value.__struct_fields__}
    return str(value)


def _short(value: object) -> str:
    text = msgspec.json.encode(value).decode()
    return text if len(text) <= 80 else text[:77] + "..."


class Line(NamedTuple, Generic[T]):
    """A line of a file of records."""

    start: int
    """Of the line, in bytes."""
    raw: bytes
    """With its line break."""
    value: T


def numbered(path: Path, kind: type[T]) -> Iterator[Line[T]]:
    """Yield the whole lines of a file of outcomes; blank ones do not count.

    Raises:
        InwardError: a line is damaged, or a question is there twice.
    """
    decoder = msgspec.json.Decoder(kind)
    seen: dict[str, int] = {}
    start = 0
    with path.open("rb") as file:
        for number, raw in enumerate(file, 1):
            if not raw.endswith(b"\n"):
                return
            if raw.strip():
                try:
                    value: Any = decoder.decode(raw)
                except msgspec.DecodeError as error:
                    raise InwardError(f"{str(path)!r}, line {number} is damaged ({error}); delete the line and run again") from error
                if value.id in seen:
                    raise InwardError(f"{str(path)!r}, line {number}: question {value.id!r} is there already, in line {seen[value.id]}")
                seen[value.id] = number
                yield Line(start, raw, value)
            start += len(raw)


def cut_torn_line(path: Path) -> None:
    """Cut off what follows the last line break."""
    with path.open("r+b") as file:
        end = file.seek(0, os.SEEK_END)
        keep, step = end, 1 << 16
        while keep > 0:
            start = max(0, keep - step)
            file.seek(start)
            found = file.read(keep - start).rfind(b"\n")
            if found >= 0:
                keep = start + found + 1
                break
            keep = start
        if keep < end:
            file.truncate(keep)
            file.flush()
            os.fsync(file.fileno())
