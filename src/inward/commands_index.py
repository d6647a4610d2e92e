"""`inward index`: build, change, check and search an index of passages."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Sequence
from functools import wraps
from pathlib import Path
from typing import Any, TypeVar

import click
import msgspec

from inward.errors import InwardError, UsageError
from inward.explain import counted
from inward.flags import HELP, filter_of
from inward.retrieval import BuildReport, EditReport, add, build_index, delete, info, load_retriever, merge, verify
from inward.retrieval.build import bytes_needed, free_space, in_words
from inward.retrieval.card import CARD
from inward.retrieval.corpus import Corpus, Format
from inward.textfile import decoded
from inward.trace import Noted, record
from inward.types import Passage

_SHOWN_PROBLEMS, _SHOWN_CHARACTERS = 20, 240

Command = TypeVar("Command", bound=Callable[..., None])


def _keeps_the_index(command: Command) -> Command:
    """Say, when interrupted, that nothing was lost."""

    @wraps(command)
    def guarded(*args: Any, **kwargs: Any) -> None:
        try:
            command(*args, **kwargs)
        except KeyboardInterrupt:
            path = kwargs["path"]
            left = "holds what was last committed" if (Path(path) / CARD).exists() else "was not there before and is not there now"
            click.echo(f"inward: interrupted; the index at {path!r} {left}", err=True)
            raise click.exceptions.Exit(130) from None

    return guarded  # type: ignore[return-value]


_source = click.argument("source", metavar="CORPUS")
_path = click.argument("path", metavar="INDEX")
_format = click.option(
    "--format", type=click.Choice(["jsonl", "tsv", "text"]), default=None, help="Of the corpus, where its name does not say."
)
_strict = click.option("--strict", is_flag=True, help="Fail on the first bad line, or id that comes twice with different contents.")
_quiet = click.option("--quiet", is_flag=True, help="No progress bar.")
_json = click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
_merge = click.option("--merge", "merged", is_flag=True, help="Rewrite without deleted passages: scores equal a rebuild's.")


@click.group(context_settings=HELP)
def index() -> None:
    """Build, change, check and search an index of passages.

    CORPUS is a .jsonl or .tsv file, a BEIR folder, a folder of .txt and .md files, any of them gzipped, or - for standard input.
    """


@index.command(context_settings=HELP)
@_source
@_path
@click.option("--size", type=int, default=100, show_default=True, help="Words of a passage, about; 0 keeps documents whole.")
@click.option("--overlap", type=int, default=0, show_default=True, help="Words that a passage repeats of the one before.")
@_format
@_strict
@_quiet
@_json
@_keeps_the_index
def build(source: str, path: str, size: int, overlap: int, format: Format | None, strict: bool, quiet: bool, as_json: bool) -> None:
    """Build an index of CORPUS in the folder INDEX.

    An index that is already there is replaced, in one step, once the new one is whole.
    """
    _announce(source, path, format, quiet)
    report = build_index(source, path, size=size, overlap=overlap, format=format, strict=strict, progress=not quiet)
    _name_problems(report)
    if as_json:
        _print_json(report)
        return
    rate = report.passages / max(report.seconds, 1e-9)
    click.echo(
        f"{counted(report.passages, 'passage')} of {counted(report.documents, 'document')} in {report.path} ({in_words(report.bytes)})"
    )
    click.echo(f"{report.seconds:.1f} s, {rate:.0f} passages a second, fingerprint {report.fingerprint}")


@index.command("add", context_settings=HELP)
@_source
@_path
@_format
@_strict
@_merge
@_quiet
@_json
@_keeps_the_index
def add_documents(source: str, path: str, format: Format | None, strict: bool, merged: bool, quiet: bool, as_json: bool) -> None:
    """Add the documents of CORPUS to INDEX, in one commit.

    A document whose id is there already is replaced. Documents are split as the index was.
    """
    _announce(source, path, format, quiet)
    report = add(source, path, format=format, strict=strict, progress=not quiet)
    _name_problems(report)
    if merged:
        report = _with_totals_of(merge(path, progress=not quiet), report)
    if as_json:
        _print_json(report)
        return
    click.echo(f"{counted(report.added, 'document')} added, {report.updated} updated, {report.unchanged} were there as they are")
    _print_totals(report)


@index.command("delete", context_settings=HELP)
@_path
@click.argument("ids", nargs=-1, metavar="[ID]...")
@click.option("--ids-file", type=click.File("rb"), default=None, help="A file with one id a line; - is standard input.")
@_merge
@_quiet
@_json
@_keeps_the_index
def delete_documents(path: str, ids: Sequence[str], ids_file: Any, merged: bool, quiet: bool, as_json: bool) -> None:
    """Delete documents, by id, from INDEX, with all their passages and in one commit.

    Ids that are not there are named on standard error. With --merge alone, only past deletions are cleared away.
    """
    text = "" if ids_file is None else decoded(ids_file.read(), getattr(ids_file, "name", "standard input"))
    listed = [*ids, *(line.strip("\r\n") for line in text.split("\n") if line.strip())]
    if not listed and not merged:
        raise UsageError("nothing to delete: name ids, or a file of them with --ids-file")
    report = delete(listed, path)
    for missing in report.missing[:_SHOWN_PROBLEMS]:
        click.echo(f"inward: no document {missing!r} in {path!r}", err=True)
    if merged:
        report = _with_totals_of(merge(path, progress=not quiet), report)
    if as_json:
        _print_json(report)
        return
    click.echo(f"{counted(report.deleted, 'document')} deleted, {len(report.missing)} not there")
    _print_totals(report)


@index.command("info", context_settings=HELP)
@_path
@_json
def describe(path: str, as_json: bool) -> None:
    """Say what INDEX holds and how it was made."""
    found = info(_folder(path))
    if as_json:
        _print_json(found)
        return
    card = found.card
    split = f"about {card.split.size} words, {card.split.overlap} repeated" if card.split.size else "documents kept whole"
    rows = {
        "kind": f"{card.kind}, format {card.format}",
        "passages": f"{card.passages} of {counted(card.documents, 'document')}",
        "split": split,
        "corpus": card.source,
        "analyser": f"{card.analyser.stemmer} stemmer, {len(card.analyser.stopwords)} stop words, fingerprint {card.analyser_fingerprint}",
        "built": f"{card.built} by inward {card.inward}, {card.tantivy}",
        "on disk": f"{in_words(found.bytes)} in {counted(found.segments, 'segment')}",
        "deleted": f"{counted(found.deleted, 'passage')} still counted in scores"
        + ("; clear them with: inward index delete INDEX --merge" if found.deleted else ""),
        "fingerprint": found.fingerprint,
    }
    for name, value in rows.items():
        click.echo(f"{name:<12} {value}")


@index.command("verify", context_settings=HELP)
@_path
@_json
def self_test(path: str, as_json: bool) -> None:
    """Read every passage of INDEX, compare with its card, and let a sample find itself."""
    report = verify(_folder(path))
    if as_json:
        _print_json(report)
    else:
        for check in report.checks:
            click.echo(f"{'ok' if check.passed else 'FAILED':<8} {check.name:<12} {check.detail}")
    if not report.passed:
        raise InwardError(f"the index at {path!r} is damaged; build it again")


@index.command(context_settings=HELP)
@_path
@click.argument("query")
@click.option("-k", type=int, default=5, show_default=True, help="Passages to find.")
@click.option("--where", multiple=True, metavar="KEY=VALUE", help="Metadata to ask for; the same key twice means either.")
@_json
def search(path: str, query: str, k: int, where: Sequence[str], as_json: bool) -> None:
    """Search INDEX ("demo" is the bundled one) for QUERY."""
    wanted = filter_of(where)
    retriever = load_retriever(path)
    with record() as trace:
        passages = asyncio.run(retriever.search(query, k, where=wanted))
    for event in trace.events:
        if isinstance(event, Noted):
            click.echo(f"inward: {event.what}: {event.detail}", err=True)
    if as_json:
        _print_json(passages)
        return
    for rank, passage in enumerate(passages, 1):
        _print_passage(rank, passage)
    if not passages:
        click.echo(f"no passage{' with this metadata' if wanted else ''} shares a term with the query")


def _folder(path: str) -> Path:
    """Return an index's folder; `demo` is the bundled one."""
    if path == "demo":
        from inward.retrieval.demo import demo_index

        return demo_index()
    return Path(path)


