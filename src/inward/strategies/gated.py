"""Draft, look inward, and look things up only when the draft was written unsurely."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from inward.prompts import PromptTemplate
from inward.protocols import LM, Retriever, Signal
from inward.signals.tokens import mean_nll
from inward.strategies.drafting import write
from inward.trace import gate, note
from inward.types import Answer, Filter


async def gated(
    question: str,
    *,
    lm: LM,
    retriever: Retriever,
    threshold: float,  # no default: it belongs to one signal, model and prompt
    signal: Signal = mean_nll,  # the least costly: one pass over the logits that were made anyway
    k: Annotated[int, Meta(ge=1)] = 5,  # Probing-RAG section 3.2, so that all strategies read the same passages
    max_retrievals: Annotated[int, Meta(ge=0)] = 1,  # ours: a plain gate looks up once
    where: Filter | None = None,
    prompt: PromptTemplate | None = None,
) -> Answer:
    """Draft an answer, and search once if a signal says that the model was unsure of it.

    With `max_retrievals` above 1 the new draft is read again; later searches use the question and the draft, since
    the question alone would find the same passages, and what they find replaces what the prompt showed.
    """
    draft = await write(question, lm=lm, prompt=prompt, signal=signal)
    for _ in range(max_retrievals):
        reading = await signal(draft.generation)
        if not gate(signal.name, reading.value, above=threshold, parts=reading.parts):
            break
        query = f"{question} {draft.answer.text}" if draft.answer.passages else question
        passages = await retriever.search(query, k, where=where)
        if not passages:
            note("nothing found", "the draft stands")
            break
        draft = await write(question, passages, lm=lm, prompt=prompt, signal=signal)
    return draft.answer
