"""Who answers: the id that a learner types, whose work nbgrader grades; a record of results."""

from __future__ import annotations

import hashlib
import json
import os
import random
import sys
from contextlib import suppress
from pathlib import Path

from dtlab.errors import DtlabError

__all__ = ["best_shares", "graded_student", "normalised", "random_for", "record"]

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


# What a learner has earned so far: one line of JSON for each part that got better ----------------
#
# Lines are appended in one piece, so several notebooks may write at once, and a part's best line
# counts. The file lies in the user's own data folder, `$XDG_DATA_HOME/dtlab/progress.jsonl` as a
# rule; a check goes on where it cannot be written.


def record(name: str, score: float, max_score: float) -> None:
    """Keeps what a part has earned, if it is more than before. Not while nbgrader autogrades."""
    share = score / max_score if max_score else 0.0
    with suppress(OSError, RuntimeError):  # no home, no room, no right to write
        if graded_student() is not None or share <= best_shares().get(name, 0.0):
            return
        file = _file()
        file.parent.mkdir(parents=True, exist_ok=True)
        # The newline leads, so that a line torn by a crash does not take this one with it.
        line = "\n" + json.dumps({"part": name, "share": round(share, 6)})
        handle = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            os.write(handle, line.encode())
        finally:
            os.close(handle)


def best_shares() -> dict[str, float]:
    """The best share of its points that each part has earned, 1.0 for a passed one.

    A line that cannot be read, as a crash may leave it, is passed over.
    """
    best: dict[str, float] = {}
    try:
        lines = _file().read_text(encoding="utf-8", errors="replace").splitlines()
    except FileNotFoundError:
        return best
    for line in lines:
        with suppress(ValueError, TypeError, KeyError):
            kept = json.loads(line)
            best[str(kept["part"])] = max(best.get(kept["part"], 0.0), float(kept["share"]))
    return best


def _file() -> Path:
    from platformdirs import user_data_path

    return user_data_path("dtlab", appauthor=False) / "progress.jsonl"
