"""From logits to tokens and token scores, row by row, whatever shares the batch.

Draws are Gumbel-max with noise keyed by (run seed, question, sample, step, token id): a draw is a pure
function of a row's own logits and its own key, and a small rounding of the logits flips it least.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from inward.lm.device import send
from inward.types import Sampling

_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15
_CHUNK = 1 << 20
"""Logits worked on at a time: several passes over them stay in the processor's cache."""
_BLOCK = 512
"""Vocabulary entries whose maximum stands for them in the first pass of `top_ids`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """How one row's next token is chosen."""

    sampling: Sampling
    key: int
    """64 bits of (run seed, question, sample, step)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """What was chosen for `R` rows; scores are None where no row asked for them."""

    ids: list[int]
    logprobs: list[float] | None
    entropies: list[float] | None
    energies: list[float] | None
    watched: dict[int, list[float]]
    """Row -> log-probabilities of its watched tokens, nats."""


def mix(value: int) -> int:
    """Scramble 64 bits (the finaliser of splitmix64)."""
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)


def step_key(draw_key: int, sample: int, step: int) -> int:
    """Key the draw of one step of one sample."""
    return mix((mix((draw_key + (sample + 1) * _GOLDEN) & _MASK) + (step + 1) * _GOLDEN) & _MASK)


def _signed(value: int) -> int:
    return value - (1 << 64) if value >= 1 << 63 else value


def gumbel(keys: Sequence[int], ids: Tensor) -> Tensor:
    """Return standard Gumbel noise for `ids [R, K]` of rows with 64-bit `keys [R]`; float64, the same on every device."""
    key = send([_signed(k) for k in keys], ids.device)[:, None]
    x = key + ids * _signed(_GOLDEN)  # int64 arithmetic wraps, as wanted
    x = (x ^ _shift(x, 30)) * _signed(0xBF58476D1CE4E5B9)
    x = (x ^ _shift(x, 27)) * _signed(0x94D049BB133111EB)
    x = x ^ _shift(x, 31)
    uniform = (_shift(x, 11).double() + 0.5) * 2.0**-53
    return uniform.log_().neg_().log_().neg_()


def _shift(x: Tensor, bits: int) -> Tensor:
    """Shift right without carrying the sign in."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)


def top_ids(logits: Tensor, k: int) -> Tensor:
    """Ids `[R, k]` of the largest of `logits [R, V]`, best first, without sorting the vocabulary.

    The `k` largest lie in the `k` blocks with the largest maxima, so one cheap pass over the vocabulary
    leaves few candidates.
    """
    rows, vocabulary = logits.shape
    blocks = vocabulary // _BLOCK
    if blocks <= 2 * k:
        return logits.topk(min(k, vocabulary), dim=-1).indices
    body = logits[:, : blocks * _BLOCK].view(rows, blocks, _BLOCK)
    best = body.amax(-1).topk(k, dim=-1).indices  # [R, k]
    ids = (best[:, :, None] * _BLOCK + torch.arange(_BLOCK, device=logits.device)).flatten(1)
    rest = torch.arange(blocks * _BLOCK, vocabulary, device=logits.device).expand(rows, -1)
    ids = torch.cat([ids, rest], dim=1)
    return ids.gather(1, logits.gather(1, ids).topk(k, dim=-1).indices)


def choose(logits: Tensor, choices: Sequence[Choice]) -> Chosen:
    """Choose a token for every row of raw `logits [R, V]` and compute the scores that rows asked for.

    One transfer to the host for the whole batch, none per row.
    """
    ids = _choose_ids(logits, choices)
    wanted = {name for choice in choices for name in choice.sampling.token_scores}
    columns = [ids.double()]
    if wanted:
        columns.extend(column.double() for column in score_rows(logits, ids, entropies="entropies" in wanted))
    host = torch.stack(columns, 1).tolist()
    watched = _watched(logits, choices)
    return Chosen(
        ids=[int(row[0]) for row in host],
        logprobs=[row[1] for row in host] if "logprobs" in wanted else None,
        energies=[row[2] for row in host] if "energies" in wanted else None,
        entropies=[row[3] for row in host] if "entropies" in wanted else None,
        watched=watched,
    )


