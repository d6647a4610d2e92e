"""Never retrieve, always retrieve once: the traces, then the bundled model."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from inward.prompts import PromptTemplate
from inward.strategies import load_strategy
from inward.testing import FixedRetriever, FunctionLM, prompt_text
from inward.trace import Generated, Outcome
from inward.types import Passage
from knowing import knowing_prober, states_of


def prompts(outcome: Outcome) -> list[str]:
    return [prompt_text(event.prompt) for event in outcome.events if isinstance(event, Generated)]


def test_no_retrieval_generates_once(say: Callable, run: Callable, shape: Callable):
    outcome = run(load_strategy("no-retrieval", lm=FunctionLM(lambda _: say("Lyon"))))
    assert shape(outcome) == ["Generated"]
    assert (outcome.answer.short, outcome.answer.passages, outcome.usage.search_calls) == ("Lyon", (), 0)
    assert "What is the capital of France?" in prompts(outcome)[0]


def test_single_step_searches_once_with_the_question_and_answers_from_what_it_found(
    say: Callable, run: Callable, shape: Callable, index: FixedRetriever, passages: tuple[Passage, ...]
):
    lm = FunctionLM(lambda prompt: say("Paris" if "Zymurgia" in prompt else "Lyon"))
    outcome = run(load_strategy("single-step", lm=lm, retriever=index))
    assert shape(outcome) == ["Searched", "Generated"]
    assert (outcome.answer.short, outcome.answer.passages) == ("Paris", passages)
    assert outcome.searches[0].query == "What is the capital of France?"
    assert (outcome.usage.generate_calls, outcome.usage.search_calls) == (1, 1)


def test_k_is_handed_to_the_search(say: Callable, run: Callable, index: FixedRetriever):
    outcome = run(load_strategy("single-step", lm=FunctionLM(lambda _: say("x")), retriever=index, k=1))
    assert [passage.id for passage in outcome.answer.passages] == ["paris"]


def test_an_empty_search_leaves_the_model_alone(say: Callable, run: Callable, shape: Callable):
    outcome = run(load_strategy("single-step", lm=FunctionLM(lambda _: say("Lyon")), retriever=FixedRetriever()))
    assert shape(outcome) == ["Searched", "Generated"]
    assert outcome.answer.passages == ()


# --- what every draft does ---


def test_a_text_without_cue_is_continued_once_from_the_cue_and_that_is_counted(run: Callable, shape: Callable):
    begun = PromptTemplate.load().forced("It is a large city.")
    lm = FunctionLM(lambda prompt: " Paris." if prompt.endswith(begun) else "It is a large city.")
    outcome = run(load_strategy("no-retrieval", lm=lm))
    assert shape(outcome) == ["Generated", "Generated"]
    assert (outcome.answer.short, outcome.usage.generate_calls) == ("Paris", 2)
    assert "no_marker" not in outcome.answer.flags
    assert prompts(outcome)[1].startswith(prompts(outcome)[0].rstrip())


def test_P1_where_even_that_yields_nothing_the_last_line_stands_and_is_flagged(run: Callable, shape: Callable):
    cue = PromptTemplate.load().cue
    lm = FunctionLM(lambda prompt: "" if prompt.rstrip().endswith(cue) else "It is a large city.\nParis, I believe.")
    outcome = run(load_strategy("no-retrieval", lm=lm))
    assert shape(outcome) == ["Generated", "Generated"]
    assert (outcome.answer.short, outcome.answer.flags) == ("Paris, I believe", ("no_marker",))


def test_N7_passages_that_do_not_fit_are_dropped_from_the_lowest_rank_and_the_trace_says_how_many(
    say: Callable, run: Callable, shape: Callable
):
    template = PromptTemplate.load()
    many = [Passage(id=str(i), title=f"Title {i}", text=f"marker{i} " * 30) for i in range(50)]
    bare = FunctionLM(lambda _: "").count(template.build("Who?", (), ""))
    lm = FunctionLM(lambda _: say("x"), context=bare + template.max_tokens + 120)
    outcome = run(load_strategy("single-step", lm=lm, retriever=FixedRetriever(many), k=50), "Who?")
    kept = [passage.id for passage in outcome.answer.passages]
    assert kept == [str(i) for i in range(len(kept))]
    assert 0 < len(kept) < 5
    [note] = [event for event in outcome.events if type(event).__name__ == "Noted"]
    assert str(50 - len(kept)) in note.detail
    assert "Who?" in prompts(outcome)[0]


def test_N7_a_question_that_alone_does_not_fit_is_an_error(run: Callable, index: FixedRetriever):
    from inward.errors import ContextLengthExceeded

    with pytest.raises(ContextLengthExceeded):
        run(load_strategy("single-step", lm=FunctionLM(lambda _: "x", context=40), retriever=index), "word " * 100)


@pytest.mark.parametrize("name", ["single-step", "gated", "probing-rag"])
def test_every_strategy_that_searches_takes_a_filter(name: str, say: Callable, run: Callable):
    shown = [
        Passage(id="a", text="Zymurgia is in Paris.", metadata={"tenant": "a"}),
        Passage(id="b", text="Zymurgia is in Rome.", metadata={"tenant": "b"}),
    ]
    lm = FunctionLM(lambda prompt: say("Lyon"), scores={"logprobs": lambda text: -2.0}, states=states_of)
    more = {"gated": {"threshold": 0.5}, "probing-rag": {"prober": knowing_prober(), "threshold": 0.0}}.get(name, {})
    outcome = run(load_strategy(name, lm=lm, retriever=FixedRetriever(shown), where={"tenant": "b"}, **more))
    assert [passage.id for passage in outcome.answer.passages] == ["b"]
