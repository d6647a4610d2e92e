"""Faults put into functions by editing their source, so that a fault is one line here and an edit that no longer fits fails."""

from __future__ import annotations
import __future__

import inspect
import sys
import textwrap
from functools import cached_property
from importlib import import_module
from typing import Any, NamedTuple

import pytest


class Fault(NamedTuple):
    """Text `old` of a function replaced by `new`."""

    name: str
    target: str
    """`module:function` or `module:Class.method`, below `inward`."""
    old: str
    new: str
    check: str
    """The check that must see it."""


def put(fault: Fault, patch: pytest.MonkeyPatch) -> None:
    """Replace the function by its faulty version.

    Raises:
        AssertionError: the function does not hold the text exactly once any more.
    """
    module_name, _, path = fault.target.partition(":")
    module = import_module(f"inward.{module_name}")
    owner: Any = module
    *parents, name = path.split(".")
    for parent in parents:
        owner = getattr(owner, parent)
    found = inspect.getattr_static(owner, name)
    original = found.fget if isinstance(found, property) else found.func if isinstance(found, cached_property) else found
    source = textwrap.dedent(inspect.getsource(inspect.unwrap(original)))
    assert source.count(fault.old) == 1, f"{fault.target} holds {fault.old!r} {source.count(fault.old)} times:\n{source}"
    code = compile(source.replace(fault.old, fault.new), f"<{fault.name}>", "exec", __future__.annotations.compiler_flag, True)
    defined: dict[str, Any] = {}
    exec(code, vars(module), defined)
    if isinstance(found, cached_property):
        defined[name].__set_name__(owner, name)
    patch.setattr(owner, name, defined[name])
    if owner is module:  # whoever imported the function by name has it under that name
        for other in list(sys.modules.values()):
            if getattr(other, "__dict__", {}).get(name) is original:
                patch.setattr(other, name, defined[name])
