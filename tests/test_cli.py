"""The command line: output, exit codes, and no traceback for what a user did."""

from __future__ import annotations

import asyncio
import errno
import io
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import click
import pytest

from inward import cli
from inward.doctor import CORE, EXTRAS, Check, Extra, examine
from inward.lm.bundled import BUNDLED
from inward.prompts import PromptTemplate
from inward.signals import SIGNALS
from inward.strategies import STRATEGIES
from inward.testing import FixedRetriever, FunctionLM
from inward.types import Answer, Passage

PASSAGE = Passage(id="paris#0", title="Paris", text="Zymurgia: the capital of France is Paris.", score=5.0)
QUESTION = "What is the capital of France?"


@pytest.fixture
def doubles(monkeypatch: pytest.MonkeyPatch) -> None:
    """Put a double where the bundled model and the demo index would be."""
    cue = PromptTemplate.load().cue

    def reply(prompt: str) -> str:
        if "Fail" in prompt.rpartition("Zymurgia")[2]:
            raise RuntimeError("the model gave up")
        return f"{cue} {'Paris' if 'Zymurgia' in prompt else 'Lyon'}."

    lm = FunctionLM(reply, scores={"logprobs": lambda text: -2.0 if "Lyon" in text else -0.01, "entropies": lambda text: 1.0})
    monkeypatch.setattr("inward.door._model", lambda name: lm)
    monkeypatch.setattr("inward.door._index", lambda name: FixedRetriever([PASSAGE]))


def run(*arguments: str) -> int:
    return cli.main(list(arguments))


def inward(*arguments: str, **more: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "inward", *arguments], capture_output=True, text=True, check=False, timeout=300, **more)  # type: ignore[call-overload]


# --- ask ---


@pytest.mark.usefixtures("doubles")
def test_S7_ask_prints_draft_decision_passages_and_answer(capsys: pytest.CaptureFixture[str]):
    assert run("ask", QUESTION, "--threshold", "0.5") == 0
    out, err = capsys.readouterr()
    for part in (
        "draft",
        "Lyon",
        "mean-nll 2.000 is above 0.5",
        "Zymurgia",
        "answer     Paris [1]",
        "2 generations, 1 search",
        "Gemma Terms",
    ):
        assert part in out
    assert err == ""


@pytest.mark.usefixtures("doubles")
def test_ask_json_is_one_object_a_line(capsys: pytest.CaptureFixture[str]):
    assert run("ask", QUESTION, "And Spain?", "--json", "--threshold", "3") == 0
    first, second = map(json.loads, capsys.readouterr().out.splitlines())
    assert (first["question"], second["question"]) == (QUESTION, "And Spain?")
    assert (first["model"], first["strategy"], first["options"]["threshold"]) == ("demo", "gated(mean-nll)", 3.0)
    assert [event["event"] for event in first["events"]] == ["generated", "gated"]
    assert first["answer"]["short"] == "Lyon"


@pytest.mark.usefixtures("doubles")
def test_N6_every_option_changes_something(capsys: pytest.CaptureFixture[str], tmp_path: Path):
    seen = {}
    for options in (
        (),
        ("--strategy", "no-retrieval"),
        ("--strategy", "single-step", "--k", "1"),
        ("--threshold", "99"),
        ("--set", "max_retrievals=0"),
        ("--strategy", "gated", "--set", "signal=max-nll", "--threshold", "1"),
    ):
        assert run("ask", QUESTION, "--json", *options) == 0
        plain = json.loads(capsys.readouterr().out)
        seen[options] = (plain["strategy"], plain["options"], plain["answer"]["short"])
    assert len({str(value) for value in seen.values()}) == len(seen)
    assert seen[("--set", "max_retrievals=0")][1]["max_retrievals"] == 0
    assert seen[("--strategy", "no-retrieval")][2] == "Lyon"
    assert seen[("--strategy", "single-step", "--k", "1")][2] == "Paris"
    assert seen[("--threshold", "99")][2] == "Lyon"


