"""Drafts of questions without and with passages, and their internal states, on the disk: what probers are made of.

| file | holds |
| --- | --- |
| `run.json` | what was drafted with what; another model, prompt or set of questions in the same folder is refused |
| `drafts.jsonl` | a line a question: its drafts, answers, token signals, and where its states are |
| `states.f32` | pooled states, fp32, a row of `[L, d]` a draft (states of some models exceed what fp16 holds) |

States are on the disk before the line that names them, and the line holds their checksum: a process may die at any moment, and no row
is lost, doubled, or another question's.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, BinaryIO, Literal, TypeAlias
from zlib import crc32

import msgspec
import numpy as np
from numpy.typing import NDArray

from inward.errors import BadInput, InwardError, UsageError
from inward.evals.folder import RunFile, RunFolder, numbered, read_run
from inward.evals.questions import text_hash
from inward.evals.record import Question
from inward.types import F32

Mode: TypeAlias = Literal["without", "with"]
DRAFTS, STATES = "drafts.jsonl", "states.f32"
PROMPT, LAST = "prompt", "last"
"""Names of rows: states of the prompt's last token, before anything is written; `without:last`, those of a draft's last token."""


class DraftRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A draft, without its states."""

    mode: Mode
    text: str
    """Everything that was kept, rationale and answer."""
    short: str
    """The answer alone."""
    finish: str
    tokens: int
    """Whose states were pooled; 0 leaves no states."""
    signals: dict[str, float | None] = {}
    """Token signal -> value; None where there is no token."""
    query: str = ""
    """That found its passages."""
    passages: tuple[str, ...] = ()
    """Ids, best first."""
    flags: tuple[str, ...] = ()


class QuestionDrafts(msgspec.Struct, frozen=True, kw_only=True):
    """The drafts of a question: a line of the file."""

    id: str
    """Data set and id, so that equal ids of two sets stay apart."""
    question: Question
    drafts: tuple[DraftRecord, ...] = ()
    rows: tuple[str, ...] = ()
    """What the rows of states are of: a mode, or "prompt"."""
    place: int = 0
    """Of the first row."""
    check: int = 0
    """CRC-32 of the rows' bytes."""
    seconds: float = 0.0
    error: str | None = None
    """What went wrong; there are no drafts then."""


class _Where(msgspec.Struct, frozen=True):
    id: str
    rows: tuple[str, ...] = ()
    place: int = 0
    check: int = 0


class DraftFolder(RunFolder):
    """A folder of drafts, locked while it is open. Use as a context manager."""

    lines = DRAFTS

    def __init__(self, path: str | Path, shape: tuple[int, int]) -> None:
        """Name the folder, and the shape `[L, d]` of a row of states."""
        super().__init__(path)
        self._row_bytes = 4 * shape[0] * shape[1]
        self._states: BinaryIO | None = None

    def __exit__(self, *what: Any) -> None:
        """Close the files and let go of the lock."""
        if self._states is not None:
            self._states.close()
            self._states = None
        super().__exit__(*what)

    def done(self) -> set[str]:
        """Return the ids that are done; whose states are not there as they were written is drafted again.

        Raises:
            InwardError: a line in the middle is damaged, or an id is there twice.
        """
        ids = RunFolder.done(self)
        path = self.path / STATES
        path.touch()
        damaged, end = set(), 0
        with path.open("r+b") as file:
            for line in numbered(self.path / self.lines, _Where) if ids else ():
                if not _is_whole(file, line.value, self._row_bytes):
                    damaged.add(line.value.id)
                else:
                    end = max(end, (line.value.place + len(line.value.rows)) * self._row_bytes)
            file.truncate(end)
        if damaged:
            self.drop(damaged)
        self._states = path.open("ab")
        return ids - damaged

    def add(self, made: QuestionDrafts, states: F32) -> None:
        """Put the drafts of a question on the disk, states `[R, L, d]` first."""
        assert self._states is not None
        raw = np.ascontiguousarray(states, dtype="<f4").tobytes()
        place = self._states.tell() // self._row_bytes
        self._states.write(raw)
        self._states.flush()
        os.fsync(self._states.fileno())
        self.append(msgspec.structs.replace(made, place=place, check=crc32(raw)))


def _is_whole(file: BinaryIO, where: _Where, row_bytes: int) -> bool:
    file.seek(where.place * row_bytes)
    raw = file.read(len(where.rows) * row_bytes)
    return len(raw) == len(where.rows) * row_bytes and crc32(raw) == where.check


