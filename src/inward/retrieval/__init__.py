"""Where passages come from: building, changing, checking and searching indexes.

`build_index` makes an index, `load_retriever` opens one; `add`, `delete`, `merge`, `info` and `verify` do what
the commands of `inward index` do.
"""

from __future__ import annotations

from pathlib import Path

from inward.errors import UsageError
from inward.retrieval.bm25 import BM25Retriever
from inward.retrieval.build import BuildReport, build_index
from inward.retrieval.check import IndexInfo, VerifyReport, info, verify
from inward.retrieval.edit import EditReport, add, delete, merge

__all__ = [
    "BM25Retriever",
    "BuildReport",
    "EditReport",
    "IndexInfo",
    "VerifyReport",
    "add",
    "build_index",
    "delete",
    "info",
    "load_retriever",
    "merge",
    "verify",
]


def load_retriever(path_or_name: str | Path = "demo") -> BM25Retriever:
    """Open an index.

    Args:
        path_or_name: folder of an index, or `"demo"` for the passages that the package brings. A folder of that name is `"./demo"`.

    Raises:
        IndexUnusable: there is no index, or this version cannot use it; the message says how to build it.
        UsageError: the name is empty.
    """
    if not str(path_or_name):
        raise UsageError("an index is named by its folder, or 'demo', got ''")
    if path_or_name == "demo":
        from inward.retrieval.demo import demo_index

        return BM25Retriever(demo_index())
    return BM25Retriever(path_or_name)
