"""A strategy's signature read as a schema: names, types, defaults."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from math import isnan
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, TypeGuard, Union, get_args, get_origin, get_type_hints

import msgspec

from inward.errors import UnknownName, UsageError
from inward.probers.prober import Prober
from inward.prompts import PromptTemplate
from inward.protocols import Feature, Signal
from inward.signals import load_signal
from inward.types import Sampling

FLAGS = ("k", "prompt", "threshold")
"""Options that have a flag of their own on the command line; the others go by `--set`."""

PARTS = ("lm", "retriever")
"""Keyword arguments that are bound, not configured."""

_MORE: Mapping[str, str] = {
    "threshold": "; it belongs to one signal, model and prompt: see `Choose a threshold` in the guide to the first question",
}


_WRITTEN: Mapping[Any, str] = {Signal: "name of a signal", PromptTemplate: "prompt file", Prober: "folder or id of a prober"}


def _written(kind: Any) -> str:
    if get_origin(kind) is Literal:
        return " | ".join(map(str, get_args(kind)))
    if get_origin(kind) is Mapping or get_origin(kind) is dict:
        return "mapping"
    kind = get_args(kind)[0] if get_origin(kind) is Annotated else kind
    if isinstance(kind, Hashable) and kind in _WRITTEN:
        return _WRITTEN[kind]
    return str(getattr(kind, "__name__", kind))


@dataclass(frozen=True, slots=True)
class Option:
    """A keyword argument of a strategy."""

    name: str
    type: Any
    default: Any
    """`inspect.Parameter.empty` when it must be given."""

    @property
    def required(self) -> bool:
        """Whether it has no default."""
        return self.default is inspect.Parameter.empty

    @property
    def type_name(self) -> str:
        """The type as one writes it."""
        kinds = [kind for kind in _members(self.type) if kind is not NoneType]
        return " | ".join(_written(kind) for kind in kinds)

    @property
    def flag(self) -> str:
        """How it is given on the command line."""
        return f"--{self.name}" if self.name in FLAGS else f"--set {self.name}=..."


@dataclass(frozen=True, slots=True)
class Resolved:
    """Options in force."""

    values: dict[str, Any]
    """As the function takes them."""
    plain: dict[str, Any]
    """As JSON values."""
    needs: frozenset[Feature] = field(default_factory=frozenset)
    """What the signals among them read."""
    signal: str | None = None
    """Name of the option `signal`."""


def options_of(function: Callable[..., Any], label: str) -> dict[str, Option]:
    """Read the options of a strategy from its signature.

    Raises:
        UsageError: the function is not a question followed by keyword-only arguments with types.
    """
    question, *rest = inspect.signature(function).parameters.values()
    loose = [parameter.name for parameter in rest if parameter.kind is not inspect.Parameter.KEYWORD_ONLY]
    if question.kind is inspect.Parameter.KEYWORD_ONLY or loose:
        raise UsageError(
            f"strategy {label!r} must take the question first and keyword-only arguments after it (`*,`), not {loose or [question.name]!r}"
        )
    try:
        hints = get_type_hints(function, include_extras=True)
    except NameError as error:
        raise UsageError(f"strategy {label!r} has an annotation that cannot be read at run time: {error}") from error
    return {p.name: Option(p.name, hints.get(p.name, Any), p.default) for p in rest if p.name not in PARTS}


def resolve(declared: Mapping[str, Option], given: Mapping[str, Any], label: str) -> Resolved:
    """Check what was given against what was declared, and fill in the defaults.

    Raises:
        UnknownName: an option, or the signal it names, does not exist.
        UsageError: a wrong type, or a missing option.
    """
    for name in given:
        if name not in declared:
            raise UnknownName(f"option of `{label}`", name, declared)
    missing = [option for option in declared.values() if option.name not in given and option.required]
    values = {o.name: _convert(given.get(o.name, o.default), o, label) for o in declared.values() if o not in missing}
    for option in missing:  # after what was given: a mistake in that must not hide behind what is not there
        raise UsageError(
            f"`{label}` needs {option.name} ({option.type_name}, no default): pass {option.name}=... "
            f"(on the command line: {option.flag} of `inward ask`, --set {label}.{option.name}=... of `inward eval run`; in its file: "
            f"options: {{{option.name}: ...}}){_MORE.get(option.name, '')}"
        )
    signals = [value for value in values.values() if is_signal(value)]
    named = values.get("signal")
    return Resolved(
        values=values,
        plain={name: plain(value) for name, value in values.items()},
        needs=frozenset[Feature]().union(*map(signal_needs, signals)),
        signal=named.name if is_signal(named) else None,
    )


def signal_needs(signal: Signal) -> frozenset[Feature]:
    """Return what a model must offer so that the signal can be read."""
    wanted = signal.wants(Sampling())
    needs: set[Feature] = set()
    if wanted.token_scores:
        needs.add("logprobs")
    if wanted.n > 1:
        needs.add("samples")
    if signal.capture is not None:
        needs.add("attention" if signal.capture.attention is not None else "states")
    return frozenset(needs)


def _convert(value: Any, option: Option, label: str) -> Any:
    kinds = _members(option.type)
    if Signal in kinds and isinstance(value, str):
        return load_signal(value)
    if Prober in kinds and isinstance(value, str | Path):
        return Prober.from_pretrained(value)
    if PromptTemplate in kinds and (value is None or isinstance(value, str | Path)):
        return PromptTemplate.load(value)
    if value is option.default or Signal in kinds:
        return value
    if isinstance(value, float) and isnan(value):
        raise UsageError(f"{option.name} of `{label}` must be a number, got {value!r}")
    try:
        return msgspec.convert(value, option.type)
    except msgspec.ValidationError as error:
        if (least := _least(error)) is not None:
            raise UsageError(f"{option.name} of `{label}` must be at least {least}, got {value!r}") from error
        raise UsageError(f"{option.name} of `{label}` must be {option.type_name}, got {value!r} ({error})") from error
    except TypeError:  # a type that cannot be checked at run time, such as a Protocol of the user's
        return value


def _least(error: msgspec.ValidationError) -> str | None:
    """Return the smallest value allowed, where that is what was wrong."""
    found = re.fullmatch(r"Expected `(?:int|float)` >= (?P<least>\S+)", str(error))
    return found["least"] if found else None


def _members(kind: Any) -> tuple[Any, ...]:
    kind = get_args(kind)[0] if get_origin(kind) is Annotated else kind
    return get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)


def is_signal(value: object) -> TypeGuard[Signal]:
    """Whether a value is a signal."""
    return hasattr(value, "wants") and hasattr(value, "capture") and callable(value)


def plain(value: Any) -> Any:
    """Return a value as JSON: signals by name, prompts by fingerprint, what JSON does not know as its repr."""
    if is_signal(value):
        return getattr(value, "identity", value.name)
    if isinstance(value, PromptTemplate):
        return value.fingerprint
    try:
        return msgspec.to_builtins(value)
    except TypeError:
        return repr(value)
