"""Runs: what they leave on the disk, and that nothing is lost, doubled or done again whatever stops them."""

from __future__ import annotations

import json
import subprocess
import sys
from datetime import date
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import pytest

from inward.calibration import Threshold
from inward.cli import main
from inward.errors import BadInput, InwardError, UnknownName, UsageError
from inward.evals.config import load_config
from inward.evals.folder import RunFolder, read_records, read_run, trec_lines
from inward.evals.questions import text_hash
from inward.evals.record import Record
from inward.evals.score import read_scores, warnings_of
from inward.evals.suite import Loaded, plan_suite, run_suite
from inward.testing import FixedRetriever, FunctionLM
from inward.types import Passage
from knowing import knowing_prober, states_of

HERE = Path(__file__).parent
IGNORED = ("seconds", "device_seconds", "cached_tokens")


def questions(path: Path, count: int = 6) -> str:
    rows = [{"id": f"q {n}", "question": f"Question number {n}?", "answers": [f"a{n}"], "supporting": ["p"]} for n in range(count)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return str(path)


def doubles(asked: list[str] | None = None, fail: tuple[str, ...] = ()) -> Loaded:
    def reply(prompt: str) -> str:
        number = prompt.rpartition("number ")[2].partition("?")[0]
        if asked is not None:
            asked.append(number)
        if number in fail:
            raise RuntimeError(f"no {number}")
        return f" It is so.\nAnswer: a{number}"

    lm = FunctionLM(reply, scores={"logprobs": lambda text: -1.0})
    index = FixedRetriever([Passage(id="p", title="Zymurgia", text="Zymurgia.", score=3.0), Passage(id="p 2", text="more", score=3.0)])
    return Loaded(lambda name, **_: lm, lambda name: index)


def config(tmp_path: Path, **changes: Any) -> Any:
    data = questions(tmp_path / "nq.jsonl")
    given = {"strategies": ["no-retrieval", "single-step"], "data": [data], "out": str(tmp_path / "runs"), "model": "m"}
    return load_config(None, given | changes)


def run(config: Any, loaded: Loaded | None = None, **more: Any) -> list[Any]:
    return list(run_suite(config, loaded=loaded or doubles(), **more))


def plain(path: Path) -> dict[str, Any]:
    """What two runs of the same must agree in, by id."""

    def strip(value: Any) -> Any:
        if isinstance(value, dict):
            return {k: strip(v) for k, v in value.items() if k not in IGNORED}
        return [strip(item) for item in value] if isinstance(value, list) else value

    return {row["id"]: strip(row) for row in map(json.loads, path.read_text(encoding="utf-8").splitlines())}


# -- what is written -----------------------------------------------------------------------------------------


def test_a_run_has_a_folder_with_everything(tmp_path: Path):
    summaries = run(config(tmp_path))
    assert [(s.name, s.questions, s.asked, s.failed) for s in summaries] == [("nq/no-retrieval", 6, 6, ()), ("nq/single-step", 6, 6, ())]
    folder = tmp_path / "runs" / "nq" / "single-step"
    assert {p.name for p in folder.iterdir()} == {"run.json", "outcomes.jsonl", "run.trec", ".lock"}
    records = list(read_records(folder))
    assert [r.id for r in records] == [f"q {n}" for n in range(6)]
    assert all(r.short == f"a{n}" and r.searches and r.used == ("p", "p 2") for n, r in enumerate(records))
    assert (folder / "run.trec").read_text().splitlines()[:2] == [
        "q%200 Q0 p 1 3.000000 single-step",
        "q%200 Q0 p%202 2 2.999999 single-step",
    ]
    run_file = read_run(folder)
    assert run_file is not None
    assert run_file.finished


def test_R1_the_manifest_tells_all_and_two_runs_differ_only_in_times(tmp_path: Path):
    run(config(tmp_path))
    run(config(tmp_path, out=str(tmp_path / "again")))
    one, two = (read_run(tmp_path / out / "nq" / "single-step") for out in ("runs", "again"))
    manifest = one.manifest
    assert manifest["prompts"][0]["text"]["demonstrations"]
    assert len(manifest["prompts"][0]["fingerprint"]) == 64
    assert len(manifest["data"]["sha256"]) == 64
    assert manifest["data"]["ids"] == [f"q {n}" for n in range(6)]
    assert manifest["versions"]["torch"]
    assert manifest["config"]["strategies"][0]["name"] == "no-retrieval"
    differs = {name for name in manifest if manifest[name] != two.manifest[name]}
    assert differs <= {"started", "config"}  # the folder's name is in the configuration
    assert one.identity == two.identity
    assert plain(tmp_path / "runs/nq/single-step/outcomes.jsonl") == plain(tmp_path / "again/nq/single-step/outcomes.jsonl")


def test_scores_in_a_trec_file_fall_also_where_they_are_equal():
    hits = [{"id": f"d{n}", "score": s} for n, s in enumerate([2, 1, 1, 1, 0.5])]
    step = {"kind": "searched", "number": 1, "query": "q", "usage": {}, "hits": hits}
    empty = {
        "question": "q",
        "answers": [],
        "supporting": [],
        "short": "",
        "text": "",
        "flags": [],
        "used": [],
        "passages": {},
        "usage": {},
    }
    record = msgspec.convert({"id": "q", "seconds": 0.0, "steps": [step], **empty}, Record)
    rows = [line.split() for line in trec_lines(record, "t")]
    scores = [float(row[4]) for row in rows]
    assert [row[3] for row in rows] == ["1", "2", "3", "4", "5"]
    assert all(a > b for a, b in pairwise(scores))
    assert {len(row) for row in rows} == {6}


def test_thresholds_are_listed(tmp_path: Path):
    run(config(tmp_path, strategies=[{"name": "gated(mean-nll)", "options": {"threshold": 0.25}}]))
    found = read_run(tmp_path / "runs" / "nq" / "gated(mean-nll)")
    assert found is not None
    assert found.manifest["thresholds"] == [{"option": "threshold", "value": 0.25, "asked": 0.25, "file": None, "sha256": None}]


# -- configuration -------------------------------------------------------------------------------------------


def test_R3_an_unknown_key_is_an_error_with_a_suggestion(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    data = questions(tmp_path / "nq.jsonl")
    for text, message in (
        (f"strategies: [no-retrieval]\ndata: [{data}]\nconcurency: 3\n", "did you mean 'concurrency'"),
        (f"strategies: [no-retrieval]\ndata: [{{path: {data}, limt: 3}}]\n", "unknown key of data[0] 'limt'; did you mean 'limit'"),
        (f"strategies: [{{name: gated, options: {{treshold: 1.2}}}}]\ndata: [{data}]\nmodel: m\n", "did you mean 'threshold'"),
        (f"strategies: [no-retrieval]\ndata: [{data}]\nconcurrency: many\n", "Expected `int`, got `str` - at `$.concurrency`"),
        (f"data: [{data}]\n", "the configuration needs strategies"),
        (f"strategies: [{{options: {{}}}}]\ndata: [{data}]\n", "strategies[0] needs name (str, no default)"),
        (f"strategies: [gated]\ndata: [{data}]\nmodel: m\n", "`gated` needs threshold (float, no default)"),
        ("strategies: [", "is no YAML"),
        ("- 1", "holds no keys, got list"),
        (f"strategies: []\ndata: [{data}]\n", "names no strategy"),
        (f"strategies: [no-retrieval]\ndata: [{data}]\nconcurrency: 0\n", "concurrency must be at least 1, got 0"),
    ):
        (tmp_path / "c.yaml").write_text(text)
        assert main(["eval", "run", str(tmp_path / "c.yaml"), "--out", str(tmp_path / "runs")]) == 2
        assert message in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()


def test_flags_win_over_the_file_and_paths_are_relative_to_it(tmp_path: Path):
    (tmp_path / "sub").mkdir()
    questions(tmp_path / "sub" / "nq.jsonl")
    text = "strategies: [no-retrieval]\ndata: [{path: nq.jsonl, name: n q}]\nout: here\nlimit: 4\nseed: 3\n"
    (tmp_path / "sub" / "c.yaml").write_text(text)
    found = load_config(tmp_path / "sub" / "c.yaml", {"limit": 2, "seed": None})
    assert (found.limit, found.seed, found.out) == (2, 3, str(tmp_path / "sub" / "here"))
    (made,) = plan_suite(found)
    assert str(made) == "n-q/no-retrieval"
    assert len(made.questions.questions) == 2


def test_settings_run_a_strategy_once_with_each_that_it_has(tmp_path: Path):
    settings = [{"label": "k1", "options": {"k": 1}}, {"label": "k2", "options": {"k": 2}}]
    assert [str(made) for made in plan_suite(config(tmp_path, settings=settings))] == [
        "nq/no-retrieval",
        "nq/single-step-k1",
        "nq/single-step-k2",
    ]


def test_two_runs_of_one_name_are_refused(tmp_path: Path):
    with pytest.raises(UsageError, match=r"two runs are called 'nq/no-retrieval'"):
        plan_suite(config(tmp_path, strategies=["no-retrieval", "no-retrieval"]))


def test_mistakes_are_found_before_a_model_is_loaded(tmp_path: Path):
    def never(*_: object, **__: object) -> Any:
        raise AssertionError("loaded")

    bad = tmp_path / "bad.jsonl"
    bad.write_text('{"id": "1", "question": "q"}\n')
    for changes, error in (({"data": [str(bad)]}, BadInput), ({"strategies": ["no-retrievl"]}, UnknownName), ({"limit": 0}, UsageError)):
        with pytest.raises(error):
            run(config(tmp_path, **changes), Loaded(never, never))


def not_finished(folder: Path) -> None:
    held = (folder / "run.json").read_bytes()
    (folder / "run.json").write_bytes(held.replace(b'"finished": true', b'"finished": false'))


# -- going on ------------------------------------------------------------------------------------------------


def test_a_finished_run_is_left_as_it_is_and_no_model_is_loaded(tmp_path: Path):
    run(config(tmp_path))
    folder = tmp_path / "runs" / "nq" / "single-step"
    before = {p.name: p.read_bytes() for p in folder.iterdir()}

    def never(*_: object, **__: object) -> Any:
        raise AssertionError("loaded")

    assert [s.asked for s in run(config(tmp_path), Loaded(never, never))] == [0, 0]
    assert {p.name: p.read_bytes() for p in folder.iterdir()} == before


def test_C1_a_line_cut_in_half_is_asked_again_and_no_other(tmp_path: Path):
    whole = config(tmp_path, strategies=["single-step"])
    run(whole)
    outcomes = tmp_path / "runs/nq/single-step/outcomes.jsonl"
    expected, order = plain(outcomes), list(plain(outcomes))
    lines = outcomes.read_bytes().splitlines(keepends=True)
    outcomes.write_bytes(lines[3] + lines[1] + lines[4][: len(lines[4]) // 2])
    not_finished(outcomes.parent)
    asked: list[str] = []
    (summary,) = run(whole, doubles(asked))
    assert summary.asked == 4
    assert set(asked) == {"0", "2", "4", "5"}
    assert plain(outcomes) == expected
    assert list(plain(outcomes)) == order


def test_a_damaged_line_in_the_middle_is_named(tmp_path: Path):
    run(config(tmp_path))
    outcomes = tmp_path / "runs/nq/single-step/outcomes.jsonl"
    lines = outcomes.read_bytes().splitlines(keepends=True)
    outcomes.write_bytes(lines[0] + b'{"id": "q 1", "que\n' + lines[2])
    with pytest.raises(InwardError, match="line 2 is damaged"):
        run(config(tmp_path))
    outcomes.write_bytes(lines[0] + lines[1] + lines[0])
    with pytest.raises(InwardError, match="line 3: question 'q 0' is there already, in line 1"):
        run(config(tmp_path))


def test_another_run_in_the_same_folder_is_refused(tmp_path: Path):
    run(config(tmp_path))
    for changes, message in (
        ({"seed": 5}, "seed was 0, is now 5"),
        ({"limit": 3}, "questions was 6, is now 3"),
        ({"strategies": [{"name": "single-step", "options": {"k": 2}}]}, "options.k was 5, is now 2"),
        ({"model": "other"}, 'model was "m", is now "other"'),
    ):
        with pytest.raises(UsageError, match="holds another run: .*" + message.replace("{", r"\{")):
            run(config(tmp_path, **changes))


def test_another_model_of_the_same_name_is_refused(tmp_path: Path):
    whole = config(tmp_path, strategies=["no-retrieval"])
    first, second = doubles(), doubles()
    for loaded, name in ((first, "one"), (second, "two")):
        loaded.lm("m", {}).fingerprint = name  # type: ignore[attr-defined]
    run(whole, first)
    outcomes = tmp_path / "runs/nq/no-retrieval/outcomes.jsonl"
    outcomes.write_bytes(b"".join(outcomes.read_bytes().splitlines(keepends=True)[:2]))
    not_finished(outcomes.parent)
    with pytest.raises(UsageError, match='model_fingerprint was "one", is now "two"'):
        run(whole, second)


def test_a_failing_question_is_recorded_and_may_be_asked_again(tmp_path: Path):
    whole = config(tmp_path, strategies=["no-retrieval"])
    (summary,) = run(whole, doubles(fail=("2", "4")))
    assert summary.failed == ("q 2", "q 4")
    records = {r.id: r for r in read_records(summary.folder)}
    assert records["q 2"].error == "RuntimeError: no 2"
    (again,) = run(whole, doubles())
    assert (again.asked, again.failed) == (0, ("q 2", "q 4"))
    asked: list[str] = []
    (cured,) = run(whole, doubles(asked), retry_failed=True)
    assert (cured.asked, cured.failed, sorted(asked)) == (2, (), ["2", "4"])
    assert [r.short for r in read_records(summary.folder)] == [f"a{n}" for n in range(6)]


def test_two_processes_in_one_folder_are_refused(tmp_path: Path):
    whole = config(tmp_path, strategies=["no-retrieval"])
    folder = tmp_path / "runs/nq/no-retrieval"
    script = "import sys; from inward.evals.folder import RunFolder\nwith RunFolder(sys.argv[1]): print(flush=True); input()"
    holder = subprocess.Popen(
        [sys.executable, "-c", script, folder],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert holder.stdout is not None
    holder.stdout.readline()
    with pytest.raises(UsageError, match="another process is running in"):
        run(whole)
    holder.communicate(b"\n", timeout=20)
    assert run(whole)[0].asked == 6


@pytest.mark.parametrize(("fault", "moments"), [("time", 20), ("append", 5), ("fsync", 9), ("replace", 4)])
def test_C1_killed_at_any_moment_nothing_is_lost_doubled_or_done_again(fault: str, moments: int, tmp_path: Path):
    """Twenty random moments; a line written by half; each flush and each renaming of the last files."""
    script = [sys.executable, str(HERE / "run_and_die.py"), str(tmp_path), fault, str(moments), "7"]
    done = subprocess.run(script, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    expected = next((tmp_path / "whole").rglob("outcomes.jsonl"))
    died = 0
    for number, line in enumerate(done.stdout.splitlines()):
        found = json.loads(line)
        died += found["died"]
        outcomes = next((tmp_path / f"run{number}").rglob("outcomes.jsonl"))
        assert found["again"] == 0
        assert plain(outcomes) == plain(expected)
        assert outcomes.read_bytes().count(b"\n") == len(plain(expected))
        assert list(plain(outcomes)) == list(plain(expected)), "not in the order of the questions"
        assert not set(found["asked"]) & set(found["done"]), "a question that was done was asked again"
        assert len(found["asked"]) == len(set(found["asked"]))
        assert (outcomes.parent / "run.trec").read_bytes() == (expected.parent / "run.trec").read_bytes()
        assert found["left"] == [".lock", "outcomes.jsonl", "run.json", "run.trec"]
    assert died >= moments * (0.7 if fault == "time" else 1)


def test_ctrl_c_says_how_to_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    def interrupted(*_: object, **__: object) -> Any:
        raise KeyboardInterrupt
        yield

    monkeypatch.setattr("inward.evals.suite.run_suite", interrupted)
    assert main(["eval", "run", "--strategy", "no-retrieval", "--data", questions(tmp_path / "q.jsonl")]) == 130
    assert "the same command goes on from here" in capsys.readouterr().err


def test_the_lock_is_needed(tmp_path: Path):
    with RunFolder(tmp_path / "run") as one, pytest.raises(UsageError), RunFolder(tmp_path / "run"):
        pass
    assert one.path.exists()


def test_flags_and_set_make_the_same_run_as_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    seen: list[Any] = []

    def look(config: Any, **_: object) -> Any:
        seen.append(config)
        return iter(())

    monkeypatch.setattr("inward.evals.suite.run_suite", look)
    data = questions(tmp_path / "q.jsonl")
    flags = ["--strategy", "single-step", "--data", f"x={data}", "--set", "concurrency=3", "--set", "single-step.k=2", "--limit", "2"]
    assert main(["eval", "run", *flags]) == 0
    (found,) = seen
    assert (found.concurrency, found.limit, found.data[0].name, found.strategies[0].options) == (3, 2, "x", {"k": 2})
    assert main(["eval", "run", *flags, "--set", "singl-step.k=2"]) == 2
    assert "did you mean 'single-step'" in capsys.readouterr().err


def test_a_missing_index_is_found_before_a_model_is_loaded(tmp_path: Path):
    def never(*_: object, **__: object) -> Any:
        raise AssertionError("loaded")

    def no_index(name: str) -> Any:
        raise UsageError(f"no index at {name!r}")

    with pytest.raises(UsageError, match="no index at 'gone'"):
        run(config(tmp_path, index="gone"), Loaded(never, no_index))


@pytest.mark.parametrize("score", [float("nan"), float("inf"), 3e10])
def test_any_score_is_recorded_and_the_run_finished(score: float, tmp_path: Path):
    loaded = doubles()
    passages = [Passage(id=id, title="Zymurgia", text="Zymurgia.", score=score) for id in ("p", "r", "")]
    loaded.load_retriever = lambda name: FixedRetriever(passages)
    whole = config(tmp_path, strategies=["single-step"])
    (summary,) = run(whole, loaded)
    assert (summary.asked, summary.failed) == (6, ())
    assert run(whole, loaded)[0].asked == 0
    rows = [line.split(" ") for line in (tmp_path / "runs/nq/single-step/run.trec").read_text().splitlines()]
    assert {len(row) for row in rows} == {6}
    assert all(float(a[4]) > float(b[4]) for a, b in pairwise(rows) if a[0] == b[0])
    assert len(list(read_records(summary.folder))) == 6


@pytest.mark.parametrize(
    "changes",
    [
        {"strategies": [{"name": "gated(mean-nll)", "options": {"threshold": float("inf")}}]},
        {"model_options": {"max_memory": {0: "1GB"}}},
        {"model_options": {"day": date(2020, 1, 1), "pair": (1, 2)}},
    ],
)
def test_a_run_knows_itself_again_whatever_json_makes_of_it(changes: dict[str, Any], tmp_path: Path):
    run(config(tmp_path, **changes))
    assert {s.asked for s in run(config(tmp_path, **changes))} == {0}
    other = {"strategies": [{"name": "gated(mean-nll)", "options": {"threshold": 1.0}}], "model_options": {"day": 1}}
    with pytest.raises(UsageError, match="holds another run"):
        run(config(tmp_path, **{name: other[name] for name in changes}))


def test_what_failed_is_kept_until_it_can_be_asked_again(tmp_path: Path):
    whole = config(tmp_path, strategies=["no-retrieval"])
    first = doubles(fail=("2", "4"))
    first.lm("m", {}).fingerprint = "one"  # type: ignore[attr-defined]
    run(whole, first)
    before = (tmp_path / "runs/nq/no-retrieval/outcomes.jsonl").read_bytes()

    def gone(*_: object, **__: object) -> Any:
        raise OSError("the model is gone")

    second = doubles()
    second.lm("m", {}).fingerprint = "two"  # type: ignore[attr-defined]
    for loaded, error in ((Loaded(gone, gone), OSError), (second, UsageError)):
        with pytest.raises(error):
            run(whole, loaded, retry_failed=True)
        assert (tmp_path / "runs/nq/no-retrieval/outcomes.jsonl").read_bytes() == before
    assert run(whole, first)[0].failed == ("q 2", "q 4")


def test_a_blank_line_is_none(tmp_path: Path):
    whole = config(tmp_path, strategies=["no-retrieval"])
    run(whole)
    outcomes = tmp_path / "runs/nq/no-retrieval/outcomes.jsonl"
    expected = plain(outcomes)
    outcomes.write_bytes(b"\n" + outcomes.read_bytes().replace(b"\n", b"\n\n", 2))
    not_finished(outcomes.parent)
    assert run(whole)[0].asked == 0
    assert plain(outcomes) == expected


def test_changed_gold_is_another_run(tmp_path: Path):
    whole = config(tmp_path, strategies=["single-step"])
    run(whole)
    text = (tmp_path / "nq.jsonl").read_text()
    (tmp_path / "nq.jsonl").write_text(text.replace('"supporting": ["p"]', '"supporting": ["other"]'))
    with pytest.raises(UsageError, match="holds another run: data was"):
        run(
            load_config(
                None, {"strategies": ["single-step"], "data": [str(tmp_path / "nq.jsonl")], "out": str(tmp_path / "runs"), "model": "m"}
            )
        )


def test_lists_that_are_none_and_values_that_are_typed_are_explained(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    data = questions(tmp_path / "x=1.jsonl")
    for text, message in (
        (f"strategies: no-retrieval\ndata: ['{data}']\n", "strategies is a list, such as [no-retrieval, single-step], got 'no-retrieval'"),
        ("strategies: [no-retrieval]\ndata: nq.jsonl\n", "data is a list, such as [questions.jsonl], got 'nq.jsonl'"),
        ("strategies: 5\ndata: 5\n", "strategies is a list"),
        (f"strategies: [no-retrieval]\ndata: ['{data}']\nsettings: 5\n", "settings is a list"),
        (f"strategies: {{name: no-retrieval}}\ndata: ['{data}']\n", "got {'name': 'no-retrieval'}"),
        (f"strategies: [null]\ndata: ['{data}']\n", "strategies[0] must hold keys"),
    ):
        (tmp_path / "c.yaml").write_text(text)
        assert main(["eval", "run", str(tmp_path / "c.yaml")]) == 2
        assert message in capsys.readouterr().err
    for flags, message in (
        (["--data", "x="], "--data takes [NAME=]PATH, got 'x='"),
        (["--data", data, "--set", "strategies=5"], "strategies is a list"),
        (["--data", data, "--set", "model_options.dtpe=x"], "unknown option of load_lm 'dtpe'; did you mean 'dtype'"),
    ):
        assert main(["eval", "run", "--strategy", "no-retrieval", "--out", str(tmp_path / "out"), *flags]) == 2
        assert message in capsys.readouterr().err


def test_prompts_of_settings_are_relative_to_the_file_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir("/")
    questions(tmp_path / "nq.jsonl")
    (tmp_path / "p.toml").write_text("max_tokens = 3\n")
    (tmp_path / "c.yaml").write_text("strategies: [no-retrieval]\ndata: [nq.jsonl]\nsettings: [{label: p, options: {prompt: p.toml}}]\n")
    (made,) = plan_suite(load_config(tmp_path / "c.yaml", {}))
    assert made.strategy.options.values["prompt"].max_tokens == 3


def test_an_option_that_no_strategy_has_is_refused_in_a_setting_too(tmp_path: Path):
    with pytest.raises(UnknownName, match=r"'kk'.* k"):
        run(config(tmp_path, settings=[{"label": "k1", "options": {"kk": 1}}]))
    with pytest.raises(UnknownName, match="promt"):
        run(config(tmp_path, settings=[{"label": "k1", "options": {"k": 1, "promt": "p.toml"}}]))


def test_outcomes_of_an_unknown_run_are_not_adopted(tmp_path: Path):
    run(config(tmp_path, strategies=["no-retrieval"]))
    folder = tmp_path / "runs" / "nq" / "no-retrieval"
    (folder / "run.json").write_text('{"format": 1,')
    with pytest.raises(UsageError, match="delete this whole folder"):
        run(config(tmp_path, strategies=["no-retrieval"], seed=7))
    (folder / "run.json").unlink()
    with pytest.raises(UsageError, match=r"there is no run\.json.*delete this whole folder"):
        run(config(tmp_path, strategies=["no-retrieval"], seed=7))


def test_models_are_told_apart_by_name_and_options(tmp_path: Path):
    made: list[tuple[str, dict[str, Any]]] = []

    def load(name: str, **options: Any) -> FunctionLM:
        made.append((name, options))
        return FunctionLM(lambda prompt: f"Answer: {name}")

    loaded = Loaded(load, lambda name: FixedRetriever())
    for model, dtype in (("A", "x"), ("B", "x"), ("B", "y"), ("B", "y")):
        whole = config(
            tmp_path, strategies=["no-retrieval"], out=str(tmp_path / f"{model}{dtype}"), model=model, model_options={"dtype": dtype}
        )
        run(whole, loaded)
        said = {record.short for record in read_records(tmp_path / f"{model}{dtype}" / "nq" / "no-retrieval")}
        assert said == {model}
    assert made == [("A", {"dtype": "x"}), ("B", {"dtype": "x"}), ("B", {"dtype": "y"})]


def test_a_run_is_the_same_whatever_folder_the_command_is_given_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    home = tmp_path / "home"
    home.mkdir()
    questions(home / "nq.jsonl")
    (home / "idx").mkdir()
    (home / "suite.yaml").write_text("strategies: [single-step]\ndata: [nq.jsonl]\nindex: idx\nmodel: m\nout: runs\n")
    monkeypatch.chdir(tmp_path)
    run(load_config("home/suite.yaml", {}))
    monkeypatch.chdir(home)
    (summary,) = run(load_config("suite.yaml", {}))
    assert summary.asked == 0


def test_what_an_anchor_names_twice_is_there_twice(tmp_path: Path):
    (tmp_path / "p.toml").write_text('system = "x"\n')
    questions(tmp_path / "nq.jsonl")
    (tmp_path / "suite.yaml").write_text(
        "strategies:\n- {name: no-retrieval, options: &o {prompt: p.toml}}\n- {name: single-step, options: *o}\n"
        "data: [nq.jsonl]\nmodel: m\n"
    )
    read = load_config(tmp_path / "suite.yaml", {})
    assert [strategy.options["prompt"] for strategy in read.strategies] == [str(tmp_path / "p.toml")] * 2


def test_a_record_whose_passage_is_gone_is_damaged(tmp_path: Path):
    run(config(tmp_path, strategies=["single-step"]))
    file = tmp_path / "runs" / "nq" / "single-step" / "outcomes.jsonl"
    file.write_text(file.read_text().replace('"passages":{"p":', '"passages":{"lost":', 1))
    with pytest.raises(InwardError, match=r"question 'q 0' is damaged: passage 'p' was found and is not there"):
        list(read_records(file.parent))


def test_a_probers_training_questions_and_the_file_of_its_threshold_are_on_record(tmp_path: Path):
    hashes = tuple(text_hash(f"question NUMBER {n}") for n in (2, 4))
    knowing_prober(question_hashes=hashes).save_pretrained(tmp_path / "p")
    (tmp_path / "t.json").write_bytes(msgspec.json.encode(Threshold(value=1.5, name="x", n=3, retrieval_rate=0.5, scale="logits")))
    questions(tmp_path / "nq.jsonl")
    (tmp_path / "suite.yaml").write_text(
        "strategies:\n- {name: probing-rag, options: {prober: p, threshold: t.json}}\ndata: [nq.jsonl]\nmodel: m\nout: out\n"
    )
    lm = FunctionLM(lambda prompt: "Answer: Paris", states=states_of)
    (summary,) = run_suite(load_config(tmp_path / "suite.yaml", {}), loaded=Loaded(lambda name, **_: lm, lambda name: FixedRetriever()))
    manifest = read_run(summary.folder).manifest
    (threshold,) = manifest["thresholds"]
    assert (threshold["value"], threshold["file"]) == (1.5, str(tmp_path / "t.json"))
    assert len(threshold["sha256"]) == 64
    said = warnings_of(read_scores(summary.folder))
    assert any(text.startswith("2 of 6 questions were seen in training") for text in said)
