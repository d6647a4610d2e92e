"""Turn many concurrent awaits into few batched, blocking calls.

`Batcher` is for work that is done once it is batched (searches, probes). `Scheduler` keeps one running
batch that requests join and leave between steps (language models). Neither has a timer: requests are
handed over once two turns of the event loop have brought nothing new, that is, once every coroutine that
could ask has asked.
"""

from __future__ import annotations

import asyncio
import atexit
import logging
import queue
import threading
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from inward.errors import OutOfMemory
from inward.protocols import Backend, Finished, Request, RequestId
from inward.types import Generation

log = logging.getLogger(__name__)

Req = TypeVar("Req")
Res = TypeVar("Res")

_SETTLE_TURNS = 2
_REMEMBERED = 1 << 16
"""Batches whose sizes are kept, for tests and benchmarks."""
_LAST_STEP = 20.0
"""Seconds that a process which ends waits for the step that is being taken."""


def _told(error: BaseException) -> Exception:
    """Return what a caller is told of a fault.

    A future cannot carry StopIteration, and what is no Exception (SystemExit, the panic of a Rust library) would
    end the caller's event loop, not its call.
    """
    if isinstance(error, Exception) and not isinstance(error, StopIteration):
        return error
    told = RuntimeError(f"the backend raised {error!r}")
    told.__cause__ = error
    return told


class _Gathering(Generic[Req]):
    """What one event loop has asked for and not yet handed over."""

    def __init__(self) -> None:
        self.items: list[Req] = []
        self.pump: asyncio.Task[None] | None = None

    async def settle(self) -> list[Req]:
        """Wait until nothing new arrives, then take everything."""
        quiet, size = 0, len(self.items)
        while quiet < _SETTLE_TURNS:
            await asyncio.sleep(0)
            quiet, size = (quiet + 1, size) if len(self.items) == size else (0, len(self.items))
        items, self.items = self.items, []
        return items


class Batcher(Generic[Req, Res]):
    """Collects requests while its worker thread is busy and runs them together when it is free.

    A batch that raises is halved until the faulty request is alone; only its caller sees the error. May be
    used from several event loops, at once or one after another.
    """

    def __init__(self, run: Callable[[Sequence[Req]], Sequence[Res]], cost: Callable[[Req], int], budget: int) -> None:
        """Batch calls of `run`, at most `budget` of `cost` together (a dearer request goes alone)."""
        self._run, self._cost, self._budget = run, cost, budget
        self._gatherings: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _Gathering[tuple[Req, asyncio.Future[Res]]]] = (
            weakref.WeakKeyDictionary()
        )
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="inward-batcher")
        self._sizes: deque[int] = deque(maxlen=_REMEMBERED)

    @property
    def batch_sizes(self) -> list[int]:
        """How many requests each of the last batches held."""
        return list(self._sizes)

    async def __call__(self, request: Req) -> Res:
        """Return what `run` gives for this request."""
        loop = asyncio.get_running_loop()
        gathering = self._gatherings.setdefault(loop, _Gathering())
        done: asyncio.Future[Res] = loop.create_future()
        gathering.items.append((request, done))
        if gathering.pump is None:
            gathering.pump = loop.create_task(self._drain(gathering))
        return await done

    async def _drain(self, gathering: _Gathering[tuple[Req, asyncio.Future[Res]]]) -> None:
        waiting: deque[tuple[Req, asyncio.Future[Res]]] = deque()
        try:
            while gathering.items or waiting:
                waiting.extend(await gathering.settle())
                await self._run_batch(self._take(waiting))
        finally:
            gathering.pump = None

    def _take(self, waiting: deque[tuple[Req, asyncio.Future[Res]]]) -> list[tuple[Req, asyncio.Future[Res]]]:
        """Take the oldest requests that fit the budget, in order: nothing starves."""
        batch: list[tuple[Req, asyncio.Future[Res]]] = []
        room = self._budget
        while waiting:
            request, done = waiting[0]
            if done.done():  # its caller has gone away
                waiting.popleft()
                continue
            try:
                room -= self._cost(request)
            except Exception as error:
                waiting.popleft()
                done.set_exception(_told(error))
                continue
            if batch and room < 0:
                break
            batch.append(waiting.popleft())
        return batch

    async def _run_batch(self, batch: list[tuple[Req, asyncio.Future[Res]]]) -> None:
        if not batch:
            return
        self._sizes.append(len(batch))
        results = await asyncio.get_running_loop().run_in_executor(self._worker, self._attempt, [request for request, _ in batch])
        if not isinstance(results, Exception):
            for (_, done), result in zip(batch, results, strict=True):
                if not done.done():
                    done.set_result(result)
        elif len(batch) == 1:
            if not batch[0][1].done():
                batch[0][1].set_exception(results)
        else:
            middle = len(batch) // 2
            await self._run_batch(batch[:middle])
            await self._run_batch(batch[middle:])

    def _attempt(self, requests: Sequence[Req]) -> Sequence[Res] | Exception:
        try:
            results = self._run(requests)
            if len(results) != len(requests):
                raise ValueError(f"{len(requests)} requests were run together and {len(results)} results came back")
        except BaseException as error:
            return _told(error)
        return results


