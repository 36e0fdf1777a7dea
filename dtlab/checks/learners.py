"""Identifies the learner, by the typed id or by nbgrader, and stores the learner's results."""

from __future__ import annotations

import hashlib
import os
import random
import sys
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from dtlab.errors import DtlabError
from dtlab.ranks.protocol import MOST_SECONDS
from dtlab.stored import append, stored

__all__ = [
    "being_graded",
    "best_shares",
    "graded_student",
    "normalised",
    "notebook_folder",
    "random_for",
    "record",
    "record_mistakes",
    "stored_mistakes",
    "stored_results",
]

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
    """Returns the id in lower case without spaces, for comparisons.

    Raises a `DtlabError` that says what to type if the id is empty or still a placeholder.
    """
    name = "" if learner is None else "".join(str(learner).casefold().split())
    if "".join(letter for letter in name if letter.isalnum()) in _PLACEHOLDERS:
        raise DtlabError(
            "your id is missing: the questions are drawn from your id. Type it between the quotes "
            'in the cell `learner = ...`, as in learner = "ada", run that cell, and then this one.'
        )
    return name


def random_for(learner: str, purpose: str) -> random.Random:
    """Returns a generator that is the same for this learner and purpose on every machine."""
    digest = hashlib.sha256(f"{purpose}\n{normalised(learner)}".encode()).digest()
    return random.Random(int.from_bytes(digest))


def graded_student() -> str | None:
    """Returns the student whose notebook nbgrader's autograde runs here, else None.

    Autograde runs a notebook in <course>/autograded/<student>/<assignment>/.
    """
    folder = notebook_folder()
    for place in (folder, *folder.parents):
        course = place.parent.parent
        if place.parent.name == "autograded" and _is_course(course, place.name):
            return place.name
    return None


def being_graded() -> bool:
    """Whether a grader runs this notebook: plain nbgrader, or dtlab in its sandbox."""
    return MOST_SECONDS in os.environ or graded_student() is not None


def _is_course(folder: Path, student: str) -> bool:
    """Whether this is an nbgrader course, and not only a folder that contains "autograded"."""
    traces = ("nbgrader_config.py", "gradebook.db", f"submitted/{student}")
    return any((folder / trace).exists() for trace in traces)


def notebook_folder() -> Path:
    """Returns the folder in which the notebook was started; cells may have changed the cwd."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return Path(getattr(shell, "starting_dir", None) or Path.cwd()).absolute()


# Stored results: one entry for each improved result of a part or practice task -------------------
#
# Another entry has a part and a known mistake in it, once. A part's best entry counts. The last
# entry with a result shows what the learner works on; Run All improves nothing, and adds none. If
# nothing can be stored, the check continues.


def record(name: str, score: float, max_score: float) -> None:
    """Stores the result of a part if it is better than before, except during autograding."""
    share = score / max_score if max_score else 0.0
    with suppress(OSError, RuntimeError):  # no home folder, disk full, no permission
        if graded_student() is not None or share <= best_shares().get(name, 0.0):
            return
        append({"part": name, "share": round(share, 6)})


def record_mistakes(name: str, mistakes: Iterable[str]) -> None:
    """Stores the known mistakes in the answer to a part, each once, except during autograding."""
    with suppress(OSError, RuntimeError):
        if graded_student() is None:
            before = stored_mistakes()
            for mistake in dict.fromkeys(mistakes):
                if name not in before.get(mistake, ()):
                    append({"part": name, "mistake": mistake})


def stored_results() -> list[tuple[str, float]]:
    """Returns the names and shares of points of all stored results, the latest one last."""
    return stored("part", "share", float)


def stored_mistakes() -> dict[str, list[str]]:
    """Returns the parts in which the learner made each known mistake, in the order of time."""
    parts: dict[str, list[str]] = {}
    for part, mistake in stored("part", "mistake", str):
        parts.setdefault(mistake, []).append(part)
    return parts


def best_shares() -> dict[str, float]:
    """Returns the best share of points that each part has earned, 1.0 for a passed part."""
    best: dict[str, float] = {}
    for name, share in stored_results():
        best[name] = max(best.get(name, 0.0), share)
    return best
