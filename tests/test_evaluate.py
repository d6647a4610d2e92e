"""The runner and the synchronous door."""

from __future__ import annotations

import asyncio
import contextvars
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from inward import ask, evaluate, load_strategy
from inward.errors import BadInput, UnknownName, UsageError
from inward.evals.run import Finished, answer, each
from inward.lm import BatchedLM
from inward.testing import FixedRetriever, FunctionLM, tiny_lm
from inward.trace import Generated, Outcome, current, gate
from inward.types import Answer, Passage, Sampling

LM = FunctionLM(lambda prompt: f"echo {prompt[-40:]}")


async def echo(question: str) -> Answer:
    generation = await LM.generate(question)
    return Answer(text=generation.text, short=generation.text)


async def ask_lm(question: str, *, lm: FunctionLM) -> Answer:
    generation = await lm.generate(question)
    return Answer(text=generation.text, short=generation.text)


def shorts(outcomes: list[Outcome]) -> list[str]:
    return [outcome.answer.short for outcome in outcomes]


@pytest.mark.parametrize("count", [0, 1, 2, 3, 7, 40])
@pytest.mark.parametrize("concurrency", [1, 4, 64])
def test_C4_outcomes_come_in_order_whatever_the_number_and_the_concurrency(count: int, concurrency: int):
    async def slow_first(question: str) -> Answer:
        await asyncio.sleep(0.001 * (count - int(question)))  # later questions finish first
        return Answer(text=question, short=question)

    questions = [str(number) for number in range(count)]
    assert shorts(asyncio.run(evaluate(slow_first, questions, concurrency=concurrency))) == questions


def test_each_question_has_its_own_trace():
    one, two = asyncio.run(evaluate(echo, ["first", "second"]))
    assert [event.prompt for event in one.events if isinstance(event, Generated)] == ["first"]
    assert [event.prompt for event in two.events if isinstance(event, Generated)] == ["second"]
    assert (one.question, one.usage.generate_calls, two.usage.generate_calls) == ("first", 1, 1)


def test_the_seed_and_the_question_reach_the_trace():
    seen = {}

    async def look(question: str) -> Answer:
        seen[question] = (current().seed, current().question)
        return Answer.none()

    asyncio.run(evaluate(look, ["a", "b"], seed=7))
    assert seen == {"a": (7, "a"), "b": (7, "b")}


def test_a_failing_question_is_an_outcome_and_keeps_what_had_happened():
    async def fragile(question: str) -> Answer:
        gate("fuse", 1.0, above=0.0)
        if question == "bad":
            raise RuntimeError("fuse blown")
        return Answer(text=question, short=question)

    good, bad, other = asyncio.run(evaluate(fragile, ["good", "bad", "other"]))
    assert (good.error, other.error) == (None, None)
    assert bad.error == "RuntimeError: fuse blown"
    assert (bad.answer, len(bad.gates)) == (Answer.none(), 1)


def test_an_empty_question_fails_alone():
    outcomes = asyncio.run(evaluate(echo, ["a", "  ", "b"]))
    assert [outcome.error is None for outcome in outcomes] == [True, False, True]
    assert outcomes[1].error == "BadInput: a question must be text with at least one visible character, got '  '"


def test_ctrl_c_ends_the_run():
    ended = []

    async def interrupted(question: str) -> Answer:
        try:
            signal.raise_signal(signal.SIGINT)
            await asyncio.sleep(60)
        finally:
            ended.append(question)
        return Answer.none()

    with pytest.raises(KeyboardInterrupt):
        asyncio.run(evaluate(interrupted, ["a"]))
    assert ended == ["a"]


def test_cancelling_the_run_cancels_its_questions_and_begins_no_other():
    begun, ended = [], []

    async def forever(question: str) -> Answer:
        begun.append(question)
        try:
            await asyncio.sleep(60)
        finally:
            ended.append(question)
        return Answer.none()

    async def main() -> None:
        run = asyncio.create_task(evaluate(forever, ["a", "b", "c", "d"], concurrency=2))
        await asyncio.sleep(0.01)
        run.cancel()
        with pytest.raises(asyncio.CancelledError):
            await run

    asyncio.run(main())
    assert sorted(begun) == sorted(ended) == ["a", "b"]


