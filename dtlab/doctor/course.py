"""Checks of the course: nbgrader, its settings, the gradebook, the sandbox, and the disk."""

from __future__ import annotations

import os
import shlex
import shutil
import sqlite3
import sys
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from urllib.parse import quote

from dtlab.doctor.finding import Finding, in_gb, note, ok, wrong
from dtlab.doctor.visit import Visit, pip_install
from dtlab.errors import DtlabError

__all__ = ["alembic", "disk", "gradebook", "nbgrader", "sandbox", "settings"]

AREA = "course"
CONFIG = "nbgrader_config.py"
LITTLE_DISK, TOO_LITTLE_DISK = 2e9, 0.2e9  # bytes: outputs of a class; a notebook and its backup
_DATABASE_LIMIT = 5.0  # seconds to wait for another process that writes to the database
_WITHOUT = {  # kinds of isolation in the sandbox, and what is lost without them
    "another user": "learners' code runs as you",
    "files": "it can read and change your files",
    "processes": "it can see and end your processes",
    "network": "it can connect to other programs and machines",
    "shared memory": "it can use your shared memory",
    "memory and processes together": "limits hold for a process instead of a submission, and "
    "time limits include waiting for a CPU",
    "system calls": "it can use all functions of the kernel",
}


def nbgrader(visit: Visit) -> Iterator[Finding]:
    """Check that nbgrader can be imported, and report its version."""
    info = visit.nbgrader
    if "trouble" in info:
        message = f"cannot be imported: {info['trouble']}"
        repair = pip_install("--force-reinstall", "nbgrader>=0.9.6")
        yield wrong(AREA, "nbgrader", message, repair, version=None)
    else:
        yield ok(AREA, "nbgrader", info["version"], version=info["version"])


def alembic(_: Visit) -> Iterator[Finding]:
    """Check for the command with which nbgrader creates and upgrades a gradebook."""
    beside = shutil.which("alembic", path=str(Path(sys.executable).parent))
    command = shutil.which("alembic") or beside
    if command is None:
        message = "not on PATH: nbgrader can neither create nor upgrade a gradebook"
        yield wrong(AREA, "alembic", message, pip_install("alembic"), command=None)
    else:
        yield ok(AREA, "alembic", command, command=command)


def disk(_: Visit) -> Iterator[Finding]:
    """Check the free space on the disk of the course."""
    folder = course_folder() or Path.cwd()
    free = shutil.disk_usage(folder).free
    value = {"folder": str(folder), "free_bytes": free}
    message = f"{in_gb(free)} are free in {folder}"
    repair = f"du -xh {shlex.quote(str(folder))} | sort -h | tail"
    if free < TOO_LITTLE_DISK:
        yield wrong(AREA, "disk", f"{message}, too little to save notebooks", repair, **value)
    elif free < LITTLE_DISK:
        yield note(AREA, "disk", f"{message}, which is not much", repair, **value)
    else:
        yield ok(AREA, "disk", message, **value)


def settings(visit: Visit) -> Iterator[Finding]:
    """Check the nbgrader_config.py of the course, and the gradebook that it names."""
    folder = course_folder()
    if folder is None:
        message = (
            f"{Path.cwd()} is not in a course folder: there is no {CONFIG} in it or above it. "
        )
        message += "To check your course, change to its folder"
        yield note(AREA, "settings", message, "cd THE_COURSE && dtlab doctor", folder=None)
        return
    if "trouble" in visit.nbgrader:
        return  # the check of nbgrader reports this
    from dtlab.classroom.settings import course_directory

    try:
        url = str(course_directory(folder).db_url)
    except DtlabError as error:
        repair = f"${{EDITOR:-vi}} {shlex.quote(str(folder / CONFIG))}"
        yield wrong(AREA, "settings", str(error), repair, folder=str(folder))
        return
    yield ok(AREA, "settings", str(folder / CONFIG), folder=str(folder))
    yield gradebook(url, folder)


def sandbox(visit: Visit) -> Iterator[Finding]:
    """Check which isolation the sandbox of `dtlab grade` has here; only grading needs it."""
    if "trouble" in visit.nbgrader:
        return  # no classes are graded on this machine
    from dtlab.ranks.launch.client import SERVER
    from dtlab.ranks.sandbox.isolation import Isolation
    from dtlab.ranks.sandbox.sandbox import Sandbox, first_user

    with Sandbox(SERVER, Isolation(user=first_user(0))) as started:
        yield isolation_of(started.missing)


