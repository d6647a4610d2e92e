"""Strategies by name: an explicit table, then installed packages, then a file of your own.

A strategy is one async function of a question; everything else is keyword-only and its signature is its
schema. `load_strategy` binds it: names, types and what the model must offer are checked before the first call.
"""

from __future__ import annotations

import inspect
import logging
import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from inward.errors import BadInput, UnknownName, Unsupported, UsageError
from inward.loading_code import function_of
from inward.protocols import LM, Feature, Retriever
from inward.strategies.demo_thresholds import with_demo_threshold
from inward.strategies.hooks import Function, needs
from inward.strategies.options import Option, Resolved, is_signal, options_of, plain, resolve, signal_needs
from inward.types import Answer

log = logging.getLogger(__name__)

STRATEGIES: dict[str, str] = {
    "gated": "inward.strategies.gated:gated",
    "no-retrieval": "inward.strategies.baselines:no_retrieval",
    "probing-rag": "inward.strategies.probing_rag:probing_rag",
    "single-step": "inward.strategies.baselines:single_step",
}
"""Name -> module and function. One new strategy is one file and one row."""

GROUP = "inward.strategies"
"""Entry-point group by which an installed package adds strategies."""

_IN_FILE = re.compile(r"(?P<path>.+\.py):(?P<function>\w+)")
_WITH_SIGNAL = re.compile(r"(?P<name>[^()]+)\((?P<signal>[^()]*)\)")


@dataclass(frozen=True, slots=True)
class BoundStrategy:
    """A strategy with everything but the question bound."""

    name: str
    options: Mapping[str, Any]
    """Every option as it is in force, defaults included, as plain JSON values."""
    needs: frozenset[Feature]
    """What was found in `lm.supports` when it was bound."""
    call: Callable[[str], Awaitable[Answer]]

    async def __call__(self, question: str) -> Answer:
        """Answer one question.

        Raises:
            BadInput: the question is empty.
        """
        return await self.call(checked(question))


@dataclass(frozen=True, slots=True)
class Plan:
    """A strategy whose name and options are checked, before any model is loaded."""

    name: str
    function: Function
    options: Resolved
    needs: frozenset[Feature]

    @property
    def searches(self) -> bool:
        """Whether it takes a retriever."""
        return "retriever" in inspect.signature(self.function).parameters

    def bind(self, *, lm: LM, retriever: Retriever | None = None) -> BoundStrategy:
        """Check model and retriever, and bind them.

        Raises:
            UsageError: one of them is missing or is something else.
            Unsupported: the model cannot give what the strategy or its signal reads.
        """
        _check_lm(self.name, self.needs, lm)
        for warning in getattr(self.function, "fits", _nothing)(self.options.values, lm):
            log.warning("%s: %s", self.name, warning)
        parts: dict[str, Any] = {"lm": lm}
        if self.searches:
            parts["retriever"] = _check_retriever(self.name, retriever)
        return BoundStrategy(self.name, self.options.plain, self.needs, partial(self.function, **parts, **self.options.values))


def plan(name: str | Function, options: Mapping[str, Any]) -> Plan:
    """Look a strategy up and check its options, without a model; see `load_strategy`."""
    label, function = (name, None) if isinstance(name, str) else (name.__name__, name)
    short = _WITH_SIGNAL.fullmatch(label)
    if short:
        label, options = short["name"], {"signal": short["signal"], **options}
    function = function or find(label)
    resolved = _settled(function, resolve(options_of(function, label), options, label))
    if resolved.signal is not None:
        label = f"{label}({resolved.signal})"
    own: frozenset[Feature] = getattr(function, "needs", frozenset())
    return Plan(label, function, resolved, own | resolved.needs)


def _settled(function: Function, resolved: Resolved) -> Resolved:
    """Let a strategy put options together that belong together."""
    if not hasattr(function, "settle"):
        return resolved
    values = function.settle(resolved.values)
    signals = [value for value in values.values() if is_signal(value)]
    return replace(
        resolved,
        values=values,
        plain={name: plain(value) for name, value in values.items()},
        needs=resolved.needs.union(*map(signal_needs, signals)),
    )


def _nothing(values: Mapping[str, Any], lm: LM) -> list[str]:
    return []


