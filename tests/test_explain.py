"""The explanation says what happened, in the order in which it happened, and nothing in it steers a terminal."""

from __future__ import annotations

import json
from dataclasses import replace
from math import inf, nan

import pytest

from inward.explain import WIDTH, explain, gauge, names, source, to_dict, to_json
from inward.trace import Gated, Generated, Noted, Outcome, Scored, Searched
from inward.types import Answer, Message, Passage, Usage

PASSAGES = (
    Passage(
        id="nile#0", title="Nile", text="The Nile flows north through Egypt.", score=7.25, metadata={"doc": "nile", "start": 0, "end": 35}
    ),
    Passage(id="cairo#0", title="Cairo", text="Cairo is a large city.", score=3.5),
)
DRAFT = Generated(
    number=1,
    prompt=(Message("user", "Which river?"),),
    texts=("The Danube",),
    finishes=("eos",),
    usage=Usage(generate_calls=1, prompt_tokens=40, cached_tokens=30, completion_tokens=4),
)
GATE = Gated(number=2, name="mean-nll", value=0.812, above=0.45, open=True, parts={"layer 6": 0.25})
SEARCH = Searched(number=3, query="Which river?", passages=PASSAGES, usage=Usage(search_calls=1))
NOTE = Noted(number=4, what="passages dropped", detail="1 of 3 did not fit")
AGAIN = replace(
    DRAFT, number=5, texts=("The Nile",), finishes=("length",), usage=Usage(generate_calls=1, prompt_tokens=90, completion_tokens=3)
)
OUTCOME = Outcome(
    question="Which river?",
    answer=Answer(text="The Nile", short="Nile", passages=PASSAGES, flags=("truncated",)),
    events=(DRAFT, GATE, SEARCH, NOTE, AGAIN),
    usage=DRAFT.usage + SEARCH.usage + AGAIN.usage,
)

EXPECTED = """\
question   Which river?
1 draft    "The Danube"
           40 tokens read (30 of them reused), 4 written
2 gate     mean-nll 0.812 is above 0.45  [----------|####------]  unsure: retrieve
           layer 6 0.250
3 search   "Which river?": 2 passages
           [1]   7.25  Nile: The Nile flows north through Egypt.
           [2]   3.50  Cairo: Cairo is a large city.
4 note     passages dropped: 1 of 3 did not fit
5 draft    "The Nile"
           90 tokens read, 3 written, cut at the limit
answer     Nile [1]
           [1] Nile, nile, characters 0-35
flags      truncated
cost       2 generations, 1 search, 130 tokens read (30 of them reused), 7 written"""


def test_the_whole_explanation():
    assert explain(OUTCOME) == EXPECTED
    assert OUTCOME.explain() == EXPECTED


def test_a_closed_gate_says_so():
    closed = replace(OUTCOME, events=(DRAFT, replace(GATE, value=0.1, open=False, parts={})), answer=Answer(text="Danube", short="Danube"))
    assert "mean-nll 0.100 is not above 0.45  [--########|----------]  sure: no retrieval" in explain(closed)


def test_a_broken_signal_is_told_from_a_large_one():
    broken = replace(OUTCOME, events=(replace(GATE, value=nan, parts={}),))
    assert "mean-nll nan counts as above 0.45  [??????????|??????????]  unsure: retrieve" in explain(broken)


def test_a_failed_question_shows_its_error_and_what_went_before():
    failed = replace(OUTCOME, answer=Answer.none(), error="RuntimeError: no", events=(DRAFT,))
    assert "error      RuntimeError: no" in explain(failed)
    assert "\nanswer" not in explain(failed)
    assert '"The Danube"' in explain(failed)


def test_an_answer_that_no_passage_names_is_told():
    assert "none of the 2 passages it read names this answer" in explain(replace(OUTCOME, answer=replace(OUTCOME.answer, short="Amazon")))


def test_what_a_model_or_a_passage_says_cannot_steer_a_terminal():
    nasty = "\x1b[2J\x07\rgone\x00\ud800"
    events = (replace(DRAFT, texts=(nasty,)), replace(SEARCH, passages=(Passage(id="1", text=nasty, title=nasty),)))
    shown = explain(replace(OUTCOME, question=nasty, events=events, answer=Answer(text=nasty, short=nasty)))
    assert not {c for c in shown if ord(c) < 32 or 0xD800 <= ord(c) < 0xE000} - {"\n"}
    shown.encode()