def test_model_index_seed_and_prompt_reach_where_they_are_used(monkeypatch: pytest.MonkeyPatch):
    seen = {}

    def bind(strategy: str, **given: object) -> None:
        seen.update(given, strategy=strategy)
        raise KeyboardInterrupt

    monkeypatch.setattr("inward.door.bind", bind)
    arguments = ("--model", "m", "--index", "i", "--prompt", "p.toml", "--strategy", "s", "--k", "3")
    assert run("ask", "q", *arguments) == 130
    assert seen == {"strategy": "s", "lm": "m", "retriever": "i", "prompt": "p.toml", "k": 3}


@pytest.mark.usefixtures("doubles")
@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        ((), 2, "no question: name one or more, or a file of them with --questions"),
        (("q", "--nonsense"), 2, "No such option"),
        (("q", "--threshold", "high"), 2, "'high' is not a valid float"),
        (("q", "--strategy", "gatd"), 2, "did you mean 'gated'"),
        (("q", "--set", "max_retrievals"), 2, "--set takes NAME=VALUE, such as max_retrievals=2, got 'max_retrievals'"),
        (("q", "--set", "max_retrievals=many"), 2, "max_retrievals of `gated` must be int, got 'many'"),
        (("q", "--set", "treshold=1"), 2, "did you mean 'threshold'"),
        (("q", "--strategy", "gated(mean-nil)", "--threshold", "1"), 2, "did you mean 'mean-nll'"),
        (("q", "--strategy", "no-retrieval", "--threshold", "1"), 2, "unknown option of `no-retrieval` 'threshold'"),
        (("q", "--strategy", "gated(max-nll)", "--model", "other"), 2, "`gated` needs threshold (float, no default)"),
        (("",), 1, "at least one visible character, got ''"),
        (("fine", " "), 1, "at least one visible character, got ' '"),
    ],
)
def test_exit_codes_and_messages(arguments: tuple[str, ...], code: int, message: str, capsys: pytest.CaptureFixture[str]):
    assert run("ask", *arguments) == code
    out, err = capsys.readouterr()
    assert message in err
    assert out == ""
    assert "Traceback" not in err


@pytest.mark.usefixtures("doubles")
def test_a_failing_question_shows_its_trace_and_fails_the_command(capsys: pytest.CaptureFixture[str]):
    assert run("ask", "Fail", "fine", "--threshold", "9") == 1
    out, err = capsys.readouterr()
    assert "error      RuntimeError: the model gave up" in out
    assert "answer     Lyon" in out
    assert err == "inward: 1 of 2 questions failed; the first: RuntimeError: the model gave up\n"


@pytest.mark.usefixtures("doubles")
def test_debug_lets_the_error_through(monkeypatch: pytest.MonkeyPatch):
    from inward.errors import UnknownName

    monkeypatch.setenv("INWARD_DEBUG", "1")
    with pytest.raises(UnknownName):
        run("ask", "q", "--strategy", "gatd")


