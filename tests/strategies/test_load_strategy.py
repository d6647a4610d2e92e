"""Binding a strategy: by name, by package, by file, by function; and everything that is refused at the door."""

from __future__ import annotations

import asyncio
from importlib.metadata import EntryPoint
from math import inf
from pathlib import Path
from typing import Literal

import pytest

from inward.errors import BadInput, UnknownName, Unsupported, UsageError
from inward.protocols import LM, Retriever, Signal
from inward.signals import load_signal
from inward.strategies import STRATEGIES, load_strategy, needs
from inward.strategies.listing import rows
from inward.testing import FixedRetriever, FunctionLM, ScriptedSignal
from inward.types import Answer, Capture
from knowing import KNOWS, knowing_prober

LM_ = FunctionLM(lambda _: "x", scores={"logprobs": lambda text: -0.1, "entropies": lambda text: 0.1})
BARE = FunctionLM(lambda _: "x")
INDEX = FixedRetriever()


async def parrot(question: str, *, lm: LM, times: int = 2, style: Literal["plain", "loud"] = "plain", factor: float = 1.0) -> Answer:
    """Say it again."""
    text = question * times
    return Answer(text=text, short=text.upper() if style == "loud" else text)


def test_every_name_of_the_table_loads():
    lm = FunctionLM(str.upper, scores={"logprobs": lambda _: -1.0, "entropies": lambda _: 1.0}, states=lambda *_: KNOWS)
    more = {"gated": {"threshold": 0.5}, "probing-rag": {"prober": knowing_prober(), "threshold": 0.5}}
    for name in STRATEGIES:
        bound = load_strategy(name, lm=lm, retriever=INDEX, **more.get(name, {}))
        assert bound.name.startswith(name)


def test_resolved_options_are_plain_and_complete():
    bound = load_strategy("gated", lm=LM_, retriever=INDEX, threshold=1, signal="max-entropy")
    assert bound.name == "gated(max-entropy)"
    assert {**bound.options, "prompt": "..."} == {
        "signal": "max-entropy",
        "threshold": 1.0,
        "k": 5,
        "max_retrievals": 1,
        "where": None,
        "prompt": "...",
    }
    assert isinstance(bound.options["threshold"], float)
    assert isinstance(bound.options["prompt"], str)
    assert bound.options["prompt"]
    assert bound.needs == {"logprobs"}


def test_a_signal_in_brackets_is_the_option_signal():
    short = load_strategy("gated(max-nll)", lm=LM_, retriever=INDEX, threshold=0.5)
    long = load_strategy("gated", signal="max-nll", lm=LM_, retriever=INDEX, threshold=0.5)
    assert (short.name, short.options, short.needs) == (long.name, long.options, long.needs)


def test_a_signal_may_be_an_object():
    bound = load_strategy("gated", lm=BARE, retriever=INDEX, signal=ScriptedSignal(0.0), threshold=0)
    assert (bound.name, bound.needs) == ("gated(scripted)", frozenset())


@pytest.mark.parametrize(
    ("name", "options", "kind", "message"),
    [
        ("single-stop", {}, UnknownName, "unknown strategy 'single-stop'; did you mean 'single-step'"),
        ("gated(mean-nil)", {"threshold": 1.0}, UnknownName, "unknown signal 'mean-nil'; did you mean 'mean-nll'"),
        ("gated", {"treshold": 1.0}, UnknownName, "unknown option of `gated` 'treshold'; did you mean 'threshold'"),
        ("no-retrieval", {"threshold": 1.0}, UnknownName, "unknown option of `no-retrieval` 'threshold'"),
        ("gated", {}, UsageError, r"`gated` needs threshold \(float, no default\): pass threshold=.*--threshold"),
        ("gated", {"threshold": "high"}, UsageError, r"threshold of `gated` must be float, got 'high'"),
        ("gated", {"threshold": float("nan")}, UsageError, "threshold of `gated` must be a number, got nan"),
        ("gated", {"threshold": True}, UsageError, "threshold of `gated` must be float, got True"),
        ("single-step", {"k": 0}, UsageError, "k of `single-step` must be at least 1, got 0"),
        ("single-step", {"k": 2.5}, UsageError, "k of `single-step` must be int, got 2.5"),
        ("gated", {"threshold": 1.0, "max_retrievals": -1}, UsageError, "max_retrievals of `gated` must be at least 0, got -1"),
    ],
)
def test_R3_wrong_names_and_values_are_refused_with_the_remedy(name: str, options: dict, kind: type, message: str):
    with pytest.raises(kind, match=message):
        load_strategy(name, lm=LM_, retriever=INDEX, **options)


