"""The demo corpus and its questions: enough passages, no template, no duplicate, every question answerable.

The checks are functions of the data, so that each one is also shown to fail on a corpus with one planted fault.
No model runs here.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections import Counter
from collections.abc import Callable
from importlib.resources import files
from itertools import combinations
from typing import Any

import pytest

Row = dict[str, Any]

WORDS_MIN, WORDS_MAX = 45, 100
"""The upper bound is the size at which the index would split a passage in two."""
OPENING_SHARE = 0.10
"""No word may open more than this share of the passages."""
OVERLAP_MAX = 0.6
"""Shared 5-grams over those of the shorter passage; a near-duplicate has more."""


def _read(name: str) -> list[Row]:
    text = files("inward").joinpath("demo", name).read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines()]


def _tokens(text: str) -> list[str]:
    """Lower-cased words without accents; `H2O` and `42` are words, punctuation is not."""
    plain = "".join(c for c in unicodedata.normalize("NFKD", text.casefold()) if not unicodedata.combining(c))
    return re.findall(r"[^\W_]+", plain)


def _holds(text: str, answer: str) -> bool:
    """Whether `answer` occurs in `text` at word boundaries."""
    return f" {' '.join(_tokens(answer))} " in f" {' '.join(_tokens(text))} "


def _grams(text: str, n: int) -> set[tuple[str, ...]]:
    words = _tokens(text)
    return {tuple(words[i : i + n]) for i in range(len(words) - n + 1)}


def _overlap(one: set[tuple[str, ...]], other: set[tuple[str, ...]]) -> float:
    return len(one & other) / max(1, min(len(one), len(other)))


def _repeated(values: list[Any]) -> list[Any]:
    return [value for value, count in Counter(values).items() if count > 1]


def check_shape(passages: list[Row], questions: list[Row]) -> None:
    assert len(passages) >= 300
    assert len(questions) == 60
    for row in passages:
        assert set(row) == {"id", "title", "text"}, row
        assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", row["id"]), row["id"]
        assert row["title"].strip() == row["title"] != "", row["id"]
        words = len(row["text"].split())
        assert WORDS_MIN <= words <= WORDS_MAX, (row["id"], words)
    for row in questions:
        assert set(row) == {"id", "question", "answers", "supporting"}, row
        assert row["question"].endswith("?"), row["id"]
        assert row["answers"], row["id"]
        assert row["supporting"], row["id"]


def check_unique(passages: list[Row], questions: list[Row]) -> None:
    for key in ("id", "title", "text"):
        assert not _repeated([row[key] for row in passages]), key
    for key in ("id", "question"):
        assert not _repeated([row[key] for row in questions]), key


def check_answerable(passages: list[Row], questions: list[Row]) -> None:
    texts = {row["id"]: row["text"] for row in passages}
    for row in questions:
        for source in row["supporting"]:
            assert source in texts, (row["id"], source)
            assert any(_holds(texts[source], answer) for answer in row["answers"]), (row["id"], source)
        assert not any(_holds(row["question"], answer) for answer in row["answers"]), f"{row['id']!r} gives its answer away"


def check_openings(passages: list[Row], questions: list[Row]) -> None:
    starts = [tuple(_tokens(row["text"])[:4]) for row in passages]
    assert not _repeated(starts)
    first = Counter(start[0] for start in starts)
    word, count = first.most_common(1)[0]
    assert count <= OPENING_SHARE * len(passages), (word, count)
    assert len(first) >= len(passages) / 2, "fewer different opening words than half of the passages"


def check_no_template(passages: list[Row], questions: list[Row]) -> None:
    """A template shows as phrases that recur: in two passages as a large share, in many as the same few words."""
    grams = {row["id"]: _grams(row["text"], 5) for row in passages}
    for one, other in combinations(grams, 2):
        assert _overlap(grams[one], grams[other]) <= OVERLAP_MAX, (one, other)
    phrases = Counter(gram for own in grams.values() for gram in own)
    phrase, count = phrases.most_common(1)[0]
    assert count <= 0.03 * len(passages), (phrase, count)
    lengths = sorted(len(row["text"].split()) for row in passages)
    tenth = len(lengths) // 10
    assert lengths[-tenth] - lengths[tenth] >= 20, "the passages are all of one length"


def check_no_near_duplicate(passages: list[Row], questions: list[Row]) -> None:
    """By vocabulary: also catches a passage with its sentences shuffled or a few words exchanged."""
    words = {row["id"]: set(_tokens(row["text"])) for row in passages}
    for one, other in combinations(words, 2):
        shared = len(words[one] & words[other]) / len(words[one] | words[other])
        assert shared <= 0.5, (one, other, shared)


Check = Callable[[list[Row], list[Row]], None]
CHECKS: tuple[Check, ...] = (check_shape, check_unique, check_answerable, check_openings, check_no_template, check_no_near_duplicate)


@pytest.fixture
def passages() -> list[Row]:
    return _read("passages.jsonl")


@pytest.fixture
def questions() -> list[Row]:
    return _read("questions.jsonl")


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_demo_corpus(check: Check, passages: list[Row], questions: list[Row]) -> None:
    check(passages, questions)


def _too_few(passages: list[Row], questions: list[Row]) -> None:
    del passages[299:]


def _too_short(passages: list[Row], questions: list[Row]) -> None:
    passages[7]["text"] = " ".join(passages[7]["text"].split()[: WORDS_MIN - 1])


def _too_long(passages: list[Row], questions: list[Row]) -> None:
    passages[7]["text"] += " " + " ".join(passages[8]["text"].split())


def _question_lost(passages: list[Row], questions: list[Row]) -> None:
    questions.pop()


def _same_id(passages: list[Row], questions: list[Row]) -> None:
    passages[3]["id"] = passages[4]["id"]


def _same_text(passages: list[Row], questions: list[Row]) -> None:
    passages[3]["text"] = passages[4]["text"]


def _unknown_source(passages: list[Row], questions: list[Row]) -> None:
    questions[0]["supporting"].append("no-such-passage")


def _answer_absent(passages: list[Row], questions: list[Row]) -> None:
    questions[0]["answers"] = ["Par"]  # a piece of the word Paris: boundaries count


def _answer_in_question(passages: list[Row], questions: list[Row]) -> None:
    questions[0]["question"] = f"Is it {questions[0]['answers'][0]}?"


def _same_opening(passages: list[Row], questions: list[Row]) -> None:
    head = " ".join(passages[10]["text"].split()[:4])
    passages[11]["text"] = f"{head} {passages[11]['text']}"


def _article_everywhere(passages: list[Row], questions: list[Row]) -> None:
    for row in passages[::5]:
        row["text"] = "The " + row["text"]


def _template(passages: list[Row], questions: list[Row]) -> None:
    for row in passages[::10]:
        row["text"] += " It is one of the best known things of its kind."


def _copied_middle(passages: list[Row], questions: list[Row]) -> None:
    own = passages[20]["text"].split()
    passages[21]["text"] = " ".join([*passages[21]["text"].split()[:6], *own[4:]])


def _shuffled(passages: list[Row], questions: list[Row]) -> None:
    passages[31]["text"] = " ".join(reversed(passages[30]["text"].split()))


@pytest.mark.parametrize(
    ("fault", "check"),
    [
        (_too_few, check_shape),
        (_too_short, check_shape),
        (_too_long, check_shape),
        (_question_lost, check_shape),
        (_same_id, check_unique),
        (_same_text, check_unique),
        (_unknown_source, check_answerable),
        (_answer_absent, check_answerable),
        (_answer_in_question, check_answerable),
        (_same_opening, check_openings),
        (_article_everywhere, check_openings),
        (_template, check_no_template),
        (_copied_middle, check_no_template),
        (_shuffled, check_no_near_duplicate),
    ],
    ids=lambda part: part.__name__.lstrip("_"),
)
def test_planted_fault_is_found(fault: Check, check: Check, passages: list[Row], questions: list[Row]) -> None:
    fault(passages, questions)
    with pytest.raises(AssertionError):
        check(passages, questions)


def test_answers_are_matched_at_word_boundaries() -> None:
    assert _holds("Bern, on the Aare.", "bern")
    assert not _holds("Bernard's house.", "Bern")
    assert _holds("Brasília is inland", "Brasilia")
    assert _holds("It is H2O: water.", "H2O")
