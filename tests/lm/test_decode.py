"""The decode loop: the same answer alone, batched, permuted, cached and reloaded, and the one that transformers gives."""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from captures import Forced, check_attention, check_pool, ids_of
from identities import (
    ALL_SCORES,
    Case,
    Generation,
    alone,
    ask,
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
from inward.errors import BadInput, CaptureMissing, ContextLengthExceeded, UsageError
from inward.lm import BatchedLM
from inward.testing import tiny_lm
from inward.testing_models import EOS, FAMILIES, tiny_model
from inward.trace import record
from inward.types import Capture, Message, Sampling
from oracle import Oracle, relative

SHARED = "A prompt begins with demonstrations that many questions share, so that they need be read only once. "
LONG = "".join(f"{i} sheep, " for i in range(140))[:1195]
FEW = ("llama", "gemma3", "mistral", "gpt_neox")
"""Families that differ in what the loop has to do: none special, alternating windows, one window, parallel residual."""


@cache
def lm_of(family: str, prefix_reuse: bool = True) -> BatchedLM:
    return tiny_lm(family, prefix_reuse=prefix_reuse)


def mixed_cases() -> list[Case]:
    """Rows of 3 to 1,200 tokens, greedy and sampled, n of 1 and 20, stops and limits that end rows at different steps."""
    scores = {"token_scores": ALL_SCORES}
    mean, every = Capture(layers=(0, 1)), Capture(layers=(1,), site="mlp_raw", pool="none")
    end, before = Capture(layers=(0,), site="attn_out", pool="eos"), Capture(layers=(1, 0), over="prompt_last")
    return [
        Case(prompt="ab", sampling=Sampling(max_tokens=20, **scores), capture=mean),
        Case(prompt=LONG, sampling=Sampling(max_tokens=9, **scores), capture=every),
        Case(prompt=SHARED + "one", sampling=Sampling(max_tokens=30, stop=("e", "\x05", "  ")), capture=mean),
        Case(prompt=SHARED + "two", sampling=Sampling(max_tokens=3, n=20, temperature=1.3, top_k=40), capture=end, question="two"),
        Case(prompt=SHARED + "two", sampling=Sampling(max_tokens=17, **scores), capture=end, question="two"),
        Case(prompt=SHARED + "three", sampling=Sampling(max_tokens=25, temperature=0.7, top_p=0.8, watch=(1, 2)), capture=every),
        Case(prompt=SHARED + "four", sampling=Sampling(max_tokens=30, n=5, temperature=1.0, stop=("a", "\n")), capture=end),
        Case(prompt="x" * 63, sampling=Sampling(max_tokens=5), capture=before),
        Case(prompt="x" * 64, sampling=Sampling(max_tokens=66, temperature=2.0, **scores)),
        Case(prompt="", sampling=Sampling(max_tokens=1), capture=mean),
        Case(prompt="ban", sampling=Sampling(max_tokens=12, logit_bias=((ord("e"), -1e9), (EOS, -1e9)))),
        Case(prompt="what", sampling=Sampling(max_tokens=12, n=3, temperature=1.0, top_k=5, top_p=0.9, **scores), question="a"),
    ]


@cache
def reference(family: str) -> list[Generation]:
    return run(alone(lm_of(family, prefix_reuse=False), mixed_cases()))


@pytest.mark.parametrize("family", FAMILIES)
def test_greedy_equals_generate_of_transformers(family: str):
    lm, oracle = lm_of(family), Oracle.tiny(family)
    prompts = ["ab", "The capital of France is", SHARED + "one", SHARED + "two", "x" * 64, LONG]
    found = run(together(lm, [Case(prompt=p, sampling=Sampling(max_tokens=40)) for p in prompts]))
    for prompt, generation in zip(prompts, found, strict=True):
        assert list(generation.completions[0].token_ids) == oracle.greedy(lm.backend.encoder.encode(prompt), 40, (EOS,))


@pytest.mark.parametrize("prefix_reuse", [True, False], ids=["prefixes", "no-prefixes"])
@pytest.mark.parametrize("family", FAMILIES)
def test_D1_alone_is_batched_is_permuted_is_staggered(family: str, prefix_reuse: bool):
    cases, expected, lm = mixed_cases(), reference(family), lm_of(family, prefix_reuse)
    for way in (together, permuted, staggered) if family in FEW else (permuted,):
        found = run(way(lm, cases))
        check_same(cases, expected, found)
        for case, generation in zip(cases, found, strict=True):
            for completion in generation.completions:
                check_text(case, completion)


def storm_cases(count: int, draw: random.Random) -> list[Case]:
    """Calls at random: prompts around the widths of slots, prefixes within prefixes, every setting."""
    starts = ("", SHARED, SHARED + "And what follows is shared by some of them, long enough to be kept. ")
    cases = []
    for _ in range(count):
        prompt = draw.choice(starts) + "".join(draw.choice("abc ") for _ in range(draw.choice([0, 1, 5, 30, 62, 63, 64, 130])))
        sampling = Sampling(
            max_tokens=draw.choice([1, 2, 7, 30, 66]),
            temperature=draw.choice([0, 0, 1.0]),
            n=draw.choice([1, 1, 3, 5, 20]),
            top_k=draw.choice([0, 10]),
            top_p=draw.choice([1.0, 0.8]),
            stop=draw.choice([(), ("a",), ("\n", "bc")]),
            token_scores=draw.choice([(), ALL_SCORES]),
        )
        layers, site = tuple(draw.sample(range(4), 2)), draw.choice(["resid_post", "mlp_raw", "attn_out", "mlp_out", "resid_mid"])
        over = draw.choice(["generated", "generated", "prompt_last"])
        capture = Capture(layers=layers, site=site, pool=draw.choice(["mean", "last", "eos", "none"]), over=over)
        cases.append(Case(prompt=prompt, sampling=sampling, capture=draw.choice([None, capture]), question=draw.choice([None, "q", "r"])))
    return cases


@pytest.mark.parametrize(("seed", "budget"), [(1, 100_000), (2, 700)], ids=["room", "little-room"])
def test_whoever_comes_and_goes_everyone_gets_its_own_answer(seed: int, budget: int):
    """Calls begin at random times, a fifth of them are cancelled, twice over the same model; the rest are as if alone."""
    draw = random.Random(seed)
    lm, cases = tiny_lm("gemma3", budget=budget), storm_cases(25, draw)

    async def one(case: Case) -> Generation | None:
        await asyncio.sleep(draw.random() / 2)
        task = asyncio.create_task(ask(lm, case))
        if draw.random() < 0.2:
            await asyncio.sleep(draw.random() / 10)
            task.cancel()
        (found,) = await asyncio.gather(task, return_exceptions=True)
        return found if isinstance(found, Generation) else None

    async def storm() -> list[Generation | None]:
        return list(await asyncio.gather(*map(one, cases)))

    expected = run(alone(lm_of("gemma3", prefix_reuse=False), cases))
    for _ in range(2):
        kept = [triple for triple in zip(cases, expected, run(storm()), strict=True) if triple[2] is not None]
        assert len(kept) > 15
        check_same(*zip(*kept, strict=True))
    engine = lm.backend._engine
    assert not engine._calls
    assert not engine._jobs
    assert not engine._slabs._slabs


@pytest.mark.parametrize("family", FEW)
def test_reloaded_is_the_same(family: str, tmp_path):
    from inward.lm import load_lm

    model, tokenizer = tiny_model(family)
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    lm = load_lm(tmp_path)
    cases = mixed_cases()
    check_same(cases, reference(family), run(together(lm, cases)))
    assert lm.fingerprint == load_lm(tmp_path).fingerprint


@pytest.mark.parametrize("family", FEW)
def test_K1_reused_prefixes_change_nothing(family: str):
    """Cold, first use, second use, after another prompt went a different way: the same tokens, states and scores."""
    lm, cold = tiny_lm(family), lm_of(family, prefix_reuse=False)
    capture, sampling = Capture(layers=(0, 1), pool="none"), Sampling(max_tokens=12, token_scores=ALL_SCORES)
    cases = [Case(prompt=SHARED * 3 + tail, sampling=sampling, capture=capture) for tail in ("one", "one two", "", "one")]
    expected = run(alone(cold, cases))
    for _ in range(3):
        found = run(alone(lm, cases))
        check_same(cases, expected, found)
    cached = [g.usage.cached_tokens for g in found]
    assert min(cached) >= len(SHARED) * 3 - 1, cached
    assert all(g.usage.cached_tokens == 0 for g in expected)
    check_usage(cases, expected, found)


def test_prefixes_are_computed_once_for_a_whole_batch():
    lm = tiny_lm("gemma3")
    cases = [Case(prompt=SHARED * 4 + f"question {i}", sampling=Sampling(max_tokens=2)) for i in range(16)]
    run(together(lm, cases))
    whole = sum(lm.count(case.prompt) for case in cases)
    fed = sum(tokens for tokens, _ in lm.backend.passes)
    shared = len(SHARED) * 4
    assert fed == whole - 15 * shared - 15 * len("?question ") + 16, (fed, whole)


def test_a_prefix_that_was_too_long_by_chance_is_shortened_without_feeding():
    """Questions that begin alike make it too long; the next one, which does not, takes the part that it shares."""
    lm, cold = tiny_lm("gemma3"), lm_of("gemma3", prefix_reuse=False)
    capture = Capture(layers=(0, 3), pool="none")
    first = [Case(prompt=SHARED + f"Who was {i}", sampling=Sampling(max_tokens=3), capture=capture) for i in "ab"]
    late = [Case(prompt=SHARED + "And what?", sampling=Sampling(max_tokens=8), capture=capture)]
    run(together(lm, first))
    fed = sum(tokens for tokens, _ in lm.backend.passes)
    found = run(together(lm, late))
    check_same(late, run(alone(cold, late)), found)
    assert found[0].usage.cached_tokens == 1 + len(SHARED)
    assert sum(tokens for tokens, _ in lm.backend.passes) - fed == len("And what?") + 8


def test_a_prompt_is_fed_once_for_all_its_samples():
    lm = tiny_lm("llama")
    run(ask(lm, Case(prompt=LONG, sampling=Sampling(max_tokens=2, n=20, temperature=1.0))))
    assert sum(tokens for tokens, _ in lm.backend.passes) == lm.count(LONG) + 20
    assert lm.backend.passes[0] == (lm.count(LONG), 1)


# -- usage -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", FEW)
def test_usage_is_that_of_the_call_alone(family: str):
    cases = [case for case in mixed_cases() if case.question != "two"]
    lm = lm_of(family)
    found = run(together(lm, cases))
    for case, generation in zip(cases, found, strict=True):
        check_cost(lm, case, generation)
    check_usage(cases, run(alone(lm, cases)), found)


def test_greedy_and_samples_of_one_question_share_a_prefill_and_count_it_once():
    lm = tiny_lm("llama")

    async def both() -> list[Generation]:
        with record("q"):
            return list(await asyncio.gather(lm.generate("the prompt"), lm.generate("the prompt", Sampling(n=4, temperature=1.0))))

    greedy, samples = run(both())
    assert greedy.usage.prompt_tokens == lm.count("the prompt")
    assert (samples.usage.prompt_tokens, samples.usage.cached_tokens) == (0, 0)
    assert lm.backend.passes[0] == (lm.count("the prompt"), 1)


def test_two_questions_with_one_prompt_each_count_it():
    lm = tiny_lm("llama")
    cases = [Case(prompt="the prompt", question=q) for q in ("a", "b")]
    first, second = run(together(lm, cases))
    assert first.usage.prompt_tokens == second.usage.prompt_tokens == lm.count("the prompt")
    assert (first.usage.cached_tokens, second.usage.cached_tokens) == (0, lm.count("the prompt"))
    assert lm.backend.passes[0] == (lm.count("the prompt"), 1)


def test_cached_tokens_are_those_that_were_there():
    lm = tiny_lm("llama")
    base = SHARED[:60]
    run(together(lm, [Case(prompt=base + x * 50) for x in "ab"]))  # `base` is computed
    found = run(together(lm, [Case(prompt=base + "a" * 50 + x) for x in "cd"]))  # `base + a…` was fed with the first prompt
    assert [g.usage.cached_tokens for g in found] == [1 + 60 + 50, 1 + 60 + 50]


def test_the_second_of_two_prompts_feeds_nothing_that_the_first_has_fed():
    """One question at a time: the draft with passages begins like the draft without."""
    lm = tiny_lm("gemma3")  # a window of eight: what is taken over reaches far beyond it
    apart = tiny_lm("gemma3", prefix_reuse=False)
    prompts = [SHARED[:60] + x for x in ("one", "two", "three")]
    found = [run(together(lm, [Case(prompt=p)]))[0] for p in prompts]
    assert [g.usage.cached_tokens for g in found] == [0, 1 + 60, 1 + 60]
    fed = sum(n for n, _ in lm.backend.passes)
    assert fed == sum(n for n, _ in apart_passes(apart, prompts)) - 2 * (1 + 60)
    assert [g.completions[0].token_ids for g in found] == [
        run(together(apart, [Case(prompt=p)]))[0].completions[0].token_ids for p in prompts
    ]


def apart_passes(lm, prompts):
    for prompt in prompts:
        run(together(lm, [Case(prompt=prompt)]))
    return lm.backend.passes


@pytest.mark.parametrize("family", ["gemma3", "mistral", "llama"])
def test_a_long_prompt_fed_in_parts_looks_only_at_its_window_and_is_exact(family: str, monkeypatch):
    monkeypatch.setattr("inward.lm.decode.PREFILL_TOKENS", 64)
    lm, oracle = tiny_lm(family), Oracle.tiny(family)
    prompts = [LONG[:700], LONG[:300] + "another way"]
    sampling = Sampling(max_tokens=8)
    for prompt, found in zip(prompts, run(together(lm, [Case(prompt=p, sampling=sampling) for p in prompts])), strict=True):
        assert list(found.completions[0].token_ids) == oracle.greedy(lm.backend.encoder.encode(prompt), 8, (EOS,))


def test_attention_rows_of_a_windowed_block_are_whole_after_a_long_prompt(monkeypatch):
    monkeypatch.setattr("inward.lm.decode.PREFILL_TOKENS", 64)
    lm, oracle = tiny_lm("gemma3"), Oracle.tiny("gemma3", attention="eager")
    ids, tokens = lm.backend.encoder.encode(LONG[:500]), ids_of("the answer")
    for layer in (0, 2):
        read = run(lm.score(LONG[:500], tokens, capture=Capture(layers=(), attention=layer)))
        check_attention(read.attention, oracle.attention(ids + tokens, layer).numpy()[:, len(ids) :], len(ids))


def test_scoring_counts_a_forward_call_and_what_it_reads():
    lm = tiny_lm("llama")
    with record("q") as trace:
        run(_within(trace, lm.score("the prompt", "and more")))
    usage = trace.usage
    assert (usage.generate_calls, usage.forward_calls, usage.sequences, usage.completion_tokens) == (0, 1, 0, 0)
    assert usage.prompt_tokens == lm.count("the prompt") + len("and more")


async def _within(trace, work):
    return await work


def test_device_seconds_add_up_to_the_time_of_the_steps():
    lm = tiny_lm("llama")
    import time

    started = time.perf_counter()
    found = run(together(lm, mixed_cases()))
    wall = time.perf_counter() - started
    assert 0.2 * wall < sum(g.usage.device_seconds for g in found) < wall


# -- draws -------------------------------------------------------------------------------------------------

DRAWN = Sampling(max_tokens=15, temperature=1.0, n=20)


@pytest.mark.parametrize("family", FEW)
def test_ten_samples_are_the_first_of_twenty(family: str):
    lm = lm_of(family)
    few, many = run(together(lm, [Case(prompt="draw", sampling=replace(DRAWN, n=n), question="q") for n in (10, 20)]))
    check_samples_are_prefixes(few, many)
    assert len({c.token_ids for c in many.completions}) == 20


def test_the_same_question_draws_the_same_whatever_else_runs():
    lm = lm_of("llama")
    mine = Case(prompt="draw", sampling=DRAWN, question="q")
    single = run(ask(lm, mine))
    others = [Case(prompt=SHARED + str(i), sampling=DRAWN, question=f"q{i}") for i in range(5)]
    check_same([mine], [single], run(together(lm, [*others, mine]))[-1:])


def test_draws_depend_on_question_seed_and_prompt():
    lm = lm_of("llama")

    def draw(question: str | None, prompt: str = "draw", seed: int = 0) -> tuple[int, ...]:
        async def one() -> Generation:
            with record(question, seed=seed):
                return await lm.generate(prompt, replace(DRAWN, n=1))

        return run(one()).completions[0].token_ids

    assert draw("q") == draw("q")
    assert draw("q") != draw("r")
    assert draw("q") != draw("q", seed=1)
    assert draw(None) == draw(None)
    assert draw(None) != draw(None, "drew")


def test_calls_of_one_question_share_random_numbers():
    """The first token drawn for two prompts of one question uses one noise: with equal logits it is one token."""
    lm = lm_of("llama")
    flat = tuple((i, -1e9) for i in range(97, 260)), Sampling(max_tokens=1, temperature=1e6, n=8)
    sampling = replace(flat[1], logit_bias=flat[0])
    one, two = run(together(lm, [Case(prompt=p, sampling=sampling, question="q") for p in ("first", "second")]))
    assert [c.token_ids for c in one.completions] == [c.token_ids for c in two.completions]


# -- reading -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", FAMILIES)
def test_scoring_a_generations_own_ids_gives_it_back(family: str):
    lm = lm_of(family)
    for case, generation in zip(mixed_cases(), reference(family), strict=True):
        run(check_reading(lm, case, replace(generation, completions=generation.completions[:3])))


def test_scoring_in_several_passes_is_scoring_in_one(monkeypatch):
    capture = Capture(layers=(0, 1), pool="none", attention=1)
    asked = Sampling(token_scores=ALL_SCORES, watch=(5,))
    one, other = tiny_lm("gemma3"), tiny_lm("gemma3")
    whole = run(one.score("p" * 40, "t" * 90, sampling=asked, capture=capture))
    monkeypatch.setattr("inward.lm.decode._LOGITS", 1)  # sixteen tokens a pass
    monkeypatch.setattr("inward.lm.decode.PREFILL_TOKENS", 11)
    parts = run(other.score("p" * 40, "t" * 90, sampling=asked, capture=capture))
    for name in (*ALL_SCORES, "watched_logprobs", "attention"):
        assert np.abs(getattr(whole, name) - getattr(parts, name)).max() < 1e-4
    assert relative(parts.states, whole.states) < 1e-4


def test_a_long_prompt_fed_in_several_passes_is_the_same(monkeypatch):
    cases = mixed_cases()
    models = {family: tiny_lm(family) for family in FEW}
    monkeypatch.setattr("inward.lm.decode.PREFILL_TOKENS", 37)
    for family, lm in models.items():
        check_same(cases, reference(family), run(together(lm, cases)))


def test_D3_texts_scored_beside_each_other_keep_their_own():
    """Scores of a list are those of its members, in order."""
    lm = lm_of("llama")
    texts = ["a", "longer text", "z" * 90]

    async def scored(ways):
        asked = Sampling(token_scores=("logprobs",))
        return [(await asyncio.gather(*(lm.score("p", text, sampling=asked) for text in way))) for way in ways]

    (batch,) = run(scored([texts]))
    single = [row[0] for row in run(scored([[text] for text in texts]))]
    assert [c.text for c in batch] == texts
    for a, b in zip(batch, single, strict=True):
        assert np.abs(a.score("logprobs") - b.score("logprobs")).max() < 1e-4


def test_given_text_is_not_cut_at_stops_or_ends():
    lm = lm_of("llama")
    read = run(lm.score("p", (97, EOS, 98, EOS), sampling=Sampling(stop=("a",), token_scores=("logprobs",))))
    assert (read.token_ids, read.text, read.finish) == ((97, EOS, 98), "ab", "eos")
    assert len(read.score("logprobs")) == 3


def test_given_text_that_is_nothing_but_the_end():
    read = run(lm_of("llama").score("p", (EOS,), capture=Capture(layers=(0,), pool="eos")))
    assert (read.token_ids, read.text, read.finish) == ((), "", "eos")
    expected = Oracle.tiny("llama").streams((*lm_of("llama").backend.encoder.encode("p"), EOS))["resid_post"][:1, -1]
    assert relative(read.states, expected) < 1e-4


# -- ends --------------------------------------------------------------------------------------------------


def eos_first(lm: BatchedLM, **sampling) -> Sampling:
    """Make the end token certain."""
    return Sampling(logit_bias=((EOS, 1e4),), **sampling)


@pytest.mark.parametrize("pool", ["mean", "last", "eos", "none"])
def test_an_end_token_at_once_leaves_nothing(pool):
    lm = lm_of("llama")
    case = Case(
        prompt="p", sampling=eos_first(lm, max_tokens=5, token_scores=ALL_SCORES, watch=(1,)), capture=Capture(layers=(0, 1), pool=pool)
    )
    generation = run(ask(lm, case))
    completion = generation.completions[0]
    assert (completion.text, completion.token_ids, completion.tail_ids, completion.finish) == ("", (), (), "eos")
    check_text(case, completion)
    check_cost(lm, case, generation)
    states = completion.states
    assert states is not None
    if pool == "none":
        assert states.shape == (2, 0, 32)
    elif pool == "eos":
        expected = Oracle.tiny("llama").streams((*lm.backend.encoder.encode("p"), EOS))["resid_post"][:, -1]
        assert relative(states, expected) < 1e-4
    else:
        assert states.shape == (2, 32)
        assert np.isnan(states).all()


def test_an_end_token_as_the_last_allowed_token_is_an_end():
    completion = run(ask(lm_of("llama"), Case(prompt="p", sampling=eos_first(lm_of("llama"), max_tokens=1)))).completions[0]
    assert (completion.finish, completion.token_ids) == ("eos", ())


@pytest.mark.parametrize("n", [1, 20])
def test_one_token_at_most(n: int):
    lm = lm_of("llama")
    case = Case(prompt="p", sampling=Sampling(max_tokens=1, n=n, temperature=1.0), capture=Capture(layers=(0,), pool="last"))
    generation = run(ask(lm, case))
    check_cost(lm, case, generation)
    oracle = Oracle.tiny("llama")
    for completion in generation.completions:
        if completion.finish == "length":
            assert len(completion.token_ids) == 1
            expected = oracle.streams(lm.backend.encoder.encode("p") + completion.token_ids)["resid_post"][:1, -1]
            assert relative(completion.states, expected) < 1e-4


@pytest.mark.parametrize("pool", ["mean", "last", "eos", "none"])
@pytest.mark.parametrize(
    ("written", "stop", "kept", "tail"),
    [
        ("one two three", ("two",), "one ", "two"),
        ("one two three", (" t", "two"), "one", " t"),
        ("one two three", ("two", " t"), "one", " t"),
        ("one two three", ("wo t",), "one t", "wo t"),
        ("stop", ("stop",), "", "stop"),
        ("s", ("s",), "", "s"),
        ("aab", ("ab",), "a", "ab"),
        ("ababac", ("abac",), "ab", "abac"),
        ("né!x", ("é",), "n", "é"),
        ("n🦙!x", ("!",), "n🦙", "!"),
        ("no end", ("never",), "no end", ""),
    ],
)
def test_a_stop_cuts_what_it_should_and_states_are_of_what_is_kept(monkeypatch, pool, written, stop, kept, tail):
    """Also when it spans tokens: what was cut off is in `tail_ids`, never pooled, and never in the context of the end token."""
    lm, oracle = lm_of("gemma3"), Oracle.tiny("gemma3")
    Forced(monkeypatch, ids_of(written))
    capture = Capture(layers=(0, 1, 3), pool=pool)
    completion = run(ask(lm, Case(prompt="prompt", sampling=Sampling(max_tokens=30, stop=stop), capture=capture))).completions[0]
    assert (completion.text, completion.token_ids, completion.tail_ids) == (kept, ids_of(kept), ids_of(tail))
    assert completion.finish == ("stop" if tail else "eos")
    check_pool(lm, oracle, "prompt", completion, capture)


@pytest.mark.parametrize("family", FEW)
@pytest.mark.parametrize("pool", ["mean", "last", "eos", "none"])
def test_rows_that_end_at_different_steps_pool_their_own(monkeypatch, family, pool):
    """Twenty forced texts in one batch that end by stop, limit and end token, between growing slots and moving rows."""
    texts = [("ab" * i)[: i + 3] + ("STOP" if i % 3 == 0 else "") for i in range(0, 80, 4)]
    lm, oracle = lm_of(family), Oracle.tiny(family)
    Forced(monkeypatch, *map(ids_of, texts))
    capture = Capture(layers=(0, 1), pool=pool)
    case = Case(prompt=SHARED, sampling=Sampling(max_tokens=60, n=20, stop=("STOP",)), capture=capture)
    for completion in run(ask(lm, case)).completions:
        check_text(case, completion)
        check_pool(lm, oracle, SHARED, completion, capture)


def test_a_stop_that_begins_inside_a_token_keeps_the_token():
    """Half of its text survives the cut, so its id, its score and its state do."""
    from inward.testing_models import tiny_tokenizer

    tokenizer = tiny_tokenizer()
    model, _ = tiny_model("llama", vocab_size=262)
    tokenizer.add_tokens(["wo th", "ree"])
    from architectures import serve

    lm = serve(model)
    lm.backend.encoder.__init__(tokenizer, generation_config=model.generation_config)
    with pytest.MonkeyPatch.context() as patch:
        Forced(patch, (*ids_of("one t"), 260, 261, 33))
        capture = Capture(layers=(1,), pool="none")
        asked = Sampling(max_tokens=30, stop=("three",), token_scores=("logprobs",))
        completion = run(ask(lm, Case(prompt="p", sampling=asked, capture=capture))).completions[0]
    assert (completion.text, completion.token_ids, completion.tail_ids) == ("one two ", (*ids_of("one t"), 260), (261,))
    assert completion.spans[-1].tolist() == [5, 8]
    assert len(completion.score("logprobs")) == 6
    assert completion.states is not None
    assert completion.states.shape[1] == 6


def test_bytes_that_never_become_a_character_have_no_text(monkeypatch):
    lm = lm_of("llama")
    Forced(monkeypatch, (97, 0xF0, 0x9F, 0xA6))
    case = Case(prompt="p", sampling=Sampling(max_tokens=4), capture=Capture(layers=(0,), pool="none"))
    completion = run(ask(lm, case)).completions[0]
    assert (completion.text, completion.token_ids) == ("a", (97, 0xF0, 0x9F, 0xA6))
    check_text(case, completion)


def test_several_end_tokens_each_end_and_are_the_one_fed(monkeypatch):
    lm, oracle = tiny_lm("llama", chat=True), Oracle.tiny("llama", chat=True)
    from inward.testing_models import END_OF_TURN

    capture = Capture(layers=(0, 1), pool="eos")
    for end in (EOS, END_OF_TURN):
        with pytest.MonkeyPatch.context() as patch:
            Forced(patch, (*ids_of("text"), end))
            completion = run(ask(lm, Case(prompt="p", sampling=Sampling(max_tokens=9), capture=capture))).completions[0]
        assert (completion.text, completion.finish) == ("text", "eos")
        check_pool(lm, oracle, "p", completion, capture, end)
        read = run(lm.score("p", (*ids_of("text"), end), capture=capture))
        assert relative(read.states, completion.states) < 1e-4


# -- settings ----------------------------------------------------------------------------------------------


def test_logit_bias_bans_a_token_and_scores_ignore_it():
    lm = lm_of("llama")
    free = run(ask(lm, Case(prompt="p", sampling=Sampling(max_tokens=20)))).completions[0].token_ids
    banned = tuple((i, -1e9) for i in {*free, EOS})
    asked = Sampling(max_tokens=20, logit_bias=banned, token_scores=ALL_SCORES)
    completion = run(ask(lm, Case(prompt="p", sampling=asked))).completions[0]
    assert not {*completion.token_ids} & {*free}
    raw = run(lm.score("p", completion.token_ids, sampling=Sampling(token_scores=ALL_SCORES)))
    for name in ALL_SCORES:
        assert np.abs(completion.score(name) - raw.score(name)).max() < 1e-4


def test_zero_temperature_is_greedy_for_every_sample_and_ignores_the_rest():
    lm = lm_of("llama")
    plain, dressed = run(
        together(lm, [Case(prompt="p", sampling=s) for s in (Sampling(max_tokens=9), Sampling(max_tokens=9, n=4, top_k=3, top_p=0.1))])
    )
    assert {c.token_ids for c in dressed.completions} == {plain.completions[0].token_ids}


def test_a_tiny_temperature_and_a_single_candidate_are_greedy():
    lm = lm_of("llama")
    settings = [{"temperature": 1e-6}, {"temperature": 1.0, "top_k": 1}, {"temperature": 1.0, "top_p": 1e-9}]
    cases = [Case(prompt="p", sampling=Sampling(max_tokens=9, **each)) for each in ({}, *settings)]
    assert len({g.completions[0].token_ids for g in run(together(lm, cases))}) == 1


def test_nothing_is_computed_that_nobody_asked_for():
    completion = run(ask(lm_of("llama"), Case(prompt="p"))).completions[0]
    assert completion.logprobs is completion.entropies is completion.energies is None
    assert completion.watched_logprobs is completion.states is completion.attention is None
    with pytest.raises(CaptureMissing, match="logprobs were not recorded"):
        completion.score("logprobs")


# -- at the door -------------------------------------------------------------------------------------------


def test_what_cannot_run_is_refused_before_it_waits():
    lm = tiny_lm("llama", max_position_embeddings=64)
    with pytest.raises(ContextLengthExceeded, match=r"prompt \(51 tokens\) and completion \(14\) need 65 tokens; .* has room for 64"):
        run(lm.generate("x" * 50, Sampling(max_tokens=14)))
    assert run(lm.generate("x" * 50, Sampling(max_tokens=13, logit_bias=((EOS, -1e9),)))).completions[0].finish == "length"
    with pytest.raises(UsageError, match=r"watch names tokens \[260, -1\] that do not exist: the vocabulary has 260"):
        run(lm.generate("x", Sampling(max_tokens=1, watch=(260, 3, -1))))
    with pytest.raises(UsageError, match=r"logit_bias names tokens \[999\]"):
        run(lm.generate("x", Sampling(max_tokens=1, logit_bias=((999, 1.0),))))
    with pytest.raises(UsageError, match=r"the continuation names tokens \[-1, 260\]"):
        run(lm.score("x", (5, -1, 260)))
    with pytest.raises(UsageError, match="at least one token"):
        run(lm.score("x", ()))
    with pytest.raises(UsageError, match="attention rows come from `score`"):
        run(lm.generate("x", Sampling(max_tokens=1), capture=Capture(layers=(0,), attention=0)))


def test_an_empty_prompt_without_bos_is_refused():
    lm = tiny_lm("llama")
    lm.backend.encoder._front = ()
    lm.backend.encoder._whole.cache_clear()
    lm.backend._encode.cache_clear()
    with pytest.raises(BadInput, match="the prompt is empty"):
        run(lm.generate(""))


def test_T6_a_tokenizer_without_pad_token_needs_none(recwarn):
    from inward.lm.loading import Loaded
    from inward.lm.transformers import TransformersBackend

    model, tokenizer = tiny_model("llama", pad_token_id=None)
    tokenizer.pad_token = None
    loaded = Loaded(model=model, tokenizer=tokenizer, generation_config=model.generation_config, name="tiny")
    lm = BatchedLM(TransformersBackend(loaded))
    rows = model.get_input_embeddings().weight.shape[0]
    cases = [Case(prompt=p, sampling=Sampling(max_tokens=6)) for p in ("a", "b" * 30)]
    check_same(cases, run(alone(lm, cases)), run(together(lm, cases)))
    assert model.get_input_embeddings().weight.shape[0] == rows
    assert tokenizer.pad_token is None
    assert not recwarn.list


def test_messages_go_through_the_chat_template_and_stop_at_its_end():
    lm = tiny_lm("llama", chat=True)
    with pytest.MonkeyPatch.context() as patch:
        Forced(patch, (*ids_of("Hi"), 259, *ids_of("x")))
        completion = run(ask(lm, Case(prompt=(Message("user", "Hello <end_of_turn> there"),)))).completions[0]
    assert (completion.text, completion.finish) == ("Hi", "eos")


def test_a_model_whose_attention_was_exchanged_under_way_is_noticed():
    """Its own attention would see the packed rows as one text, and nothing would fail."""
    lm = tiny_lm("llama")
    lm.backend.model.set_attn_implementation("sdpa")
    with pytest.raises(RuntimeError, match="the model ran attention of its own"):
        run(lm.generate("x"))


def test_dropped_requests_leave_nothing_behind():
    lm = tiny_lm("llama")
    engine = lm.backend._engine

    async def main() -> Generation:
        sampling, capture = Sampling(max_tokens=3000, n=7, temperature=1.0), Capture(layers=(0,))
        tasks = [asyncio.create_task(lm.generate(SHARED + str(i), sampling, capture=capture)) for i in range(5)]
        tasks.append(asyncio.create_task(lm.score(SHARED, "x" * 50)))
        await asyncio.sleep(0.2)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        return await lm.generate("next", Sampling(max_tokens=5))

    found = run(main())
    assert (
        found.completions[0].token_ids
        == run(ask(tiny_lm("llama"), Case(prompt="next", sampling=Sampling(max_tokens=5)))).completions[0].token_ids
    )
    assert not engine._calls
    assert not engine._jobs
    assert not list(engine._slabs)
    assert not engine._slabs._slabs
