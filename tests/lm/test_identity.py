"""A fingerprint says what a model computes with, wherever it lies and whatever it is called."""

from __future__ import annotations

import pytest
import torch

from inward.lm import load_lm
from inward.lm.identity import model_fingerprint
from inward.lm.loading import Loaded
from inward.lm.transformers import TransformersBackend
from inward.testing import tiny_lm
from inward.testing_models import FAMILIES, tiny_model


def fingerprint(family="llama", tokenizer: str = "t", **options) -> str:
    return model_fingerprint(tiny_model(family, **options).model, tokenizer)


def test_equal_models_have_one_fingerprint():
    assert fingerprint() == fingerprint()
    assert len(fingerprint()) == 32
    assert tiny_lm().fingerprint == tiny_lm(prefix_reuse=False, budget=5000).fingerprint


def test_whatever_changes_what_it_computes_changes_the_fingerprint():
    models = [fingerprint(family) for family in FAMILIES]
    others = [
        fingerprint(seed=1),
        fingerprint(tokenizer="u"),
        fingerprint(rms_norm_eps=1e-3),
        fingerprint(rope_parameters={"rope_type": "default", "rope_theta": 5e5}),
    ]
    assert len({*models, *others}) == len(models) + len(others)


def test_the_same_model_in_another_number_format_is_the_same_model():
    """What depends on the format is warned of, not refused: a prober's card names it beside the fingerprint."""
    half = tiny_model("llama").model.to(torch.bfloat16)
    assert model_fingerprint(half, "t") == fingerprint()
    assert model_fingerprint(half.to(torch.float16), "t") == fingerprint()
    assert model_fingerprint(half.to(torch.float32), "t") == fingerprint()


def test_a_template_belongs_to_the_model():
    assert tiny_lm(chat=True).fingerprint != tiny_lm().fingerprint


@pytest.mark.parametrize("family", ["llama", "gemma3", "gpt_neox"])
def test_saved_moved_and_loaded_again_it_is_the_same(tmp_path, family):
    model, tokenizer = tiny_model(family)
    for name in ("here", "there"):
        model.save_pretrained(tmp_path / name)
        tokenizer.save_pretrained(tmp_path / name)
    here, there = (load_lm(tmp_path / name).fingerprint for name in ("here", "there"))
    assert here == there


def test_running_a_model_leaves_its_fingerprint():
    model, tokenizer = tiny_model("llama")
    before = model_fingerprint(model, "t")
    loaded = Loaded(model=model, tokenizer=tokenizer, generation_config=model.generation_config, name="x")
    TransformersBackend(loaded)  # exchanges its attention
    assert model_fingerprint(model, "t") == before


def test_an_adapter_merged_into_the_weights_changes_it():
    model = tiny_model("llama").model
    before = model_fingerprint(model, "t")
    with torch.no_grad():
        model.get_decoder().layers[1].mlp.down_proj.weight.add_(0.01 * torch.randn(32, 64, generator=torch.Generator().manual_seed(0)))
    assert model_fingerprint(model, "t") != before