@pytest.mark.parametrize("threshold", [-inf, 0, inf])
def test_thresholds_that_always_and_never_retrieve_are_fine(threshold: float):
    assert load_strategy("gated", lm=LM_, retriever=INDEX, threshold=threshold).options["threshold"] == threshold


def test_P9_a_missing_capability_is_named_before_the_first_call():
    def asked(prompt: str) -> str:
        pytest.fail("the model was called")

    with pytest.raises(
        Unsupported, match=r"`gated\(mean-nll\)` needs logprobs; backend 'FunctionLM' has none. It offers: chat, samples, score"
    ):
        load_strategy("gated", lm=FunctionLM(asked), retriever=INDEX, threshold=1.0)


def test_needs_follow_the_signal():
    class States(ScriptedSignal):
        capture = Capture(layers=(1,))

    class Attention(ScriptedSignal):
        capture = Capture(layers=(), attention=1)

    for signal, missing in ((States(0.0), "states"), (Attention(0.0), "attention")):
        with pytest.raises(Unsupported, match=f"needs {missing}"):
            load_strategy("gated", lm=LM_, retriever=INDEX, threshold=1.0, signal=signal)


def test_a_strategy_may_declare_needs_of_its_own():
    @needs("attention", "states")
    async def looker(question: str, *, lm: LM) -> Answer:
        return Answer.none()

    with pytest.raises(Unsupported, match="`looker` needs attention, states"):
        load_strategy(looker, lm=LM_)


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({"lm": LM_}, "`single-step` searches: pass retriever="),
        ({"lm": LM_, "retriever": "demo"}, "retriever must have an async `search`.*got 'demo'"),
        ({"lm": "demo", "retriever": INDEX}, "lm must be a loaded model.*got 'demo'"),
    ],
)
def test_a_missing_or_wrong_model_or_index_is_refused(parts: dict, message: str):
    with pytest.raises(UsageError, match=message):
        load_strategy("single-step", **parts)


def test_a_function_is_a_strategy():
    bound = load_strategy(parrot, lm=LM_, style="loud")
    assert (bound.name, bound.options) == ("parrot", {"times": 2, "style": "loud", "factor": 1.0})
    assert asyncio.run(bound("a")).short == "AA"


@pytest.mark.parametrize(
    ("options", "shown"), [({"style": "quiet"}, "style of `parrot`.*quiet"), ({"factor": "2"}, "factor of `parrot` must be float")]
)
def test_the_signature_is_the_schema(options: dict, shown: str):
    with pytest.raises(UsageError, match=shown):
        load_strategy(parrot, lm=LM_, **options)


@pytest.mark.parametrize("question", ["", " \n\t", None])
def test_an_empty_question_is_refused_with_its_value(question: str):
    with pytest.raises(BadInput, match="got " + repr(question).replace("\\", "\\\\")):
        asyncio.run(load_strategy(parrot, lm=LM_)(question))


def test_a_question_that_is_no_unicode_is_refused_with_the_place():
    with pytest.raises(BadInput, match="character 1 is not"):
        asyncio.run(load_strategy(parrot, lm=LM_)("a\udcff"))


def test_loose_arguments_and_plain_functions_are_refused():
    async def loose(question: str, k: int = 3) -> Answer:
        return Answer.none()

    with pytest.raises(UsageError, match=r"keyword-only arguments after it.*\['k'\]"):
        load_strategy(loose, lm=LM_)


