"""Reports and comparisons: scored from files alone, warnings on top, nothing in them that a question could break out of."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import msgspec
import pytest

from inward.cli import main
from inward.errors import InwardError, UsageError
from inward.evals.compare import compare_runs, to_text
from inward.evals.config import load_config
from inward.evals.report import find_runs, make_report, to_html, to_markdown
from inward.evals.score import read_scores, summarise, warnings_of
from inward.evals.suite import Loaded, run_suite
from inward.lm import BatchedLM
from inward.lm.loading import Loaded as Opened
from inward.lm.transformers import TransformersBackend
from inward.testing import FixedRetriever, FunctionLM
from inward.testing_models import tiny_model
from inward.types import Passage

EVIL = "<script>alert('x')</script> | a\nb"
RIGHT_UNAIDED = (0, 1, 2, 3, 4, 5, 6)
MISLED = (1,)
HELPED = (7, 8)
COUNT = 12


def write_questions(path: Path, count: int = COUNT) -> str:
    rows = [
        {
            "id": f"q{n}" if n else f"q0 {EVIL}",
            "question": f"Number {n}? {EVIL if not n else ''}",
            "answers": [f"right{n}"],
            "supporting": ["d"],
        }
        for n in range(count)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return str(path)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three strategies over twelve questions, of which seven are right unaided, one is misled and two are helped by passages."""
    return make_runs(tmp_path_factory.mktemp("runs"))


def make_runs(root: Path) -> Path:
    def reply(prompt: str) -> str:
        last = prompt.rpartition("Number ")[2]
        n = int(re.match(r"\d+", last)[0])  # type: ignore[index]
        looked = "Zymurgia" in prompt
        right = (n in RIGHT_UNAIDED and not (looked and n in MISLED)) or (looked and n in HELPED)
        if n == 11 and looked:
            raise RuntimeError(EVIL)
        return f" So.\nAnswer: {'right' if right else 'wrong'}{n}"

    lm = FunctionLM(reply, scores={"logprobs": lambda text: -0.1 if "right" in text else -1.0})
    index = FixedRetriever([Passage(id="d#0", title="T", text="Zymurgia right3.", score=1.0, metadata={"doc": "d"})])
    strategies = ["no-retrieval", "single-step", {"name": "gated(mean-nll)", "options": {"threshold": 0.5}}]
    config = load_config(
        None, {"strategies": strategies, "data": [write_questions(root / "qa.jsonl")], "out": str(root / "out"), "model": "m"}
    )
    assert len(list(run_suite(config, loaded=Loaded(lambda name, **_: lm, lambda name: index)))) == 3
    return root / "out"


def test_numbers_by_hand(runs: Path):
    gated, unaided = read_scores(runs / "qa/gated(mean-nll)"), read_scores(runs / "qa/no-retrieval")
    found = summarise(gated, unaided)
    assert found.means["em"].value == pytest.approx(9 / 12)
    assert found.means["retrieval"].value == pytest.approx(5 / 12)
    assert found.means["R@5"].value == 1.0
    assert found.means["R@5"].n == 5
    assert found.gate["skip error"].value == 0
    assert found.gate["consistency"].value == 1.0
    assert found.gate["AUROC"].value == 1.0
    assert found.costs["calls"].mean == pytest.approx((12 + 4 + 0) / 12, abs=0.1)
    single = summarise(read_scores(runs / "qa/single-step"), unaided)
    assert single.gate["consistency"].value == pytest.approx(6 / 7)
    assert single.gate["AUROC"].why == "no gate decided anything"
    assert single.means["failed"].value == pytest.approx(1 / 12)


