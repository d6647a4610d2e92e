"""Metrics of one question, on records made by hand."""

from __future__ import annotations

import msgspec
import pytest
from sklearn.metrics import ndcg_score

from inward.cli import main
from inward.evals.metrics import METRICS, Setting, measure
from inward.evals.record import GatedStep, GeneratedStep, Hit, PassageText, Record, SearchedStep, cost, record_of
from inward.evals.record import Question as Q
from inward.trace import Outcome, gate, record
from inward.types import Answer, Passage, Usage

PASSAGES = {
    "a#0": PassageText(text="Nothing of note.", title="A", document="a"),
    "b#0": PassageText(text="It flows through Paris, they say.", title="B", document="b"),
    "b#9": PassageText(text="More of it.", title="B", document="b"),
    "c": PassageText(text="Known.", title="The Seine", document="c"),
}


def hits(*ids: str) -> tuple[Hit, ...]:
    return tuple(Hit(id=id, score=1.0) for id in ids)


def made(**changes: object) -> Record:
    whole = Record(
        id="q1",
        question="Where?",
        answers=("Paris", "City of Paris"),
        supporting=("b", "The Seine"),
        short="In Paris",
        text="It is Paris.\nAnswer: In Paris",
        flags=(),
        used=("b#0", "c"),
        steps=(
            GeneratedStep(number=1, texts=("Lyon",), finishes=("eos",), usage={"generate_calls": 1}),
            GatedStep(number=2, name="mean-nll", value=0.9, above=0.5, open=True),
            SearchedStep(number=3, query="Where?", hits=hits("a#0", "b#0", "b#9"), usage={"search_calls": 1}),
            SearchedStep(number=4, query="Seine?", hits=hits("c"), usage={"search_calls": 1}),
        ),
        passages=PASSAGES,
        usage={"generate_calls": 2, "forward_calls": 1, "search_calls": 2, "prompt_tokens": 100, "cached_tokens": 40,
               "completion_tokens": 9, "sequences": 2, "device_seconds": 0.25},
        seconds=3.5,
    )  # fmt: skip
    return msgspec.structs.replace(whole, **changes)


def test_everything_by_hand():
    found = measure(made())
    assert found == {
        "em": 0.0, "f1": pytest.approx(2 / 3), "acc": 1.0, "acc_text": 1.0, "R@5": 0.5, "R@all": 1.0, "R@used": 1.0, "RR@5": 0.5,
        "nDCG@5": pytest.approx(0.6309297 / (1 + 0.6309297)), "answer@5": 1.0, "retrieval": 1.0, "failed": 0.0, "calls": 3, "searches": 2.0,
        "classifier_calls": 0.0, "sequences": 2.0, "prompt_tokens": 100.0, "cached_tokens": 40.0, "generated_tokens": 9.0,
        "device_seconds": 0.25, "seconds": 3.5,
    }  # fmt: skip


@pytest.mark.parametrize("relevant", [[0, 1, 0, 1, 0], [1, 0, 0, 0, 0], [0, 0, 0, 0, 1], [1, 1, 1, 1, 1]])
def test_ndcg_is_that_of_scikit_learn(relevant: list[int]):
    hits = tuple(Hit(id=f"p{n}", score=10.0 - n) for n in range(5))
    passages = {hit.id: PassageText(text="t") for hit in hits}
    gold = tuple(f"p{n}" for n, r in enumerate(relevant) if r)
    one = made(steps=(SearchedStep(number=1, query="q", hits=hits, usage={}),), passages=passages, supporting=gold, used=())
    assert measure(one)["nDCG@5"] == pytest.approx(ndcg_score([relevant], [[hit.score for hit in hits]], k=5))


def test_a_failed_question_is_wrong_and_listed():
    found = measure(made(error="RuntimeError: boom", short="Paris"))
    assert (found["em"], found["acc"], found["failed"]) == (0.0, 0.0, 1.0)


def test_what_cannot_be_measured_is_none_and_not_zero():
    found = measure(made(steps=(), used=(), supporting=(), answers=()))
    assert [name for name, value in found.items() if value is None] == [
        "em", "f1", "acc", "acc_text", "R@5", "R@all", "R@used", "RR@5", "nDCG@5", "answer@5",
    ]  # fmt: skip
    assert found["retrieval"] == 0.0


def test_S5_a_passage_with_the_questions_own_id_can_be_left_out():
    one = made(id="b", supporting=("b", "c"))
    assert measure(one)["R@5"] == 0.5
    assert measure(one, Setting(ignore_identical_ids=True))["R@5"] == 0.0
    assert measure(one, Setting(ignore_identical_ids=True))["answer@5"] == 0.0


def test_the_answer_line_and_the_whole_text_are_two_things():
    found = measure(made(short="Lyon", text="Some say Paris.\nAnswer: Lyon"))
    assert (found["acc"], found["acc_text"]) == (0.0, 1.0)


def test_a_record_holds_what_happened_and_survives_the_file():
    with record("Where?", seed=1) as trace:
        gate("fuse", float("nan"), above=float("-inf"), parts={"layer": 0.5})
        passages = (Passage(id="b#0", title="B", text="Paris.", score=2.5, metadata={"doc": "b", "start": 0, "end": 6}),)
    outcome = Outcome(
        question="Where?", answer=Answer(text="t", short="s", passages=passages), events=trace.events, usage=Usage(search_calls=1)
    )
    question = Q(id="1", question="Where?", answers=("Paris",), metadata={"hops": 2, "long": "x" * 500, "list": [1]})
    kept = record_of(question, outcome, 0.5)
    assert msgspec.json.decode(msgspec.json.encode(kept), type=Record) == kept
    assert (kept.gates[0].value, kept.gates[0].above, kept.gates[0].open, kept.gates[0].parts) == (None, "-inf", True, {"layer": 0.5})
    assert kept.passages["b#0"].document == "b"
    assert kept.metadata == {"hops": 2}
    assert cost(kept.usage) == Usage(search_calls=1)


def test_S9_every_metric_has_a_definition_and_an_example(capsys: pytest.CaptureFixture[str]):
    assert main(["metrics", "list"]) == 0
    out = capsys.readouterr().out
    for metric in METRICS.values():
        assert metric.name in out
        assert metric.example in out
    assert main(["metrics", "list", "--json"]) == 0
    rows = [msgspec.json.decode(line) for line in capsys.readouterr().out.splitlines()]
    assert {"em", "AUROC", "consistency"} <= {row["name"] for row in rows}


def test_one_passage_under_two_gold_names_is_a_perfect_ranking():
    one = made(supporting=("c", "The Seine"), steps=(SearchedStep(number=1, query="q", hits=hits("c"), usage={}),), used=())
    assert (measure(one)["R@5"], measure(one)["nDCG@5"]) == (1.0, 1.0)
    late = made(supporting=("c", "The Seine"), steps=(SearchedStep(number=1, query="q", hits=hits("a#0", "c"), usage={}),), used=())
    assert measure(late)["nDCG@5"] == pytest.approx(0.6309297)


def test_a_passage_without_title_is_no_gold_passage_without_name():
    plain = {"zz": PassageText(text="irrelevant")}
    one = made(supporting=("",), passages=plain, steps=(SearchedStep(number=1, query="q", hits=hits("zz"), usage={}),), used=())
    assert measure(one)["R@5"] == 0.0
