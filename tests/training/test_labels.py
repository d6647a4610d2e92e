"""When a draft is right: every rule, on short answers and on sentence-long ones, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from inward.errors import BadInput, UnknownName, UsageError
from inward.evals.record import Question
from inward.training.drafts import DraftRecord
from inward.training.labels import NAMES, check_answers, load_label


def draft(short: str, before: str = "", mode: str = "without") -> DraftRecord:
    return DraftRecord(mode=mode, text=f"{before}\nAnswer: {short}", short=short, finish="stop", tokens=5)


def question(*answers: str, **metadata: object) -> Question:
    return Question(id="q", question="?", answers=answers, metadata=metadata)


@pytest.mark.parametrize(
    ("rule", "made", "asked", "right"),
    [
        ("answer", draft("It is Paris."), question("Paris"), True),
        ("answer", draft("Lyon", "Paris is large."), question("Paris"), False),
        ("text", draft("Lyon", "Paris is large."), question("Paris"), True),
        ("answer", draft("unknown"), question("no"), False),
        ("em", draft("the Paris!"), question("Paris"), True),
        ("em", draft("It is Paris."), question("Paris"), False),
        ("f1>=0.5", draft("Paris in France"), question("Paris"), True),
        ("f1>=0.51", draft("Paris in France"), question("Paris"), False),
        ("f1>=0.5", draft("It rose because ice on land melted"), question("Ice on land melted, so the sea rose"), True),
        ("f1>=0.5", draft("It rose because the moon came near"), question("Ice on land melted, so the sea rose"), False),
        ("em", draft("It rose because ice on land melted"), question("Ice on land melted, so the sea rose"), False),
        ("column", draft("x"), question(right_without=True, right_with=False), True),
        ("column", draft("x", mode="with"), question(right_without=True, right_with=False), False),
        ("column", draft("x", mode="with"), question(right_without=1), None),
    ],
)
def test_each_rule_says_what_its_name_says(rule: str, made: DraftRecord, asked: Question, right: bool | None):
    assert load_label(rule).of(made, asked) is right


def test_a_function_of_the_users_own(tmp_path: Path):
    file = tmp_path / "judge.py"
    file.write_text("def judge(draft, question):\n    return None if not draft.short else draft.short.isupper()\n")
    label = load_label(f"{file}:judge")
    assert [label.of(draft(said), question()) for said in ("YES", "yes", "")] == [True, False, None]
    file.write_text("def judge(draft, question):\n    return 'maybe'\n")
    with pytest.raises(UsageError, match="must return True, False or None, got 'maybe'"):
        load_label(f"{file}:judge").of(draft("x"), question())
    with pytest.raises(UnknownName, match="jugde"):
        load_label(f"{file}:jugde")
    with pytest.raises(UsageError, match="no file"):
        load_label("nowhere.py:judge")


def test_what_cannot_be_judged_is_refused():
    with pytest.raises(UnknownName, match="answr"):
        load_label("answr")
    for bad in ("f1>=0", "f1>=1.5", "f1>=.", "f1>=0.5.5"):
        with pytest.raises((UsageError, UnknownName)):
            load_label(bad)
    with pytest.raises(BadInput, match=r"2 of 3 questions have none, such as 'q'"):
        check_answers(load_label("answer"), [question(), question("x"), question()])
    check_answers(load_label("column"), [question()])
    with pytest.raises(BadInput, match="right_without must be true or false, got 'yes'"):
        load_label("column").of(draft("x"), question(right_without="yes"))
    assert set(NAMES) == {"answer", "text", "em", "f1>=T", "column", "file.py:function"}
