"""A prober: a signal that reads a draft's internal states (Probing-RAG, section 3)."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self, TypeAlias

import msgspec
import numpy as np

from inward.errors import ModelError, UsageError
from inward.probers.card import FORMAT, ProberCard, check_fits
from inward.types import F32, Capture, Generation, Reading, Sampling
from inward.whole import write_whole

if TYPE_CHECKING:
    from inward.probers.network import Probes

Combine: TypeAlias = Literal["logits", "probabilities"]
CARD, WEIGHTS = "config.json", "model.safetensors"


class Prober:
    """Says of a draft how sure the model was, layer by layer. Higher is less sure.

    The value is the sum over layers of (not know - know): of calibrated logits (`combine="logits"`, the paper's sum), or of
    probabilities (`"probabilities"`, the released code's; each side then lies between 0 and the number of layers).
    """

    def __init__(self, probes: Probes, card: ProberCard, *, combine: Combine = "logits") -> None:
        """Put trained probes and their card together."""
        self.probes, self.card, self.combine = probes.eval(), card, combine
        self.name = "prober"

    @property
    def capture(self) -> Capture:
        """The pooled states of the card's layers."""
        return self.card.capture

    def wants(self, sampling: Sampling) -> Sampling:
        """Ask for nothing but the states."""
        return sampling

    async def __call__(self, generation: Generation) -> Reading:
        """Read the first completion; a draft without tokens has no states, and its value is nan."""
        return self.read(generation.states)

    def read(self, states: F32) -> Reading:
        """Read pooled states `[L, d]`; each layer's verdict is a part."""
        found = self.contributions(states[None])[0]
        parts = {f"layer {layer}": float(value) for layer, value in zip(self.card.layers, found, strict=True)}
        return Reading(value=float(found.sum()), parts=parts)

    def contributions(self, states: F32) -> F32:
        """Return (not know - know) `[B, L]` for pooled states `[B, L, d]`.

        Raises:
            UsageError: the states are of another shape than the card's.
        """
        import torch

        expected = (len(self.card.layers), self.card.width)
        if states.shape[1:] != expected:
            raise UsageError(f"this prober reads states {list(expected)}, got {list(states.shape[1:])}")
        with torch.inference_mode():
            logits = self.logits(torch.from_numpy(np.ascontiguousarray(states)))
            sides = logits.softmax(-1) if self.combine == "probabilities" else logits
            difference: F32 = (sides[..., 0] - sides[..., 1]).numpy()
        return difference

    def logits(self, states: Any) -> Any:
        """Return calibrated logits `[B, L, 2]` (a tensor) for a tensor of states `[B, L, d]`."""
        import torch

        temperatures = torch.tensor(self.card.temperatures, dtype=torch.float32)
        return self.probes(states.float()) / temperatures[:, None]

    def check(self, **here: Any) -> list[str]:
        """Compare the card with what is in force; see `check_fits`."""
        return check_fits(self.card, here)

    # -- on the disk -------------------------------------------------------------------------------------------

    def save_pretrained(self, folder: str | Path) -> None:
        """Write `config.json`, `model.safetensors` and a README into a folder, each whole or not at all."""
        from safetensors.torch import save

        from inward.probers.network import split

        path = Path(folder)
        path.mkdir(parents=True, exist_ok=True)
        write_whole(path / WEIGHTS, save(split(self.probes, self.card.layers)))
        write_whole(path / CARD, msgspec.json.format(msgspec.json.encode(self.card), indent=1) + b"\n")

    @classmethod
    def from_pretrained(
        cls,
        name: str | Path,
        *,
        combine: Combine = "logits",
        revision: str | None = None,
        cache_dir: str | Path | None = None,
        local_files_only: bool | None = None,
        token: str | None = None,
    ) -> Self:
        """Open a prober.

        Args:
            name: a folder, or the id of a repository on the hub.
            combine: what is summed over the layers.
            revision: branch, tag or commit of a repository.
            cache_dir: where downloads are kept.
            local_files_only: make no connection.
            token: for a private repository.

        Raises:
            ModelError: there is none, it is of a newer format, or a weight is missing, foreign or of another shape.
        """
        path = Path(name)
        if not path.is_dir():
            path = _download(str(name), revision=revision, cache_dir=cache_dir, local_files_only=local_files_only, token=token)
        card = _read_card(path)
        return cls(_read_probes(path, card), card, combine=combine)


def _read_card(path: Path) -> ProberCard:
    if not (path / CARD).is_file():
        unsafe = sorted(file.name for file in path.glob("*.p*t*")) + sorted(file.name for file in path.glob("*.pkl"))
        hint = f"; {unsafe[0]!r} is no prober of this kind: train one with `inward prober train`" if unsafe else ""
        raise ModelError(f"{str(path)!r} holds no {CARD}: it is no prober{hint}")
    raw = (path / CARD).read_bytes()
    try:
        said = msgspec.json.decode(raw)
        newer = isinstance(said, dict) and isinstance(said.get("format"), int) and said["format"] > FORMAT
        if newer:
            raise ModelError(f"the prober in {str(path)!r} is of format {said['format']}, this version reads up to {FORMAT}: update inward")
        return msgspec.json.decode(raw, type=ProberCard)
    except msgspec.DecodeError as error:
        raise ModelError(f"{CARD} of the prober in {str(path)!r} cannot be read ({error})") from error


def _read_probes(path: Path, card: ProberCard) -> Probes:
    from safetensors import SafetensorError
    from safetensors.torch import load

    from inward.probers.network import Probes, join, split

    if not (path / WEIGHTS).is_file():
        raise ModelError(f"{str(path)!r} holds no {WEIGHTS}")
    try:
        weights = load((path / WEIGHTS).read_bytes())
    except SafetensorError as error:
        raise ModelError(f"{WEIGHTS} of the prober in {str(path)!r} is damaged ({error})") from error
    probes = Probes(len(card.layers), card.width, hidden=card.hidden, depth=card.depth, dropout=card.dropout)
    expected = split(probes, card.layers)
    for name in sorted(expected.keys() ^ weights.keys()):
        raise ModelError(f"{WEIGHTS} of the prober in {str(path)!r} {'has a foreign' if name in weights else 'lacks a'} tensor {name!r}")
    for name, tensor in expected.items():
        if weights[name].shape != tensor.shape:
            raise ModelError(f"{name} of the prober in {str(path)!r} is {list(weights[name].shape)}, its card says {list(tensor.shape)}")
    if len(card.temperatures) != len(card.layers):
        raise ModelError(f"the prober in {str(path)!r} has {len(card.temperatures)} temperatures for {len(card.layers)} layers")
    probes.load_state_dict(join(weights, card.layers))
    return probes


def _download(name: str, **options: Any) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    from inward.lm.source import is_offline

    offline = is_offline(options.pop("local_files_only"))
    try:
        return Path(snapshot_download(name, allow_patterns=[CARD, WEIGHTS, "README.md"], local_files_only=offline, **options))
    except (HFValidationError, HfHubHTTPError, LocalEntryNotFoundError, OSError) as error:
        first = (str(error).splitlines() or [""])[0]
        raise ModelError(f"there is no prober {name!r}, neither as a folder nor on the hub ({first})") from error
