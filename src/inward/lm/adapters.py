"""LoRA adapters: fetched and checked before the base model is read, merged into its weights afterwards."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any, NamedTuple

from inward.errors import ModelError
from inward.lm.source import check_weights, is_offline, read_json, require


class Adapted(NamedTuple):
    """A model with its adapter, and what to note about it."""

    model: Any
    note: str


def fetch_adapter(adapter: str | Path, local_files_only: bool | None, allow_unsafe_weights: bool) -> Path:
    """Return the folder of a LoRA adapter, downloaded if it is a hub id.

    Raises:
        MissingExtra: peft is absent or broken.
        ModelError: there is no such adapter, it is of another kind, or its weights may hold code.
    """
    require("peft", "a LoRA adapter", "lora")
    folder = Path(adapter).expanduser()
    if not folder.is_dir():
        folder = _download(str(adapter), is_offline(local_files_only), allow_unsafe_weights)
    if not (folder / "adapter_config.json").is_file():
        raise ModelError(f"{str(adapter)!r} holds no adapter_config.json: is it the folder of a LoRA adapter?")
    kind = read_json(folder / "adapter_config.json").get("peft_type")
    if kind != "LORA":
        raise ModelError(f"{str(adapter)!r} is an adapter of kind {kind!r}; only LORA is supported")
    check_weights(folder, sorted(file.name for file in folder.iterdir()), allow_unsafe_weights)
    return folder


def apply_adapter(model: Any, folder: Path, *, merge: bool) -> Adapted:
    """Put a LoRA adapter into a model: added to its weights, or beside them where these are quantised.

    Either way the blocks keep their places, so that captures find them.

    Raises:
        ModelError: the adapter was made for another model.
    """
    from peft import PeftModel

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # peft calls what transformers is about to rename
        warnings.filterwarnings("error", message="Found missing adapter keys")
        try:
            wrapped = PeftModel.from_pretrained(model, str(folder), is_trainable=False)
        except (UserWarning, ValueError, RuntimeError, KeyError) as error:
            raise ModelError(f"the adapter {str(folder)!r} does not fit the model: {error}") from error
    base = read_json(folder / "adapter_config.json").get("base_model_name_or_path")
    how = "merged into the weights" if merge else "applied beside the quantised weights"
    return Adapted(
        wrapped.merge_and_unload() if merge else wrapped.get_base_model(), f"adapter {folder.name!r} (trained on {base!r}) {how}"
    )


def _download(adapter: str, offline: bool, allow_unsafe_weights: bool) -> Path:
    from huggingface_hub import snapshot_download

    patterns = ["adapter_config.json", "*.safetensors", *(["*.bin"] if allow_unsafe_weights else [])]
    return Path(snapshot_download(adapter, allow_patterns=patterns, local_files_only=offline))
