"""Building small indexes and searching them without a loop in sight."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from inward.retrieval import BM25Retriever, build_index
from inward.trace import Noted, record
from inward.types import Passage

Build = Callable[..., BM25Retriever]


@pytest.fixture
def build(tmp_path: Path) -> Build:
    """Index texts (ids "1", "2", ... in order) or mappings, documents kept whole, and open the result."""

    def make(documents: Sequence[str | Mapping[str, Any]], *, size: int = 0, path: Path | None = None, **options: Any) -> BM25Retriever:
        rows = [{"id": str(n), "text": d} if isinstance(d, str) else d for n, d in enumerate(documents, 1)]
        target = path or tmp_path / "index"
        build_index(rows, target, size=size, **options)
        return BM25Retriever(target)

    return make


@pytest.fixture
def search() -> Callable[..., list[Passage]]:
    def run(retriever: BM25Retriever, query: str, k: int = 5, **options: Any) -> list[Passage]:
        return asyncio.run(retriever.search(query, k, **options))

    return run


@pytest.fixture
def ids(search: Callable[..., list[Passage]]) -> Callable[..., list[str]]:
    """Ids of what a search finds, best first."""

    def run(retriever: BM25Retriever, query: str, k: int = 5, **options: Any) -> list[str]:
        return [passage.id for passage in search(retriever, query, k, **options)]

    return run


@pytest.fixture
def notes(search: Callable[..., list[Passage]]) -> Callable[..., list[str]]:
    """What a search left in the trace besides its passages."""

    def run(retriever: BM25Retriever, query: str, k: int = 5, **options: Any) -> list[str]:
        with record() as trace:
            search(retriever, query, k, **options)
        return [event.what for event in trace.events if isinstance(event, Noted)]

    return run