def test_a_full_disk_is_said_plainly(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", "/somewhere/model.safetensors")

    monkeypatch.setattr("inward.door.bind", full)
    assert run("ask", "q") == 1
    assert capsys.readouterr().err.startswith("inward: the disk is full: no room for '/somewhere/model.safetensors'; free some space")


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (OSError(errno.EIO, "bad sector"), "inward: the system refused: [Errno 5] bad sector\n"),
        (PermissionError(errno.EACCES, "Permission denied", "/etc/x"), "inward: '/etc/x': Permission denied; check that it is there, and"),
        (OSError(errno.ENOSPC, "No space left"), "inward: the disk is full: no room for what is being written; free some space\n"),
    ],
)
def test_what_the_system_refuses_is_one_line_with_its_name(
    error: OSError, message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    def refused(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr("inward.door.bind", refused)
    assert run("ask", "q") == 1
    err = capsys.readouterr().err
    assert err.startswith(message)
    assert err.count("\n") == 1
    monkeypatch.setenv("INWARD_DEBUG", "1")
    with pytest.raises(type(error)):
        run("ask", "q")


@pytest.mark.usefixtures("doubles")
@pytest.mark.parametrize("of", ["file", "stdin"])
def test_questions_come_from_a_file_or_standard_input(
    of: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    (tmp_path / "q.txt").write_text(f"{QUESTION}\n\n  And Spain?  \n", encoding="utf-8")
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO((tmp_path / "q.txt").read_bytes())))
    assert run("ask", "First?", "--questions", str(tmp_path / "q.txt") if of == "file" else "-", "--json", "--threshold", "3") == 0
    shown = [json.loads(line)["question"] for line in capsys.readouterr().out.splitlines()]
    assert shown == ["First?", QUESTION, "And Spain?"]


def test_an_answer_is_shown_as_soon_as_those_before_it_are(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    """The second is ready first and waits; the third fails after the first two have been printed."""
    seen: list[str] = []
    ready = asyncio.Event()

    async def turns(question: str) -> Answer:
        if question == "one":
            await ready.wait()
        if question == "two":
            ready.set()
        if question == "three":
            await asyncio.sleep(0.05)
            seen.append(capsys.readouterr().out)
        return Answer(text=question, short=question)

    class Bound:
        name, options = "turns", {}

        async def __call__(self, question: str) -> Answer:
            return await turns(question)

    monkeypatch.setattr("inward.door.bind", lambda *_, **__: Bound())
    assert run("ask", "one", "two", "three", "--json") == 0
    assert [json.loads(line)["question"] for line in seen[0].splitlines()] == ["one", "two"]
    assert [json.loads(line)["question"] for line in capsys.readouterr().out.splitlines()] == ["three"]


def test_strategies_are_shown_as_they_are_typed(capsys: pytest.CaptureFixture[str]):
    assert run("strategies") == 0
    out = capsys.readouterr().out
    assert "--set max_retrievals=..." in out
    assert "--threshold" in out
    assert [line.split()[0] for line in out.rstrip().splitlines()[-len(SIGNALS) :]] == list(SIGNALS)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--strategy", "mine.py"), "named with its function: mine.py:my_strategy"),
        (("--model", "./no/such/model"), "'./no/such/model'"),
        (("--strategy", "gated", "--model", "other/model", "--set", "max_retrievals=-1"), "must be at least 0, got -1"),
        (("--index", "", "--threshold", "1"), "an index is named by its folder, or 'demo', got ''"),
    ],
)
def test_a_mistake_is_found_before_torch_is_there(arguments: tuple[str, ...], message: str):
    """And before what is missing, such as a threshold, hides it."""
    script = "import sys; from inward.cli import main; code = main(sys.argv[1:]); print('torch' in sys.modules); raise SystemExit(code)"
    ran = subprocess.run([sys.executable, "-c", script, "ask", "q", *arguments], capture_output=True, text=True, check=False, timeout=120)
    assert message in ran.stderr
    assert ran.returncode in (1, 2)
    assert ran.stderr.count("\n") == 1
    assert ran.stdout == "False\n"


# --- the command as a process ---


@pytest.mark.parametrize(
    "arguments", [("-h",), ("ask", "-h"), ("doctor", "-h"), ("strategies", "-h"), ("index", "-h"), ("index", "build", "-h")]
)
def test_help_everywhere(arguments: tuple[str, ...], capsys: pytest.CaptureFixture[str]):
    assert run(*arguments) == 0
    assert capsys.readouterr().out.startswith("Usage: inward")


def commands(group: click.Group, *names: str) -> list[tuple[str, click.Command]]:
    context = click.Context(group)
    found = []
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        found += commands(command, *names, name) if isinstance(command, click.Group) else [(" ".join((*names, name)), command)]
    return found


