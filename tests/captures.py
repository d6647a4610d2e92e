"""Checks of captured states against an independent forward pass, shared by tests and mutations."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np

from architectures import lm_and_oracle
from identities import Case, alone, run, together
from inward.lm import BatchedLM
from inward.testing import tiny_lm
from inward.testing_models import EOS, FAMILIES
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
    """Measure a family once for all tests."""
    return measure(*pair(name))


def measure(lm: BatchedLM, oracle: Oracle) -> Subject:
    """Generate with every site captured, in one batch: as many captures at once as there are sites."""
    sites: tuple[Site, ...] = SITES_OF_ALL if oracle.parallel else (*SITES_OF_ALL, "resid_mid")
    layers = tuple(range(oracle.depth))
    captures = [Capture(layers=layers, site=site, pool="none") for site in sites]
    found = run(together(lm, [Case(prompt=p, sampling=Sampling(max_tokens=11), capture=c) for c in captures for p in PROMPTS]))
    by_site = {site: found[i * len(PROMPTS) : (i + 1) * len(PROMPTS)] for i, site in enumerate(sites)}
    encode = lm.backend.encoder.encode
    ids = [encode(p) + g.completions[0].token_ids for p, g in zip(PROMPTS, by_site["resid_post"], strict=True)]
    return Subject(lm, oracle, by_site, [oracle.streams(each) for each in ids])


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


class Forced:
    """Make a tiny model write given tokens, whatever its logits are, without touching anything else of the loop."""

    def __init__(self, monkeypatch, *scripts: tuple[int, ...]) -> None:
        from inward.lm.rows import Row

        accept, place = Row.accept, {}

        def forced(row, token, eos_ids, scores, watched):
            script = place.setdefault(id(row), scripts[len(place) % len(scripts)])
            accept(row, script[row.sampled] if row.sampled < len(script) else EOS, eos_ids, scores, watched)

        monkeypatch.setattr(Row, "accept", forced)


def ids_of(text: str) -> tuple[int, ...]:
    return tuple(text.encode())


def check_pool(lm, oracle, prompt, completion, capture, end=EOS) -> None:
    """States are those of a plain forward over prompt and kept tokens (and the end token, for its own)."""
    start = lm.count(prompt)
    ids = lm.backend.encoder.encode(prompt) + completion.token_ids
    stream = oracle.streams((*ids, end))[capture.site][list(capture.layers)]
    kept = stream[:, start:-1]
    if capture.pool == "eos":
        assert relative(completion.states, stream[:, -1]) < 1e-4
    elif capture.pool == "none":
        assert relative(completion.states, kept) < 1e-4
    elif not completion.token_ids:
        assert np.isnan(completion.states).all()
    else:
        assert relative(completion.states, kept.mean(1) if capture.pool == "mean" else kept[:, -1]) < 1e-4
