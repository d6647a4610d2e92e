"""What is measured of each question of a run. A new metric is a function of a record and a row of `METRICS`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from math import log2
from typing import Literal, TypeAlias

from inward.evals import answers
from inward.evals.normalise import DEFAULT, NormaliserName
from inward.evals.record import Record

Kind: TypeAlias = Literal["answer", "passages", "decision", "cost"]
K = 5
"""Passages looked at."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """How records are read."""

    normaliser: NormaliserName = DEFAULT
    ignore_identical_ids: bool = False
    """Leave a passage out whose id, or whose document's, is the question's own."""


@dataclass(frozen=True, slots=True)
class Metric:
    """A number of one question."""

    name: str
    kind: Kind
    of: Callable[[Record, Setting], float | None]
    """None where it is not defined, such as recall without gold passages."""
    definition: str
    example: str


def _em(record: Record, setting: Setting) -> float | None:
    return _answer(record, answers.exact_match(record.short, record.answers, setting.normaliser))


def _f1(record: Record, setting: Setting) -> float | None:
    return _answer(record, answers.f1(record.short, record.answers, setting.normaliser))


def _acc(record: Record, setting: Setting) -> float | None:
    return _answer(record, answers.contains(record.short, record.answers, setting.normaliser))


def _acc_text(record: Record, setting: Setting) -> float | None:
    return _answer(record, answers.contains(record.text, record.answers, setting.normaliser))


def _answer(record: Record, value: float) -> float | None:
    """Return None for a question without gold answers, 0 for one that failed."""
    if not record.answers:
        return None
    return 0.0 if record.error is not None else value


def _found(record: Record, setting: Setting) -> list[str] | None:
    """Ids of what the first search found, best first; None where nothing was searched."""
    if not record.searches:
        return None
    return _without_own(record, [hit.id for hit in record.searches[0].hits], setting)


def _without_own(record: Record, ids: Iterable[str], setting: Setting) -> list[str]:
    if not setting.ignore_identical_ids:
        return list(ids)
    return [id for id in ids if record.id not in (id, record.passages[id].document)]


def _gold_names(record: Record, id: str) -> frozenset[str]:
    """Return what of the gold evidence a passage is; gold names passages by id, by document or by title."""
    passage = record.passages[id]
    return frozenset(({id, passage.document, passage.title} - {""}) & set(record.supporting))


def _recall(record: Record, ids: list[str] | None) -> float | None:
    if ids is None or not record.supporting:
        return None
    found = frozenset().union(*(_gold_names(record, id) for id in ids)) if ids else frozenset()
    return len(found) / len(set(record.supporting))


def _recall_at_k(record: Record, setting: Setting) -> float | None:
    found = _found(record, setting)
    return None if found is None else _recall(record, found[:K])


def _recall_all(record: Record, setting: Setting) -> float | None:
    if not record.searches:
        return None
    return _recall(record, _without_own(record, [hit.id for search in record.searches for hit in search.hits], setting))


def _recall_used(record: Record, setting: Setting) -> float | None:
    return _recall(record, _without_own(record, record.used, setting)) if record.used else None


def _reciprocal_rank(record: Record, setting: Setting) -> float | None:
    found = _found(record, setting)
    if found is None or not record.supporting:
        return None
    return next((1 / rank for rank, id in enumerate(found[:K], 1) if _gold_names(record, id)), 0.0)


def _ndcg(record: Record, setting: Setting) -> float | None:
    found = _found(record, setting)
    return None if found is None or not record.supporting else _share_of_best_gain(record, found)


def _share_of_best_gain(record: Record, found: list[str]) -> float:
    """Return the discounted gain of new gold passages among the first K, over that of a perfect ranking."""
    seen: set[str] = set()
    gain, wanted = 0.0, len(set(record.supporting))
    for rank, id in enumerate(found, 1):
        new = _gold_names(record, id) - seen  # two passages of one gold document count once
        seen |= new
        wanted -= max(0, len(new) - 1)  # one passage under two names is one piece of evidence
        gain += bool(new and rank <= K) / log2(rank + 1)
    return gain / sum(1 / log2(rank + 1) for rank in range(1, min(K, wanted) + 1))


def _answer_in_top(record: Record, setting: Setting) -> float | None:
    found = _found(record, setting)
    if found is None or not record.answers:
        return None
    texts = (f"{record.passages[id].title} {record.passages[id].text}" for id in found[:K])
    return float(any(answers.contains(text, record.answers, setting.normaliser) for text in texts))


def _searched(record: Record, _: Setting) -> float:
    return float(bool(record.searches))


def _failed(record: Record, _: Setting) -> float:
    return float(record.error is not None)


def _calls(record: Record, _: Setting) -> float:
    return sum(record.usage.get(name, 0) for name in ("generate_calls", "forward_calls"))


def _cost(name: str) -> Callable[[Record, Setting], float]:
    return lambda record, _: float(record.usage.get(name, 0))


def _seconds(record: Record, _: Setting) -> float:
    return record.seconds


_GOLD = "Gold passages are named by id, by the document they were cut from, or by title."

METRICS: dict[str, Metric] = {
    metric.name: metric
    for metric in (
        Metric("em", "answer", _em, "the answer equals a gold answer once both are normalised", "'the Beatles' against 'Beatles': 1"),
        Metric(
            "f1",
            "answer",
            _f1,
            "harmonic mean of token precision and recall, best gold answer",
            "'Barack Hussein Obama' against 'Barack Obama': 0.8",
        ),
        Metric(
            "acc",
            "answer",
            _acc,
            "a gold answer stands in the answer line, at token boundaries",
            "'in Paris, France' against 'Paris': 1; 'known' against 'no': 0",
        ),
        Metric(
            "acc_text",
            "answer",
            _acc_text,
            "a gold answer stands anywhere in the whole text, reasoning included",
            "reasoning names Paris, answer line says Lyon: 1",
        ),
        Metric(
            f"R@{K}",
            "passages",
            _recall_at_k,
            f"share of gold passages among the first {K} that the first search found. {_GOLD}",
            "one of two gold passages found: 0.5",
        ),
        Metric(
            "R@all",
            "passages",
            _recall_all,
            "share of gold passages among all that any search found",
            "second search finds the other gold passage: 1",
        ),
        Metric(
            "R@used",
            "passages",
            _recall_used,
            "share of gold passages among those that the final answer was given",
            "one of two shown: 0.5",
        ),
        Metric(
            f"RR@{K}", "passages", _reciprocal_rank, f"one over the rank of the first gold passage among {K}", "gold passage third: 0.333"
        ),
        Metric(
            f"nDCG@{K}",
            "passages",
            _ndcg,
            f"discounted gain of gold passages among {K}, over the best possible",
            "the only gold passage second: 0.631",
        ),
        Metric(
            f"answer@{K}", "passages", _answer_in_top, f"a gold answer stands in one of the first {K} passages", "a passage says 'Paris': 1"
        ),
        Metric("retrieval", "decision", _searched, "whether anything was searched; its mean is the retrieval rate", "no search: 0"),
        Metric("failed", "decision", _failed, "whether the question ended in an error; it counts as wrong, too", "RuntimeError: 1"),
        Metric("calls", "cost", _calls, "calls of the model: generations and teacher-forced passes (LMC)", "draft, then answer: 2"),
        Metric("searches", "cost", _cost("search_calls"), "searches (RC)", "two rounds: 2"),
        Metric("classifier_calls", "cost", _cost("classifier_calls"), "calls of a separate classifier", "Adaptive-RAG: 1"),
        Metric("sequences", "cost", _cost("sequences"), "completions generated, all samples counted", "twenty samples and an answer: 21"),
        Metric("prompt_tokens", "cost", _cost("prompt_tokens"), "tokens read, once per prefill, no padding", "236"),
        Metric("cached_tokens", "cost", _cost("cached_tokens"), "of these, tokens whose keys and values were there already", "218"),
        Metric("generated_tokens", "cost", _cost("completion_tokens"), "tokens sampled, over all completions", "32"),
        Metric("device_seconds", "cost", _cost("device_seconds"), "the question's share, by tokens, of the model's time", "0.4"),
        Metric("seconds", "cost", _seconds, "wall time from start to answer, with whatever shared the batch", "12.5"),
    )
}
"""Name -> metric."""


def measure(record: Record, setting: Setting | None = None) -> dict[str, float | None]:
    """Return every metric of a question."""
    setting = setting or Setting()
    return {name: metric.of(record, setting) for name, metric in METRICS.items()}
