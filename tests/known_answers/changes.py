"""Known answers to a part, each written as a change of the solution: `NN_name/<symbol>.answers`.

    copies                    views: is not a view of flat
    ~ view(parameter.shape) => view(parameter.shape).clone()

The first line of a file is its title. An answer begins with its name and, after two spaces or
more, the criteria that it loses, each with a piece of its message; `right` means that it loses
none. If one line is too short for all criteria, the rest follows on the next lines, which begin
with two spaces. Then come the answer's changes of the solution's cell:

    - line                 is removed; it must be in the cell exactly once
    + line                 is inserted there, with the indentation of that line
    = line                 stays, and what follows is inserted after it
    ~ old => new           is replaced in place; `old` must be in exactly one line
    | line                 no change, but a line of a whole cell that is handed in instead

`-1`, `=1` and `~1` take the first of several such lines, `-2` the second. `equivalent` begins a
list of mutants that no check can tell from the solution, with the reason. A line that begins with
`#` is a comment. An answer that loses what an earlier one does, with the same messages, proves
nothing new, unless it reaches them by another way, such as another attack on the check; a comment
just above it then says which: `# By another way: ...`. Each error names its file and line.

A criterion that is blocked by a lost one is not listed. A name that stands alone on its line
begins an answer whose losses are still to be found out: `python -m tests.known_answers` prints
the line.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

__all__ = ["FOLDER", "AnswersError", "KnownAnswer", "KnownAnswers", "path_of", "read"]

FOLDER = Path(__file__).parent

_HEAD = re.compile(r"(\w+)(?: {2,}(\S.*))?")
_ANOTHER_WAY = "# By another way: "
_FURTHER = re.compile(r" {2,}\w+:.*")
_LOSS = re.compile(r"(\w+):(.*?)(?= {2,}\w+:|$)")
_CHANGE = re.compile(r"([-+=~|])(\d*)(?: (.*))?")


class AnswersError(Exception):
    """A file of known answers that cannot be read, or does not fit the solution."""


@dataclass(frozen=True)
class Change:
    """One line below the name of an answer: its `kind`, and the line of the file."""

    kind: str
    text: str
    which: int  # of the lines of the cell that fit, counted from 1; 0: there must be only one
    place: str  # where the change is written, for errors


@dataclass(frozen=True)
class KnownAnswer:
    """An answer by its name: what it loses, and how its cell differs from the solution's."""

    name: str
    losses: Mapping[str, str]  # a piece of the message, by criterion; empty for a right answer
    place: str
    another_way: bool  # to the messages of an earlier answer
    undecided: bool = False  # what it loses is still to be found out
    changes: list[Change] = field(default_factory=list)

    @property
    def is_whole(self) -> bool:
        """Whether it is a whole cell, and no change of the solution's."""
        return any(change.kind == "|" for change in self.changes)

    def source(self, solution: str) -> str:
        """The cell that is handed in. Raises AnswersError if a change does not fit."""
        if self.is_whole:
            return "\n".join(self._whole())
        lines, at, indent = solution.splitlines(), 0, ""
        for change in self.changes:
            if change.kind == "+":
                lines.insert(at, (indent + change.text).rstrip())
                at += 1
                continue
            old, arrow, new = change.text.partition(" => ")
            if change.kind == "~" and not arrow:
                raise AnswersError(f"{change.place}: write ~ old => new")
            at = _found(lines, old if change.kind == "~" else change.text, change)
            indent = lines[at][: len(lines[at]) - len(lines[at].lstrip())]
            if change.kind == "-":
                del lines[at]
            elif change.kind == "=":
                at += 1
            else:
                lines[at] = lines[at].replace(old, new)
        return "\n".join(lines)

    def _whole(self) -> Iterator[str]:
        for change in self.changes:
            if change.kind != "|":
                raise AnswersError(f"{change.place}: a whole cell (|) has no changes beside it")
            yield change.text

    def value(self, solution: str, run: Callable[[str], Any]) -> Any:
        """What `run` makes of the cell that is handed in.

        Raises AnswersError if the cell is no Python, or is the solution itself.
        """
        source = self.source(solution)
        try:
            tree = ast.parse(source)
        except SyntaxError as error:
            raise AnswersError(
                f"{self.place}: {self.name} is no Python in its line {error.lineno}: {error.msg}\n"
                + "\n".join(f"{n:4} {line}" for n, line in enumerate(source.splitlines(), 1))
            ) from None
        if ast.dump(tree) == ast.dump(ast.parse(solution)) and self.losses:
            raise AnswersError(f"{self.place}: {self.name} changes nothing of the solution")
        return run(source)


