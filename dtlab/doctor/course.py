"""The course: nbgrader, its settings, its gradebook, and room on the disk."""

from __future__ import annotations

import os
import shlex
import shutil
import sqlite3
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from urllib.parse import quote

from dtlab.doctor.finding import Finding, in_gb, note, ok, wrong
from dtlab.doctor.visit import Visit, pip_install
from dtlab.errors import DtlabError

__all__ = ["alembic", "disk", "gradebook", "nbgrader", "settings"]

AREA = "course"
CONFIG = "nbgrader_config.py"
LITTLE_DISK, TOO_LITTLE_DISK = 2e9, 0.2e9  # bytes: outputs of a class; a notebook and its backup
_DATABASE_LIMIT = 5.0  # seconds to wait for who writes into it


def nbgrader(visit: Visit) -> Iterator[Finding]:
    """Whether it can be imported, and which one it is."""
    seen = visit.nbgrader
    if "trouble" in seen:
        told = f"cannot be imported: {seen['trouble']}"
        mend = pip_install("--force-reinstall", "nbgrader>=0.9.6")
        yield wrong(AREA, "nbgrader", told, mend, version=None)
    else:
        yield ok(AREA, "nbgrader", seen["version"], version=seen["version"])


def alembic(_: Visit) -> Iterator[Finding]:
    """The command with which nbgrader makes and renews a gradebook."""
    beside = shutil.which("alembic", path=str(Path(sys.executable).parent))
    found = shutil.which("alembic") or beside
    if found is None:
        told = "not on PATH: nbgrader can neither make nor renew a gradebook"
        yield wrong(AREA, "alembic", told, pip_install("alembic"), command=None)
    else:
        yield ok(AREA, "alembic", found, command=found)


def disk(_: Visit) -> Iterator[Finding]:
    """Free space where the course lies."""
    folder = course_folder() or Path.cwd()
    free = shutil.disk_usage(folder).free
    value = {"folder": str(folder), "free_bytes": free}
    told = f"{in_gb(free)} are free in {folder}"
    mend = f"du -xh {shlex.quote(str(folder))} | sort -h | tail"
    if free < TOO_LITTLE_DISK:
        yield wrong(AREA, "disk", f"{told}, too little to save notebooks", mend, **value)
    elif free < LITTLE_DISK:
        yield note(AREA, "disk", f"{told}, which is little", mend, **value)
    else:
        yield ok(AREA, "disk", told, **value)


def settings(visit: Visit) -> Iterator[Finding]:
    """The nbgrader_config.py of the course, and the gradebook that it names."""
    folder = course_folder()
    if folder is None:
        told = f"{Path.cwd()} is in no course: there is no {CONFIG} in it or above it. For a look "
        told += "at yours, go there"
        yield note(AREA, "settings", told, "cd THE_COURSE && dtlab doctor", folder=None)
        return
    if "trouble" in visit.nbgrader:
        return  # its own finding says so
    from dtlab.grading.settings import course_directory

    try:
        url = str(course_directory(folder).db_url)
    except DtlabError as error:
        mend = f"${{EDITOR:-vi}} {shlex.quote(str(folder / CONFIG))}"
        yield wrong(AREA, "settings", str(error), mend, folder=str(folder))
        return
    yield ok(AREA, "settings", str(folder / CONFIG), folder=str(folder))
    yield gradebook(url, folder)


def course_folder() -> Path | None:
    """The course around the working folder, or the one that this dtlab belongs to."""
    here, own = Path.cwd(), Path(__file__).resolve().parents[2]
    return next((one for one in (here, *here.parents, own) if (one / CONFIG).is_file()), None)


def gradebook(url: str, folder: Path) -> Finding:
    """The database of a course, which only `nbgrader` writes: there, whole, and of its version.

    `url` is SQLAlchemy's, as nbgrader's `CourseDirectory.db_url`.
    """
    from sqlalchemy.engine import make_url

    place = make_url(url)
    if place.get_backend_name() != "sqlite" or not place.database:
        told = f"{place.render_as_string()}: only SQLite is looked into"
        return note(AREA, "gradebook", told, path=None)
    path = Path(place.database)
    if not path.exists():
        told = f"none yet, nbgrader makes it: {path}"
        return ok(AREA, "gradebook", told, path=str(path), exists=False)
    value = {"path": str(path), "exists": True}
    try:
        revision = _revision(path)
    except sqlite3.Error as error:
        return _unreadable(path, error)
    if not os.access(path, os.R_OK | os.W_OK):
        mend = f"chmod u+rw {shlex.quote(str(path))}"
        return wrong(AREA, "gradebook", f"{path} cannot be written", mend, **value)
    return _of_version(revision, path, folder)


def _revision(path: Path) -> str:
    """Its schema's version, "" of one without. Raises sqlite3.Error for what is no database."""
    address = f"file:{quote(str(path))}?mode=ro"
    with closing(sqlite3.connect(address, uri=True, timeout=_DATABASE_LIMIT)) as database:
        (whole,) = database.execute("PRAGMA quick_check(1)").fetchone()
        if whole != "ok":
            raise sqlite3.DatabaseError(whole)
        tables = "SELECT name FROM sqlite_master WHERE name = 'alembic_version'"
        if database.execute(tables).fetchone() is None:
            return ""
        row = database.execute("SELECT version_num FROM alembic_version").fetchone()
        return str(row[0]) if row else ""


def _unreadable(path: Path, error: sqlite3.Error) -> Finding:
    value, quoted = {"path": str(path), "exists": True}, shlex.quote(str(path))
    if "locked" in str(error):
        told = f"{path} is locked: another program is writing into it"
        return note(AREA, "gradebook", told, f"fuser -v {quoted}", **value)
    if not os.access(path, os.R_OK):
        told = f"{path} cannot be read by this user"
        return wrong(AREA, "gradebook", told, f"sudo chown $USER {quoted}", **value)
    told = f"{path} cannot be read: {error}. Put it aside, and a backup in its place"
    return wrong(AREA, "gradebook", told, f"mv {quoted} {shlex.quote(f'{path}.broken')}", **value)


def _of_version(revision: str, path: Path, folder: Path) -> Finding:
    """Whether the installed nbgrader works with it."""
    from alembic.script import ScriptDirectory
    from nbgrader.dbutil import ALEMBIC_DIR

    scripts = ScriptDirectory(ALEMBIC_DIR)
    head, known = scripts.get_current_head(), {one.revision for one in scripts.walk_revisions()}
    value = {"path": str(path), "exists": True, "revision": revision, "newest_revision": head}
    if revision == head:
        return ok(AREA, "gradebook", f"{path}, of this nbgrader's version", **value)
    if not revision or revision in known:
        told = f"{path} was made by an older nbgrader. This makes a copy and renews it:"
        mend = f"cd {shlex.quote(str(folder))} && {shlex.quote(sys.executable)} -m nbgrader "
        mend += "db upgrade"
        return wrong(AREA, "gradebook", told, mend, **value)
    told = f"{path} was made by a newer nbgrader (revision {revision})"
    return wrong(AREA, "gradebook", told, pip_install("--upgrade", "nbgrader"), **value)
