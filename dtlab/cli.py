"""The command `dtlab`: a learner's copies and progress, a machine's state, a class's grading."""

from __future__ import annotations

import argparse
import shutil
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from dtlab.errors import DtlabError

__all__ = ["main"]

_RELOAD = "open in JupyterLab: File, Reload Notebook from Disk."


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command; returns 0, 1 where it could not be done, 2 where it was not understood."""
    parser = _parser()
    options, unknown = parser.parse_known_args(arguments)
    if options.command is None:
        parser.print_help()
        return 2
    if unknown:
        told = f"{' '.join(unknown)!r} is more than it takes. See: dtlab {options.command} --help"
        print(f"dtlab {options.command}: {told}", file=sys.stderr)
        return 2
    try:
        return int(options.run(options) or 0)
    except KeyboardInterrupt:
        print(f"dtlab {options.command}: stopped.", file=sys.stderr)
        return 1
    except DtlabError as error:
        print(f"dtlab {options.command}: {error}", file=sys.stderr)
        return 1
    except OSError as error:
        where = f": {error.filename}" if error.filename else ""
        print(f"dtlab {options.command}: {error.strerror}{where}", file=sys.stderr)
        return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="dtlab", description="Learn distributed training by running it."
    )
    commands = parser.add_subparsers(dest="command", metavar="command")

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

    _add_doctor(commands)
    _add_release(commands)
    _add_grade(commands)
    _add_alike(commands)
    return parser


def _add_doctor(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    doctor = commands.add_parser(
        "doctor",
        help="say what this machine can do, what is wrong, and what mends it",
        description="Looks at the machine, its software, its GPUs and the course, launches ranks "
        "on the backends that there are, and says of each thing whether it is ok, worth a note or "
        "wrong, with the command that mends it. Changes nothing. Ends with 1 where something is "
        "wrong.",
    )
    doctor.add_argument(
        "--json", action="store_true", help="the same as JSON, with units in the names of keys"
    )
    doctor.add_argument("--quick", action="store_true", help="leave out what is tried on ranks")
    doctor.set_defaults(run=_doctor)


def _add_release(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    release = commands.add_parser(
        "release",
        help="for instructors: make an assignment in a course folder",
        description="Makes an assignment of a unit, or of some of its levels or parts, in a "
        "course folder of your own. Without a unit it keeps the repository in order: it "
        "normalises notebooks/ and solutions/, and generates exercises/.",
    )
    release.add_argument("unit", nargs="?", help='its number, as "01"')
    release.add_argument("--levels", metavar="1,2", help="only these levels")
    release.add_argument("--parts", metavar="PART,...", help='only these, as "01/ring_all_reduce"')
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
        "--force", action="store_true", help="replace the notebooks of an assignment that exists"
    )
    release.set_defaults(run=_release)


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


def _at_least_one(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number} is less than 1")
    return number


def _start(options: argparse.Namespace) -> None:
    from dtlab.grading.course import Course
    from dtlab.grading.workbook import start

    course = Course.find()
    unit = course.unit(options.unit)
    for line in start(course, unit, renew=options.renew):
        print(line)
    if options.renew:
        print(f"Where a renewed one is {_RELOAD}")
    first = next(course.handed_out(unit), None)
    if first is not None:
        print(f"Begin with {course.shown(course.own(first))}; dtlab progress says what is next.")


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


def _doctor(options: argparse.Namespace) -> int:
    from dtlab import __version__
    from dtlab.doctor import examine
    from dtlab.doctor.show import as_json, as_text

    begun = time.monotonic()
    findings = examine(options.quick, progress=lambda text: print(text, file=sys.stderr))
    seconds = time.monotonic() - begun
    if options.json:
        print(as_json(findings, seconds, __version__))
    else:
        for line in as_text(findings, seconds, shutil.get_terminal_size((100, 24)).columns):
            print(line)
    return 1 if any(finding.status == "wrong" for finding in findings) else 0


def _release(options: argparse.Namespace) -> None:
    from dtlab.grading.assignments.release import release_assignment
    from dtlab.grading.course import Course
    from dtlab.grading.notebooks import release

    chosen = {
        name: getattr(options, name)
        for name in ("levels", "parts", "points", "due", "name", "course", "force")
    }
    if options.unit:
        lines = release_assignment(options.unit, **chosen)
    elif any(chosen.values()):
        raise DtlabError("say which unit, as in: dtlab release 01 --levels 1,2")
    else:
        lines = release(Course.find())
    for line in lines:
        print(line)


def _alike(options: argparse.Namespace) -> None:
    from dtlab.grading.alike.sidebyside import compare_answers

    width = shutil.get_terminal_size((100, 24)).columns
    for line in compare_answers(
        options.assignment, course=options.course, threshold=options.threshold, width=width
    ):
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
