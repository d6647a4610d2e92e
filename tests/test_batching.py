"""The batcher and the scheduler with backends that misbehave: nobody waits for ever, and only the faulty fail."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from fake_backends import StepBackend, out_of_memory_above, poisoned, request
from identities import run
from inward.batching import Batcher, Scheduler
from inward.errors import OutOfMemory

# -- the scheduler -------------------------------------------------------------------------------------------


async def finish_order(scheduler: Scheduler, *names_and_steps: tuple[str, int]) -> list[str]:
    order: list[str] = []

    async def one(name: str, steps: int) -> None:
        await scheduler(request(name, steps))
        order.append(name)

    await asyncio.gather(*(one(name, steps) for name, steps in names_and_steps))
    return order


def test_requests_made_at_once_ride_in_one_batch():
    backend = StepBackend()
    scheduler = Scheduler(backend)
    texts = run(_texts(scheduler, [f"q{i}" for i in range(20)]))
    assert texts == [f"q{i} done" for i in range(20)]
    assert [len(names) for names in backend.steps] == [20]
    assert list(scheduler.rows) == [20]


async def _texts(scheduler: Scheduler, names: Sequence[str], steps: int = 1) -> list[str]:
    return [g.text for g in await asyncio.gather(*(scheduler(request(name, steps)) for name in names))]


def test_requests_of_one_task_tree_are_handed_over_together():
    """Children that ask one turn of the loop later still join the first batch."""
    backend = StepBackend()
    scheduler = Scheduler(backend)

    async def nested(depth: int) -> None:
        if depth:
            await asyncio.gather(*(asyncio.create_task(nested(depth - 1)) for _ in range(2)))
        else:
            await scheduler(request("leaf"))

    run(nested(3))
    assert [len(names) for names in backend.steps] == [8]


def test_a_short_request_sent_while_a_long_one_runs_returns_first():
    backend = StepBackend(pause=0.001)
    scheduler = Scheduler(backend)
    order: list[str] = []

    async def one(name: str, steps: int) -> None:
        await scheduler(request(name, steps))
        order.append(name)

    async def both() -> None:
        long = asyncio.create_task(one("long", 400))
        while not backend.first_step.is_set():
            await asyncio.sleep(0.001)
        await one("short", 5)
        assert not long.done()
        await long

    run(both())
    assert order == ["short", "long"]
    joined = [i for i, names in enumerate(backend.steps) if "short" in names]
    assert len(joined) == 5
    assert joined[0] > 0
    assert all("long" in backend.steps[i] for i in joined)


def test_the_oldest_waits_least():
    backend = StepBackend(budget=2)
    order = run(finish_order(Scheduler(backend), *((f"q{i}", 3) for i in range(7))))
    assert order == [f"q{i}" for i in range(7)]
    assert max(len(names) for names in backend.steps) == 2


def test_a_dear_request_is_not_overtaken_for_ever():
    """It waits at the head of the queue until the batch has run dry, and cheap ones wait behind it."""
    backend = StepBackend(budget=4)
    scheduler = Scheduler(backend)
    order: list[str] = []

    async def one(name: str, cost: int) -> None:
        await scheduler(request(name, 3, cost=cost))
        order.append(name)

    async def all_() -> None:
        await asyncio.gather(*(one(f"a{i}", 1) for i in range(4)), one("dear", 9), *(one(f"b{i}", 1) for i in range(4)))

    run(all_())
    assert order.index("dear") == 4
    assert ["dear"] in backend.steps, "a request beyond the whole budget runs alone"
    assert all(names == ["dear"] for names in backend.steps if "dear" in names)


def test_the_budget_is_never_exceeded_by_several():
    backend = StepBackend(budget=10)
    scheduler = Scheduler(backend)
    costs = [3, 4, 2, 10, 1, 6, 5, 5, 11, 2]

    async def all_() -> None:
        await asyncio.gather(*(scheduler(request(f"{cost}:{i}", 1 + i % 3, cost=cost)) for i, cost in enumerate(costs)))

    run(all_())
    for names in backend.steps:
        assert len(names) == 1 or sum(int(name.split(":")[0]) for name in names) <= 10


def test_a_request_that_waits_is_priced_once():
    """Pricing may mean tokenising; who waits for a thousand steps must not pay for it a thousand times."""

    class Priced(StepBackend):
        prices = 0

        def cost(self, request):
            self.prices += 1
            return super().cost(request)

    backend = Priced(budget=1)
    run(_texts(Scheduler(backend), ["a", "b", "c"], steps=30))
    assert backend.prices == 3


def test_a_cancelled_callers_rows_leave_the_batch():
    backend = StepBackend(pause=0.002)
    scheduler = Scheduler(backend)

    async def both() -> None:
        gone = asyncio.create_task(scheduler(request("gone", 10_000)))
        stays = asyncio.create_task(scheduler(request("stays", 60)))
        while not backend.first_step.is_set():
            await asyncio.sleep(0.001)
        gone.cancel()
        with pytest.raises(asyncio.CancelledError):
            await gone
        await stays

    run(both())
    assert ("drop", "gone") in backend.log
    assert backend.steps[-1] == ["stays"]


def test_cancelled_before_it_was_handed_over_it_never_runs():
    backend = StepBackend()
    scheduler = Scheduler(backend)

    async def both() -> None:
        gone = asyncio.create_task(scheduler(request("gone")))
        await asyncio.sleep(0)  # it has asked and is still being gathered
        gone.cancel()
        await scheduler(request("stays"))

    run(both())
    assert ("add", "gone") not in backend.log


def test_cancelled_while_it_waits_for_room_it_never_runs():
    backend = StepBackend(budget=1, pause=0.002)
    scheduler = Scheduler(backend)

    async def three() -> None:
        first = asyncio.create_task(scheduler(request("first", 20)))
        waits = asyncio.create_task(scheduler(request("waits")))
        last = asyncio.create_task(scheduler(request("last")))
        while not backend.first_step.is_set():
            await asyncio.sleep(0.001)
        waits.cancel()
        await asyncio.gather(first, last)

    run(three())
    assert ("add", "waits") not in backend.log
    assert ("add", "last") in backend.log


@pytest.mark.parametrize("kind", [ZeroDivisionError, StopIteration, SystemExit, KeyboardInterrupt, asyncio.CancelledError])
def test_a_row_that_raises_fails_alone(kind: type[BaseException]):
    """Whatever it raises: some never leave a future, some stop a thread."""

    def faulty(names: list[str]) -> None:
        if any(name.startswith("poison") for name in names):
            raise kind("cannot step")

    backend = StepBackend(before_step=faulty)
    found = run(_outcomes(Scheduler(backend), ["a", "poison", "b", "c"]))
    assert [str(x) for x in (found[0], found[2], found[3])] == ["a done", "b done", "c done"]
    assert isinstance(found[1], BaseException)
    assert isinstance(found[1], Exception), "what is no Exception would end the caller's loop"
    assert isinstance(found[1], kind) or isinstance(found[1].__cause__, kind)


async def _outcomes(scheduler: Scheduler, names: Sequence[str], steps: int = 2) -> list[str | BaseException]:
    found = await asyncio.gather(*(scheduler(request(name, steps)) for name in names), return_exceptions=True)
    return [x if isinstance(x, BaseException) else x.text for x in found]


def test_after_a_faulty_row_the_batch_is_whole_again():
    backend = StepBackend(before_step=poisoned)
    scheduler = Scheduler(backend)
    run(_outcomes(scheduler, ["a", "poison", "b"]))
    backend.steps.clear()
    run(_outcomes(scheduler, ["c", "d", "e"]))
    assert backend.steps[0] == ["c", "d", "e"]


def test_several_faulty_rows_fail_alone():
    names = ["poison1", "a", "poison2", "b", "c", "poison3"]
    found = run(_outcomes(Scheduler(StepBackend(before_step=poisoned)), names))
    for name, outcome in zip(names, found, strict=True):
        assert isinstance(outcome, ZeroDivisionError) == name.startswith("poison")
        if name.startswith("poison"):
            assert str(outcome) == f"cannot step {name}"


def test_a_request_that_cannot_be_added_fails_alone():
    class Picky(StepBackend):
        def add(self, request):
            if request.prompt == "bad":
                raise ValueError("cannot add 'bad'")
            return super().add(request)

        def cost(self, request):
            if request.prompt == "worse":
                raise ValueError("cannot price 'worse'")
            return super().cost(request)

    found = run(_outcomes(Scheduler(Picky()), ["a", "bad", "worse", "b"]))
    assert [str(x) for x in found] == ["a done", "cannot add 'bad'", "cannot price 'worse'", "b done"]


def test_a_failure_that_the_backend_reports_reaches_its_caller_alone():
    found = run(_outcomes(Scheduler(StepBackend()), ["a", "refused", "b"]))
    assert [str(x) for x in found] == ["a done", "refused: refused", "b done"]


def test_a_request_that_joins_an_isolated_batch_is_not_lost():
    """Suspects run one by one; who comes meanwhile waits behind them and is served."""
    backend = StepBackend(pause=0.002, before_step=poisoned)
    scheduler = Scheduler(backend)

    async def all_() -> list[str | BaseException]:
        first = asyncio.create_task(_outcomes(scheduler, ["a", "poison", "b"], steps=10))
        while not backend.first_step.is_set():
            await asyncio.sleep(0.001)
        return [*await _outcomes(scheduler, ["late"]), *await first]

    assert [str(x) for x in run(all_())] == ["late done", "a done", "cannot step poison", "b done"]


def test_out_of_memory_halves_the_budget_and_the_run_goes_on():
    backend = StepBackend(budget=64, before_step=out_of_memory_above(5))
    scheduler = Scheduler(backend)
    assert run(_texts(scheduler, [f"q{i}" for i in range(40)], steps=3)) == [f"q{i} done" for i in range(40)]
    assert scheduler.halvings == 3, "40, 20, 10 did not fit; 5 did"
    assert max(len(names) for names in backend.steps[3:]) == 5
    order = [name for what, name in backend.log if what == "done"]
    assert order == [f"q{i}" for i in range(40)], "begun again in the order in which they came"


def test_one_request_that_does_not_fit_fails_with_the_message():
    backend = StepBackend(before_step=out_of_memory_above(0))
    scheduler = Scheduler(backend)
    with pytest.raises(OutOfMemory, match="1 rows do not fit; the budget is too large"):
        run(scheduler(request("big")))
    assert backend.running == []


def test_after_one_does_not_fit_the_others_still_do():
    def check(names: list[str]) -> None:
        if "huge" in names:
            raise OutOfMemory("huge does not fit")

    found = run(_outcomes(Scheduler(StepBackend(budget=8, before_step=check)), ["a", "b", "huge", "c"]))
    assert [str(x) for x in found] == ["a done", "b done", "huge does not fit", "c done"]


class StubbornBackend(StepBackend):
    """Raises when a request is dropped."""

    def drop(self, id):
        if id in self._left:
            raise RuntimeError("cannot drop")


def test_a_backend_that_cannot_drop_keeps_nobody_waiting():
    backend = StubbornBackend(pause=0.002)
    scheduler = Scheduler(backend)

    async def both() -> list[str | BaseException]:
        gone = asyncio.create_task(scheduler(request("gone", 50)))
        stays = asyncio.create_task(_outcomes(scheduler, ["stays"], steps=20))
        while not backend.first_step.is_set():
            await asyncio.sleep(0.001)
        gone.cancel()
        return [*await stays, *await _outcomes(scheduler, ["next"])]

    assert [str(x) for x in run(both(), 20)] == ["stays done", "next done"]


def test_a_backend_that_cannot_drop_after_a_fault_keeps_nobody_waiting():
    backend = StubbornBackend(before_step=poisoned)
    found = run(_outcomes(Scheduler(backend), ["a", "poison", "b"]), 20)
    assert all(isinstance(x, BaseException) or x.endswith("done") for x in found)
    assert isinstance(found[1], BaseException)


def test_a_closed_loop_harms_nobody():
    """The loop is closed with a request on its way, not even cancelled; another loop uses the scheduler meanwhile."""
    backend = StepBackend(pause=0.002)
    scheduler = Scheduler(backend)
    loop = asyncio.new_event_loop()
    loop.create_task(scheduler(request("orphan", 30)))  # noqa: RUF006
    while not backend.first_step.is_set():
        loop.run_until_complete(asyncio.sleep(0.001))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "call_exception_handler", lambda context: None)  # "Task was destroyed but it is pending"
        loop.close()
        assert run(_texts(scheduler, ["other"], steps=40)) == ["other done"]


def test_a_run_that_ends_early_drops_what_it_asked_for():
    backend = StepBackend(pause=0.002)
    scheduler = Scheduler(backend)

    async def main() -> None:
        asyncio.create_task(scheduler(request("endless", 10_000)))  # noqa: RUF006
        while not backend.first_step.is_set():
            await asyncio.sleep(0.001)
        raise LookupError

    with pytest.raises(LookupError):
        asyncio.run(main())
    assert run(_texts(scheduler, ["next"])) == ["next done"]
    assert ("drop", "endless") in backend.log


def test_two_event_loops_share_one_batch():
    backend = StepBackend(pause=0.002)
    scheduler = Scheduler(backend)
    with ThreadPoolExecutor(2) as pool:
        found = [f.result(60) for f in [pool.submit(run, _texts(scheduler, [f"{t}{i}" for i in range(9)], 40)) for t in "ab"]]
    assert found == [[f"{t}{i} done" for i in range(9)] for t in "ab"]
    assert any({name[0] for name in names} == {"a", "b"} for names in backend.steps)
    assert all(sum(n == name for names in backend.steps for n in names) == 40 for name in ("a0", "b8"))


def test_the_backend_is_called_from_one_thread_at_a_time_and_never_from_the_loops():
    backend = StepBackend()
    scheduler = Scheduler(backend)
    for _ in range(3):
        run(_texts(scheduler, ["a", "b"]))
    assert threading.get_ident() not in backend.threads
    deadline = time.monotonic() + 5
    while scheduler._thread is not None and time.monotonic() < deadline:
        time.sleep(0.01)
    assert scheduler._thread is None, "the thread ends when it has nothing to do"


def test_many_callers_come_and_go():
    """Threads, loops, cancellations and faults at random: everyone who stays gets an answer."""
    backend = StepBackend(budget=7, before_step=poisoned)
    scheduler = Scheduler(backend)

    async def storm(seed: int) -> int:
        async def one(i: int) -> int:
            await asyncio.sleep((i * 7 % 11) / 2000)
            name = f"poison{i}" if i % 13 == 5 else f"q{seed}.{i}"
            task = asyncio.create_task(scheduler(request(name, 1 + i % 5, cost=1 + i % 3)))
            if i % 7 == 3:
                await asyncio.sleep(i % 4 / 1000)
                task.cancel()
            (found,) = await asyncio.gather(task, return_exceptions=True)
            if isinstance(found, BaseException):
                assert i % 7 == 3 or name.startswith("poison"), found
                return 0
            assert found.text == f"{name} done"
            return 1

        return sum(await asyncio.gather(*(one(i) for i in range(60))))

    with ThreadPoolExecutor(3) as pool:
        futures: list[Future[int]] = [pool.submit(run, storm(seed), 60) for seed in range(3)]
        assert all(future.result(90) >= 40 for future in futures)


def test_records_of_steps_do_not_grow_for_ever(monkeypatch):
    monkeypatch.setattr("inward.batching._REMEMBERED", 3)
    scheduler, batcher = Scheduler(StepBackend()), Batcher(double, cost=lambda _: 1, budget=1)
    run(_texts(scheduler, ["a", "b"], steps=50))
    run(_double(batcher, range(9)))
    assert (scheduler.rows, batcher.batch_sizes) == ([2, 2, 2], [1, 1, 1])


INTERRUPTED = """
import asyncio, os, signal, sys, threading, time
sys.path.insert(0, {tests!r})
{body}
def interrupt():
    started.wait()
    time.sleep(0.3)
    os.kill(os.getpid(), signal.SIGINT)
