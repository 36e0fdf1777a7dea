"""Who answers: the id that a learner types, and whose work nbgrader is grading."""

from __future__ import annotations

import hashlib
import random
import sys
from pathlib import Path

from dtlab.errors import DtlabError

__all__ = ["graded_student", "normalised", "random_for"]

_PLACEHOLDERS = {
    "",
    "id",
    "learner",
    "me",
    "name",
    "none",
    "student",
    "todo",
    "yourid",
    "yourname",
}


def normalised(learner: object) -> str:
    """The id without blanks and capitals, as ids are compared.

    Raises `DtlabError` that says what to type where it is empty or still a placeholder.
    """
    name = "" if learner is None else "".join(str(learner).casefold().split())
    if "".join(letter for letter in name if letter.isalnum()) in _PLACEHOLDERS:
        raise DtlabError(
            "say first who you are: the questions are drawn from your id. Type it between the "
            'quotes in the first cell, as learner = "ada", run that cell, and then this one.'
        )
    return name


def random_for(learner: str, purpose: str) -> random.Random:
    """A generator that is the same for this learner and purpose on every machine, every time."""
    digest = hashlib.sha256(f"{purpose}\n{normalised(learner)}".encode()).digest()
    return random.Random(int.from_bytes(digest))


def graded_student() -> str | None:
    """The student whose notebook nbgrader's autograde runs here; None anywhere else.

    Autograde runs a notebook in <course>/autograded/<student>/<assignment>/.
    """
    folder = _notebook_folder()
    for place in (folder, *folder.parents):
        course = place.parent.parent
        if place.parent.name == "autograded" and _is_course(course, place.name):
            return place.name
    return None


def _is_course(folder: Path, student: str) -> bool:
    """Whether this is an nbgrader course, and not a learner's own folder called autograded."""
    traces = ("nbgrader_config.py", "gradebook.db", f"submitted/{student}")
    return any((folder / trace).exists() for trace in traces)


def _notebook_folder() -> Path:
    """Where the notebook was started: a cell may have changed the working folder since."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return Path(getattr(shell, "starting_dir", None) or Path.cwd()).absolute()
