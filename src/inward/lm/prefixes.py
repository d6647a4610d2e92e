"""Which prompts begin alike: finds the prefix whose keys and values are worth computing once."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from itertools import pairwise

from inward.lm.kv import Segment

Ids = tuple[int, ...]

MIN_TOKENS = 32
"""A shorter prefix costs more bookkeeping than it saves."""
_RECENT = 32
"""Prompts remembered, so that one question after another shares a prefix too."""
_FED = 8
"""Prompts whose keys and values are remembered, so that the second of two that begin alike need not feed the beginning again."""


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


@dataclass(slots=True, eq=False)
class _Branch:
    """A prefix at which sorted prompts part: those from `first` to `last` share it."""

    length: int
    first: int
    last: int = 0


def _branches(prompts: Sequence[Ids]) -> list[_Branch]:
    """Every prefix at which some of the sorted `prompts` part."""
    found: list[_Branch] = []
    stack: list[_Branch] = []
    for place, shared in enumerate([*(common(a, b) for a, b in pairwise(prompts)), -1]):
        first = place
        while stack and stack[-1].length > shared:
            branch = stack.pop()
            branch.last, first = place, branch.first
            found.append(branch)
        if shared > 0 and (not stack or stack[-1].length < shared):
            stack.append(_Branch(shared, first))
    return found


class _Crowd:
    """Prompts side by side in order, those that look for a segment among some that were seen before."""

    def __init__(self, found: dict[Ids, Segment | None], seen: Iterable[Ids]) -> None:
        self.prompts = sorted([*found, *seen])
        new = [ids in found and (not place or self.prompts[place - 1] != ids) for place, ids in enumerate(self.prompts)]
        self._looking = new
        self._counts = [True] * len(new)
        self._ends = [_end(found[ids]) if looks else 0 for ids, looks in zip(self.prompts, new, strict=True)]

    def sharers(self, branch: _Branch) -> tuple[list[int], int]:
        """Places of the prompts that would gain from the branch, and how long their common segment can be."""
        members = [place for place in range(branch.first, branch.last + 1) if self._looking[place]]
        # the last token of a prompt is always left to feed
        n = branch.length - any(len(self.prompts[place]) == branch.length for place in members)
        return [place for place in members if self._ends[place] < n], n

    def gain(self, branch: _Branch) -> int:
        """Tokens that need not be fed again if the branch becomes a segment."""
        sharers, n = self.sharers(branch)
        new = n - min((self._ends[place] for place in sharers), default=n)
        return (sum(self._counts[branch.first : branch.last + 1]) - 1) * new if new >= MIN_TOKENS else 0

    def leave(self, places: Iterable[int]) -> None:
        """Take out prompts that have got their segment."""
        for place in places:
            self._looking[place] = self._counts[place] = False


class Prefixes:
    """Segments of prompt prefixes, least recently used first to go."""

    def __init__(self, capacity: int) -> None:
        """Keep at most `capacity` tokens, prompts that were fed lately included."""
        self._capacity = capacity
        self._stored: dict[Ids, Segment] = {}
        """Least recently used first, and a segment before the ones it continues: none outlives its own ancestors."""
        self._recent: deque[Ids] = deque(maxlen=_RECENT)
        self._fed: deque[tuple[Ids, Segment]] = deque(maxlen=_FED)

    def clear(self) -> None:
        """Forget every prefix (rows that read one keep it alive until they leave)."""
        self._stored.clear()
        self._fed.clear()

    def remember(self, segment: Segment) -> None:
        """Keep a prompt that has been fed whole, for a while and within half the room: the next may begin like it."""
        ids = tuple(i for each in segment.chain for i in each.ids)
        self._fed.append((ids, segment))
        while self._fed and _tokens(each for _, each in self._fed) > self._capacity // 2:
            self._fed.popleft()
        self._evict()

    def assign(self, prompts: Sequence[Ids]) -> list[Segment | None]:
        """Return for each prompt the segment it continues; a new one is filled if a remembered prompt holds it.

        A segment always leaves at least the prompt's last token to feed.
        """
        lengths = sorted({len(p) for p in self._stored}, reverse=True)
        found = {ids: self._longest(ids, lengths) for ids in prompts}
        self._discover(found)
        self._recent.extend(prompts)
        for ids in prompts:
            for segment in _chain(found[ids]):
                segment.users += 1
        self._evict()
        return [found[ids] for ids in prompts]

    def _longest(self, ids: Ids, lengths: Sequence[int]) -> Segment | None:
        best = next((ids[:n] for n in lengths if n < len(ids) and ids[:n] in self._stored), None)
        if best is None:
            return None
        self._touch(best, self._stored[best])
        return self._stored[best]

    def _touch(self, ids: Ids, segment: Segment) -> None:
        """Make a segment the most recently used, and its ancestors still more so."""
        for each in reversed(segment.chain):
            self._stored.pop(ids[: each.end], None)
            self._stored[ids[: each.end]] = each

    def _discover(self, found: dict[Ids, Segment | None]) -> None:
        """Make the segments that save most, one after the other; each prompt gets one at most."""
        crowd = _Crowd(found, self._recent)
        ranked = [(-crowd.gain(branch), order, branch) for order, branch in enumerate(_branches(crowd.prompts))]
        heapify(ranked)
        while ranked:
            promised, order, best = heappop(ranked)
            gain = crowd.gain(best)
            if not gain:
                continue
            if gain < -promised:  # others have left since: gains only shrink
                heappush(ranked, (-gain, order, best))
                continue
            places, n = crowd.sharers(best)
            sharers = [crowd.prompts[place] for place in places]
            parent = max((found[ids] for ids in sharers), key=_end)
            prefix = sharers[0][:n]
            segment = Segment(prefix[_end(parent) :], parent)
            if holder := self._holder(prefix, segment):
                segment.borrow(holder)
            self._touch(prefix, segment)
            found.update(dict.fromkeys(sharers, segment))
            crowd.leave(places)

    def _holder(self, prefix: Ids, segment: Segment) -> Segment | None:
        """Find a segment that runs past this one and is fed: an earlier prompt, or too long a prefix made by chance."""
        n = len(prefix)
        for text, stored in (*self._stored.items(), *self._fed):
            if stored.start <= segment.start and n <= stored.start + stored.filled and text[:n] == prefix:
                return stored
        return None

    def _evict(self) -> None:
        for ids in list(self._stored):
            if _tokens((*self._stored.values(), *(each for _, each in self._fed))) <= self._capacity:
                return
            del self._stored[ids]


def _tokens(segments: Iterable[Segment]) -> int:
    """Count the tokens that these segments keep alive: their own and their ancestors', each once."""
    return sum({id(each): len(each.ids) for segment in segments for each in segment.chain}.values())


def _chain(segment: Segment | None) -> tuple[Segment, ...]:
    """Return a segment and its ancestors, oldest first; nothing for none."""
    return segment.chain if segment else ()
