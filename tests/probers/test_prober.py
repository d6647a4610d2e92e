"""Probers: the network layer by layer, what is read, and what is refused when one is opened."""

from __future__ import annotations

import json
from math import isnan, nan
from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from inward.errors import ModelError, UsageError
from inward.probers import Prober
from inward.probers.card import ProberCard, check_fits
from inward.probers.network import Probes
from inward.testing import tiny_lm
from inward.types import Capture, Sampling

LAYERS, WIDTH = (1, 3, 4), 10


def card(**changes: object) -> ProberCard:
    whole = ProberCard(
        model="abc",
        layers=LAYERS,
        site="resid_post",
        pool="mean",
        positions="every generated token, the end token excluded",
        width=WIDTH,
        prompt="p",
        stop=("\n\n",),
        max_tokens=150,
        label="answer",
        engine="packed",
        dtype="float32",
        hidden=6,
        depth=2,
        dropout=0.1,
        temperatures=(1.0, 2.0, 0.5),
    )
    return msgspec.structs.replace(whole, **changes)


def prober(seed: int = 0, **changes: object) -> Prober:
    torch.manual_seed(seed)
    made = card(**changes)
    return Prober(Probes(len(made.layers), made.width, hidden=made.hidden, depth=made.depth, dropout=made.dropout), made)


def states(rows: int, seed: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).normal(0, 5, (rows, len(LAYERS), WIDTH)).astype(np.float32)


@pytest.mark.parametrize("depth", [0, 1, 2])
def test_layers_side_by_side_are_the_layers_alone(depth: int):
    """Against torch's own modules, a layer at a time, with weights that are not those of initialisation."""
    torch.manual_seed(0)
    probes = Probes(3, WIDTH, hidden=6, depth=depth, dropout=0.5).eval()
    for parameter in probes.parameters():
        nn.init.normal_(parameter)
    x = torch.from_numpy(states(7))
    got = probes(x)
    for layer in range(3):
        y = x[:, layer]
        for place in range(depth + 1):
            norm = nn.LayerNorm(y.shape[-1])
            norm.load_state_dict({"weight": probes.norms[place].weight[layer], "bias": probes.norms[place].bias[layer]})
            y = norm(y)
            linear = probes.inner[place] if place < depth else probes.out
            y = y @ linear.weight[layer] + linear.bias[layer]
            y = nn.functional.silu(y) if place < depth else y
        torch.testing.assert_close(got[:, layer], y)


def test_the_released_network_has_its_weights():
    """1,318,914 at a width of 2,048: Probing-RAG's 5 MB."""
    assert sum(p.numel() for p in Probes(1, 2048).parameters()) == 1_318_914


def test_the_value_is_the_sum_of_the_layers_verdicts():
    one = prober()
    found = one.read(states(1)[0])
    logits = one.probes(torch.from_numpy(states(1)))[0].detach().numpy() / np.array(card().temperatures)[:, None]
    assert list(found.parts) == ["layer 1", "layer 3", "layer 4"]
    assert list(found.parts.values()) == pytest.approx((logits[:, 0] - logits[:, 1]).tolist(), rel=1e-5)
    assert found.value == pytest.approx(sum(found.parts.values()))
    one.combine = "probabilities"
    shares = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    assert one.read(states(1)[0]).value == pytest.approx((shares[:, 0] - shares[:, 1]).sum(), rel=1e-5)


def test_D2_alone_is_batched_is_permuted():
    one, rows = prober(), states(9)
    whole = one.margins(rows)
    order = np.random.default_rng(0).permutation(9)
    assert np.abs(np.concatenate([one.margins(row[None]) for row in rows]) - whole).max() < 1e-5
    assert np.abs(one.margins(rows[order]) - whole[order]).max() < 1e-5


def test_states_of_another_shape_are_refused():
    with pytest.raises(UsageError, match=r"reads states \[3, 10\], got \[2, 10\]"):
        prober().margins(states(1)[:, :2])


