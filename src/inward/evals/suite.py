"""Running what a configuration says: everything is checked first, a model is loaded once, and only for what is not done yet."""

from __future__ import annotations

import hashlib
import platform
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import msgspec

from inward import __version__
from inward.errors import UnknownName, UsageError
from inward.evals.config import DataConfig, SettingConfig, StrategyConfig, SuiteConfig, data_name, safe_name
from inward.evals.folder import FORMAT, RunFile, RunFolder, check_same, read_run
from inward.evals.gathering import QuestionSet
from inward.evals.questions import load_questions, read_ids
from inward.evals.record import Question, record_of
from inward.evals.run import Finished, each, run
from inward.probers.prober import Prober
from inward.prompts import PromptTemplate
from inward.protocols import LM, Retriever, Strategy
from inward.strategies import Plan, declared, plan
from inward.strategies.demo_thresholds import with_demo_threshold

_PACKAGES = ("torch", "transformers", "tantivy", "numpy", "tokenizers", "msgspec")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPlan:
    """A run that is checked and not begun."""

    label: str
    folder: Path
    data: str
    """Name of the data set."""
    questions: QuestionSet
    strategy: Plan
    index: str
    given: Mapping[str, Any]
    """Options as they were written."""
    identity: dict[str, Any]

    def __str__(self) -> str:
        """Name it as its folder does."""
        return f"{self.data}/{self.label}"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSummary:
    """What became of a run."""

    name: str
    folder: str
    questions: int
    asked: int
    """Of these, in this process; the others were done before."""
    failed: tuple[str, ...]
    seconds: float


@dataclass(slots=True)
class Loaded:
    """Models and indexes by name, each loaded when it is first needed; of models, the last one asked for is kept."""

    load_lm: Callable[..., LM]
    load_retriever: Callable[[str], Retriever]
    _held: dict[str, Any] = field(default_factory=dict)

    def lm(self, name: str, options: Mapping[str, Any]) -> LM:
        """Return the model."""
        asked = (name, repr(sorted((str(key), repr(value)) for key, value in options.items())))
        if self._held.get("lm", (None,))[0] != asked:
            self._held.pop("lm", None)  # before the next: two may not fit into memory
            self._held["lm"] = (asked, self.load_lm(name, **options))
        return self._held["lm"][1]  # type: ignore[no-any-return]

    def retriever(self, name: str) -> Retriever:
        """Return an index."""
        key = f"index {name}"
        if key not in self._held:
            self._held[key] = self.load_retriever(name)
        return self._held[key]  # type: ignore[no-any-return]


def plan_suite(config: SuiteConfig) -> list[RunPlan]:
    """Check everything that can be checked without a model: questions, strategies, options, folders.

    Raises:
        UsageError: something of it is wrong, two runs would share a folder, or a folder holds another run.
        BadInput: a file of questions is.
    """
    _check_settings(config)
    plans: dict[Path, RunPlan] = {}
    for data in config.data:
        questions = _questions(data, config)
        for strategy in config.strategies:
            for setting in _settings_of(strategy, config.settings):
                made = _plan_run(config, data, questions, strategy, setting)
                if made.folder in plans:
                    raise UsageError(f"two runs are called {str(made)!r}; give one of them another label")
                plans[made.folder] = made
    for made in plans.values():
        if (old := read_run(made.folder)) is not None:
            check_same(old, made.identity, made.folder)
    return list(plans.values())


def _check_settings(config: SuiteConfig) -> None:
    """Refuse an option of a setting that no strategy has: it would change nothing, and nobody would know."""
    known = {option for strategy in config.strategies for option in declared(strategy.name)}
    for setting in config.settings:
        for name in setting.options:
            if name not in known:
                raise UnknownName(f"option of the setting {setting.label!r} that a strategy here has", name, known)


def _settings_of(strategy: StrategyConfig, settings: list[SettingConfig]) -> list[SettingConfig]:
    """Return the settings that change something for a strategy; a strategy for which none does runs once, as it is."""
    known = declared(strategy.name)
    return [setting for setting in settings if known.keys() & setting.options.keys()] or [SettingConfig(label="")]


