"""From text to the terms that are indexed and searched: one analyser, described by a value and fingerprinted.

The analyser is Lucene's English one as tantivy builds it (words, lower case, 33 stop words, Porter 2). Before
it, in Python and only for text that is not ASCII, `prepare` normalises the text (NFKC, optional marks and
diacritics dropped) and writes runs of scripts without spaces as overlapping pairs of characters. The stored
text is never touched. Why each choice: `docs/decisions/0002-lexical-index.md`.
"""

from __future__ import annotations

import hashlib
import re
import unicodedata
from functools import cache
from itertools import pairwise
from typing import NamedTuple

import msgspec
import tantivy

STOPWORDS = [
    "a",
    "an",
    "and",
    "are",
    "as",
    "at",
    "be",
    "but",
    "by",
    "for",
    "if",
    "in",
    "into",
    "is",
    "it",
    "no",
    "not",
    "of",
    "on",
    "or",
    "such",
    "that",
    "the",
    "their",
    "then",
    "there",
    "these",
    "they",
    "this",
    "to",
    "was",
    "will",
    "with",
]
"""Lucene's 33 English stop words."""

_LATIN_LETTERS = {
    "ß": "ss",
    "ẞ": "SS",
    "æ": "ae",
    "Æ": "AE",
    "œ": "oe",
    "Œ": "OE",
    "ø": "o",
    "Ø": "O",
    "đ": "d",
    "Đ": "D",
    "ð": "d",
    "Ð": "D",
}
_LATIN_LETTERS |= {"ł": "l", "Ł": "L", "þ": "th", "Þ": "TH", "ı": "i", "ħ": "h", "Ħ": "H", "ŋ": "n", "Ŋ": "N", "ё": "е", "Ё": "Е"}
"""Letters that Unicode does not take apart; and the Cyrillic one whose dots are optional."""
_OPTIONAL = re.compile("[\u0591-\u05c7\u0610-\u061a\u0640\u064b-\u065f\u0670\u00ad\u200d\u2060\ufeff]")
"""Hebrew points, Arabic vowel signs and stretching, and characters that only guide line breaks."""
_NON_ASCII = re.compile(r"[^\x00-\x7f]+")

RANGES = (
    "\u3005-\u3007\u3041-\u3096\u309d\u309e\u30a1-\u30fa\u30fc-\u30ff\u3105-\u312f\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003347f",
    "\u1100-\u11ff\ua960-\ua97c\uac00-\ud7fb",  # Hangul has spaces, but particles cling to words
    "\u0e01-\u0e4e",  # Thai
    "\u0e81-\u0ece",  # Lao
    "\u1000-\u104f",  # Burmese
    "\u1780-\u17d3",  # Khmer
)
"""Scripts written without spaces; Han, kana and bopomofo mix within words and count as one."""
UNSPACED = re.compile("|".join(f"[{characters}]+" for characters in RANGES))
"""A run of one such script."""
_HAS_UNSPACED = re.compile(f"[{''.join(RANGES)}]")
_PROBE = "Running café-owners' e-mails, 3.5 km: 東京タワー 대한민국의 ภาษาไทย Zürich ЁЛКА हिन्दी"
"""Analysed into the fingerprint, so that a library that analyses otherwise is noticed."""


class AnalyserSpec(msgspec.Struct, frozen=True, kw_only=True):
    """What the analyser does, as kept in an index card. Two indexes with equal specs analyse alike."""

    tokenizer: str = "words"
    remove_long: int = 40
    """Words of this many bytes or more are dropped."""
    lowercase: bool = True
    stopwords: tuple[str, ...] = tuple(STOPWORDS)
    stemmer: str = "english"
    normalise: str = "NFKC"
    fold: str = "latin+greek diacritics, optional marks"
    unspaced: str = "pairs"
    """How scripts without spaces, and Hangul, are indexed; single characters have a field of their own."""

    @property
    def fingerprint(self) -> str:
        """16 hexadecimal digits of this spec and of what the installed libraries make of a probe."""
        return hashlib.blake2b(msgspec.json.encode((self, terms(_PROBE))), digest_size=8).hexdigest()


class Prepared(NamedTuple):
    """Text made ready for the index's two fields."""

    words: str
    """Words, and pairs of characters of unspaced scripts, for the English analyser."""
    chars: str
    """Characters of unspaced scripts, separated by spaces."""


class Terms(NamedTuple):
    """What to look for, duplicates included, in the order of the text."""

    words: list[str]
    chars: list[str]
    """Single characters of unspaced scripts that stand alone in the text."""


@cache
def word_analyser() -> tantivy.TextAnalyzer:
    """Build the analyser of the `words` field."""
    f = tantivy.Filter
    builder = tantivy.TextAnalyzerBuilder(tantivy.Tokenizer.simple()).filter(f.remove_long(40)).filter(f.lowercase())
    return builder.filter(f.custom_stopword(list(STOPWORDS))).filter(f.stemmer("english")).build()


@cache
def char_analyser() -> tantivy.TextAnalyzer:
    """Build the analyser of the `chars` field."""
    return tantivy.TextAnalyzerBuilder(tantivy.Tokenizer.whitespace()).build()


def prepare(text: str) -> Prepared:
    """Make text ready for the index. ASCII text, the common case, passes as it is."""
    if text.isascii():
        return Prepared(text, "")
    runs: list[str] = []
    words = _rewrite(text, runs)
    return Prepared(words, " ".join([" ".join(run) for run in runs]))


def terms(text: str) -> Terms:
    """Return what a query asks for; lone surrogates and punctuation ask for nothing."""
    text = text.encode("utf-8", "replace").decode()
    runs: list[str] = []
    if not text.isascii():
        text = _rewrite(text, runs)
    return Terms(word_analyser().analyze(text), [run for run in runs if len(run) == 1])


def _rewrite(text: str, runs: list[str]) -> str:
    """Normalise (NFKC), fold, and write unspaced runs as pairs; add the runs themselves to `runs`."""

    def pairs(match: re.Match[str]) -> str:
        run = match.group()
        runs.append(run)
        return f" {' '.join([a + b for a, b in pairwise(run)])} "

    def rewrite(match: re.Match[str]) -> str:
        folded = match.group().translate(_FOLDED)
        return UNSPACED.sub(pairs, folded) if _HAS_UNSPACED.search(folded) else folded

    return _NON_ASCII.sub(rewrite, unicodedata.normalize("NFKC", text))


class _Folded(dict[int, str]):
    """What becomes of each character; filled as characters are met, so never larger than Unicode."""

    def __missing__(self, code: int) -> str:
        folded = self[code] = _fold_character(chr(code))
        return folded


def _fold_character(character: str) -> str:
    if character in _LATIN_LETTERS:
        return _LATIN_LETTERS[character]
    if _OPTIONAL.match(character):
        return ""
    kind = unicodedata.category(character)
    if kind in ("Mn", "Me"):  # a mark that the tokenizer takes for a gap would cut the word in two
        return character if len(word_analyser().analyze(f"x{character}x")) == 1 else ""
    if kind[0] == "L" and unicodedata.name(character, "").startswith(("LATIN", "GREEK")):
        return "".join(c for c in unicodedata.normalize("NFKD", character) if not unicodedata.combining(c))
    return character


_FOLDED = _Folded()
