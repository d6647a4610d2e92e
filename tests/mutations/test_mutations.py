"""Every guarantee has a fault that breaks it, and the check that holds the guarantee sees the fault.

A fault is put in after the model is loaded, since loading compares numbers and would send the model to the cold
path. A check that cannot fail proves nothing.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from mutating import Fault, put

from captures import Forced, check_attention, check_order, check_pool, check_residual, check_states, ids_of, measure, order_of, pair
from draws import LOGITS, check_distribution, check_rows_alone, draw, exact
from fake_backends import StepBackend, out_of_memory_above, poisoned, request
from identities import (
    ALL_SCORES,
    Case,
    alone,
    ask,
    check_cost,
    check_reading,
    check_same,
    check_samples_are_prefixes,
    check_text,
    check_usage,
    run,
    together,
)
from inward.batching import Scheduler
from inward.lm.capture import States
from inward.lm.identity import model_fingerprint
from inward.lm.sampling import Choice, choose, step_key
from inward.protocols import Request
from inward.testing import tiny_lm
from inward.testing_models import END_OF_TURN, EOS, tiny_model
from inward.trace import record
from inward.types import Capture, Generation, Sampling
from oracle import Oracle, relative

Check = Callable[[], object]
SHARED = "Demonstrations that many questions share, so that they are read only once. "

CHECKS: dict[str, Callable[[], Check]] = {}
"""Name -> what prepares the check: models are built before the fault is put in."""


def check(prepare: Callable[[], Check]) -> Callable[[], Check]:
    CHECKS[prepare.__name__] = prepare
    return prepare


# -- states ------------------------------------------------------------------------------------------------


@check
def states_of_gemma() -> Check:
    models = pair("gemma3")

    def look() -> None:
        it = measure(*models)
        for site in it.sites:
            check_states(it, site)
        assert check_residual(it) < 1e-5

    return look


@check
def rows_keep_their_order() -> Check:
    lm = tiny_lm("llama")
    return lambda: check_order(*order_of(lm))


def pools(*texts: str, stop: tuple[str, ...] = (), end: int = EOS, n: int = 1, limit: int = 70, chat: bool = False) -> Check:
    """Force texts and compare every pool with a plain forward pass over what is kept."""
    lm, oracle = tiny_lm("gemma3", chat=chat), Oracle.tiny("gemma3", chat=chat)

    def look() -> None:
        for pool in ("mean", "last", "eos", "none"):
            with pytest.MonkeyPatch.context() as patch:
                Forced(patch, *((*ids_of(text), end) for text in texts))
                capture = Capture(layers=(0, 3), pool=pool)
                case = Case(prompt="prompt", sampling=Sampling(max_tokens=limit, n=n, stop=stop), capture=capture)
                for completion in run(ask(lm, case)).completions:
                    check_text(case, completion)
                    check_pool(lm, oracle, "prompt", completion, capture, end)

    return look


@check
def pools_after_a_stop() -> Check:
    return pools("one two three", stop=("wo t",))


@check
def pools_at_the_limit() -> Check:
    return pools("text", limit=4)


@check
def pools_at_an_end_token() -> Check:
    return pools("text", end=END_OF_TURN, chat=True)


@check
def pools_of_rows_that_leave_and_grow() -> Check:
    return pools(*(("ab" * i)[: i + 3] + ("STOP" if i % 3 == 0 else "") for i in range(0, 66, 4)), stop=("STOP",), n=17)


@check
def attention_is_that_of_eager_attention() -> Check:
    lm, oracle = tiny_lm("gemma3"), Oracle.tiny("gemma3", attention="eager")
    ids, tokens = lm.backend.encoder.encode("what was asked"), ids_of("the answer")

    def look() -> None:
        for layer in (0, 2):
            read = run(lm.score("what was asked", tokens, capture=Capture(layers=(), attention=layer)))
            check_attention(read.attention, oracle.attention(ids + tokens, layer).numpy()[:, len(ids) :], len(ids))

    return look


@check
def a_states_memory_is_its_own() -> Check:
    def look() -> None:
        states, step = States(Capture(layers=(0,), pool="none")), torch.zeros(1000, 1, 8)
        states.add(0, step[5:6])
        states.settle(1)
        assert states.every[0].untyped_storage().nbytes() == 32

    return look


# -- the same whatever shares the batch --------------------------------------------------------------------


def cases() -> list[Case]:
    capture, scores = Capture(layers=(0, 1, 3), pool="mean"), ALL_SCORES
    greedy = [
        Case(prompt=SHARED + f"{i}" * i, sampling=Sampling(max_tokens=4 + 3 * i, token_scores=scores), capture=capture) for i in range(1, 6)
    ]
    return [
        *greedy,
        Case(prompt="x" * 63, sampling=Sampling(max_tokens=5), capture=capture),
        Case(prompt="draw", sampling=Sampling(max_tokens=8, n=5, temperature=1.0), question="q"),
        Case(prompt=SHARED + "draw", sampling=Sampling(max_tokens=8, temperature=1.0, top_k=20), capture=capture, question="r"),
    ]


@check
def together_is_alone() -> Check:
    lm, expected = tiny_lm("gemma3"), run(alone(tiny_lm("gemma3", prefix_reuse=False), cases()))

    def look() -> None:
        found = run(together(lm, cases()))
        check_same(cases(), expected, found)
        check_usage(cases(), expected, found)
        check_same(cases(), expected, run(together(lm, cases())))

    return look


@check
def greedy_is_generate() -> Check:
    lm, oracle = tiny_lm("gemma3"), Oracle.tiny("gemma3")
    prompts = ["ab", SHARED + "one", SHARED + "two", SHARED + "three", SHARED + "four", "end"]

    def look() -> None:
        sampling = Sampling(max_tokens=20)
        for prompt, generation in zip(prompts, run(together(lm, [Case(prompt=p, sampling=sampling) for p in prompts])), strict=True):
            assert list(generation.completions[0].token_ids) == oracle.greedy(lm.backend.encoder.encode(prompt), 20, (EOS,))

    return look


@check
def a_long_prompt_in_parts_is_exact() -> Check:
    return in_parts("inward.lm.decode.PREFILL_TOKENS", 64)


@check
def a_long_prompt_in_blocks_is_exact() -> Check:
    return in_parts("inward.lm.attention.BLOCK", 48)


def in_parts(limit: str, value: int) -> Check:
    lm, oracle = tiny_lm("gemma3"), Oracle.tiny("gemma3")
    prompt, capture = "".join(f"{i} sheep, " for i in range(80))[:700], Capture(layers=(0, 1, 2, 3), pool="none")

    def look() -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(limit, value)
            (found,) = run(together(lm, [Case(prompt=prompt, sampling=Sampling(max_tokens=8), capture=capture)]))
        ids, tokens = lm.backend.encoder.encode(prompt), list(found.completions[0].token_ids)
        assert tokens == oracle.greedy(ids, 8, (EOS,))
        assert relative(found.states, oracle.streams((*ids, *tokens), capture.layers)["resid_post"][:, len(ids) :]) < 1e-5

    return look


@check
def a_shortened_prefix_is_exact() -> Check:
    lm, cold = tiny_lm("gemma3"), tiny_lm("gemma3", prefix_reuse=False)
    late = [Case(prompt=SHARED + "And what?", sampling=Sampling(max_tokens=8), capture=Capture(layers=(0, 3), pool="none"))]
    expected = run(alone(cold, late))
    run(together(lm, [Case(prompt=SHARED + f"Who was {i}", sampling=Sampling(max_tokens=3)) for i in "ab"]))
    return lambda: check_same(late, expected, run(alone(lm, late)))


@check
def a_row_that_is_no_number_harms_no_other() -> Check:
    lm = tiny_lm("llama")
    good = [Case(prompt="x" * n, sampling=Sampling(max_tokens=4 + n)) for n in (2, 30, 5, 9, 21, 3)]
    expected = run(alone(lm, good))
    with torch.no_grad():
        lm.backend.model.get_input_embeddings().weight[ord("Z")] = float("nan")
    add, step = lm.backend.add, lm.backend.step

    def look() -> None:
        """A row joins where one that is no number was the last, beside a longer one."""
        requests = [Request(prompt=p, sampling=Sampling(max_tokens=n)) for p, n in (("x" * 40, 20), ("Z" * 50, 2), (good[0].prompt, 6))]
        add(requests[0])
        bad = add(requests[1])
        while bad not in [event.id for event in step()]:
            pass
        mine, found = add(requests[2]), {}
        while mine not in found:
            found |= {event.id: event for event in step()}
        check_same(good[:1], expected[:1], [found[mine].generation])
        while step():
            pass

    return look


@check
def a_fault_stays_with_those_who_share_it() -> Check:
    lm, good = tiny_lm("llama"), [Case(prompt="fine", sampling=Sampling(max_tokens=3))]
    expected, encode = run(alone(lm, good)), lm.backend._encode
    lm.backend._encode = lambda prompt: tuple(999 if i == ord("#") else i for i in encode(prompt))

    async def bad() -> None:
        await asyncio.gather(*(ask(lm, Case(prompt="#" * 40 + x)) for x in "ab"), return_exceptions=True)

    def look() -> None:
        run(bad())
        try:
            check_same(good, expected, run(alone(lm, good)))
        except IndexError as error:
            raise AssertionError("somebody else's fault") from error

    return look


# -- text, reading, usage ----------------------------------------------------------------------------------


@check
def texts_are_cut_at_their_stops() -> Check:
    lm = tiny_lm("llama")

    def look() -> None:
        for written, stop, kept in (
            ("one two", ("two",), "one "),
            ("ababac", ("abac",), "ab"),
            ("né!x", ("é",), "n"),
            ("abcd", ("d", "bcd"), "a"),
            ("ab", (), "ab"),
        ):
            with pytest.MonkeyPatch.context() as patch:
                Forced(patch, ids_of(written))
                case = Case(prompt="p", sampling=Sampling(max_tokens=20, stop=stop, token_scores=("logprobs",)))
                completion = run(ask(lm, case)).completions[0]
            check_text(case, completion)
            assert completion.text == kept
            assert completion.token_ids == ids_of(kept)

    return look


@check
def reading_gives_it_back() -> Check:
    lm = tiny_lm("gemma3")
    asked = Sampling(max_tokens=9, token_scores=ALL_SCORES, watch=(1, 7), logit_bias=((65, 2.5), (66, -3.0)))
    case = Case(prompt="prompt", sampling=asked, capture=Capture(layers=(0, 3), pool="none"))

    def look() -> None:
        run(check_reading(lm, case, run(ask(lm, case))))
        read = run(lm.score("prompt", ids_of("given"), sampling=Sampling(stop=("v",))))
        assert read.text == "given"

    return look


@check
def tokens_are_counted_as_they_are() -> Check:
    lm = tiny_lm("llama")
    counted = [
        Case(prompt="ab", sampling=Sampling(max_tokens=5)),
        Case(prompt="a longer prompt than that", sampling=Sampling(max_tokens=7, n=6, temperature=1.0)),
        Case(prompt="end", sampling=Sampling(max_tokens=7, logit_bias=((EOS, 1e4),))),
    ]

    def look() -> None:
        for case, generation in zip(counted, run(together(lm, counted)), strict=True):
            check_cost(lm, case, generation)

    return look


@check
def one_question_pays_for_its_prompt_once() -> Check:
    lm = tiny_lm("llama")

    async def both() -> list[Generation]:
        with record("q"):
            return list(
                await asyncio.gather(lm.generate("prompt", Sampling(max_tokens=2)), lm.generate("prompt", Sampling(max_tokens=2, n=3)))
            )

    def look() -> None:
        assert sum(g.usage.prompt_tokens for g in run(both())) == lm.count("prompt")

    return look


@check
def what_is_not_cached_is_fed() -> Check:
    lm = tiny_lm("llama")

    def look() -> None:
        fed = sum(n for n, _ in lm.backend.passes)
        for tails in ("abcde", "fg"):
            found = run(together(lm, [Case(prompt=SHARED + x, sampling=Sampling(max_tokens=1)) for x in tails]))
            now = sum(n for n, _ in lm.backend.passes)
            assert now - fed == sum(g.usage.prompt_tokens - g.usage.cached_tokens for g in found)
            fed = now

    return look


@check
def dropped_requests_leave_nothing() -> Check:
    lm = tiny_lm("llama")

    async def come_and_go() -> None:
        task = asyncio.create_task(lm.generate("x", Sampling(max_tokens=3000, n=5, temperature=1.0)))
        await asyncio.sleep(0.2)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await lm.generate("next", Sampling(max_tokens=2))

    def look() -> None:
        run(come_and_go())
        assert not lm.backend._engine._calls
        assert not lm.backend._engine._slabs._slabs

    return look


# -- draws -------------------------------------------------------------------------------------------------


@check
def draws_follow_the_distribution() -> Check:
    def look() -> None:
        for settings in ({"temperature": 2.0}, {"top_k": 4}, {"top_k": 6, "top_p": 0.7}):
            check_distribution(draw(LOGITS, 1500, **settings), exact(LOGITS, **settings))

    return look


@check
def steps_and_samples_are_independent() -> Check:
    def look() -> None:
        rows = [step_key(7, sample, step) for sample in range(40) for step in range(40)]
        ids = np.array(choose(LOGITS.expand(len(rows), -1), [Choice(sampling=Sampling(temperature=1.0), key=k) for k in rows]).ids)
        p, table = exact(LOGITS), ids.reshape(40, 40)
        check_distribution((table[:, :-1] * 12 + table[:, 1:]).ravel().tolist(), np.outer(p, p).ravel())
        check_distribution((table[:-1] * 12 + table[1:]).ravel().tolist(), np.outer(p, p).ravel())

    return look


@check
def a_rows_choice_is_its_own() -> Check:
    return check_rows_alone


@check
def ten_samples_are_the_first_of_twenty() -> Check:
    lm = tiny_lm("llama")

    def look() -> None:
        sampling = Sampling(max_tokens=6, temperature=1.0)
        few, many = run(together(lm, [Case(prompt="p", sampling=replace(sampling, n=n), question="q") for n in (10, 20)]))
        check_samples_are_prefixes(few, many)
        assert len({c.token_ids for c in many.completions}) == 20

    return look


@check
def questions_draw_differently() -> Check:
    lm = tiny_lm("llama")

    def look() -> None:
        found = run(together(lm, [Case(prompt="p", sampling=Sampling(max_tokens=6, temperature=1.0), question=q) for q in "abcd"]))
        assert len({g.completions[0].token_ids for g in found}) == 4

    return look


@check
def models_differ_in_their_fingerprints() -> Check:
    models = [tiny_model("llama", seed=seed).model for seed in (0, 1)] + [tiny_model("llama", rms_norm_eps=1e-3).model]

    def look() -> None:
        assert len({model_fingerprint(model, t) for model in models for t in "ab"}) == 6

    return look


# -- the scheduler -----------------------------------------------------------------------------------------


async def outcomes(scheduler: Scheduler, *names: str, steps: int = 2) -> list[str]:
    found = await asyncio.gather(*(scheduler(request(name, steps)) for name in names), return_exceptions=True)
    return [str(x) if isinstance(x, BaseException) else x.text for x in found]


@check
def what_is_asked_at_once_rides_together() -> Check:
    def look() -> None:
        async def slow(scheduler: Scheduler) -> None:
            await asyncio.sleep(0)  # one turn of the loop later, after work that lets other threads run
            time.sleep(0.02)
            await scheduler(request("slow"))

        async def both(scheduler: Scheduler) -> None:
            await asyncio.gather(scheduler(request("quick")), slow(scheduler))

        backend = StepBackend()
        run(both(Scheduler(backend)))
        assert [len(names) for names in backend.steps] == [2]

    return look


@check
def the_oldest_goes_first() -> Check:
    def look() -> None:
        backend = StepBackend(budget=8, before_step=out_of_memory_above(2))
        run(outcomes(Scheduler(backend), *(f"q{i}" for i in range(9))), 20)
        assert [name for what, name in backend.log if what == "done"] == [f"q{i}" for i in range(9)]

    return look


@check
def a_faulty_row_fails_alone() -> Check:
    def look() -> None:
        found = run(outcomes(Scheduler(StepBackend(before_step=poisoned)), "a", "poison", "b"), 20)
        assert found == ["a done", "cannot step poison", "b done"]

    return look


@check
def the_cancelled_leave() -> Check:
    def look() -> None:
        backend = StepBackend(pause=0.001)
        scheduler = Scheduler(backend)

        async def both() -> None:
            gone = asyncio.create_task(scheduler(request("gone", 60)))
            stays = asyncio.create_task(scheduler(request("stays", 30)))
            while not backend.first_step.is_set():
                await asyncio.sleep(0.001)
            gone.cancel()
            await stays

        run(both(), 20)
        assert ("drop", "gone") in backend.log

    return look


@check
def one_thread_steps() -> Check:
    def look() -> None:
        inside, most = threading.Semaphore(1), []

        def alone_in_here(names: list[str]) -> None:
            most.append(inside.acquire(blocking=False))
            threading.Event().wait(0.002)
            if most[-1]:
                inside.release()

        backend = StepBackend(before_step=alone_in_here)
        scheduler = Scheduler(backend)

        async def waves() -> None:
            async def later(i: int) -> None:
                await asyncio.sleep(0.003 * i)
                await scheduler(request(f"q{i}", 10))

            await asyncio.gather(*(later(i) for i in range(8)), return_exceptions=True)

        try:
            run(waves(), 10)
        except TimeoutError as error:
            raise AssertionError("somebody waits for ever") from error
        assert all(most)

    return look


# -- the faults --------------------------------------------------------------------------------------------

D, C, A, K, R, S, B = "lm.decode:Engine.", "lm.capture:", "lm.attention:", "lm.kv:", "lm.rows:", "lm.sampling:", "batching:Scheduler."

FAULTS = [
    Fault(
        "gather reads the next row",
        f"{C}Taps.gather",
        "rows.to(x.device)",
        "(rows + 1).clamp(max=x.shape[-2] - 1).to(x.device)",
        "states_of_gemma",
    ),
    Fault(
        "gather reads the row before",
        f"{C}Taps.gather",
        "rows.to(x.device)",
        "(rows - 1).clamp(min=0).to(x.device)",
        "rows_keep_their_order",
    ),
    Fault(
        "gather reads the last row for all",
        f"{C}Taps.gather",
        "rows.to(x.device)",
        "rows.max().expand(len(rows)).to(x.device)",
        "rows_keep_their_order",
    ),
    Fault(
        "the next block is hooked",
        f"{C}Taps._hook",
        "self._blocks[layer]",
        "self._blocks[(layer + 1) % len(self._blocks)]",
        "states_of_gemma",
    ),
    Fault("the block's own input is hooked", f"{C}Taps._hook", 'place.end == "out"', "False", "states_of_gemma"),
    Fault(
        "the raw MLP output for the added one",
        f"{C}Taps._hook",
        "self._places[site]",
        'self._places["mlp_raw" if site == "mlp_out" else site]',
        "states_of_gemma",
    ),
    Fault(
        "layers come back sorted the wrong way", f"{C}Taps.gather", "for layer in layers", "for layer in layers[::-1]", "states_of_gemma"
    ),
    Fault("tails are pooled", f"{R}Text.safe", "limit = len(text) - held", "return len(self.ids)", "pools_after_a_stop"),
    Fault("one state too few is counted", f"{C}States.settle", "< safe:", "< safe - 1:", "pools_after_a_stop"),
    Fault(
        "the mean is over one more",
        f"{C}States.result",
        "self.total / self.counted",
        "self.total / (self.counted + 1)",
        "pools_after_a_stop",
    ),
    Fault("the end token is fed behind the tail", f"{D}_proceed", "live.base + min(fed, kept)", "live.base + fed", "pools_after_a_stop"),
    Fault("the last kept token is not fed", f"{D}_proceed", "row.text.ids[fed:kept]", "row.text.ids[fed : kept - 1]", "pools_at_the_limit"),
    Fault("tails are fed", f"{D}_proceed", "row.text.ids[fed:kept]", "row.text.ids[fed:]", "pools_after_a_stop"),
    Fault("the first end token is fed for any", f"{D}_proceed", "row.end_id is not None", "False", "pools_at_an_end_token"),
    Fault(
        "rows exchange their states",
        "lm.harvest:_state_rows",
        "enumerate(owner, part",
        "enumerate(owner[1:] + owner[:1], part",
        "rows_keep_their_order",
    ),
    Fault(
        "a row that leaves takes another's place",
        f"{K}Slab.leave",
        "tensor[seat.slot] = tensor[last.slot]",
        "pass",
        "pools_of_rows_that_leave_and_grow",
    ),
    Fault(
        "a row that grows loses its last token",
        f"{K}Slabs.widen",
        "new.slab.fill(new, keys, values, seat.length)",
        "new.slab.fill(new, keys, values, seat.length - 1)",
        "pools_of_rows_that_leave_and_grow",
    ),
    Fault(
        "a growing slab forgets its rows",
        f"{K}Slab._resize",
        "store[layer][:rows] = old[:rows]",
        "pass",
        "pools_of_rows_that_leave_and_grow",
    ),
    Fault("a slot is not cleared", f"{K}Slab.sit", "tensor[slot] = 0", "pass", "a_row_that_is_no_number_harms_no_other"),
    Fault(
        "attention rows begin one late",
        "lm.reading:_attention",
        "prompt - job.segment.start",
        "prompt - job.segment.start + 1",
        "attention_is_that_of_eager_attention",
    ),
    Fault(
        "attention sees what comes later",
        f"{A}_softmax",
        'scores.masked_fill(~mask, float("-inf"))',
        "scores",
        "attention_is_that_of_eager_attention",
    ),
    Fault(
        "a step's states are kept alive",
        f"{C}States.settle",
        "self.every.append(state.clone())",
        "self.every.append(state)",
        "a_states_memory_is_its_own",
    ),
    Fault(
        "no window",
        f"{A}MaskRule.allows",
        "allowed = self.rule(zero, zero, q, k)",
        "return (k <= q).expand(len(queries), len(keys))",
        "greedy_is_generate",
    ),
    Fault(
        "the window of a long prompt begins one late",
        f"{A}Prefill.mask",
        "int(seen.argmax()), total",
        "int(seen.argmax()) + 1, total",
        "a_long_prompt_in_parts_is_exact",
    ),
    Fault(
        "a block's answers go to the first rows",
        f"{A}Prefill.attend",
        "out[block.queries] = found",
        "out[: len(block.mask)] = found",
        "a_long_prompt_in_blocks_is_exact",
    ),
    Fault(
        "a block takes its neighbour's mask",
        f"{A}Prefill.mask",
        "part = mask[start : start + BLOCK]",
        "part = mask[max(0, start - BLOCK) : start - BLOCK + len(mask[start : start + BLOCK])] if start else mask[:BLOCK]",
        "a_long_prompt_in_blocks_is_exact",
    ),
    Fault(
        "a block's last key is left out",
        f"{A}Prefill.mask",
        "total - int(seen.flip(0).argmax())",
        "total - int(seen.flip(0).argmax()) - 1",
        "a_long_prompt_in_parts_is_exact",
    ),
    Fault(
        "what left the window is cut one short",
        f"{A}Prefill.attend",
        "keys[:, block.first : block.last], values[:, block.first : block.last]",
        "(t[:, max(0, block.first - 1) : block.last - (block.first > 0)] for t in (keys, values))",
        "a_long_prompt_in_parts_is_exact",
    ),
    Fault(
        "the window counts from the packed step",
        f"{A}MaskRule.allows",
        "keys[None, :]",
        "keys[None, :] + (queries.min() > 20)",
        "together_is_alone",
    ),
    Fault(
        "a prefix is cropped to the window",
        f"{K}Segment.read",
        "if self.parent is None",
        "own = tuple(torch.nn.functional.pad(t[:, -8:], (0, 0, max(0, length - 8), 0)) for t in own)\n    if self.parent is None",
        "greedy_is_generate",
    ),
    Fault(
        "rows do not see their shared prefix", f"{A}Decode.attend", "part = weights[", "break\n        part = weights[", "together_is_alone"
    ),
    Fault(
        "a prompt continues its prefix one early",
        f"{D}_join",
        "Segment(ids[shared:], parent)",
        "Segment(ids[max(0, shared - 1):], parent)",
        "together_is_alone",
    ),
    Fault(
        "positions begin again behind a prefix",
        f"{D}_plan",
        "first = segment.start + segment.filled",
        "first = segment.filled",
        "together_is_alone",
    ),
    Fault(
        "a prefix is copied from one place off",
        f"{K}Segment.borrow",
        "keys[:, place].clone()",
        "keys[:, place].roll(1, 1)",
        "a_shortened_prefix_is_exact",
    ),
    Fault(
        "a row is masked like its neighbour", f"{A}Decode.mask", "positions[self.rows]", "positions[self.rows].flip(0)", "together_is_alone"
    ),
    Fault(
        "prefixes of the dropped stay in the queue",
        f"{D}drop",
        "if job.segment in awaited",
        "if job.calls or job.segment not in awaited",
        "a_fault_stays_with_those_who_share_it",
    ),
    Fault("rows of the dropped stay in the batch", f"{D}drop", "self._slabs.leave(live.seat)", "pass", "dropped_requests_leave_nothing"),
    Fault("end tokens do not end", f"{R}Row.accept", "token in eos_ids", "False", "texts_are_cut_at_their_stops"),
    Fault("stops that span tokens are missed", f"{R}Text.push", "max(0, before - len(stop) + 1)", "before", "texts_are_cut_at_their_stops"),
    Fault("the last of two stops wins", f"{R}Text.push", "min(found)", "max(found)", "texts_are_cut_at_their_stops"),
    Fault(
        "a token of the stop is kept",
        f"{R}Text.kept",
        "spans[kept - 1][0] >= self.cut",
        "spans[kept - 1][0] > self.cut",
        "texts_are_cut_at_their_stops",
    ),
    Fault("scores are not cut", f"{R}Row.completion", "self.scores[name][:kept]", "self.scores[name]", "texts_are_cut_at_their_stops"),
    Fault("given text is cut at stops", "lm.reading:finish_reading", "row.text.cut = None", "pass", "reading_gives_it_back"),
    Fault(
        "given tokens are scored one off",
        "lm.reading:read_given",
        "call.given[index] for",
        "call.given[index - 1] for",
        "reading_gives_it_back",
    ),
    Fault("scores are of the biased logits", f"{S}_choose_ids", "logits = logits.clone()", "pass", "reading_gives_it_back"),
    Fault(
        "padding is counted",
        f"{D}_account",
        "n = len(call.prompt_ids)",
        "n = -(-len(call.prompt_ids) // 8) * 8",
        "tokens_are_counted_as_they_are",
    ),
    Fault(
        "a prompt is counted per sample",
        f"{D}_account",
        "else n,\n        cached",
        "else n * max(1, samples),\n        cached",
        "tokens_are_counted_as_they_are",
    ),
    Fault(
        "the end token is not counted",
        "lm.calls:Call.generation",
        "sum(row.sampled for",
        "sum(len(row.text.ids) for",
        "tokens_are_counted_as_they_are",
    ),
    Fault(
        "each call of a question counts the prompt",
        f"{D}_account",
        "same_question = first is not None",
        "same_question = False",
        "one_question_pays_for_its_prompt_once",
    ),
    Fault("whoever is first gets its prefix for nothing", f"{D}_queue", "return sum(", "return 0 * sum(", "what_is_not_cached_is_fed"),
    Fault("noise without its key", f"{S}gumbel", "x = key + ids", "x = ids", "steps_and_samples_are_independent"),
    Fault("noise without the step", f"{S}step_key", "(step + 1) * _GOLDEN", "_GOLDEN", "steps_and_samples_are_independent"),
    Fault("noise without the sample", f"{S}step_key", "(sample + 1) * _GOLDEN", "_GOLDEN", "ten_samples_are_the_first_of_twenty"),
    Fault(
        "noise without the question",
        "trace:Trace.draw_key",
        "draw_key(self.seed, self.question)",
        'draw_key(self.seed, "")',
        "questions_draw_differently",
    ),
    Fault(
        "noise by place in the batch",
        f"{D}_take",
        "step_key(row.key, row.sample, row.sampled)",
        "step_key(row.key, row.sample + place, row.sampled)",
        "together_is_alone",
    ),
    Fault(
        "keys of a group in another order",
        f"{S}_choose_ids",
        "[choices[i].key for i in rows]",
        "[choices[i].key for i in rows[::-1]]",
        "a_rows_choice_is_its_own",
    ),
    Fault(
        "the temperature is ignored", f"{S}_draw", "row[None].double() / temperature", "row[None].double()", "draws_follow_the_distribution"
    ),
    Fault(
        "one candidate too many",
        f"{S}_draw",
        "ids = top_ids(logits, top_k)",
        "ids = top_ids(logits, top_k + 1)",
        "draws_follow_the_distribution",
    ),
    Fault(
        "the nucleus is of the whole mass",
        f"{S}_draw",
        "scaled.logsumexp(-1, keepdim=True), top_p",
        "(logits.double() / temperature).logsumexp(-1, keepdim=True), top_p",
        "draws_follow_the_distribution",
    ),
    Fault(
        "the nucleus leaves out who reaches the mass",
        f"{S}_nucleus",
        "before = probability.cumsum(-1) - probability",
        "before = probability.cumsum(-1) - 1e-12",
        "draws_follow_the_distribution",
    ),
    Fault(
        "a fingerprint without the weights",
        "lm.identity:model_fingerprint",
        "digest.update(sample.contiguous()",
        "(sample.contiguous()",
        "models_differ_in_their_fingerprints",
    ),
    Fault(
        "a fingerprint without the tokenizer",
        "lm.identity:model_fingerprint",
        "hashlib.sha256(tokenizer_fingerprint.encode())",
        "hashlib.sha256()",
        "models_differ_in_their_fingerprints",
    ),
    Fault(
        "nobody waits for the others",
        "batching:_Gathering.settle",
        "while quiet < _SETTLE_TURNS",
        "while False",
        "what_is_asked_at_once_rides_together",
    ),
    Fault(
        "the batch begins again in another order",
        f"{B}_shrink",
        "self._waiting.extendleft(reversed(calls))",
        "self._waiting.extendleft(calls)",
        "the_oldest_goes_first",
    ),
    Fault(
        "the youngest waits least",
        f"{B}_admit",
        "call = self._waiting[0]",
        "self._waiting.rotate(1)\n        call = self._waiting[0]",
        "the_oldest_goes_first",
    ),
    Fault(
        "a fault is everybody's",
        f"{B}_isolate",
        "if len(calls) == 1:",
        "for call in calls[1:]:\n        call.resolve(error)\n    if True:",
        "a_faulty_row_fails_alone",
    ),
    Fault("the cancelled stay", f"{B}_receive", "self._forget(call)", "pass", "the_cancelled_leave"),
    Fault("a thread for every bundle", f"{B}_send", "if self._thread is None", "if True", "one_thread_steps"),
]


@pytest.mark.parametrize("name", CHECKS)
def test_the_check_passes_without_a_fault(name: str):
    CHECKS[name]()()


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name.replace(" ", "-"))
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_the_check_sees(fault: Fault, monkeypatch: pytest.MonkeyPatch):
    look = CHECKS[fault.check]()
    put(fault, monkeypatch)
    with pytest.raises(AssertionError):
        look()


def test_every_check_has_its_fault():
    assert {fault.check for fault in FAULTS} == set(CHECKS)
