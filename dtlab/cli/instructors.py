"""The commands for instructors: `dtlab release`, `grade`, `alike` and `statistics`."""

from __future__ import annotations

import argparse
import shutil
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

from dtlab.errors import DtlabError

__all__ = ["add"]


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the commands for instructors to the parser."""
    _add_release(commands)
    _add_grade(commands)
    _add_alike(commands)
    _add_statistics(commands)


def _add_release(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    release = commands.add_parser(
        "release",
        help="for instructors: make an assignment in a course folder",
        description="Makes an assignment from one unit, from some of its levels or parts, or from "
        "several units, in a separate course folder. Without a unit it updates the repository "
        "instead: it normalises notebooks/ and solutions/, and generates exercises/.",
    )
    release.add_argument(
        "unit", nargs="?", help='number of the unit, such as "01"; or several, such as "01,02"'
    )
    release.add_argument("--levels", metavar="1,2", help="only these levels")
    release.add_argument(
        "--parts",
        metavar="PART,...",
        help='only these parts, such as "01/ring_all_reduce"; "list" prints their names',
    )
    release.add_argument(
        "--points", metavar="PART=N,...", help='change points, such as "01/ring_all_reduce=20"'
    )
    release.add_argument("--due", metavar="WHEN", help='due date, such as "2027-02-01 18:00"')
    release.add_argument("--name", help="name of the assignment; the default is the unit's name")
    release.add_argument(
        "--course", type=Path, metavar="FOLDER", help="the course folder, created if necessary; "
        "the default is the current folder",
    )  # fmt: skip
    release.add_argument(
        "--force",
        action="store_true",
        help="replace the notebooks of an existing assignment, also to add parts to it",
    )
    release.set_defaults(run=_release)


def _add_grade(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    grade = commands.add_parser(
        "grade",
        help="for instructors: grade the submissions of a class",
        description="Grades the submissions for an assignment, several at a time, and writes the "
        "points into nbgrader's gradebook, for formgrader and nbgrader generate_feedback. "
        "Learners' code runs in a sandbox. Ctrl-C stops the command; if you run it again, it "
        "continues and does not grade unchanged submissions again. The exit status is 1 if "
        "something could not be graded; a message says what.",
    )
    grade.add_argument("assignment", help='name of the assignment, such as "week-3"')
    grade.add_argument(
        "--student", default="*", metavar="GLOB", help='only matching student ids, such as "a*"'
    )
    grade.add_argument(
        "--jobs",
        type=_at_least_one,
        metavar="N",
        help="number of submissions graded at the same time (default: the number of cores)",
    )
    grade.add_argument(
        "--part",
        action="append",
        default=[],
        metavar="NAME",
        help='grade only this part again, such as "ring_all_reduce", and keep the other results; '
        "can be given several times. New submissions are graded in full",
    )
    grade.add_argument(
        "--again", action="store_true", help="also grade submissions that have not changed"
    )
    grade.add_argument(
        "--seed",
        type=int,
        metavar="N",
        help="seed of the hidden inputs, to repeat a run elsewhere. Without it, each part keeps "
        "its inputs, and a new part gets fresh ones",
    )
    grade.add_argument(
        "--engine",
        choices=("local", "ray"),
        default="local",
        help="grade on this machine, or on a Ray cluster (pip install 'dtlab[ray]')",
    )
    grade.add_argument(
        "--course", type=Path, metavar="FOLDER", help="course folder (default: current folder)"
    )
    grade.set_defaults(run=_grade)


def _add_alike(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    alike = commands.add_parser(
        "alike",
        help="for instructors: list answers that are nearly the same",
        description="Compares all students' answers to each part, ignoring names, comments and "
        "layout, and shows nearly identical answers side by side. It reports that two texts are "
        "similar, not why: read them.",
    )
    alike.add_argument("assignment", help='name of the assignment, such as "week-3"')
    alike.add_argument(
        "--threshold", type=float, default=0.8, metavar="SCORE", help="from 0 to 1; default 0.8"
    )
    alike.add_argument("--course", type=Path, metavar="FOLDER", help="the course folder")
    alike.set_defaults(run=_alike)


def _add_statistics(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    statistics = commands.add_parser(
        "statistics",
        help="for instructors: which points a class misses",
        description="Summarises the results of dtlab grade: scores by part, and for each "
        "criterion how many students earned it, lost it, or had it blocked by another criterion.",
    )
    statistics.add_argument("assignment", help='name of the assignment, such as "week-3"')
    statistics.add_argument(
        "--figure", type=Path, metavar="FILE.png", help="also write a figure to this file"
    )
    statistics.add_argument("--course", type=Path, metavar="FOLDER", help="the course folder")
    statistics.set_defaults(run=_statistics)


def _at_least_one(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number} is less than 1")
    return number


def _release(options: argparse.Namespace) -> None:
    from dtlab.checks.course import Course
    from dtlab.classroom.notebooks import release
    from dtlab.classroom.releases.release import release_assignment
    from dtlab.classroom.releases.wanted import listed

    chosen = {
        name: getattr(options, name)
        for name in ("levels", "parts", "points", "due", "name", "course", "force")
    }
    lines: Iterator[str]
    if options.unit and options.parts == "list":
        lines = chain.from_iterable(listed(unit.strip()) for unit in options.unit.split(","))
    elif options.unit:
        lines = release_assignment(options.unit, **chosen)
    elif any(chosen.values()):
        raise DtlabError("name the unit, as in: dtlab release 01 --levels 1,2")
    else:
        lines = release(Course.find())
    for line in lines:
        print(line)


def _grade(options: argparse.Namespace) -> int:
    from dtlab.classroom.command import grade

    done = grade(
        options.assignment,
        students=options.student,
        jobs=options.jobs,
        again=options.again,
        parts=options.part,
        seed=options.seed,
        engine=options.engine,
        course=options.course,
    )
    return 0 if done else 1


def _alike(options: argparse.Namespace) -> None:
    from dtlab.classroom.similarity.sidebyside import compare_answers

    width = shutil.get_terminal_size((100, 24)).columns
    for line in compare_answers(
        options.assignment, course=options.course, threshold=options.threshold, width=width
    ):
        print(line)


def _statistics(options: argparse.Namespace) -> None:
    from dtlab.classroom.statistics import statistics

    for line in statistics(options.assignment, course=options.course, figure=options.figure):
        print(line)
