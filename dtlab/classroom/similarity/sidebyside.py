"""The command `dtlab alike`: shows similar answers side by side."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator, Sequence
from itertools import zip_longest
from pathlib import Path

import nbformat
from nbformat import NotebookNode

from dtlab.classroom.settings import course_directory, course_folder
from dtlab.classroom.similarity.pairs import MANY, Group, alike, compared
from dtlab.classroom.submissions import Assignment, handed_in
from dtlab.errors import DtlabError

__all__ = ["compare_answers", "rendered"]

_WHAT_IT_MEANS = (
    "Similar answers need not be copied: the text, hints, a book or work in pairs can cause them.",
    "Names, comments, layout and released text were not compared.",
)


def compare_answers(
    assignment: str, *, course: Path | None = None, threshold: float = 0.8, width: int = 100
) -> Iterator[str]:
    """Compares the submissions of an assignment, and yields a report on similar answers.

    Raises `DtlabError` for an unknown assignment or an invalid threshold.
    """
    if not 0 < threshold <= 1:
        raise DtlabError(f"--threshold {threshold:g}: write a number above 0 and at most 1.")
    directory = course_directory(course_folder(course))
    assigned = Assignment.of(directory, assignment)
    notebooks: dict[str, dict[str, NotebookNode]] = {name: {} for name in assigned.notebooks}
    for submission in handed_in(directory, assignment, "*"):
        for handed in submission.read(assigned)[1]:
            notebooks[handed.name][submission.student] = handed.notebook
    for name, released in assigned.notebooks.items():
        if not compared(released):
            yield f"{name}: not compared. Its values are drawn for each learner."
            continue
        source = Path(directory.format_path(directory.source_directory, ".", assignment))
        path = source / f"{name}.ipynb"
        solution = nbformat.read(path, as_version=4) if path.is_file() else None
        groups = alike(notebooks[name], released, threshold, solution)
        yield from rendered(name, groups, len(notebooks[name]), threshold, width)


def rendered(
    notebook: str, groups: Sequence[Group], count: int, threshold: float, width: int = 100
) -> Iterator[str]:
    """Yields the lines of a report on the groups among `count` notebooks."""
    much = f"much alike (a score of {threshold:g} or more)"
    if not groups:
        yield f"{notebook}: among {count} notebooks, no two answers are {much}."
        return
    noun = "group of answers is" if len(groups) == 1 else "groups of answers are"
    yield f"{notebook}: among {count} notebooks, {len(groups)} {noun} {much}."
    yield from _WHAT_IT_MEANS
    half = max(20, (width - 3) // 2)
    for group in groups:
        yield ""
        yield f"{group.part}   {group.score:.2f}   {_named(group)}"
        yield "-" * (2 * half + 3)
        left, right = (_column(source, half) for source in group.sources)
        for left_line, right_line in zip_longest(left, right, fillvalue=""):
            yield f"{left_line:<{half}} | {right_line}".rstrip()


def _named(group: Group) -> str:
    """Names the learners of a group, and in a larger group those whose answers are shown."""
    names = ", ".join(map(_clean, group.learners))
    if len(group.learners) == 2:
        return names.replace(", ", " and ")
    closest = " and ".join(map(_clean, group.closest))
    many = " The cause may be a hint or a book." if len(group.learners) > MANY else ""
    return f"{len(group.learners)} learners: {names}.{many} Closest: {closest}"


def _column(source: str, width: int) -> list[str]:
    """Splits a source into lines of at most `width` characters."""
    lines = []
    for line in source.expandtabs(4).split("\n"):
        line = _clean(line)
        lines += [line[at : at + width] for at in range(0, max(len(line), 1), width)]
    return lines


def _clean(line: str) -> str:
    """Replaces terminal control characters and changes of the writing direction by "?"."""
    return "".join("?" if unicodedata.category(c) in ("Cc", "Cf", "Cs") else c for c in line)
