"""The public doubles behave like what they stand for."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

from inward.errors import CaptureMissing, ContextLengthExceeded
from inward.protocols import LM, Retriever
from inward.testing import FixedRetriever, FunctionLM, ScriptedSignal, words
from inward.trace import Generated, Scored, Searched, record
from inward.types import Capture, Message, Passage, Sampling


def test_the_doubles_satisfy_the_protocols():
    assert isinstance(FunctionLM(lambda _: "x"), LM)
    assert isinstance(FixedRetriever(), Retriever)


@pytest.mark.parametrize("text", ["", "a", " a  b\n", "\n\n", "one two"])
def test_words_joined_are_the_text(text: str):
    assert "".join(words(text)) == text


def test_function_lm_leaves_a_trace_and_counts():
    lm = FunctionLM(lambda prompt: prompt.upper())
    with record("q") as trace:
        generation = asyncio.run(lm.generate("tell me more"))
    assert generation.text == "TELL ME MORE"
    [event] = trace.events
    assert isinstance(event, Generated)
    assert (event.texts, event.finishes) == (("TELL ME MORE",), ("eos",))
    assert (trace.usage.generate_calls, trace.usage.prompt_tokens, trace.usage.completion_tokens) == (1, 3, 4)


@pytest.mark.parametrize(
    ("sampling", "text", "finish"),
    [
        (Sampling(), "one two. three", "eos"),
        (Sampling(stop=(".",)), "one two", "stop"),
        (Sampling(stop=("three", " two")), "one", "stop"),
        (Sampling(max_tokens=2), "one two.", "length"),
    ],
)
def test_function_lm_stops_where_a_model_would(sampling: Sampling, text: str, finish: str):
    completion = asyncio.run(FunctionLM(lambda _: "one two. three").generate("p", sampling)).completions[0]
    assert (completion.text, completion.finish) == (text, finish)
    assert "".join(completion.text[start:end] for start, end in completion.spans) == completion.text


def test_function_lm_gives_samples_scores_and_states_when_asked():
    lm = FunctionLM(
        lambda _: ["a b", "c"],
        scores={"logprobs": lambda text: [-1.0, -2.0], "entropies": lambda text: 0.5},
        states=lambda text, capture: np.full((len(capture.layers), 4), len(text), np.float32),
    )
    asked = Sampling(n=2, token_scores=("logprobs", "entropies"))
    first, second = asyncio.run(lm.generate("p", asked, capture=Capture(layers=(1, 2)))).completions
    assert first.score("logprobs").tolist() == [-1.0, -2.0]
    assert second.score("logprobs").tolist() == [-1.0]
    assert second.score("entropies").tolist() == [0.5]
    assert first.states is not None
    assert first.states.shape == (2, 4)
    assert lm.supports >= {"logprobs", "states", "samples"}


def test_function_lm_gives_nothing_that_was_not_asked_for():
    lm = FunctionLM(lambda _: "a", scores={"logprobs": lambda text: -1.0})
    generation = asyncio.run(lm.generate("p"))
    with pytest.raises(CaptureMissing):
        generation.completions[0].score("logprobs")
    with pytest.raises(CaptureMissing):
        generation.states  # noqa: B018


def test_function_lm_scores_without_generating():
    lm = FunctionLM(lambda _: pytest.fail("must not be asked"), scores={"logprobs": lambda text: -0.25})
    with record("q") as trace:
        completion = asyncio.run(lm.score("p q", "one two", sampling=Sampling(token_scores=("logprobs",))))
    assert completion.score("logprobs").tolist() == [-0.25, -0.25]
    assert [type(event) for event in trace.events] == [Scored]
    assert (trace.usage.generate_calls, trace.usage.forward_calls, trace.usage.prompt_tokens) == (0, 1, 4)


def test_function_lm_has_a_context():
    lm, prompt = FunctionLM(lambda _: "x", context=4), (Message("system", "a b"), Message("user", "c"))
    assert asyncio.run(lm.generate(prompt, Sampling(max_tokens=1))).text == "x"
    with pytest.raises(ContextLengthExceeded, match="need 5 words; there is room for 4"):
        asyncio.run(lm.generate(prompt, Sampling(max_tokens=2)))


def test_scripted_signal_repeats_its_last_value():
    signal, generation = ScriptedSignal(3.0, 1.0), asyncio.run(FunctionLM(lambda _: "x").generate("p"))
    assert [asyncio.run(signal(generation)).value for _ in range(3)] == [3.0, 1.0, 1.0]


def test_fixed_retriever_filters_before_it_cuts():
    passages = [Passage(id=str(i), text=f"text {i}", metadata={"tenant": "ab"[i % 2]}) for i in range(4)]
    with record("q") as trace:
        found = asyncio.run(FixedRetriever(passages).search("x", k=2, where={"tenant": ["b"]}))
    assert [p.id for p in found] == ["1", "3"]
    [event] = trace.events
    assert isinstance(event, Searched)
    assert (event.query, event.usage.search_calls) == ("x", 1)


def test_fixed_retriever_may_answer_by_query():
    retriever = FixedRetriever({"a": [Passage(id="1", text="one")]})
    assert [p.id for p in asyncio.run(retriever.search("a"))] == ["1"]
    assert asyncio.run(retriever.search("b")) == []
