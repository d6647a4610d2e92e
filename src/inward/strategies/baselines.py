"""The two ends that every adaptive method is measured against: never retrieve, always retrieve once."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from inward.prompts import PromptTemplate
from inward.protocols import LM, Retriever
from inward.strategies.drafting import write
from inward.types import Answer, Filter


async def no_retrieval(
    question: str,
    *,
    lm: LM,
    prompt: PromptTemplate | None = None,  # None: the bundled template, the same for all strategies
) -> Answer:
    """Answer from the model alone."""
    return (await write(question, lm=lm, prompt=prompt)).answer


async def single_step(
    question: str,
    *,
    lm: LM,
    retriever: Retriever,
    k: Annotated[int, Meta(ge=1)] = 5,  # Probing-RAG section 3.2: the passages of a single-step retrieval
    where: Filter | None = None,
    prompt: PromptTemplate | None = None,
) -> Answer:
    """Search once with the question, then answer from what was found."""
    passages = await retriever.search(question, k, where=where)
    return (await write(question, passages, lm=lm, prompt=prompt)).answer
