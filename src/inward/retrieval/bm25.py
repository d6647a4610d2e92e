"""Lexical retrieval: BM25 with Lucene's formula and scale (k1 1.2, b 0.75), over an index on disk."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import groupby
from math import log
from pathlib import Path
from typing import NamedTuple

import msgspec
import tantivy

from inward.batching import Batcher
from inward.errors import IndexUnusable, UsageError
from inward.retrieval.analysis import Terms, terms
from inward.retrieval.card import CARD, IndexCard, read_card, state
from inward.retrieval.segments import CHARS, DOC, FACET, WORDS, facet, first_line, load_row, open_read_only, panics_are_damage, rows_of
from inward.trace import Searched, current, note
from inward.types import Filter, Passage, Usage

MAX_TERMS = 256
"""Different terms of a query that are looked up; of more, the most telling ones."""
_LUCENE_SCALE = 1 / 2.2
"""tantivy multiplies by k1 + 1, which Lucene 8 and later leave out."""
_TIE = 1e-6
"""Scores this close, relatively, are equal: sums of the same single-precision numbers in another order."""
_EXTRA, _MAX_TIED = 8, 4096
"""Hits asked for beyond `k`, to see whether the last place is tied, and at most while it is."""
_BATCH = 64
_RACES = 5


class Asked(NamedTuple):
    """A search, checked."""

    query: str
    k: int
    where: tuple[tuple[str, tuple[str, ...]], ...]
    """Per key, the terms of the allowed values."""


class Found(NamedTuple):
    """What a search found, and what should be noted about it."""

    passages: list[Passage]
    notes: list[tuple[str, str]]


class Snapshot(NamedTuple):
    """One committed state of the index, complete and unchanging."""

    card: IndexCard
    index: tantivy.Index
    searcher: tantivy.Searcher
    state: tuple[int, ...] | None


class BM25Retriever:
    """Searches an index. May be used from several event loops; sees commits of other processes at the next search.

    Equal scores come in the order of the passages' ids, also at the last place (as long as no more than about
    four thousand passages share it).
    """

    def __init__(self, path: str | Path) -> None:
        """Open the index at `path`; files are memory-mapped.

        Raises:
            IndexUnusable: there is none, or it cannot be used by this version; the message says how to build it.
        """
        self._path = Path(path)
        self._now = open_snapshot(self._path)
        self._batch = Batcher[Asked, Found](self._run, lambda _: 1, _BATCH)

    @property
    def card(self) -> IndexCard:
        """What the index says of itself."""
        return self._refreshed().card

    @property
    def fingerprint(self) -> str:
        """16 hexadecimal digits: equal for indexes that hold the same passages and search alike."""
        return self.card.fingerprint

    def __len__(self) -> int:
        """Count the passages."""
        return self.card.passages

    async def search(self, query: str, k: int = 5, *, where: Filter | None = None) -> list[Passage]:
        """Return at most `k` passages that share a term with the query, best first.

        Args:
            query: free text; nothing in it is syntax. Terms that come twice count twice.
            k: at least 1; more than there are is fine.
            where: metadata that a passage must carry, value or list of allowed values per key; `doc` is the document's id.

        Raises:
            UsageError: `k` or `where` mean nothing.
        """
        if isinstance(k, bool) or not isinstance(k, int) or k < 1:
            raise UsageError(f"k must be a whole number of at least 1, got {k!r}")
        if not isinstance(query, str):
            raise UsageError(f"a query is text, got {query!r}")
        asked = Asked(query, k, allowed(where))
        trace = current()
        number = trace.issue()
        found = await self._batch(asked) if query.strip() else Found([], [])
        for what, detail in found.notes:
            note(what, detail)
        trace.add(Searched(number=number, query=query, passages=tuple(found.passages), usage=Usage(search_calls=1)))
        return found.passages

    def passage(self, id: str) -> Passage | None:
        """Return the passage with this id; None if there is none."""
        now = self._refreshed()
        doc = id.rpartition("#")[0] if now.card.split.size else id
        return next((row.passage() for row in rows_of(now.index, now.searcher, doc) if row.id == id), None)

    def document(self, id: str) -> list[Passage]:
        """Return the passages of a document in the order of the text."""
        now = self._refreshed()
        rows = sorted(rows_of(now.index, now.searcher, id), key=lambda row: row.metadata["start"])
        return [row.passage() for row in rows]

    def _refreshed(self) -> Snapshot:
        """Return the committed state; the one in hand while the folder is being replaced."""
        now = self._now
        seen = state(self._path, now.card)
        if seen != now.state and (self._path / CARD).exists():
            self._now = now = open_snapshot(self._path)
        return now

    def _run(self, batch: Sequence[Asked]) -> list[Found]:
        now = self._refreshed()
        return [rank(now, asked) for asked in batch]


def open_snapshot(path: Path) -> Snapshot:
    """Open the committed state of the index at `path`."""
    for attempt in range(_RACES):
        card = read_card(path)
        seen = state(path, card)
        try:
            index = open_read_only(path / card.data)
        except IndexUnusable:
            if attempt + 1 < _RACES and read_card(path) != card:
                continue  # a writer was faster
            raise
        snapshot = Snapshot(card, index, index.searcher(), seen)
        if state(path, card) == seen:  # else the card may be that of another commit
            return snapshot
    raise IndexUnusable(f"the index at {str(path)!r} changes faster than it can be opened; try again")


def allowed(where: Filter | None) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """Turn a filter into terms, so that a wrong one is refused before anything runs."""
    allowed = []
    for key, value in (where or {}).items():
        values = tuple(value) if isinstance(value, list | tuple | set | frozenset) else (value,)
        if key in ("start", "end"):
            raise UsageError(f"where[{key!r}]: spans cannot be filtered by; ask for the document with 'doc'")
        allowed.append((key, tuple(str(v) if key == "doc" else facet(key, v) for v in values)))
    return tuple(allowed)


def rank(now: Snapshot, asked: Asked) -> Found:
    """Search; blocking.

    Raises:
        IndexUnusable: a file of the index is damaged.
    """
    try:
        with panics_are_damage(now.card.data):
            return _rank(now, asked)
    except (ValueError, OSError, msgspec.DecodeError) as error:  # what tantivy makes of damaged bytes
        raise IndexUnusable(f"the index {now.card.data!r} is damaged ({first_line(error)}); build it again") from error


def _rank(now: Snapshot, asked: Asked) -> Found:
    notes: list[tuple[str, str]] = []
    asks = terms(asked.query)
    clauses = _clauses(now, asks, notes)
    if not (asks.words or asks.chars):
        notes.append(("no search terms", f"nothing in {asked.query[:80]!r} is a term: only stop words or punctuation"))
    if not clauses or not now.searcher.num_docs:
        return Found([], notes)
    query = tantivy.Query.boolean_query(clauses)
    if asked.where:
        query = _filtered(now, query, asked.where, notes)
    return Found(_best(now.searcher, query, asked.k), notes)


def _clauses(now: Snapshot, asks: Terms, notes: list[tuple[str, str]]) -> list[tuple[tantivy.Occur, tantivy.Query]]:
    """Return one clause for each different term that the index has, weighted by how often it is asked for."""
    wanted = Counter([(WORDS, word) for word in asks.words] + [(CHARS, char) for char in asks.chars])
    if len(wanted) > MAX_TERMS:
        total = now.searcher.num_docs
        telling = {
            term: count * log(1 + total / max(now.searcher.doc_freq(*term), 1))
            for term, count in wanted.items()
            if now.searcher.doc_freq(*term)
        }
        kept = sorted(telling, key=lambda term: (-telling[term], term))[:MAX_TERMS]
        if len(telling) > MAX_TERMS:
            notes.append(
                ("query capped", f"{len(telling)} different terms are in the index, the {MAX_TERMS} most telling ones are looked up")
            )
        wanted = Counter({term: wanted[term] for term in kept})
    q, schema = tantivy.Query, now.index.schema
    return [
        (tantivy.Occur.Should, q.boost_query(q.term_query(schema, field, term, "freq"), float(count)))
        for (field, term), count in wanted.items()
    ]


def _filtered(
    now: Snapshot, query: tantivy.Query, where: tuple[tuple[str, tuple[str, ...]], ...], notes: list[tuple[str, str]]
) -> tantivy.Query:
    """Let only passages with the asked metadata be ranked; their scores stay what they are."""
    q = tantivy.Query
    must = [(tantivy.Occur.Must, query)]
    for key, allowed in where:
        field = DOC if key == "doc" else FACET
        any_of = [(tantivy.Occur.Should, q.term_query(now.index.schema, field, term, "basic")) for term in allowed]
        if not any(now.searcher.doc_freq(field, term) for term in allowed):
            notes.append(("filter matches nothing", f"no passage has the asked value of {key!r}"))
        must.append((tantivy.Occur.Must, q.const_score_query(q.boolean_query(any_of), 0.0)))
    return q.boolean_query(must)


def _best(searcher: tantivy.Searcher, query: tantivy.Query, k: int) -> list[Passage]:
    """Return the `k` best; among equal scores the smallest ids."""
    total = searcher.num_docs
    k = min(k, total)
    limit = min(k + _EXTRA, total)
    while True:
        hits = searcher.search(query, limit, count=False).hits
        tied = len(hits) == limit and hits[-1][0] >= hits[k - 1][0] * (1 - _TIE)
        if not tied or limit >= min(total, k + _MAX_TIED):
            break
        limit = min(limit * 4, total, k + _MAX_TIED)
    if len(hits) > k:
        floor = hits[k - 1][0] * (1 - _TIE)
        hits = [hit for hit in hits if hit[0] >= floor]
    passages: list[Passage] = []
    for score, group in groupby(_levelled(hits), key=lambda hit: hit[0]):
        rows = sorted((load_row(searcher, address) for _, address in group), key=lambda row: row.id)
        passages += [row.passage(score * _LUCENE_SCALE) for row in rows]
    return passages[:k]


def _levelled(hits: Sequence[tuple[float, tantivy.DocAddress]]) -> list[tuple[float, tantivy.DocAddress]]:
    """Give scores that are equal but for rounding the same value."""
    levelled: list[tuple[float, tantivy.DocAddress]] = []
    last = level = float("inf")
    for score, address in hits:
        if score < last * (1 - _TIE) or level == float("inf"):
            level = score
        last = score
        levelled.append((level, address))
    return levelled
