"""Given text, read as if it had been generated (teacher forcing)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from inward.lm.calls import Job
from inward.lm.sampling import score_rows
from inward.types import F32


def read_given(logits: Tensor, job: Job, places: Sequence[tuple[int, int]]) -> None:
    """Score given tokens: `places` pairs a row of `logits [R, V]` with the index of the token it predicts."""
    row, call = job.row, job.calls[0]
    assert row is not None
    mine = logits[torch.tensor([place for place, _ in places], device=logits.device)]
    ids = torch.tensor([call.given[index] for _, index in places], device=logits.device)
    columns = score_rows(mine, ids, entropies="entropies" in row.scores)
    for name, column in zip(("logprobs", "energies", "entropies"), columns, strict=False):
        if name in row.scores:
            row.scores[name].extend(column.tolist())
    if row.sampling.watch:
        watch = torch.tensor(row.sampling.watch, device=logits.device)
        x = mine.float()
        row.watched.extend((x[:, watch] - x.logsumexp(-1, keepdim=True)).tolist())


def finish_reading(job: Job, hidden_size: int) -> None:
    """Turn a text that has been fed whole into a finished completion."""
    row, call = job.row, job.calls[0]
    assert row is not None
    for token in call.given:
        row.text.push(token)
    row.text.cut = None  # stop strings do not cut what was given
    row.finish = "length" if call.end_id is None else "eos"
    states = None
    if job.states is not None:
        states = job.states.result(len(call.given), (len(job.states.capture.layers), hidden_size))
    call.done[0] = (row, states, _attention(job))


def _attention(job: Job) -> F32 | None:
    """Join the attention rows of all passes, `[H, T, P + T]`."""
    if not job.attention:
        return None
    prompt, given = len(job.calls[0].prompt_ids), len(job.calls[0].given)
    width = job.attention[-1].shape[-1]
    rows = torch.cat([F.pad(part, (0, width - part.shape[-1])) for part in job.attention], dim=1)
    first = prompt - job.segment.start
    return rows[:, first : first + given, : prompt + given].cpu().numpy()