@pytest.mark.parametrize("text", ["word " * 200, "x" * 500, "床前明月光" * 60])
def test_lines_stay_short(text: str):
    shown = explain(replace(OUTCOME, question=text, events=(replace(DRAFT, texts=(text,)),)))
    assert max(map(len, shown.splitlines())) <= WIDTH


def test_a_score_of_given_text_is_shown():
    event = Scored(number=1, prompt="p", text="given", usage=Usage(forward_calls=1, prompt_tokens=1))
    assert '1 score    "given" (1 token read)' in explain(replace(OUTCOME, events=(event,)))


@pytest.mark.parametrize(
    ("value", "above", "drawn"),
    [
        (0.5, 0.5, "[-----|-----]"),
        (1.0, 0.5, "[-----|##---]"),
        (100.0, 0.5, "[-----|#####]"),
        (0.0, 0.5, "[#####|-----]"),
        (-6.6, -6.0, "[-----|-----]"),
        (-12.0, -6.0, "[---##|-----]"),
        (0.1, 0.0, "[-----|#####]"),
        (0.0, 0.0, "[-----|-----]"),
        (1.0, inf, "[?????|?????]"),
    ],
)
def test_gauge(value: float, above: float, drawn: str):
    assert gauge(value, above, width=10) == drawn


@pytest.mark.parametrize(
    ("short", "named"),
    [
        ("Nile", True),
        ("nile", True),
        ("THE NILE", True),
        ("Níle!", True),
        ("Nil", False),
        ("north, through Egypt", True),
        ("", False),
        ("?", False),
    ],
)
def test_a_passage_names_an_answer_at_word_boundaries(short: str, named: bool):
    assert names(PASSAGES[0], short) is named


def test_a_source_without_span_is_its_id():
    assert source(PASSAGES[1]) == "Cairo, cairo#0"
    assert source(Passage(id="7", text="x")) == "7"


def test_P3_json_holds_every_draft_decision_query_and_passage_but_no_arrays():
    plain = json.loads(to_json(OUTCOME, strategy="gated(mean-nll)"))
    assert [event["event"] for event in plain["events"]] == ["generated", "gated", "searched", "noted", "generated"]
    assert plain["strategy"] == "gated(mean-nll)"
    assert plain["events"][0]["texts"] == ["The Danube"]
    assert plain["events"][0]["prompt"] == [{"role": "user", "content": "Which river?"}]
    assert plain["events"][1]["value"] == 0.812
    assert [passage["id"] for passage in plain["events"][2]["passages"]] == ["nile#0", "cairo#0"]
    assert plain["answer"]["short"] == "Nile"
    assert plain["usage"]["completion_tokens"] == 7
    assert (plain["confidence"], plain["error"]) == (None, None)


def test_numbers_that_json_cannot_name_become_null():
    assert to_dict(replace(OUTCOME, events=(replace(GATE, value=nan, above=-inf),)))["events"][0] == {
        "event": "gated",
        "number": 2,
        "name": "mean-nll",
        "value": None,
        "above": "-inf",
        "open": True,
        "parts": {"layer 6": 0.25},
    }


def test_json_is_one_line():
    assert "\n" not in to_json(replace(OUTCOME, question="two\nlines"))


def test_a_long_question_is_shortened():
    shown = explain(replace(OUTCOME, question="why " * 5000))
    assert len(shown) < 3000
    assert "why why ..." in " ".join(shown.split())


def test_a_gate_after_the_last_search_decides_something_else():
    last = replace(GATE, number=6)
    lines = [line for line in explain(replace(OUTCOME, events=(DRAFT, GATE, SEARCH, AGAIN, last))).splitlines() if " gate " in line]
    assert [line.rpartition("  ")[2] for line in lines] == ["unsure: retrieve", "open"]


def test_no_threshold_is_minus_zero():
    assert "above 0 " in explain(replace(OUTCOME, events=(replace(GATE, above=-0.0),)))


def test_what_holds_the_answer_is_cited_and_what_was_only_read_is_not():
    shown = (Passage(id="p1", text="Nothing."), Passage(id="p2", title="Jane Austen", text="Emma."))
    outcome = replace(OUTCOME, answer=Answer(text="So: Austen.", short="Jane Austen", passages=shown))
    assert [passage.id for passage in outcome.cited] == ["p2"]
    assert to_dict(outcome)["cited"] == ["p2"]
    alone = replace(OUTCOME, answer=Answer(text="x", short="x", passages=shown[:1]))
    assert "the passage it read does not name this answer" in alone.explain()
