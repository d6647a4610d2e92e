"""`inward eval`: run strategies over data sets, score what was recorded, report and compare."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
import msgspec

from inward.errors import InwardError, UnknownName, UsageError
from inward.explain import counted
from inward.flags import HELP, pair_of

_SHOWN = 10


@click.group(context_settings=HELP)
def evaluation() -> None:
    """Run strategies over questions with known answers, and report how they did."""


@evaluation.command(context_settings=HELP)
@click.argument("config", required=False, type=click.Path(dir_okay=False), default=None)
@click.option("--strategy", "strategies", multiple=True, metavar="NAME", help="A strategy, such as no-retrieval; may be repeated.")
@click.option("--data", "data", multiple=True, metavar="[NAME=]PATH", help="A file of questions; may be repeated.")
@click.option("--out", default=None, metavar="FOLDER", help="Where the runs go: FOLDER/DATA/STRATEGY. Default: runs.")
@click.option("--model", default=None, metavar="NAME", help="Folder, GGUF file or hub id. Default: demo.")
@click.option("--index", default=None, metavar="FOLDER", help="Passages of all data that name none of their own. Default: demo.")
@click.option("--limit", type=int, default=None, help="Questions of each data set, the same ones whatever the file's order.")
@click.option("--sample-seed", type=int, default=None, help="Another seed, another sample.")
@click.option("--ids-file", type=click.Path(dir_okay=False), default=None, help="Exactly the questions whose ids it holds, one a line.")
@click.option("--set", "more", multiple=True, metavar="KEY=VALUE", help="Any other key of the configuration, or STRATEGY.OPTION=VALUE.")
@click.option("--retry-failed", is_flag=True, help="Ask questions again that ended in an error.")
def run(config: str | None, strategies: Sequence[str], data: Sequence[str], more: Sequence[str], retry_failed: bool, **flags: Any) -> None:
    """Run what the YAML file CONFIG says, or what flags say; flags win.

    Each run has a folder. The same command goes on where it was stopped, whatever stopped it; a finished run is left as it is.
    Exit code 1 if a question failed.
    """
    from inward.evals.config import load_config
    from inward.evals.suite import RunSummary, run_suite

    changes: dict[str, Any] = {name: value for name, value in flags.items() if value is not None}
    if strategies:
        changes["strategies"] = [{"name": name} for name in strategies]
    if data:
        changes["data"] = [_data(item) for item in data]
    options = _more(more, changes)
    whole = load_config(config, changes)
    if options:
        whole = _with_options(whole, options)
    failed = 0
    finished: list[RunSummary] = []
    try:
        for summary in run_suite(whole, retry_failed=retry_failed, progress=True):
            finished.append(summary)
            failed += len(summary.failed)
            was = "" if summary.asked == summary.questions else f", {summary.questions - summary.asked} done before"
            click.echo(f"{summary.name}: {counted(summary.questions, 'question')}{was}, {len(summary.failed)} failed, in {summary.folder}")
    except KeyboardInterrupt:
        click.echo(f"inward: interrupted; {counted(len(finished), 'run')} finished, and the same command goes on from here", err=True)
        raise click.exceptions.Exit(130) from None
    if failed:
        named = [f"{s.name} {id}" for s in finished for id in s.failed][:_SHOWN]
        raise InwardError(f"{counted(failed, 'question')} failed, such as {', '.join(named)}; --retry-failed asks them again")


def _data(item: str) -> dict[str, str]:
    """Read [NAME=]PATH; a path that is there is one, whatever signs it holds."""
    name, equals, path = item.partition("=")
    if not equals or Path(item).exists():
        return {"path": item}
    if not name or not path:
        raise UsageError(f"--data takes [NAME=]PATH, got {item!r}")
    return {"name": name, "path": path}


def _more(pairs: Sequence[str], changes: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Read KEY=VALUE into `changes`; return STRATEGY.OPTION=VALUE by strategy."""
    options: dict[str, dict[str, Any]] = {}
    for pair in pairs:
        key, value = pair_of(pair, "--set", "KEY=VALUE, such as concurrency=32 or single-step.k=3")
        owner, dot, option = key.rpartition(".")
        if owner == "model_options":
            changes.setdefault("model_options", {})[option] = value
        elif dot:
            options.setdefault(owner, {})[option] = value
        else:
            changes[key] = value
    return options


def _with_options(config: Any, options: dict[str, dict[str, Any]]) -> Any:
    names = [strategy.name for strategy in config.strategies]
    for name in options:
        if name not in names:
            raise UnknownName("strategy of this run", name, names)
    changed = [
        msgspec.structs.replace(strategy, options={**strategy.options, **options.get(strategy.name, {})}) for strategy in config.strategies
    ]
    return msgspec.structs.replace(config, strategies=changed)


_normaliser = click.option("--normaliser", type=click.Choice(["squad", "hotpot", "unicode"]), default="hotpot", show_default=True)
_own = click.option("--ignore-identical-ids", is_flag=True, help="Never count a passage with the question's own id.")


@evaluation.command(context_settings=HELP)
@click.argument("runs", nargs=-1, required=True, metavar="RUN...")
@click.option("--out", default=None, metavar="FOLDER", help="Where report.md and report.html go. Default: the first RUN.")
@click.option("--title", default="inward: evaluation", show_default=True, help="Of the page.")
@click.option(
    "--train", multiple=True, type=click.Path(dir_okay=False), help="Questions that something was trained on: warn if any is here."
)
@_normaliser
@_own
def report(runs: Sequence[str], out: str | None, title: str, train: Sequence[str], normaliser: Any, ignore_identical_ids: bool) -> None:
    """Score RUNs again from their files, without a model, and write a report of them.

    RUN is a run's folder or one that holds some. Each run's numbers go into its metrics.json.
    """
    from inward.evals.metrics import Setting
    from inward.evals.questions import load_questions, text_hash
    from inward.evals.report import make_report, to_html, to_markdown
    from inward.textfile import readable
    from inward.whole import write_whole

    seen = {text_hash(question.question) for file in train for question in load_questions(file).questions}
    setting = Setting(normaliser=normaliser, ignore_identical_ids=ignore_identical_ids)
    made = make_report(runs, setting=setting, seen=seen, title=readable(title))
    target = Path(out or runs[0])
    target.mkdir(parents=True, exist_ok=True)
    write_whole(target / "report.md", to_markdown(made).encode())
    write_whole(target / "report.html", to_html(made).encode())
    for text in made.warnings:
        click.echo(f"inward: {text}", err=True)
    click.echo(f"{counted(sum(len(table.rows) for table in made.tables), 'run')} in {target / 'report.md'} and {target / 'report.html'}")


@evaluation.command(context_settings=HELP)
@click.argument("a", metavar="RUN_A")
@click.argument("b", metavar="RUN_B")
@_normaliser
@_own
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def compare(a: str, b: str, normaliser: Any, ignore_identical_ids: bool, as_json: bool) -> None:
    """Compare two runs on the questions that both have: A minus B."""
    from inward.evals.compare import compare_runs, to_text
    from inward.evals.metrics import Setting

    found = compare_runs(a, b, setting=Setting(normaliser=normaliser, ignore_identical_ids=ignore_identical_ids))
    click.echo(msgspec.json.encode(found) if as_json else to_text(found))
