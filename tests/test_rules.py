"""Rules of the house that a reviewer would otherwise have to remember. Each reads the source and names the offender."""

from __future__ import annotations

import ast
import importlib
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

import inward
from inward.strategies import STRATEGIES

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "src" / "inward"
SOURCES = sorted(PACKAGE.rglob("*.py"))

LAYERS = (
    ("cache", "errors", "types", "whole"),
    ("explain", "flags", "loading_code", "sentences", "textfile", "trace"),
    ("protocols",),
    ("batching", "prompts"),
    ("lm", "retrieval"),
    ("calibration", "probers", "signals"),
    ("strategies",),
    ("evals", "training"),
    ("door",),
    ("doctor", "server"),
    ("cli", "commands_data", "commands_eval", "commands_index", "commands_metrics", "commands_prober", "__main__"),
)
"""What stands further down imports what stands further up or beside it, never the reverse."""
RANK = {name: rank for rank, names in enumerate(LAYERS) for name in names}
ANYWHERE = ("testing", "testing_models", "__init__", "demo")
"""`testing` may import `lm`; `__init__` re-exports lazily."""

BROAD_EXCEPT = {"evals/run.py", "batching.py"}
FORBIDDEN_NAMES = {"utils", "util", "common", "helpers", "helper", "manager", "base", "misc"}
FILE_LINES, FUNCTION_LINES, STRATEGY_LINES = 400, 60, 80


def name_of(path: Path) -> str:
    return path.relative_to(PACKAGE).as_posix()


def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def room(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imported_rooms(module: ast.Module) -> Iterator[tuple[str, int]]:
    """Rooms of the package that a module imports when it runs; what only a type checker reads does not count."""
    skipped = {
        inner
        for node in ast.walk(module)
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
        for inner in ast.walk(node)
    }
    for node in ast.walk(module):
        if node in skipped:
            continue
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "inward":
            parts = node.module.split(".")
            for room in [parts[1]] if len(parts) > 1 else [alias.name for alias in node.names]:
                yield room, node.lineno
        elif isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.startswith("inward."):
                    yield alias.name.split(".")[1], node.lineno


def cleans_up(handler: ast.ExceptHandler) -> bool:
    """Whether it raises again whatever it caught."""
    last = handler.body[-1]
    return isinstance(last, ast.Raise) and last.exc is None


def test_public_names_are_sorted_and_exist():
    names = inward.__all__
    assert names == sorted(names)
    assert set(names) - {"__version__"} == set(inward._PUBLIC)
    for name in names:
        getattr(inward, name)
    assert set(names) <= set(dir(inward))
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        inward.nothing  # noqa: B018


def test_every_place_states_the_same_version():
    assert f'version = "{inward.__version__}"' in (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert f"version: {inward.__version__}\n" in (ROOT / "CITATION.cff").read_text(encoding="utf-8")


def test_N1_the_core_pulls_no_other_engine():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    names = {re.split(r"[<>=\[ ]", line)[0].lower() for line in project["dependencies"]}
    assert not names & {
        "faiss-cpu",
        "faiss-gpu",
        "vllm",
        "spacy",
        "nltk",
        "pyserini",
        "elasticsearch",
        "accelerate",
        "peft",
        "bitsandbytes",
    }
    assert not [name for name in names if "gguf" in name]


def test_import_inward_loads_nothing_heavy():
    heavy = ["torch", "transformers", "tantivy", "numpy", "click", "msgspec", "gguf", "peft"]
    code = f"import sys, inward; print([m for m in {heavy!r} if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == "[]"


def test_the_command_line_starts_without_torch():
    code = "import sys, inward.cli; print([m for m in ('torch', 'transformers', 'tantivy') if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == "[]"


@pytest.mark.parametrize("path", SOURCES, ids=name_of)
def test_imports_follow_the_layers(path: Path):
    here = room(path)
    if here in ANYWHERE:
        return
    assert here in RANK, f"{name_of(path)}: say in LAYERS where it stands"
    for other, line in imported_rooms(tree(path)):
        assert other in RANK or other == "__version__", f"{name_of(path)}:{line} imports {other}, which is in no layer"
        assert RANK.get(other, 0) <= RANK[here], f"{name_of(path)}:{line}: {here} must not import {other}"


def test_the_layer_check_can_fail():
    module = ast.parse("from inward.cli import main\nimport inward.lm.decode\nfrom inward import __version__")
    assert [other for other, _ in imported_rooms(module)] == ["cli", "lm", "__version__"]


@pytest.mark.parametrize("path", SOURCES, ids=name_of)
def test_no_print_and_no_broad_except(path: Path):
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            assert node.func.id != "print", f"{name_of(path)}:{node.lineno} prints"
        if isinstance(node, ast.ExceptHandler) and name_of(path) not in BROAD_EXCEPT and not cleans_up(node):
            caught = {name.id for name in ast.walk(node.type) if isinstance(name, ast.Name)} if node.type else {"BaseException"}
            assert not caught & {"Exception", "BaseException"}, f"{name_of(path)}:{node.lineno} catches everything"


@pytest.mark.parametrize("path", SOURCES, ids=name_of)
def test_modules_are_nouns_of_the_domain_and_stay_short(path: Path):
    assert not set(path.relative_to(PACKAGE).with_suffix("").parts) & FORBIDDEN_NAMES
    assert len(path.read_text(encoding="utf-8").splitlines()) <= FILE_LINES, f"{name_of(path)} is too long"
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = (node.end_lineno or node.lineno) - node.body[0].lineno + 1
            doc = ast.get_docstring(node, clean=False)
            length -= len(doc.splitlines()) if doc else 0
            limit = STRATEGY_LINES if room(path) == "strategies" else FUNCTION_LINES
            assert length <= limit, f"{name_of(path)}:{node.lineno} {node.name} has {length} lines"


@pytest.mark.parametrize("path", SOURCES, ids=name_of)
def test_no_pickle_and_no_trusted_remote_code(path: Path):
    source = path.read_text(encoding="utf-8")
    assert "trust_remote_code=True" not in source
    assert not re.search(r"^\s*(import|from) (pickle|dill|cloudpickle|joblib)\b", source, re.M)


@pytest.mark.parametrize("name", STRATEGIES)
def test_every_strategy_has_its_entry_in_papers_and_its_test(name: str):
    papers = (ROOT / "docs" / "papers.md").read_text(encoding="utf-8")
    section = re.search(rf"^## `{re.escape(name)}`$(.*?)(?=^## |\Z)", papers, re.M | re.S)
    assert section, f"docs/papers.md has no section '## `{name}`'"
    tests = re.findall(r"tests/strategies/(test_\w+\.py)", section[1])
    assert tests, f"the section of {name} names no test"
    for test in tests:
        assert (ROOT / "tests" / "strategies" / test).is_file()


@pytest.mark.parametrize("name", STRATEGIES)
def test_a_strategy_is_one_file_of_its_own_functions(name: str):
    module, _, attribute = STRATEGIES[name].partition(":")
    assert importlib.import_module(module).__dict__[attribute].__module__ == module