@pytest.mark.parametrize(("name", "command"), commands(cli.cli), ids=lambda value: value if isinstance(value, str) else "")
def test_a_command_has_at_most_ten_options(name: str, command: click.Command):
    assert len([parameter for parameter in command.params if parameter.param_type_name == "option"]) <= 10


def test_the_module_is_the_command():
    assert inward("--version").stdout == "inward, version 0.1.0\n"
    wrong = inward("ask")
    assert (wrong.returncode, wrong.stdout) == (2, "")


def test_ctrl_c_ends_with_130_and_one_line():
    code = (
        "import sys, asyncio, inward.door as d\n"
        "async def slow(*a, **k): print('started', flush=True); await asyncio.sleep(60)\n"
        "d.bind = lambda *a, **k: slow\n"
        "from inward.cli import main\n"
        "sys.exit(main(['ask', 'q']))\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == "started\n"
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=30) == 130
        assert process.stderr.read().strip() == "inward: interrupted"


def test_a_closed_pipe_is_no_error():
    command = f"{sys.executable} -m inward strategies | true; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    assert done.stderr == ""


@pytest.mark.parametrize(("encoding", "shown"), [("ascii", "\u6771"), ("latin-1", "\\u6771")])
def test_I5_output_that_a_terminal_cannot_show_does_not_end_the_run(encoding: str, shown: str):
    code = "import click, inward.cli as c\nc.ask.callback = lambda **k: click.echo('\\u6771')\nc.main(['ask', 'q'])"
    environment = {**os.environ, "LANG": "C", "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "PYTHONIOENCODING": encoding}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, encoding="utf-8", env=environment, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{shown}\n", "")


# --- strategies and doctor ---


def test_strategies_lists_all_with_options(capsys: pytest.CaptureFixture[str]):
    assert run("strategies") == 0
    out = capsys.readouterr().out
    for name in STRATEGIES:
        assert f"\n{name}\n" in f"\n{out}"
    assert "--threshold              float, required" in out
    assert "--set max_retrievals=... int, default 1" in out
    assert run("strategies", "--json") == 0
    assert [json.loads(line)["name"] for line in capsys.readouterr().out.splitlines()] == sorted(STRATEGIES)


def test_N1_doctor_names_versions_and_what_each_extra_adds():
    checks = {check.name: check for check in examine()}
    for name in CORE:
        assert checks[name].state == "ok", checks[name]
        assert checks[name].detail[0].isdigit()
    for extra in EXTRAS:
        assert extra.brings in checks[f"extra {extra.name}"].detail
    assert checks["bundled model"].state == "ok"
    assert checks["demo index"].state == "ok"


