"""The tiled head gives what the whole product gives, and leaves alone what it does not know."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from inward.lm import head
from inward.lm.head import tile_head, tiled, untile_head
from inward.testing_models import tiny_model


@pytest.mark.parametrize("rows", [1, 2, 7, 128, 129])
@pytest.mark.parametrize("vocabulary", [5, 1024, 2500])
def test_tiles_are_the_whole_product(rows: int, vocabulary: int):
    draw = torch.Generator().manual_seed(rows)
    hidden, weight = torch.randn(1, rows, 48, generator=draw), torch.randn(vocabulary, 48, generator=draw)
    with torch.inference_mode():
        torch.testing.assert_close(tiled(hidden, weight), F.linear(hidden, weight), rtol=1e-5, atol=1e-5)


class Decoder(nn.Module):
    """Anything with a head."""

    def __init__(self, made: nn.Module) -> None:
        super().__init__()
        self.made = made

    def get_output_embeddings(self) -> nn.Module:
        return self.made


def test_a_large_plain_head_is_tiled_and_given_back(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(head, "_LARGE", 10)
    model = tiny_model("llama").model
    hidden = torch.randn(1, 3, model.config.hidden_size)
    with torch.inference_mode():
        before = model.lm_head(hidden)
        assert tile_head(model)
        assert not tile_head(model), "once is enough"
        torch.testing.assert_close(model.lm_head(hidden), before)
        untile_head(model)
        assert "forward" not in vars(model.lm_head)


def test_other_heads_are_left_alone(monkeypatch: pytest.MonkeyPatch):
    assert not tile_head(Decoder(nn.Linear(8, 9, bias=False))), "too small to gain"
    monkeypatch.setattr(head, "_LARGE", 10)

    class Quantised(nn.Linear):
        pass

    hooked = nn.Linear(8, 9, bias=False)
    hooked._hf_hook = object()
    for other in (
        nn.Linear(8, 9, bias=True),
        nn.Linear(8, 9, bias=False, dtype=torch.bfloat16),
        Quantised(8, 9, bias=False),
        nn.Linear(8, 9, bias=False, device="meta"),
        hooked,
    ):
        assert not tile_head(Decoder(other))
    assert tile_head(Decoder(nn.Linear(8, 9, bias=False)))
