"""Where a model is: a folder, a GGUF file, or a repository of the hub; and whether a folder holds what it must."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from difflib import get_close_matches
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec

from inward.errors import MissingExtra, ModelError, ModelMissing, UsageError

_HUB_ID = re.compile(r"[\w.-]+(/[\w.-]+)?")
_UNSAFE_SUFFIXES = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".h5", ".msgpack", ".npz")
BROKEN = (ImportError, OSError, RuntimeError, AttributeError)
"""What importing a package that is absent, or there but broken, may raise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A model's whereabouts."""

    name: str
    """As the caller wrote it."""
    place: str
    """A folder, or a hub id."""
    gguf: str | None
    """A file in that place."""
    is_local: bool
    offline: bool
    """Make no connection."""


def find_source(name: str | Path, gguf_file: str | None, local_files_only: bool | None) -> Source:
    """Find out what `name` means.

    Raises:
        ModelError: it looks like a path and nothing is there, or it cannot be a hub id.
        UsageError: it is empty, or names two GGUF files.
    """
    from inward.lm.bundled import BUNDLED, bundled_path

    text = str(name)
    base, separator, inner = text.partition("::")
    if not base or (separator and gguf_file):
        raise UsageError(f"a model is a folder, a .gguf file, a hub id or 'place::file.gguf', got {text!r} with gguf_file={gguf_file!r}")
    gguf = gguf_file or inner or None
    path = bundled_path(base) if text in BUNDLED else Path(base).expanduser()
    if path.suffix.lower() == ".gguf" and gguf is None and path.is_file():
        return Source(name=text, place=str(path.parent), gguf=path.name, is_local=True, offline=True)
    if path.is_dir():
        if gguf is not None and not (path / gguf).is_file():
            there = sorted(file.name for file in path.glob("*.gguf"))
            raise ModelError(f"there is no file {gguf!r} in {str(path)!r}; GGUF files there: {', '.join(there) or 'none'}")
        return Source(name=text, place=str(path), gguf=gguf, is_local=True, offline=True)
    if path.is_file():
        raise ModelError(f"{text!r} is a file; a model is a folder, a .gguf file or a hub id")
    if (
        isinstance(name, Path)
        or base.startswith((".", "~", os.sep))
        or base.count("/") > 1
        or "\\" in base
        or path.suffix.lower() == ".gguf"
    ):
        hint = "; a file in a repository of the hub is written 'owner/name::file.gguf'" if path.suffix.lower() == ".gguf" else ""
        raise ModelMissing(f"there is no model at {base!r} (looked in {str(Path.cwd())!r}){hint}")
    if not _HUB_ID.fullmatch(base):
        raise ModelError(f"{base!r} is no folder here and cannot be a hub id (owner/name)")
    return Source(name=text, place=base, gguf=gguf, is_local=False, offline=is_offline(local_files_only))


def check_there(name: str | Path, gguf_file: str | None = None) -> None:
    """Check that a model may be where `name` says, in milliseconds: nothing heavy is imported, no connection made.

    Raises:
        ModelError: it looks like a path and nothing is there, or it is a folder that holds no model.
        UsageError: as for `find_source`.
    """
    from inward.lm.bundled import BUNDLED

    if str(name) in BUNDLED:
        return
    source = find_source(name, gguf_file, None)
    if source.is_local and source.gguf is None:
        check_configured(Path(source.place))


def is_offline(local_files_only: bool | None) -> bool:
    """Whether connections are ruled out, by the caller or by `HF_HUB_OFFLINE`."""
    if local_files_only is not None:
        return local_files_only
    from huggingface_hub.constants import HF_HUB_OFFLINE

    return bool(HF_HUB_OFFLINE)


def suggestion(name: str) -> str:
    """Return what else the name may have meant."""
    from inward.lm.bundled import BUNDLED

    near = get_close_matches(name, BUNDLED, n=1, cutoff=0.7)
    return f"; did you mean {near[0]!r}?" if near else ""


def check_folder(folder: Path, allow_unsafe_weights: bool) -> None:
    """Check that a local folder holds a model that can be read without running code.

    Raises:
        ModelError: no configuration, no weights, weights in an unsafe format, or code that would have to be run.
    """
    names = check_configured(folder)
    refuse_remote_code(read_json(folder / "config.json"), str(folder))
    check_weights(folder, names, allow_unsafe_weights)


def check_configured(folder: Path) -> list[str]:
    """Return the names of a folder's files, sorted.

    Raises:
        ModelError: there is no configuration among them, so it is no model's folder.
    """
    names = sorted(file.name for file in folder.iterdir())
    if "config.json" not in names:
        raise ModelError(f"{str(folder)!r} holds no config.json{_instead(folder, names)}")
    return names


def check_weights(folder: Path, names: list[str], allow_unsafe_weights: bool) -> None:
    """Check that weights are there, as safetensors unless something else was asked for.

    Raises:
        ModelError: there are none, or only such as may run code when they are read.
    """
    if any(name.endswith(".safetensors") for name in names):
        return
    unsafe = [name for name in names if name.endswith(_UNSAFE_SUFFIXES) and name != "training_args.bin"]
    if not unsafe:
        raise ModelError(f"{str(folder)!r} holds no weights (*.safetensors){_instead(folder, names)}")
    if not allow_unsafe_weights:
        raise ModelError(
            f"the weights in {str(folder)!r} are {unsafe[0]!r}, a format that can run code when it is read: "
            "convert them to safetensors, or pass allow_unsafe_weights=True if you trust where they come from"
        )


def refuse_remote_code(config: dict[str, Any], name: str) -> None:
    """Refuse a model whose architecture exists only as code in its repository.

    Raises:
        ModelError: it needs such code.
    """
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    if config.get("auto_map") and config.get("model_type") not in CONFIG_MAPPING:
        raise ModelError(
            f"{name!r} needs code from its repository ({', '.join(sorted(set(map(str, config['auto_map'].values()))))}), and inward runs "
            f"none: the installed transformers does not know the architecture {config.get('model_type')!r}; a newer one may"
        )


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object.

    Raises:
        ModelError: it cannot be read.
    """
    try:
        return msgspec.json.decode(path.read_bytes(), type=dict[str, Any])
    except (OSError, msgspec.DecodeError) as error:
        raise ModelError(f"{str(path)!r} cannot be read: {error}") from error


def require(module: str, feature: str, extra: str) -> ModuleType:
    """Import an optional package.

    Raises:
        MissingExtra: it is absent or broken; the message carries what the import really said.
    """
    try:
        return import_module(module)
    except BROKEN as error:
        raise MissingExtra(feature, extra, error) from error


def _instead(folder: Path, names: list[str]) -> str:
    if "adapter_config.json" in names:
        return f": it is an adapter; load its base model with adapter={str(folder)!r}"
    ggufs = [name for name in names if name.lower().endswith(".gguf")]
    return f"; for a GGUF file write {f'{folder}::{ggufs[0]}'!r}" if ggufs else ": is it the folder of a model?"
