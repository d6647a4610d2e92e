"""The command line. Results go to stdout, everything else to stderr; exit codes 0 done, 1 failed, 2 used wrongly, 130 interrupted."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any, BinaryIO

import click

from inward import __version__
from inward.errors import InwardError, UsageError
from inward.flags import HELP, pair_of

if TYPE_CHECKING:
    from inward.trace import Outcome


GEMMA = "google/gemma-3-270m (bundled; Gemma Terms of Use, ai.google.dev/gemma/terms)"


class LazyGroup(click.Group):
    """A group whose sub-commands are imported when they are named, so that `inward -h` is quick."""

    imported: dict[str, str] = {  # noqa: RUF012
        "data": "inward.commands_data:data",
        "eval": "inward.commands_eval:evaluation",
        "index": "inward.commands_index:index",
        "metrics": "inward.commands_metrics:metrics",
        "prober": "inward.commands_prober:prober",
    }

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Name all commands."""
        return sorted([*super().list_commands(ctx), *self.imported])

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return a command, importing it if need be."""
        if cmd_name not in self.imported:
            return super().get_command(ctx, cmd_name)
        module, _, attribute = self.imported[cmd_name].partition(":")
        command: click.Command = getattr(import_module(module), attribute)
        return command


@click.group(cls=LazyGroup, context_settings=HELP)
@click.version_option(__version__, "-V", "--version", prog_name="inward")
def cli() -> None:
    """Look inward before you look up: the model's own states decide whether to retrieve."""