def _questions(data: DataConfig, config: SuiteConfig) -> QuestionSet:
    ids_file = data.ids_file or config.ids_file
    return load_questions(
        data.path,
        format=data.format,
        columns=data.columns,
        split=data.split,
        limit=config.limit if data.limit is None else data.limit,
        sample_seed=config.sample_seed if data.sample_seed is None else data.sample_seed,
        ids=None if ids_file is None else read_ids(ids_file),
        dataset=data_name(data),
    )


def _plan_run(config: SuiteConfig, data: DataConfig, questions: QuestionSet, strategy: StrategyConfig, setting: SettingConfig) -> RunPlan:
    known = declared(strategy.name)
    options = {**strategy.options, **{name: value for name, value in setting.options.items() if name in known}}
    made = plan(strategy.name, with_demo_threshold(strategy.name, config.model, options))
    label = safe_name(" ".join(filter(None, (strategy.label or made.name, setting.label))))
    index = config.index if data.index is None else data.index
    name = data_name(data)
    identity = {
        "strategy": made.name,
        "options": dict(made.options.plain),
        "data": questions.data_hash,
        "questions": len(questions.questions),
        "model": _whole_path(config.model),
        "model_options": config.model_options,
        "index": _whole_path(index) if made.searches else None,
        "seed": config.seed,
    }
    folder = Path(config.out) / name / label
    return RunPlan(label=label, folder=folder, data=name, questions=questions, strategy=made, index=index, given=options, identity=identity)


def _whole_path(name: str) -> str:
    """Return a name as it is, and a path as the same whatever folder a command is given in."""
    return str(Path(name).resolve()) if Path(name).exists() else name


def run_suite(
    config: SuiteConfig, *, loaded: Loaded | None = None, retry_failed: bool = False, progress: bool = False
) -> Iterator[RunSummary]:
    """Run what is not done yet, and yield a summary as each run ends.

    Args:
        config: what to run.
        loaded: where models and indexes come from; default: `load_lm` and `load_retriever`.
        retry_failed: ask questions again whose record holds an error.
        progress: show a bar on standard error.

    Raises:
        UsageError, BadInput: see `plan_suite`; found before a model is loaded.
    """
    plans = plan_suite(config)
    if loaded is None:
        from inward.lm import load_lm
        from inward.retrieval import load_retriever

        loaded = Loaded(load_lm, load_retriever)
    return _run_all(plans, config, loaded, retry_failed, progress)


def _run_all(plans: Iterable[RunPlan], config: SuiteConfig, loaded: Loaded, retry_failed: bool, progress: bool) -> Iterator[RunSummary]:
    plans = list(plans)
    for made in plans:  # before a model is loaded: it may take minutes
        if made.strategy.searches and (retry_failed or not _is_finished(made)):
            loaded.retriever(made.index)
    for made in plans:
        started = time.perf_counter()
        with RunFolder(made.folder) as folder:
            done = folder.done()
            again = set(folder.failed) if retry_failed else set()
            todo = [q for q in made.questions.questions if q.id not in done or q.id in again]
            if todo or not _is_finished(made):
                _run(made, folder, todo, config, loaded, retry_failed, progress)
            failed = tuple(folder.failed)
        yield RunSummary(
            name=str(made),
            folder=str(made.folder),
            questions=len(made.questions.questions),
            asked=len(todo),
            failed=failed,
            seconds=time.perf_counter() - started,
        )


def _is_finished(made: RunPlan) -> bool:
    old = read_run(made.folder)
    return old is not None and old.finished


def _run(
    made: RunPlan, folder: RunFolder, todo: list[Question], config: SuiteConfig, loaded: Loaded, retry_failed: bool, progress: bool
) -> None:
    """Ask what is left of a run, and finish it."""
    lm = loaded.lm(config.model, config.model_options)
    retriever = loaded.retriever(made.index) if made.strategy.searches else None
    strategy = made.strategy.bind(lm=lm, retriever=retriever)
    identity = {**made.identity, "model_fingerprint": _fingerprint(lm), "index_fingerprint": _fingerprint(retriever)}
    said = RunFile(format=FORMAT, identity=identity, manifest=manifest(made, config, lm, retriever))
    folder.begin(said)
    if retry_failed and folder.failed:  # only now: until here something could have refused to run
        folder.drop_failed()
    _ask(strategy, todo, folder, config, made, progress)
    folder.finish(made.questions.ids, msgspec.structs.replace(said, finished=True), made.label)


