"""Files that are there whole or not at all, also after a power cut."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO
from uuid import uuid4

SUFFIX = ".tmp"


@contextlib.contextmanager
def whole_file(path: Path) -> Iterator[BinaryIO]:
    """Open a file beside `path` that takes its place once it is written and on the disk: who looks finds the old one or the new one.

    A link is followed.
    """
    path = Path(os.path.realpath(path))
    beside = path.with_name(f"{path.name}.{uuid4().hex}{SUFFIX}")
    try:
        with beside.open("xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, path)
    except BaseException:
        with contextlib.suppress(OSError):
            beside.unlink()
        raise
    flush(path.parent)


def write_whole(path: Path, content: bytes) -> None:
    """Write `content` as `whole_file` does."""
    with whole_file(path) as file:
        file.write(content)


def is_left_over(path: Path, name: str) -> bool:
    """Whether `path` is what a process left that died while writing the file `name`."""
    return path.name.startswith(f"{name}.") and path.name.endswith(SUFFIX)


def clear_left_overs(folder: Path, *names: str) -> None:
    """Remove what processes left that died while writing these files; nobody else may be writing them."""
    for path in folder.glob(f"*{SUFFIX}"):
        if any(is_left_over(path, name) for name in names):
            path.unlink(missing_ok=True)


def flush(path: Path) -> None:
    """Have the system write a file, or the entries of a folder, to the disk."""
    if path.is_dir() and os.name == "nt":
        return  # folders cannot be opened there
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