# --- files ---

MINE = """
from inward.types import Answer

async def mine(question: str, *, lm, retriever, k: int = 1) -> Answer:
    found = await retriever.search(question, k)
    return Answer(text=question, short=f"{len(found)} found")

def not_async(question: str) -> str:
    return question
"""


def test_a_strategy_comes_from_a_file(tmp_path: Path):
    path = tmp_path / "my strategies.py"
    path.write_text(MINE, encoding="utf-8")
    bound = load_strategy(f"{path}:mine", lm=LM_, retriever=INDEX, k=2)
    assert bound.options == {"k": 2}
    assert asyncio.run(bound("q")).short == "0 found"


@pytest.mark.parametrize(
    ("source", "name", "kind", "message"),
    [
        (MINE, "mime", UnknownName, "unknown function in mine.py 'mime'; did you mean 'mine'"),
        (MINE, "not_async", UsageError, "must be an `async def`"),
        (
            "import nothing_of_that_name",
            "mine",
            UsageError,
            "cannot be imported: ModuleNotFoundError: No module named 'nothing_of_that_name'",
        ),
        ("async def mine(:", "mine", UsageError, "cannot be imported: SyntaxError"),
        (None, "mine", UsageError, "there is no file '.*mine.py'"),
    ],
)
def test_a_file_that_cannot_be_used_says_why(tmp_path: Path, source: str | None, name: str, kind: type, message: str):
    path = tmp_path / "mine.py"
    if source is not None:
        path.write_text(source, encoding="utf-8")
    with pytest.raises(kind, match=message):
        load_strategy(f"{path}:{name}", lm=LM_, retriever=INDEX)


# --- installed packages ---


def announce(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    point = EntryPoint("theirs", value, "inward.strategies")
    monkeypatch.setattr("inward.strategies.entry_points", lambda group: [point] if group == "inward.strategies" else [])


def test_an_installed_package_adds_a_strategy(monkeypatch: pytest.MonkeyPatch):
    announce(monkeypatch, "inward.strategies.baselines:no_retrieval")
    assert load_strategy("theirs", lm=LM_).name == "theirs"


def test_N2_a_broken_package_says_what_the_import_really_said(monkeypatch: pytest.MonkeyPatch):
    announce(monkeypatch, "nothing_of_that_name:strategy")
    with pytest.raises(UsageError, match=r"'theirs'.*'nothing_of_that_name:strategy', but: No module named 'nothing_of_that_name'"):
        load_strategy("theirs", lm=LM_)


# --- the listing ---


def test_the_listing_names_every_strategy_with_its_options():
    listed = {row.name: row for row in rows()}
    assert list(listed) == sorted(STRATEGIES)
    options = {option.name: option for option in listed["gated"].options}
    assert options["threshold"].shown_default == "required"
    assert options["max_retrievals"].shown_default == "default 1"
    assert (options["threshold"].flag, options["max_retrievals"].flag) == ("--threshold", "--set max_retrievals=...")
    assert (options["signal"].type, options["prompt"].type) == ("name of a signal", "prompt file")
    assert listed["gated"].summary.endswith(".")


def test_signals_are_protocol_members():
    signal: Signal = load_signal("mean-nll")
    retriever: Retriever = INDEX
    assert (signal.name, retriever) == ("mean-nll", INDEX)


def test_the_bundled_model_has_its_threshold_also_when_it_is_loaded():
    lm = FunctionLM(lambda _: "x", scores={"logprobs": lambda text: -0.1})
    lm.name = "demo"
    assert load_strategy("gated(mean-nll)", lm=lm, retriever=INDEX).options["threshold"] == 0.47
    with pytest.raises(UsageError, match=r"needs threshold .*--set gated\.threshold=\.\.\. of `inward eval run`"):
        load_strategy("gated(mean-nll)", lm=LM_, retriever=INDEX)