threading.Thread(target=interrupt, daemon=True).start()
try:
    asyncio.run(main())
except KeyboardInterrupt:
    print("interrupted", flush=True)
    sys.exit(130)
"""
FAKE = """
from fake_backends import StepBackend, request
from inward.batching import Scheduler
backend = StepBackend(pause=0.05)
started = backend.first_step
async def main():
    await Scheduler(backend)(request("endless", 10**9))
"""
REAL = """
import torch
torch.set_num_threads(1)
from inward.testing import tiny_lm
from inward.types import Capture, Sampling
lm = tiny_lm("gemma3")
started = threading.Event()
step = lm.backend.step
def stepping():
    started.set()
    return step()
lm.backend.step = stepping
async def main():
    sampling, capture = Sampling(max_tokens=3000, n=8, temperature=1.0), Capture(layers=(0,))
    await asyncio.gather(*(lm.generate("x" * i, sampling, capture=capture) for i in range(1, 9)))
"""


@pytest.mark.parametrize("body", [FAKE, REAL], ids=["fake", "torch"])
def test_ctrl_c_ends_the_process_at_once_and_cleanly(body: str):
    """A worker that is inside torch when the interpreter shuts down must neither hang nor abort it."""
    from pathlib import Path

    program = INTERRUPTED.format(tests=str(Path(__file__).parent), body=body)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=90)
    assert done.returncode == 130, (done.returncode, done.stderr[-2000:])
    assert done.stdout == "interrupted\n"
    assert "Traceback" not in done.stderr
    assert "terminate called" not in done.stderr


# -- the batcher ---------------------------------------------------------------------------------------------


def double(items: Sequence[int]) -> list[int]:
    return [2 * item for item in items]


async def _double(batcher: Batcher[int, int], items: Sequence[int]) -> list[int | BaseException]:
    return list(await asyncio.gather(*(batcher(item) for item in items), return_exceptions=True))


def test_a_batcher_runs_together_what_is_asked_at_once():
    batcher = Batcher(double, cost=lambda _: 1, budget=100)
    assert run(_double(batcher, range(20))) == [2 * i for i in range(20)]
    assert list(batcher.batch_sizes) == [20]


def test_a_batcher_keeps_to_its_budget_in_order():
    seen: list[list[int]] = []

    def note(items: Sequence[int]) -> list[int]:
        seen.append(list(items))
        return double(items)

    run(_double(Batcher(note, cost=lambda item: item, budget=5), [1, 2, 3, 9, 1, 1]))
    assert seen == [[1, 2], [3], [9], [1, 1]]


@pytest.mark.parametrize("kind", [ValueError, StopIteration, SystemExit])
def test_a_faulty_item_of_a_batch_fails_alone(kind: type[BaseException]):
    def picky(items: Sequence[int]) -> list[int]:
        if 3 in items:
            raise kind("three")
        return double(items)

    found = run(_double(Batcher(picky, cost=lambda _: 1, budget=100), range(8)), 20)
    assert isinstance(found.pop(3), BaseException)
    assert found == [0, 2, 4, 8, 10, 12, 14]


def test_a_run_that_returns_too_little_keeps_nobody_waiting():
    found = run(_double(Batcher(lambda items: double(items)[:-1], cost=lambda _: 1, budget=2), range(5)), 20)
    assert all(isinstance(x, ValueError) for x in found), found


def test_a_cost_that_raises_fails_its_own_caller():
    def cost(item: int) -> int:
        if item == 2:
            raise ValueError("no price for 2")
        return 1

    found = run(_double(Batcher(double, cost=cost, budget=2), range(5)), 20)
    assert str(found.pop(2)) == "no price for 2"
    assert found == [0, 2, 6, 8]


def test_a_batcher_serves_several_loops_at_once_and_one_after_another():
    batcher = Batcher(double, cost=lambda _: 1, budget=3)
    assert run(_double(batcher, [1])) == [2]
    with ThreadPoolExecutor(3) as pool:
        found = [f.result(60) for f in [pool.submit(run, _double(batcher, range(t, t + 9))) for t in range(3)]]
    assert found == [[2 * i for i in range(t, t + 9)] for t in range(3)]


def test_a_cancelled_caller_leaves_the_batcher_to_the_others():
    batcher = Batcher(double, cost=lambda _: 1, budget=100)

    async def both() -> int:
        gone = asyncio.create_task(batcher(1))
        await asyncio.sleep(0)
        gone.cancel()
        return await batcher(2)

    assert run(both()) == 4