def test_scoring_needs_no_model(runs: Path):
    script = (
        "import sys; from inward.cli import main; code = main(['eval', 'report', sys.argv[1], '--out', sys.argv[2]])\n"
        "raise SystemExit(code or sum(name in sys.modules for name in ('torch', 'transformers', 'tantivy')))"
    )
    out = runs.parent / "reported"
    ran = subprocess.run([sys.executable, "-c", script, str(runs), str(out)], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    assert "3 runs in" in ran.stdout
    metrics = json.loads((runs / "qa/single-step/metrics.json").read_text())
    assert metrics["failures"] == {"q11": f"RuntimeError: {EVIL}"}
    assert metrics["means"]["em"]["n"] == 12


def test_warnings_come_first(runs: Path):
    text = to_markdown(make_report([runs]))
    assert text.index("## Warnings") < text.index("## Results") < text.index("## Differences") < text.index("## Failures")
    assert "qa/single-step: 1 of 12 questions failed and count as wrong" in text
    assert "qa/gated(mean-nll): 1 of 12 questions failed" in text


class Page(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.links: list[str] = []
        self.cells: list[str] = []
        self._open = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.links += [value or "" for name, value in attrs if name in ("src", "href")]


def test_the_page_needs_nothing_and_lets_nothing_out(runs: Path):
    html = to_html(make_report([runs], title=EVIL))
    page = Page()
    page.feed(html)
    assert "script" not in page.tags
    assert page.links == []
    assert page.tags.count("table") == 3
    assert "&lt;script&gt;" in html
    assert "url(" not in html


def test_markdown_keeps_its_tables(runs: Path):
    text = to_markdown(make_report([runs], title=EVIL))
    assert "<script>" not in text
    for block in re.findall(r"(?:^\|.*\n)+", text, re.M):
        widths = {len(re.findall(r"(?<!\\)\|", line)) for line in block.splitlines()}
        assert len(widths) == 1, block


def test_the_tables_hold_every_run_and_differences_are_paired(runs: Path):
    report = make_report([runs])
    assert [row.label for row in report.tables[0].rows] == ["no-retrieval", "single-step", "gated(mean-nll)"]
    assert [row.label for row in report.comparisons[0].rows] == [
        "single-step − no-retrieval",
        "gated(mean-nll) − no-retrieval",
        "gated(mean-nll) − single-step",
    ]
    em = report.comparisons[0].rows[1].cells[0]
    assert em.text == "+0.167"
    assert "p 0.500, corrected 1.000" in em.detail


def test_X8_a_run_compared_with_itself(runs: Path):
    found = compare_runs(runs / "qa/single-step", runs / "qa/single-step")
    assert all((d.delta.value, d.p) == (0, 1) for d in found.differences.values())
    assert (found.better, found.worse, found.shared) == ((), (), 12)


def test_what_changed_is_listed_with_both_answers(runs: Path, capsys: pytest.CaptureFixture[str]):
    found = compare_runs(runs / "qa/single-step", runs / "qa/no-retrieval")
    assert [(c.id, c.a, c.b) for c in found.better] == [("q7", "right7", "wrong7"), ("q8", "right8", "wrong8")]
    assert [(c.id, c.a, c.b) for c in found.worse] == [("q1", "wrong1", "right1")]
    assert found.differences["em"].delta.value == pytest.approx(1 / 12)
    assert found.differences["em"].p == 1.0
    assert "wrong in A, right in B: 1\n  'q1': 'wrong1', 'right1'" in to_text(found)
    assert main(["eval", "compare", str(runs / "qa/single-step"), str(runs / "qa/no-retrieval"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["shared"] == 12


def test_runs_of_different_data_are_not_compared(runs: Path, tmp_path: Path):
    copy = tmp_path / "other"
    copy.mkdir()
    text = (runs / "qa/single-step/outcomes.jsonl").read_text()
    (copy / "outcomes.jsonl").write_text(text.replace("Number 4?", "Something else?"))
    with pytest.raises(UsageError, match="question 'q4' is another one"):
        compare_runs(runs / "qa/single-step", copy)
    (copy / "outcomes.jsonl").write_text(text.replace('"id":"q', '"id":"z'))
    with pytest.raises(UsageError, match="have no question in common"):
        compare_runs(runs / "qa/single-step", copy)
    with pytest.raises(UsageError, match="no run at or below"):
        find_runs([tmp_path / "nowhere"])


def change(runs: Path, tmp_path: Path, edit: Any) -> list[str]:
    """Return the warnings of the gated run once `edit` has been at its records."""
    folder = tmp_path / "qa" / "gated(mean-nll)"
    folder.mkdir(parents=True)
    (folder / "run.json").write_bytes((runs / "qa/gated(mean-nll)/run.json").read_bytes())
    rows = [json.loads(line) for line in (runs / "qa/gated(mean-nll)/outcomes.jsonl").read_text().splitlines()]
    (folder / "outcomes.jsonl").write_text("".join(json.dumps(row) + "\n" for row in edit(rows)))
    return warnings_of(read_scores(folder))


def test_a_gate_that_never_decides_is_named(runs: Path, tmp_path: Path):
    def shut(rows: list[dict]) -> list[dict]:
        for row in rows:
            for step in row["steps"]:
                if step["kind"] == "gated":
                    step["open"] = False
        return rows

    assert "the gate mean-nll was shut every time (12 decisions): its threshold decides nothing" in change(runs, tmp_path, shut)


def test_cut_answers_and_missing_cues_are_counted(runs: Path, tmp_path: Path):
    def odd(rows: list[dict]) -> list[dict]:
        rows[0]["steps"][0]["finishes"] = ["length"]
        rows[1]["flags"] = ["truncated", "no_marker"]
        rows[2]["steps"].append({"kind": "noted", "number": 9, "what": "passages dropped", "detail": "1 of 3"})
        return rows

    found = change(runs, tmp_path, odd)
    assert "2 of 12 answers were cut at the token limit" in found
    assert "1 of 12 answers had no cue and were read from their last sentence" in found
    assert "1 of 12 questions: passages dropped" in found


def test_an_unfinished_run_is_named(runs: Path, tmp_path: Path):
    assert "incomplete: 5 of 12 questions" in change(runs, tmp_path, lambda rows: rows[:5])


def test_a_question_seen_in_training_is_named(runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    (tmp_path / "train.jsonl").write_text('{"id": "t", "question": "number 3", "answers": ["x"]}\n')
    assert main(["eval", "report", str(runs), "--out", str(tmp_path), "--train", str(tmp_path / "train.jsonl")]) == 0
    err = capsys.readouterr().err
    assert err.count("1 of 12 questions were seen in training") == 3


def test_runs_that_differ_in_more_than_the_strategy_are_named(runs: Path, tmp_path: Path):
    for label, seed in (("a", 0), ("b", 1)):
        folder = tmp_path / "qa" / label
        folder.mkdir(parents=True)
        run = msgspec.json.decode((runs / "qa/no-retrieval/run.json").read_bytes())
        run["identity"] |= {"seed": seed, "model_fingerprint": label, "data": label}
        (folder / "run.json").write_bytes(msgspec.json.encode(run))
        (folder / "outcomes.jsonl").write_bytes((runs / "qa/no-retrieval/outcomes.jsonl").read_bytes())
    said = make_report([tmp_path]).warnings
    for what in ("questions", "models", "seeds"):
        assert f"qa: the runs are of different {what}: compare them with care" in said


def test_S5_the_setting_is_in_the_report(runs: Path, tmp_path: Path):
    assert main(["eval", "report", str(runs), "--out", str(tmp_path), "--ignore-identical-ids", "--normaliser", "unicode"]) == 0
    text = (tmp_path / "report.md").read_text()
    assert "A passage with the question's own id is left out." in text
    assert "in the form 'unicode'" in text
    assert (tmp_path / "report.html").read_text().count("left out") == 1


def test_R4_a_template_that_was_left_out_is_in_manifest_and_report(tmp_path: Path):
    seen = {}
    for choice in ("auto", "none"):
        model, tokenizer = tiny_model("llama", chat=True)
        opened = Opened(model=model, tokenizer=tokenizer, generation_config=model.generation_config, name="tiny", chat_template=choice)
        lm = BatchedLM(TransformersBackend(opened))
        data = [write_questions(tmp_path / "qa.jsonl", 2)]
        prompt = tmp_path / "p.toml"
        prompt.write_text("max_tokens = 2\n")
        strategies = [{"name": "no-retrieval", "options": {"prompt": str(prompt)}}]
        config = load_config(None, {"strategies": strategies, "data": data, "out": str(tmp_path / choice), "model": "m"})
        (summary,) = run_suite(config, loaded=Loaded(lambda name, lm=lm, **_: lm, lambda name: FixedRetriever([])))
        scores = read_scores(summary.folder)
        assert ("left it out" in " ".join(warnings_of(scores))) is (choice == "none")
        assert scores.manifest["model"]["chat_template"] == choice
        seen[choice] = scores.manifest["prompts"][0]
    assert seen["auto"]["fingerprint"] == seen["none"]["fingerprint"]
    assert seen["auto"]["as_seen"] != seen["none"]["as_seen"]


def test_each_run_is_set_against_the_unaided_run_of_its_own_prompt_and_model(tmp_path: Path):
    """With the first prompt the model knows everything, with the second two of six; a gate that never opens changes nothing."""
    prompts = {}
    for name in ("p1", "p2"):
        prompts[name] = tmp_path / f"{name}.toml"
        prompts[name].write_text(f'system = "Use {name}."\n')
    rows = [{"id": f"q{n}", "question": f"Number {n}?", "answers": [f"a{n}"]} for n in range(6)]
    (tmp_path / "qa.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))

    def lm(known: int | None) -> FunctionLM:
        def reply(prompt: str) -> str:
            n = int(re.match(r"\d+", prompt.rpartition("Number ")[2])[0])  # type: ignore[index]
            knows = n < known if known is not None else "p1" in prompt or n < 2
            return f" So.\nAnswer: {'a' if knows else 'b'}{n}"

        return FunctionLM(reply, scores={"logprobs": lambda text: -0.1})

    gate = {"name": "gated(mean-nll)", "options": {"threshold": 5.0}}
    settings = [{"label": name, "options": {"prompt": str(path)}} for name, path in prompts.items()]
    plan = {"strategies": ["no-retrieval", gate], "data": [str(tmp_path / "qa.jsonl")], "model": "m"}
    double = lm(None)
    config = load_config(None, {**plan, "settings": settings, "out": str(tmp_path / "out")})
    assert len(list(run_suite(config, loaded=Loaded(lambda name, **_: double, lambda name: FixedRetriever([]))))) == 4
    report = make_report([tmp_path / "out"])
    for label, n in (("p1", 6), ("p2", 2)):
        for strategy in ("no-retrieval", "gated(mean-nll)"):
            found = json.loads((tmp_path / "out/qa" / f"{strategy}-{label}" / "metrics.json").read_text())["gate"]["consistency"]
            assert (found["value"], found["n"]) == (1.0, n)
    assert [row.label for row in report.comparisons[0].rows] == [
        "gated(mean-nll)-p1 − no-retrieval-p1",
        "gated(mean-nll)-p2 − no-retrieval-p2",
    ]
    assert "qa: the runs are of different prompts: compare them with care" in report.warnings

    for name, known in (("one", 6), ("two", 2)):
        double = lm(known)
        double.fingerprint = name  # type: ignore[attr-defined]
        config = load_config(None, {**plan, "out": str(tmp_path / name)})
        list(run_suite(config, loaded=Loaded(lambda name, **_: double, lambda name: FixedRetriever([]))))  # noqa: B023
    report = make_report([tmp_path / "one", tmp_path / "two"])
    found = json.loads((tmp_path / "two/qa/gated(mean-nll)/metrics.json").read_text())["gate"]["consistency"]
    assert (found["value"], found["n"]) == (1.0, 2)
    assert [row.label for row in report.tables[0].rows] == [
        "one/no-retrieval", "two/no-retrieval", "one/gated(mean-nll)", "two/gated(mean-nll)",
    ]  # fmt: skip


def test_a_run_named_twice_is_one_run(runs: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(runs.parent)
    assert len(make_report(["out", runs, runs / "qa"]).tables[0].rows) == 3


def test_a_search_that_always_fails_is_no_skipping(tmp_path: Path):
    class Down:
        async def search(self, query: str, k: int = 5, *, where: object = None) -> list[Passage]:
            raise RuntimeError("search is down")

    config = load_config(
        None, {"strategies": ["single-step"], "data": [write_questions(tmp_path / "qa.jsonl")], "out": str(tmp_path), "model": "m"}
    )
    (summary,) = run_suite(config, loaded=Loaded(lambda name, **_: FunctionLM(lambda prompt: "x"), lambda name: Down()))
    assert len(summary.failed) == 12
    assert summarise(read_scores(summary.folder)).gate["skip error"].why == "no question was answered without retrieval"


def test_a_run_without_outcomes_shows_dashes_and_one_that_repeats_itself_is_refused(runs: Path, tmp_path: Path):
    folder = tmp_path / "qa" / "single-step"
    folder.mkdir(parents=True)
    (folder / "run.json").write_bytes((runs / "qa/single-step/run.json").read_bytes())
    (folder / "outcomes.jsonl").touch()
    (row,) = make_report([tmp_path]).tables[0].rows
    assert {cell.text for cell in row.cells} == {"–"}
    text = (runs / "qa/single-step/outcomes.jsonl").read_bytes()
    (folder / "outcomes.jsonl").write_bytes(b"\n" + text)
    assert len(read_scores(folder).ids) == 12
    (folder / "outcomes.jsonl").write_bytes(text + text)
    with pytest.raises(InwardError, match=r"line 13: question .* is there already, in line 1"):
        make_report([tmp_path])


def test_markdown_lets_no_link_image_or_terminal_sign_through(runs: Path, tmp_path: Path):
    title = "![i](http://e/p.png) [c](javascript:alert(1)) \x1b[31m & `x` *b*"
    first = to_markdown(make_report([runs], title=title)).splitlines()[0]
    assert "\x1b" not in first
    assert "\\!\\[i\\](http" in first
    assert "\\[c\\](java" in first
    assert "&amp; \\`x\\` \\*b\\*" in first


def test_of_two_unaided_runs_the_whole_one_judges_the_gates_and_that_is_said(runs: Path, tmp_path: Path):
    """A copy cut to three questions, whose name comes last, once became the reference of every gate."""
    import shutil

    shutil.copytree(runs / "qa", tmp_path / "qa")
    copy = tmp_path / "qa" / "no-retrieval-backup"
    shutil.copytree(tmp_path / "qa" / "no-retrieval", copy)
    lines = (copy / "outcomes.jsonl").read_bytes().splitlines(keepends=True)
    (copy / "outcomes.jsonl").write_bytes(b"".join(lines[:3]))
    before = (
        json.loads((runs / "qa/gated(mean-nll)/metrics.json").read_text()) if (runs / "qa/gated(mean-nll)/metrics.json").exists() else None
    )
    made = make_report([tmp_path])
    after = json.loads((tmp_path / "qa/gated(mean-nll)/metrics.json").read_text())
    assert after["gate"]["AUROC"]["n"] == 12
    assert before is None or before["gate"] == after["gate"]
    assert any("no-retrieval-backup is an unaided run too; gates are judged by no-retrieval" in text for text in made.warnings)


def test_runs_with_other_gold_answers_are_not_compared(tmp_path: Path):
    for gold in "xy":
        rows = [{"id": f"q{n}", "question": f"Number {n}?", "answers": [gold]} for n in range(4)]
        (tmp_path / f"{gold}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        given = {"strategies": ["no-retrieval"], "data": [{"path": str(tmp_path / f"{gold}.jsonl"), "name": "d"}], "model": "m"}
        config = load_config(None, {**given, "out": str(tmp_path / gold)})
        list(run_suite(config, loaded=Loaded(lambda name, **_: FunctionLM(lambda prompt: "Answer: x"), lambda name: FixedRetriever())))
    with pytest.raises(UsageError, match=r"question 'q0' has other gold answers"):
        compare_runs(tmp_path / "x/d/no-retrieval", tmp_path / "y/d/no-retrieval")
