"""Training the probes of all layers together, on features that were written once (Probing-RAG, section 3.2)."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import exp, log
from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from inward.errors import BadInput, UnknownName
from inward.probers.network import DEPTH, DROPOUT, HIDDEN, KNOWS, Probes
from inward.types import F32

Bools: TypeAlias = NDArray[np.bool_]
PARTS = ("train", "early-stopping", "calibration", "test")
SHARES: Mapping[str, float] = {"train": 0.6, "early-stopping": 0.1, "calibration": 0.2, "test": 0.1}


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """How probes are trained."""

    hidden: int = HIDDEN
    depth: int = DEPTH
    dropout: float = DROPOUT
    learning_rate: float = 1e-4
    weight_decay: float = 0.01
    batch: int = 64
    epochs: int = 60
    patience: int = 8
    """Epochs without a better layer on the early-stopping part after which training ends."""
    schedule: float = 1.0
    """The learning rate is multiplied by it after every step."""
    select: str = "auroc"
    """What is best on the early-stopping part: `auroc` or `accuracy`."""
    weighted: bool = True
    """Weigh the classes equally where one has fewer rows."""
    seed: int = 0


RECIPES: Mapping[str, Recipe] = {
    "fixed": Recipe(),
    "paper": Recipe(learning_rate=1e-3, batch=12, epochs=2, patience=2, select="accuracy", weighted=False),
    "code": Recipe(learning_rate=1e-4, batch=8, epochs=2, patience=2, schedule=0.995, select="accuracy", weighted=False),
}
"""Name -> recipe. `paper` and `code` have the published numbers (where they differ, section 4 of the decision page says which is
which); the released code's softmax before its cross-entropy is left out of all of them."""


@dataclass(slots=True, kw_only=True)
class Trained:
    """Probes, and how they came to be."""

    probes: Probes
    temperatures: tuple[float, ...]
    """One a layer."""
    history: list[list[float]] = field(default_factory=list)
    """Epoch -> what each layer reached on the early-stopping part."""
    best_epochs: tuple[int, ...] = ()


def recipe(name: str) -> Recipe:
    """Return a recipe by name.

    Raises:
        UnknownName: there is none of that name.
    """
    if name not in RECIPES:
        raise UnknownName("recipe", name, RECIPES)
    return RECIPES[name]


def part_questions(strata: Mapping[str, str], *, shares: Mapping[str, float] = SHARES, seed: int = 0) -> dict[str, str]:
    """Assign every question to one part, within each stratum in the same shares.

    Both drafts of a question, without and with passages, go with the question. A question's part depends on its id, its stratum and
    the seed, and hardly on which others are there: more questions leave most of them where they were.

    Args:
        strata: question id -> stratum, such as its data set.
        shares: part -> share; they need not sum to one.
        seed: another seed, another assignment.
    """
    groups: dict[str, list[str]] = {}
    for id, stratum in strata.items():
        groups.setdefault(stratum, []).append(id)
    bounds = np.cumsum([shares[name] for name in shares]) / sum(shares.values())
    parts: dict[str, str] = {}
    for stratum, ids in groups.items():
        ranked = sorted(ids, key=lambda id: (_rank(seed, stratum, id), id))
        for place, id in enumerate(ranked):
            parts[id] = list(shares)[int(np.searchsorted(bounds, (place + 0.5) / len(ranked)))]
    return parts


def _rank(seed: int, stratum: str, id: str) -> bytes:
    return hashlib.blake2b(f"{seed}\0{stratum}\0{id}".encode("utf-8", "surrogatepass"), digest_size=8).digest()


def train(states: F32, right: Bools, early_states: F32, early_right: Bools, how: Recipe | None = None) -> Trained:
    """Train one probe a layer, all at once, keep each layer's best epoch, and scale its temperature.

    Args:
        states: `[N, L, d]` pooled states of drafts.
        right: `[N]` whether each draft is right.
        early_states: `[M, L, d]` of other questions, for early stopping and temperatures.
        early_right: `[M]`.
        how: None is the recipe `fixed`.

    Raises:
        BadInput: a part has right answers only, or wrong ones only, or states that are not finite.
    """
    how = how or Recipe()
    for name, labels, rows in (("train", right, states), ("early-stopping", early_right, early_states)):
        _check(name, labels, rows)
    generator = torch.Generator().manual_seed(how.seed)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(how.seed)
        probes = Probes(states.shape[1], states.shape[2], hidden=how.hidden, depth=how.depth, dropout=how.dropout)
        return _fit(probes, _tensors(states, right), _tensors(early_states, early_right), how, generator)


