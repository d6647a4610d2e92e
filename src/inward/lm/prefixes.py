"""Which prompts begin alike: finds the prefix whose keys and values are worth computing once."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import pairwise

from inward.lm.kv import Segment

Ids = tuple[int, ...]

MIN_TOKENS = 32
"""A shorter prefix costs more bookkeeping than it saves."""
_RECENT = 32
"""Prompts remembered, so that one question after another shares a prefix too."""


def common(a: Ids, b: Ids) -> int:
    """Length of the common prefix."""
    length = min(len(a), len(b))
    if a[:length] == b[:length]:
        return length
    low, high = 0, length  # tuples compare at C speed: bisect instead of walking
    while low < high:
        middle = (low + high + 1) // 2
        if a[:middle] == b[:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def _end(segment: Segment | None) -> int:
    return segment.end if segment else 0


class Prefixes:
    """Segments of prompt prefixes, least recently used first to go."""

    def __init__(self, capacity: int) -> None:
        """Keep at most `capacity` tokens."""
        self._capacity = capacity
        self._stored: dict[Ids, Segment] = {}
        self._recent: deque[Ids] = deque(maxlen=_RECENT)

    def clear(self) -> None:
        """Forget every prefix (rows that read one keep it alive until they leave)."""
        self._stored.clear()

    def assign(self, prompts: Sequence[Ids]) -> list[Segment | None]:
        """Return for each prompt the segment it continues; new segments are not filled yet.

        A segment always leaves at least the prompt's last token to feed.
        """
        found = [self._longest(ids) for ids in prompts]
        self._discover(prompts, found)
        self._recent.extend(prompts)
        for segment in found:
            while segment is not None:
                segment.users += 1
                segment = segment.parent
        self._evict()
        return found

    def _longest(self, ids: Ids) -> Segment | None:
        best: Ids = max((p for p in self._stored if len(p) < len(ids) and ids[: len(p)] == p), key=len, default=())
        if not best:
            return None
        self._stored[best] = self._stored.pop(best)  # most recently used
        return self._stored[best]

    def _discover(self, prompts: Sequence[Ids], found: list[Segment | None]) -> None:
        """Make the segments that save most, one after the other."""
        open_ = set(range(len(prompts)))
        while open_:
            population = sorted([*(prompts[i] for i in open_), *self._recent])
            lengths = {common(a, b) for a, b in pairwise(population)}
            best: tuple[int, Ids] = (0, ())
            sharing: dict[Ids, int] = {}
            for i in open_:
                base = _end(found[i])
                for length in lengths:
                    length = min(length, len(prompts[i]) - 1)
                    if length - base < MIN_TOKENS:
                        continue
                    prefix = prompts[i][:length]
                    if prefix not in sharing:
                        sharing[prefix] = sum(p[:length] == prefix for p in population)
                    best = max(best, ((sharing[prefix] - 1) * (length - base), prefix))
            saved, prefix = best
            if not saved:
                return
            n = len(prefix)
            sharers = {i for i in open_ if _end(found[i]) < n < len(prompts[i]) and prompts[i][:n] == prefix}
            parent = max((found[i] for i in sharers), key=_end)
            segment = Segment(prefix[_end(parent) :], parent)
            self._stored[prefix] = segment
            for i in sharers:
                found[i] = segment
            open_ -= sharers

    def _evict(self) -> None:
        held = sum(len(s.ids) for s in self._stored.values())
        for ids in list(self._stored):
            if held <= self._capacity:
                return
            held -= len(self._stored.pop(ids).ids)
