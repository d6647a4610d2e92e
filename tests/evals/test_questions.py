"""Questions: every released shape, stable ids, samples that do not depend on order, mistakes named by row."""

from __future__ import annotations

import gzip
import io
import json
import os
import random
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import pytest

from inward.cli import main
from inward.errors import BadInput, UnknownName, UsageError
from inward.evals.gathering import made_id
from inward.evals.questions import choose, encode_question, load_questions, read_ids, read_questions, text_hash
from inward.evals.record import Question

LINE = '{"id": "1", "question": "q", "answers": ["a"]}'
ROWS = [{"id": f"q{n}", "question": f"What is {n}?", "answers": [str(n)], "level": "easy"} for n in range(10)]


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


# -- shapes --------------------------------------------------------------------------------------------------

RIVER = "Which river is the longest?"
ORIGINALS: dict[str, tuple[str, object, Question]] = {
    "flashrag": (
        "x.jsonl",
        [{"id": "test_0", "question": RIVER, "golden_answers": ["Nile", "the Nile"], "metadata": {"hops": 1}}],
        Question(id="test_0", question=RIVER, answers=("Nile", "the Nile"), metadata={"hops": 1}),
    ),
    "nq-open": (
        "x.jsonl",
        [{"question": RIVER, "answer": ["Nile"]}],
        Question(id=made_id(RIVER, ["Nile"]), question=RIVER, answers=("Nile",)),
    ),
    "dpr": (
        "x.json",
        [{"dataset": "nq", "question": RIVER, "answers": ["Nile"], "positive_ctxs": [{"title": "Nile", "text": "t", "passage_id": "12"}],
          "negative_ctxs": [], "hard_negative_ctxs": []}],
        Question(id=made_id(RIVER, ["Nile"]), question=RIVER, answers=("Nile",), supporting=("12",), metadata={"dataset": "nq"}),
    ),
    "triviaqa": (
        "x.json",
        {"Domain": "Web", "Data": [{"QuestionId": "tc_1", "Question": RIVER, "QuestionSource": "s", "SearchResults": [{"Rank": 0}],
         "EntityPages": [{"Title": "Nile", "Filename": "Nile.txt"}],
         "Answer": {"Value": "Nile", "Aliases": ["River Nile", "Nile"], "NormalizedAliases": ["nile"], "Type": "WikipediaEntity"}}]},
        Question(id="tc_1", question=RIVER, answers=("Nile", "River Nile"), supporting=("Nile",), metadata={"QuestionSource": "s"}),
    ),
    "hotpotqa": (
        "x.json",
        [{"_id": "5a", "question": RIVER, "answer": "Nile", "type": "bridge", "level": "hard", "context": [["Nile", ["A.", "B."]]],
          "supporting_facts": [["Nile", 0], ["Nile", 1], ["Egypt", 0]]}],
        Question(id="5a", question=RIVER, answers=("Nile",), supporting=("Nile", "Egypt"), metadata={"type": "bridge", "level": "hard"}),
    ),
    "musique": (
        "x.jsonl",
        [{"id": "2hop__1_2", "question": RIVER, "answer": "Nile", "answer_aliases": ["River Nile"], "answerable": True,
          "paragraphs": [{"idx": 0, "title": "Nile", "paragraph_text": "t", "is_supporting": True}, {"idx": 1, "title": "Po",
          "paragraph_text": "t", "is_supporting": False}], "question_decomposition": [{"id": 1}]},
         {"id": "2hop__1_3", "question": RIVER, "answer": "", "answer_aliases": [], "answerable": False, "paragraphs": []}],
        Question(id="2hop__1_2", question=RIVER, answers=("Nile", "River Nile"), supporting=("Nile",),
                 metadata={"answerable": True, "question_decomposition": [{"id": 1}]}),
    ),
    "strategyqa": (
        "x.json",
        [{"qid": "b8", "term": "Nile", "question": "Is the Nile a lake?", "answer": False, "facts": ["It is a river."], "evidence": [[]]}],
        Question(id="b8", question="Is the Nile a lake?", answers=("no",), metadata={"term": "Nile", "facts": ["It is a river."]}),
    ),
    "popqa": (
        "x.tsv",
        "id\tsubj\tquestion\tpossible_answers\ts_pop\ts_wiki_title\n42\tNile\tWhere is the Nile?\t[\"Egypt\", \"Sudan\"]\t900\tNile\n",
        Question(id="42", question="Where is the Nile?", answers=("Egypt", "Sudan"), supporting=("Nile",),
                 metadata={"subj": "Nile", "s_pop": "900", "s_wiki_title": "Nile"}),
    ),
    "squad": (
        "x.json",
        {"version": "2.0", "data": [{"title": "Nile", "paragraphs": [{"context": "c", "qas": [
            {"id": "56", "question": RIVER, "answers": [{"text": "Nile", "answer_start": 0}, {"text": "Nile", "answer_start": 9}],
             "is_impossible": False},
            {"id": "57", "question": "None?", "answers": [], "is_impossible": True}]}]}]},
        Question(id="56", question=RIVER, answers=("Nile",), supporting=("Nile",), metadata={"is_impossible": False, "title": "Nile"}),
    ),
    "iirc": (
        "x.json",
        [{"pid": "p", "title": "Nile", "text": "t", "links": [{"target": "egypt"}], "questions": [
            {"qid": "q_1", "question": "How long?", "answer": {"type": "value", "answer_value": "6650", "answer_unit": "km"},
             "context": [{"text": "t", "passage": "main"}, {"text": "t", "passage": "Egypt"}], "question_links": []},
            {"qid": "q_2", "question": "None?", "answer": {"type": "none"}, "context": []}]}],
        Question(id="q_1", question="How long?", answers=("6650", "6650 km"), supporting=("Nile", "Egypt"),
                 metadata={"title": "Nile", "answer_type": "value"}),
    ),
}  # fmt: skip


