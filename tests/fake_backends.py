"""Backends without a model, for the scheduler: a request's prompt says how many steps it takes and how it misbehaves."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import numpy as np

from inward.errors import OutOfMemory
from inward.protocols import Failed, Feature, Finished, Progress, Request, RequestId
from inward.types import Completion, Generation, Prompt, Sampling, Usage


def request(name: str, steps: int = 1, *, cost: int = 1) -> Request:
    """Ask for `steps` steps that take `cost` of the budget."""
    return Request(prompt=name, sampling=Sampling(max_tokens=steps, n=cost))


class StepBackend:
    """Counts every running request down by one a step; what it was told, and when, is in `log`.

    Args:
        budget: how much `cost` may run at once.
        pause: seconds that a step takes.
        before_step: called with the names that run; what it raises, the step raises.
    """

    supports: frozenset[Feature] = frozenset()
    context = 1 << 20

    def __init__(self, budget: int = 100, *, pause: float = 0.0, before_step: Callable[[list[str]], None] | None = None) -> None:
        self.budget, self._pause, self._before_step = budget, pause, before_step
        self._left: dict[RequestId, int] = {}
        self._requests: dict[RequestId, Request] = {}
        self.log: list[tuple[str, str]] = []
        self.steps: list[list[str]] = []
        self.threads: set[int] = set()
        self.first_step = threading.Event()

    def count(self, prompt: Prompt) -> int:
        return len(str(prompt))

    def check(self, request: Request) -> None:
        return

    def cost(self, request: Request) -> int:
        return request.sampling.n

    def add(self, request: Request) -> RequestId:
        self.threads.add(threading.get_ident())
        id = len(self.log) + 1
        self.log.append(("add", str(request.prompt)))
        self._left[id], self._requests[id] = request.sampling.max_tokens, request
        return id

    @property
    def running(self) -> list[str]:
        return [str(self._requests[id].prompt) for id in self._left]

    def step(self) -> list[Progress]:
        self.threads.add(threading.get_ident())
        names = self.running
        self.steps.append(names)
        self.first_step.set()
        time.sleep(self._pause)
        if self._before_step is not None:
            self._before_step(names)
        for id in self._left:
            self._left[id] -= 1
        done = [id for id, left in self._left.items() if left <= 0]
        return [self._finish(id) for id in done]

    def _finish(self, id: RequestId) -> Progress:
        del self._left[id]
        request = self._requests[id]
        self.log.append(("done", str(request.prompt)))
        if str(request.prompt).startswith("refused"):
            return Failed(id, ValueError(f"refused: {request.prompt}"))
        text = f"{request.prompt} done"
        completion = Completion(text=text, token_ids=(), finish="eos", spans=np.zeros((0, 2), np.int32))
        return Finished(id, Generation(completions=(completion,), usage=Usage(generate_calls=1)))

    def drop(self, id: RequestId) -> None:
        if self._left.pop(id, None) is not None:
            self.log.append(("drop", str(self._requests[id].prompt)))


def out_of_memory_above(rows: int) -> Callable[[list[str]], None]:
    """Run out of memory when more than `rows` requests run."""

    def check(names: list[str]) -> None:
        if len(names) > rows:
            raise OutOfMemory(f"{len(names)} rows do not fit; the budget is too large")

    return check


def poisoned(names: list[str]) -> None:
    """Raise while a request called `poison…` runs."""
    if bad := [name for name in names if name.startswith("poison")]:
        raise ZeroDivisionError(f"cannot step {bad[0]}")
