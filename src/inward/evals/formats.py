"""Rows of question files, in the shapes in which data sets are released.

| format | a row or file of it |
| --- | --- |
| `inward` | `id`, `question`, `answers` (a text or a list; also `answer`, `golden_answers`), `supporting`, anything else |
| `flashrag` | `id`, `question`, `golden_answers`, `metadata` (its fields become the question's own) |
| `nq-open` | `question`, `answer` (a list), no id |
| `dpr` | `question`, `answers`, `positive_ctxs` (`biencoder-nq-*.json`, TriviaQA in the same form) |
| `hotpotqa` | `_id`, `question`, `answer`, `supporting_facts`; 2WikiMultiHopQA too, with `answer_id` |
| `musique` | `id`, `question`, `answer`, `answer_aliases`, `paragraphs`, `answerable` |
| `strategyqa` | `qid`, `question`, `answer` (true or false) |
| `popqa` | a table (TSV) with `id`, `question`, `possible_answers` (a JSON list) |
| `triviaqa` | one object: `Data` holds `QuestionId`, `Question`, `Answer` |
| `squad` | one object: `data` holds articles, paragraphs and `qas` (1.1 and 2.0) |
| `iirc` | a list of articles with `questions`, whose `answer` has a `type` |

Passages that come with a row are left out; `supporting` names the gold ones by id, or by title where there is none. A row that has
`answers` or `golden_answers` is ours, FlashRAG's or DPR's, whatever else it holds.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
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


def names_of(value: Any) -> tuple[str, ...]:
    """Return gold passages by name, each once and none empty.

    A text is one name; of pairs such as HotpotQA's (title, sentence) the first is taken; of columns such as {"title": [...],
    "sent_id": [...]} the titles.

    Raises:
        TypeError: it is none of these.
    """
    if value is None:
        return ()
    if isinstance(value, Mapping):
        if "title" not in value:
            raise TypeError(f"gold passages are named by id or title, got {value!r}")
        value = value["title"]
    if isinstance(value, str | int):
        value = [value]
    firsts = (each[0] if isinstance(each, list | tuple) else each for each in value)
    return tuple(dict.fromkeys(name for each in firsts if each is not None and (name := str(each))))


def _inward(row: Row) -> Iterator[Raw]:
    names = ("id", "_id", "question", "answers", "golden_answers", "answer", "supporting", "metadata")
    answers = _first(row, "answers", "golden_answers", "answer")
    rest = _rest(row, *names) | _metadata(row)
    yield Raw(_first(row, "id", "_id"), row.get("question"), answers, names_of(row.get("supporting")), rest)


def _metadata(row: Row) -> dict[str, Any]:
    """Return the fields of `metadata`; what is no object stays one field."""
    metadata = row.get("metadata")
    if metadata is None:
        return {}
    return dict(metadata) if isinstance(metadata, Mapping) else {"metadata": metadata}


def _dpr(row: Row) -> Iterator[Raw]:
    gold = names_of([_first(c, "passage_id", "psg_id", "title") for c in row["positive_ctxs"]])
    rest = _rest(row, "question", "answers", "positive_ctxs", "negative_ctxs", "hard_negative_ctxs")
    yield Raw(row.get("id"), row.get("question"), row.get("answers"), gold, rest)


def _hotpotqa(row: Row) -> Iterator[Raw]:
    rest = _rest(row, "_id", "id", "question", "answer", "supporting_facts", "context")
    yield Raw(_first(row, "_id", "id"), row.get("question"), row.get("answer"), names_of(row["supporting_facts"]), rest)


def _musique(row: Row) -> Iterator[Raw]:
    answers = [row.get("answer"), *(row.get("answer_aliases") or ())]
    gold = names_of([p.get("title") for p in row["paragraphs"] if p.get("is_supporting")])
    rest = _rest(row, "id", "question", "answer", "answer_aliases", "paragraphs")
    yield Raw(
        row.get("id"), row.get("question"), [a for a in answers if a is not None], gold, rest, row.get("answerable", True) is not False
    )


def _strategyqa(row: Row) -> Iterator[Raw]:
    yield Raw(row.get("qid"), row.get("question"), row.get("answer"), (), _rest(row, "qid", "question", "answer", "evidence"))


def _popqa(row: Row) -> Iterator[Raw]:
    raw = row.get("possible_answers")
    answers = json.loads(raw) if isinstance(raw, str) else raw
    rest = _rest(row, "id", "question", "possible_answers")
    yield Raw(row.get("id"), row.get("question"), answers, names_of(row.get("s_wiki_title")), rest)


def _triviaqa(document: Row) -> Iterator[Raw]:
    for row in document["Data"]:
        answer = row.get("Answer") or {}
        answers = [answer.get("Value"), *(answer.get("Aliases") or ()), *(answer.get("HumanAnswers") or ())]
        rest = _rest(row, "QuestionId", "Question", "Answer", "SearchResults", "EntityPages")
        gold = names_of([page.get("Title") for page in row.get("EntityPages") or ()])
        yield Raw(row.get("QuestionId"), row.get("Question"), [a for a in answers if a is not None] or None, gold, rest)


def _squad(document: Row) -> Iterator[Raw]:
    for article in document["data"]:
        title = article.get("title")
        for paragraph in article["paragraphs"]:
            for row in paragraph["qas"]:
                answers = [answer["text"] for answer in row.get("answers") or ()]
                rest = _rest(row, "id", "question", "answers", "plausible_answers") | ({"title": title} if title else {})
                yield Raw(row.get("id"), row.get("question"), answers or None, names_of(title), rest, not row.get("is_impossible", False))


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
        gold = names_of([article.get("title"), *(c.get("passage") for c in row.get("context") or () if c.get("passage") != "main")])
        rest = _rest(row, "qid", "question", "answer", "context", "question_links") | {"title": article.get("title"), "answer_type": kind}
        yield Raw(row.get("qid"), row.get("question"), both, gold, rest, kind not in ("none", "bad"))


def _has(*names: str) -> Callable[[Row], bool]:
    return lambda row: all(name in row for name in names)


def _released(*names: str) -> Callable[[Row], bool]:
    """Know a row by these fields, and by its lack of those in which we and others gather answers."""
    return lambda row: all(name in row for name in names) and "answers" not in row and "golden_answers" not in row


def _holds(name: str, inner: str) -> Callable[[Row], bool]:
    """Know an object that holds, under a name, a list of objects with a field."""

    def known_by(row: Row) -> bool:
        held = row.get(name)
        return isinstance(held, list) and all(isinstance(each, Mapping) and inner in each for each in held[:1])

    return known_by


SHAPES: dict[str, Shape] = {
    "triviaqa": Shape(_holds("Data", "Question"), _triviaqa),
    "squad": Shape(_holds("data", "paragraphs"), _squad),
    "iirc": Shape(_holds("questions", "question"), _iirc),
    "dpr": Shape(_has("question", "answers", "positive_ctxs"), _dpr),
    "musique": Shape(_released("question", "paragraphs", "answer"), _musique),
    "hotpotqa": Shape(_released("question", "answer", "supporting_facts"), _hotpotqa),
    "strategyqa": Shape(lambda row: _released("qid", "question")(row) and isinstance(row.get("answer"), bool), _strategyqa),
    "popqa": Shape(_released("question", "possible_answers"), _popqa),
    "flashrag": Shape(lambda row: _has("question", "golden_answers")(row) and "answers" not in row, _inward),
    "nq-open": Shape(lambda row: set(row) == {"question", "answer"}, _inward),
    "inward": Shape(_has("question"), _inward),
}
"""Name -> shape, the most telling first."""


def shape_of(row: Row) -> str | None:
    """Return the name of the first format that a row looks like."""
    return next((name for name, shape in SHAPES.items() if shape.known_by(row)), None)
