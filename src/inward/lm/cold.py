"""The slow path for models whose cache or attention the packed loop does not know: every pass starts cold.

No keys and values are kept at all, so there is nothing that could be mutated, cropped or shared wrongly.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from itertools import count
from typing import Any

import torch
from torch import Tensor

from inward.lm.calls import PASSES, Call, Job
from inward.lm.capture import States, Taps
from inward.lm.encode import Encoder
from inward.lm.kv import Segment
from inward.lm.reading import finish_reading, read_given
from inward.lm.rows import Row
from inward.lm.sampling import Choice, choose, step_key
from inward.protocols import Finished, Progress, Request, RequestId
from inward.trace import draw_key
from inward.types import Usage


class ColdEngine:
    """Runs requests on any causal model, one row and one whole pass at a time."""

    def __init__(self, model: Any, encoder: Encoder, taps: Taps) -> None:
        """Drive `model` with its own attention."""
        self._model, self._encoder, self._taps = model, encoder, taps
        self._device: torch.device = model.get_input_embeddings().weight.device
        self._eos = frozenset(encoder.eos_ids)
        self._hidden_size: int = model.config.get_text_config().hidden_size
        self._ids = count(1)
        self._calls: dict[RequestId, Call] = {}
        self._rows: dict[RequestId, list[Row]] = {}
        self.passes: deque[tuple[int, int]] = deque(maxlen=PASSES)
        """Tokens fed and logit rows made in each of the last passes."""

    def add(self, request: Request, prompt_ids: tuple[int, ...], given: tuple[int, ...] = ()) -> RequestId:
        """Let a request join at the next step."""
        end_id = given[-1] if given and given[-1] in self._eos else None
        call = Call(next(self._ids), request, prompt_ids, given if end_id is None else given[:-1], end_id)
        key = draw_key(0, repr(prompt_ids)) if request.draw_key is None else request.draw_key
        samples = 0 if call.reads else call.n
        call.usage = Usage(
            generate_calls=int(not call.reads),
            forward_calls=int(call.reads),
            sequences=samples,
            prompt_tokens=len(prompt_ids) + len(call.given),
        )
        self._calls[call.id] = call
        self._rows[call.id] = [Row.start(self._encoder, prompt_ids, request.sampling, sample, key) for sample in range(samples)]
        return call.id

    def drop(self, id: RequestId) -> None:
        """Take a request out."""
        self._calls.pop(id, None)
        self._rows.pop(id, None)

    def forget(self) -> None:
        """Keep nothing, so free nothing."""

    @torch.inference_mode()
    def step(self) -> list[Progress]:
        """Advance every row by one token; return what is finished."""
        for call in self._calls.values():
            started = time.perf_counter()
            if call.reads:
                self._read(call)
            for row in self._rows[call.id]:
                if row.finish is None:
                    self._advance(call, row)
                if row.finish is not None and row.sample not in call.done:
                    self._end(call, row)
            call.seconds += time.perf_counter() - started
        done = [call for call in self._calls.values() if call.complete]
        for call in done:
            self.drop(call.id)
        return [Finished(call.id, call.generation()) for call in done]

    def _forward(self, ids: tuple[int, ...]) -> Tensor:
        """Return raw logits `[N, V]` of all positions."""
        logits: Tensor = self._model(input_ids=torch.tensor([ids], device=self._device), use_cache=False).logits[0]
        self.passes.append((len(ids), len(ids)))
        return logits

    def _advance(self, call: Call, row: Row) -> None:
        logits = self._forward(call.prompt_ids + tuple(row.text.ids))[-1:]
        chosen = choose(logits, [Choice(sampling=row.sampling, key=step_key(row.key, row.sample, row.sampled))])
        scores = {name: column[0] for name in row.scores if (column := getattr(chosen, name)) is not None}
        row.accept(chosen.ids[0], self._eos, scores, chosen.watched.get(0))

    def _end(self, call: Call, row: Row) -> None:
        kept = tuple(row.text.ids[: row.text.kept])
        end = self._encoder.eos_ids[0] if row.end_id is None else row.end_id
        states = self._states(call, kept, end)
        found = states.result(len(kept), (len(states.capture.layers), self._hidden_size)) if states else None
        call.done[row.sample] = (row, found, None)

    def _states(self, call: Call, kept: tuple[int, ...], end: int) -> States | None:
        """Read the states of a finished text in one more pass."""
        capture = call.request.capture
        if capture is None or not capture.layers:
            return None
        states = States(capture)
        wants_end = capture.pool == "eos" and capture.over == "generated"
        self._taps.want((capture.site, layer) for layer in capture.layers)
        self._forward(call.prompt_ids + kept + ((end,) if wants_end else ()))
        prompt = len(call.prompt_ids)
        rows = torch.arange(prompt - 1, prompt + len(kept) + int(wants_end), device=self._device)
        found = self._taps.gather(capture.site, capture.layers, rows)
        self._taps.clear()
        self._taps.want(())
        if capture.over == "prompt_last":
            call.prompt_state = found[0].cpu().numpy()
        elif wants_end:
            states.end = found[-1]
        else:
            states.add(0, found[1:])
        return states

    def _read(self, call: Call) -> None:
        row = Row.start(self._encoder, call.prompt_ids, call.request.sampling, 0, 0)
        end = self._encoder.eos_ids[0] if call.end_id is None else call.end_id
        job = Job(Segment(call.prompt_ids + call.given), [call], row=row, states=self._states(call, call.given, end))
        if row.scores or row.sampling.watch:
            first = len(call.prompt_ids) - 1
            logits = self._forward(call.prompt_ids + call.given)[first : first + len(call.given)]
            read_given(logits, job, list(self._places(call)))
        finish_reading(job, self._hidden_size)

    def _places(self, call: Call) -> Iterator[tuple[int, int]]:
        return ((i, i) for i in range(len(call.given)))