@dataclass(slots=True, eq=False)
class _Call:
    """A request on its way through the scheduler."""

    request: Request
    loop: asyncio.AbstractEventLoop
    done: asyncio.Future[Generation]
    cost: int = 0
    id: RequestId | None = None
    suspect: bool = False
    """It was running when a step raised: it runs alone until the faulty row is found."""

    def resolve(self, outcome: Generation | BaseException) -> None:
        """Hand the outcome to the caller's event loop, which may be gone."""
        if self.loop.is_closed():
            return
        if isinstance(outcome, BaseException):
            outcome = _told(outcome)
        try:
            self.loop.call_soon_threadsafe(self._set, outcome)
        except RuntimeError:  # closed between the two lines
            return

    def _set(self, outcome: Generation | Exception) -> None:
        if self.done.done():
            return
        if isinstance(outcome, Exception):
            self.done.set_exception(outcome)
        else:
            self.done.set_result(outcome)


@dataclass(slots=True)
class _Bundle:
    """Calls that arrived together, or calls whose callers went away."""

    calls: list[_Call] = field(default_factory=list)
    gone: list[_Call] = field(default_factory=list)


class Scheduler:
    """One thread that steps a backend; requests join its running batch between steps, oldest first.

    The batch is bounded by the backend's token budget. A step that runs out of memory halves the budget and
    begins the batch again; a step that raises anything else is repeated one request at
    a time, so that a faulty row fails alone.
    """

    def __init__(self, backend: Backend) -> None:
        """Drive `backend`; the thread starts with the first request and ends when it has nothing to do."""
        self._backend = backend
        self._inbox: queue.SimpleQueue[_Bundle] = queue.SimpleQueue()
        self._gatherings: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _Gathering[_Call]] = weakref.WeakKeyDictionary()
        self._waiting: deque[_Call] = deque()
        self._running: dict[RequestId, _Call] = {}
        self._budget = backend.budget
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()
        self._unhandled = 0
        self._stopping = False
        self._rows: deque[int] = deque(maxlen=_REMEMBERED)
        self.halvings = 0
        """How often the budget was halved because memory ran out."""

    @property
    def rows(self) -> list[int]:
        """How many requests rode in each of the last steps."""
        return list(self._rows)

    async def __call__(self, request: Request) -> Generation:
        """Run one request in the shared batch; a cancelled caller's rows leave it."""
        loop = asyncio.get_running_loop()
        gathering = self._gatherings.setdefault(loop, _Gathering())
        call = _Call(request, loop, loop.create_future())
        gathering.items.append(call)
        if gathering.pump is None:
            gathering.pump = loop.create_task(self._hand_over(gathering))
        try:
            return await call.done
        except asyncio.CancelledError:
            self._send(_Bundle(gone=[call]))
            raise

    async def _hand_over(self, gathering: _Gathering[_Call]) -> None:
        try:
            while gathering.items:
                self._send(_Bundle(calls=await gathering.settle()))
        finally:
            gathering.pump = None

    def _send(self, bundle: _Bundle) -> None:
        with self._lock:
            self._inbox.put(bundle)
            self._unhandled += 1
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="inward-scheduler", daemon=True)
                atexit.register(self._stop)
                self._thread.start()

    def _stop(self) -> None:
        """End the thread between two steps: inside one, the interpreter's end would abort the process."""
        self._stopping = True
        if (thread := self._thread) is not None:
            thread.join(_LAST_STEP)

    def _work(self) -> None:
        while not self._stopping:
            try:
                self._receive()
                self._admit()
                if self._running:
                    self._step()
                    continue
            except BaseException as error:  # whatever went wrong, nobody may wait for ever
                self._collapse(error)
            with self._lock:
                if not self._unhandled and not self._waiting and not self._running:
                    self._thread = None
                    atexit.unregister(self._stop)
                    return

    def _collapse(self, error: BaseException) -> None:
        calls = [*self._running.values(), *self._waiting]
        self._waiting.clear()
        for call in calls:
            self._forget(call)
            call.resolve(error)

    def _receive(self) -> None:
        while self._unhandled:
            bundle = self._inbox.get()
            with self._lock:
                self._unhandled -= 1
            self._waiting.extend(bundle.calls)
            for call in bundle.gone:
                if call.id is not None:
                    self._forget(call)
                elif call in self._waiting:
                    self._waiting.remove(call)

    def _forget(self, call: _Call) -> None:
        """Take a call out of the batch; a backend that cannot drop it runs on with rows that nobody reads."""
        if call.id is None:
            return
        self._running.pop(call.id, None)
        id, call.id = call.id, None
        try:
            self._backend.drop(id)
        except BaseException as error:
            log.warning("the backend could not drop request %d: %r", id, error)

    def _admit(self) -> None:
        """Let waiting requests in, oldest first, while the budget has room; one may always run."""
        room = self._budget - sum(call.cost for call in self._running.values())
        while self._waiting:
            call = self._waiting[0]
            if call.done.done():  # cancelled while it waited
                self._waiting.popleft()
                continue
            if self._running and (call.suspect or any(c.suspect for c in self._running.values())):
                return
            try:
                call.cost = call.cost or self._backend.cost(call.request)  # it may wait for many steps
                if self._running and call.cost > room:
                    return
                call.id = self._backend.add(call.request)
            except BaseException as error:
                self._waiting.popleft()
                call.resolve(error)
                continue
            self._waiting.popleft()
            self._running[call.id] = call
            room -= call.cost

    def _step(self) -> None:
        self._rows.append(len(self._running))
        try:
            progress = self._backend.step()
        except OutOfMemory as error:
            self._shrink(error)
            return
        except BaseException as error:
            self._isolate(error)
            return
        for event in progress:
            call = self._running.pop(event.id, None)
            if call is None:
                continue
            call.id = None
            call.resolve(event.generation if isinstance(event, Finished) else event.error)

    def _shrink(self, error: OutOfMemory) -> None:
        """Halve the budget and begin the whole batch again: what a pass cut short left behind is not trusted."""
        calls = list(self._running.values())  # dicts keep insertion order: oldest first
        for call in calls:
            self._forget(call)
        if len(calls) == 1:
            calls[0].resolve(error)
            return
        self.halvings += 1
        self._budget = max(1, min(self._budget, sum(call.cost for call in calls)) // 2)
        self._waiting.extendleft(reversed(calls))

    def _isolate(self, error: BaseException) -> None:
        calls = list(self._running.values())
        for call in calls:
            self._forget(call)
        if len(calls) == 1:
            calls[0].resolve(error)
            return
        for call in calls:
            call.suspect = True
        self._waiting.extendleft(reversed(calls))
