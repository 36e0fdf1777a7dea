"""`dtlab start`, `progress` and `reset`."""

from __future__ import annotations

import argparse
from pathlib import Path

__all__ = ["add"]

_RELOAD = "open in JupyterLab: File, Reload Notebook from Disk."


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """What a learner needs."""
    start = commands.add_parser(
        "start",
        help="copy a unit into my/, where you work on it",
        description="Copies a unit's lesson and exercises into my/, which git does not look at: "
        "git pull never meets your answers. What is there already is never overwritten.",
    )
    start.add_argument("unit", help='its number, as "01"; or "gpu_lab"')
    start.add_argument(
        "--renew",
        action="store_true",
        help="after git pull: take what is newer, with your answers in the exercises; the old "
        "notebook stays beside it",
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


def _start(options: argparse.Namespace) -> None:
    from dtlab.grading.course import Course
    from dtlab.grading.workbook import start

    course = Course.find()
    unit = course.unit_or_lab(options.unit)
    for line in start(course, unit, renew=options.renew):
        print(line)
    if options.renew:
        print(f"Where a renewed one is {_RELOAD}")
    first = next(course.handed_out(unit), None)
    if first is not None:
        then = "; dtlab progress says what is next." if unit in course.units() else "."
        print(f"Begin with {course.shown(course.own(first))}{then}")


def _progress(options: argparse.Namespace) -> None:
    from dtlab.grading.progress import progress

    print(progress())


def _reset(options: argparse.Namespace) -> None:
    from dtlab.grading import find_part
    from dtlab.grading.course import Course
    from dtlab.grading.workbook import reset

    path, backup = reset(Course.find(), find_part(options.part), options.notebook)
    if backup is None:
        print(f"{options.part}: nothing to reset. In {path} it is as it was handed out.")
        print("If it looks different in JupyterLab, save the notebook there and try again.")
        return
    print(f"{options.part} is back to its start in {path}.")
    print(f"Your version is in {backup.name} beside it.")
    print(f"If the notebook is {_RELOAD}")