@dataclass(frozen=True, slots=True)
class Row:
    """A draft whose states are there."""

    question: Question
    draft: DraftRecord
    place: int
    """Of its states."""
    key: str
    """Of the question's text: equal questions of two data sets share it."""

    @property
    def dataset(self) -> str:
        """Name of its data set."""
        return self.question.dataset

    @property
    def id(self) -> str:
        """Of the question: data set and id."""
        return f"{self.question.dataset}/{self.question.id}"


@dataclass(frozen=True)
class Drafts:
    """All drafts of a folder."""

    path: Path
    run: RunFile
    questions: tuple[QuestionDrafts, ...]
    states: NDArray[np.float32]
    """`[N, L, d]`, read from the disk as they are used."""

    @cached_property
    def rows(self) -> tuple[Row, ...]:
        """Drafts that have states: those of at least one token."""
        found = []
        for made in self.questions:
            drafts: dict[str, DraftRecord] = {draft.mode: draft for draft in made.drafts}
            for offset, name in enumerate(made.rows):
                draft = drafts.get(name)
                if draft is not None and draft.tokens:
                    found.append(Row(made.question, draft, made.place + offset, text_hash(made.question.question)))
        return tuple(found)

    @property
    def layers(self) -> tuple[int, ...]:
        """0-based blocks whose states are here."""
        return tuple(self.run.identity["layers"])

    def of(self, rows: Sequence[Row], layers: Sequence[int] | None = None) -> F32:
        """Return the states `[len(rows), L, d]` of rows.

        Raises:
            UsageError: a layer was not kept.
        """
        places = [row.place for row in rows]
        if layers is None:
            return np.asarray(self.states[places])
        if beyond := [layer for layer in layers if layer not in self.layers]:
            raise UsageError(f"these drafts hold the states of layers {list(self.layers)}, not of {beyond}")
        taken = [self.layers.index(layer) for layer in layers]
        return np.asarray(self.states[np.array(places)[:, None], np.array(taken)[None]])

    def others(self, name: str) -> dict[str, int]:
        """Return question id -> place of its states of another name ("prompt", "without:last", "with:last"), where they were kept."""
        return {
            f"{made.question.dataset}/{made.question.id}": made.place + made.rows.index(name)
            for made in self.questions
            if name in made.rows
        }

    @property
    def failed(self) -> tuple[QuestionDrafts, ...]:
        """Questions that ended in an error."""
        return tuple(made for made in self.questions if made.error is not None)


def read_drafts(path: str | Path) -> Drafts:
    """Open a folder of drafts.

    Raises:
        UsageError: it holds none.
        InwardError: a line is damaged, or states do not match their checksum.
        BadInput: no draft of it has a token.
    """
    folder = Path(path)
    run = read_run(folder)
    if run is None or not (folder / DRAFTS).exists():
        raise UsageError(f"{str(path)!r} holds no drafts: make them with `inward prober train`")
    shape = (len(run.identity["layers"]), int(run.identity["width"]))
    questions = tuple(line.value for line in numbered(folder / DRAFTS, QuestionDrafts))
    row_bytes = 4 * shape[0] * shape[1]
    with (folder / STATES).open("rb") as file:
        for made in questions:
            if not _is_whole(file, _Where(made.id, made.rows, made.place, made.check), row_bytes):
                raise InwardError(f"the states of {made.id!r} in {str(path)!r} are not those that were written; run the same command again")
    raw = np.memmap(folder / STATES, dtype="<f4", mode="r") if (folder / STATES).stat().st_size else np.empty(0, "<f4")
    found = Drafts(folder, run, questions, raw[: len(raw) // (shape[0] * shape[1]) * shape[0] * shape[1]].reshape(-1, *shape))
    if not found.rows and found.failed:
        first = found.failed[0]
        raise BadInput(f"all {len(questions)} questions in {str(path)!r} failed, such as {first.id!r} ({first.error}); draft them again")
    if not found.rows:
        raise BadInput(f"no draft in {str(path)!r} has a token to read states of")
    return found


def signals_of(values: Mapping[str, float]) -> dict[str, float | None]:
    """Return numbers as JSON knows them."""
    return {name: float(value) if np.isfinite(value) else None for name, value in values.items()}
