"""Prompts and answers: one file says how a question is put and how an answer is read out of what was generated.

The same demonstrations stand in front of every question, with and without passages, so that their keys and values
are computed once. Only generated text is parsed: what a passage says never becomes the answer by its form.
"""

from __future__ import annotations

import hashlib
import re
import string
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import lru_cache
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple, Self

import msgspec

from inward.errors import BadInput, ContextLengthExceeded, UnknownName, UsageError
from inward.protocols import LM
from inward.sentences import split_sentences
from inward.trace import note
from inward.types import Message, Passage, Prompt

_QUESTION = "Question:"
_THINKING = re.compile(r"<(think|thinking|reasoning)>.*?(?P<closed></\1>)", re.DOTALL | re.IGNORECASE)
_OPENED = re.compile(r"<(?:think|thinking|reasoning)>", re.IGNORECASE)
_CLOSED = re.compile(r"</(?:think|thinking|reasoning)>", re.IGNORECASE)
_KEEPS_ITS_STOP = re.compile(r"(?:\w+\.)+\w*\.\Z|(?<!\w)(?:jr|sr|inc|ltd|co|corp|llc|plc|bros|esq|etc)\.\Z", re.IGNORECASE)
"""Words whose last full stop is theirs and not the sentence's: "U.S.", "p.m.", "Jr."."""
_QUOTES = {'"': '"', "“": "”", "«": "»", "'": "'"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Demonstration:
    """A question answered as the model should answer."""

    question: str
    answer: str
    rationale: str = ""
    """Empty: the answer alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Parsed:
    """An answer, read out of generated text."""

    short: str
    """The answer alone; empty if there is none."""
    rationale: str
    """What was said before it."""
    text: str
    """What was said in all, without thinking blocks and without what follows the answer."""
    flags: tuple[str, ...] = ()
    """`no_marker`: no cue, the last sentence is taken; `unclosed_reasoning`: a thinking block never ended;
    `truncated`: the text ends at the cue."""


class Fitted(NamedTuple):
    """A prompt that leaves room for its completion."""

    prompt: Prompt
    passages: tuple[Passage, ...]
    """Those that it shows, best first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptTemplate:
    """How questions are put, and answers read. Load one with `PromptTemplate.load`."""

    system: str = ""
    """What the model is told first; empty for nothing."""
    demonstrations: tuple[Demonstration, ...] = ()
    """None: zero-shot."""
    question: str = _QUESTION
    """Cue of a question."""
    rationale: str = "Rationale:"
    """Cue of the reasoning, left open at the end of the prompt; empty: the prompt ends with the answer's cue."""
    answer: str = "Answer:"
    """Cue of the answer."""
    passages: str = "Passages:"
    """Header of the passages."""
    passage: str = "[{number}] ({title}) {text}"
    """One passage, on one line."""
    untitled_passage: str = "[{number}] {text}"
    """One passage that has no title."""
    markers: tuple[str, ...] = ()
    """Regular expressions of what else announces an answer, tried in order after the cue; the last match counts."""
    max_tokens: int = 150
    """Limit of a completion; 150 is Probing-RAG's."""
    stop: tuple[str, ...] = ()
    """Text that ends a completion."""

    def __post_init__(self) -> None:
        """Refuse what would only fail at the first question."""
        for name, value, ok in (
            ("max_tokens", self.max_tokens, self.max_tokens >= 1),
            ("stop", self.stop, all(self.stop)),
            ("question", self.question, bool(self.question.strip())),
            ("answer", self.answer, bool(self.answer.strip())),
        ):
            if not ok:
                raise UsageError(f"{name} of a prompt must be {'at least 1' if name == 'max_tokens' else 'text, not empty'}, got {value!r}")
        for name in ("passage", "untitled_passage"):
            _check_format(name, getattr(self, name))
        for marker in self.markers:
            try:
                re.compile(marker)
            except re.error as error:
                raise UsageError(f"markers of a prompt holds {marker!r}, which is no regular expression: {error}") from error

    @classmethod
    def load(cls, path: str | Path | None = None) -> Self:
        """Read a prompt file.

        Args:
            path: a TOML file; None for the one that comes with the package.

        Raises:
            UsageError: there is no such file, it is no TOML, or a value is of the wrong type.
            UnknownName: it holds a key that does not exist.
        """
        return cls._default() if path is None else cls._read(Path(path).expanduser())

    @classmethod
    @lru_cache(maxsize=1)
    def _default(cls) -> Self:
        return cls._parse_file(bundled_prompt(), "default.toml")

    @classmethod
    def _read(cls, path: Path) -> Self:
        try:
            source = path.read_text(encoding="utf-8-sig")
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(f"the prompt file {str(path)!r} cannot be read: {error}") from error
        return cls._parse_file(source, str(path))

    @classmethod
    def _parse_file(cls, source: str, name: str) -> Self:
        try:
            content = tomllib.loads(source)
        except tomllib.TOMLDecodeError as error:
            raise UsageError(f"the prompt file {name!r} is no TOML: {error}") from error
        _check_keys(content, cls, f"key of the prompt file {name!r}")
        question = content.get("question", _QUESTION)
        if isinstance(question, str):
            content.setdefault("stop", [f"\n{question}"])  # or a base model asks itself the next question
        shown = content.get("demonstrations", [])
        for demonstration in shown if isinstance(shown, list) else []:
            if isinstance(demonstration, dict):
                _check_keys(demonstration, Demonstration, f"key of a demonstration in {name!r}")
        try:
            return msgspec.convert(content, cls)
        except msgspec.ValidationError as error:
            raise UsageError(f"the prompt file {name!r}: {error}") from error

    @property
    def fingerprint(self) -> str:
        """Hash over everything the file says (comments and order of keys aside)."""
        return hashlib.sha256(msgspec.json.encode(self, order="deterministic")).hexdigest()

    @property
    def cue(self) -> str:
        """What announces the answer."""
        return self.answer

    def build(self, question: str, passages: Sequence[Passage] = (), draft: str = "") -> tuple[Message, ...]:
        """Put a question, with passages if there are any, and leave the reply open.

        Args:
            question: text.
            passages: shown in this order, numbered from 1; line breaks in them become spaces, so that each stays one line.
            draft: what the model said so far, to be continued.

        Raises:
            BadInput: the question is blank.
        """
        if not question.strip():
            raise BadInput(f"the question is empty: {question!r}")
        messages = [Message("system", self.system)] if self.system else []
        for shown in self.demonstrations:
            messages += (Message("user", f"{self.question} {shown.question}"), Message("assistant", self._reply(shown)))
        asked = f"{self.question} {question.strip()}"
        if passages:
            lines = [self._line(number, passage) for number, passage in enumerate(passages, 1)]
            asked = "\n".join([self.passages, *lines, "", asked])
        space = " " if draft and not draft[0].isspace() else ""
        return (*messages, Message("user", asked), Message("assistant", f"{self.rationale or self.answer}{space}{draft}"))

    def forced(self, text: str) -> str:
        """Return generated text with the answer's cue on a new line, for `build(draft=...)`: what follows is the answer."""
        return f"{text.rstrip()}\n{self.answer}"

    def parse(self, text: str) -> Parsed:
        """Read the answer out of generated text: what follows the prompt, nothing else."""
        said, is_open = _without_thinking(text)
        if is_open:
            return Parsed(short="", rationale="", text=said, flags=("unclosed_reasoning",))
        body = self._until_next_question(said)
        if not self.rationale:  # the prompt ended with the cue
            return self._answered("", body, body)
        if found := self._marker(body):
            return self._answered(body[: found.start()], body[found.end() :], body)
        body = body.strip()
        lines = body.splitlines() or [""]
        sentences = split_sentences(lines[-1])
        start = len(body) - len(lines[-1]) + (sentences[-1][0] if sentences else 0)
        return Parsed(short=_bare(body[start:]), rationale=body[:start].strip(), text=body, flags=("no_marker",))

    def _reply(self, shown: Demonstration) -> str:
        reasoning = f"{self.rationale} {shown.rationale}\n" if self.rationale and shown.rationale else ""
        return f"{reasoning}{self.answer} {shown.answer}"

    def _line(self, number: int, passage: Passage) -> str:
        form = self.passage if passage.title.strip() else self.untitled_passage
        return form.format(number=number, title=_one_line(passage.title), text=_one_line(passage.text))

    def _until_next_question(self, text: str) -> str:
        """Cut off what the model runs on with: another question, other passages."""
        cues = "|".join(re.escape(cue) for cue in (self.question, self.passages) if cue.strip())
        found = re.search(rf"(?<!\w)(?:{cues})", text)
        return text[: found.start()] if found else text

    def _marker(self, text: str) -> re.Match[str] | None:
        if found := re.search(_cue_pattern(self.answer), text, re.IGNORECASE):
            return found
        for marker in self.markers:
            if matches := list(re.finditer(marker, text)):
                return matches[-1]
        return None

    def _answered(self, before: str, after: str, body: str) -> Parsed:
        line = next((line for line in after.splitlines() if line.strip()), "")
        sentences = split_sentences(line)
        short = _bare(line[: sentences[0][1]]) if sentences else ""
        end = body.find(line, len(body) - len(after)) + len(line) if line else len(body)
        return Parsed(short=short, rationale=before.strip(), text=body[:end].strip(), flags=() if short else ("truncated",))


def bundled_prompt() -> str:
    """Return the text of the prompt file that comes with the package."""
    return (resources.files("inward") / "data" / "prompts" / "default.toml").read_text(encoding="utf-8")


def fit(template: PromptTemplate, question: str, passages: Sequence[Passage], lm: LM, max_tokens: int) -> Fitted:
    """Build the prompt with as many passages, from the best rank down, as leave room for `max_tokens`.

    How many were dropped goes into the trace.

    Raises:
        BadInput: the question is blank.
        ContextLengthExceeded: the question does not fit even without passages.
    """

    def needed(kept: int) -> int:
        return lm.count(template.build(question, passages[:kept])) + max_tokens

    if (alone := needed(0)) > lm.context:
        raise ContextLengthExceeded(
            f"the question needs {alone} tokens with its prompt and an answer of {max_tokens}, and the model has room for {lm.context}: "
            "shorten the question, use fewer demonstrations, or lower max_tokens"
        )
    low, high = 0, len(passages)
    while low < high:
        middle = (low + high + 1) // 2 if high < len(passages) or low else high  # mostly all of them fit: ask that first
        low, high = (middle, high) if needed(middle) <= lm.context else (low, middle - 1)
    if dropped := len(passages) - low:
        note("passages dropped", f"{dropped} of {len(passages)}, from the lowest rank, to fit {lm.context} tokens")
    return Fitted(template.build(question, passages[:low]), tuple(passages[:low]))


def _without_thinking(text: str) -> tuple[str, bool]:
    """Take thinking blocks out; also say whether one was never closed."""
    text = _THINKING.sub("", text)
    if closed := list(_CLOSED.finditer(text)):  # some templates open the block in the prompt
        text = text[closed[-1].end() :]
    opened = _OPENED.search(text)
    return (text[: opened.start()], True) if opened else (text, False)


def _cue_pattern(cue: str) -> str:
    """Match the cue as written or emphasised: `Answer:`, `**Answer:**`, `**Answer**:`."""
    bare = cue.strip().rstrip(":")
    colon = r"\s*:" if cue.strip().endswith(":") else ""
    return rf"(?<!\w)[*_]*{re.escape(bare)}[*_]*{colon}[*_]*"


def _bare(answer: str) -> str:
    """Take off what belongs to the sentence: emphasis, quotes around all of it, the final full stop."""
    answer = answer.strip().strip("*_").strip()
    if answer.endswith(".") and not _KEEPS_ITS_STOP.search(answer):
        answer = answer[:-1].rstrip("*_ ")
    if len(answer) > 2 and _QUOTES.get(answer[0]) == answer[-1] and answer[-1] not in answer[1:-1]:
        answer = answer[1:-1].strip()
    return answer


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _check_format(name: str, form: str) -> None:
    try:
        used = {field for _, field, _, _ in string.Formatter().parse(form) if field is not None}
    except ValueError as error:
        raise UsageError(f"{name} of a prompt is no format: {form!r}: {error}") from error
    if wrong := used - {"number", "title", "text"}:
        raise UsageError(f"{name} of a prompt names {sorted(wrong)}; it may use {{number}}, {{title}} and {{text}}: {form!r}")
    if "text" not in used:
        raise UsageError(f"{name} of a prompt must show {{text}}, got {form!r}")


def _check_keys(content: dict[str, Any], kind: type[Any], what: str) -> None:
    known = [field.name for field in fields(kind)]
    for key in content:
        if key not in known:
            raise UnknownName(what, key, known)
