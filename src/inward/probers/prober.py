"""A prober: a signal that reads a draft's internal states (Probing-RAG, section 3)."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import cached_property
from importlib import resources
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self, TypeAlias

import msgspec
import numpy as np

from inward.batching import Batcher
from inward.calibration import Threshold, choose_threshold
from inward.errors import ModelError, UsageError
from inward.probers.card import FORMAT, CalibrationRow, ProberCard, check_fits
from inward.types import F32, Capture, Generation, Reading, Sampling
from inward.whole import write_whole

if TYPE_CHECKING:
    from inward.probers.network import Probes

Combine: TypeAlias = Literal["logits", "probabilities"]
CARD, WEIGHTS, CALIBRATION = "config.json", "model.safetensors", "calibration.jsonl"
_TOGETHER = 4096
"""Drafts read in one product at most."""
_CERTAIN = 1 - 1e-7


class Prober:
    """Says of a draft how sure the model was, layer by layer. Higher is less sure.

    The value is the sum over layers of (not know - know): of calibrated logits (`combine="logits"`, the paper's sum), or of
    probabilities (`"probabilities"`, the released code's; each side then lies between 0 and the number of layers).
    """

    def __init__(
        self, probes: Probes, card: ProberCard, *, combine: Combine = "logits", calibration: Sequence[CalibrationRow] = ()
    ) -> None:
        """Put trained probes, their card and the questions that thresholds are chosen on together."""
        self.probes, self.card, self.combine, self.calibration = probes.eval(), card, combine, tuple(calibration)
        self.name = "prober"
        self._batcher: Batcher[F32, F32] = Batcher(self._margins_of, lambda _: 1, _TOGETHER)

    @property
    def capture(self) -> Capture:
        """The pooled states of the card's layers."""
        return self.card.capture

    @cached_property
    def fingerprint(self) -> str:
        """Hash over card and weights."""
        from safetensors.torch import save

        from inward.probers.network import split

        digest = hashlib.sha256(msgspec.json.encode(self.card))
        digest.update(save(split(self.probes, self.card.layers)))
        return digest.hexdigest()[:16]

    @property
    def identity(self) -> str:
        """Name, sum and fingerprint: what a run is known by."""
        return f"{self.name}({self.combine}) {self.fingerprint}"

    def combined(self, combine: Combine) -> Prober:
        """Return the same probes with another sum over the layers."""
        return self if combine == self.combine else Prober(self.probes, self.card, combine=combine, calibration=self.calibration)

    def wants(self, sampling: Sampling) -> Sampling:
        """Ask for nothing but the states."""
        return sampling

    async def __call__(self, generation: Generation) -> Reading:
        """Read the first completion, together with whatever else is read now; a draft without tokens has no states: its value is nan."""
        return self._reading(await self._batcher(self._checked(generation.states)))

    def read(self, states: F32) -> Reading:
        """Read pooled states `[L, d]`; each layer's verdict is a part."""
        return self._reading(self.margins(states[None])[0])

    def margins(self, states: F32) -> F32:
        """Return calibrated logits, not know - know, `[B, L]` for pooled states `[B, L, d]`.

        Raises:
            UsageError: the states are of another shape than the card's.
        """
        import torch

        self._checked(states[0] if len(states) else states.reshape(states.shape[1:]))
        with torch.inference_mode():
            logits = self.logits(torch.from_numpy(np.ascontiguousarray(states)))
            difference: F32 = (logits[..., 0] - logits[..., 1]).numpy()
        return difference

    def contributions(self, margins: F32) -> F32:
        """Return what each layer adds to the value, for its margins: logits as they are, or probabilities."""
        return np.tanh(margins / 2) if self.combine == "probabilities" else margins

    def logits(self, states: Any) -> Any:
        """Return calibrated logits `[B, L, 2]` (a tensor) for a tensor of states `[B, L, d]`."""
        import torch

        temperatures = torch.tensor(self.card.temperatures, dtype=torch.float32)
        return self.probes(states.float()) / temperatures[:, None]

    def confidence(self, reading: Reading, *, with_passages: bool) -> float | None:
        """Return the calibrated probability that the answer read is right; None where the card has none for its kind."""
        from scipy.special import expit

        fitted = self.card.confidence.get("with" if with_passages else "without")
        parts = np.array(list(reading.parts.values()))
        if fitted is None or not np.isfinite(parts).all():
            return None
        margins = 2 * np.arctanh(np.clip(parts, -_CERTAIN, _CERTAIN)) if self.combine == "probabilities" else parts
        a, b = fitted
        return float(expit(a + b * margins.sum()))

    def threshold(self, wanted: float | str | None = None) -> Threshold:
        """Return a threshold for this prober's sum.

        Args:
            wanted: a number; a name such as "balanced" or "max-skip-error=0.05", chosen on the calibration questions that come with the
                prober; a file that `inward prober calibrate` wrote; None is the first of the card.

        Raises:
            UsageError: a name that does not exist, a file of the other sum, a number beyond what the sum can reach, or no calibration.
            BadInput: the calibration questions are too few for the guarantee.
        """
        if wanted is None:
            if not self.card.thresholds:
                raise UsageError("this prober's card has no threshold: pass threshold=..., or run `inward prober calibrate`")
            wanted = self.card.thresholds[0].name
        if isinstance(wanted, str) and wanted.endswith(".json"):
            return self._from_file(Path(wanted))
        if not isinstance(wanted, str):
            return self._number(float(wanted))
        if not self.calibration:
            raise UsageError(f"threshold {wanted!r} needs calibration questions, and this prober has none: run `inward prober calibrate`")
        values = self.contributions(np.array([row.margins for row in self.calibration], np.float32)).sum(1)
        wrong = [not row.right_without for row in self.calibration]
        chosen = choose_threshold(wanted, values.tolist(), wrong=wrong, lost=[row.lost for row in self.calibration])
        return msgspec.structs.replace(chosen, scale=self.combine)

    def _number(self, value: float) -> Threshold:
        layers = len(self.card.layers)
        if self.combine == "probabilities" and isfinite(value) and abs(value) > layers:
            raise UsageError(
                f"a sum of probabilities over {layers} layers lies between -{layers} and {layers}, and the threshold is {value:g}: "
                "is it one of summed logits? Use combine='logits', or another threshold"
            )
        return Threshold(value=value, name=f"{value:g}", n=0, retrieval_rate=float("nan"), scale=self.combine)

    def _from_file(self, path: Path) -> Threshold:
        try:
            found = msgspec.json.decode(path.read_bytes(), type=Threshold)
        except OSError as error:
            raise UsageError(f"no threshold can be read at {str(path)!r} ({error.strerror})") from error
        except msgspec.DecodeError as error:
            raise UsageError(f"{str(path)!r} holds no threshold ({error})") from error
        if found.scale != self.combine:
            raise UsageError(f"the threshold in {str(path)!r} is one of summed {found.scale or 'values'}; this prober sums {self.combine}")
        return found

    def _reading(self, margins: F32) -> Reading:
        found = self.contributions(margins)
        parts = {f"layer {layer}": float(value) for layer, value in zip(self.card.layers, found, strict=True)}
        return Reading(value=float(found.sum()), parts=parts)

    def _margins_of(self, states: Sequence[F32]) -> list[F32]:
        return list(self.margins(np.stack(states)))

    def _checked(self, states: F32) -> F32:
        expected = (len(self.card.layers), self.card.width)
        if states.shape != expected:
            raise UsageError(f"this prober reads states {list(expected)}, got {list(states.shape)}")
        return states

    def check(self, **here: Any) -> list[str]:
        """Compare the card with what is in force; see `check_fits`."""
        return check_fits(self.card, here)

    # -- on the disk -------------------------------------------------------------------------------------------

    def save_pretrained(self, folder: str | Path) -> None:
        """Write `config.json`, `model.safetensors` and `calibration.jsonl` into a folder, each whole or not at all."""
        from safetensors.torch import save

        from inward.probers.network import split

        path = Path(folder)
        path.mkdir(parents=True, exist_ok=True)
        write_whole(path / WEIGHTS, save(split(self.probes, self.card.layers)))
        write_whole(path / CALIBRATION, b"".join(msgspec.json.encode(row) + b"\n" for row in self.calibration))
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
            name: a folder, the id of a repository on the hub, or "demo" for the one that comes with the bundled model.
            combine: what is summed over the layers.
            revision: branch, tag or commit of a repository.
            cache_dir: where downloads are kept.
            local_files_only: make no connection.
            token: for a private repository.

        Raises:
            ModelError: there is none, it is of a newer format, or a weight is missing, foreign or of another shape.
        """
        path = Path(name) if name != "demo" else Path(str(resources.files("inward") / "data" / "prober"))
        if name == "demo" and not path.is_dir():
            raise ModelError("no prober comes with this version for the bundled model: make one with `inward prober train`")
        if not path.is_dir():
            path = _download(str(name), revision=revision, cache_dir=cache_dir, local_files_only=local_files_only, token=token)
        card = _read_card(path)
        return cls(_read_probes(path, card), card, combine=combine, calibration=_read_calibration(path, card))


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


def _read_calibration(path: Path, card: ProberCard) -> list[CalibrationRow]:
    file = path / CALIBRATION
    rows = []
    for number, line in enumerate(file.read_bytes().splitlines() if file.is_file() else (), 1):
        try:
            rows.append(msgspec.json.decode(line, type=CalibrationRow))
        except msgspec.DecodeError as error:
            raise ModelError(f"{CALIBRATION} of the prober in {str(path)!r}, line {number}, cannot be read ({error})") from error
        if len(rows[-1].margins) != len(card.layers):
            many = f"{len(rows[-1].margins)} margins for {len(card.layers)} layers"
            raise ModelError(f"{CALIBRATION} of the prober in {str(path)!r}, line {number}, has {many}")
    return rows


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
        return Path(snapshot_download(name, allow_patterns=[CARD, WEIGHTS, CALIBRATION, "README.md"], local_files_only=offline, **options))
    except (HFValidationError, HfHubHTTPError, LocalEntryNotFoundError, OSError) as error:
        first = (str(error).splitlines() or [""])[0]
        raise ModelError(f"there is no prober {name!r}, neither as a folder nor on the hub ({first})") from error