def score_rows(logits: Tensor, ids: Tensor, *, entropies: bool) -> list[Tensor]:
    """Log-probability of `ids [R]`, log-sum-exp and (if wanted) entropy of raw `logits [R, V]`; nats, `[R]` each."""
    step = max(1, _CHUNK // logits.shape[1])
    parts: list[list[Tensor]] = []
    for chunk, chosen in zip(torch.split(logits, step), torch.split(ids, step), strict=True):
        x = chunk.float()
        top = x.amax(-1, keepdim=True)
        # relative to the largest: the sums stay small, so their rounding does; clamped: a forbidden entry is
        # minus infinity, and zero times that is no number
        below = (x - top).clamp_(min=-1e4)
        weights = below.exp()
        total = weights.sum(-1)
        row = [x.gather(1, chosen[:, None])[:, 0] - top[:, 0] - total.log(), top[:, 0] + total.log()]
        if entropies:
            mean = below.mul_(weights).sum(-1) / total  # torch sums pairwise: a plain dot product loses three digits here
            row.append((total.log() - mean).clamp_min(0.0))
        parts.append(row)
    return [torch.cat(column) for column in zip(*parts, strict=True)]


def _watched(logits: Tensor, choices: Sequence[Choice]) -> dict[int, list[float]]:
    rows = [i for i, choice in enumerate(choices) if choice.sampling.watch]
    watched: dict[int, list[float]] = {}
    for i in rows:
        row = logits[i].float()
        ids = torch.tensor(choices[i].sampling.watch, device=logits.device)
        watched[i] = (row[ids] - row.logsumexp(-1)).tolist()
    return watched


def _choose_ids(logits: Tensor, choices: Sequence[Choice]) -> Tensor:
    """Choose `[R]` ids: rows of equal settings together, each by its own key."""
    groups: defaultdict[tuple[float, int, float], list[int]] = defaultdict(list)
    for i, choice in enumerate(choices):
        s = choice.sampling
        groups[(0.0, 0, 1.0) if s.temperature == 0 else (s.temperature, s.top_k, s.top_p)].append(i)
    biased = [i for i, choice in enumerate(choices) if choice.sampling.logit_bias]
    if biased:
        logits = logits.clone()
        for i in biased:
            ids, values = zip(*choices[i].sampling.logit_bias, strict=True)
            nats = torch.tensor(values, device=logits.device, dtype=logits.dtype)
            logits[i].index_add_(0, torch.tensor(ids, device=logits.device), nats)  # a token named twice gets both
    if len(groups) == 1:
        (setting,) = groups
        return _draw(logits, setting, [choice.key for choice in choices])
    chosen = torch.empty(len(choices), dtype=torch.long, device=logits.device)
    for setting, rows in groups.items():
        index = send(rows, logits.device)
        chosen[index] = _draw(logits[index], setting, [choices[i].key for i in rows])
    return chosen


def _draw(logits: Tensor, setting: tuple[float, int, float], keys: list[int]) -> Tensor:
    temperature, top_k, top_p = setting
    if temperature == 0:
        return logits.argmax(-1)
    vocabulary = logits.shape[1]
    if top_k and top_k < vocabulary:
        ids = top_ids(logits, top_k)
        scaled = logits.gather(1, ids).double() / temperature
        return _nucleus(ids, scaled, scaled.logsumexp(-1, keepdim=True), top_p, keys)
    if top_p < 1:
        return _draw_nucleus(logits, temperature, top_p, keys)
    ids = torch.arange(vocabulary, device=logits.device)[None]
    rows = [(row[None].double() / temperature + gumbel([key], ids)).argmax(-1) for row, key in zip(logits, keys, strict=True)]
    return torch.cat(rows)


def _nucleus(ids: Tensor, scaled: Tensor, total: Tensor, top_p: float, keys: list[int]) -> Tensor:
    """Draw among the first of `ids [R, K]` (best first) whose mass reaches `top_p`."""
    probability = (scaled - total).exp()
    before = probability.cumsum(-1) - probability
    noisy = (scaled + gumbel(keys, ids)).masked_fill(before >= top_p, float("-inf"))
    return ids.gather(1, noisy.argmax(-1, keepdim=True))[:, 0]


def _draw_nucleus(logits: Tensor, temperature: float, top_p: float, keys: list[int]) -> Tensor:
    """Top-p over the whole vocabulary: look at more of the best tokens until they hold the mass."""
    total = (logits.double() / temperature).logsumexp(-1, keepdim=True)
    k = 256
    while True:
        ids = top_ids(logits, k)
        scaled = logits.gather(1, ids).double() / temperature
        if ids.shape[1] == logits.shape[1] or bool(((scaled - total).exp().sum(-1) >= top_p).all()):
            return _nucleus(ids, scaled, total, top_p, keys)
        k *= 8
