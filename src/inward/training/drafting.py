"""Writing the drafts that a prober is made of, as the strategy will write them: many questions at once, each kept as it is done."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from inward import __version__
from inward.errors import UsageError
from inward.evals.folder import FORMAT, RunFile
from inward.evals.gathering import QuestionSet
from inward.evals.record import Question
from inward.evals.run import attempt, run
from inward.probers.conditions import conditions
from inward.prompts import PromptTemplate
from inward.protocols import LM, Retriever
from inward.signals import tokens
from inward.strategies.drafting import Draft, write
from inward.strategies.probing_rag import Query, query_of
from inward.training.drafts import LAST, PROMPT, DraftFolder, DraftRecord, Mode, QuestionDrafts, signals_of
from inward.types import F32, Answer, Capture, Generation, Passage, Reading, Sampling

_TOKEN_SIGNALS = {signal.name: signal for signal in vars(tokens).values() if isinstance(signal, tokens.TokenSignal)}


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftData:
    """Questions to draft, and where their passages are."""

    name: str
    questions: QuestionSet
    index: str | None = None
    """None: they are drafted without passages only."""
    retriever: Retriever | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftPlan:
    """How drafts are written and what of them is kept."""

    capture: Capture
    prompt: PromptTemplate
    k: int = 5
    query: Query = "draft"
    prompt_states: bool = False
    """Also keep the states of the prompt's last token, before anything is written."""
    last_states: bool = False
    """Also keep the states of each draft's last token."""
    concurrency: int = 64
    seed: int = 0

    @property
    def kept(self) -> Capture:
        """What is asked of the model."""
        return replace(self.capture, pool="none") if self.last_states else self.capture


class _Everything:
    """A signal that asks for states and every token score, and reads nothing: `write` brings along what it asks for."""

    name = "everything"

    def __init__(self, capture: Capture) -> None:
        self.capture: Capture | None = capture

    def wants(self, sampling: Sampling) -> Sampling:
        return replace(sampling, token_scores=("logprobs", "entropies", "energies"))

    async def __call__(self, generation: Generation) -> Reading:
        return Reading(value=float("nan"))


def write_drafts(
    data: Sequence[DraftData],
    lm: LM,
    plan: DraftPlan,
    folder: str | Path,
    *,
    model: str = "",
    progress: bool = False,
    retry_failed: bool = False,
) -> None:
    """Draft what is not drafted yet.

    Args:
        data: sets of questions; each question is drafted without passages, and with those that the strategy's first search finds.
        lm: the model.
        plan: how.
        folder: where the drafts are kept; the same call goes on where it was stopped.
        model: the model's name, for the record.
        progress: show a bar on standard error.
        retry_failed: draft questions again that ended in an error.

    Raises:
        UsageError: the folder holds drafts of something else, or two sets have one name.
    """
    names = [each.name for each in data]
    if len(set(names)) < len(names):
        raise UsageError(f"data sets need different names, got {', '.join(names)}")
    asked = [
        (each, f"{each.name}/{q.id}", msgspec.structs.replace(q, dataset=each.name)) for each in data for q in each.questions.questions
    ]
    width = _width(lm, plan)
    said = RunFile(format=FORMAT, identity=_identity(data, lm, plan, width), manifest=_manifest(lm, plan, model))
    with DraftFolder(folder, (len(plan.capture.layers), width)) as kept:
        kept.begin(said)
        done = kept.done()
        if retry_failed and kept.failed:
            done -= set(kept.failed)
            kept.drop_failed()
        todo = [item for item in asked if item[1] not in done]
        run(_draft_all(todo, lm, plan, kept, width, progress=progress, total=len(asked)))
        for _ in kept.put_in_order([id for _, id, _ in asked]):
            pass
        kept.begin(msgspec.structs.replace(said, finished=True))


async def _draft_all(
    todo: Sequence[tuple[DraftData, str, Question]],
    lm: LM,
    plan: DraftPlan,
    kept: DraftFolder,
    width: int,
    *,
    progress: bool,
    total: int,
) -> None:
    from tqdm import tqdm

    waiting = iter(todo)
    with tqdm(total=total, initial=total - len(todo), desc="drafts", unit="question", disable=None if progress else True) as bar:

        async def work() -> None:
            for data, id, question in waiting:  # shared: every worker takes the next one
                made, states = await _draft(data, id, question, lm, plan, width)
                kept.add(made, states)
                bar.update()

        async with asyncio.TaskGroup() as group:
            for _ in range(plan.concurrency):
                group.create_task(work())


