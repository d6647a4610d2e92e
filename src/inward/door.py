"""The one synchronous door: a question in, an outcome out."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any, TypeVar, overload

from inward.errors import BadInput
from inward.evals.run import answer, evaluate, run
from inward.lm.source import check_there
from inward.protocols import LM, Retriever
from inward.strategies import BoundStrategy, checked, plan
from inward.strategies.demo_thresholds import with_demo_threshold
from inward.strategies.hooks import Function
from inward.trace import Outcome

T = TypeVar("T")

DEMO = "demo"
DEFAULT_STRATEGY = "gated(mean-nll)"


@overload
def ask(
    question: str,
    *,
    lm: str | LM = ...,
    retriever: str | Retriever | None = ...,
    strategy: str | Function = ...,
    seed: int = ...,
    **options: Any,
) -> Outcome: ...
@overload
def ask(
    question: Sequence[str],
    *,
    lm: str | LM = ...,
    retriever: str | Retriever | None = ...,
    strategy: str | Function = ...,
    seed: int = ...,
    **options: Any,
) -> list[Outcome]: ...
def ask(
    question: str | Sequence[str],
    *,
    lm: str | LM = DEMO,
    retriever: str | Retriever | None = DEMO,
    strategy: str | Function = DEFAULT_STRATEGY,
    seed: int = 0,
    **options: Any,
) -> Outcome | list[Outcome]:
    """Answer a question, or several at once, and say why.

    Works where an event loop is already running (a notebook, a web handler) by using a thread of its own.
    Names are loaded once per process.

    Args:
        question: one text gives one outcome, a sequence gives a list in the same order.
        lm: a model, or a name for `load_lm`: `"demo"`, a folder, a GGUF file, a hub id.
        retriever: an index, or a name for `load_retriever`: `"demo"` or a folder.
        strategy: see `load_strategy`.
        seed: of random draws; greedy strategies draw nothing.
        options: the strategy's own, such as `threshold=0.5`. With the bundled model the default strategy has one.

    Raises:
        BadInput: an empty question, or one that does not fit the model's context.
        UsageError: an unknown name, a wrong or missing option, a model that lacks what the strategy needs.
        InwardError: whatever goes wrong with a single question; in a list it becomes that outcome's `error`.
    """
    if not isinstance(question, Iterable):
        raise BadInput(f"a question is text, or several are a list of texts; got {question!r}")
    questions = [question] if isinstance(question, str) else list(question)
    for place, text in enumerate(questions):
        try:
            checked(text)
        except BadInput as error:
            raise error if isinstance(question, str) else BadInput(f"question {place + 1} of {len(questions)}: {error}") from None
    bound = bind(strategy, lm=lm, retriever=retriever, **options)
    if isinstance(question, str):
        return run(answer(bound, question, seed=seed))
    return run(evaluate(bound, questions, seed=seed))


def bind(strategy: str | Function, *, lm: str | LM = DEMO, retriever: str | Retriever | None = DEMO, **options: Any) -> BoundStrategy:
    """Check model, strategy and options first, then load what goes by name, then bind; see `ask`."""
    if isinstance(lm, str):
        check_there(lm)
    if isinstance(strategy, str):
        options = with_demo_threshold(strategy, lm if isinstance(lm, str) else getattr(lm, "name", None), options)
    planned = plan(strategy, options)
    if not planned.searches:
        retriever = None
    elif isinstance(retriever, str):
        retriever = _index(retriever)  # before the model: it opens in milliseconds, and may not be there
    return planned.bind(lm=_model(lm) if isinstance(lm, str) else lm, retriever=retriever)


@lru_cache(maxsize=1)
def _model(name: str) -> LM:
    from inward.lm import load_lm

    return load_lm(name)


@lru_cache(maxsize=4)
def _index(name: str) -> Retriever:
    from inward.retrieval import load_retriever

    return load_retriever(name)
