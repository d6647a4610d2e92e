"""Opens GGUF files through transformers: weights unpacked to full precision, and tokenizers put right."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any, NamedTuple

from inward.errors import ModelError
from inward.lm.gguf_header import GGUFHeader, read_header
from inward.lm.source import Source, require

log = logging.getLogger(__name__)

_ALIASES = {"qwen2moe": "qwen2_moe", "qwen3moe": "qwen3_moe", "gpt-oss": "gpt_oss", "minimax-m2": "minimax_m2"}
"""llama.cpp's names of architectures -> those in transformers' tables, where they differ."""
_NOT_DECODERS = {"general", "tokenizer", "t5", "umt5"}
"""Entries of transformers' table that are no decoder."""
_LIKE_GPT2 = {"", "default", "gpt-2", "gpt2", "phi-2", "mpt", "olmo", "jais", "trillion", "gigachat"}
"""Values of `tokenizer.ggml.pre` that mean GPT-2's rule, which is what transformers falls back to."""
_DIGITS_APART = {"smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b"}
"""Those that mean: first every digit apart, then GPT-2's rule (llama.cpp, src/llama-vocab.cpp)."""


class GGUFModel(NamedTuple):
    """A model read from a GGUF file, and what to note about it."""

    model: Any
    tokenizer: Any
    notes: list[str]


def fetch(source: Source, revision: str | None) -> Path:
    """Return the local path of a GGUF file, downloaded if it is on the hub."""
    assert source.gguf is not None
    if source.is_local:
        return Path(source.place) / source.gguf
    from huggingface_hub import hf_hub_download

    return Path(hf_hub_download(source.place, source.gguf, revision=revision, local_files_only=source.offline))


def open_gguf(path: Path, *, dtype: Any, config: Any = None, device_map: Any = None) -> GGUFModel:
    """Read a GGUF file; quantised weights are unpacked.

    Args:
        path: the file.
        dtype: of the unpacked weights, a torch dtype.
        config: used instead of what transformers makes of the header.
        device_map: as transformers understands it.

    Raises:
        MissingExtra: gguf or accelerate is absent or broken.
        ModelError: no GGUF file, one that was cut off, or an architecture that transformers cannot read from GGUF.
    """
    header = read_header(path)
    require("accelerate", "reading a GGUF file", "gguf")
    check_architecture(header, path)
    gigabytes = header.parameters * dtype.itemsize / 1e9
    note = f"{path.name}: {path.stat().st_size / 1e9:.2f} GB of packed weights become {gigabytes:.2f} GB of memory in {_short(dtype)}"
    log.warning(note)
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, GgufConfig

    place: dict[str, Any] = {"gguf_file": path.name, "local_files_only": True, "trust_remote_code": False}
    folder = str(path.parent)
    config = config or AutoConfig.from_pretrained(folder, **place)
    tokenizer = AutoTokenizer.from_pretrained(folder, **place)
    notes = [note, *right_tokenizer(tokenizer, header)]
    # without `dequantize` the weights stay packed where a kernel package is installed: then they are no tensors to capture from
    model = AutoModelForCausalLM.from_pretrained(
        folder, config=config, dtype=dtype, device_map=device_map, quantization_config=GgufConfig(dequantize=True), **place
    )
    return GGUFModel(model, tokenizer, notes)


def check_architecture(header: GGUFHeader, path: Path) -> None:
    """Refuse an architecture that transformers cannot read from GGUF, before anything is allocated.

    Raises:
        ModelError: naming it and those that can be read.
    """
    from transformers.modeling_gguf_pytorch_utils import GGUF_SUPPORTED_ARCHITECTURES

    known = set(GGUF_SUPPORTED_ARCHITECTURES) | _newer_architectures()
    known = known - _NOT_DECODERS
    name = header.architecture
    if name not in known and _ALIASES.get(name) not in known:
        raise ModelError(
            f"{str(path)!r} is of the architecture {name!r}, which transformers cannot read from GGUF; it reads: {', '.join(sorted(known))}"
        )


def right_tokenizer(tokenizer: Any, header: GGUFHeader) -> list[str]:
    """Split text as the vocabulary was trained to, where transformers falls back to GPT-2's rule; return what to note."""
    from tokenizers import pre_tokenizers

    rule = str(header.values.get("tokenizer.ggml.pre", ""))
    if header.values.get("tokenizer.ggml.model") != "gpt2" or rule in _LIKE_GPT2 or rule in _known_splits():
        return []
    if rule in _DIGITS_APART:
        apart = pre_tokenizers.Digits(individual_digits=True)
        letters = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence([apart, letters])
        return [f"tokenizer rule {rule!r} set: digits apart"]
    note = f"the tokenizer's rule {rule!r} is unknown here and GPT-2's is used: some texts get other tokens than in the original"
    log.warning(note)
    return [note]


def _known_splits() -> set[str]:
    try:
        from transformers.integrations.gguf.gguf_tokenizer_mapping import GGUF_PRE_TOKENIZER_SPLITS
    except ImportError:  # older transformers
        return set()
    return set(GGUF_PRE_TOKENIZER_SPLITS)


def _newer_architectures() -> set[str]:
    try:
        from transformers.integrations.gguf import GGUF_ARCHS
    except ImportError:  # older transformers
        return set()
    return set(GGUF_ARCHS)


def _short(dtype: Any) -> str:
    return str(dtype).removeprefix("torch.")
