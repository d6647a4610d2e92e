"""Probing-RAG (Baek et al., Findings of NAACL 2025, algorithm 1): probes on a draft's internal states say whether the model knows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any, Literal, TypeAlias

from msgspec import Meta

from inward.errors import UsageError
from inward.probers.conditions import conditions
from inward.probers.prober import Combine, Prober
from inward.prompts import PromptTemplate
from inward.protocols import LM, Retriever
from inward.strategies.drafting import Draft, write
from inward.strategies.hooks import fits, needs, settles
from inward.trace import gate, note
from inward.types import Answer, Filter, Passage

Query: TypeAlias = Literal["draft", "paper", "question", "code"]
Count: TypeAlias = Annotated[int, Meta(ge=0)]


def query_of(form: Query, question: str, draft: Answer, passages: Sequence[Passage] = (), prompt: str = "") -> str:
    """Return what to search with.

    Args:
        form: `draft` is question, rationale and answer (the paper's first search); `paper` adds, from the second search on, the passages
            that the draft was written with, before the rationale; `question` is the question alone; `code` is what was released: the
            question first, then the whole prompt, demonstrations included, and the draft.
        question: text.
        draft: what was written last.
        passages: with which it was written.
        prompt: text of the whole prompt, for `code`.
    """
    if form == "question" or (form == "code" and not passages):
        return question
    if form == "code":
        return f"{prompt} {draft.text}"
    shown = " ".join(passage.text for passage in passages) if form == "paper" else ""
    return " ".join(filter(None, (question, shown, draft.text)))


def settle(values: Mapping[str, Any]) -> dict[str, Any]:
    """Turn `theta`, `threshold` and `combine` into one number and one prober, before a model is loaded.

    Raises:
        UsageError: both are given, or the threshold is of another sum than `combine`.
    """
    given, theta = values["threshold"], values["theta"]
    if theta is not None and given is not None:
        raise UsageError(f"give theta or threshold, not both: threshold = -theta; got theta={theta!r} and threshold={given!r}")
    prober = (values["prober"] or Prober.from_pretrained("demo")).combined(values["combine"])
    threshold = prober.threshold(given if theta is None else -theta)
    return {**values, "prober": prober, "threshold": threshold.value, "theta": -threshold.value}


def check(values: Mapping[str, Any], lm: LM) -> list[str]:
    """Refuse a prober that was made for another model, prompt, stop or limit; return warnings (engine, dtype)."""
    warnings: list[str] = values["prober"].check(**conditions(lm, values["prompt"]))
    return warnings


@needs("states")
@settles(settle)
@fits(check)
async def probing_rag(
    question: str,
    *,
    lm: LM,
    retriever: Retriever,
    prober: Prober | None = None,  # the one that comes with the bundled model
    threshold: float | str | None = None,  # a number, or a name such as "max-skip-error=0.05"; None is the card's first
    theta: float | None = None,  # the paper's: higher retrieves more; threshold = -theta
    combine: Combine = "logits",  # section 3.3; the released code sums probabilities
    k: Annotated[int, Meta(ge=1)] = 5,  # section 3.2
    max_retrievals: Count = 3,  # what the released code's counter says
    query: Query = "draft",  # the paper's first form, at every round
    after_last: Literal["write", "paper"] = "write",  # "paper": the literal loop never reads what its last search found
    abstain_below: Annotated[float, Meta(ge=0, le=1)] = 0.0,  # ours
    where: Filter | None = None,
    prompt: PromptTemplate | None = None,
) -> Answer:
    """Draft an answer; while the probers say that the model does not know it, search and write again.

    Stops early where a search brings no other passages: under greedy decoding nothing could change. The answer carries the calibrated
    probability that it is right; below `abstain_below` there is none.
    """
    assert prober is not None  # see `settle`
    assert isinstance(threshold, float)
    draft = await write(question, lm=lm, prompt=prompt, signal=prober)
    reading = await prober(draft.generation)
    searches = 0
    while gate(prober.name, reading.value, above=threshold, parts=reading.parts) and searches < max_retrievals:
        searches += 1
        found = await retriever.search(_query(query, question, draft, prompt), k, where=where)
        if not found or {p.id for p in found} <= {p.id for p in draft.answer.passages}:
            note("nothing new found", "the draft stands")
            break
        if after_last == "paper" and searches == max_retrievals:
            note("the paper's literal loop", f"the {len(found)} passages of the last search are not read")
            break
        draft = await write(question, found, lm=lm, prompt=prompt, signal=prober)
        reading = await prober(draft.generation)
    sure = prober.confidence(reading, with_passages=bool(draft.answer.passages))
    return _answered(draft.answer, sure, abstain_below)


def _query(form: Query, question: str, draft: Draft, prompt: PromptTemplate | None) -> str:
    shown = draft.answer.passages
    whole = ""
    if form == "code" and shown:
        whole = "\n".join(message.content for message in (prompt or PromptTemplate.load()).build(question, shown))
    return query_of(form, question, draft.answer, shown, whole)


def _answered(answer: Answer, sure: float | None, abstain_below: float) -> Answer:
    fields: dict[str, Any] = {"confidence": sure}
    if sure is not None and sure < abstain_below:
        note("abstained", f"{sure:.2f} is below {abstain_below:g}; the answer would have been {answer.short!r}")
        fields |= {"short": "", "flags": (*answer.flags, "abstained")}
    return replace(answer, **fields)