def load_strategy(name: str | Function, *, lm: LM, retriever: Retriever | None = None, **options: Any) -> BoundStrategy:
    """Bind a strategy, refusing at once what could not work later.

    Args:
        name: a row of `STRATEGIES`, a name from an installed package, `file.py:function`, or the function itself.
            `"gated(mean-nll)"` is short for `"gated"` with `signal="mean-nll"`.
        lm: the model, see `load_lm`.
        retriever: where passages come from, see `load_retriever`; strategies that never search need none.
        options: the function's own keyword arguments. Signals go by name; prompts by file. Thresholds of the bundled model with
            the bundled prompt are known.

    Raises:
        UnknownName: no such strategy, option or signal; the message suggests the nearest.
        UsageError: an option of the wrong type, or one without default that is missing.
        Unsupported: the model cannot give what the strategy or its signal reads.
    """
    if isinstance(name, str):
        options = with_demo_threshold(name, getattr(lm, "name", None), options)
    return plan(name, options).bind(lm=lm, retriever=retriever)


def declared(name: str) -> Mapping[str, Option]:
    """Return the options of a strategy, named as `load_strategy` takes it, by their names.

    Raises:
        UnknownName, UsageError: see `find`.
    """
    short = _WITH_SIGNAL.fullmatch(name)
    bare = short["name"] if short else name
    return options_of(find(bare), bare)


def find(name: str) -> Function:
    """Return the function of a strategy by table, installed package or file.

    Raises:
        UnknownName: it is in none of them.
        UsageError: the file or package cannot be imported.
    """
    if name in STRATEGIES:
        module, _, attribute = STRATEGIES[name].partition(":")
        return _function(getattr(import_module(module), attribute), name)
    in_file = _IN_FILE.fullmatch(name)
    if name.endswith(".py"):
        raise UsageError(f"a strategy in a file is named with its function: {name}:my_strategy, got {name!r}")
    if in_file:
        return _function(function_of(Path(in_file["path"]), in_file["function"], "strategy"), name)
    installed = {point.name: point for point in entry_points(group=GROUP)}
    if name not in installed:
        raise UnknownName("strategy", name, [*STRATEGIES, *installed, "file.py:function"])
    try:
        return _function(installed[name].load(), name)
    except (ImportError, AttributeError) as error:
        raise UsageError(f"strategy {name!r} is announced by an installed package as {installed[name].value!r}, but: {error}") from error


def checked(question: str) -> str:
    """Return the question.

    Raises:
        BadInput: it is no text, holds nothing but spaces, or holds half of a surrogate pair.
    """
    if not isinstance(question, str) or not question.strip():
        raise BadInput(f"a question must be text with at least one visible character, got {question!r}")
    try:
        question.encode()
    except UnicodeEncodeError as error:
        raise BadInput(f"a question must be valid Unicode; character {error.start} is not, in {question!r}") from error
    return question


def _function(found: object, name: str) -> Function:
    if not inspect.iscoroutinefunction(found):
        raise UsageError(f"strategy {name!r} must be an `async def` whose first argument is the question, got {found!r}")
    return found


def _check_lm(label: str, required: frozenset[Feature], lm: object) -> None:
    if not isinstance(lm, LM):
        raise UsageError(f"lm must be a loaded model, such as load_lm('demo'), got {lm!r}")
    missing = sorted(required - lm.supports)
    if missing:
        backend = getattr(lm, "name", type(lm).__name__)
        raise Unsupported(
            f"`{label}` needs {', '.join(missing)}; backend {backend!r} has none. It offers: {', '.join(sorted(lm.supports)) or 'text'}"
        )


def _check_retriever(label: str, retriever: object) -> Retriever:
    if retriever is None:
        raise UsageError(f"`{label}` searches: pass retriever=load_retriever('demo') or an index of yours (on the command line: --index)")
    if not isinstance(retriever, Retriever):
        raise UsageError(f"retriever must have an async `search`, such as load_retriever('demo'), got {retriever!r}")
    return retriever


__all__ = ["GROUP", "STRATEGIES", "BoundStrategy", "Option", "Plan", "checked", "find", "load_strategy", "needs", "options_of", "plan"]
