"""The command `dtlab`: a learner's copies and progress, and an instructor's release."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from dtlab.errors import DtlabError

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command; returns 0, 1 where it could not be done, 2 where it was not understood."""
    options = _parser().parse_args(arguments)
    try:
        options.run(options)
    except DtlabError as error:
        print(f"dtlab {options.command}: {error}", file=sys.stderr)
        return 1
    except OSError as error:
        print(f"dtlab {options.command}: {error.strerror}: {error.filename}", file=sys.stderr)
        return 1
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="dtlab", description="Learn distributed training by running it."
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="command")

    start = commands.add_parser(
        "start",
        help="copy a unit into my/, where you work on it",
        description="Copies a unit's lesson and exercises into my/, which git does not look at: "
        "git pull never meets your answers. What is there already is never overwritten.",
    )
    start.add_argument("unit", help='its number, as "01"')
    start.add_argument(
        "--renew",
        action="store_true",
        help="after git pull: take what is newer, with your answers; the old one stays beside it",
    )
    start.set_defaults(run=_start)

    progress = commands.add_parser(
        "progress",
        help="show what is passed and what is next",
        description="Shows all parts of all units: what you have passed, and what is next. Every "
        "check that you run is kept, on this machine only.",
    )
    progress.set_defaults(run=_progress)

    reset = commands.add_parser(
        "reset",
        help="put one part back to its start",
        description="Puts the cell of one part back to how it was handed out, and touches no "
        "other. Your notebook as it was stays beside it as a backup. Save and close it first.",
    )
    reset.add_argument("part", help='its name, as "01/ring_all_reduce"')
    reset.add_argument("--notebook", type=Path, help="a notebook elsewhere than in the course")
    reset.set_defaults(run=_reset)

    release = commands.add_parser(
        "release",
        help="for instructors: normalise all notebooks and generate exercises/",
        description="Takes outputs and editors' metadata from notebooks/ and solutions/, writes "
        "nbgrader's metadata from the parts, and generates exercises/ from solutions/.",
    )
    release.set_defaults(run=_release)
    return parser


def _start(options: argparse.Namespace) -> None:
    from dtlab.grading.course import Course
    from dtlab.grading.workbook import start

    course = Course.find()
    for line in start(course, course.unit(options.unit), renew=options.renew):
        print(line)


def _progress(options: argparse.Namespace) -> None:
    from dtlab.grading.progress import progress

    print(progress())


def _reset(options: argparse.Namespace) -> None:
    from dtlab.grading import find_part
    from dtlab.grading.course import Course
    from dtlab.grading.workbook import reset

    path, backup = reset(Course.find(), find_part(options.part), options.notebook)
    print(f"{options.part} is back to its start in {path}.")
    print(f"Your version is in {backup.name} beside it.")
    print("If the notebook is open in JupyterLab: File, Reload Notebook from Disk.")


def _release(options: argparse.Namespace) -> None:
    from dtlab.grading.course import Course
    from dtlab.grading.notebooks import release

    for line in release(Course.find()):
        print(line)
