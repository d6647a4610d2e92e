"""States are what an independent forward pass of a second copy of the model computes, at every site of every family."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np
import pytest

from architectures import lm_and_oracle
from identities import ALL_SCORES, Case, alone, ask, run, together
from inward.errors import Unsupported
from inward.lm import BatchedLM
from inward.testing import tiny_lm
from inward.testing_models import FAMILIES
from inward.types import F32, Capture, Completion, Generation, Sampling, Site
from oracle import SITES_OF_ALL, Oracle, relative

SUBJECTS = (*FAMILIES, "gemma", "gpt_neox_sequential")
PROMPTS = ("ab", "the quick brown fox jumps over the lazy dog", "x" * 70, "Who wrote Hamlet?")
TOLERANCE = 1e-4


@dataclass(frozen=True)
class Subject:
    """A model behind the runtime, the same model plain, and one batch of generations."""

    lm: BatchedLM
    oracle: Oracle
    generations: dict[Site, list[Generation]]
    streams: list[dict[str, F32]]
    """Per prompt, over prompt and generated tokens."""

    @property
    def layers(self) -> tuple[int, ...]:
        return tuple(range(self.oracle.depth))

    @property
    def sites(self) -> tuple[Site, ...]:
        return SITES_OF_ALL if self.oracle.parallel else (*SITES_OF_ALL, "resid_mid")

    def ids(self, prompt: str) -> tuple[int, ...]:
        return self.lm.backend.encoder.encode(prompt)


def pair(name: str) -> tuple[BatchedLM, Oracle]:
    if name == "gemma":
        return lm_and_oracle("gemma")
    if name == "gpt_neox_sequential":
        return tiny_lm("gpt_neox", use_parallel_residual=False), Oracle.tiny("gpt_neox", use_parallel_residual=False)
    return tiny_lm(name), Oracle.tiny(name)


@cache
def subject(name: str) -> Subject:
    lm, oracle = pair(name)
    sites: tuple[Site, ...] = SITES_OF_ALL if oracle.parallel else (*SITES_OF_ALL, "resid_mid")
    layers = tuple(range(oracle.depth))
    cases = [
        Case(prompt=p, sampling=Sampling(max_tokens=11), capture=Capture(layers=layers, site=s, pool="none"))
        for s in sites
        for p in PROMPTS
    ]
    found = run(together(lm, cases))  # all sites ride in one batch: as many captures at once as there are sites
    by_site = {site: found[i * len(PROMPTS) : (i + 1) * len(PROMPTS)] for i, site in enumerate(sites)}
    encode = lm.backend.encoder.encode
    ids = [encode(p) + g.completions[0].token_ids for p, g in zip(PROMPTS, by_site["resid_post"], strict=True)]
    return Subject(lm, oracle, by_site, [oracle.streams(each) for each in ids])


@pytest.mark.parametrize("name", SUBJECTS)
def test_every_family_is_packed(name: str):
    backend = subject(name).lm.backend
    assert backend.packed, backend.notes
    assert {"states", "attention", "score"} <= backend.supports


def check_states(it: Subject, site: Site) -> None:
    """Captured states equal the independent ones, and another block's are at least ten times further off."""
    for prompt, generation, stream in zip(PROMPTS, it.generations[site], it.streams, strict=True):
        start = len(it.ids(prompt))
        got, expected = generation.completions[0].states, stream[site][:, start:]
        assert got is not None
        error = relative(got, expected)
        assert error < TOLERANCE, f"{site}: {error:.1e}"
        for layer in it.layers[1:]:  # the neighbouring block, in both directions, row by row
            for a, b in ((layer, layer - 1), (layer - 1, layer)):
                assert nearest(got[a], expected[b]) > 10 * max(TOLERANCE, error), f"{site}: block {a} could be block {b}"


def nearest(got: F32, expected: F32) -> float:
    """Smallest relative error of a row: how well the best row would pass for the other block's."""
    return float((np.linalg.norm(got - expected, axis=-1) / np.linalg.norm(expected, axis=-1)).min())


@pytest.mark.parametrize("name", SUBJECTS)
def test_T2_states_equal_an_independent_forward_pass(name: str):
    it = subject(name)
    for site in it.sites:
        check_states(it, site)


def check_residual(it: Subject, shift: int = 0) -> float:
    """Return the largest error of the two sums that make a block, from captured states; `shift` takes another block's part."""
    worst = 0.0
    for place, stream in enumerate(it.streams):
        found = {site: it.generations[site][place].completions[0].states for site in it.sites}
        start = len(it.ids(PROMPTS[place]))
        for layer in it.layers:
            # the stream before block 0 is the embedding, which is no site; before any other it is captured
            pre = found["resid_post"][layer - 1] if layer else stream["resid_pre"][0, start:]
            part = (layer + shift) % len(it.layers)
            if it.oracle.parallel:
                worst = max(worst, relative(pre + found["attn_out"][part] + found["mlp_out"][part], found["resid_post"][layer]))
                continue
            worst = max(worst, relative(pre + found["attn_out"][part], found["resid_mid"][layer]))
            worst = max(worst, relative(found["resid_mid"][layer] + found["mlp_out"][part], found["resid_post"][layer]))
    return worst


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


def check_order(together_: list[Completion], alone_: list[Completion]) -> None:
    """Each row's vectors are its own: as many as its tokens, and nearer to its own single run's than to any other's."""
    for i, mine in enumerate(together_):
        assert mine.states is not None
        assert mine.states.shape[1] == len(mine.token_ids)
        width = min(len(c.token_ids) for c in alone_)
        distance = [float(np.linalg.norm(mine.states[:, :width] - other.states[:, :width])) for other in alone_]
        assert int(np.argmin(distance)) == i
        assert distance[i] < 1e-3 * sorted(distance)[1]


def order_of(lm: BatchedLM) -> tuple[list[Completion], list[Completion]]:
    prompts = ["a", "bb", "ccc", "what is it", "e" * 40, "f g h", "g" * 9, "hello world"]
    cases = [
        Case(prompt=p, sampling=Sampling(max_tokens=4 + i), capture=Capture(layers=(0, 1), pool="none")) for i, p in enumerate(prompts)
    ]
    return [g.completions[0] for g in run(together(lm, cases))], [g.completions[0] for g in run(alone(lm, cases))]


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


def check_attention(got: F32 | None, expected: F32, prompt: int) -> None:
    """Rows sum to one, look at nothing that comes later, and equal those of eager attention."""
    assert got is not None
    assert got.shape == expected.shape
    assert np.abs(got.sum(-1) - 1).max() < 1e-5
    later = np.triu(np.ones(got.shape[1:], bool), prompt + 1)
    assert (got[:, later] == 0).all()
    assert np.abs(got - expected).max() < 1e-5


@cache
def pair_eager(name: str) -> Oracle:
    if name == "gpt_neox_sequential":
        return Oracle.tiny("gpt_neox", attention="eager", use_parallel_residual=False)
    oracle = lm_and_oracle("gemma")[1] if name == "gemma" else Oracle.tiny(name, attention="eager")
    oracle.model.set_attn_implementation("eager")
    return oracle


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