def isolation_of(missing: Sequence[str]) -> Finding:
    """Return the finding for a sandbox that lacks these kinds of isolation.

    Each has its reason: "files (not permitted)".
    """
    reasons = {name: reason for name, _, reason in (kind.partition(" (") for kind in missing)}
    value = {"missing": {name: reason.removesuffix(")") for name, reason in reasons.items()}}
    if not missing:
        return ok(AREA, "sandbox", "complete: submissions can be graded safely", **value)
    lost = "; ".join(f"{name}: {what}" for name, what in _WITHOUT.items() if name in reasons)
    message = f"dtlab grade isolates submissions only in part here. Missing isolation: {lost}. To "
    message += "grade code that you do not trust, use a machine on which you are root"
    return note(AREA, "sandbox", message, **value)


def course_folder() -> Path | None:
    """Return the course that contains the working folder, or the clone that contains this file."""
    here, clone = Path.cwd(), Path(__file__).resolve().parents[2]
    return next(
        (folder for folder in (here, *here.parents, clone) if (folder / CONFIG).is_file()), None
    )


def gradebook(url: str, folder: Path) -> Finding:
    """Check that a course's database exists, is intact, and has the version of this nbgrader.

    `url` is a database URL of SQLAlchemy, as in nbgrader's `CourseDirectory.db_url`. Only nbgrader
    writes to the database.
    """
    from sqlalchemy.engine import make_url

    place = make_url(url)
    if place.get_backend_name() != "sqlite" or not place.database:
        message = f"{place.render_as_string()} was not checked: only SQLite databases are"
        return note(AREA, "gradebook", message, path=None)
    path = Path(place.database)
    if not path.exists():
        message = f"does not exist yet; nbgrader will create it: {path}"
        return ok(AREA, "gradebook", message, path=str(path), exists=False)
    value = {"path": str(path), "exists": True}
    try:
        revision = _revision(path)
    except sqlite3.Error as error:
        return _unreadable(path, error)
    if not os.access(path, os.R_OK | os.W_OK):
        repair = f"chmod u+rw {shlex.quote(str(path))}"
        return wrong(AREA, "gradebook", f"{path} cannot be written", repair, **value)
    return _of_version(revision, path, folder)


def _revision(path: Path) -> str:
    """Return the schema's version, or "". Raises sqlite3.Error if the file is not a database."""
    address = f"file:{quote(str(path))}?mode=ro"
    with closing(sqlite3.connect(address, uri=True, timeout=_DATABASE_LIMIT)) as database:
        (result,) = database.execute("PRAGMA quick_check(1)").fetchone()
        if result != "ok":
            raise sqlite3.DatabaseError(result)
        tables = "SELECT name FROM sqlite_master WHERE name = 'alembic_version'"
        if database.execute(tables).fetchone() is None:
            return ""
        row = database.execute("SELECT version_num FROM alembic_version").fetchone()
        return str(row[0]) if row else ""


def _unreadable(path: Path, error: sqlite3.Error) -> Finding:
    value, quoted = {"path": str(path), "exists": True}, shlex.quote(str(path))
    if "locked" in str(error):
        message = f"{path} is locked: another program is writing to it"
        return note(AREA, "gradebook", message, f"fuser -v {quoted}", **value)
    if not os.access(path, os.R_OK):
        message = f"{path} cannot be read by this user"
        return wrong(AREA, "gradebook", message, f"sudo chown $USER {quoted}", **value)
    message = f"{path} cannot be read: {error}. Move it away, and put a backup in its place"
    return wrong(
        AREA, "gradebook", message, f"mv {quoted} {shlex.quote(f'{path}.broken')}", **value
    )


def _of_version(revision: str, path: Path, folder: Path) -> Finding:
    """Check that the installed nbgrader works with a gradebook of this revision."""
    from alembic.script import ScriptDirectory
    from nbgrader.dbutil import ALEMBIC_DIR

    scripts = ScriptDirectory(ALEMBIC_DIR)
    head, known = scripts.get_current_head(), {each.revision for each in scripts.walk_revisions()}
    value = {"path": str(path), "exists": True, "revision": revision, "newest_revision": head}
    if revision == head:
        return ok(AREA, "gradebook", f"{path} has the version of this nbgrader", **value)
    if not revision or revision in known:
        message = (
            f"{path} was created by an older nbgrader. This command backs up and upgrades it:"
        )
        repair = f"cd {shlex.quote(str(folder))} && {shlex.quote(sys.executable)} -m nbgrader "
        repair += "db upgrade"
        return wrong(AREA, "gradebook", message, repair, **value)
    message = f"{path} was created by a newer nbgrader (revision {revision})"
    return wrong(AREA, "gradebook", message, pip_install("--upgrade", "nbgrader"), **value)