@pytest.mark.parametrize("format", ORIGINALS)
@pytest.mark.parametrize("packed", [False, True])
def test_a_data_set_is_read_as_it_was_released(format: str, packed: bool, tmp_path: Path):
    name, content, expected = ORIGINALS[format]
    text = content if isinstance(content, str) else json.dumps(content)
    if name.endswith(".jsonl"):
        assert isinstance(content, list)
        text = "\r\n".join(json.dumps(row) for row in content)
    raw = b"\xef\xbb\xbf" + text.encode()
    path = tmp_path / (f"{name}.gz" if packed else name)
    path.write_bytes(gzip.compress(raw) if packed else raw)
    found = load_questions(path)
    assert (found.format, found.questions) == (format, (expected,))
    assert found.unanswerable == (1 if format in ("musique", "squad", "iirc") else 0)


def test_2wikimultihopqa_takes_the_aliases_that_lie_beside_it(tmp_path: Path):
    row = {"_id": "1", "question": RIVER, "answer": "Nile", "answer_id": "Q3392", "supporting_facts": [["Nile", 0]], "context": []}
    (tmp_path / "dev.json").write_text(json.dumps([row]))
    assert load_questions(tmp_path / "dev.json").questions[0].answers == ("Nile",)
    (tmp_path / "id_aliases.json").write_text(json.dumps({"Q_id": "Q3392", "aliases": ["River Nile"], "demonyms": []}) + "\n")
    assert load_questions(tmp_path / "dev.json").questions[0].answers == ("Nile", "River Nile")


def test_rows_of_any_library_come_by_column_names():
    class Dataset:
        """Yields rows, as `datasets.Dataset` does."""

        def __iter__(self):
            yield {"key": 3, "prompt": RIVER, "gold": {"text": ["Nile"], "answer_start": [0]}, "hops": 2}

    (question,) = load_questions(Dataset(), columns={"id": "key", "question": "prompt", "answers": "gold"}).questions
    assert question == Question(id="3", question=RIVER, answers=("Nile",), metadata={"hops": 2})
    with pytest.raises(
        UsageError, match="no row of Dataset has the column 'q' for question; the first has 'key', 'prompt', 'gold', 'hops'"
    ):
        load_questions(Dataset(), columns={"question": "q"})
    with pytest.raises(UnknownName, match="did you mean 'answers'"):
        load_questions(Dataset(), columns={"answer": "gold"})


