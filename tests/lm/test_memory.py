"""Memory: how much a batch may take, what happens when there is none, and that none is kept."""

from __future__ import annotations

import asyncio
import gc
import resource
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file

from architectures import serve
from identities import Case, alone, ask, check_same, run, together
from inward.errors import OutOfMemory
from inward.lm import BatchedLM
from inward.lm.decode import SHARED_BY
from inward.lm.memory import bytes_per_token, free_host_memory, token_budget
from inward.protocols import Request
from inward.testing import tiny_lm
from inward.testing_models import tiny_model
from inward.types import Capture, Sampling


def tensor_bytes() -> int:
    """Bytes of every tensor that something still refers to."""
    gc.collect()
    storages = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in gc.get_objects() if type(t) is torch.Tensor}
    return sum(storages.values())


def resident() -> int:
    """Bytes of this process in memory now."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * resource.getpagesize()


def test_M3_two_hundred_prompts_with_capture_leave_nothing():
    lm = tiny_lm("gemma3", budget=4000)
    sampling, capture = Sampling(max_tokens=6, n=2, temperature=1.0, token_scores=("logprobs",)), Capture(layers=(1,), pool="last")
    cases = [Case(prompt=f"{i} " + "demonstrations " * 12 + str(i), sampling=sampling, capture=capture) for i in range(200)]
    run(together(lm, cases[:40]))
    lm.backend._engine.forget()
    before, tensors = resident(), tensor_bytes()
    for start in range(40, 200, 40):
        run(together(lm, cases[start : start + 40]))
    assert resident() - before < 50 << 20
    lm.backend._engine.forget()  # shared prefixes are kept on purpose, within their own room
    assert tensor_bytes() - tensors < 1 << 20


def test_M3_shared_prefixes_stay_within_their_room():
    lm = tiny_lm("llama", budget=1000)
    for i in range(20):
        run(together(lm, [Case(prompt=f"{i}" * 120 + tail, sampling=Sampling(max_tokens=2)) for tail in "ab"]))
    prefixes = lm.backend._engine._prefixes
    assert prefixes is not None
    kept = {id(s): len(s.ids) for segment in (*prefixes._stored.values(), *(fed for _, fed in prefixes._fed)) for s in segment.chain}
    assert 0 < sum(kept.values()) <= 250


def test_states_of_a_completion_are_its_own_memory():
    """A view of a step's states would keep every row of the step."""
    lm = tiny_lm("llama")
    found = run(together(lm, [Case(prompt=p, sampling=Sampling(max_tokens=5), capture=Capture(layers=(0,))) for p in "abcdef"]))
    for generation in found:
        states = generation.states
        assert states.base is None or states.base.nbytes == states.nbytes


# -- how much there is -------------------------------------------------------------------------------------


def machine(tmp_path: Path, available: int, limit: str = "max", used: int = 0, files: int = 0) -> int:
    """Pretend to be a machine with so many bytes available, in a container with a limit."""
    (tmp_path / "meminfo").write_text(f"MemTotal: 99 kB\nMemFree: 1 kB\nMemAvailable: {available // 1024} kB\n")
    (tmp_path / "memory.max").write_text(f"{limit}\n")
    (tmp_path / "memory.current").write_text(f"{used}\n")
    (tmp_path / "memory.stat").write_text(f"anon 5\ninactive_file {files}\n")
    return free_host_memory(tmp_path, tmp_path)


def test_free_memory_counts_file_caches_and_a_containers_limit(tmp_path):
    assert machine(tmp_path, 8 << 30) == 8 << 30
    assert machine(tmp_path, 8 << 30, limit=str(4 << 30), used=1 << 30) == 3 << 30
    assert machine(tmp_path, 8 << 30, limit=str(4 << 30), used=3 << 30, files=1 << 30) == 2 << 30
    assert machine(tmp_path, 1 << 30, limit=str(4 << 30), used=0) == 1 << 30
    assert machine(tmp_path, 1 << 30, limit=str(1 << 20), used=2 << 20) == 0
    assert free_host_memory(tmp_path / "none", tmp_path / "none") == 4 << 30


def test_the_budget_is_half_of_the_free_memory(monkeypatch):
    model = tiny_model("llama").model  # 2 blocks, keys and values, 2 heads of 8, fp32
    assert bytes_per_token(model) == 2 * 2 * 2 * 8 * 4
    monkeypatch.setattr("inward.lm.memory.free_host_memory", lambda: 256 * 10_000)
    assert token_budget(model) == 5000
    assert tiny_lm("llama").backend.budget == 5000
    monkeypatch.setattr("inward.lm.memory.free_host_memory", lambda: 0)
    assert token_budget(model) == 1024


def test_a_small_budget_only_makes_it_slower():
    cases = [Case(prompt="prompt " * 10 + str(i), sampling=Sampling(max_tokens=5 + i), capture=Capture(layers=(1,))) for i in range(12)]
    small, large = tiny_lm("llama", budget=300), tiny_lm("llama")
    check_same(cases, run(together(large, cases)), run(together(small, cases)))
    assert max(large.scheduler.rows) == 12
    assert max(small.scheduler.rows) < 6


