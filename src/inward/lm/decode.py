"""The decode loop: one running batch that prompts join and finished completions leave, one pass a step.

Each step feeds the next token of every running row and as many waiting prompt tokens as fit, packed side by
side without padding. A prompt is fed once however many samples fork from it; a prefix that several prompts
share is fed once for all of them.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator, Sequence
from itertools import count
from typing import Any

import torch
from torch import Tensor

from inward.lm.attention import Decode, PackedCache, Plan, Prefill, planned
from inward.lm.calls import PASSES, Call, Job, Live
from inward.lm.capture import States, Taps
from inward.lm.device import send
from inward.lm.encode import Encoder
from inward.lm.harvest import harvest
from inward.lm.kv import Segment, Slabs
from inward.lm.prefixes import Prefixes
from inward.lm.reading import finish_reading, read_given
from inward.lm.rows import Row
from inward.lm.sampling import Choice, choose, step_key
from inward.protocols import Finished, Progress, Request, RequestId
from inward.trace import draw_key
from inward.types import Capture, Usage

PREFILL_TOKENS = 2048
"""Prompt tokens fed in one step: more would hold up the running rows for long."""
SHARED_BY = 4
"""A segment that fewer rows read is copied into their slots: a slab of its own would cost more than the copy."""
_LOGITS = 1 << 26
"""Logits that one step may make for given text: a long text is scored in several steps."""


class Engine:
    """Runs requests on a transformers decoder whose attention is `inward.lm.attention`."""

    def __init__(
        self, model: Any, encoder: Encoder, taps: Taps, *, cache_argument: str, prefix_tokens: int, prefix_reuse: bool = True
    ) -> None:
        """Drive `model`; keep at most `prefix_tokens` of shared prefixes between requests."""
        self._model, self._encoder, self._taps = model, encoder, taps
        self._cache_argument = cache_argument
        self._device: torch.device = model.get_input_embeddings().weight.device
        self._head_device: torch.device = model.get_output_embeddings().weight.device  # another one under some device maps
        self._vocabulary: int = model.get_output_embeddings().weight.shape[0]
        self._eos = frozenset(encoder.eos_ids)
        self._hidden_size: int = model.config.get_text_config().hidden_size
        self._prefixes = Prefixes(prefix_tokens) if prefix_reuse else None
        self._ids = count(1)
        self._calls: dict[RequestId, Call] = {}
        self._new: list[Call] = []
        self._jobs: deque[Job] = deque()
        self._slabs = Slabs()
        self.passes: deque[tuple[int, int]] = deque(maxlen=PASSES)
        """Tokens fed and logit rows made in each of the last passes."""

    # -- joining and leaving ---------------------------------------------------------------------------

    def add(self, request: Request, prompt_ids: tuple[int, ...], given: tuple[int, ...] = ()) -> RequestId:
        """Let a request join at the next step; `given` ids are read instead of sampled."""
        end_id = given[-1] if given and given[-1] in self._eos else None
        call = Call(next(self._ids), request, prompt_ids, given if end_id is None else given[:-1], end_id)
        self._calls[call.id] = call
        self._new.append(call)
        return call.id

    @torch.inference_mode()
    def drop(self, id: RequestId) -> None:
        """Take a request and its rows out."""
        call = self._calls.pop(id, None)
        if call is None:
            return
        for live in call.live:
            self._slabs.leave(live.seat)
        call.live.clear()
        if call in self._new:
            self._new.remove(call)
        mine = [job for job in self._jobs if call in job.calls]
        for job in mine:
            job.calls.remove(call)
        if mine:  # a prefix that nobody waits for any more goes too: it may be what made a step fail
            awaited = {s for job in self._jobs if job.calls for s in job.segment.chain}
            self._jobs = deque(job for job in self._jobs if job.segment in awaited)

    def forget(self) -> None:
        """Free what outlives requests: shared prefixes, and prefixes waiting to be fed."""
        self._jobs.clear()
        if self._prefixes:
            self._prefixes.clear()

    def _join(self) -> None:
        """Turn new calls into jobs: equal prompts share one, equal beginnings a segment."""
        calls, self._new = self._new, []
        if not calls:
            return
        fed = [self._to_feed(call) for call in calls]
        # only of the prompts: every given token must be fed, for its state and its scores
        parents = self._prefixes.assign([call.prompt_ids for call in calls]) if self._prefixes else [None] * len(calls)
        jobs: dict[tuple[int, ...], Job] = {}
        for call, ids, parent in zip(calls, fed, parents, strict=True):
            shared = parent.end if parent else 0
            cached = shared - (self._queue(parent) if parent else 0)
            first = jobs.get(ids) if not call.reads else None
            self._account(call, first, cached)
            if first:
                first.calls.append(call)
                continue
            job = Job(Segment(ids[shared:], parent), [call])
            if call.reads:
                self._prepare_reading(job, call)
            else:
                jobs[ids] = job
            self._jobs.append(job)

    def _queue(self, segment: Segment) -> int:
        """See to it that a prefix and its ancestors are fed; return how many tokens are fed because of this call."""
        waiting = {id(job.segment) for job in self._jobs}
        missing = [s for s in segment.chain if not s.ready and id(s) not in waiting]
        self._jobs.extend(Job(s) for s in missing)
        return sum(len(s.ids) - s.filled for s in missing)

    def _account(self, call: Call, first: Job | None, cached: int) -> None:
        n = len(call.prompt_ids) + len(call.given)
        reads, samples = int(call.reads), 0 if call.reads else call.n
        same_question = first is not None and call.request.group is not None and first.calls[0].request.group == call.request.group
        call.usage = Usage(
            generate_calls=1 - reads,
            forward_calls=reads,
            sequences=samples,
            prompt_tokens=0 if same_question else n,
            cached_tokens=0 if same_question else n if first else cached,
        )

    def _to_feed(self, call: Call) -> tuple[int, ...]:
        if not call.reads:
            return call.prompt_ids
        capture = call.request.capture
        wants_end = capture is not None and capture.pool == "eos" and capture.over == "generated"
        end = self._encoder.eos_ids[0] if call.end_id is None else call.end_id
        return call.prompt_ids + call.given + ((end,) if wants_end else ())

    def _prepare_reading(self, job: Job, call: Call) -> None:
        job.row = Row.start(self._encoder, call.prompt_ids, call.request.sampling, 0, 0)
        job.states = States(call.request.capture) if call.request.capture else None

    # -- one step --------------------------------------------------------------------------------------

    @torch.inference_mode()
    def step(self) -> list[Progress]:
        """Advance every row by one token and feed waiting prompts; return what is finished."""
        started = time.perf_counter()
        self._join()
        for slab in self._slabs:
            for seat in list(slab.seats):
                seat.owner.seat = self._slabs.widen(seat)
        parts, tokens, positions, owners = self._plan()
        if not tokens:
            if self._calls:
                raise RuntimeError(f"{len(self._calls)} requests wait for tokens that nobody feeds")
            return []
        plan = Plan(parts, send(positions, self._device))
        wanted = [(row, taker) for part, owner in zip(parts, owners, strict=True) for row, taker in self._logit_rows(part, owner)]
        logits = self._forward(plan, tokens, [row for row, _ in wanted])
        harvest(self._taps, self._device, parts, owners)
        for part in parts:
            self._advance(part)
        closing = [
            live
            for part, owner in zip(parts, owners, strict=True)
            if isinstance(part, Decode)
            for live in owner
            if live.closing is not None
        ]
        self._take(logits, [taker for _, taker in wanted])
        for live in closing:
            self._close(live)
        self._end_jobs([owner for part, owner in zip(parts, owners, strict=True) if isinstance(part, Prefill)])
        self._share_time(parts, owners, len(tokens), started)
        return self._finished()

    def _plan(self) -> tuple[list[Prefill | Decode], list[int], list[int], list[Any]]:
        """Lay out a step: its parts, the packed tokens and positions, and who owns each part."""
        parts: list[Prefill | Decode] = []
        owners: list[Any] = []
        tokens: list[int] = []
        positions: list[int] = []
        for slab in self._slabs:
            rows = slice(len(tokens), len(tokens) + len(slab.seats))
            lengths = [seat.length for seat in slab.seats]
            columns = send(lengths, self._device)
            slots = torch.arange(len(lengths), device=self._device)
            parts.append(Decode(slab, rows, slots, columns, max(lengths) + 1))
            owners.append([seat.owner for seat in slab.seats])
            tokens.extend(seat.owner.feed for seat in slab.seats)
            positions.extend(seat.position for seat in slab.seats)
        room = PREFILL_TOKENS
        for job in self._jobs:
            segment = job.segment
            if segment.parent is not None and not segment.parent.ready:
                continue
            ids = segment.ids[segment.filled : segment.filled + min(room, self._reading_room(job))]
            if not ids:
                break
            room -= len(ids)
            layer = job.calls[0].request.capture.attention if job.reads and job.calls[0].request.capture else None
            first = segment.start + segment.filled
            parts.append(Prefill(segment, slice(len(tokens), len(tokens) + len(ids)), layer))
            owners.append(job)
            tokens.extend(ids)
            positions.extend(range(first, first + len(ids)))
        return parts, tokens, positions, owners

    def _reading_room(self, job: Job) -> int:
        return max(16, _LOGITS // self._vocabulary) if job.reads else PREFILL_TOKENS

    def _logit_rows(self, part: Prefill | Decode, owner: Any) -> Iterator[tuple[int, Any]]:
        """Yield the packed rows whose logits are wanted, with who wants them."""
        if isinstance(part, Decode):
            yield from ((part.rows.start + i, live) for i, live in enumerate(owner) if live.closing is None)
        elif owner.reads:
            call, first = owner.calls[0], part.segment.start + part.segment.filled
            if not (call.request.sampling.token_scores or call.request.sampling.watch):
                return
            for row in range(part.rows.start, part.rows.stop):
                index = first + row - part.rows.start + 1 - len(call.prompt_ids)  # of the given token that this row predicts
                if 0 <= index < len(call.given):
                    yield row, (owner, index)
        elif owner.calls and part.length == len(part.segment.ids):
            yield part.rows.stop - 1, owner

    def _forward(self, plan: Plan, tokens: list[int], rows: list[int]) -> Tensor:
        """Return raw logits `[R, V]` of the packed rows asked for."""
        captures = self._captures(plan.parts)
        self._taps.want((c.site, layer) for c in captures for layer in c.layers)
        self._taps.clear()
        ids = send([tokens], self._device)
        keep = send(rows or [0], self._head_device)
        with planned(plan):
            cache = {self._cache_argument: PackedCache()}
            out = self._model(input_ids=ids, position_ids=plan.positions[None], use_cache=True, logits_to_keep=keep, **cache)
        if not plan.masks:
            raise RuntimeError("the model ran attention of its own: was its attention implementation changed after it was loaded?")
        self.passes.append((len(tokens), len(rows)))
        logits: Tensor = out.logits[0]
        return logits

    def _captures(self, parts: Sequence[Prefill | Decode]) -> set[Capture]:
        captures: set[Capture] = set()
        for part in parts:
            if isinstance(part, Decode):
                captures |= {seat.owner.states.capture for seat in part.slab.seats if seat.owner.states}
        for job in self._jobs:
            captures |= {call.request.capture for call in job.calls if call.request.capture}
        return captures

    def _advance(self, part: Prefill | Decode) -> None:
        if isinstance(part, Prefill):
            part.segment.filled = part.length
            return
        for seat in part.slab.seats:
            seat.length += 1

    def _share_time(self, parts: Sequence[Prefill | Decode], owners: Sequence[Any], tokens: int, started: float) -> None:
        share = (time.perf_counter() - started) / tokens
        for part, owner in zip(parts, owners, strict=True):
            if isinstance(part, Decode):
                for live in owner:
                    live.call.seconds += share
                continue
            size = part.rows.stop - part.rows.start
            payers = owner.calls or [c for job in self._jobs if job.segment.parent is part.segment for c in job.calls]
            for call in payers:
                call.seconds += share * size / len(payers)

    # -- tokens ----------------------------------------------------------------------------------------

    def _take(self, logits: Tensor, takers: Sequence[Any]) -> None:
        """Choose the next token of every row that wants one; the first tokens of prompts that are ready, too."""
        rows: list[int] = []
        choices: list[Choice] = []
        heirs: list[tuple[Row, Any]] = []
        read: dict[int, tuple[Job, list[tuple[int, int]]]] = {}
        for place, taker in enumerate(takers):
            if isinstance(taker, tuple):
                read.setdefault(id(taker[0]), (taker[0], []))[1].append((place, taker[1]))
                continue
            for row, heir in self._heirs(taker):
                rows.append(place)
                choices.append(Choice(sampling=row.sampling, key=step_key(row.key, row.sample, row.sampled)))
                heirs.append((row, heir))
        for job, places in read.values():
            read_given(logits, job, places)
        if not rows:
            return
        picked = logits if rows == list(range(len(logits))) else logits[send(rows, logits.device)]
        chosen = choose(picked, choices)
        ready: list[Job] = []
        for i, (row, heir) in enumerate(heirs):
            scores = {name: column[i] for name in row.scores if (column := getattr(chosen, name)) is not None}
            row.accept(chosen.ids[i], self._eos, scores, chosen.watched.get(i))
            if isinstance(heir, Live):
                self._proceed(heir)
            elif heir[0] not in ready:
                ready.append(heir[0])
        for job in ready:
            self._jobs.remove(job)
            if self._prefixes:
                self._prefixes.remember(job.segment)
            self._fork(job, [(row, heir[1]) for row, heir in heirs if not isinstance(heir, Live) and heir[0] is job])

    def _heirs(self, taker: Any) -> Iterator[tuple[Row, Any]]:
        if isinstance(taker, Live):
            yield taker.row, taker
            return
        for call in taker.calls:
            key = call.request.draw_key
            if key is None:
                key = draw_key(0, repr(call.prompt_ids))
            for sample in range(call.n):
                yield Row.start(self._encoder, call.prompt_ids, call.request.sampling, sample, key), (taker, call)

    def _fork(self, job: Job, rows: list[tuple[Row, Call]]) -> None:
        """Seat the completions of a prompt whose first tokens are chosen."""
        segment = job.segment
        segment.users = len(rows)
        chain = segment.chain
        # whoever reads a segment reads its ancestors, too
        shared = next((i for i in range(len(chain), 0, -1) if chain[i - 1].users >= SHARED_BY), 0)
        own = chain[shared:]
        length = sum(len(s.ids) for s in own)
        keys = {n: torch.cat([s.keys[n] for s in own], 1) if len(own) > 1 else own[0].keys[n] for n in (segment.keys if own else ())}
        values = {n: torch.cat([s.values[n] for s in own], 1) if len(own) > 1 else own[0].values[n] for n in (segment.keys if own else ())}
        for row, call in rows:
            seat = self._slabs.seat(chain[:shared], length)
            if own:
                seat.slab.fill(seat, keys, values, length)
            capture = call.request.capture
            live = Live(row, call, seat, length, 0, States(capture) if capture else None)
            seat.owner = live
            call.live.append(live)
            self._proceed(live)

    def _proceed(self, live: Live) -> None:
        """Feed the token that was chosen next, or end the completion."""
        row = live.row
        if row.finish is None:
            live.feed = row.text.ids[-1]
            if live.states:
                live.states.settle(row.text.safe)
            return
        kept, closing = row.text.kept, deque[int]()
        if live.states:
            fed = live.fed
            if live.states.capture.over == "generated" and live.states.capture.layers:
                live.seat.length = live.base + min(fed, kept)  # what a stop string cut off is not looked at
                closing.extend(row.text.ids[fed:kept])
                if live.states.capture.pool == "eos":
                    closing.append(row.end_id if row.end_id is not None else self._encoder.eos_ids[0])
        live.closing = closing
        self._close(live)

    def _close(self, live: Live) -> None:
        """Feed what is left for its state, or let the row go."""
        if live.closing:
            live.feed = live.closing.popleft()
            return
        self._slabs.leave(live.seat)
        live.call.live.remove(live)
        shape = (len(live.states.capture.layers), self._hidden_size) if live.states else (0, 0)
        states = live.states.result(live.row.text.kept, shape) if live.states else None
        live.call.done[live.row.sample] = (live.row, states, None)

    def _end_jobs(self, jobs: Sequence[Job]) -> None:
        """Let go of prefixes that are fed and of texts that are read."""
        for job in jobs:
            if job.segment.ready and job.reads:
                finish_reading(job, self._hidden_size)
            if job.segment.ready and (job.reads or not job.calls):
                self._jobs.remove(job)

    def _finished(self) -> list[Progress]:
        done = [call for call in self._calls.values() if call.complete]
        for call in done:
            del self._calls[call.id]
        return [Finished(call.id, call.generation()) for call in done]
