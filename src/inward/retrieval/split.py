"""Cutting documents into passages of about so many words, at sentence ends."""

from __future__ import annotations

import re
import unicodedata
from typing import NamedTuple

import msgspec

from inward.errors import UsageError
from inward.retrieval.analysis import RANGES
from inward.sentences import Span, split_sentences

_HAN, _HANGUL, *_OTHERS = RANGES
_DENSE = re.compile(f"[{_HAN}]")
_UNSPACED = re.compile(f"[{_HAN}{''.join(_OTHERS)}]")
_ATOM = re.compile(rf"(?P<dense>[{_HAN}])|(?P<light>[{''.join(_OTHERS)}])|[^\s{_HAN}{''.join(_OTHERS)}]+")
_CLAUSE_END = re.compile(r"[,;:，、；：)\]】」』]\Z|\s")
_LEADING_VOWELS = frozenset("เแโใไເແໂໃໄ")
_TRAILING_VOWELS = frozenset("ะาำๅๆฯະາຳໆ")
_ASCII_SPACES = (" ", "\n", "\r", "\t", "\x0b", "\x0c", "\x1c", "\x1d", "\x1e", "\x1f")
_WORDS_PER_CHARACTER = {"dense": 0.5, "light": 0.25, None: 1.0}
"""What a character of Han or kana, and of Thai, Lao, Burmese or Khmer, weighs against a word between spaces."""


class SplitSpec(msgspec.Struct, frozen=True, kw_only=True):
    """How documents become passages."""

    size: int = 100
    """Words of a passage, about; 0 keeps documents whole."""
    overlap: int = 0
    """Words at the end of a passage that the next one repeats, about; whole sentences where they fit."""

    def __post_init__(self) -> None:
        """Refuse values that mean nothing, by name."""
        if self.size < 0:
            raise UsageError(f"size must be 0 (documents stay whole) or more words, got {self.size!r}")
        if self.overlap < 0 or self.overlap >= max(self.size, 1):
            raise UsageError(f"overlap must be at least 0 and less than size ({self.size}), got {self.overlap!r}")


class _Piece(NamedTuple):
    start: int
    end: int
    words: float


def count_words(text: str) -> float:
    """Count words; in scripts without spaces, two characters (Han, kana) or four (Thai and the like) make one."""
    if text.isascii() or not _UNSPACED.search(text):
        return len(text.split())
    dense = len(_DENSE.findall(text))
    light = len(_UNSPACED.findall(text)) - dense
    return len(_UNSPACED.sub(" ", text).split()) + dense * 0.5 + light * 0.25


def split(text: str, spec: SplitSpec) -> list[Span]:
    """Return the passages of a document as (start, end) in characters; none for a blank one.

    A passage holds whole sentences, at most `size` words of them; a longer sentence is cut between clauses
    or words. A last passage under a quarter of `size` joins the one before it.
    """
    start, end = len(text) - len(text.lstrip()), len(text.rstrip())
    if start >= end:
        return []
    if not spec.size or _surely_short(text, spec.size) or count_words(text) <= spec.size:
        return [(start, end)]
    pieces: list[_Piece] = []
    for a, b in split_sentences(text):
        words = count_words(text[a:b])
        pieces += [_Piece(a, b, words)] if words <= spec.size else _cut(text, a, b, spec.size)
    return _pack(text, pieces, spec)


def _surely_short(text: str, size: int) -> bool:
    """Count white space instead of words, which is quicker; it can only count too much."""
    return text.isascii() and sum(map(text.count, _ASCII_SPACES)) < size


def _pack(text: str, pieces: list[_Piece], spec: SplitSpec) -> list[Span]:
    packed: list[list[_Piece]] = []
    current: list[_Piece] = []
    for piece in pieces:
        if current and sum(p.words for p in current) + piece.words > spec.size:
            packed.append(current)
            current = _repeated(text, current, spec.overlap) if spec.overlap else []
        current.append(piece)
    fresh = [p for p in current if not packed or p.start >= packed[-1][-1].end]
    if packed and sum(p.words for p in fresh) < spec.size / 4:
        packed[-1] += fresh
    else:
        packed.append(current)
    return [(passage[0].start, passage[-1].end) for passage in packed]


def _repeated(text: str, passage: list[_Piece], overlap: int) -> list[_Piece]:
    """Return what the next passage repeats: last sentences if they fit, else last words; never the whole passage."""
    tail: list[_Piece] = []
    for piece in reversed(passage[1:]):
        if sum(p.words for p in tail) + piece.words > overlap:
            break
        tail.insert(0, piece)
    last = passage[-1]
    if tail or last.words <= overlap:
        return tail
    words, begin = 0.0, last.end
    for atom in reversed(list(_ATOM.finditer(text, last.start, last.end))):
        if words >= overlap or atom.start() <= passage[0].start:
            break
        words, begin = words + _WORDS_PER_CHARACTER[atom.lastgroup], atom.start()
    return [_Piece(begin, last.end, words)] if words else []


def _cut(text: str, start: int, end: int, size: int) -> list[_Piece]:
    """Cut a sentence that is too long, after clauses if it can be, else between words."""
    pieces: list[_Piece] = []
    words = words_at_clause = 0.0
    clause = start
    for atom in _ATOM.finditer(text, start, end):
        weight = _WORDS_PER_CHARACTER[atom.lastgroup]
        at = atom.start()
        if words + weight > size and at > start and _may_cut(text, at):
            where, taken = (clause, words_at_clause) if words_at_clause > size / 2 else (at, words)
            pieces.append(_trimmed(text, start, where, taken))
            start, words = where, words - taken
            clause, words_at_clause = start, 0.0
        if at > start and _CLAUSE_END.search(text[at - 1]) and (atom.lastgroup or text[at - 2] in ",;:"):
            clause, words_at_clause = at, words
        words += weight
    pieces.append(_trimmed(text, start, end, words))
    return pieces


def _may_cut(text: str, at: int) -> bool:
    """Keep marks with their letter, and Thai and Lao vowels with the consonant that they are written around."""
    return unicodedata.category(text[at])[0] != "M" and text[at] not in _TRAILING_VOWELS and text[at - 1] not in _LEADING_VOWELS


def _trimmed(text: str, start: int, end: int, words: float) -> _Piece:
    while end > start and text[end - 1].isspace():
        end -= 1
    while start < end and text[start].isspace():
        start += 1
    return _Piece(start, end, words)
