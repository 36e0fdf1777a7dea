"""The commands for learners: `dtlab start`, `lab`, `progress`, `review` and `reset`."""

from __future__ import annotations

import argparse
import importlib.util
import os
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from dtlab.errors import DtlabError

if TYPE_CHECKING:
    from dtlab.checks.course import Course

__all__ = ["add"]

_RELOAD = "open in JupyterLab: File, Reload Notebook from Disk."


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the commands for learners to the parser."""
    start = commands.add_parser(
        "start",
        help="copy a unit into my/, where you work on it",
        description="Copies a unit's lesson and exercises into my/. Git ignores this folder, so "
        "git pull does not conflict with your answers. Existing files are never overwritten. In a "
        "clone, my/ is always the clone's own, whatever the current folder is; --into takes "
        "another place.",
    )
    start.add_argument("unit", help='number of the unit, such as "01"; or "gpu_lab"')
    start.add_argument(
        "--renew",
        action="store_true",
        help="after git pull: update the notebooks and keep your answers in the exercises; the "
        "old notebook is kept as a backup",
    )
    start.add_argument(
        "--into",
        type=Path,
        metavar="FOLDER",
        help="make my/ in this folder, which is created if there is none; type later commands "
        "(start, lab, progress, reset) in it, so that they find your copies",
    )
    start.set_defaults(run=_start)

    lab = commands.add_parser(
        "lab",
        help="open JupyterLab on a unit",
        description="Copies a unit into my/, as dtlab start does, and opens JupyterLab on its "
        "lesson. Ctrl-C stops it. JupyterLab listens on this machine only, and gets all options "
        "that are not listed below.",
    )
    lab.add_argument("unit", nargs="?", default="00", help='number of the unit ("00")')
    lab.add_argument("--port", type=int, default=8888, help="0 takes any free port (8888)")
    lab.set_defaults(run=_lab, others=[])

    progress = commands.add_parser(
        "progress",
        help="show what you have passed and what is next",
        description="Shows your points in each unit, and what is next; with a unit, all its parts "
        "and the practice tasks of its lesson. The results of your checks are stored on this "
        "machine only.",
    )
    progress.add_argument("unit", nargs="?", help='number of a unit, such as "01"')
    progress.set_defaults(run=_progress)

    review = commands.add_parser(
        "review",
        help="repeat, after days, what you did not know",
        description="Asks again what you did not know: guesses of the lessons that were off by "
        "more than a factor of 2, the self-checks of lessons that you have begun, and mistakes "
        "that you made in several parts. You say whether you knew the answer: a question that you "
        "did not know is repeated sooner. Ctrl-C stops. Everything is stored on this machine "
        "only.",
    )
    review.add_argument("--most", type=int, default=10, help="the number of questions (10)")
    review.set_defaults(run=_review)

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
    from dtlab.checks.course import Course

    found = Course.find()
    unit = found.unit_or_lab(options.unit)
    course = found if options.into is None else found.moved(options.into)
    for line in _copied(course, unit, renew=options.renew):
        print(line)
    for line in _place(course, found, unit):
        print(line)
    if options.renew:
        print(f"If an updated notebook is {_RELOAD}")
    first = next(course.handed_out(unit), None)
    if first is not None:
        ending = "; dtlab progress says what is next." if unit in course.units() else "."
        print(f"Begin with {course.shown(course.own(first))}{ending}")


def _copied(course: Course, unit: str, *, renew: bool = False) -> Iterator[str]:
    """Copies a unit to my/. Raises `DtlabError` if my/ cannot be made or written."""
    from dtlab.checks.workbook import start

    my = course.root / "my"
    try:
        my.mkdir(parents=True, exist_ok=True)
        yield from start(course, unit, renew=renew)
    except OSError as error:
        reason = f"{error.strerror} ({error.filename})" if error.filename else str(error)
        for folder in (my, *my.parents):
            if folder.exists() and not folder.is_dir():
                reason = f"{folder} is a file, not a folder"
        raise DtlabError(
            f"the notebooks cannot be copied into {my}: {reason}. Name a folder in which you may "
            f"write: dtlab start {_short(unit)} --into FOLDER"
        ) from error


def _short(unit: str) -> str:
    """Returns what a learner types for a unit: its number, or the name of a lab."""
    return unit[:2] if unit[0].isdigit() else unit


def _place(course: Course, found: Course, unit: str) -> Iterator[str]:
    """Yields where the copies are, and how later commands find them, unless the learner is there.

    `found` is the course that commands find from the current folder.
    """
    number, my = _short(unit), course.root / "my"
    if course.root == found.root:
        if Path.cwd() != course.root and not Path.cwd().is_relative_to(my):
            yield f"These copies are in {my}, not in the folder where you are."
            yield f"For another place: dtlab start {number} --into FOLDER"
        return
    used = [notebook for notebook in found.handed_out(unit) if found.in_use(notebook) != notebook]
    if used:
        yield f"Your earlier copies in {found.root / 'my'} are unchanged; answers stay there."
    inside = Path.cwd().is_relative_to(course.root)
    go = "" if inside else f"cd {shlex.quote(str(course.root))} && "
    yield f"These copies are in {my}. To open them: {go}dtlab lab {number}"
    if not inside:
        yield (
            f"Type other dtlab commands (start, progress, reset) in {course.root} too: where you "
            f"are now, they use {found.root / 'my'}."
        )


# Settings for a learner's JupyterLab: it has no dialog on news of Jupyter, and no panel Create
# Assignment. An instructor's `jupyter lab` is not changed.
_JUPYTER_SETTINGS = Path(__file__).parent


def _lab(options: argparse.Namespace) -> None:
    from dtlab.checks.course import Course

    if importlib.util.find_spec("jupyterlab") is None:
        raise DtlabError(
            "JupyterLab is not installed here. To install it: pip install 'dtlab[lab]'. To work "
            f"in another editor: dtlab start {options.unit}, and open the notebooks in my/."
        )
    course = Course.find()
    unit = course.unit_or_lab(options.unit)
    for _ in _copied(course, unit):
        pass
    lesson = course.in_use(next(course.handed_out(unit), Path("notebooks") / f"{unit}.ipynb"))
    environment = dict(os.environ)
    # Terminals in JupyterLab must find this dtlab, but a login shell might set another PATH.
    environment["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    paths = [str(_JUPYTER_SETTINGS), os.environ.get("JUPYTER_CONFIG_PATH", "")]
    environment["JUPYTER_CONFIG_PATH"] = os.pathsep.join(filter(None, paths))
    words = [
        "--ip=127.0.0.1",
        f"--port={options.port}",
        f"--ServerApp.root_dir={course.root}",
        f"--LabApp.default_url=/lab/tree/{lesson.as_posix()}",
        "--LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate",
        f"--ServerApp.terminado_settings=shell_command={os.environ.get('SHELL', '/bin/sh')}",
    ]
    has_screen = sys.platform in ("darwin", "win32") or any(
        os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY")
    )
    words += [] if has_screen else ["--no-browser"]
    words += ["--allow-root"] if hasattr(os, "getuid") and os.getuid() == 0 else []
    command = [sys.executable, "-m", "jupyterlab", *words, *options.others]
    os.execve(sys.executable, command, environment)


def _progress(options: argparse.Namespace) -> None:
    from dtlab.checks.progress import progress
    from dtlab.checks.review import due_cards
    from dtlab.predict.units import counted

    print(progress(options.unit))
    if not options.unit and (due := due_cards()):
        print(f"Due for review: {counted(len(due), 'question')}   dtlab review")


def _review(options: argparse.Namespace) -> None:
    from dtlab.checks.review import review

    if options.most < 1:
        raise DtlabError(f"dtlab review: --most {options.most} must be at least 1.")
    review(most=options.most)


def _cleared(source: str) -> str:
    from dtlab.classroom.plugins import released_source  # needed only beside the solutions

    return released_source(source)


def _reset(options: argparse.Namespace) -> None:
    from dtlab.checks import find_part
    from dtlab.checks.course import Course
    from dtlab.checks.workbook import reset

    path, backup = reset(Course.find(), find_part(options.part), options.notebook, _cleared)
    if backup is None:
        print(f"{options.part}: nothing to reset. Its cell in {path} is unchanged.")
        print("If it looks different in JupyterLab, save the notebook there and try again.")
        return
    print(f"{options.part}: the original cell is back in {path}.")
    print(f"Your version is in {backup.name} in the same folder.")
    print(f"If the notebook is {_RELOAD}")