def test_S3_only_queries_that_the_split_judges_count(tmp_path: Path):
    write(tmp_path / "queries.jsonl", [{"_id": id, "text": f"text {id}", "metadata": {"answer": "A"}} for id in ("1", "2", "3")])
    (tmp_path / "qrels").mkdir()
    (tmp_path / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\n2\td7\t1\n2\td8\t0\n3\td9\t2\n")
    (tmp_path / "qrels" / "dev.tsv").write_text("query-id\tcorpus-id\tscore\n1\td7\t1\n")
    found = load_questions(tmp_path, split="test")
    assert [(q.id, q.supporting, q.answers) for q in found.questions] == [("2", ("d7",), ("A",)), ("3", ("d9",), ("A",))]
    with pytest.raises(UsageError, match="read by split, one of dev, test, got None"):
        load_questions(tmp_path)


def test_S3_ids_are_distinct_texts():
    rows = [{"id": id, "question": f"q {n}", "answers": ["a"]} for n, id in enumerate(["007", "7", "q 1", 7])]
    for order in (rows, rows[::-1]):
        found = load_questions(order)
        assert {q.question: q.id for q in found.questions} == {"q 0": "007", "q 1": "7", "q 2": "q 1", "q 3": "int:7"}
        assert len(found.warnings) == 1
    assert load_questions([{"id": 7, "question": "q", "answers": ["a"]}]).ids == ("7",)


def test_S6_jsonl_needs_no_other_library(tmp_path: Path):
    path = write(tmp_path / "q.jsonl", ROWS)
    script = (
        "import sys; sys.modules.update(datasets=None, pyarrow=None, torch=None)\n"
        "from inward.evals.questions import load_questions; print(len(load_questions(sys.argv[1]).questions))"
    )
    assert subprocess.run([sys.executable, "-c", script, str(path)], capture_output=True, text=True, check=True).stdout == "10\n"


def test_S8_every_alias_is_kept_as_it_is():
    (question,) = load_questions([{"id": "1", "question": "q", "answers": ["Montreal", "City of Montréal", "Montreal"]}]).questions
    assert question.answers == ("Montreal", "City of Montréal")


@pytest.mark.parametrize(("answer", "expected"), [("a", ("a",)), (7, ("7",)), (True, ("yes",)), (["a", ["b"]], ("a", "b"))])
def test_an_answer_alone_is_one_answer(answer: object, expected: tuple[str, ...]):
    assert load_questions([{"id": "1", "question": "q", "answer": answer}]).questions[0].answers == expected


# -- mistakes ------------------------------------------------------------------------------------------------


def test_S1_a_missing_field_is_named_with_its_row_and_extra_fields_stay(tmp_path: Path):
    assert load_questions(write(tmp_path / "a.jsonl", ROWS)).questions[3].metadata == {"level": "easy"}
    bad = [*ROWS[:2], {"id": "x", "question": "Why?", "gold": "because"}, {"id": "y", "answers": ["1"]}]
    with pytest.raises(
        BadInput, match=r"a.jsonl: line 3: question 'Why\?' has no answer, which em, f1 and acc need.*; line 4: has no question"
    ):
        load_questions(write(tmp_path / "a.jsonl", bad))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"id": "1", "question": "q", "answers": ["a"]}\n{"id": "2", "quest', "line 2 is no JSON"),
        ('{"id": "1", "question": "q", "answers": ["a"]}\n[1]\n', "line 2 is no object, got '\\[1\\]'"),
        (f"{LINE}\n\n{LINE}\n", "line 3: id '1' is that of line 1 too"),
        ('{"text": "a"}\n', "fields 'text' are of no known format"),
        ("[1, 2]", "row 1 is no object"),
        ("[{", "is no JSON"),
    ],
)  # fmt: skip
def test_a_bad_line_is_named(text: str, message: str, tmp_path: Path):
    (tmp_path / "q.jsonl").write_text(text)
    with pytest.raises((BadInput, UsageError), match=message):
        load_questions(tmp_path / "q.jsonl")