def test_something_cancelled_inside_a_question_is_that_questions_failure():
    async def self_cancelling(question: str) -> Answer:
        if question == "b":
            future = asyncio.get_running_loop().create_future()
            future.cancel()
            await future
        return Answer(text=question, short=question)

    outcomes = asyncio.run(evaluate(self_cancelling, ["a", "b", "c"], concurrency=1))
    assert shorts(outcomes) == ["a", "", "c"]
    assert (outcomes[1].error or "").startswith("CancelledError")


def test_questions_are_read_as_they_are_needed():
    ahead = []
    done = 0

    def questions() -> Iterator[str]:
        for number in range(1000):
            ahead.append(number - done)
            yield str(number)

    async def count(question: str) -> Answer:
        nonlocal done
        await asyncio.sleep(0)
        done += 1
        return Answer.none()

    assert len(asyncio.run(evaluate(count, questions(), concurrency=8))) == 1000
    assert max(ahead) <= 8  # a task per question at once would be 1000


def test_a_broken_iterator_ends_the_run_with_its_own_error():
    def questions() -> Iterator[str]:
        yield "a"
        raise OSError("disk gone")

    with pytest.raises(OSError, match="disk gone"):
        asyncio.run(evaluate(echo, questions()))


@pytest.mark.parametrize(("questions", "concurrency", "message"), [("text", 1, "put this one in a list"), (["a"], 0, "at least 1, got 0")])
def test_evaluate_refuses_what_means_nothing(questions: object, concurrency: int, message: str):
    with pytest.raises(UsageError, match=message):
        asyncio.run(evaluate(echo, questions, concurrency=concurrency))  # type: ignore[arg-type]


def test_a_single_question_raises_what_went_wrong():
    async def broken(question: str) -> Answer:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        asyncio.run(answer(broken, "q"))


def test_ask_takes_one_or_several():
    one = ask("first", lm=LM, strategy=ask_lm)
    several = ask(["first", "second"], lm=LM, strategy=ask_lm)
    assert isinstance(one, Outcome)
    assert [one.answer.short, *shorts(several)] == ["echo first", "echo first", "echo second"]
    assert ask([], lm=LM, strategy=ask_lm) == []


def test_ask_works_inside_a_running_event_loop_and_sees_the_callers_context():
    variable = contextvars.ContextVar("variable", default="unset")
    seen = []

    async def look(question: str, *, lm: FunctionLM) -> Answer:
        seen.append((variable.get(), threading.current_thread().name.split("_")[0]))
        return await ask_lm(question, lm=lm)

    async def notebook_cell() -> Outcome:
        variable.set("set by the caller")
        return ask("question", lm=LM, strategy=look)

    assert asyncio.run(notebook_cell()).answer.short == "echo question"
    assert seen == [("set by the caller", "inward-ask")]


