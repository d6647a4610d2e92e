"""States are what an independent forward pass of a second copy of the model computes, at every site of every family."""

from __future__ import annotations

import numpy as np
import pytest

from architectures import lm_and_oracle
from captures import (
    PROMPTS,
    SUBJECTS,
    TOLERANCE,
    check_attention,
    check_order,
    check_residual,
    check_states,
    order_of,
    pair_eager,
    subject,
)
from identities import ALL_SCORES, Case, alone, ask, run, together
from inward.errors import Unsupported
from inward.testing import tiny_lm
from inward.types import Capture, Sampling
from oracle import relative


@pytest.mark.parametrize("name", SUBJECTS)
def test_every_family_is_packed(name: str):
    backend = subject(name).lm.backend
    assert backend.packed, backend.notes
    assert {"states", "attention", "score"} <= backend.supports


@pytest.mark.parametrize("name", SUBJECTS)
def test_T2_states_equal_an_independent_forward_pass(name: str):
    it = subject(name)
    for site in it.sites:
        check_states(it, site)


@pytest.mark.parametrize("name", SUBJECTS)
def test_parts_add_up_to_the_residual_stream_in_every_block(name: str):
    it = subject(name)
    assert check_residual(it) < 1e-5
    assert check_residual(it, shift=1) > 1e-1


@pytest.mark.parametrize("name", SUBJECTS)
def test_raw_and_added_mlp_output_differ_only_behind_a_post_norm(name: str):
    it = subject(name)
    raw, added = (it.generations[site][1].completions[0].states for site in ("mlp_raw", "mlp_out"))
    if it.oracle.kind in ("gemma2", "gemma3_text", "olmo2"):
        assert relative(raw, added) > 0.1
    else:
        assert np.array_equal(raw, added)


@pytest.mark.parametrize("name", SUBJECTS)
def test_pools_are_over_kept_tokens(name: str):
    it = subject(name)
    layers = it.layers[::-1]  # the order asked for is the order given
    cases = [
        Case(prompt=p, sampling=Sampling(max_tokens=11), capture=Capture(layers=layers, pool=pool, over=over))
        for p in PROMPTS
        for pool, over in (("mean", "generated"), ("last", "generated"), ("eos", "generated"), ("mean", "prompt_last"))
    ]
    found = run(together(it.lm, cases))
    for place, prompt in enumerate(PROMPTS):
        mean, last, eos, before = (g.states for g in found[4 * place : 4 * place + 4])
        start = len(it.ids(prompt))
        stream = it.streams[place]["resid_post"][::-1]
        assert relative(mean, stream[:, start:].mean(1)) < TOLERANCE
        assert relative(last, stream[:, -1]) < TOLERANCE
        assert relative(before, stream[:, start - 1]) < TOLERANCE
        kept = it.generations["resid_post"][place].completions[0].token_ids
        with_end = it.oracle.streams((*it.ids(prompt), *kept, it.lm.backend.encoder.eos_ids[0]))["resid_post"][::-1]
        assert relative(eos, with_end[:, -1]) < TOLERANCE
        assert relative(eos, last) > 10 * TOLERANCE


@pytest.mark.parametrize("name", SUBJECTS)
def test_T2_scores_are_those_of_the_raw_logits(name: str):
    it = subject(name)
    for prompt, generation in zip(PROMPTS, it.generations["resid_post"], strict=True):
        ids, tokens = it.ids(prompt), generation.completions[0].token_ids
        assert list(ids) == it.lm.backend.encoder.tokenizer(prompt)["input_ids"]
        logits = it.oracle.logits(ids + tokens)[len(ids) - 1 : -1].double()
        rows = logits.log_softmax(-1)
        expected = {
            "logprobs": rows[range(len(tokens)), tokens],
            "entropies": -(rows.exp() * rows).sum(-1),
            "energies": logits.logsumexp(-1),
        }
        read = run(it.lm.score(prompt, tokens, sampling=Sampling(token_scores=ALL_SCORES, watch=(3, 255))))
        for score, values in expected.items():
            assert np.abs(read.score(score) - values.numpy()).max() < 1e-4, score
        assert read.watched_logprobs is not None
        assert np.abs(read.watched_logprobs - rows[:, [3, 255]].numpy()).max() < 1e-4


