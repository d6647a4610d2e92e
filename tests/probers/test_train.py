"""Training: what can be learned is learned, layers do not touch each other, and questions stay on their side."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.metrics import roc_auc_score

from inward.errors import BadInput, UnknownName
from inward.probers.network import Probes
from inward.probers.train import PARTS, RECIPES, Recipe, _reached, _tensors, part_questions, recipe, rows_of, temperatures, train

QUICK = Recipe(hidden=16, epochs=25, learning_rate=3e-3, batch=32)


def world(rows: int, seed: int, strength: float = 3.0) -> tuple[np.ndarray, np.ndarray]:
    """Three layers of width 12: the second tells right from wrong, the others hold noise of large size."""
    draw = np.random.default_rng(seed)
    right = draw.random(rows) < 0.3
    states = draw.normal(0, 1, (rows, 3, 12))
    states[:, 1, 0] += np.where(right, strength, -strength)
    return (states * 1e4).astype(np.float32), right


@pytest.fixture(scope="module")
def trained():
    return train(*world(400, 0), *world(200, 1), QUICK)


def sure(made, states: np.ndarray) -> np.ndarray:
    with torch.inference_mode():
        logits = made.probes(torch.from_numpy(states))
    return (logits[..., 1] - logits[..., 0]).numpy()


def test_the_layer_that_knows_learns_and_the_others_do_not(trained):
    states, right = world(500, 2)
    found = [roc_auc_score(right, sure(trained, states)[:, layer]) for layer in range(3)]
    assert found[1] > 0.97
    assert 0.4 < found[0] < 0.6
    assert 0.4 < found[2] < 0.6


def test_shuffled_labels_teach_nothing():
    states, right = world(400, 0)
    shuffled = np.random.default_rng(9).permutation(right)
    made = train(states, shuffled, *world(200, 1), QUICK)
    test_states, test_right = world(500, 2)
    assert roc_auc_score(test_right, sure(made, test_states)[:, 0]) < 0.6


def test_training_is_repeatable_and_another_seed_is_another_network(trained):
    again = train(*world(400, 0), *world(200, 1), QUICK)
    other = train(*world(400, 0), *world(200, 1), Recipe(hidden=16, epochs=2, learning_rate=3e-3, batch=32, seed=1))
    states, _ = world(20, 3)
    assert (sure(again, states) == sure(trained, states)).all()
    assert not np.allclose(sure(other, states), sure(trained, states))
    assert torch.initial_seed() != 1, "the caller's random numbers are left alone"


def test_a_layer_trains_as_if_it_were_alone():
    """The middle layer of three, and the same layer among others' noise: equal up to rounding, with dropout off and equal starts."""
    states, right = world(200, 0)
    how = Recipe(hidden=8, epochs=3, dropout=0.0, learning_rate=1e-3)
    whole = train(states, right, *world(100, 1), how)
    changed = states.copy()
    changed[:, [0, 2]] = np.random.default_rng(4).normal(size=(200, 2, 12)) * 1e4
    other = train(changed, right, *world(100, 1), how)
    probe, _ = world(30, 5)
    np.testing.assert_allclose(sure(whole, probe)[:, 1], sure(other, probe)[:, 1], rtol=1e-4, atol=1e-4)
    assert not np.allclose(sure(whole, probe)[:, 0], sure(other, probe)[:, 0], rtol=1e-2)


def test_each_layer_keeps_its_best_epoch(trained):
    states, right = world(200, 1)
    reached = _reached(trained.probes, _tensors(states, right), "auroc").tolist()
    best = np.array(trained.history).max(0)
    assert reached == pytest.approx(best.tolist(), abs=1e-6)
    assert reached == pytest.approx([roc_auc_score(right, sure(trained, states)[:, layer]) for layer in range(3)], abs=1e-6)


def test_temperatures_undo_a_scale():
    """Labels drawn with the probability that the logits say: the temperature is near one; logits five times too large: near five."""
    torch.manual_seed(0)
    probes = Probes(1, 4, hidden=8, depth=1).eval()
    states = torch.randn(4000, 1, 4) * 3
    with torch.inference_mode():
        probes.out.weight.mul_(6)
        chance = probes(states).softmax(-1)[:, 0, 1]
    labels = (torch.rand(4000) < chance).long()
    assert temperatures(probes, states, labels)[0] == pytest.approx(1, rel=0.15)
    with torch.inference_mode():
        probes.out.weight.mul_(5)
        probes.out.bias.mul_(5)
    assert temperatures(probes, states, labels)[0] == pytest.approx(5, rel=0.15)


@pytest.mark.parametrize("label", [True, False])
def test_one_class_is_refused(label: bool):
    states, right = world(50, 0)
    with pytest.raises(BadInput, match=r"the early-stopping part has .* a prober needs both"):
        train(states, right, states, np.full(50, label), QUICK)
    with pytest.raises(BadInput, match="the train part has"):
        train(states, np.full(50, label), states, right, QUICK)


def test_states_that_are_not_finite_are_refused():
    states, right = world(50, 0)
    states[3, 1, 2] = np.nan
    with pytest.raises(BadInput, match="1 drafts whose states are not finite"):
        train(states, right, *world(50, 1), QUICK)


def test_parts_are_disjoint_stratified_and_hardly_move():
    strata = {f"{name}{n}": name for name, count in (("nq", 100), ("hotpot", 50)) for n in range(count)}
    parts = part_questions(strata)
    for name, count in (("nq", 100), ("hotpot", 50)):
        sizes = {part: sum(parts[id] == part for id in strata if strata[id] == name) for part in PARTS}
        assert sizes == {"train": 0.6 * count, "early-stopping": 0.1 * count, "calibration": 0.2 * count, "test": 0.1 * count}
    assert part_questions(dict(reversed(strata.items()))) == parts
    assert part_questions(strata, seed=1) != parts
    more = part_questions({**strata, **{f"nq{n}": "nq" for n in range(100, 110)}})
    assert sum(more[id] != parts[id] for id in parts) < 0.15 * len(parts)
    ids = ["nq1", "nq1", "hotpot3"]
    assert rows_of(ids, parts, parts["nq1"]).tolist()[:2] == [True, True]


def test_recipes_go_by_name():
    assert (recipe("paper").learning_rate, recipe("paper").batch, recipe("code").schedule) == (1e-3, 12, 0.995)
    with pytest.raises(UnknownName, match="did you mean 'paper'"):
        recipe("papr")
    assert set(RECIPES) == {"fixed", "paper", "code"}