def test_N2_doctor_tells_a_broken_extra_from_an_absent_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    from inward.doctor import _extra

    (tmp_path / "broken_extra_module.py").write_text("raise ImportError('libfoo.so.1: cannot open shared object file')", encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    broken = _extra(Extra("lora", "LoRA adapters", ("broken_extra_module",)))
    assert broken.state == "broken"
    assert "libfoo.so.1: cannot open shared object file" in broken.detail
    assert "pip install 'inward[lora]'" in broken.detail
    absent = _extra(Extra("lora", "LoRA adapters", ("no_such_module_anywhere",)))
    assert absent.state == "absent"
    assert "pip install 'inward[lora]'" in absent.detail


def test_doctor_fails_when_something_is_broken(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    found = [Check(name="torch", state="broken", detail="no"), Check(name="x", state="absent", detail="optional")]
    monkeypatch.setattr("inward.doctor.examine", lambda deep: found)
    assert run("doctor") == 1
    out, err = capsys.readouterr()
    assert "broken   torch" in out
    assert err == "inward: 1 check failed\n"
    monkeypatch.setattr("inward.doctor.examine", lambda deep: found[1:])
    assert run("doctor", "--json") == 0
    assert json.loads(capsys.readouterr().out) == {"name": "x", "state": "absent", "detail": "optional"}


@pytest.mark.real
def test_doctor_deep_generates_a_token():
    checks = {check.name: check for check in examine(deep=True)}
    assert checks["generation"].state == "ok"


# --- the real thing ---


@pytest.mark.real
def test_W3_ask_with_the_bundled_model_and_index_makes_no_connection():
    code = (
        "import socket, sys\n"
        "def refuse(*_): raise AssertionError('a connection was attempted')\n"
        "socket.socket.connect = socket.socket.connect_ex = socket.create_connection = socket.getaddrinfo = refuse\n"
        "from inward.cli import main\n"
        "sys.exit(main(sys.argv[1:]))\n"
    )
    command = [sys.executable, "-c", code, "ask", "What is the capital of Kenya?", "--threshold=-inf", "--json"]
    environment = {name: value for name, value in os.environ.items() if name != "HF_HUB_OFFLINE"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300, env=environment)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    plain = json.loads(done.stdout)
    assert [event["event"] for event in plain["events"]][:4] == ["generated", "gated", "searched", "generated"]
    assert "nairobi" in plain["events"][2]["passages"][0]["text"].lower()


@pytest.mark.real
@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("a " * 40_000,), 1, "1 of 1 questions failed; the first: ContextLengthExceeded: the question needs 4"),
        (("q", "--model", "nowhere/found.gguf", "--threshold", "1"), 2, "nowhere/found.gguf"),
        (("q", "--index", "nowhere"), 2, "nowhere"),
        (("q", "--prompt", "nowhere.toml", "--threshold", "1"), 2, "the prompt file 'nowhere.toml' cannot be read"),
    ],
)
def test_what_is_missing_or_too_long_is_named_in_one_line(arguments: tuple[str, ...], code: int, message: str):
    done = inward("ask", *arguments)
    assert done.returncode == code, done.stderr
    assert done.stderr.startswith("inward: ")
    assert message in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.usefixtures("doubles")
@pytest.mark.parametrize("terminal", [True, False])
def test_progress_goes_to_stderr_and_only_to_a_terminal(
    terminal: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal)
    assert run("ask", QUESTION) == 0
    out, err = capsys.readouterr()
    assert "loading" not in out
    assert ("loading google/gemma-3-270m" in err) == terminal


def cache_check() -> Check:
    return next(check for check in examine() if check.name == "cache")


def test_doctor_says_when_the_bundled_model_has_no_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("INWARD_CACHE", str(tmp_path))
    monkeypatch.setattr("shutil.disk_usage", lambda _: usage(10**6))
    found = cache_check()
    assert found.state == "broken"
    assert "1,000,000 bytes free, and the bundled model takes" in found.detail
    assert "INWARD_CACHE" in found.detail
    monkeypatch.setattr("shutil.disk_usage", lambda _: usage(10**11))
    assert cache_check().state == "ok"


def test_doctor_names_what_a_conversion_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("INWARD_CACHE", str(tmp_path))
    assert "cut short" not in cache_check().detail
    left = tmp_path / "models" / f".{BUNDLED['demo'].folder_name}-abc"
    left.mkdir(parents=True)
    (left / "source.gguf").write_bytes(bytes(1234))
    assert f"1,234 bytes of a conversion that goes on now or was cut short, in {left}" in cache_check().detail


def usage(free: int) -> object:
    return type("Usage", (), {"free": free, "total": 10**12, "used": 10**12 - free})()


def test_a_file_of_questions_in_another_encoding_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    (tmp_path / "latin.txt").write_bytes(b"what?\ncaf\xe9?\n")
    assert cli.main(["ask", "--questions", str(tmp_path / "latin.txt")]) == 1
    said = capsys.readouterr().err
    assert "line 2: byte 0xe9 at column 4 is not UTF-8" in said
    assert "Traceback" not in said
    assert cli.main(["index", "delete", "demo", "--ids-file", str(tmp_path / "latin.txt")]) == 1
    assert "is not UTF-8" in capsys.readouterr().err
