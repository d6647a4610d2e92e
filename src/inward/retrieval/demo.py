"""The demo index: the passages that the package brings, indexed into the cache folder on first use."""

from __future__ import annotations

from errno import ENOSPC
from hashlib import blake2b
from importlib.resources import as_file, files
from pathlib import Path

from inward.cache import cache_folder
from inward.errors import IndexUnusable, UsageError
from inward.retrieval.analysis import AnalyserSpec
from inward.retrieval.build import build_index
from inward.retrieval.card import FORMAT, read_card

_WAIT_SECONDS = 120.0


def demo_index() -> Path:
    """Return the demo index's folder, building it if this version has not built it yet.

    Raises:
        IndexUnusable: the package does not hold its passages.
        UsageError: the cache folder cannot be written.
    """
    from filelock import FileLock

    corpus = files("inward").joinpath("demo", "passages.jsonl")
    if not corpus.is_file():
        raise IndexUnusable("the demo passages are missing from this installation; install it again: pip install --force-reinstall inward")
    made_of = blake2b(f"{FORMAT} {AnalyserSpec().fingerprint} ".encode() + corpus.read_bytes(), digest_size=8).hexdigest()
    path = cache_folder() / f"demo-index-{made_of}"
    if _usable(path):
        return path
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(path.parent / "demo-index.lock", timeout=_WAIT_SECONDS), as_file(corpus) as source:
            if not _usable(path):
                build_index(source, path, size=0, strict=True, progress=False)
    except OSError as error:
        if error.errno == ENOSPC:
            raise
        raise UsageError(f"the cache folder {str(path.parent)!r} cannot be written ({error}); set INWARD_CACHE to one that can") from error
    return path


def _usable(path: Path) -> bool:
    try:
        read_card(path)
    except IndexUnusable:
        return False
    return True