@dataclass(frozen=True)
class KnownAnswers:
    """What a file says: answers, and equivalent mutants with the reason, by their change."""

    answers: list[KnownAnswer]
    equivalent: dict[str, str]


def path_of(unit: str, symbol: str) -> Path | None:
    """The file of a part, or None if it has none."""
    return next(FOLDER.glob(f"{unit}_*/{symbol}.answers"), None)


def read(path: Path, criteria: Iterable[str], complete: bool = True) -> KnownAnswers:
    """Read a file. Raises AnswersError for a line that says nothing, or a criterion not there.

    A file that is not `complete` may repeat messages, and leave open what an answer loses.
    """
    file, known = f"{path.parent.name}/{path.name}", set(criteria)
    answers: list[KnownAnswer] = []
    equivalent: dict[str, str] = {}
    reason = comment = ""
    for number, line in _joined(path.read_text(encoding="utf-8").splitlines()):
        place = f"{file}, line {number}"
        if not line.strip() or line.startswith("#"):
            comment = line
            continue
        head, change = _HEAD.fullmatch(line), _CHANGE.fullmatch(line)
        if head and head[1] == "equivalent":
            reason = head[2]
        elif head:
            reason = ""
            answers.append(_answer(head[1], head[2], known, place, comment))
        elif reason:
            equivalent[line] = reason
        elif change and answers:
            which = int(change[2] or 0)
            answers[-1].changes.append(Change(change[1], change[3] or "", which, place))
        else:
            raise AnswersError(
                f"{place}: {line!r} is neither a change of the solution, which begins with -, +, "
                "=, ~ or |, nor a name and what it loses, as in: copies  views: is not a view"
            )
    _refuse_repetition(answers, complete)
    return KnownAnswers(answers, equivalent)


def _joined(lines: list[str]) -> Iterator[tuple[int, str]]:
    """The lines after the first with their numbers, each head with the criteria below it."""
    head = 0
    for number, line in enumerate(lines[1:], 2):
        if head and _FURTHER.fullmatch(line):
            lines[head - 1] += "  " + line.strip()
            lines[number - 1] = ""
        else:
            head = number if _HEAD.fullmatch(line) else 0
    yield from enumerate(lines[1:], 2)


def _answer(
    name: str, text: str | None, criteria: set[str], place: str, comment: str
) -> KnownAnswer:
    another_way = comment.startswith(_ANOTHER_WAY)
    if text is None:
        return KnownAnswer(name, {}, place, another_way, undecided=True)
    losses = {} if text == "right" else {n: piece.strip() for n, piece in _LOSS.findall(text)}
    if text != "right" and not losses:
        raise AnswersError(f"{place}: {name} is neither right nor loses a criterion: {text!r}")
    if unknown := losses.keys() - criteria:
        raise AnswersError(
            f"{place}: there is no criterion {', '.join(sorted(unknown))}; there are "
            f"{', '.join(sorted(criteria))}"
        )
    return KnownAnswer(name, losses, place, another_way)


def _refuse_repetition(answers: Iterable[KnownAnswer], complete: bool) -> None:
    named: dict[str, KnownAnswer] = {}
    known: dict[tuple[tuple[str, str], ...], str] = {}
    for answer in answers:
        if answer.name in named:
            raise AnswersError(f"{answer.place}: {answer.name} is there twice")
        losses = tuple(sorted(answer.losses.items()))
        if answer.undecided and complete:
            raise AnswersError(
                f"{answer.place}: {answer.name} does not say what it loses; python -m "
                f"tests.known_answers NN/part {answer.name} prints the line"
            )
        if losses in known and losses and not answer.another_way and complete:
            raise AnswersError(
                f"{answer.place}: {answer.name} loses what {known[losses]} does, with the same "
                "messages. Drop it, or quote more of its message, or say above it which other "
                f'way it takes: "{_ANOTHER_WAY}..."'
            )
        known.setdefault(losses, answer.name)
        if not answer.changes and answer.losses:
            raise AnswersError(f"{answer.place}: {answer.name} has no change")
        named[answer.name] = answer


def _found(lines: list[str], wanted: str, change: Change) -> int:
    """The line of the cell that a change is about."""
    if change.kind == "~":
        fits = [number for number, line in enumerate(lines) if wanted in line]
    else:
        fits = [number for number, line in enumerate(lines) if line.strip() == wanted.strip()]
    if len(fits) < max(change.which, 1) or (len(fits) > 1 and not change.which):
        many = f"{len(fits)} lines" if fits else "no line"
        raise AnswersError(f"{change.place}: {wanted!r} is in {many} of the solution")
    return fits[max(change.which, 1) - 1]
