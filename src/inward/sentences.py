"""Where sentences end, by rule: no model, no download.

A full stop ends a sentence unless it belongs to an abbreviation, an initial, a list number or a decimal;
`? !` end one unless the text goes on in lower case; the stops of scripts without spaces end one wherever
they stand; a blank line, a heading and a list item always do. The rules are English with the punctuation
of other scripts; for German or French abbreviations they split a little too often, never inside a word.
"""

from __future__ import annotations

import re

Span = tuple[int, int]

_CLOSERS = r"[\"'”’»›)\]}）】」』〕》〉]*"
_BREAK = re.compile(
    rf"(?P<wide>[。！？｡]+{_CLOSERS})"  # no space follows these
    rf"|(?P<stop>[.!?…।॥؟۔։።፧៕။]+{_CLOSERS})(?=\s|$)"
    r"|(?P<line>\n[^\S\n]*(?:\n\s*|(?=[-*•‣◦]\s|\#{1,6}\s|\d{1,3}[.)]\s)))"
    r"|(?P<heading>(?:^|(?<=\n))\#{1,6}\s[^\n]*\n)"
)
_LAST_WORD = re.compile(r"[^\s(\[{\"'“‘«]+\Z")
_NEXT_WORD = re.compile(r"\s*[\"'“‘«(\[{]*([^\s.,;:!?\"'”’)\]}]*)")
_INITIAL = re.compile(r"(?:[^\W\d_]\.)*[^\W\d_]\Z")
_LIST_NUMBER = re.compile(r"(?:\d{1,3}|[ivxlc]{1,5}|[a-z])\Z", re.IGNORECASE)

_NEVER_LAST = frozenset(
    [
        "mr",
        "mrs",
        "ms",
        "mx",
        "dr",
        "prof",
        "rev",
        "hon",
        "messrs",
        "mme",
        "mlle",
        "vs",
        "viz",
        "cf",
        "e.g",
        "i.e",
        "eg",
        "ie",
        "fig",
        "figs",
        "eq",
        "eqs",
        "approx",
        "ca",
        "esp",
    ]
)
"""What follows these belongs to the same sentence."""
_BEFORE_NUMBER = frozenset(
    [
        "no",
        "nos",
        "nr",
        "art",
        "p",
        "pp",
        "pl",
        "par",
        "op",
        "sec",
        "vol",
        "vols",
        "ch",
        "mar",
        "jun",
        "jul",
        "mon",
        "tue",
        "tues",
        "thu",
        "thurs",
        "fri",
    ]
)
"""What follows these belongs to them if it is a number."""
_SOMETIMES_LAST = frozenset(
    [
        "inc",
        "ltd",
        "co",
        "corp",
        "llc",
        "plc",
        "jr",
        "sr",
        "esq",
        "etc",
        "al",
        "a.m",
        "p.m",
        "ph.d",
        "m.d",
        "b.a",
        "m.a",
        "b.sc",
        "m.sc",
        "d.c",
        "u.s",
        "u.k",
        "u.n",
        "e.u",
        "st",
        "mt",
        "ft",
        "gen",
        "col",
        "capt",
        "cmdr",
        "lt",
        "sgt",
        "maj",
        "adm",
        "gov",
        "sen",
        "rep",
        "pres",
        "dept",
        "univ",
        "assn",
        "bros",
        "ave",
        "blvd",
        "rd",
        "sq",
        "ed",
        "eds",
        "trans",
        "incl",
        "resp",
        "jan",
        "feb",
        "apr",
        "aug",
        "sep",
        "sept",
        "oct",
        "nov",
        "dec",
    ]
)
"""These end a sentence only before a word that sentences start with, or at the end of the text."""
_STARTERS = frozenset(
    [
        "the",
        "a",
        "an",
        "this",
        "that",
        "these",
        "those",
        "it",
        "its",
        "he",
        "she",
        "they",
        "we",
        "i",
        "you",
        "his",
        "her",
        "their",
        "our",
        "my",
        "your",
        "there",
        "here",
        "in",
        "on",
        "at",
        "by",
        "for",
        "from",
        "with",
        "without",
        "as",
        "if",
        "when",
        "while",
        "where",
        "what",
        "who",
        "why",
        "how",
        "after",
        "before",
        "although",
        "though",
        "because",
        "since",
        "during",
        "until",
        "however",
        "but",
        "and",
        "so",
        "yet",
        "or",
        "both",
        "each",
        "every",
        "all",
        "some",
        "many",
        "most",
        "several",
        "such",
        "no",
        "not",
        "one",
        "two",
        "three",
        "another",
        "other",
        "others",
        "then",
        "thus",
        "later",
        "today",
        "despite",
        "among",
        "between",
        "according",
        "under",
        "over",
        "to",
        "of",
        "let",
        "please",
    ]
)


def split_sentences(text: str) -> list[Span]:
    """Return the sentences of `text` as (start, end) in characters, without the white space around them.

    Spans come in order, do not overlap, and between them hold every character that is not white space.
    Linear in the length of the text.
    """
    spans: list[Span] = []
    start = 0
    for match in _BREAK.finditer(text):
        end = match.start() if match.lastgroup == "line" else match.end()
        if match.lastgroup == "heading":
            _keep(text, start, match.start(), spans)
            start = match.start()
        elif match.lastgroup == "stop" and not _ends(text, start, match):
            continue
        _keep(text, start, end, spans)
        start = match.end()
    _keep(text, start, len(text), spans)
    return spans


def _keep(text: str, start: int, end: int, spans: list[Span]) -> None:
    while start < end and text[start].isspace():
        start += 1
    while end > start and text[end - 1].isspace():
        end -= 1
    if start < end:
        spans.append((start, end))


def _ends(text: str, start: int, match: re.Match[str]) -> bool:
    """Decide whether a stop followed by white space ends the sentence that began at `start`."""
    follows = _NEXT_WORD.match(text, match.end())
    following = follows.group(1) if follows else ""
    if following[:1].islower():
        return False
    if match.group("stop")[0] != "." or match.group("stop").startswith(".."):
        return True
    return not _abbreviated(text, start, match.start(), following)


def _abbreviated(text: str, start: int, stop: int, following: str) -> bool:
    """Decide whether the full stop at `stop` belongs to the word before it."""
    found = _LAST_WORD.search(text, max(start, stop - 24), stop)
    word = found.group() if found else ""
    bare = word.rstrip(".").lower()
    if bare in _NEVER_LAST:
        return True
    if bare in _BEFORE_NUMBER:
        return following[:1].isdigit()
    if _LIST_NUMBER.match(word) and stop - len(word) - start < 8 and not text[start : stop - len(word)].strip():
        return True
    initial = word.isalpha() and len(word) == 1 and word.isupper()
    if initial or bare in _SOMETIMES_LAST or ("." in word and _INITIAL.match(word)):
        return bool(following) and following.lower() not in _STARTERS
    return False