@pytest.mark.parametrize("question", ["", "  \n", ["fine", ""], ["fine", None]])
def test_ask_refuses_an_empty_question_before_anything_is_loaded(question: object, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("inward.door._model", lambda name: pytest.fail("loaded a model"))
    with pytest.raises(BadInput, match="at least one visible character, got"):
        ask(question)  # type: ignore[call-overload]


def test_ask_refuses_a_wrong_strategy_or_option_before_anything_is_loaded(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("inward.door._model", lambda name: pytest.fail("loaded a model"))
    with pytest.raises(UnknownName, match="did you mean 'single-step'"):
        ask("q", strategy="single-stop")
    with pytest.raises(UnknownName, match="did you mean 'k'"):
        ask("q", strategy="single-step", kk=3)


def test_a_strategy_that_never_searches_loads_no_index(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("inward.door._index", lambda name: pytest.fail("loaded an index"))
    assert ask("q", lm=LM, strategy=ask_lm).error is None


def test_C4_one_loaded_model_serves_any_number_of_loops_and_threads_alike():
    lm, questions = tiny_lm(), [f"Question number {number}?" for number in range(6)]

    async def twice(question: str, *, lm: BatchedLM) -> Answer:
        first = await lm.generate(question, Sampling(max_tokens=12))
        second = await lm.generate(question + first.text, Sampling(max_tokens=6, temperature=1.0))
        return Answer(text=first.text, short=second.text)

    def go() -> list[Outcome]:
        return ask(questions, lm=lm, strategy=twice)

    async def notebook_cell() -> list[Outcome]:
        return go()

    def key(outcomes: list[Outcome]) -> list[object]:
        return [(o.answer, o.usage.prompt_tokens, o.usage.completion_tokens, o.error) for o in outcomes]

    alone = key([ask(question, lm=lm, strategy=twice) for question in questions])
    assert len({answer.short for answer, *_ in alone}) > 1
    assert key(go()) == alone
    assert key(asyncio.run(notebook_cell())) == alone
    with ThreadPoolExecutor(3) as pool:
        for outcomes in pool.map(lambda _: go(), range(3)):
            assert key(outcomes) == alone


def test_equal_questions_have_equal_outcomes():
    retriever = FixedRetriever([Passage(id="1", text="one")])
    one, two = ask(["same", "same"], lm=LM, retriever=retriever, strategy=ask_lm)
    assert one == two


def test_an_empty_question_in_a_list_is_named_by_its_place():
    with pytest.raises(BadInput, match=r"question 2 of 3: .*visible character"):
        ask(["fine", " ", "fine"], lm=LM, retriever=None, strategy=ask_lm)


def test_an_error_has_no_ancestor_of_the_doors_own():
    """Where there is no running loop, that is nothing that went wrong."""

    async def fragile(question: str, *, lm: FunctionLM) -> Answer:
        raise ValueError("its own")

    with pytest.raises(ValueError, match="its own") as caught:
        ask("q", lm=LM, retriever=None, strategy=fragile)
    assert caught.value.__context__ is None
    assert caught.value.__cause__ is None


def test_outcomes_are_handed_over_as_they_come_and_what_the_taker_raises_ends_the_run():
    async def turn(question: str) -> Answer:
        await asyncio.sleep(0.01 * int(question))
        return Answer(text=question, short=question)

    came: list[Finished] = []
    asyncio.run(each(turn, ["3", "1", "2"], came.append, concurrency=3))
    assert [(f.place, f.outcome.answer.short) for f in came] == [(1, "1"), (2, "2"), (0, "3")]
    assert all(f.seconds >= 0.009 * int(f.outcome.answer.short) for f in came)

    def full(_: Finished) -> None:
        raise OSError("no room")

    with pytest.raises(OSError, match="no room"):
        asyncio.run(each(turn, ["1", "500"], full))


@pytest.mark.parametrize("bad", [5, None])
def test_what_is_no_question_is_refused(bad: object):
    with pytest.raises(BadInput, match="a question is text"):
        ask(bad)


def test_R7_alone_or_four_at_once_tokens_and_decisions_are_the_same():
    lm = tiny_lm("llama")
    strategy = load_strategy("gated(mean-nll)", lm=lm, retriever=FixedRetriever([Passage(id="p", text="A passage.")]), threshold=5.4)
    asked = [f"Question {'x' * n}?" for n in (1, 9, 30, 4)]
    one = asyncio.run(evaluate(strategy, asked, concurrency=1))
    four = asyncio.run(evaluate(strategy, asked, concurrency=4))
    for a, b in zip(one, four, strict=True):
        assert [e.texts for e in a.events if isinstance(e, Generated)] == [e.texts for e in b.events if isinstance(e, Generated)]
        assert [g.open for g in a.gates] == [g.open for g in b.gates]
        assert [g.value for g in a.gates] == pytest.approx([g.value for g in b.gates], rel=1e-5)
