"""The commands for learners: `dtlab start`, `progress` and `reset`."""

from __future__ import annotations

import argparse
from pathlib import Path

__all__ = ["add"]

_RELOAD = "open in JupyterLab: File, Reload Notebook from Disk."


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the commands for learners to the parser."""
    start = commands.add_parser(
        "start",
        help="copy a unit into my/, where you work on it",
        description="Copies a unit's lesson and exercises into my/. Git ignores this folder, so "
        "git pull does not conflict with your answers. Existing files are never overwritten.",
    )
    start.add_argument("unit", help='number of the unit, such as "01"; or "gpu_lab"')
    start.add_argument(
        "--renew",
        action="store_true",
        help="after git pull: update the notebooks and keep your answers in the exercises; the "
        "old notebook is kept as a backup",
    )
    start.set_defaults(run=_start)

    progress = commands.add_parser(
        "progress",
        help="show what you have passed and what is next",
        description="Shows your points in each unit, and what is next; with a unit, all its parts "
        "and the practice tasks of its lesson. The results of your checks are stored on this "
        "machine only.",
    )
    progress.add_argument("unit", nargs="?", help='number of a unit, such as "01"')
    progress.set_defaults(run=_progress)

    reset = commands.add_parser(
        "reset",
        help="restore the original cell of one part",
        description="Restores the original cell of one part, and changes no other cell. Your "
        "current notebook is kept beside it as a backup. Save and close the notebook first.",
    )
    reset.add_argument("part", help='name of the part, such as "01/ring_all_reduce"')
    reset.add_argument("--notebook", type=Path, help="a notebook outside the course folder")
    reset.set_defaults(run=_reset)


def _start(options: argparse.Namespace) -> None:
    from dtlab.grading.course import Course
    from dtlab.grading.workbook import start

    course = Course.find()
    unit = course.unit_or_lab(options.unit)
    for line in start(course, unit, renew=options.renew):
        print(line)
    if options.renew:
        print(f"If an updated notebook is {_RELOAD}")
    first = next(course.handed_out(unit), None)
    if first is not None:
        ending = "; dtlab progress says what is next." if unit in course.units() else "."
        print(f"Begin with {course.shown(course.own(first))}{ending}")


def _progress(options: argparse.Namespace) -> None:
    from dtlab.grading.progress import progress

    print(progress(options.unit))


def _reset(options: argparse.Namespace) -> None:
    from dtlab.grading import find_part
    from dtlab.grading.course import Course
    from dtlab.grading.workbook import reset

    path, backup = reset(Course.find(), find_part(options.part), options.notebook)
    if backup is None:
        print(f"{options.part}: nothing to reset. Its cell in {path} is unchanged.")
        print("If it looks different in JupyterLab, save the notebook there and try again.")
        return
    print(f"{options.part}: the original cell is back in {path}.")
    print(f"Your version is in {backup.name} in the same folder.")
    print(f"If the notebook is {_RELOAD}")
