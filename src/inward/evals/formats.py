"""Rows of question files, in the shapes in which data sets are released.

| format | a row or file of it |
| --- | --- |
| `inward` | `id`, `question`, `answers` (a text or a list; also `answer`, `golden_answers`), `supporting`, anything else |
| `flashrag` | `id`, `question`, `golden_answers`, `metadata` |
| `nq-open` | `question`, `answer` (a list), no id |
| `dpr` | `question`, `answers`, `positive_ctxs` (`biencoder-nq-*.json`, TriviaQA in the same form) |
| `hotpotqa` | `_id`, `question`, `answer`, `supporting_facts`; 2WikiMultiHopQA too, with `answer_id` |
| `musique` | `id`, `question`, `answer`, `answer_aliases`, `paragraphs`, `answerable` |
| `strategyqa` | `qid`, `question`, `answer` (true or false) |
| `popqa` | a table (TSV) with `id`, `question`, `possible_answers` (a JSON list) |
| `triviaqa` | one object: `Data` holds `QuestionId`, `Question`, `Answer` |
| `squad` | one object: `data` holds articles, paragraphs and `qas` (1.1 and 2.0) |
| `iirc` | a list of articles with `questions`, whose `answer` has a `type` |

Passages that come with a row are left out; `supporting` names the gold ones by id, or by title where there is none.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

Row = Mapping[str, Any]


class Raw(NamedTuple):
    """A question as a file has it; `question` and `answers` may still be missing."""

    id: Any
    question: Any
    answers: Any
    """A text, a sequence of texts, or None."""
    supporting: tuple[str, ...]
    metadata: dict[str, Any]
    answerable: bool = True
    """False where the data set itself says that there is no answer."""


class Shape(NamedTuple):
    """A format: how it is known, and how its rows are read."""

    known_by: Callable[[Row], bool]
    read: Callable[[Row], Iterator[Raw]]


def _rest(row: Row, *taken: str) -> dict[str, Any]:
    return {key: value for key, value in row.items() if key not in taken}


def _first(row: Row, *names: str) -> Any:
    return next((row[name] for name in names if row.get(name) is not None), None)


def _titles(pairs: Any) -> tuple[str, ...]:
    return tuple(dict.fromkeys(str(pair[0]) for pair in pairs or ()))


def _inward(row: Row) -> Iterator[Raw]:
    names = ("id", "_id", "question", "answers", "golden_answers", "answer", "supporting")
    answers = _first(row, "answers", "golden_answers", "answer")
    supporting = row.get("supporting") or ()
    yield Raw(_first(row, "id", "_id"), row.get("question"), answers, tuple(map(str, supporting)), _rest(row, *names))


def _flashrag(row: Row) -> Iterator[Raw]:
    metadata = row.get("metadata")
    inner = dict(metadata) if isinstance(metadata, Mapping) else {}
    rest = _rest(row, "id", "question", "golden_answers", "metadata")
    yield Raw(row.get("id"), row.get("question"), row["golden_answers"], (), rest | inner)


def _dpr(row: Row) -> Iterator[Raw]:
    gold = tuple(str(_first(c, "passage_id", "psg_id", "title")) for c in row["positive_ctxs"])
    rest = _rest(row, "question", "answers", "positive_ctxs", "negative_ctxs", "hard_negative_ctxs")
    yield Raw(row.get("id"), row.get("question"), row.get("answers"), gold, rest)


def _hotpotqa(row: Row) -> Iterator[Raw]:
    rest = _rest(row, "_id", "question", "answer", "supporting_facts", "context")
    yield Raw(row.get("_id"), row.get("question"), row.get("answer"), _titles(row.get("supporting_facts")), rest)


def _musique(row: Row) -> Iterator[Raw]:
    answers = [row.get("answer"), *(row.get("answer_aliases") or ())]
    gold = tuple(dict.fromkeys(str(p.get("title", "")) for p in row["paragraphs"] if p.get("is_supporting")))
    rest = _rest(row, "id", "question", "answer", "answer_aliases", "paragraphs")
    yield Raw(
        row.get("id"), row.get("question"), [a for a in answers if a is not None], gold, rest, row.get("answerable", True) is not False
    )


def _strategyqa(row: Row) -> Iterator[Raw]:
    answer = row.get("answer")
    answers = {True: "yes", False: "no"}.get(answer) if isinstance(answer, bool) else answer
    yield Raw(row.get("qid"), row.get("question"), answers, (), _rest(row, "qid", "question", "answer", "evidence"))


def _popqa(row: Row) -> Iterator[Raw]:
    raw = row.get("possible_answers")
    answers = json.loads(raw) if isinstance(raw, str) else raw
    title = row.get("s_wiki_title")
    yield Raw(row.get("id"), row.get("question"), answers, (str(title),) if title else (), _rest(row, "id", "question", "possible_answers"))


def _triviaqa(document: Row) -> Iterator[Raw]:
    for row in document["Data"]:
        answer = row.get("Answer") or {}
        answers = [answer.get("Value"), *(answer.get("Aliases") or ()), *(answer.get("HumanAnswers") or ())]
        rest = _rest(row, "QuestionId", "Question", "Answer", "SearchResults", "EntityPages")
        gold = tuple(str(page["Title"]) for page in row.get("EntityPages") or () if page.get("Title"))
        yield Raw(row.get("QuestionId"), row.get("Question"), [a for a in answers if a is not None] or None, gold, rest)


def _squad(document: Row) -> Iterator[Raw]:
    for article in document["data"]:
        title = str(article.get("title", ""))
        for paragraph in article["paragraphs"]:
            for row in paragraph["qas"]:
                answers = [answer["text"] for answer in row.get("answers") or ()]
                rest = _rest(row, "id", "question", "answers", "plausible_answers") | {"title": title}
                yield Raw(row.get("id"), row.get("question"), answers or None, (title,), rest, not row.get("is_impossible", False))


def _iirc(article: Row) -> Iterator[Raw]:
    for row in article["questions"]:
        answer = row.get("answer") or {}
        kind = answer.get("type")
        answers: Any = None
        if kind == "span":
            answers = ", ".join(span["text"].strip() for span in answer["answer_spans"])
        elif kind in ("value", "binary"):
            answers = str(answer["answer_value"])
        unit = str(answer.get("answer_unit") or "").strip()
        both = [answers, f"{answers} {unit}"] if kind == "value" and unit else answers
        gold = tuple(dict.fromkeys(str(c["passage"]) for c in row.get("context") or () if c.get("passage") not in (None, "main")))
        rest = _rest(row, "qid", "question", "answer", "context", "question_links") | {"title": article.get("title"), "answer_type": kind}
        yield Raw(row.get("qid"), row.get("question"), both, (str(article.get("title", "")), *gold), rest, kind not in ("none", "bad"))


def _has(*names: str) -> Callable[[Row], bool]:
    return lambda row: all(name in row for name in names)


SHAPES: dict[str, Shape] = {
    "triviaqa": Shape(_has("Data"), _triviaqa),
    "squad": Shape(lambda row: isinstance(row.get("data"), Sequence), _squad),
    "iirc": Shape(_has("questions", "links"), _iirc),
    "dpr": Shape(_has("question", "positive_ctxs"), _dpr),
    "musique": Shape(_has("question", "paragraphs", "answer"), _musique),
    "hotpotqa": Shape(_has("_id", "question", "supporting_facts"), _hotpotqa),
    "strategyqa": Shape(_has("qid", "question"), _strategyqa),
    "popqa": Shape(_has("question", "possible_answers"), _popqa),
    "flashrag": Shape(_has("question", "golden_answers"), _flashrag),
    "nq-open": Shape(lambda row: set(row) == {"question", "answer"}, _inward),
    "inward": Shape(_has("question"), _inward),
}
"""Name -> shape, the most telling first."""


def shape_of(row: Row) -> str | None:
    """Return the name of the first format that a row looks like."""
    return next((name for name, shape in SHAPES.items() if shape.known_by(row)), None)
