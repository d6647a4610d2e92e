"""A prober whose verdict is in plain sight: the first number of a state says whether the model knows."""

from __future__ import annotations

import msgspec
import numpy as np
import torch

from inward.probers import Prober
from inward.probers.card import CalibrationRow, ProberCard
from inward.probers.network import Probes
from inward.prompts import PromptTemplate
from inward.types import Capture

LAYERS = (2, 5)
KNOWS, DOES_NOT = np.tile(np.float32([1, -1, 1, -1]), (2, 1)), np.tile(np.float32([-1, 1, -1, 1]), (2, 1))


def knowing_prober(*, calibration: tuple[CalibrationRow, ...] = (), model: str | None = None, **changes: object) -> Prober:
    """Return a prober with a margin of -2 a layer for `KNOWS` and +2 for `DOES_NOT`."""
    template = PromptTemplate.load()
    card = ProberCard(
        model=model or "any",
        layers=LAYERS,
        site="resid_post",
        pool="mean",
        positions="",
        width=4,
        prompt=template.fingerprint,
        stop=template.stop,
        max_tokens=template.max_tokens,
        label="answer",
        engine="",
        dtype="",
        hidden=1,
        depth=0,
        dropout=0.0,
        temperatures=(1.0, 1.0),
        confidence={"without": (0.0, -0.5), "with": (0.0, -0.25)},
    )
    probes = Probes(2, 4, hidden=1, depth=0, dropout=0.0)
    with torch.no_grad():
        probes.out.weight.zero_()
        probes.out.bias.zero_()
        probes.out.weight[:, 0, 0] = -1.0
        probes.out.weight[:, 0, 1] = 1.0
    return Prober(probes, msgspec.structs.replace(card, **changes), calibration=calibration)


def states_of(text: str, capture: Capture) -> np.ndarray:
    """Return the states of a draft: it knows what it says of Paris."""
    return KNOWS if "Paris" in text else DOES_NOT