@dataclass(frozen=True, slots=True)
class _Rows:
    states: Tensor
    labels: Tensor


def _tensors(states: F32, right: Bools) -> _Rows:
    labels = torch.from_numpy(np.where(right, KNOWS, 1 - KNOWS).astype(np.int64))
    return _Rows(torch.from_numpy(np.ascontiguousarray(states, np.float32)), labels)


def _check(name: str, right: Bools, states: F32) -> None:
    yes, no = int(right.sum()), int((~right).sum())
    if not yes or not no:
        raise BadInput(
            f"the {name} part has {yes} right and {no} wrong drafts: a prober needs both; add questions, or choose another label"
        )
    if not np.isfinite(states).all():
        rows = int((~np.isfinite(states).all(axis=(1, 2))).sum())
        raise BadInput(f"the {name} part has {rows} drafts whose states are not finite; leave empty drafts out")


def _fit(probes: Probes, rows: _Rows, early: _Rows, how: Recipe, generator: torch.Generator) -> Trained:
    weights = _class_weights(rows.labels) if how.weighted else None
    optimiser = torch.optim.AdamW(probes.parameters(), lr=how.learning_rate, weight_decay=how.weight_decay)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimiser, how.schedule)
    layers = rows.states.shape[1]
    best = torch.full((layers,), -1.0)
    kept = {name: tensor.clone() for name, tensor in probes.state_dict().items()}
    epochs = [0] * layers
    history: list[list[float]] = []
    for epoch in range(how.epochs):
        probes.train()
        for places in torch.split(torch.randperm(len(rows.labels), generator=generator), how.batch):
            optimiser.zero_grad(set_to_none=True)
            torch.autograd.backward(_loss(probes(rows.states[places]), rows.labels[places], weights))
            optimiser.step()
            schedule.step()
        reached = _reached(probes, early, how.select)
        history.append(reached.tolist())
        better = reached > best
        for name, tensor in probes.state_dict().items():
            kept[name][better] = tensor[better]
        best = torch.where(better, reached, best)
        epochs = [epoch if is_better else old for is_better, old in zip(better.tolist(), epochs, strict=True)]
        if epoch - max(epochs) >= how.patience:
            break
    probes.load_state_dict(kept)
    probes.eval()
    return Trained(probes=probes, temperatures=temperatures(probes, early.states, early.labels), history=history, best_epochs=tuple(epochs))


def _class_weights(labels: Tensor) -> Tensor:
    counts = torch.bincount(labels, minlength=2).float()
    return counts.sum() / (2 * counts)


def _loss(logits: Tensor, labels: Tensor, weights: Tensor | None) -> Tensor:
    """Cross-entropy on logits, summed over the layers: each probe learns as if it were alone."""
    layers = logits.shape[1]
    return F.cross_entropy(logits.flatten(0, 1), labels.repeat_interleave(layers), weight=weights) * layers


@torch.inference_mode()
def _reached(probes: Probes, rows: _Rows, select: str) -> Tensor:
    """Return `[L]`: AUROC or accuracy on rows."""
    probes.eval()
    logits = probes(rows.states)
    sure = (logits[..., KNOWS] - logits[..., 1 - KNOWS]).double()
    if select == "accuracy":
        accuracy: Tensor = ((sure > 0) == (rows.labels == KNOWS)[:, None]).float().mean(0)
        return accuracy
    right, wrong = sure[rows.labels == KNOWS], sure[rows.labels != KNOWS]
    above = (right[:, None] > wrong[None]).double() + (right[:, None] == wrong[None]).double() / 2
    auroc: Tensor = above.mean((0, 1)).float()
    return auroc


def temperatures(probes: Probes, states: Tensor, labels: Tensor) -> tuple[float, ...]:
    """Return what each layer's logits are divided by so that their cross-entropy is least (Guo et al. 2017), between 0.05 and 20.

    The rows' own rate of right answers enters, so they must not be balanced.
    """
    from scipy.optimize import minimize_scalar

    with torch.inference_mode():
        logits = probes(states).double()
    found = []
    for layer in range(logits.shape[1]):

        def cost(exponent: float, layer: int = layer) -> float:
            return float(F.cross_entropy(logits[:, layer] / exp(exponent), labels))

        found.append(exp(float(minimize_scalar(cost, bounds=(log(0.05), log(20.0)), method="bounded").x)))
    return tuple(found)


def rows_of(ids: Sequence[str], parts: Mapping[str, str], part: str) -> Bools:
    """Return `[N]`: which rows belong to questions of a part."""
    return np.array([parts[id] == part for id in ids], bool)
