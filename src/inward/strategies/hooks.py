"""What a strategy may declare beside its signature: needs of the model, options that belong together, what must fit the model."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeAlias, TypeVar

from inward.protocols import LM, Feature
from inward.types import Answer

Function: TypeAlias = Callable[..., Awaitable[Answer]]
F = TypeVar("F", bound=Function)
Settle: TypeAlias = Callable[[Mapping[str, Any]], dict[str, Any]]
Check: TypeAlias = Callable[[Mapping[str, Any], LM], list[str]]


def needs(*features: Feature) -> Callable[[F], F]:
    """Declare what a strategy needs of a model beyond text, such as `@needs("attention")`.

    What its signal reads (log-probabilities, states, samples) is added by itself.
    """

    def declare(function: F) -> F:
        function.__dict__["needs"] = frozenset(features)
        return function

    return declare


def settles(settle: Settle) -> Callable[[F], F]:
    """Declare how options that belong together become what is in force: called with all of them, before a model is loaded."""

    def declare(function: F) -> F:
        function.__dict__["settle"] = settle
        return function

    return declare


def fits(check: Check) -> Callable[[F], F]:
    """Declare what must fit the model: called with the options in force when a model is bound; returns warnings."""

    def declare(function: F) -> F:
        function.__dict__["fits"] = check
        return function

    return declare
