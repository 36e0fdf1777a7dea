"""`configure`: sets up nbgrader for dtlab, so that `nbgrader_config.py` has three lines.

    from pathlib import Path
    from dtlab.classroom.settings import configure
    configure(get_config(), Path(__file__).parent)

A course folder has the names that nbgrader's commands and formgrader expect:

    source/    the instructor's notebooks      submitted/   autograded/   feedback/
    release/   the notebooks for learners      gradebook.db

Settings below the call of `configure` override it.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
from collections.abc import Mapping
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

from jupyter_core.paths import jupyter_config_path
from nbgrader import coursedir
from nbgrader.converters import Autograde, GenerateAssignment, GenerateFeedback
from nbgrader.coursedir import CourseDirectory
from nbgrader.preprocessors import ClearSolutions, Execute
from traitlets.config import Config, PyFileConfigLoader

from dtlab.classroom import late, plugins, sanitised
from dtlab.classroom.received import times
from dtlab.errors import DtlabError

__all__ = ["CONFIG", "begin_course", "configure", "course_directory", "course_folder"]

CONFIG = "nbgrader_config.py"

_CONFIG_TEXT = '''\
"""nbgrader's settings for this course; `dtlab release 01 --levels 1,2` makes its assignments."""

from pathlib import Path

from dtlab.classroom.settings import configure

configure(get_config(), Path(__file__).parent, course_id={course_id!r})
'''

_IGNORED = """\
# Submissions and grades are private.
/gradebook.db*
/submitted/
/downloaded/
/autograded/
/feedback/
/verdicts/
/*.csv
.ipynb_checkpoints/
__pycache__/
"""


def configure(c: Config, root: Path | str, course_id: str = "") -> None:
    """Sets up nbgrader for the course in the folder `root`; `c` is the result of `get_config()`.

    `course_id` names the course in the exchange and in the gradebook; the default is its folder.
    """
    _put_commands_on_path()
    folder = os.path.abspath(root)  # not resolved: JupyterLab must find it below its root folder
    c.CourseDirectory.root = folder
    c.CourseDirectory.course_id = course_id or _course_id(Path(folder))
    # Our step keeps the form of an answer, and removes the solution below it.
    ours = {ClearSolutions: plugins.ClearSolutions}
    steps = _with(ours, GenerateAssignment.preprocessors.default())
    c.GenerateAssignment.preprocessors = [*steps, plugins.Stamp]
    # Learners' code runs in a sandbox and is judged outside it.
    judged = {Execute: plugins.Execute}
    c.Autograde.autograde_preprocessors = _with(
        judged, Autograde.autograde_preprocessors.default()
    )
    # Learners' notebooks are shown to others without scripts.
    c.HTMLExporter.preprocessors = [sanitised.Sanitiser]
    c.HTMLExporter.filters = {"markdown2html": sanitised.markdown_to_html}
    _escape_names_in_formgrader()
    for step in (Autograde, GenerateFeedback):
        step.init_notebooks = plugins.find_notebooks
    coursedir.parse_utc = _time_or_none  # nbgrader (0.9.6) takes "+0100" for 100 seconds
    c.ZipCollectApp.collector_plugin = "dtlab.classroom.received.archives.PlatformNames"
    c.AssignLatePenalties.plugin_class = late.LateRules  # by default without deductions
    # For `nbgrader validate`, which runs a notebook in a kernel; the first launch loads torch.
    c.Execute.timeout = 120


def _escape_names_in_formgrader() -> None:
    """Makes formgrader (0.9.6) escape names of folders and from URLs in its pages."""
    if "jupyter_server.serverapp" in sys.modules:  # the Jupyter server reads these settings
        from jinja2 import Environment
        from nbgrader.server_extensions.formgrader import formgrader

        formgrader.Environment = partial(Environment, autoescape=True)


def _time_or_none(text: str) -> datetime | None:
    """Replaces nbgrader's reading of timestamp.txt; None for a time that cannot be read."""
    with contextlib.suppress(ValueError, OverflowError):
        return times.moment(text).replace(tzinfo=None)
    return None


def course_folder(named: Path | None) -> Path:
    """Returns the named course folder, or else the working folder.

    Raises `DtlabError` if the working folder is not a course. A named folder need not exist yet.
    """
    folder = (named or Path.cwd()).expanduser().absolute()
    if named is None and not (folder / CONFIG).is_file():
        raise DtlabError(
            f"{folder} is no course folder: it has no {CONFIG}. Go to your course folder, or name "
            "it: --course FOLDER."
        )
    return folder


def begin_course(folder: Path) -> list[str]:
    """Creates a course folder with its settings, unless it exists; returns lines on new files.

    Raises `DtlabError` for a folder that is already used for something else.
    """
    if (folder / CONFIG).is_file():
        return []
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise DtlabError(
            f"{folder} exists already and is no course: it has no {CONFIG}. Name a folder that is "
            "new or empty, or copy the three lines at the top of dtlab/classroom/settings.py "
            f"into {folder / CONFIG}."
        )
    folder.mkdir(parents=True, exist_ok=True)
    (folder / ".gitignore").write_text(_IGNORED, encoding="utf-8")
    text = _CONFIG_TEXT.format(course_id=_course_id(folder.absolute()))
    (folder / CONFIG).write_text(text, encoding="utf-8")
    return [f"{folder / CONFIG}   new", f"{folder / '.gitignore'}   new"]


def course_directory(folder: Path) -> CourseDirectory:
    """Loads the course in `folder` with its settings, as nbgrader's commands do.

    Raises `DtlabError` if the settings cannot be read or do not set up dtlab.
    """
    config = Config()
    for place in [*reversed(jupyter_config_path()), str(folder)]:
        if (Path(place) / CONFIG).is_file():
            config.merge(_loaded(Path(place)))
    steps = config.GenerateAssignment.get("preprocessors", [])
    if plugins.ClearSolutions not in steps:
        raise DtlabError(
            f"{folder / CONFIG} does not set up dtlab, so learners would not get the forms of "
            "answers. Write into it: from dtlab.classroom.settings import configure, and below it "
            "configure(get_config(), Path(__file__).parent)"
        )
    return CourseDirectory(config=config)


def _loaded(folder: Path) -> Config:
    try:
        return PyFileConfigLoader(CONFIG, path=str(folder)).load_config()
    except Exception as error:  # the file is a program, which may raise anything
        raise DtlabError(
            f"{folder / CONFIG} cannot be read: {type(error).__name__}: {error}"
        ) from error


def _course_id(folder: Path) -> str:
    """Returns the folder's name in a form that is valid as a folder in the exchange."""
    return re.sub(r"[^\w.-]+", "-", folder.name).strip("-.") or "dtlab"


def _put_commands_on_path() -> None:
    """Adds the environment's commands to PATH, since nbgrader runs the command `alembic`."""
    commands = str(Path(sys.executable).parent)
    known = os.environ.get("PATH", os.defpath)
    if commands not in known.split(os.pathsep):
        os.environ["PATH"] = os.pathsep.join([commands, known])


def _with(ours: Mapping[Any, Any], steps: list[Any]) -> list[Any]:
    """Returns nbgrader's steps, each replaced by its entry in `ours` if it has one."""
    return [ours.get(step, step) for step in steps]
