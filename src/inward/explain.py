"""What was drafted, decided, searched and answered, as text for people and as plain values for machines."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator
from math import isfinite, isnan
from textwrap import shorten, wrap
from typing import Any

import msgspec

from inward.trace import Event, Gated, Generated, Noted, Outcome, Scored, Searched
from inward.types import Passage, Usage

WIDTH = 100
_LABEL = 11
_GAUGE = 20
_QUESTION = 600
"""Characters of a question that are shown."""


def explain(outcome: Outcome) -> str:
    """Say in plain text what happened to one question, step by step, and what it cost."""
    lines = [_line("question", shorten(outcome.question, _QUESTION, placeholder=" ..."))]
    last_search = max((n for n, event in enumerate(outcome.events, 1) if isinstance(event, Searched)), default=None)
    for number, event in enumerate(outcome.events, 1):
        lines += _event_lines(number, event, decides_search=last_search is None or number < last_search)
    lines += _closing(outcome)
    return "\n".join(lines)


def to_dict(outcome: Outcome) -> dict[str, Any]:
    """Return an outcome as JSON values: each event has its kind under `event`; prompts and passages are whole.

    JSON has no name for numbers that are not finite: infinities become the texts "inf" and "-inf", nan becomes None. `cited` names the
    passages whose title or text holds the short answer word for word: evidence worth a look, no proof that the model used it.
    """
    plain: dict[str, Any] = msgspec.to_builtins(outcome)
    plain["cited"] = [passage.id for passage in outcome.cited]
    plain["events"] = [{"event": _KINDS[type(event)], **fields} for event, fields in zip(outcome.events, plain["events"], strict=True)]
    finite: dict[str, Any] = finite_only(plain)
    return finite


def to_json(outcome: Outcome, **more: Any) -> str:
    """Return an outcome as one line of JSON, with `more` in front (the run's strategy, model, options); see `to_dict`."""
    return msgspec.json.encode(finite_only(more) | to_dict(outcome)).decode()


def gauge(value: float, above: float, width: int = _GAUGE) -> str:
    """Draw a value against its threshold, which stands in the middle: `[----------|###-------]`.

    The bar is their distance as a share of the larger of the two: full when they differ in sign or one is 0.
    """
    half = width // 2
    if not isfinite(value) or not isfinite(above):
        return f"[{'?' * half}|{'?' * half}]"
    share = max(-1.0, min(1.0, (value - above) / (max(abs(value), abs(above)) or 1.0)))
    filled = round(abs(share) * half)
    left = "#" * filled if share < 0 else ""
    right = "#" * filled if share > 0 else ""
    return f"[{left:->{half}}|{right:-<{half}}]"


def _event_lines(number: int, event: Event, *, decides_search: bool) -> Iterator[str]:
    match event:
        case Generated():
            more = f" (first of {len(event.texts)} samples)" if len(event.texts) > 1 else ""
            cut = ", cut at the limit" if event.finishes[:1] == ("length",) else ""
            yield _line(f"{number} draft", f"{_quoted(event.texts[0] if event.texts else '')}{more}")
            yield _line("", f"{_read(event.usage)}, {event.usage.completion_tokens} written{cut}")
        case Scored():
            yield _line(f"{number} score", f"{_quoted(event.text)} ({_read(event.usage)})")
        case Gated():
            relation = ("is above" if event.open else "is not above") if isfinite(event.value) else "counts as above"
            above = event.above or 0.0  # not "-0"
            opened = "unsure: retrieve" if decides_search else "open"  # after the last search it decided something else
            verdict = opened if event.open else "sure: no retrieval"
            yield _line(f"{number} gate", f"{event.name} {event.value:.3f} {relation} {above:g}  {gauge(event.value, above)}  {verdict}")
            if event.parts:
                yield _line("", ", ".join(f"{name} {value:.3f}" for name, value in event.parts.items()))
        case Searched():
            yield _line(f"{number} search", f"{_quoted(event.query)}: {counted(len(event.passages), 'passage')}")
            for place, passage in enumerate(event.passages, 1):
                yield _line("", f"[{place}] {passage.score:6.2f}  {_titled(passage)}")
        case Noted():
            yield _line(f"{number} note", f"{event.what}: {event.detail}")


def _closing(outcome: Outcome) -> Iterator[str]:
    reply = outcome.answer
    if outcome.error is not None:
        yield _line("error", outcome.error)
    else:
        cited = [place for place, passage in enumerate(reply.passages, 1) if passage in outcome.cited]
        yield _line("answer", f"{reply.short or '(empty)'}{''.join(f' [{place}]' for place in cited)}")
        for place, passage in enumerate(reply.passages, 1):
            if place in cited:
                yield _line("", f"[{place}] {source(passage)}")
        if reply.passages and not cited:
            read = (
                "the passage it read does not name"
                if len(reply.passages) == 1
                else f"none of the {len(reply.passages)} passages it read names"
            )
            yield _line("", f"{read} this answer")
        if reply.flags:
            yield _line("flags", ", ".join(reply.flags))
    if outcome.confidence is not None:
        yield _line("confidence", f"{outcome.confidence:.2f}")
    yield _line("cost", _cost(outcome.usage))


def names(passage: Passage, short: str) -> bool:
    """Say whether the passage holds the answer word for word, whatever its case, accents and punctuation."""
    wanted = _plain_words(short)
    return bool(wanted) and f" {wanted} " in f" {_plain_words(f'{passage.title} {passage.text}')} "


def source(passage: Passage) -> str:
    """Say where a passage comes from: title, document, and the span in it where known."""
    meta = passage.metadata
    span = f", characters {meta['start']}-{meta['end']}" if "start" in meta and "end" in meta else ""
    title = f"{passage.title}, " if passage.title else ""
    return f"{title}{meta.get('doc', passage.id)}{span}"


def _line(label: str, text: str) -> str:
    rows = wrap(harmless(text), WIDTH - _LABEL, break_on_hyphens=False) or [""]
    return "\n".join(f"{name:<{_LABEL}}{row}".rstrip() for name, row in zip([label, *[""] * (len(rows) - 1)], rows, strict=True))


def harmless(text: str) -> str:
    """Replace what would steer a terminal: a model's text and a passage are data."""
    return "".join(c if c.isspace() or unicodedata.category(c) not in ("Cc", "Cs") else "\ufffd" for c in text)


def _titled(passage: Passage) -> str:
    title = f"{passage.title}: " if passage.title else ""
    return title + shorten(passage.text, max(20, WIDTH - _LABEL - 13 - len(title)), placeholder=" ...")


def _quoted(text: str) -> str:
    return f'"{shorten(text, 240, placeholder=" ...")}"'


def _read(usage: Usage) -> str:
    reused = f" ({usage.cached_tokens} of them reused)" if usage.cached_tokens else ""
    return f"{counted(usage.prompt_tokens, 'token')} read{reused}"


def _cost(usage: Usage) -> str:
    parts = [
        counted(usage.generate_calls, "generation"),
        counted(usage.search_calls, "search", "searches"),
        _read(usage),
        f"{usage.completion_tokens} written",
    ]
    return ", ".join(parts) + (f", {usage.device_seconds:.1f} s" if usage.device_seconds else "")


def counted(number: int, one: str, many: str | None = None) -> str:
    """Say how many, in the singular where it is one."""
    return f"{number} {one if number == 1 else many or one + 's'}"


def _plain_words(text: str) -> str:
    folded = (c for c in unicodedata.normalize("NFKD", text.casefold()) if not unicodedata.combining(c))
    return " ".join("".join(c if c.isalnum() else " " for c in folded).split())


def finite_only(value: Any) -> Any:
    """Return nested plain values with "inf" and "-inf" for infinities and None for nan, as JSON has no name for them."""
    if isinstance(value, dict):
        return {key: finite_only(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [finite_only(inner) for inner in value]
    if isinstance(value, float) and not isfinite(value):
        return None if isnan(value) else str(value)
    return value


_KINDS: dict[type[Event], str] = {Generated: "generated", Scored: "scored", Searched: "searched", Gated: "gated", Noted: "noted"}