async def _draft(data: DraftData, id: str, question: Question, lm: LM, plan: DraftPlan, width: int) -> tuple[QuestionDrafts, F32]:
    """Draft a question; what fails is recorded as a failure."""
    drafts: list[DraftRecord] = []
    states: dict[str, F32] = {}

    async def both(text: str) -> Answer:
        first, prompt = await asyncio.gather(_write(text, (), lm, plan), _prompt_state(text, lm, plan))
        drafts.append(_record("without", first))
        states.update(_states("without", first, plan))
        if prompt is not None:
            states[PROMPT] = prompt
        if data.retriever is not None:
            query = query_of(plan.query, text, first.answer)
            passages = await data.retriever.search(query, plan.k)
            if passages:
                second = await _write(text, passages, lm, plan)
                drafts.append(_record("with", second, query))
                states.update(_states("with", second, plan))
        return first.answer

    started = time.perf_counter()
    outcome = await attempt(both, question.question, plan.seed)
    failed = outcome.error is not None
    rows = () if failed else tuple(states)
    made = QuestionDrafts(
        id=id,
        question=question,
        drafts=() if failed else tuple(drafts),
        rows=rows,
        seconds=time.perf_counter() - started,
        error=outcome.error,
    )
    return made, np.stack([states[name] for name in rows]) if rows else np.empty((0, len(plan.capture.layers), width), np.float32)


def _states(mode: Mode, draft: Draft, plan: DraftPlan) -> dict[str, F32]:
    states = draft.generation.states
    if not plan.last_states:
        return {mode: states}
    some = states.shape[1] > 0
    nothing = np.full((len(states), states.shape[2]), np.nan, np.float32)
    return {mode: states.mean(1) if some else nothing, f"{mode}:{LAST}": states[:, -1] if some else nothing}


async def _write(question: str, passages: Sequence[Passage], lm: LM, plan: DraftPlan) -> Draft:
    return await write(question, passages, lm=lm, prompt=plan.prompt, signal=_Everything(plan.kept))


async def _prompt_state(question: str, lm: LM, plan: DraftPlan) -> F32 | None:
    if not plan.prompt_states:
        return None
    capture = Capture(layers=plan.capture.layers, site=plan.capture.site, over="prompt_last")
    return (await lm.generate(plan.prompt.build(question), Sampling(max_tokens=1), capture=capture)).states


def _record(mode: Mode, draft: Draft, query: str = "") -> DraftRecord:
    completion = draft.generation.completions[0]
    values = {name: signal.of(draft.generation) for name, signal in _TOKEN_SIGNALS.items()}
    return DraftRecord(
        mode=mode,
        text=draft.answer.text,
        short=draft.answer.short,
        finish=completion.finish,
        tokens=len(completion.token_ids),
        signals=signals_of(values),
        query=query,
        passages=tuple(passage.id for passage in draft.answer.passages),
        flags=draft.answer.flags,
    )


def _width(lm: LM, plan: DraftPlan) -> int:
    """Return how wide the model's states are, from one token of one."""

    async def one() -> Generation:
        return await lm.generate(
            plan.prompt.build("?"), Sampling(max_tokens=1), capture=replace(plan.capture, over="prompt_last", pool="mean")
        )

    return int(run(one()).states.shape[-1])


def _identity(data: Sequence[DraftData], lm: LM, plan: DraftPlan, width: int) -> dict[str, Any]:
    return {
        "data": {each.name: each.questions.data_hash for each in data},
        "index": {each.name: getattr(each.retriever, "fingerprint", each.index) for each in data if each.retriever is not None},
        "model": getattr(lm, "fingerprint", None),
        "prompt": plan.prompt.fingerprint,
        "layers": list(plan.capture.layers),
        "site": plan.capture.site,
        "pool": plan.capture.pool,
        "width": width,
        "k": plan.k,
        "query": plan.query,
        "prompt_states": plan.prompt_states,
        "last_states": plan.last_states,
        "seed": plan.seed,
    }


def _manifest(lm: LM, plan: DraftPlan, model: str) -> dict[str, Any]:
    return {
        "inward": __version__,
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "model": model or getattr(lm, "name", ""),
        "conditions": conditions(lm, plan.prompt),
        "prompt": plan.prompt,
    }
