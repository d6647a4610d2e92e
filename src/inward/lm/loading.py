"""Opens a model and its tokenizer: hub ids, folders and GGUF files, adapters and quantised weights.

Code from a repository is never run, and files that may hold code (pickles) are only read when asked for by name.
What cannot work is refused before weights are read. A local folder or file makes no connection.
"""

from __future__ import annotations

import errno
import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias

from inward.errors import ModelError, StorageFull, UnknownName, UsageError
from inward.lm.adapters import apply_adapter, fetch_adapter
from inward.lm.bundled import licence_notes
from inward.lm.gguf_model import fetch, open_gguf
from inward.lm.source import Source, check_folder, find_source, require, suggestion

log = logging.getLogger(__name__)

Quantization: TypeAlias = Literal["8bit", "4bit"]

_DTYPES = {"float32": "float32", "fp32": "float32", "float16": "float16", "fp16": "float16", "bfloat16": "bfloat16", "bf16": "bfloat16"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """A model, ready to run."""

    model: Any
    """A decoder of transformers: evaluation mode, no gradients, on its device."""
    tokenizer: Any
    generation_config: Any
    """Where the end tokens come from."""
    name: str
    chat_template: str = "auto"
    """`"auto"`, `"none"`, or the path of a Jinja file."""
    notes: tuple[str, ...] = ()
    """What a reader of results should know: licence, memory, corrections made."""


class _Opened(NamedTuple):
    model: Any
    tokenizer: Any
    notes: list[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Placement:
    """Where the weights go, and as what."""

    device: Any
    device_map: Any
    dtype: Any
    quantization: Quantization | None


def load_pretrained(
    name: str | Path,
    *,
    revision: str | None = None,
    dtype: str = "auto",
    device: str = "auto",
    device_map: Any = None,
    quantization: Quantization | None = None,
    adapter: str | Path | None = None,
    allow_unsafe_weights: bool = False,
    chat_template: str = "auto",
    local_files_only: bool | None = None,
    gguf_file: str | None = None,
) -> Loaded:
    """Open a causal language model.

    Args:
        name: `"demo"`, a folder, a `.gguf` file, a hub id, or `"folder or id::file.gguf"`.
        revision: branch, tag or commit of a hub id.
        dtype: `"float32"`, `"bfloat16"`, `"float16"`, or `"auto"`: float32 on a CPU, the model's own elsewhere.
        device: `"cpu"`, `"cuda"`, `"cuda:1"`, …, or `"auto"`: a GPU if there is one.
        device_map: spread over devices, as transformers understands it (`"auto"`, a mapping); needs accelerate.
        quantization: `"8bit"` or `"4bit"` weights by bitsandbytes.
        adapter: folder or hub id of a LoRA adapter; merged into the weights unless these are quantised.
        allow_unsafe_weights: also read weights that are neither safetensors nor GGUF (pickles can run code).
        chat_template: `"auto"` (the tokenizer's own), `"none"`, or the path of a Jinja file.
        local_files_only: make no connection; default: what `HF_HUB_OFFLINE` says, and always for local files.
        gguf_file: a file inside the folder or repository `name`.

    Raises:
        ModelError: there is no such model, or it cannot be used; nothing was allocated in most cases.
        MissingExtra: an optional package is absent or broken.
        UsageError: an option that means nothing.
        StorageFull: a download found no room.
    """
    source = find_source(name, gguf_file, local_files_only)
    placement = _placement(dtype, device, device_map, quantization)
    if chat_template not in ("auto", "none") and not Path(chat_template).expanduser().is_file():
        raise UsageError(f"chat_template must be 'auto', 'none' or the path of a Jinja file, got {chat_template!r}")
    with _explained(source), quiet():
        lora = None if adapter is None else fetch_adapter(adapter, local_files_only, allow_unsafe_weights)
        if source.gguf is None:
            model, tokenizer, notes = _open(source, placement, revision, allow_unsafe_weights)
        else:
            model, tokenizer, notes = _open_gguf(source, placement, revision)
        if lora is not None:
            model, note = apply_adapter(model, lora, merge=quantization is None)
            notes.append(note)
        if device_map is None and quantization is None:
            model = model.to(placement.device)
    model.eval().requires_grad_(False)
    _check_vocabulary(model, tokenizer, notes)
    for note in notes:
        log.info("%s: %s", source.name, note)
    return Loaded(
        model=model,
        tokenizer=tokenizer,
        generation_config=model.generation_config,
        name=source.name,
        chat_template=chat_template,
        notes=tuple(notes),
    )


def _placement(dtype: str, device: str, device_map: Any, quantization: Quantization | None) -> _Placement:
    """Check the options that say where weights go, before anything is read."""
    import torch

    if quantization not in (None, "8bit", "4bit"):
        raise UsageError(f"quantization must be '8bit', '4bit' or None, got {quantization!r}")
    if quantization is not None:
        require("bitsandbytes", f"{quantization} weights", "quantized")
        require("accelerate", f"{quantization} weights", "quantized")
    if device_map is not None:
        require("accelerate", "device_map", "device-map")
    try:
        place = torch.device(("cuda" if torch.cuda.is_available() else "cpu") if device == "auto" else device)
    except RuntimeError as error:
        raise UsageError(f"device must be 'auto', 'cpu', 'cuda', 'cuda:1', …, got {device!r}: {error}") from error
    if place.type == "cuda" and not torch.cuda.is_available():
        raise UsageError(f"device {device!r} was asked for, and torch {torch.__version__} sees no CUDA device here")
    if dtype != "auto" and dtype not in _DTYPES:
        raise UnknownName("dtype", str(dtype), ["auto", *_DTYPES])
    on_cpu = place.type == "cpu" and device_map is None
    chosen: Any = ("auto" if not on_cpu else torch.float32) if dtype == "auto" else getattr(torch, _DTYPES[dtype])
    return _Placement(device=place, device_map=device_map, dtype=chosen, quantization=quantization)


def _open(source: Source, placement: _Placement, revision: str | None, allow_unsafe_weights: bool) -> _Opened:
    """Read a folder or a repository of the hub."""
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

    if source.is_local:
        check_folder(Path(source.place), allow_unsafe_weights)
    common: dict[str, Any] = {"local_files_only": source.offline, "trust_remote_code": False}
    if revision is not None:
        common["revision"] = revision
    config = AutoConfig.from_pretrained(source.place, **common)
    _check_decoder(config, source)
    tokenizer = AutoTokenizer.from_pretrained(source.place, **common)
    options: dict[str, Any] = {"device_map": placement.device_map, "use_safetensors": None if allow_unsafe_weights else True}
    if placement.quantization is not None:
        from transformers import BitsAndBytesConfig

        options["quantization_config"] = BitsAndBytesConfig(**{f"load_in_{placement.quantization}": True})
        options["device_map"] = placement.device_map or {"": placement.device}
    model, info = AutoModelForCausalLM.from_pretrained(
        source.place, config=config, dtype=placement.dtype, output_loading_info=True, **options, **common
    )
    if missing := sorted(info["missing_keys"]):
        raise ModelError(f"the weights of {source.name!r} lack {len(missing)} tensors, such as {missing[0]!r}: is the folder whole?")
    notes = [f"{placement.quantization} weights"] if placement.quantization else []
    return _Opened(model, tokenizer, [*notes, *licence_notes(Path(source.place))])


def _open_gguf(source: Source, placement: _Placement, revision: str | None) -> _Opened:
    import torch

    if placement.quantization is not None:
        raise UsageError(f"quantization={placement.quantization!r} cannot be combined with a GGUF file, which is unpacked when it is read")
    dtype = torch.float32 if placement.dtype == "auto" else placement.dtype
    return _Opened(*open_gguf(fetch(source, revision), dtype=dtype, device_map=placement.device_map))


def _check_decoder(config: Any, source: Source) -> None:
    from transformers import MODEL_FOR_CAUSAL_LM_MAPPING

    if type(config) not in MODEL_FOR_CAUSAL_LM_MAPPING or getattr(config, "is_encoder_decoder", False):
        raise ModelError(f"{source.name!r} ({config.model_type}) is no causal language model: it cannot continue a text")


def _check_vocabulary(model: Any, tokenizer: Any, notes: list[str]) -> None:
    rows = model.get_input_embeddings().weight.shape[0]
    if len(tokenizer) > rows:
        notes.append(f"the tokenizer knows {len(tokenizer)} tokens and the model {rows}: the last ones cannot be used")


@contextmanager
def _explained(source: Source) -> Iterator[None]:
    """Turn what the libraries below raise into errors that name the model and the remedy."""
    import torch
    from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError
    from safetensors import SafetensorError

    try:
        yield
    except torch.OutOfMemoryError as error:
        raise ModelError(
            f"{source.name!r} does not fit the device: {error}; try dtype='bfloat16', quantization='4bit' or device_map='auto'"
        ) from error
    except LocalEntryNotFoundError as error:
        raise ModelError(_absent(source)) from error
    except OSError as error:
        if error.errno == errno.ENOSPC:
            raise StorageFull(f"no room left on the disk while {source.name!r} was fetched: {error}") from error
        text = str(error)
        if not source.is_local and ("connect" in text or "offline" in text or "not a local folder" in text):
            raise ModelError(_absent(source)) from error
        unsafe = "; pass allow_unsafe_weights=True if you trust where it comes from" if "safetensors" in text else ""
        raise ModelError(f"{source.name!r} cannot be opened: {_first_line(text)}{unsafe}") from error
    except (ValueError, KeyError, TypeError, ImportError, RuntimeError, SafetensorError, HFValidationError) as error:
        if "trust_remote_code" in str(error):
            raise ModelError(f"{source.name!r} needs code from its repository, and inward runs none: {_first_line(str(error))}") from error
        raise ModelError(f"{source.name!r} cannot be opened: {type(error).__name__}: {_first_line(str(error))}") from error


def _absent(source: Source) -> str:
    where = "and the hub was not asked (offline)" if source.offline else "and the hub has none of that name, or could not be reached"
    return (
        f"there is no model {source.name!r} on this machine, neither as a folder nor in the hub's cache, {where}{suggestion(source.name)}: "
        f"check the name, or fetch it once with a connection (`hf download {source.place}`; gated ones after `hf auth login`)"
    )


def _first_line(text: str) -> str:
    lines = [line.strip() for line in text.strip().splitlines() if line.strip()]
    return " ".join(lines[:2])


@contextmanager
def quiet() -> Iterator[None]:
    """Show the progress bars of transformers on a terminal only."""
    import transformers.modeling_gguf_pytorch_utils as gguf_bars
    from transformers.utils import logging as bars

    if sys.stderr.isatty() or not bars.is_progress_bar_enabled():
        yield
        return
    own = gguf_bars.tqdm  # this one does not ask whether bars are enabled
    bars.disable_progress_bar()
    gguf_bars.tqdm = partial(own, disable=True)
    try:
        yield
    finally:
        gguf_bars.tqdm = own
        bars.enable_progress_bar()
