"""The self-test of an index: it holds what its card says, and finds what it holds."""

from __future__ import annotations

from pathlib import Path

import msgspec

from inward.errors import IndexUnusable
from inward.retrieval.analysis import terms
from inward.retrieval.bm25 import Asked, Snapshot, allowed, open_snapshot, rank
from inward.retrieval.build import bytes_of
from inward.retrieval.card import IndexCard, read_card, read_meta
from inward.retrieval.segments import CHECKED, CONTENT_MODULUS, Row, damaged_files, first_line, panics_are_damage, parts, stored_content

_SAMPLE, _SAMPLE_PER_PART = 64, 1
_MANY = 100_000
"""More passages than a document has."""


class Check(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that was looked at."""

    name: str
    passed: bool
    detail: str


class VerifyReport(msgspec.Struct, frozen=True, kw_only=True):
    """What the self-test of an index found."""

    path: str
    passed: bool
    checks: tuple[Check, ...]


class IndexInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What there is to know of an index without reading its passages."""

    path: str
    card: IndexCard
    fingerprint: str
    bytes: int
    """On disk."""
    segments: int
    deleted: int
    """Passages deleted but still in the statistics that scores are made from, until `merge`."""


class _Segment(msgspec.Struct):
    segment_id: str
    deletes: dict[str, int] | None = None

    @property
    def files(self) -> tuple[str, ...]:
        """Beginnings of the names of its files; what other names there are belongs to no commit."""
        name = self.segment_id.replace("-", "")
        deleted = () if self.deletes is None else (f"{name}.{self.deletes.get('opstamp')}.del",)
        return (*(f"{name}.{kind}" for kind in CHECKED if kind != "del"), *deleted)


class _Meta(msgspec.Struct):
    segments: list[_Segment]


def info(path: str | Path) -> IndexInfo:
    """Describe the index at `path`.

    Raises:
        IndexUnusable: there is none, or it cannot be used.
    """
    path = Path(path)
    card = read_card(path)
    meta = read_meta(path / card.data, _Meta)
    return IndexInfo(
        path=str(path),
        card=card,
        fingerprint=card.fingerprint,
        bytes=bytes_of(path / card.data),
        segments=len(meta.segments),
        deleted=sum((segment.deletes or {}).get("num_deleted_docs", 0) for segment in meta.segments),
    )


def verify(path: str | Path) -> VerifyReport:
    """Read every passage, compare counts and content with the card, and let a sample of passages find itself.

    Raises:
        IndexUnusable: there is no index, or it cannot even be opened.
    """
    path = Path(path)
    card = read_card(path)
    names = [name for segment in read_meta(path / card.data, _Meta).segments for name in segment.files]
    if other := damaged_files(path / card.data, names):
        said = f"{', '.join(other)}: not as written (checksum); build the index again"
        return VerifyReport(path=str(path), passed=False, checks=(Check(name="files", passed=False, detail=said),))
    now = open_snapshot(path)
    card = now.card
    documents, passages, content = 0, 0, 0
    sample: list[Row] = []
    try:
        with panics_are_damage(card.data):
            for rows in parts(now.index, now.searcher):
                documents += len({row.metadata["doc"] for row in rows})
                passages += len(rows)
                content = (content + sum(map(stored_content, rows))) % CONTENT_MODULUS
                if len(sample) < _SAMPLE:
                    sample += rows[:_SAMPLE_PER_PART]
    except (ValueError, OSError, IndexUnusable) as error:
        damaged = Check(name="passages can be read", passed=False, detail=f"after {passages} of {card.passages}: {first_line(error)}")
        return VerifyReport(path=str(path), passed=False, checks=(damaged,))
    try:
        found = _find_themselves(now, sample)
    except IndexUnusable as error:
        found = Check(name="search", passed=False, detail=str(error))
    checks = (
        Check(name="files", passed=True, detail="all are as written (checksums)"),
        _equal("documents", card.documents, documents),
        _equal("passages", card.passages, passages),
        _equal("content", card.content, f"{content:032x}"),
        found,
    )
    return VerifyReport(path=str(path), passed=all(check.passed for check in checks), checks=checks)


def _equal(name: str, said: object, found: object) -> Check:
    detail = f"{found}" if said == found else f"the card says {said}, there are {found}"
    return Check(name=name, passed=said == found, detail=detail)


def _find_themselves(now: Snapshot, sample: list[Row]) -> Check:
    """Search for each passage's own text among the passages of its document: ranking another one higher is no fault."""
    missing = []
    for row in sample:
        found = rank(now, Asked(f"{row.title} {row.text}", _MANY, allowed({"doc": row.metadata["doc"]})))
        if row.id not in {passage.id for passage in found.passages} and has_terms(row):
            missing.append(row.id)
    detail = f"{len(sample) - len(missing)} of {len(sample)} passages are found by their own text"
    if missing:
        detail += f"; {missing[0]!r} is not"
    return Check(name="search", passed=not missing, detail=detail)


def has_terms(row: Row) -> bool:
    """Say whether anything in a passage can be searched for."""
    asks = terms(f"{row.title} {row.text}")
    return bool(asks.words or asks.chars)
