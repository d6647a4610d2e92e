"""`inward data`: look at a file of questions before a run does, and bring it into our form."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import click
import msgspec

from inward.errors import InwardError, UsageError
from inward.evals.formats import SHAPES
from inward.evals.gathering import QuestionSet
from inward.evals.questions import FIELDS, encode_question, read_questions
from inward.explain import counted
from inward.flags import HELP
from inward.whole import write_whole

_source = click.argument("source", metavar="QUESTIONS")
_format = click.option("--format", type=click.Choice(list(SHAPES)), default=None, help="Where the first row does not say.")
_column = click.option("--column", "columns", multiple=True, metavar="FIELD=NAME", help=f"The column of {', '.join(FIELDS)}.")
_split = click.option("--split", default=None, help="Of a BEIR folder: the name of a file in qrels.")


@click.group(context_settings=HELP)
def data() -> None:
    """Check and convert files of questions.

    QUESTIONS is a JSON, JSONL, TSV or Parquet file, gzipped or not, a BEIR folder, or - for standard input.
    """


@data.command(context_settings=HELP)
@_source
@_format
@_column
@_split
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def validate(source: str, format: str | None, columns: tuple[str, ...], split: str | None, as_json: bool) -> None:
    """Name every row of QUESTIONS that a run would stumble over.

    Rows without question or answer, ids that come twice, answers that normalise to nothing. Exit code 1 if there are any.
    """
    found = read_questions(source, format=format, columns=_columns(columns), split=split)
    if as_json:
        click.echo(msgspec.json.encode({**_summary(found), "problems": found.problems, "warnings": found.warnings}))
    else:
        for name, value in _summary(found).items():
            click.echo(f"{name:<13} {value}")
        for line in (*found.problems, *found.warnings):
            click.echo(f"              {line}")
    if not found.questions:
        raise InwardError(f"{found.name} holds no question that can be asked")
    if found.problems:
        raise InwardError(f"{found.name} has {counted(len(found.problems), 'problem')}")


@data.command(context_settings=HELP)
@_source
@click.argument("target", metavar="OUT")
@_format
@_column
@_split
@click.option("--skip-bad", is_flag=True, help="Leave rows out that cannot be used, instead of failing.")
def convert(source: str, target: str, format: str | None, columns: tuple[str, ...], split: str | None, skip_bad: bool) -> None:
    """Write QUESTIONS as our JSONL to the file OUT, gzipped if its name ends in .gz; - is standard output.

    OUT appears whole or not at all, unless it is a pipe or a device.
    """
    found = read_questions(source, format=format, columns=_columns(columns), split=split)
    fatal = [problem for problem in found.problems if problem.fatal]
    if fatal and not skip_bad:
        raise InwardError(f"{found.name}: {fatal[0]} ({len(fatal)} such rows; --skip-bad leaves them out)")
    if not found.questions:
        raise InwardError(f"{found.name} holds no question that can be used ({_left_out(found)})")
    if target == "-":
        for question in found.questions:
            click.echo(encode_question(question), nl=False)
        return
    lines = b"".join(map(encode_question, found.questions))
    if not Path(target).parent.is_dir():
        raise UsageError(f"there is no folder {str(Path(target).parent)!r} to write {Path(target).name!r} into")
    packed = gzip.compress(lines, mtime=0) if target.endswith(".gz") else lines
    if target.startswith("/dev/") or (Path(target).exists() and not Path(target).is_file()):
        _write_through(target, packed)  # a pipe or a device: nothing may take its place
    else:
        write_whole(Path(target), packed)
    left_out = f"; left out: {said}" if (said := _left_out(found)) else ""
    click.echo(f"{counted(len(found.questions), 'question')} in {target}, {found.format}, data hash {found.data_hash}{left_out}")


def _write_through(target: str, content: bytes) -> None:
    try:
        with open(target, "wb") as file:
            file.write(content)
    except OSError as error:
        raise UsageError(f"{target!r} cannot be written ({error.strerror})") from error


def _left_out(found: QuestionSet) -> str:
    bad = sum(problem.fatal for problem in found.problems)
    counts = {"that cannot be used": bad, "without an answer by the data set's own word": found.unanswerable, "repeated": found.repeated}
    return ", ".join(f"{count} {what}" for what, count in counts.items() if count)


def _columns(pairs: tuple[str, ...]) -> dict[str, str] | None:
    columns: dict[str, str] = {}
    for pair in pairs:
        field, equals, name = pair.partition("=")
        if not equals or not name:
            raise UsageError(f"--column takes FIELD=NAME, such as answers=gold, got {pair!r}")
        columns[field] = name
    return columns or None


def _summary(found: QuestionSet) -> dict[str, Any]:
    return {
        "name": found.name,
        "format": found.format,
        "rows": found.rows,
        "questions": len(found.questions),
        "unanswerable": found.unanswerable,
        "repeated": found.repeated,
        "data hash": found.data_hash,
        "sha256": found.sha256,
    }
