"""The runner: one question with its trace, or many at once."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import copy_context
from dataclasses import dataclass
from typing import Any, TypeVar

from inward.errors import UsageError
from inward.protocols import Strategy
from inward.strategies import checked
from inward.trace import Outcome, Trace, record
from inward.types import Answer

T = TypeVar("T")


async def answer(strategy: Strategy, question: str, *, seed: int = 0) -> Outcome:
    """Answer one question and keep its trace.

    Args:
        strategy: what `load_strategy` returns, or any async function of a question.
        question: text, not empty.
        seed: of this run's random draws; greedy strategies draw nothing.

    Raises:
        BadInput: the question is empty, or cannot fit the model's context.
        InwardError: whatever else the strategy, the model or the index refuse.
    """
    with record(checked(question), seed=seed) as trace:
        return _outcome(trace, await strategy(question))


async def evaluate(strategy: Strategy, questions: Iterable[str], *, concurrency: int = 64, seed: int = 0) -> list[Outcome]:
    """Answer many questions, up to `concurrency` of them at once; outcomes come in the order of the questions.

    A question that fails becomes an outcome with `error` ("Type: message") and what its trace held by then; the
    others go on. Ctrl-C and cancellation end the run. Only `concurrency` questions are in work at a time, so an
    iterator of a million is read as it is needed.

    Args:
        strategy: what `load_strategy` returns, or any async function of a question.
        questions: texts.
        concurrency: how many are in work at once; the model batches what they ask for.
        seed: of this run's random draws.

    Raises:
        UsageError: `concurrency` is below 1, or `questions` is a single text.
    """
    outcomes: dict[int, Outcome] = {}

    def keep(finished: Finished) -> None:
        outcomes[finished.place] = finished.outcome

    await each(strategy, questions, keep, concurrency=concurrency, seed=seed)
    return [outcomes[number] for number in sorted(outcomes)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """An outcome as it comes."""

    place: int
    """Of the question, from 0."""
    outcome: Outcome
    seconds: float
    """Wall time from start to answer, with whatever shared the batch."""


async def each(
    strategy: Strategy, questions: Iterable[str], done: Callable[[Finished], None], *, concurrency: int = 64, seed: int = 0
) -> None:
    """Answer many questions as `evaluate` does, and hand over each outcome as it comes; none is kept.

    Args:
        strategy: what `load_strategy` returns, or any async function of a question.
        questions: texts.
        done: called with each outcome, in the order in which they come; what it raises ends the run.
        concurrency: how many are in work at once; the model batches what they ask for.
        seed: of this run's random draws.

    Raises:
        UsageError: `concurrency` is below 1, or `questions` is a single text.
    """
    if concurrency < 1:
        raise UsageError(f"concurrency must be at least 1, got {concurrency!r}")
    if isinstance(questions, str):
        raise UsageError(f"evaluate takes several questions; put this one in a list: {questions!r}")
    numbered = enumerate(questions)

    async def work() -> None:
        for number, question in numbered:  # shared: every worker takes the next one
            started = time.perf_counter()
            outcome = await attempt(strategy, question, seed)
            done(Finished(place=number, outcome=outcome, seconds=time.perf_counter() - started))

    with _plain_errors():
        async with asyncio.TaskGroup() as group:
            for _ in range(concurrency):
                group.create_task(work())


async def attempt(strategy: Strategy, question: str, seed: int) -> Outcome:
    """Answer one question; whatever fails becomes an outcome with `error`. Cancellation ends the run."""
    with record(str(question), seed=seed) as trace:
        try:
            return _outcome(trace, await strategy(checked(question)))
        except asyncio.CancelledError as failure:
            if _being_cancelled():
                raise
            return _outcome(
                trace, Answer.none(), error=f"CancelledError: something this question waited for was cancelled {failure}".strip()
            )
        except Exception as failure:  # a failed question is a result, whatever failed
            return _outcome(trace, Answer.none(), error=f"{type(failure).__name__}: {failure}")


def _being_cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def _outcome(trace: Trace, reply: Answer, error: str | None = None) -> Outcome:
    return Outcome(
        question=trace.question or "", answer=reply, events=trace.events, usage=trace.usage, confidence=reply.confidence, error=error
    )


@contextmanager
def _plain_errors() -> Iterator[None]:
    """Let what ended the run out of the group that a TaskGroup wraps it in (a broken iterator of questions)."""
    try:
        yield
    except BaseExceptionGroup as group:
        raise group.exceptions[0] from None


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end, here or, where a loop is running already, in a thread that copies this context."""
    if not _loop_is_running():
        return asyncio.run(work)
    started: Future[tuple[asyncio.AbstractEventLoop, asyncio.Task[T]]] = Future()

    async def there() -> T:
        task: Any = asyncio.current_task()
        started.set_result((asyncio.get_running_loop(), task))
        return await work

    with ThreadPoolExecutor(1, thread_name_prefix="inward-ask") as pool:
        done = pool.submit(copy_context().run, asyncio.run, there())
        try:
            return done.result()
        except KeyboardInterrupt:
            loop, task = started.result()
            loop.call_soon_threadsafe(task.cancel)
            raise


def _loop_is_running() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