@cli.command(context_settings=HELP)
@click.argument("questions", nargs=-1, metavar="[QUESTION]...")
@click.option("--strategy", default=None, metavar="NAME", help="See `inward strategies`. Default: gated(mean-nll).")
@click.option("--model", default="demo", show_default=True, metavar="NAME", help="Folder, GGUF file or hub id.")
@click.option("--index", default="demo", show_default=True, metavar="FOLDER", help="An index made by `inward index build`.")
@click.option("--threshold", type=float, default=None, help="The gate opens above it. Only the bundled model and prompt have a default.")
@click.option("--prompt", type=click.Path(dir_okay=False), default=None, help="Prompt file (TOML). Default: the bundled one.")
@click.option("-k", "--k", "k", type=int, default=None, help="Passages per search.")
@click.option("--set", "more", multiple=True, metavar="NAME=VALUE", help="Any other option of the strategy; may be repeated.")
@click.option("--seed", type=int, default=0, show_default=True, help="Of random draws; greedy strategies draw nothing.")
@click.option(
    "--questions",
    "file",
    type=click.File("rb"),
    default=None,
    help="A file with one question a line; - is standard input.",
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object per question and line.")
def ask(
    questions: Sequence[str],
    strategy: str | None,
    model: str,
    index: str,
    seed: int,
    as_json: bool,
    more: Sequence[str],
    file: BinaryIO | None,
    **options: Any,
) -> None:
    """Answer each QUESTION and say why passages were looked up, or not.

    All are worked on at once; each is shown, in order, as soon as it and those before it are answered.

    The bundled model is google/gemma-3-270m, under the Gemma Terms of Use (ai.google.dev/gemma/terms).
    """
    from inward import door
    from inward.evals.run import Finished, each, run
    from inward.explain import explain, to_json

    asked = _questions(questions, file)
    given = _settings(more) | {name: value for name, value in options.items() if value is not None}
    _tell(f"loading {GEMMA if model == door.DEMO else model} ...")
    bound = door.bind(strategy or door.DEFAULT_STRATEGY, lm=model, retriever=index, **given)
    waiting: dict[int, Outcome] = {}
    failed: list[str] = []
    shown = 0

    def show(finished: Finished) -> None:
        nonlocal shown
        waiting[finished.place] = finished.outcome
        while (outcome := waiting.pop(shown, None)) is not None:
            if as_json:
                click.echo(to_json(outcome, model=model, strategy=bound.name, options=dict(bound.options)))
            else:
                click.echo(("\n" if shown else "") + explain(outcome))
            failed.extend([outcome.error] if outcome.error is not None else [])
            shown += 1

    run(each(bound, asked, show, seed=seed))
    if not as_json:
        click.echo(f"\n{bound.name} on {GEMMA if model == door.DEMO else model}")
    if failed:
        raise InwardError(f"{len(failed)} of {len(asked)} questions failed; the first: {failed[0]}")


def _questions(named: Sequence[str], file: BinaryIO | None) -> list[str]:
    """Gather the questions and refuse an empty one before anything is loaded."""
    from inward.strategies import checked
    from inward.textfile import decoded

    text = "" if file is None else decoded(file.read(), getattr(file, "name", "standard input"))
    asked = [*named, *(line.strip() for line in text.split("\n") if line.strip())]
    if not asked:
        raise UsageError("no question: name one or more, or a file of them with --questions")
    return [checked(question) for question in asked]


@cli.command(context_settings=HELP)
@click.option("--json", "as_json", is_flag=True, help="One JSON object per strategy and line.")
def strategies(as_json: bool) -> None:
    """List strategies, what they need of a model, their options and defaults."""
    import msgspec

    from inward.signals import ABOUT, SIGNALS
    from inward.strategies.listing import rows

    for row in rows():
        if as_json:
            click.echo(msgspec.json.encode(row).decode())
            continue
        click.echo(f"{row.name}\n  {row.summary}\n  needs     {', '.join(row.needs) or 'text'}")
        for option in row.options:
            click.echo(f"  {option.flag:<24} {option.type}, {option.shown_default}")
    if not as_json:
        click.echo(f"\nsignals, as in gated({next(iter(SIGNALS))}) or --set signal={next(iter(SIGNALS))}")
        for name in SIGNALS:
            click.echo(f"  {name:<22} {ABOUT[name]}")


@cli.command(context_settings=HELP)
def prompt() -> None:
    """Print the bundled prompt file, to start one of your own from: inward prompt > my.toml."""
    from inward.prompts import bundled_prompt

    click.echo(bundled_prompt(), nl=False)


@cli.command(context_settings=HELP)
@click.option("--deep", is_flag=True, help="Load the bundled model too and let it write one token.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object per check and line.")
def doctor(deep: bool, as_json: bool) -> None:
    """Check this installation: versions, extras, cache, bundled model, demo index."""
    import msgspec

    from inward.doctor import examine
    from inward.explain import counted

    broken = 0
    for check in examine(deep=deep):
        broken += check.state == "broken"
        click.echo(msgspec.json.encode(check).decode() if as_json else f"{check.state:<8} {check.name:<18} {check.detail}")
    if broken:
        raise InwardError(f"{counted(broken, 'check')} failed")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code.

    `INWARD_DEBUG=1` lets errors through with their traceback.
    """
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="backslashreplace")  # a terminal that cannot show a letter must not end the run
    try:
        code = cli.main(args=arguments, prog_name="inward", standalone_mode=False)
        return code if isinstance(code, int) else 0
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except click.Abort:
        return _complain("interrupted", 130)
    except InwardError as error:
        if os.environ.get("INWARD_DEBUG") == "1":
            raise
        return _complain(str(error), 2 if isinstance(error, UsageError) else 1)
    except OSError as error:
        if os.environ.get("INWARD_DEBUG") == "1":
            raise
        return _complain(_of_the_system(error), 1)


def _of_the_system(error: OSError) -> str:
    """Say what the operating system refused, and what to look at."""
    if error.errno == errno.ENOSPC:
        if not error.filename:
            return "the disk is full: no room for what is being written; free some space"
        return f"the disk is full: no room for {error.filename!r}; free some space, or set INWARD_CACHE to a folder on another disk"
    if not error.filename:
        return f"the system refused: {error}"
    return f"{error.filename!r}: {error.strerror or error}; check that it is there, and that you may read and write it"


def _settings(pairs: Sequence[str]) -> dict[str, Any]:
    settings: dict[str, Any] = {}
    for pair in pairs:
        name, value = pair_of(pair, "--set", example := "NAME=VALUE, such as max_retrievals=2")
        if not name.isidentifier():
            raise UsageError(f"--set takes {example}, got {pair!r}")
        settings[name] = value
    return settings


def _complain(message: str, code: int) -> int:
    click.echo(f"inward: {message}", err=True)
    return code


def _tell(message: str) -> None:
    if sys.stderr.isatty():
        click.echo(message, err=True)