def test_bytes_that_are_not_utf8_are_named_by_line(tmp_path: Path):
    (tmp_path / "q.jsonl").write_bytes(b'{"id": "1"}\n{"id": "\xff"}\n')
    with pytest.raises(BadInput, match="line 2: byte 0xff at column 9 is not UTF-8"):
        load_questions(tmp_path / "q.jsonl")


def test_what_is_not_there_is_said():
    with pytest.raises(UsageError, match=r"no such file of questions: 'nowhere\.jsonl'"):
        load_questions("nowhere.jsonl")
    with pytest.raises(UnknownName, match="did you mean 'hotpotqa'"):
        load_questions(ROWS, format="hotpot")


# -- which ---------------------------------------------------------------------------------------------------


def test_R5_the_same_sample_twice_and_from_a_shuffled_file(tmp_path: Path):
    first = load_questions(ROWS, limit=3, sample_seed=7)
    assert len(first.ids) == 3
    for seed in range(5):
        shuffled = random.Random(seed).sample(ROWS, len(ROWS))
        again = load_questions(shuffled, limit=3, sample_seed=7)
        assert set(again.ids) == set(first.ids)
        assert again.data_hash == first.data_hash
    assert {load_questions(ROWS, limit=3, sample_seed=s).ids for s in range(20)} != {first.ids}
    (tmp_path / "ids.txt").write_text("\n".join(first.ids))
    assert load_questions(ROWS, ids=read_ids(tmp_path / "ids.txt")).questions == first.questions
    with pytest.raises(UsageError, match="no question with id 'q99'"):
        load_questions(ROWS, ids=["q1", "q99"])
    with pytest.raises(UsageError, match="limit must be at least 1, got 0"):
        load_questions(ROWS, limit=0)


def test_a_larger_sample_holds_the_smaller():
    whole = load_questions(ROWS)
    samples = [set(choose(whole, limit=n).ids) for n in range(1, 11)]
    assert all(a < b for a, b in pairwise(samples))


def test_an_id_made_from_the_content_survives_another_order():
    rows = [{"question": f"q{n}", "answer": [str(n), "x"]} for n in range(6)]
    found = {q.question: q.id for q in load_questions(rows).questions}
    assert {q.question: q.id for q in load_questions(rows[::-1]).questions} == found
    assert len(set(found.values())) == 6
    assert load_questions([*rows, {"question": "q0", "answer": ["x", "0"]}]).repeated == 1


def test_the_data_hash_sees_answers_and_not_the_order():
    assert load_questions(ROWS).data_hash == load_questions(ROWS[::-1]).data_hash
    assert load_questions(ROWS).data_hash != load_questions([{**ROWS[0], "answers": ["other"]}, *ROWS[1:]]).data_hash


def test_a_question_is_known_again_by_its_text():
    assert text_hash("Who wrote “Emma”?") == text_hash("who wrote  Emma") != text_hash("who read Emma")


# -- commands ------------------------------------------------------------------------------------------------


def test_S9_conversion_loses_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    for format, (name, content, _) in ORIGINALS.items():
        source = tmp_path / name
        source.write_text(
            content
            if isinstance(content, str)
            else "\n".join(map(json.dumps, content))
            if name.endswith("l") and isinstance(content, list)
            else json.dumps(content)
        )
        for out in ("o.jsonl", "o.jsonl.gz"):
            assert main(["data", "convert", str(source), str(tmp_path / out)]) == 0
            assert load_questions(tmp_path / out, format="inward").questions == load_questions(source).questions, format
    assert not list(tmp_path.glob(".*"))
    capsys.readouterr()


