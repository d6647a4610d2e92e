"""What the packed loop does not know starts cold, says so, and gives the same answers; what it cannot do exactly is refused."""

from __future__ import annotations

import logging
from functools import cache

import pytest

from architectures import build, lm_and_oracle, serve
from identities import (
    ALL_SCORES,
    Case,
    Generation,
    alone,
    check_cost,
    check_reading,
    check_same,
    check_text,
    check_usage,
    permuted,
    run,
    together,
)
from inward.errors import ContextLengthExceeded, Unsupported
from inward.lm import BatchedLM
from inward.lm.transformers import TransformersBackend
from inward.testing import tiny_lm
from inward.testing_models import EOS
from inward.types import Capture, Sampling
from oracle import Oracle


def cold_lm(family: str) -> BatchedLM:
    """The tiny model of a family, made to start every pass cold."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TransformersBackend, "_try_packed", lambda self, own: (None, "it was told to"))
        return tiny_lm(family)


END = Capture(layers=(0,), pool="eos")
CASES = [
    Case(prompt="ab", sampling=Sampling(max_tokens=6, token_scores=ALL_SCORES, watch=(1, 2)), capture=Capture(layers=(0, 1))),
    Case(prompt="x" * 70, sampling=Sampling(max_tokens=5, stop=("e", "\n")), capture=Capture(layers=(1,), pool="none", site="mlp_raw")),
    Case(
        prompt="draw",
        sampling=Sampling(max_tokens=6, n=4, temperature=1.2, top_k=30),
        capture=Capture(layers=(0,), pool="eos"),
        question="q",
    ),
    Case(prompt="draw", sampling=Sampling(max_tokens=4), capture=Capture(layers=(1, 0), over="prompt_last"), question="q"),
    Case(prompt="end", sampling=Sampling(max_tokens=4, logit_bias=((EOS, 1e4),)), capture=Capture(layers=(0,), pool="last")),
]


@cache
def packed(family: str) -> list[Generation]:
    return run(alone(tiny_lm(family), CASES))


@pytest.mark.parametrize("family", ["llama", "gemma3", "gpt_neox"])
def test_cold_is_packed(family: str):
    lm = cold_lm(family)
    assert not lm.backend.packed
    for way in (alone, permuted):
        found = run(way(lm, CASES))
        check_same(CASES, packed(family), found)
        check_usage(CASES, run(alone(lm, CASES)), found)
        for case, generation in zip(CASES, found, strict=True):
            check_cost(lm, case, generation)
            for completion in generation.completions:
                check_text(case, completion)
    for case, generation in zip(CASES, found, strict=True):
        run(check_reading(lm, case, generation))


def test_the_fallback_is_told(caplog):
    with caplog.at_level(logging.WARNING, "inward"):
        lm = serve(build("mamba"))
    [note] = lm.backend.notes
    assert "'tiny-mamba' runs without prefix reuse or batching, every pass from a cold start: " in note
    assert note in caplog.messages
    with pytest.raises(Unsupported, match="attention rows of 'tiny-llama' are refused: its attention runs outside the packed loop"):
        run(cold_lm("llama").score("x", "y", capture=Capture(layers=(), attention=0)))
    assert "attention" not in cold_lm("llama").supports


@pytest.mark.parametrize("kind", ["mamba", "bloom", "lfm2", "gpt_oss"])
def test_models_without_packed_steps_are_the_same_alone_and_together(kind: str):
    """Samples, scores and reading need no states."""
    lm, _ = lm_and_oracle(kind)
    assert not lm.backend.packed
    cases = [Case(prompt=c.prompt, sampling=c.sampling, question=c.question) for c in CASES]
    found = run(together(lm, cases))
    check_same(cases, run(alone(lm, cases)), found)
    for case, generation in zip(cases, found, strict=True):
        run(check_reading(lm, case, generation))


def test_a_model_whose_packed_pass_gives_other_numbers_starts_cold(monkeypatch):
    """A short convolution over the packed step would mix rows without any error: the numbers are compared at load."""
    from inward.lm.attention import Prefill

    attend = Prefill.attend
    monkeypatch.setattr(Prefill, "attend", lambda self, *args: attend(self, *args) * 1.01)
    lm = tiny_lm("llama")
    assert not lm.backend.packed
    assert "packed log-probabilities differ from its own by" in lm.backend.notes[0]


def test_a_layer_that_counts_positions_from_its_cache_starts_cold():
    """Llama 4 scales queries by position, which shows beyond 8,192 tokens only: no probe would see it."""
    lm, oracle = lm_and_oracle("llama4_text", attn_temperature_tuning=True, floor_scale=8192)
    assert not lm.backend.packed
    assert "counts positions from the length of its cache" in lm.backend.notes[0]
    found = run(together(lm, [Case(prompt="ab", sampling=Sampling(max_tokens=4)), Case(prompt="x" * 20, sampling=Sampling(max_tokens=4))]))
    for prompt, generation in zip(("ab", "x" * 20), found, strict=True):
        assert list(generation.completions[0].token_ids) == oracle.greedy(lm.backend.encoder.encode(prompt), 4, (EOS,))


def test_rotary_angles_that_change_with_length_end_the_context():
    """One long row would turn the angles of every short one in the step: alone would differ from batched."""
    lm, oracle = lm_and_oracle("phi3")
    assert lm.backend.packed
    assert lm.context == 64
    assert "its rotary angles change beyond 64 tokens: the context ends there, not at 1024" in lm.backend.notes
    with pytest.raises(ContextLengthExceeded, match="has room for 64"):
        run(lm.generate("x" * 60, Sampling(max_tokens=10)))
    cases = [Case(prompt="x" * n, sampling=Sampling(max_tokens=8)) for n in (55, 3, 20)]
    for case, generation in zip(cases, run(together(lm, cases)), strict=True):
        assert list(generation.completions[0].token_ids) == oracle.greedy(lm.backend.encoder.encode(case.prompt), 8, (EOS,))


def test_rotary_angles_do_change_with_length():
    """What the limit above is for: were it lifted, a long row would change a short one."""
    lm = serve(build("phi3"))
    lm.backend.check = lambda request: None
    short = Case(prompt="abcdefgh" * 2, sampling=Sampling(max_tokens=8), capture=Capture(layers=(1,), pool="none"))
    long = Case(prompt="y" * 90, sampling=Sampling(max_tokens=8))
    single = run(alone(lm, [short]))
    with pytest.raises(AssertionError):
        check_same([short], single, run(together(lm, [long, short]))[1:])


def test_dynamic_angles_stay_the_same_within_the_context():
    rope = {"rope_type": "dynamic", "factor": 4.0, "rope_theta": 10000.0}
    options = {"max_position_embeddings": 64, "rope_parameters": rope}
    lm, oracle = tiny_lm("llama", **options), Oracle.tiny("llama", **options)
    assert lm.backend.packed
    cases = [Case(prompt="x" * n, sampling=Sampling(max_tokens=8)) for n in (55, 3, 20)]
    for case, generation in zip(cases, run(together(lm, cases)), strict=True):
        assert list(generation.completions[0].token_ids) == oracle.greedy(lm.backend.encoder.encode(case.prompt), 8, (EOS,))
