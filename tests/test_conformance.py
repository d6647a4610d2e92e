"""What every backend must pass, here on real models: the same answers alone, batched, permuted, cached and reloaded.

A backend enters with a row in `SUBJECTS`. Relative errors and flips are printed, whether they are within bounds or not.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import pytest

from identities import (
    ALL_SCORES,
    Agreement,
    Case,
    alone,
    check_cost,
    check_reading,
    check_same,
    check_samples_are_prefixes,
    check_text,
    check_usage,
    permuted,
    run,
    staggered,
    together,
)
from inward.lm import BatchedLM, load_lm
from inward.trace import record
from inward.types import Capture, Generation, Message, Sampling
from oracle import Oracle, relative

pytestmark = [pytest.mark.real, pytest.mark.slow]

DEMONSTRATIONS = """Question: Who wrote the play Hamlet?
Rationale: Hamlet is a tragedy by William Shakespeare, written about 1600.
Answer: William Shakespeare

Question: Is the Nile longer than the Rhine?
Rationale: The Nile runs for about 6,650 km, the Rhine for about 1,230 km.
Answer: yes

"""


@dataclass
class Subject:
    """A backend under test, a fresh one to compare with, and the model run plainly."""

    name: str
    lm: BatchedLM
    fresh: BatchedLM
    """Loaded once more, and without prefix reuse."""
    oracle: Oracle
    layers: tuple[int, int, int]

    def ids(self, case: Case) -> tuple[int, ...]:
        return self.lm.backend.encoder.encode(case.prompt)  # type: ignore[attr-defined]

    def text(self, tokens: int) -> str:
        """Return text of about so many tokens that says something else in every line."""
        lines = [
            f"Note {i}: sample {i * 37 % 101} of the series weighed {i * 7 % 13}.{i % 10} grams at {i % 24} hours.\n" for i in range(200)
        ]
        encode = self.lm.backend.encoder.encode  # type: ignore[attr-defined]
        return self.lm.backend.encoder.decode(encode("".join(lines))[: tokens - 1])  # type: ignore[attr-defined]

    @cached_property
    def cases(self) -> list[Case]:
        """Rows of 3 to 1,200 tokens, greedy and sampled, n of 1 and 20, stops and limits, several captures at once."""
        low, middle, high = self.layers
        scores, ask = ALL_SCORES, DEMONSTRATIONS + "Question: {}\nRationale:"
        mean, every = Capture(layers=(low, middle, high)), Capture(layers=(middle,), site="mlp_raw", pool="none")
        end, before = Capture(layers=(high,), site="attn_out", pool="eos"), Capture(layers=(middle, low), over="prompt_last")
        return [
            Case(prompt="The capital", sampling=Sampling(max_tokens=12, token_scores=scores), capture=mean),
            Case(prompt=self.text(1200), sampling=Sampling(max_tokens=6, token_scores=scores), capture=mean),
            Case(
                prompt=ask.format("Who painted the Mona Lisa?"), sampling=Sampling(max_tokens=16, stop=("\n", "Question:")), capture=every
            ),
            Case(prompt=ask.format("What is the capital of Peru?"), sampling=Sampling(max_tokens=20, stop=("Answer:",)), capture=end),
            Case(prompt=ask.format("Is gold heavier than iron?"), sampling=Sampling(max_tokens=9, watch=(5, 100)), capture=before),
            Case(
                prompt=ask.format("Who discovered radium?"),
                sampling=Sampling(max_tokens=5, n=20, temperature=1.0, top_k=50, top_p=0.95),
                capture=end,
                question="radium",
            ),
            Case(prompt=ask.format("Who discovered radium?"), sampling=Sampling(max_tokens=11), capture=mean, question="radium"),
            Case(prompt=self.text(300), sampling=Sampling(max_tokens=10, temperature=0.7, token_scores=scores), capture=every),
            Case(
                prompt=(Message("user", "Name a colour. Say <end_of_turn> or <|im_end|> or Answer: X."),),
                sampling=Sampling(max_tokens=13, stop=(".", "\n\n")),
                capture=every,
            ),
        ]

    @cached_property
    def expected(self) -> list[Generation]:
        """Every call alone, freshly loaded, nothing shared."""
        return run(alone(self.fresh, self.cases), 300)

    @cached_property
    def batched(self) -> list[Generation]:
        """All calls at once, shared prefixes computed once."""
        return run(together(self.lm, self.cases), 300)

    def greedy(self, generations: Sequence[Generation]) -> list[tuple[Case, Generation]]:
        return [(c, g) for c, g in zip(self.cases, generations, strict=True) if c.sampling.temperature == 0]


LOADERS: dict[str, tuple[Callable[[], Any], tuple[int, int, int]]] = {
    "gemma": (lambda: "demo", (3, 8, 17)),
    "smollm": (lambda: "smollm2", (5, 16, 29)),
}
"""Name of a fixture -> what to give `load_lm` for a fresh one, and a low, a middle and the last block."""


@pytest.fixture(scope="module", params=LOADERS)
def subject(request: pytest.FixtureRequest) -> Subject:
    lm = request.getfixturevalue(request.param)
    name, layers = LOADERS[request.param]
    fresh = load_lm(name(), prefix_reuse=False)
    return Subject(request.param, lm, fresh, Oracle.copy_of(lm.backend.model), layers)


@pytest.fixture
def say(record_property: Callable[[str, object], None]) -> Callable[[str, object], None]:
    """Have a finding printed at the end of the run."""

    def write(what: str, found: object) -> None:
        record_property(what, str(found))

    return write


def test_alone_is_batched(subject: Subject, say):
    """The fresh model is the reloaded one, and has no prefixes: batched, cached and reloaded at once."""
    found = check_same(subject.cases, subject.expected, subject.batched, sampled_flips=1)
    say(f"{subject.name}, batched against alone and reloaded", found)
    assert subject.lm.fingerprint == subject.fresh.fingerprint


def test_permuted_and_reused(subject: Subject, say):
    """Another order, on a model whose prefixes are there already."""
    assert subject.batched
    generations = run(permuted(subject.lm, subject.cases, seed=1), 300)
    say(f"{subject.name}, permuted with prefixes reused", check_same(subject.cases, subject.expected, generations, sampled_flips=1))
    shared = len(subject.lm.backend.encoder.encode(DEMONSTRATIONS)) - 2  # type: ignore[attr-defined]
    assert {2, 3, 4, 5, 6} <= {i for i, g in enumerate(generations) if g.usage.cached_tokens >= shared}


def test_batched_without_prefix_reuse_and_staggered(subject: Subject, say):
    generations = run(staggered(subject.fresh, subject.cases, seconds=0.5), 300)
    say(f"{subject.name}, joining a running batch, no prefixes", check_same(subject.cases, subject.expected, generations, sampled_flips=1))
    check_usage([c for c in subject.cases if not c.question], *(_without_question(subject, g) for g in (subject.expected, generations)))


def _without_question(subject: Subject, generations: Sequence[Generation]) -> list[Generation]:
    return [g for c, g in zip(subject.cases, generations, strict=True) if not c.question]


def test_greedy_equals_generate_of_transformers(subject: Subject):
    """Token by token; a stop string ends ours, so it is compared up to there."""
    eos = subject.lm.backend.encoder.eos_ids
    for case, generation in subject.greedy(subject.batched):
        completion = generation.completions[0]
        ours = [*completion.token_ids, *completion.tail_ids]
        theirs = subject.oracle.greedy(subject.ids(case), max(len(ours), 1), eos)
        assert ours == theirs[: len(ours)] or (completion.finish == "eos" and ours == theirs), case.prompt


def test_states_are_those_of_a_plain_forward_pass(subject: Subject, say):
    """Over prompt and kept tokens, and the end token where it is asked for; the neighbouring block is ten times off."""
    worst, nearest = 0.0, float("inf")
    for case, generation in subject.greedy(subject.batched):
        completion, capture = generation.completions[0], case.capture
        assert capture is not None
        ids = (*subject.ids(case), *completion.token_ids, subject.lm.backend.encoder.eos_ids[0])
        blocks = sorted({max(0, layer - shift) for layer in capture.layers for shift in (0, 1)})
        stream = subject.oracle.streams(ids, blocks)[capture.site]
        here, before = (
            pooled(stream[[blocks.index(layer - shift) for layer in capture.layers]], capture, len(subject.ids(case))) for shift in (0, 1)
        )
        worst = max(worst, relative(generation.states, here))
        nearest = min(nearest, float((np.linalg.norm(generation.states - before, axis=-1) / np.linalg.norm(before, axis=-1)).min()))
    say(f"{subject.name}, states against a plain forward pass", f"within {worst:.1e}; the block before is {nearest:.1e} off or more")
    assert worst < 1e-4
    assert nearest > 10 * max(worst, 1e-4)


def pooled(rows: np.ndarray, capture: Capture, prompt: int) -> np.ndarray:
    """Pool the rows `[L, N, d]` of a prompt, kept tokens and the end token by the definition."""
    if capture.over == "prompt_last":
        return rows[:, prompt - 1]
    kept = rows[:, prompt:-1]
    return {"mean": kept.mean(1), "last": kept[:, -1], "eos": rows[:, -1], "none": kept}[capture.pool]


def test_texts_usage_and_samples(subject: Subject):
    for case, generation in zip(subject.cases, subject.batched, strict=True):
        for completion in generation.completions:
            check_text(case, completion)
        if not case.question:
            check_cost(subject.lm, case, generation)
    case, samples = subject.cases[5], subject.batched[5]
    assert len({c.token_ids for c in samples.completions}) > 10

    async def of_one_question() -> list[Generation]:
        with record(case.question):
            calls = [subject.lm.generate(case.prompt, s) for s in (replace(case.sampling, n=10), Sampling(max_tokens=1))]
            return list(await asyncio.gather(*calls))

    few, greedy = run(of_one_question())
    check_samples_are_prefixes(few, samples)
    assert few.usage.prompt_tokens + greedy.usage.prompt_tokens == subject.lm.count(case.prompt), "one question, one prefill, counted once"


def test_reading_gives_a_generation_back(subject: Subject):
    for place in (0, 2, 3, 7):
        run(check_reading(subject.lm, subject.cases[place], subject.batched[place]))


@pytest.mark.parametrize("length", [300, 600, 1500])
def test_a_shared_prefix_is_exact_beyond_the_window(gemma: BatchedLM, length: int, say):
    """Gemma 3 slides a window of 512 over most blocks. Five rows share one prefix: as one slab, and cached for a sixth."""
    oracle = Oracle.copy_of(gemma.backend.model)  # type: ignore[attr-defined]
    subject = Subject("gemma", gemma, gemma, oracle, (3, 8, 17))
    assert oracle.model.config.sliding_window == 512
    prefix = f"Log of {length}.\n" + subject.text(length)
    capture = Capture(layers=(2, 5, 8, 17), pool="none")  # block 5 sees everything, the others a window
    cases = [Case(prompt=f"{prefix}\nNote {i}:", sampling=Sampling(max_tokens=6), capture=capture) for i in range(5)]
    late = [Case(prompt=f"{prefix}\nIn short,", sampling=Sampling(max_tokens=6), capture=capture)]
    found = run(together(gemma, cases), 300) + run(together(gemma, late), 300)
    assert found[-1].usage.cached_tokens >= length - 5
    worst = 0.0
    for place in (0, 4, 5):
        case, completion = [*cases, *late][place], found[place].completions[0]
        ids = subject.ids(case)
        assert list(completion.token_ids) == oracle.greedy(ids, 6, gemma.backend.encoder.eos_ids)  # type: ignore[attr-defined]
        stream = oracle.streams((*ids, *completion.token_ids), capture.layers)["resid_post"][:, len(ids) :]
        worst = max(worst, relative(found[place].states, stream))
    say(f"gemma, prefix of {length} tokens", f"states within {worst:.1e} of a plain forward pass")
    assert worst < 1e-4


def test_the_printed_agreement_names_everything():
    text = str(Agreement(completions=3, greedy_flips=1, sampled_flips=2, states=1e-5, scores=0.5))
    assert text == "3 completions, 1 greedy and 2 sampled flips, states within 1.0e-05, scores within 5.0e-01 nats"
