"""`inward prober`: train, calibrate, measure and describe probers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
import msgspec

from inward.errors import UsageError
from inward.explain import counted
from inward.flags import HELP, pair_of

if TYPE_CHECKING:
    from inward.probers.card import Measured, ProberCard
    from inward.training.drafts import Drafts
    from inward.training.make import Sources

Command = TypeVar("Command", bound=Callable[..., None])


@click.group(context_settings=HELP)
def prober() -> None:
    """Train, calibrate, measure and describe probers: small networks that read whether the model knows."""


def _drafting(command: Command) -> Command:
    """Add the options of drafts."""
    for option in reversed(
        [
            click.option("--data", "data", multiple=True, metavar="[NAME=]PATH", help="A file of questions with answers; may be repeated."),
            click.option(
                "--index",
                "index",
                multiple=True,
                metavar="[NAME=]FOLDER",
                help="Passages of a data set, or of all; NAME=- drafts it without passages only. Default: demo.",
            ),
            click.option("--drafts", default=None, metavar="FOLDER", help="Where drafts are kept, or are already."),
            click.option("--prompt", type=click.Path(dir_okay=False), default=None, help="Prompt file (TOML). Default: the bundled one."),
            click.option("--set", "more", multiple=True, metavar="KEY=VALUE", help=f"Any of {', '.join(OPTIONS)}, model.NAME."),
            click.option("--retry-failed", is_flag=True, help="Draft questions again that ended in an error."),
        ]
    ):
        command = option(command)
    return command


OPTIONS = ("allow_failed", "concurrency", "limit", "seed")
"""What may be set of any drafting."""
CHOICES = ("k", "layers", "pool", "query", "site")
"""What may be set where drafts are made for a new prober; of another it is on the card."""


@prober.command(context_settings=HELP)
@click.argument("out", metavar="PROBER")
@_drafting
@click.option("--model", default="demo", show_default=True, metavar="NAME", help="Folder, GGUF file or hub id.")
@click.option("--label", default="answer", show_default=True, help="What is right: answer, text, em, f1>=T, column, file.py:function.")
@click.option("--threshold", "thresholds", multiple=True, metavar="NAME", help="Such as max-skip-error=0.05; default: balanced.")
@click.option("--test", "tests", multiple=True, type=click.Path(dir_okay=False), help="Questions kept for testing: refuse any of them.")
def train(out: str, model: str, label: str, thresholds: Sequence[str], tests: Sequence[str], more: Sequence[str], **given: Any) -> None:
    """Make a prober in the folder PROBER from questions with answers: drafts, labels, training, calibration.

    Drafting takes by far the longest; it goes on where it was stopped, whatever stopped it.

    Also set by --set: k, query (draft, paper, question or code), layers (such as 6,8,10; default or all), site, pool (mean, last or
    eos); recipe (fixed, paper or code) and its values (hidden, depth, dropout, learning_rate, batch, epochs, ...); plots=false.
    """
    from inward.training.fit import FitPlan
    from inward.training.labels import load_label
    from inward.training.make import test_keys, train_prober
    from inward.training.plots import draw

    options, plan = _settings(more, (*OPTIONS, *CHOICES, "recipe", "plots"), recipe=True)
    plots = options.pop("plots", None)
    recipe = _recipe(str(options.pop("recipe", "fixed")), plan, options.get("seed", 0))
    layers = _layers(options.pop("layers", "default"))
    rule, kept, names = load_label(label), test_keys(tests), tuple(thresholds) or ("balanced",)
    _check_thresholds(names)
    drafts = _drafts(out, model=model, layers=layers, **options, **given)
    chosen = tuple(layers) if not isinstance(layers, str) else ()
    fitted = train_prober(drafts, out, FitPlan(label=rule, layers=chosen, recipe=recipe, thresholds=names, test_keys=kept))
    click.echo(describe(fitted.prober.card))
    if plots is not False:
        _plots(draw, fitted.prober, out, required=bool(plots))


@prober.command(context_settings=HELP)
@click.argument("path", metavar="PROBER")
@_drafting
@click.option("--threshold", "thresholds", multiple=True, metavar="NAME", help="Such as max-skip-error=0.05. Default: balanced.")
@click.option("--out", default=None, metavar="FOLDER", help="Where the calibrated prober goes. Default: PROBER itself.")
@click.option("--combine", type=click.Choice(["logits", "probabilities"]), default="logits", show_default=True, help="What is summed.")
@click.option("--save", type=click.Path(dir_okay=False), default=None, help="Write the first threshold to this file (JSON).")
def calibrate(
    path: str,
    thresholds: Sequence[str],
    out: str | None,
    combine: Any,
    save: str | None,
    data: Sequence[str],
    more: Sequence[str],
    **given: Any,
) -> None:
    """Choose thresholds of PROBER: on the questions that came with it, or on new ones (--data, or --drafts)."""
    from inward.probers import Prober
    from inward.training.make import recalibrate
    from inward.whole import write_whole

    names = list(thresholds) or ["balanced"]
    _check_thresholds(names)
    found = Prober.from_pretrained(path)
    if data or given["drafts"]:
        drafts = _drafts(out or path, data=data, **_of_card(found.card), **_settings(more, OPTIONS)[0], **given)
        found = recalibrate(found, drafts, names)
        found.save_pretrained(out or path)
    elif out is not None:
        raise UsageError("--out is for a prober calibrated on new questions: give --data, or --drafts")
    chosen = [found.combined(combine).threshold(name) for name in names]
    for threshold in chosen:
        click.echo(f"{threshold.name}: {threshold.value:g} on summed {threshold.scale} (theta {-threshold.value:g}); {threshold.guarantee}")
        click.echo(
            f"  looked up: {threshold.retrieval_rate:.3f} of {counted(threshold.n, 'question')}; skip error {_number(threshold.skip_error)}"
        )
        for warning in threshold.warnings:
            click.echo(f"inward: {warning}", err=True)
    if save is not None:
        write_whole(Path(save), msgspec.json.format(msgspec.json.encode(chosen[0]), indent=1) + b"\n")


@prober.command("eval", context_settings=HELP)
@click.argument("path", metavar="PROBER")
@_drafting
@click.option("--json", "as_json", is_flag=True, help="One JSON object per data set and mode, and line.")
def evaluate(path: str, as_json: bool, data: Sequence[str], more: Sequence[str], **given: Any) -> None:
    """Measure PROBER on questions that it has not seen (--data, or --drafts)."""
    from inward.probers import Prober
    from inward.training.make import evaluate_prober

    if not data and given["drafts"] is None:
        raise UsageError("measure it on what? Give --data, or --drafts")
    found = Prober.from_pretrained(path)
    drafts = _drafts(path, data=data, **_of_card(found.card), **_settings(more, OPTIONS)[0], **given)
    for measured in evaluate_prober(found, drafts):
        click.echo(msgspec.json.encode(measured) if as_json else _measured(measured))


@prober.command(context_settings=HELP)
@click.argument("path", metavar="PROBER")
@click.option("--json", "as_json", is_flag=True, help="The whole card as JSON.")
def info(path: str, as_json: bool) -> None:
    """Say what PROBER reads, what it was made from, and how it did."""
    from inward.probers import Prober

    card = Prober.from_pretrained(path).card
    click.echo(msgspec.json.encode(card) if as_json else describe(card))


@prober.command(context_settings=HELP)
def recipes() -> None:
    """Print how each recipe trains, and where the published ones differ from the default."""
    from inward.probers.train import RECIPES

    base = msgspec.to_builtins(RECIPES["fixed"])
    for name, recipe in RECIPES.items():
        values = msgspec.to_builtins(recipe)
        shown = values if name == "fixed" else {key: value for key, value in values.items() if value != base[key]}
        click.echo(f"{name:<7} {', '.join(f'{key}={value}' for key, value in shown.items())}")
    click.echo("\npaper and code differ from each other where the paper and its released code do; see docs/papers.md")


def describe(card: ProberCard) -> str:
    """Put a card into words."""
    lines = [
        f"model        {card.model_name or '?'} ({card.model[:12]}), {card.engine}, {card.dtype}",
        f"reads        {card.site}, blocks {', '.join(map(str, card.layers))}; {card.positions}",
        f"drafts       prompt {card.prompt[:12]}, at most {card.max_tokens} tokens; right by the rule {card.label!r}",
        f"network      {'linear' if not card.depth else f'{card.depth} hidden layers of {card.hidden}'}, one a block",
        "made from    " + "; ".join(f"{part}: {n} ({card.right.get(part, 0)} right)" for part, n in card.rows.items()),
    ]
    for threshold in card.thresholds:
        lines.append(
            f"threshold    {threshold.name}: {threshold.value:g} (theta {-threshold.value:g}), looks up {threshold.retrieval_rate:.3f} of "
            f"{threshold.n}, skip error {_number(threshold.skip_error)}"
        )
    lines += [f"note         {note}" for note in card.notes]
    return "\n".join([*lines, *map(_measured, card.measured)])


def _measured(measured: Measured) -> str:
    head = f"{measured.data}, {measured.mode} passages: {measured.right} right, {measured.wrong} wrong"
    rows = [
        f"  {name if name == 'combined' else f'block {name}':<9} accuracy {measured.accuracy[name]:.3f}  "
        f"AUROC {_number(measured.auroc[name])}  ECE {measured.ece[name]:.3f}"
        for name in measured.accuracy
    ]
    return "\n".join([head, *rows])


def _number(value: float | None) -> str:
    return "n/a" if value is None else f"{value:.3f}"


def _drafts(beside: str, *, data: Sequence[str], index: Sequence[str], drafts: str | None, limit: int | None = None, **plan: Any) -> Drafts:
    """Write drafts, or open those that are there where no questions are given."""
    from inward.training.drafts import read_drafts
    from inward.training.make import make_drafts

    if not data:
        if drafts is None:
            raise UsageError("no questions are given: --data questions.jsonl, or --drafts with a folder of drafts")
        return read_drafts(drafts)
    folder = drafts or str(Path(beside) / "drafts")
    try:
        return make_drafts(_sources(data, index, limit), folder, progress=True, **plan)
    except KeyboardInterrupt:
        click.echo(f"inward: interrupted; what is drafted is in {folder!r}, and the same command goes on from here", err=True)
        raise click.exceptions.Exit(130) from None


def _sources(data: Sequence[str], index: Sequence[str], limit: int | None) -> Sources:
    from inward.training.make import Sources

    questions: dict[str, str] = {}
    for item in data:
        name, path = _named(item, "--data")
        name = name or Path(path).name.split(".")[0]
        if name in questions:
            raise UsageError(f"two data sets are called {name!r}: give one of them another name, --data NAME={path}")
        questions[name] = path
    return Sources(data=questions, index=dict(_named(item, "--index") for item in index), limit=limit)


def _named(item: str, flag: str) -> tuple[str, str]:
    """Read [NAME=]PATH; a path that is there is one, whatever signs it holds."""
    name, equals, path = item.partition("=")
    if not equals or Path(item).exists():
        return "", item
    if not name or not path:
        raise UsageError(f"{flag} takes [NAME=]PATH, got {item!r}")
    return name, path


def _of_card(card: ProberCard) -> dict[str, Any]:
    """Return how drafts must be written for a prober."""
    return {
        "model": card.model_name,
        "layers": card.layers,
        "site": card.site,
        "pool": card.pool,
        "k": card.training.get("k", 5),
        "query": card.training.get("query", "draft"),
    }


def _settings(more: Sequence[str], known: Sequence[str], *, recipe: bool = False) -> tuple[dict[str, Any], dict[str, Any]]:
    """Read KEY=VALUE pairs: options of drafting, with what the model is given under `model_options`; and values of the recipe."""
    from inward.errors import UnknownName
    from inward.probers.train import Recipe

    values = [field for field in Recipe.__dataclass_fields__ if field != "seed"] if recipe else []
    options: dict[str, Any] = {"model_options": {}}
    plan: dict[str, Any] = {}
    for pair in more:
        key, value = pair_of(pair, "--set", "KEY=VALUE, such as k=3")
        if key.startswith("model."):
            options["model_options"][key.removeprefix("model.")] = value
        elif key in known:
            options[key] = value
        elif key in values:
            plan[key] = value
        else:
            raise UnknownName("key", key, [*known, *values, "model.NAME"])
    for key in ("concurrency", "k", "limit", "seed"):
        if key in options and (not isinstance(options[key], int) or options[key] < (key != "seed")):
            raise UsageError(f"--set {key} takes a whole number{'' if key == 'seed' else ' of at least 1'}, got {options[key]!r}")
    return options, plan


def _layers(value: Any) -> tuple[int, ...] | str:
    if value in ("default", "all"):
        return str(value)
    try:
        return (value,) if isinstance(value, int) else tuple(int(part) for part in str(value).strip("[]").split(","))
    except ValueError:
        raise UsageError(f"--set layers takes 0-based blocks such as 6,8,10, default or all; got {value!r}") from None


def _recipe(name: str, values: dict[str, Any], seed: int) -> Any:
    from inward.probers.train import Recipe, recipe

    try:
        return msgspec.convert({**msgspec.to_builtins(recipe(name)), **values, "seed": seed}, Recipe)
    except msgspec.ValidationError as error:
        raise UsageError(f"--set: {error}") from error


def _check_thresholds(names: Sequence[str]) -> None:
    """Refuse a name that does not exist before hours of drafting."""
    from inward.calibration import read_name

    for name in names:
        read_name(name)


def _plots(draw: Callable[..., list[Path]], made: Any, out: str, *, required: bool) -> None:
    from inward.errors import MissingExtra

    try:
        files = draw([made], Path(out) / "plots")
    except MissingExtra as error:
        if required:
            raise
        click.echo(f"inward: no figures: {error}", err=True)
    else:
        click.echo(f"figures in {', '.join(map(str, files))}")
