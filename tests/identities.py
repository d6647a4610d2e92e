"""What must hold of any language model behind the runtime, as functions that raise AssertionError.

Tests call them, tests of mutations call them on a runtime with a fault in it and expect the failure, and another
backend has to pass them unchanged. They see an `LM` alone: prompts in, generations out.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import numpy as np

from inward.lm import BatchedLM
from inward.trace import record
from inward.types import Capture, Completion, Generation, Prompt, Sampling
from oracle import relative

T = TypeVar("T")

ALL_SCORES = ("logprobs", "entropies", "energies")
TOLERANCE = 1e-4
"""Relative L2 error of a row of states, fp32 on a CPU."""
SCORE_TOLERANCE = 2e-4
"""Nats."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """One call of a model."""

    prompt: Prompt
    sampling: Sampling = field(default_factory=Sampling)
    capture: Capture | None = None
    question: str | None = None
    """What its random draws derive from; None lets the prompt stand in."""


@dataclass(frozen=True, kw_only=True)
class Agreement:
    """How far two runs of the same calls are apart."""

    completions: int
    greedy_flips: int
    sampled_flips: int
    """Completions whose tokens differ; their states are not compared."""
    states: float
    """Largest relative error of a row."""
    scores: float
    """Largest difference of a log-probability, an entropy or an energy; nats."""

    def __str__(self) -> str:
        return (
            f"{self.completions} completions, {self.greedy_flips} greedy and {self.sampled_flips} sampled flips, "
            f"states within {self.states:.1e}, scores within {self.scores:.1e} nats"
        )


def run(work: Coroutine[Any, Any, T], seconds: float = 100) -> T:
    """Run a coroutine; a runtime that hangs fails the test instead of stopping the suite."""
    return asyncio.run(asyncio.wait_for(work, seconds))


async def ask(lm: BatchedLM, case: Case) -> Generation:
    """Make one call, as part of its question."""
    with record(case.question):
        return await lm.generate(case.prompt, case.sampling, capture=case.capture)


async def alone(lm: BatchedLM, cases: Sequence[Case]) -> list[Generation]:
    """Make the calls one after another."""
    return [await ask(lm, case) for case in cases]


async def together(lm: BatchedLM, cases: Sequence[Case]) -> list[Generation]:
    """Make all calls at once."""
    return list(await asyncio.gather(*(ask(lm, case) for case in cases)))


async def permuted(lm: BatchedLM, cases: Sequence[Case], seed: int = 0) -> list[Generation]:
    """Make all calls at once in another order; the answers come back in the order of `cases`."""
    order = np.random.default_rng(seed).permutation(len(cases))
    found = await together(lm, [cases[i] for i in order])
    return [found[list(order).index(i)] for i in range(len(cases))]


async def staggered(lm: BatchedLM, cases: Sequence[Case], seconds: float = 0.01) -> list[Generation]:
    """Start the calls at different times, so that they join a batch that runs."""

    async def later(case: Case, delay: float) -> Generation:
        await asyncio.sleep(delay)
        return await ask(lm, case)

    return list(await asyncio.gather(*(later(case, i * seconds) for i, case in enumerate(cases))))


def compare(cases: Sequence[Case], expected: Sequence[Generation], got: Sequence[Generation]) -> Agreement:
    """Measure how far two runs are apart; everything that is not a number must be equal where the tokens are."""
    assert len(cases) == len(expected) == len(got)
    flips = {True: 0, False: 0}
    states, scores, count = 0.0, 0.0, 0
    for case, one, other in zip(cases, expected, got, strict=True):
        assert len(one.completions) == len(other.completions) == case.sampling.n
        if one.prompt_state is not None or other.prompt_state is not None:
            states = max(states, relative(other.states, one.states))
        for a, b in zip(one.completions, other.completions, strict=True):
            count += 1
            if (a.token_ids, a.tail_ids, a.finish) != (b.token_ids, b.tail_ids, b.finish):
                flips[case.sampling.temperature == 0] += 1
                continue
            assert a.text == b.text
            assert np.array_equal(a.spans, b.spans)
            states, scores = max(states, _states(a, b)), max(scores, _scores(a, b))
    return Agreement(completions=count, greedy_flips=flips[True], sampled_flips=flips[False], states=states, scores=scores)


def _states(a: Completion, b: Completion) -> float:
    assert (a.states is None) == (b.states is None)
    if a.states is None or b.states is None:
        return 0.0
    if np.isnan(a.states).all() and np.isnan(b.states).all() and a.states.shape == b.states.shape:
        return 0.0  # pooled over nothing
    return relative(b.states, a.states)


def _scores(a: Completion, b: Completion) -> float:
    worst = 0.0
    for name in (*ALL_SCORES, "watched_logprobs"):
        one, other = getattr(a, name), getattr(b, name)
        assert (one is None) == (other is None), name
        if one is not None and one.size:
            assert np.isfinite(one).all(), name
            worst = max(worst, float(np.abs(one - other).max()))
    return worst


def check_same(cases: Sequence[Case], expected: Sequence[Generation], got: Sequence[Generation], *, sampled_flips: int = 0) -> Agreement:
    """Two runs of the same calls are the same: greedy tokens, sampled tokens up to `sampled_flips`, scores and states."""
    found = compare(cases, expected, got)
    assert found.greedy_flips == 0, str(found)
    assert found.sampled_flips <= sampled_flips, str(found)
    assert found.states < TOLERANCE, str(found)
    assert found.scores < SCORE_TOLERANCE, str(found)
    return found


def check_usage(cases: Sequence[Case], expected: Sequence[Generation], got: Sequence[Generation]) -> None:
    """What a call costs does not depend on what shares the batch."""
    for case, one, other in zip(cases, expected, got, strict=True):
        a, b = (replace(g.usage, cached_tokens=0, device_seconds=0.0) for g in (one, other))
        assert a == b, f"{case.prompt!r}: {a} alone, {b} together"


def check_cost(lm: BatchedLM, case: Case, found: Generation) -> None:
    """Tokens are counted as they are: the prompt once, every sampled token, no padding."""
    usage = found.usage
    sampled = sum(len(c.token_ids) + len(c.tail_ids) + (c.finish == "eos") for c in found.completions)
    assert usage.prompt_tokens == lm.count(case.prompt), usage
    assert usage.completion_tokens == sampled, usage
    assert (usage.generate_calls, usage.forward_calls, usage.sequences) == (1, 0, case.sampling.n), usage
    assert 0 <= usage.cached_tokens <= usage.prompt_tokens, usage
    assert usage.device_seconds > 0, usage


def check_text(case: Case, completion: Completion) -> None:
    """Spans rebuild the text, limits are kept, no stop string is left, and scores are one per kept token."""
    kept = len(completion.token_ids)
    spans = completion.spans
    assert spans.shape == (kept, 2)
    assert "".join(completion.text[a:b] for a, b in spans) == completion.text, (completion.text, spans.tolist())
    assert all(a <= b for a, b in spans)
    assert all(spans[i][1] == spans[i + 1][0] for i in range(kept - 1))
    assert not any(stop in completion.text for stop in case.sampling.stop), completion.text
    sampled = kept + len(completion.tail_ids) + (completion.finish == "eos")
    assert 1 <= sampled <= case.sampling.max_tokens
    assert (completion.finish == "length") <= (sampled == case.sampling.max_tokens)
    assert (completion.finish == "stop") == bool(completion.finish == "stop" and case.sampling.stop)
    if completion.finish == "length":
        assert not completion.tail_ids
    for name in ALL_SCORES:
        values = getattr(completion, name)
        assert (values is not None) == (name in case.sampling.token_scores)
        assert values is None or values.shape == (kept,)
    watched = completion.watched_logprobs
    assert (watched is not None) == bool(case.sampling.watch)
    assert watched is None or watched.shape == (kept, len(case.sampling.watch))
    check_shape(case, completion)


def check_shape(case: Case, completion: Completion) -> None:
    """States have one vector per layer, or one per layer and kept token; none where none was asked for."""
    capture = case.capture
    if capture is None or not capture.layers or capture.over == "prompt_last":
        assert completion.states is None
        return
    assert completion.states is not None
    assert completion.states.dtype == np.float32
    shape = completion.states.shape
    if capture.pool == "none":
        assert shape[:2] == (len(capture.layers), len(completion.token_ids)), shape
    else:
        assert len(shape) == 2
        assert shape[0] == len(capture.layers)
    nothing = not completion.token_ids and capture.pool in ("mean", "last")
    assert np.isnan(completion.states).all() if nothing else np.isfinite(completion.states).all()


async def check_reading(lm: BatchedLM, case: Case, generation: Generation) -> None:
    """Scoring a generation's own ids gives its scores and states back."""
    asked = Sampling(token_scores=case.sampling.token_scores, watch=case.sampling.watch)
    for completion in generation.completions:
        if not completion.token_ids:
            continue
        read = await lm.score(case.prompt, completion.token_ids, sampling=asked, capture=case.capture)
        assert read.token_ids == completion.token_ids
        # a stop string may have cut the last kept token in two; reading gives all of it
        assert read.text.startswith(completion.text) if completion.finish == "stop" else read.text == completion.text
        assert _scores(completion, read) < SCORE_TOLERANCE
        same_end = case.capture is None or case.capture.pool != "eos" or completion.finish != "eos"
        if same_end and case.capture is not None and case.capture.over == "generated":
            assert _states(completion, read) < TOLERANCE


def check_samples_are_prefixes(few: Generation, many: Generation) -> None:
    """The first samples of a call do not depend on how many there are."""
    for a, b in zip(few.completions, many.completions, strict=False):
        assert a.token_ids == b.token_ids