def test_validate_finds_everything_at_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    rows = [
        *ROWS,
        {"id": "q1", "question": "again", "answers": ["b"]},
        {"id": "n", "question": "Band?", "answers": ["The The"]},
        {"id": "m"},
    ]
    path = write(tmp_path / "q.jsonl", rows)
    assert main(["data", "validate", str(path), "--format", "inward", "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert [(p["place"], p["fatal"]) for p in found["problems"]] == [("line 11", True), ("line 12", False), ("line 13", True)]
    assert (found["rows"], found["questions"]) == (13, 11)
    assert main(["data", "convert", str(path), str(tmp_path / "out.jsonl")]) == 1
    assert not (tmp_path / "out.jsonl").exists()
    assert main(["data", "convert", str(path), str(tmp_path / "out.jsonl"), "--skip-bad"]) == 0
    assert main(["data", "validate", str(write(tmp_path / "good.jsonl", ROWS))]) == 0


def test_questions_come_from_standard_input(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    text = "".join(json.dumps(row) + "\n" for row in ROWS)
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
    assert main(["data", "convert", "-", "-"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [json.loads(line)["id"] for line in lines] == [row["id"] for row in ROWS]
    assert msgspec.json.decode(encode_question(load_questions(ROWS).questions[0])) == ROWS[0]


@pytest.mark.parametrize("folder", ["nq", "triviaqa", "hotpotqa", "musique", "2wikimultihopqa", "popqa", "squad", "strategyqa"])
def test_real_questions(folder: str):
    path = Path(__file__).parents[3] / "shared" / "data" / folder / "questions.test.jsonl.gz"
    if not path.exists():
        pytest.skip("no shared data beside this clone")
    found = read_questions(path)
    assert not [problem for problem in found.problems if problem.fatal]
    assert len(found.questions) == found.rows >= 100
    assert all(question.supporting for question in found.questions) or folder in ("triviaqa", "strategyqa", "popqa")


def test_a_file_without_questions_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    (tmp_path / "empty.jsonl").touch()
    with pytest.raises(BadInput, match=r"empty\.jsonl holds no question"):
        load_questions(tmp_path / "empty.jsonl")
    assert main(["data", "validate", str(tmp_path / "empty.jsonl")]) == 1
    assert "holds no question that can be asked" in capsys.readouterr().err
    with pytest.raises(UsageError, match="holds no id"):
        read_ids(tmp_path / "empty.jsonl")
    with pytest.raises(UsageError, match="no file of ids can be read"):
        read_ids(tmp_path / "none.txt")


# -- rows that are nearly right ------------------------------------------------------------------------------


def test_a_named_column_wins_over_a_field_of_that_name():
    row = {"id": "1", "question": "old", "prompt": "new", "answers": ["wrong"], "gold": ["right"], "supporting": ["old"], "sup": "new"}
    columns = {"question": "prompt", "answers": "gold", "supporting": "sup"}
    (question,) = load_questions([row], columns=columns).questions
    assert (question.question, question.answers, question.supporting) == ("new", ("right",), ("new",))


def test_a_column_that_one_row_lacks_is_that_rows_problem_or_none_at_all():
    rows = [
        {"id": "1", "question": "q", "gold": ["r"], "sup": ["x"]},
        {"id": "2", "question": "q", "gold": ["r"]},
        {"id": "3", "question": "q"},
    ]
    found = read_questions(rows, columns={"answers": "gold", "supporting": "sup"})
    assert [(q.id, q.supporting) for q in found.questions] == [("1", ("x",)), ("2", ())]
    assert [p.place for p in found.problems] == ["row 3"]


@pytest.mark.parametrize(
    ("supporting", "expected"),
    [
        ("Canteen", ("Canteen",)),
        (["a", "b", "a", ""], ("a", "b")),
        ([["Nile", 0], ["Nile", 1], ["Egypt", 0]], ("Nile", "Egypt")),
        ({"title": ["Nile", "Egypt"], "sent_id": [0, 1]}, ("Nile", "Egypt")),
        (None, ()),
        (7, ("7",)),
    ],
)
def test_gold_passages_are_whole_names(supporting: object, expected: tuple[str, ...]):
    assert load_questions([{"id": "1", "question": "q", "answers": ["a"], "supporting": supporting}]).questions[0].supporting == expected
    hotpot = {"_id": "1", "question": "q", "answer": "a", "supporting_facts": supporting}
    if not isinstance(supporting, str | int | None):
        assert load_questions([hotpot]).questions[0].supporting == expected


def test_gold_passages_of_no_kind_are_a_problem():
    (problem,) = read_questions([{"id": "1", "question": "q", "answers": ["a"], "supporting": {"sent_id": [1]}}]).problems
    assert "gold passages are named by id or title" in problem.what


def test_an_article_without_title_names_no_gold_passage():
    squad = {"data": [{"paragraphs": [{"context": "c", "qas": [{"id": "1", "question": "q", "answers": [{"text": "a"}]}]}]}]}
    assert load_questions([squad]).questions[0].supporting == ()


def test_changed_gold_is_other_data():
    changed = [{**ROWS[0], "supporting": ["p"]}, *ROWS[1:]]
    assert load_questions(changed).data_hash != load_questions(ROWS).data_hash


def test_a_number_never_takes_a_texts_name():
    rows = [{"id": id, "question": f"q {n}", "answers": ["b"]} for n, id in enumerate([7, "7", "int:7"])]
    for order in (rows, rows[::-1]):
        assert {q.question: q.id for q in load_questions(order).questions} == {"q 0": "int:int:7", "q 1": "7", "q 2": "int:7"}


def test_half_a_character_is_refused_in_what_is_asked_and_replaced_beside_it():
    good = {"id": "1", "question": "q", "answers": ["b"], "note": "x\ud800", "deep": {"\ud800": ["\ud800"]}}
    (question,) = load_questions([good]).questions
    assert question.metadata == {"note": "x\ufffd", "deep": {"\ufffd": ["\ufffd"]}}
    assert encode_question(question)
    for name, value in (("id", "\ud800"), ("question", "q\ud800"), ("answers", ["\ud800"]), ("supporting", "\ud800")):
        (problem,) = read_questions([{**good, name: value}]).problems
        assert "half of a surrogate pair" in problem.what


@pytest.mark.parametrize(
    "extra", [{"data": "2020-01-01"}, {"qid": "x"}, {"possible_answers": '["z"]'}, {"paragraphs": 3}, {"questions": [1]}]
)
def test_an_extra_field_does_not_make_another_format(extra: dict):
    found = load_questions([{"id": "1", "question": "q", "answers": ["b"], **extra}])
    assert found.format == "inward"
    assert found.questions[0].metadata == extra


def test_what_was_converted_is_read_back_also_with_odd_metadata(tmp_path: Path):
    inner = {"possible_answers": '["z"]', "qid": "h", "supporting": ["zz"], "answer": "no"}
    rows = [{"id": "1", "question": "q", "golden_answers": ["b"], "metadata": inner}]
    (tmp_path / "a.jsonl").write_text(json.dumps(rows[0]))
    assert main(["data", "convert", str(tmp_path / "a.jsonl"), str(tmp_path / "b.jsonl")]) == 0
    first, again = load_questions(tmp_path / "a.jsonl"), load_questions(tmp_path / "b.jsonl")
    assert again.questions == first.questions
    assert first.questions[0].metadata == inner
    assert first.questions[0].supporting == ()


@pytest.mark.parametrize(
    ("line", "question", "answers"),
    [
        ('1\t"Heroes" was sung by\t["b"]', '"Heroes" was sung by', ("b",)),
        ('1\t"what is it\t["b"]', '"what is it', ("b",)),
        ('1\twho\t"[""b"", ""c""]"', "who", ("b", "c")),
        ("1\twho\t" + "x" * 140_000, "who", ("x" * 140_000,)),
    ],
)
def test_a_table_is_read_without_losing_quotes_or_length(line: str, question: str, answers: tuple[str, ...], tmp_path: Path):
    for header in ("possible_answers", "answers"):
        if header == "possible_answers" and not line.rpartition("\t")[2].lstrip('"').startswith("["):
            continue
        (tmp_path / "q.tsv").write_text(f"id\tquestion\t{header}\n{line}\n")
        (found,) = load_questions(tmp_path / "q.tsv").questions
        assert (found.question, found.answers) == (question, answers)


def test_a_table_row_with_too_many_cells_is_named(tmp_path: Path):
    (tmp_path / "q.tsv").write_text("id\tquestion\tanswers\n1\tq\tb\textra\n2\tq\tb\n")
    found = read_questions(tmp_path / "q.tsv")
    assert [str(p) for p in found.problems] == ["line 2: has 1 more cells than the header has names"]
    assert found.ids == ("2",)


def test_damaged_files_are_named(tmp_path: Path):
    packed = bytearray(gzip.compress("".join(json.dumps(row) for row in ROWS * 60).encode(), mtime=0))
    packed[40] ^= 0xFF
    packed[60] ^= 0xFF
    (tmp_path / "bad.jsonl.gz").write_bytes(packed)
    (tmp_path / "cut.jsonl.gz").write_bytes(packed[:30])
    (tmp_path / "deep.json").write_text("[" * 200_000)
    (tmp_path / "deep.jsonl").write_text('{"id": "1", "question": "q", "answers": ' + "[" * 100_000 + "]" * 100_000 + "}")
    for name in ("bad.jsonl.gz", "cut.jsonl.gz", "deep.json", "deep.jsonl"):
        with pytest.raises(BadInput, match=name.replace(".", r"\.")):
            load_questions(tmp_path / name)


def beir(folder: Path, queries: str, judged: str) -> Path:
    (folder / "qrels").mkdir(parents=True)
    (folder / "queries.jsonl").write_text(queries)
    (folder / "qrels" / "test.tsv").write_text(judged)
    return folder


def test_S3_a_beir_folder_is_checked_like_any_other(tmp_path: Path):
    header = "query-id\tcorpus-id\tscore\n"
    queries = '{"_id": "1", "text": "a"}\n{"_id": "1", "text": "b"}\n{"_id": "2", "text": " "}\n{"_id": "3"}\n{"text": "no id"}\n'
    found = read_questions(beir(tmp_path / "a", queries, header + "1\tp\t1\n2\tp\t1\n3\tp\t1\n"))
    assert [p.place for p in found.problems] == ["line 2", "line 3", "line 4", "line 5"]
    assert [(q.id, q.question, q.answers) for q in found.questions] == [("1", "a", ())]
    for number, judged in enumerate(("1\tp\tx\n", "1\tp\n")):
        with pytest.raises(BadInput, match=r"test\.tsv, line 2: query-id, corpus-id and a score are expected"):
            load_questions(beir(tmp_path / f"b{number}", queries, header + judged))


def test_validate_lists_every_problem_also_behind_an_odd_first_row(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    path = write(tmp_path / "q.jsonl", [{"id": "x", "answers": ["b"]}, *ROWS, *({"id": f"m{n}", "question": "q"} for n in range(80))])
    assert main(["data", "validate", str(path)]) == 1
    out = capsys.readouterr().out
    assert "line 1: has no question" in out
    assert out.count("has no answer") == 80


def test_converting_nothing_is_a_failure(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    bad = str(write(tmp_path / "bad.jsonl", [{"id": "1", "question": "q"}]))
    assert main(["data", "convert", bad, str(tmp_path / "out"), "--skip-bad"]) == 1
    assert "holds no question that can be used (1 that cannot be used)" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
    assert main(["data", "convert", str(write(tmp_path / "a.jsonl", ROWS)), str(tmp_path / "none" / "out")]) == 2
    assert "there is no folder" in capsys.readouterr().err
    assert main(["data", "validate", ""]) == 2
    mixed = str(write(tmp_path / "mixed.jsonl", [*ROWS, {"id": "1", "question": "q"}]))
    assert main(["data", "convert", mixed, str(tmp_path / "out"), "--skip-bad"]) == 0
    assert "10 questions in" in (out := capsys.readouterr().out)
    assert "left out: 1 that cannot be used" in out


def test_other_operators_are_other_questions():
    assert text_hash("What is 3*4?") != text_hash("What is 3+4?")
    assert text_hash("What is “3*4” ?") == text_hash("what is 3*4")


@pytest.mark.parametrize(
    ("raw", "answers"),
    [([1949.0], ("1949",)), ([2.5], ("2.5",)), (1949.0, ("1949",)), ([7, "7"], ("7",)), ([-0.0], ("0",))],
)
def test_whole_numbers_are_written_as_such(raw: object, answers: tuple[str, ...]):
    (found,) = load_questions([{"id": "1", "question": "When?", "answers": raw}]).questions
    assert found.answers == answers


@pytest.mark.parametrize("raw", [[float("nan")], [float("inf")], -float("inf")])
def test_a_number_that_is_none_is_no_answer(raw: object):
    with pytest.raises(BadInput, match="is no answer"):
        load_questions([{"id": "1", "question": "When?", "answers": raw}])


def test_a_list_written_as_text_is_pointed_out(tmp_path: Path):
    file = tmp_path / "q.tsv"
    file.write_text("id\tquestion\tanswers\n1\tWho?\t['William Shakespeare', 'Shakespeare']\n2\tWho?\t[\"a\", \"b\"]\n")
    found = read_questions(file)
    (problem,) = found.problems
    assert (problem.place, problem.fatal) == ("line 2", False)
    assert "looks like a list written as text" in problem.what
    assert found.questions[1].answers == ("a", "b")


@pytest.mark.parametrize("header", ["", "query-id\tcorpus-id\tscore\n"])
def test_judgements_may_come_without_a_header(header: str, tmp_path: Path):
    (tmp_path / "qrels").mkdir()
    (tmp_path / "queries.jsonl").write_text("".join(json.dumps({"_id": str(n), "text": f"{n}?"}) + "\n" for n in (1, 2, 3)))
    (tmp_path / "qrels" / "test.tsv").write_text(header + "1\tdocA\t1\n2\tdocB\t1\n3\tdocC\t1\n")
    assert [(q.id, q.supporting) for q in read_questions(tmp_path).questions] == [("1", ("docA",)), ("2", ("docB",)), ("3", ("docC",))]


@pytest.mark.parametrize("kind", ["link", "pipe", "device"])
def test_M2_converting_into_what_is_no_file_leaves_it_what_it_is(kind: str, tmp_path: Path):
    source, target = tmp_path / "q.jsonl", tmp_path / "out.jsonl"
    source.write_text('{"id": "1", "question": "Who?", "answers": ["x"]}\n')
    if kind == "link":
        (tmp_path / "real.jsonl").write_text("old")
        target.symlink_to(tmp_path / "real.jsonl")
        assert main(["data", "convert", str(source), str(target)]) == 0
        assert target.is_symlink()
        assert "Who?" in (tmp_path / "real.jsonl").read_text()
    elif kind == "pipe":
        os.mkfifo(target)
        reader = subprocess.Popen(["cat", str(target)], stdout=subprocess.PIPE, text=True)
        assert main(["data", "convert", str(source), str(target)]) == 0
        assert "Who?" in reader.communicate(timeout=20)[0]
        assert target.is_fifo()
    else:
        assert main(["data", "convert", str(source), "/dev/null"]) == 0
        assert Path("/dev/null").is_char_device()
