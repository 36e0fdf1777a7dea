"""`dtlab release`, `grade`, `alike` and `statistics`."""

from __future__ import annotations

import argparse
import shutil
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

from dtlab.errors import DtlabError

__all__ = ["add"]


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """What whoever teaches a class needs."""
    _add_release(commands)
    _add_grade(commands)
    _add_alike(commands)
    _add_statistics(commands)


def _add_release(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    release = commands.add_parser(
        "release",
        help="for instructors: make an assignment in a course folder",
        description="Makes an assignment of a unit, or of some of its levels or parts, in a "
        "course folder of your own; or of several units. Without a unit it keeps the repository "
        "in order: it normalises notebooks/ and solutions/, and generates exercises/.",
    )
    release.add_argument("unit", nargs="?", help='its number, as "01"; or several, as "01,02"')
    release.add_argument("--levels", metavar="1,2", help="only these levels")
    release.add_argument(
        "--parts",
        metavar="PART,...",
        help='only these, as "01/ring_all_reduce"; "list" shows their names',
    )
    release.add_argument(
        "--points", metavar="PART=N,...", help='other weights, as "01/ring_all_reduce=20"'
    )
    release.add_argument("--due", metavar="WHEN", help='as "2027-02-01 18:00"')
    release.add_argument("--name", help="of the assignment; else that of the unit")
    release.add_argument(
        "--course", type=Path, metavar="FOLDER", help="the course's folder, made if need be; "
        "else the folder you are in",
    )  # fmt: skip
    release.add_argument(
        "--force",
        action="store_true",
        help="replace the notebooks of an assignment that exists, also to add parts to it",
    )
    release.set_defaults(run=_release)


def _add_grade(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    grade = commands.add_parser(
        "grade",
        help="for instructors: grade what a class handed in",
        description="Judges what was handed in for an assignment, several submissions at a time, "
        "and books the points in nbgrader's gradebook; formgrader and nbgrader generate_feedback "
        "go on from there. What learners wrote runs behind walls. Ctrl-C stops it; the same "
        "command goes on where it was: what has not changed is not graded again. Ends with 1 "
        "where something could not be graded, and says what.",
    )
    grade.add_argument("assignment", help='its name, as "week-3"')
    grade.add_argument(
        "--student", default="*", metavar="GLOB", help='only students whose id matches, as "a*"'
    )
    grade.add_argument(
        "--jobs",
        type=_at_least_one,
        metavar="N",
        help="submissions that are judged at the same time (as many as there are cores)",
    )
    grade.add_argument(
        "--part",
        action="append",
        default=[],
        metavar="NAME",
        help='judge only this part again, as "ring_all_reduce", and leave the others as they '
        "are; may be given several times. Submissions that are new are graded in full",
    )
    grade.add_argument(
        "--again", action="store_true", help="judge those too of which nothing has changed"
    )
    grade.add_argument(
        "--seed",
        type=int,
        metavar="N",
        help="draw the hidden inputs from this number, to repeat a run elsewhere. Without it a "
        "part keeps its inputs, and a part that is new gets fresh ones",
    )
    grade.add_argument(
        "--engine",
        choices=("local", "ray"),
        default="local",
        help="judge on this machine, or on a Ray cluster (pip install 'dtlab[ray]')",
    )
    grade.add_argument(
        "--course", type=Path, metavar="FOLDER", help="the course folder, if it is not this one"
    )
    grade.set_defaults(run=_grade)


def _add_alike(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    alike = commands.add_parser(
        "alike",
        help="for instructors: list answers that are nearly the same",
        description="Compares the answers of all students to each part, without names, comments "
        "and layout, and shows those that are nearly the same side by side. It says that two "
        "texts are alike, and never why: read them.",
    )
    alike.add_argument("assignment", help='its name, as "week-3"')
    alike.add_argument(
        "--threshold", type=float, default=0.8, metavar="SCORE", help="0 to 1; 0.8 as a rule"
    )
    alike.add_argument("--course", type=Path, metavar="FOLDER", help="the course's folder")
    alike.set_defaults(run=_alike)


def _add_statistics(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    statistics = commands.add_parser(
        "statistics",
        help="for instructors: which points a class misses",
        description="Of what dtlab grade has judged: scores by part, and for each criterion how "
        "many earned it, lost it, or had it blocked by another one.",
    )
    statistics.add_argument("assignment", help='its name, as "week-3"')
    statistics.add_argument(
        "--figure", type=Path, metavar="FILE.png", help="also draw it, into this file"
    )
    statistics.add_argument("--course", type=Path, metavar="FOLDER", help="the course's folder")
    statistics.set_defaults(run=_statistics)


def _at_least_one(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number} is less than 1")
    return number


def _release(options: argparse.Namespace) -> None:
    from dtlab.grading.assignments.release import release_assignment
    from dtlab.grading.assignments.wanted import listed
    from dtlab.grading.course import Course
    from dtlab.grading.notebooks import release

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
        raise DtlabError("say which unit, as in: dtlab release 01 --levels 1,2")
    else:
        lines = release(Course.find())
    for line in lines:
        print(line)


def _grade(options: argparse.Namespace) -> int:
    from dtlab.grading.classroom.command import grade

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
    from dtlab.grading.alike.sidebyside import compare_answers

    width = shutil.get_terminal_size((100, 24)).columns
    for line in compare_answers(
        options.assignment, course=options.course, threshold=options.threshold, width=width
    ):
        print(line)


def _statistics(options: argparse.Namespace) -> None:
    from dtlab.grading.classroom.statistics import statistics

    for line in statistics(options.assignment, course=options.course, figure=options.figure):
        print(line)