@pytest.mark.parametrize("n", [1, 2, 3, SHARED_BY, 9])
@pytest.mark.parametrize("length", [1, 60, 300])
def test_what_a_request_takes_is_never_more_than_its_price(n: int, length: int):
    lm = tiny_lm("llama")
    backend = lm.backend
    no_end = tuple((i, -1e9) for i in backend.encoder.eos_ids)
    asked = Request(prompt="p" * length, sampling=Sampling(max_tokens=70, n=n, temperature=1.0, logit_bias=no_end))
    engine = backend._engine
    backend.add(asked)
    most, done = 0, []
    while not done:
        done = engine.step()
        chains = {id(s): len(s.ids) for slab in engine._slabs for s in slab.chain}
        most = max(most, sum(chains.values()) + sum(len(slab.seats) * slab.columns for slab in engine._slabs))
    assert most >= n * 64
    assert most <= backend.cost(asked) - n * backend._logit_cost


def test_samples_of_few_questions_share_the_prompt_that_they_fork_from():
    """Whoever reads a prompt reads the prefix before it: few prompts that continue the prefix do not make their samples copy all."""
    lm = tiny_lm("llama")
    engine = lm.backend._engine
    for tail in "ab":
        lm.backend.add(Request(prompt="demonstrations " * 20 + tail, sampling=Sampling(max_tokens=9, n=SHARED_BY, temperature=1.0)))
    owned = []
    while any(progress := engine.step()) or engine._calls:
        owned += [seat.length for slab in engine._slabs for seat in slab.seats]
        del progress
    assert max(owned) <= 9


# -- when there is none ------------------------------------------------------------------------------------


def failing_lm(most_rows: int, error: BaseException) -> BatchedLM:
    """A model whose forward pass has room for so many rows of logits."""
    lm = tiny_lm("llama")
    forward, engine = lm.backend.model.forward, lm.backend._engine

    def short_of_memory(*args, **kwargs):
        if len(engine._calls) > most_rows:
            raise error
        return forward(*args, **kwargs)

    lm.backend.model.forward = short_of_memory
    return lm


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory"),
        MemoryError(),
        RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory"),
    ],
    ids=["cuda", "python", "cpu"],
)
def test_out_of_memory_halves_the_batch_and_the_answers_are_the_same(error):
    sampling, capture = Sampling(max_tokens=7, token_scores=("logprobs",)), Capture(layers=(0, 1), pool="none")
    cases = [Case(prompt="shared " * 8 + str(i), sampling=sampling, capture=capture) for i in range(16)]
    lm = failing_lm(5, error)
    found = run(together(lm, cases))
    check_same(cases, run(alone(tiny_lm("llama"), cases)), found)
    assert lm.scheduler.halvings >= 2
    assert max(lm.scheduler.rows[-20:]) <= 5


def test_M5_one_request_that_does_not_fit_names_the_budget_and_the_remedy():
    lm = failing_lm(0, torch.OutOfMemoryError("CUDA out of memory"))
    with pytest.raises(
        OutOfMemory, match=r"'tiny-llama' ran out of memory \(CUDA out of memory\); the batch budget is \d+ tokens: .*budget="
    ):
        run(ask(lm, Case(prompt="x")))
    lm.backend.model.forward = type(lm.backend.model).forward.__get__(lm.backend.model)
    assert run(ask(lm, Case(prompt="x", sampling=Sampling(max_tokens=3)))).completions[0].finish == "length"


def test_a_fault_in_a_shared_prefix_stays_with_those_who_share_it():
    """A token that the model has no row for: whoever brings it fails, and nothing of it is left in the queue."""
    lm = tiny_lm("llama")
    encode = lm.backend._encode
    lm.backend._encode = lambda prompt: tuple(999 if i == ord("#") else i for i in encode(prompt))
    bad = [Case(prompt="#" * 40 + tail, sampling=Sampling(max_tokens=3)) for tail in "ab"]
    good = [Case(prompt="fine " * 10 + tail, sampling=Sampling(max_tokens=3)) for tail in "ab"]

    async def main():
        return await asyncio.gather(*(ask(lm, case) for case in (bad[0], good[0], bad[1], good[1])), return_exceptions=True)

    found = run(main())
    assert isinstance(found[0], IndexError)
    assert isinstance(found[2], IndexError)
    check_same(good, run(alone(tiny_lm("llama"), good)), [found[1], found[3]])
    check_same(good, run(alone(tiny_lm("llama"), good)), run(together(lm, good)))


# -- half precision ----------------------------------------------------------------------------------------


def test_E1_states_of_a_bf16_model_are_float32_and_can_be_saved(tmp_path):
    lm = serve(tiny_model("llama").model.to(torch.bfloat16))
    assert lm.backend.packed, lm.backend.notes
    assert lm.backend.dtype == torch.bfloat16
    for pool in ("mean", "last", "eos", "none"):
        case = Case(prompt="text", sampling=Sampling(max_tokens=6, token_scores=("logprobs",)), capture=Capture(layers=(0, 1), pool=pool))
        completion = run(ask(lm, case)).completions[0]
        assert completion.states is not None
        assert completion.states.dtype == completion.score("logprobs").dtype == np.float32
        save_file({"states": completion.states}, tmp_path / "states.safetensors")
        assert np.array_equal(load_file(tmp_path / "states.safetensors")["states"], completion.states)
    read = run(lm.score("text", "more", capture=Capture(layers=(0,), attention=1)))
    assert read.attention is not None
    assert read.attention.dtype == np.float32
