"""Prompt files, the prompts they make, and the answers read out of generated text."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inward.errors import BadInput, ContextLengthExceeded, UnknownName, UsageError
from inward.lm.encode import plain_text
from inward.prompts import Demonstration, PromptTemplate, fit
from inward.testing import FunctionLM
from inward.trace import Noted, record
from inward.types import Message, Passage

DEFAULT = PromptTemplate.load()
PARIS = Passage(id="paris", title="Paris", text="Paris is the capital\nof France.")
UNTITLED = Passage(id="x", text="No title here.")


def file(tmp_path: Path, content: str) -> Path:
    path = tmp_path / "my.toml"
    path.write_text(content, encoding="utf-8")
    return path


# --- prompts ---


def test_the_bundled_prompt_is_four_shot_and_ends_with_an_open_rationale():
    messages = DEFAULT.build("Who wrote Emma?")
    assert [message.role for message in messages] == ["system", *["user", "assistant"] * 5]
    assert messages[1].content.startswith("Question: ")
    assert messages[2].content.startswith("Rationale: ")
    assert "\nAnswer: " in messages[2].content
    assert messages[-2:] == (Message("user", "Question: Who wrote Emma?"), Message("assistant", "Rationale:"))


def test_passages_stand_between_demonstrations_and_question_one_on_a_line():
    messages = DEFAULT.build("Who?", [PARIS, UNTITLED])
    assert messages[-2].content == "Passages:\n[1] (Paris) Paris is the capital of France.\n[2] No title here.\n\nQuestion: Who?"


def test_demonstrations_are_the_same_with_and_without_passages():
    assert DEFAULT.build("Who?")[:-2] == DEFAULT.build("What?", [PARIS])[:-2]


def test_a_draft_is_continued():
    assert DEFAULT.build("Who?", (), " It is")[-1].content == "Rationale: It is"
    assert DEFAULT.build("Who?", (), "It is")[-1].content == "Rationale: It is"
    assert DEFAULT.build("Who?", (), DEFAULT.forced(" It is a city. "))[-1].content == "Rationale: It is a city.\nAnswer:"


def test_braces_and_format_fields_in_passages_are_text():
    tricky = Passage(id="t", title="{number.__class__}", text="{text} {0} {} }{")
    assert DEFAULT.build("Who {text}?", [tricky])[-2].content.startswith("Passages:\n[1] ({number.__class__}) {text} {0} {} }{\n")


@pytest.mark.parametrize("question", ["", "   ", "\n\t"])
def test_N7_a_blank_question_is_bad_input(question: str):
    with pytest.raises(BadInput, match="the question is empty"):
        DEFAULT.build(question)
    with pytest.raises(BadInput, match="the question is empty"):
        fit(DEFAULT, question, (), FunctionLM(lambda _: ""), 10)


def test_zero_shot_and_answers_without_reasoning_are_allowed(tmp_path: Path):
    template = PromptTemplate.load(file(tmp_path, 'rationale = ""\nquestion = "Q:"\nanswer = "A:"\nmax_tokens = 20'))
    assert template.build("Who?") == (Message("user", "Q: Who?"), Message("assistant", "A:"))
    assert template.parse(" Jane Austen.\nShe was English.").short == "Jane Austen"
    assert template.parse(" Jane Austen.").flags == ()
    assert template.parse("").flags == ("truncated",)
    direct = PromptTemplate(rationale="", demonstrations=(Demonstration(question="2 + 2?", answer="4", rationale="unused"),))
    assert plain_text(direct.build("3 + 3?")) == "Question: 2 + 2?\nAnswer: 4\n\nQuestion: 3 + 3?\nAnswer:"


# --- prompt files ---


def test_a_misspelt_key_is_named_with_what_was_meant(tmp_path: Path):
    with pytest.raises(UnknownName, match=r"my\.toml' 'max_token'; did you mean 'max_tokens'"):
        PromptTemplate.load(file(tmp_path, "max_token = 3"))
    with pytest.raises(UnknownName, match=r"of a demonstration in .* 'rational'; did you mean 'rationale'"):
        PromptTemplate.load(file(tmp_path, '[[demonstrations]]\nquestion = "a"\nanswer = "b"\nrational = "c"'))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("max_tokens = 'many'", r"my\.toml'.*Expected `int`, got `str` - at `\$\.max_tokens`"),
        ("max_tokens = 0", "max_tokens of a prompt must be at least 1, got 0"),
        ("stop = ['']", "stop of a prompt must be text, not empty"),
        ("answer = ' '", "answer of a prompt must be text, not empty, got ' '"),
        ("[[demonstrations]]\nquestion = 'a'", "missing required field `answer`"),
        ("demonstrations = 3", "Expected `array`, got `int`"),
        ("passage = '{nummer} {text}'", r"names \['nummer'\]; it may use \{number\}, \{title\} and \{text\}"),
        ("passage = '[{number}]'", r"must show \{text\}"),
        ("passage = '{text'", "is no format"),
        ("markers = ['(']", "which is no regular expression"),
        ("max_tokens = ", "is no TOML"),
    ],
)
def test_a_prompt_file_that_cannot_be_used_is_refused_when_it_is_loaded(tmp_path: Path, content: str, message: str):
    with pytest.raises(UsageError, match=message):
        PromptTemplate.load(file(tmp_path, content))


def test_a_prompt_file_that_is_not_there_is_named(tmp_path: Path):
    with pytest.raises(UsageError, match=r"prompt file '.*nowhere\.toml' cannot be read"):
        PromptTemplate.load(tmp_path / "nowhere.toml")


def test_S7_a_prompt_file_of_ones_own_needs_nothing_but_what_differs(tmp_path: Path):
    template = PromptTemplate.load(
        str(file(tmp_path, '# mine\nsystem = "Réponds brièvement."\nquestion = "Question :"\nanswer = "Réponse :"'))
    )
    assert template.build("Qui ?")[0] == Message("system", "Réponds brièvement.")
    assert template.parse(" Elle écrit. Réponse : George Sand.").short == "George Sand"
    assert template.cue == "Réponse :"


def test_the_fingerprint_is_of_the_content(tmp_path: Path):
    first = PromptTemplate.load(file(tmp_path, 'system = "a" # comment\nmax_tokens = 9')).fingerprint
    assert PromptTemplate.load(file(tmp_path, 'max_tokens = 9\nsystem = "a"')).fingerprint == first
    assert PromptTemplate.load(file(tmp_path, 'max_tokens = 8\nsystem = "a"')).fingerprint != first
    assert PromptTemplate.load(file(tmp_path, "")).fingerprint != DEFAULT.fingerprint == PromptTemplate.load().fingerprint
    assert len(first) == 64


def test_the_bundled_demonstrations_leave_the_demo_questions_alone():
    from importlib import resources

    demo = resources.files("inward") / "demo"
    asked = (demo / "questions.jsonl").read_text(encoding="utf-8").lower()
    for shown in DEFAULT.demonstrations:
        assert shown.question.lower() not in asked
        assert shown.rationale
        assert not any(stop in shown.rationale + shown.answer for stop in DEFAULT.stop)
    assert len(DEFAULT.demonstrations) == 4


# --- answers ---


@pytest.mark.parametrize(
    ("text", "short"),
    [
        # P1 and what surrounds it
        ("So the answer is: Ada Lovelace. Question: who", "Ada Lovelace"),
        ("So the answer is: St. Louis.", "St. Louis"),
        ("so the final answer is Paris", "Paris"),
        ("Some say the answer is Lyon. It is not: the answer is Paris.", "Paris"),
        (" He wrote it.\nAnswer: J. R. R. Tolkien\n\nQuestion: Who else?\nRationale: x\nAnswer: Nobody", "J. R. R. Tolkien"),
        (" He wrote it. Answer: J. R. R. Tolkien. He was English.", "J. R. R. Tolkien"),
        (" So the answer is obvious.\nAnswer: Paris", "Paris"),  # the cue goes first
        (" x\nAnswer: U.S.", "U.S."),
        (" x\nAnswer: 3.5 km", "3.5 km"),
        (" x\nAnswer: 3.5 km.", "3.5 km"),
        (" x\nAnswer: Washington, D.C. It is nice.", "Washington, D.C."),
        (" x\nAnswer: Martin Luther King Jr.", "Martin Luther King Jr."),
        (" x\nAnswer: Malcolm X.", "Malcolm X"),
        (" x\nAnswer: No. They differ.", "No"),
        (" x\nAnswer: No. 10 Downing Street.", "No. 10 Downing Street"),
        (" x\nAnswer: 7 p.m.", "7 p.m."),
        (" x\nAnswer:\nParis", "Paris"),
        (" x\nAnswer: Paris\nAnswer: Lyon", "Paris"),
        (" x\n**Answer:** **Paris**.", "Paris"),
        (" x\n**Final Answer**: Paris", "Paris"),
        (' x\nAnswer: "Heroes".', "Heroes"),
        (' x\nAnswer: "Heroes" and "Low"', '"Heroes" and "Low"'),
        (" x\nANSWER: yes", "yes"),
        (" x\nAnswer: 東京。", "東京。"),
        ("Answer: Paris", "Paris"),
    ],
)
def test_P1_the_answer_is_what_follows_the_cue(text: str, short: str):
    parsed = DEFAULT.parse(text)
    assert parsed.short == short
    assert parsed.flags == ()


@pytest.mark.parametrize(
    ("text", "short"),
    [
        ("It is a large city. Paris, I believe.", "Paris, I believe"),
        ("It is a large city.\nParis, I believe", "Paris, I believe"),
        ("Paris", "Paris"),
        ("He lived in St. Louis.", "He lived in St. Louis"),
        ("Paris. Question: and who?", "Paris"),
        ("The answerer: nobody.", "The answerer: nobody"),
        ("", ""),
    ],
)
def test_P1_without_cue_the_last_sentence_stands_and_is_flagged(text: str, short: str):
    parsed = DEFAULT.parse(text)
    assert parsed.short == short
    assert parsed.flags == ("no_marker",)


def test_an_answer_that_was_cut_off_at_its_cue_is_flagged():
    parsed = DEFAULT.parse(" It is a city.\nAnswer:")
    assert (parsed.short, parsed.rationale, parsed.flags) == ("", "It is a city.", ("truncated",))


def test_rationale_and_text_are_kept_without_what_follows_the_answer():
    parsed = DEFAULT.parse(" It is old. It is big.\nAnswer: Rome.\n\nIt is also nice.\n\nQuestion: x")
    assert parsed.rationale == "It is old. It is big."
    assert parsed.text == "It is old. It is big.\nAnswer: Rome."


@pytest.mark.parametrize(
    "text",
    [
        "<think>Rome?</think>Paris",
        "<think>\nAnswer: Rome\n</think>\n\nParis.",
        "Rome? Answer: Rome</think>Answer: Paris",
        "<Thinking>a</Thinking>Paris",
    ],
)
def test_P6_thinking_is_neither_answer_nor_text(text: str):
    parsed = DEFAULT.parse(text)
    assert parsed.short == "Paris"
    assert "Rome" not in parsed.text
    assert "think" not in parsed.text.lower()


def test_P6_thinking_that_never_ends_is_no_answer():
    for text in ("<think>Rome", "<think>a</think><think>Rome. Answer: Rome"):
        parsed = DEFAULT.parse(text)
        assert (parsed.short, parsed.flags) == ("", ("unclosed_reasoning",))
        assert "Rome" not in parsed.text


@given(st.text(max_size=60) | st.text('Answer: Question<think>/. \n*"', max_size=60))
def test_any_text_can_be_parsed(text: str):
    parsed = DEFAULT.parse(text)
    assert parsed.short == parsed.short.strip()
    assert "\n" not in parsed.short
    assert parsed.text in text or "<" in text
    assert bool(parsed.short) or parsed.flags or not text.strip(" \n\"'*_.")


# --- what fits ---


def fitted(context: int, count: int, question: str = "Who?") -> tuple:
    passages = [Passage(id=str(i), text=f"marker{i} " * 20) for i in range(count)]
    with record() as trace:
        result = fit(DEFAULT, question, passages, FunctionLM(lambda _: "", context=context), 30)
    return result, trace


def test_N7_passages_are_dropped_from_the_lowest_rank_and_the_trace_says_how_many():
    lm = FunctionLM(lambda _: "")
    bare = lm.count(DEFAULT.build("Who?")) + 30
    for room in (0, 25, 60, 200, 2000):
        result, trace = fitted(bare + room, 50)
        kept = len(result.passages)
        assert [passage.id for passage in result.passages] == [str(i) for i in range(kept)]
        assert result.prompt == DEFAULT.build("Who?", result.passages)
        assert lm.count(result.prompt) + 30 <= bare + room
        if kept < 50:  # one more would not have fitted
            more = [*result.passages, Passage(id="more", text=f"marker{kept} " * 20)]
            assert lm.count(DEFAULT.build("Who?", more)) + 30 > bare + room
            [note] = [event for event in trace.events if isinstance(event, Noted)]
            assert (note.what, note.detail) == ("passages dropped", f"{50 - kept} of 50, from the lowest rank, to fit {bare + room} tokens")


def test_N7_what_fits_is_left_alone_and_nothing_is_noted():
    result, trace = fitted(10_000, 5)
    assert len(result.passages) == 5
    assert trace.events == ()
    assert fit(DEFAULT, "Who?", (), FunctionLM(lambda _: ""), 30).passages == ()


def test_N7_a_question_that_alone_is_too_long_is_an_error_with_both_numbers():
    lm = FunctionLM(lambda _: "", context=200)
    question = "word " * 100 + "?"
    needed = lm.count(DEFAULT.build(question)) + 30
    with pytest.raises(ContextLengthExceeded, match=rf"needs {needed} tokens .*answer of 30.*room for 200"):
        fit(DEFAULT, question, [PARIS], lm, 30)


def test_N7_fitting_counts_few_prompts():
    calls = []

    class Counting(FunctionLM):
        def count(self, prompt) -> int:
            calls.append(1)
            return super().count(prompt)

    passages = [Passage(id=str(i), text="word " * 20) for i in range(50)]
    fit(DEFAULT, "Who?", passages, Counting(lambda _: "", context=10_000), 30)
    assert len(calls) == 2  # without passages, and with all of them
    calls.clear()
    fit(DEFAULT, "Who?", passages, Counting(lambda _: "", context=600), 30)
    assert len(calls) <= 9


def test_a_file_without_stops_ends_before_the_next_question(tmp_path: Path):
    (tmp_path / "p.toml").write_text("# empty\n")
    assert PromptTemplate.load(tmp_path / "p.toml").stop == ("\nQuestion:",)
    (tmp_path / "p.toml").write_text('question = "Q:"\n')
    assert PromptTemplate.load(tmp_path / "p.toml").stop == ("\nQ:",)
    (tmp_path / "p.toml").write_text("stop = []\n")
    assert PromptTemplate.load(tmp_path / "p.toml").stop == ()


def test_the_bundled_file_can_be_had(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    from inward.cli import main

    assert main(["prompt"]) == 0
    (tmp_path / "my.toml").write_text(capsys.readouterr().out)
    assert PromptTemplate.load(tmp_path / "my.toml").fingerprint == PromptTemplate.load().fingerprint
