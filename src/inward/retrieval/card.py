"""What an index says of itself, and how its folder changes from one whole state to the next.

```
my-index/
  index.json          the card; names the data folder in force: replacing it is the commit of a build
  index.next.json     the card that takes over once the running edit commits
  data-3f9a…/         a tantivy index
  .lock               held by the one process that writes
```
A build fills a new data folder beside the old one and then replaces `index.json` in one step. An edit (add,
delete) writes `index.next.json`, commits inside the data folder, which tantivy does in one step, and then
replaces `index.json`. `opstamp`, the number of the last commit in a data folder, tells which of the two cards
holds, whenever the process died: `index.next.json` carries the number that it follows.
"""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import blake2b
from pathlib import Path
from typing import TypeVar

import msgspec

from inward.errors import IndexMissing, IndexUnusable
from inward.retrieval.analysis import AnalyserSpec
from inward.retrieval.split import SplitSpec
from inward.whole import clear_left_overs, write_whole

KIND = "lexical"
FORMAT = 1
CARD, NEXT_CARD, LOCK, DATA_PREFIX = "index.json", "index.next.json", ".lock", "data-"
_META = "meta.json"
T = TypeVar("T")
_RACES = 5
"""How often a reader looks again when a writer changes the folder under its eyes."""


class _Header(msgspec.Struct):
    kind: str
    format: int


class _Meta(msgspec.Struct):
    opstamp: int


class IndexCard(msgspec.Struct, frozen=True, kw_only=True):
    """The card of a lexical index."""

    kind: str = KIND
    format: int = FORMAT
    data: str
    """Name of the data folder."""
    opstamp: int
    """Number of the commit that this card describes."""
    analyser: AnalyserSpec
    analyser_fingerprint: str
    split: SplitSpec
    documents: int
    passages: int
    content: str
    """Sum of the hashes of all passages, 32 hexadecimal digits; their order does not matter."""
    source: str
    """Name of the corpus, without its folder."""
    tantivy: str
    inward: str
    built: str
    """UTC time of the build, ISO 8601."""

    @property
    def fingerprint(self) -> str:
        """16 hexadecimal digits: equal for indexes that hold the same passages and search alike."""
        parts = (self.kind, self.format, self.analyser_fingerprint, self.split, self.content)
        return blake2b(msgspec.json.encode(parts), digest_size=8).hexdigest()


def _missing(path: Path) -> IndexMissing:
    if path.is_dir() and any(path.iterdir()):
        return IndexMissing(f"{str(path)!r} is a folder and no index; if it holds your texts: inward index build {path} NEW-FOLDER")
    return IndexMissing(f"no index at {str(path)!r}; build it with: {build_command(path)}")


def read_card(path: Path) -> IndexCard:
    """Return the card in force.

    Raises:
        IndexUnusable: there is no index, or it is of another kind, format or analyser, or damaged.
    """
    for _ in range(_RACES):
        card = _decode(path / CARD, path)
        try:
            opstamp = committed(path / card.data)
        except FileNotFoundError:
            continue  # a build has just replaced this data folder
        if card.opstamp == opstamp:
            return card
        if (path / NEXT_CARD).exists():
            following = _decode(path / NEXT_CARD, path)
            if following.data == card.data and following.opstamp == card.opstamp:
                return msgspec.structs.replace(following, opstamp=opstamp)
    raise IndexUnusable(f"the index at {str(path)!r} is damaged: its card and its data disagree; build it again: {build_command(path)}")


def _decode(file: Path, path: Path) -> IndexCard:
    try:
        raw = file.read_bytes()
    except (FileNotFoundError, NotADirectoryError) as error:
        raise _missing(path) from error
    try:
        header = msgspec.json.decode(raw, type=_Header)
        if header.kind != KIND:
            raise IndexUnusable(f"{str(path)!r} is a {header.kind} index, need {KIND}; build one with: {build_command(path, 'OTHER')}")
        if header.format != FORMAT:
            raise IndexUnusable(
                f"the index at {str(path)!r} has format {header.format}, this version reads format {FORMAT}; "
                f"build it again: {build_command(path)}"
            )
        card = msgspec.json.decode(raw, type=IndexCard)
    except msgspec.DecodeError as error:
        raise IndexUnusable(f"{CARD} of {str(path)!r} cannot be read ({error}); build the index again: {build_command(path)}") from error
    ours = AnalyserSpec()
    if card.analyser != ours or card.analyser_fingerprint != ours.fingerprint:
        raise IndexUnusable(f"the index at {str(path)!r} {_difference(card, ours)}; build it again: {build_command(path)}")
    return card


def _difference(card: IndexCard, ours: AnalyserSpec) -> str:
    """Name the first setting that differs, with both values."""
    for field in msgspec.structs.fields(AnalyserSpec):
        theirs, mine = getattr(card.analyser, field.name), getattr(ours, field.name)
        if theirs != mine:
            return f"was analysed with {field.name}={theirs!r}, this version has {mine!r}"
    return f"was analysed by tantivy {card.tantivy} as {card.analyser_fingerprint}, the installed one analyses as {ours.fingerprint}"


def build_command(path: Path, name: str = "") -> str:
    """Return the command that makes an index there."""
    return f"inward index build CORPUS {name or shlex.quote(str(path))}"


def committed(data: Path) -> int:
    """Return the number of the last commit in a data folder."""
    return read_meta(data, _Meta).opstamp


def read_meta(data: Path, type: type[T]) -> T:
    """Read what tantivy says of a data folder, as far as `type` asks.

    Raises:
        FileNotFoundError: there is no such folder; a build may just have replaced it.
        IndexUnusable: the file is damaged.
    """
    raw = (data / _META).read_bytes()
    try:
        return msgspec.json.decode(raw, type=type)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise IndexUnusable(
            f"{_META} of {str(data.parent)!r} is damaged ({error}); build the index again: {build_command(data.parent)}"
        ) from error


def state(path: Path, card: IndexCard) -> tuple[int, ...] | None:
    """Return something that changes whenever a writer commits; None while there is nothing to see."""
    try:
        seen = [(path / CARD).stat(), (path / card.data / _META).stat()]
    except FileNotFoundError:
        return None
    return tuple(number for stat in seen for number in (stat.st_ino, stat.st_mtime_ns))


def write_card(card: IndexCard, file: Path) -> None:
    """Write the card so that a reader sees the old file or the new one, also after a power cut."""
    write_whole(file, msgspec.json.format(msgspec.json.encode(card), indent=2) + b"\n")


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Hold the folder's one writing lock; it is free again when the process ends, however it ends.

    Raises:
        IndexUnusable: another process is writing.
    """
    from filelock import FileLock, Timeout

    lock = FileLock(path / LOCK)
    try:
        lock.acquire(timeout=0)
    except Timeout as error:
        raise IndexUnusable(f"another process is writing to the index at {str(path)!r}; wait until it has finished") from error
    try:
        yield
    finally:
        lock.release()


def settle(path: Path) -> IndexCard:
    """Put the card in force into its place and clear away what dead writers left. Needs the lock."""
    card = read_card(path)
    if card.opstamp != _decode(path / CARD, path).opstamp:
        write_card(card, path / CARD)
    (path / NEXT_CARD).unlink(missing_ok=True)
    clear_left_overs(path, CARD, NEXT_CARD)
    sweep(path, keep=card.data)
    return card


def sweep(path: Path, keep: str) -> None:
    """Remove data folders that no card names. A reader that still has one open keeps what it has."""
    for folder in path.glob(f"{DATA_PREFIX}*"):
        if folder.name != keep:
            shutil.rmtree(folder, ignore_errors=True)
