"""What a prober says of itself: what it reads, what it was made from, and where it was measured.

A prober is bound to what its numbers depend on. Another model, layer, site, pooling, prompt or stop is refused by name of the field;
another engine or number format is warned of.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from inward.calibration import Threshold
from inward.errors import UsageError
from inward.types import Capture, Pool, Site

FORMAT = 1


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """How the probes did on questions that they were not trained on, within one data set and mode."""

    data: str
    mode: Literal["without", "with", "all"]
    """Whether the drafts were written without or with passages."""
    right: int
    wrong: int
    accuracy: dict[str, float]
    """Layer, or "combined" -> share of drafts judged rightly at even odds."""
    auroc: dict[str, float | None]
    ece: dict[str, float]


class CalibrationRow(msgspec.Struct, frozen=True, kw_only=True):
    """A question that thresholds are chosen on; a line of `calibration.jsonl`."""

    data: str
    margins: tuple[float, ...]
    """`[L]` calibrated logits of the draft without passages, not know - know."""
    right_without: bool
    right_with: bool | None = None
    """None where there were no passages: skipping such a question loses nothing that is known of."""

    @property
    def lost(self) -> bool:
        """Whether an answer without passages is wrong that passages would have put right."""
        return not self.right_without and bool(self.right_with)


class ProberCard(msgspec.Struct, frozen=True, kw_only=True):
    """The card of a prober, `config.json` in its folder."""

    format: int = FORMAT
    # -- what its numbers depend on
    model: str
    """Fingerprint of the model: configuration, tokenizer, template, a sample of every weight."""
    layers: tuple[int, ...]
    """0-based blocks."""
    site: Site
    pool: Pool
    positions: str
    """Which tokens' states are pooled, in words."""
    width: int
    """Of the states."""
    prompt: str
    """Fingerprint of the prompt file."""
    stop: tuple[str, ...]
    max_tokens: int
    label: str
    """What counted as right in training."""
    # -- what they may depend on
    engine: str
    dtype: str
    quantization: str | None = None
    flip_rate: float | None = None
    """Share of verdicts that another engine or dtype changed, where it was measured."""
    # -- the network
    hidden: int
    depth: int
    dropout: float
    temperatures: tuple[float, ...]
    """One a layer; logits are divided by it."""
    # -- how it was made
    model_name: str = ""
    inward: str = ""
    rows: dict[str, int] = {}
    """Part (train, early-stopping, calibration, test) and mode -> drafts."""
    right: dict[str, int] = {}
    """The same -> right ones among them."""
    question_hashes: tuple[str, ...] = ()
    """Of every question that any part has seen, see `inward.evals.questions.text_hash`."""
    sources: tuple[str, ...] = ()
    training: dict[str, Any] = {}
    measured: tuple[Measured, ...] = ()
    thresholds: tuple[Threshold, ...] = ()
    """On the sum of logits. The first is what is used unless another is asked for."""
    confidence: dict[str, tuple[float, float]] = {}
    """Mode -> (a, b): an answer is right with probability 1 / (1 + exp(-(a + b x))), x being the sum of logits, not know - know."""
    notes: tuple[str, ...] = ()

    @property
    def capture(self) -> Capture:
        """The states that it reads."""
        return Capture(layers=self.layers, site=self.site, pool=self.pool)


_BOUND = ("model", "prompt", "stop", "max_tokens")
_WARNED = ("engine", "dtype", "quantization")


def check_fits(card: ProberCard, here: Mapping[str, Any]) -> list[str]:
    """Compare what a prober was made for with what it meets; return warnings.

    Args:
        card: of the prober.
        here: field -> what is in force; fields that are not in it are not known and not compared.

    Raises:
        UsageError: a field that its numbers depend on differs; the message names it with both values.
    """
    for name in _BOUND:
        made, found = getattr(card, name), here.get(name)
        if name in here and made != found:
            raise UsageError(
                f"this prober was made for {name} {made!r}, and meets {found!r}: train one for it, or use what it was made for"
            )
    warnings = []
    for name in _WARNED:
        made, found = getattr(card, name), here.get(name)
        if name in here and made != found:
            flips = "not measured" if card.flip_rate is None else f"{card.flip_rate:.2%}"
            said = f"this prober was made with {name} {made!r}, and meets {found!r}"
            warnings.append(f"{said}; share of verdicts that such a change flips: {flips}")
    return warnings
