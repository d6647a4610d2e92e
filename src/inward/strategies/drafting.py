"""One written answer: prompt, generation, and what was read out of it. Every strategy here drafts in the same way."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from inward.errors import ContextLengthExceeded
from inward.prompts import Parsed, PromptTemplate, fit
from inward.protocols import LM, Signal
from inward.trace import note
from inward.types import Answer, Capture, Generation, Passage, Sampling

ANSWER_TOKENS = 24
"""Limit of a forced answer; DRAGIN's evaluation allows 20 tokens for the same purpose."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """A generation and the answer in it."""

    generation: Generation
    """What a signal reads: the model's own words, without a forced answer; for signals of several samples, these."""
    answer: Answer


async def write(
    question: str, passages: Sequence[Passage] = (), *, lm: LM, prompt: PromptTemplate | None = None, signal: Signal | None = None
) -> Draft:
    """Let the model answer from the passages, and read its answer.

    Passages that do not fit the context are dropped from the lowest rank, which the trace says. A text that gives
    no answer is continued once from the answer's cue, which is counted; if that yields nothing either, its last
    sentence is the answer and is flagged `no_marker`.

    Args:
        question: text.
        passages: what the prompt shows, best first.
        lm: the model.
        prompt: None is the bundled template.
        signal: what will be read of the generation; it decides which scores and states come along.

    Raises:
        ContextLengthExceeded: the question alone does not fit.
    """
    template = prompt or PromptTemplate.load()
    asked, kept = fit(template, question, passages, lm, template.max_tokens)
    plain = sampling = Sampling(max_tokens=template.max_tokens, stop=template.stop)
    capture: Capture | None = None
    if signal is not None:
        sampling, capture = signal.wants(sampling), signal.capture
    if sampling.n > 1:  # the signal reads samples: the answer is greedy as everywhere, and one prefill serves both
        greedy, generation = await asyncio.gather(lm.generate(asked, plain), lm.generate(asked, sampling, capture=capture))
    else:
        greedy = generation = await lm.generate(asked, sampling, capture=capture)
    parsed = template.parse(greedy.text)
    if {"no_marker", "truncated"} & set(parsed.flags):
        parsed = await _forced(question, kept, parsed, lm, template)
    answer = Answer(text=parsed.text, short=parsed.short, passages=kept, flags=parsed.flags)
    return Draft(generation=generation, answer=answer)


async def _forced(question: str, passages: Sequence[Passage], said: Parsed, lm: LM, template: PromptTemplate) -> Parsed:
    """Let the text go on from the answer's cue; what was said stands where there is no room, or no answer."""
    begun = template.forced(said.text) if "no_marker" in said.flags else said.text
    try:
        generation = await lm.generate(template.build(question, passages, begun), Sampling(max_tokens=ANSWER_TOKENS, stop=template.stop))
    except ContextLengthExceeded:
        note("no room to force an answer", "the last sentence stands")
        return said
    parsed = template.parse(begun + generation.text)
    return parsed if parsed.short else said