def _ask(strategy: Strategy, todo: list[Question], folder: RunFolder, config: SuiteConfig, made: RunPlan, progress: bool) -> None:
    from tqdm import tqdm

    total = len(made.questions.questions)
    with tqdm(total=total, initial=total - len(todo), desc=str(made), unit="question", disable=None if progress else True) as bar:

        def keep(finished: Finished) -> None:
            record = record_of(todo[finished.place], finished.outcome, finished.seconds)
            folder.append(record)
            if record.error is not None:
                folder.failed.append(record.id)
            bar.update()

        run(each(strategy, [q.question for q in todo], keep, concurrency=config.concurrency, seed=config.seed))


def manifest(made: RunPlan, config: SuiteConfig, lm: LM, retriever: Retriever | None) -> dict[str, Any]:
    """Return all that a reader needs to make the run again, as plain values."""
    values = made.strategy.options.values
    prompts = [_prompt(value, lm) for value in values.values() if isinstance(value, PromptTemplate)]
    probers = [value for value in values.values() if isinstance(value, Prober)]
    return {
        "inward": __version__,
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "versions": {name: _version(name) for name in _PACKAGES},
        "config": config,
        "model": _model(lm, config.model),
        "index": None
        if retriever is None
        else {"name": made.index, "fingerprint": _fingerprint(retriever), "passages": _length(retriever)},
        "prompts": prompts,
        "thresholds": _thresholds(made),
        "probers": [{"fingerprint": p.fingerprint, "name": p.card.model_name, "question_hashes": p.card.question_hashes} for p in probers],
        "data": {
            "name": made.data,
            "file": made.questions.name,
            "format": made.questions.format,
            "sha256": made.questions.sha256,
            "data_hash": made.questions.data_hash,
            "ids": list(made.questions.ids),
            "warnings": list(made.questions.warnings),
        },
        "seed": config.seed,
        "concurrency": config.concurrency,
    }


def _thresholds(made: RunPlan) -> list[dict[str, Any]]:
    """Return each threshold in force, with how it was asked for, and the file that it came from."""
    found = []
    for name, value in made.strategy.options.plain.items():
        if "threshold" not in name:
            continue
        asked = made.given.get(name)
        file = asked if isinstance(asked, str) and Path(asked).is_file() else None
        digest = None if file is None else hashlib.sha256(Path(file).read_bytes()).hexdigest()
        found.append({"option": name, "value": value, "asked": asked, "file": file, "sha256": digest})
    return found


def _prompt(template: PromptTemplate, lm: LM) -> dict[str, Any]:
    """Return a prompt's text and two hashes: of the file, and of the tokens that the model sees for one question."""
    encoder = getattr(getattr(lm, "backend", None), "encoder", None)
    ids = None if encoder is None else encoder.encode(template.build("What is asked?"))
    seen = None if ids is None else hashlib.sha256(repr(tuple(ids)).encode()).hexdigest()
    return {"fingerprint": template.fingerprint, "as_seen": seen, "text": msgspec.to_builtins(template)}


def _model(lm: LM, name: str) -> dict[str, Any]:
    backend = getattr(lm, "backend", None)
    encoder = getattr(backend, "encoder", None)
    threads = sys.modules["torch"].get_num_threads() if "torch" in sys.modules else None
    return {
        "name": name,
        "fingerprint": _fingerprint(lm),
        "dtype": str(getattr(backend, "dtype", "")).removeprefix("torch."),
        "chat_template": getattr(encoder, "chat_template", None),
        "is_chat": getattr(encoder, "is_chat", None),
        "leaves_template_out": getattr(encoder, "leaves_template_out", None),
        "notes": list(getattr(backend, "notes", ())),
        "threads": threads,
    }


def _fingerprint(part: object) -> str | None:
    found = getattr(part, "fingerprint", None)
    return None if found is None else str(found)


def _length(retriever: object) -> int | None:
    return len(retriever) if hasattr(retriever, "__len__") else None


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None