def _announce(source: str, path: str, format: Format | None, quiet: bool) -> None:
    if quiet or not sys.stderr.isatty():
        return
    needed, free = bytes_needed(Corpus(source, format=format)), free_space(Path(path))
    about = f"needs about {in_words(needed)}" if needed is not None else "of unknown size"
    click.echo(f"an index of {source} {about}; {in_words(free)} are free", err=True)


def _name_problems(report: BuildReport | EditReport) -> None:
    for problem in report.problems[:_SHOWN_PROBLEMS]:
        click.echo(f"inward: {problem}", err=True)
    told = [
        f"{counted(count, one)} {what}"
        for count, one, what in (
            (report.bad_lines, "bad line", "skipped"),
            (report.empty, "document", "without text left out"),
            (report.repeated, "document", "repeated"),
            (report.replaced, "document", "replaced by a later one of the same id"),
        )
        if count
    ]
    if ignored := getattr(report, "ignored", 0):
        told.append(f"{counted(ignored, 'file')} of other kinds not read (read are .txt and .md)")
    if told:
        click.echo(f"inward: {', '.join(told)}", err=True)


def _with_totals_of(totals: EditReport, report: EditReport) -> EditReport:
    seconds = totals.seconds + report.seconds
    return msgspec.structs.replace(report, bytes=totals.bytes, seconds=seconds)


def _print_totals(report: EditReport) -> None:
    click.echo(f"{_held(report)} in {report.path}, fingerprint {report.fingerprint}")


def _held(report: BuildReport | EditReport) -> str:
    return f"{counted(report.passages, 'passage')} of {counted(report.documents, 'document')}"


def _print_passage(rank: int, passage: Passage) -> None:
    text = " ".join(passage.text.split())
    short = text if len(text) <= _SHOWN_CHARACTERS else text[:_SHOWN_CHARACTERS].rsplit(" ", 1)[0] + " ..."
    click.echo(f"{rank:>2}  {passage.score:.3f}  {passage.id}  {passage.title}\n    {short}")


def _print_json(value: object) -> None:
    """Print UTF-8 whatever the terminal's encoding: a program reads it."""
    click.echo(msgspec.json.encode(value))