def test_a_draft_without_tokens_has_no_value():
    assert isnan(prober().read(np.full((3, WIDTH), nan, np.float32)).value)


# -- on the disk ---------------------------------------------------------------------------------------------


def test_W5_saved_and_opened_it_says_the_same(tmp_path: Path):
    one = prober()
    one.save_pretrained(tmp_path / "p")
    again = Prober.from_pretrained(tmp_path / "p")
    assert sorted(file.name for file in (tmp_path / "p").iterdir()) == ["calibration.jsonl", "config.json", "model.safetensors"]
    assert again.card == one.card
    assert np.abs(again.margins(states(5)) - one.margins(states(5))).max() < 1e-7


def test_W5_what_is_damaged_or_foreign_is_refused(tmp_path: Path):
    folder = tmp_path / "p"

    def fresh() -> dict[str, torch.Tensor]:
        prober().save_pretrained(folder)
        return load_file(folder / "model.safetensors")

    def refused(match: str) -> None:
        with pytest.raises(ModelError, match=match):
            Prober.from_pretrained(folder)

    weights = fresh()
    save_file({**weights, "extra": torch.zeros(1)}, folder / "model.safetensors")
    refused("has a foreign tensor 'extra'")
    name = next(iter(sorted(weights)))
    save_file({k: v for k, v in weights.items() if k != name}, folder / "model.safetensors")
    refused(f"lacks a tensor '{name}'")
    save_file({**weights, name: torch.zeros(3)}, folder / "model.safetensors")
    refused(rf"{name} of the prober .* is \[3\], its card says")
    fresh()
    whole = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(whole[: len(whole) // 2])
    refused("is damaged")
    (folder / "model.safetensors").unlink()
    refused("holds no model.safetensors")
    fresh()
    said = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**said, "format": 99}))
    refused("is of format 99, this version reads up to 1")
    (folder / "config.json").write_text(json.dumps({**said, "site": "nowhere"}))
    refused("cannot be read")
    (folder / "config.json").write_text(json.dumps({**said, "temperatures": [1.0]}))
    refused("has 1 temperatures for 3 layers")
    (folder / "config.json").write_text("{")
    refused("cannot be read")
    (folder / "config.json").unlink()
    (folder / "old.pkl").touch()
    refused("holds no config.json: it is no prober; 'old.pkl' is no prober of this kind")


def test_another_name_is_not_looked_for_without_a_connection(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(ModelError, match="there is no prober 'someone/prober', neither as a folder nor on the hub"):
        Prober.from_pretrained("someone/prober", local_files_only=True)


# -- what it fits --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("field", "value"), [("model", "xyz"), ("prompt", "q"), ("stop", ("x",)), ("max_tokens", 9)])
def test_a_mismatch_is_refused_with_both_values(field: str, value: object):
    made = card()
    assert check_fits(made, {field: getattr(made, field)}) == []
    with pytest.raises(UsageError) as caught:
        check_fits(made, {field: value})
    for said in (field, repr(getattr(made, field)), repr(value)):
        assert said in str(caught.value)


@pytest.mark.parametrize("field", ["engine", "dtype", "quantization"])
def test_another_engine_or_dtype_is_warned_of_with_the_flip_rate(field: str):
    (said,) = check_fits(card(flip_rate=0.0123), {field: "other"})
    assert "flips: 1.23%" in said
    assert "not measured" in check_fits(card(), {field: "other"})[0]


def test_it_reads_the_states_of_a_real_generation():
    import asyncio

    lm = tiny_lm("llama")
    one = prober(layers=(0, 1), width=32, temperatures=(1.0, 1.0))
    assert one.capture == Capture(layers=(0, 1), site="resid_post", pool="mean")
    generation = asyncio.run(lm.generate("a question", one.wants(Sampling(max_tokens=5)), capture=one.capture))
    reading = asyncio.run(one(generation))
    assert reading.value == pytest.approx(float(one.margins(generation.states[None]).sum()))
    assert list(reading.parts) == ["layer 0", "layer 1"]