def test_parallel_residual_has_no_middle():
    lm = tiny_lm("gpt_neox")
    with pytest.raises(Unsupported, match="'gpt_neox' adds attention and MLP in parallel: there is no site 'resid_mid'"):
        run(lm.generate("x", capture=Capture(layers=(0,), site="resid_mid")))


@pytest.mark.parametrize("kind", ["gpt2", "opt", "bloom", "mamba", "lfm2", "mixtral", "gpt_oss", "cohere2"])
def test_unknown_architectures_generate_and_refuse_capture_by_name(kind: str):
    lm, oracle = lm_and_oracle(kind)
    cases = [Case(prompt=p, sampling=Sampling(max_tokens=6)) for p in PROMPTS]
    eos = lm.backend.encoder.eos_ids
    for case, generation in zip(cases, run(together(lm, cases)), strict=True):
        assert list(generation.completions[0].token_ids) == oracle.greedy(lm.backend.encoder.encode(case.prompt), 6, eos)
    assert "states" not in lm.supports
    with pytest.raises(Unsupported, match=f"capture on architecture '{kind}' is refused: where its sites are is not known"):
        run(lm.generate("x", capture=Capture(layers=(0,))))


def test_layers_beyond_the_depth_are_refused():
    with pytest.raises(Unsupported, match=r"layers \[2, 7\] do not exist: 'llama' has 2 blocks, 0 to 1"):
        run(tiny_lm().generate("x", capture=Capture(layers=(0, 2, 7))))
    with pytest.raises(Unsupported, match=r"layers \[2\] do not exist"):
        run(tiny_lm().score("x", "y", capture=Capture(layers=(0,), attention=2)))


@pytest.mark.parametrize("family", ["llama", "gemma3", "gpt_neox"])
def test_D4_every_row_of_a_batch_gets_its_own_states(family: str):
    check_order(*order_of(tiny_lm(family)))


@pytest.mark.parametrize("family", ["llama", "mistral"])
def test_D2_a_short_prompt_reads_the_same_beside_a_long_one(family: str):
    lm = tiny_lm(family)
    cases = [
        Case(prompt=prompt, sampling=Sampling(max_tokens=5), capture=Capture(layers=(1,), pool=pool, over=over))
        for prompt in ("abc", "y" * 40)
        for pool, over in (("mean", "generated"), ("last", "generated"), ("mean", "prompt_last"))
    ]
    single = run(alone(lm, cases))
    for order in (cases, cases[::-1]):
        found = run(together(lm, order))
        for case, generation in zip(order, found, strict=True):
            assert relative(generation.states, single[cases.index(case)].states) < TOLERANCE


@pytest.mark.parametrize("name", SUBJECTS)
@pytest.mark.parametrize("layer", [0, -1])
def test_E3_attention_rows_equal_eager_attention(name: str, layer: int):
    it = subject(name)
    oracle = pair_eager(name)
    layer %= it.oracle.depth
    for prompt, generation in zip(PROMPTS, it.generations["resid_post"], strict=True):
        ids, tokens = it.ids(prompt), generation.completions[0].token_ids
        read = run(it.lm.score(prompt, tokens, capture=Capture(layers=(), attention=layer)))
        check_attention(read.attention, oracle.attention(ids + tokens, layer).numpy()[:, len(ids) :], len(ids))
        assert read.states is None


def test_E3_a_sliding_layer_looks_no_further_than_its_window():
    lm = tiny_lm("gemma3")  # window 8; block 2 sees everything
    sliding, full = (run(lm.score("q" * 30, "answer", capture=Capture(layers=(), attention=layer))).attention for layer in (0, 2))
    assert sliding is not None
    assert full is not None
    assert ((sliding > 0).sum(-1) == 8).all()
    assert ((full > 0).sum(-1) > 30).all()


def test_E3_the_text_does_not_depend_on_who_reads_attention():
    lm = tiny_lm("llama")
    plain = run(ask(lm, Case(prompt="the text", sampling=Sampling(max_tokens=9))))
    read = run(lm.score("the text", plain.completions[0].token_ids, capture=Capture(layers=(0,), pool="none", attention=1)))
    again = run(ask(lm, Case(prompt="the text", sampling=Sampling(max_tokens=9))))
    assert plain.completions[0].token_ids == read.token_ids == again.completions[0].token_ids
