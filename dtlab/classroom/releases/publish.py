"""Writes an assignment into a course folder and its gradebook, or changes nothing if that fails.

source/week-3/01_level_2.ipynb   with solutions   release/week-3/01_level_2.ipynb   for learners
gradebook.db                     the cells, their points, the due date
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory

import nbformat
from nbformat import NotebookNode
from nbgrader.api import (
    Assignment,
    BaseCell,
    Comment,
    Grade,
    Gradebook,
    GradeCell,
    MissingEntry,
    Notebook,
    SolutionCell,
    SourceCell,
    SubmittedAssignment,
    SubmittedNotebook,
)
from nbgrader.converters import GenerateAssignment
from nbgrader.coursedir import CourseDirectory
from nbgrader.utils import capture_log, is_grade, is_locked, is_solution

from dtlab.checks.course import Course
from dtlab.checks.parts import known_parts
from dtlab.classroom.notebooks import normalise
from dtlab.classroom.releases.cutting import cut
from dtlab.classroom.releases.wanted import Wanted
from dtlab.classroom.settings import CONFIG, begin_course, course_directory
from dtlab.errors import DtlabError

__all__ = ["publish"]

_NOT_COPIED = (".ipynb", ".pyc")


def publish(
    home: Course,
    asked: Wanted,
    folder: Path,
    name: str,
    due: datetime | None,
    *,
    force: bool = False,
) -> Iterator[str]:
    """Creates the assignment `name` in a course folder from the solutions in `home`.

    Raises `DtlabError` if an assignment of that name exists, unless `force` is set. Even then it
    raises if submissions contain parts that the new assignment lacks, since grades would be lost.
    An assignment whose notebooks have names of an earlier dtlab keeps these names.
    """
    if (folder / CONFIG).is_file():
        asked = replace(asked, old_names=_has_old_names(course_directory(folder), name))
    notebooks: dict[str, NotebookNode] = {}
    beside: list[Path] = []
    for unit in asked.units:
        origin = home.root / "solutions" / home.unit(unit)
        notebooks |= _notebooks(origin, unit, asked)
        beside += _beside(origin)
    yield from begin_course(folder)
    directory = course_directory(folder)
    source, release = (
        Path(directory.format_path(step, ".", name))
        for step in (directory.source_directory, directory.release_directory)
    )
    settled = _settled(directory, name, notebooks, (source, release), force)
    try:
        with _as_it_was_on_failure(source, release):
            _write(notebooks, beside, source)
            handed_in = settled.known and bool(settled.students)
            with _open_for_more(directory, name, notebooks, handed_in):
                _generate(directory, name)
    except BaseException:
        _as_before(directory, name, settled.known)
        raise
    due = _registered(directory, name, due)
    for level in notebooks:
        yield f"{source / level}   {_content(asked, level)}"
    yield f"{release}   generated"
    extra = f", {asked.extra:g} of them for extra parts" if asked.extra else ""
    yield f"{name}: {asked.points:g} points{extra}{_due(due)}"
    students = ", ".join(settled.students)
    if settled.added:
        yield (
            f"Added: {', '.join(settled.added)}. Already submitted: {students}. These students "
            "lose the new points unless they submit again, with the new notebook."
        )
    if settled.changed:
        yield f"Points have changed. Grade these submissions again: {students}."


def _has_old_names(directory: CourseDirectory, name: str) -> bool:
    source = Path(directory.format_path(directory.source_directory, ".", name))
    return any(source.glob("*level-?.ipynb"))


def _notebooks(origin: Path, unit: str, asked: Wanted) -> dict[str, NotebookNode]:
    """Returns the notebooks with solutions from one unit, by their names in the assignment."""
    names = {path.name: path.name for path in _beside(origin)}
    names |= {f"level-{level}.ipynb": asked.file(unit, level) for level in asked.levels(unit)}
    notebooks = {}
    for level in asked.levels(unit):
        path = origin / f"level-{level}.ipynb"
        if not path.is_file():
            raise DtlabError(f"level {level} cannot be released: {path} does not exist.")
        notebook = nbformat.read(path, as_version=4)
        parts = [part for part in known_parts() if (part.unit, part.level) == (unit, level)]
        normalise(notebook, parts, name=str(path))
        notebooks[names[path.name]] = cut(notebook, parts, asked.weights, names)
    return notebooks


def _beside(origin: Path) -> list[Path]:
    """Returns the other files of a unit that are copied, such as pictures and data."""
    files = (path for path in sorted(origin.iterdir()) if path.is_file())
    return [path for path in files if path.suffix not in _NOT_COPIED]


@dataclass(frozen=True)
class _Settled:
    """The state of an assignment before it is written again.

    `known`: whether the gradebook has it. `students`: the students who have submitted. If there
    are any, `added` are the parts that are new to them, and `changed` says whether the points of
    other parts change.
    """

    known: bool
    students: list[str]
    added: list[str]
    changed: bool


def _settled(
    directory: CourseDirectory,
    name: str,
    notebooks: Mapping[str, NotebookNode],
    folders: tuple[Path, Path],
    force: bool,
) -> _Settled:
    """Returns the existing state; raises `DtlabError` if files or grades would be lost."""
    with Gradebook(directory.db_url, directory.course_id) as book:
        try:
            assignment = book.find_assignment(name)
        except MissingEntry:
            assignment = None
        old = _cells_in(assignment)
        taken = old or any(folder.exists() and any(folder.iterdir()) for folder in folders)
        if taken and not force:
            raise DtlabError(
                f"there is an assignment {name} already, in {folders[0].parent}. Use another "
                "--name. Or replace its notebooks with --force: grades that exist are kept."
            )
        students = {row.student.id for row in assignment.submissions} if assignment else set()
        students |= {path.parent.name for path in _handed_in(directory, name)}
    new = {
        (Path(level).stem, cell.id): cell.metadata.nbgrader.get("points")
        for level, notebook in notebooks.items()
        for cell in notebook.cells
        if cell.metadata.get("nbgrader")
    }
    late = bool(old and students)
    if late and old.keys() - new.keys():
        gone = sorted({cell.removesuffix("-check") for _, cell in old.keys() - new.keys()})
        if {cell for _, cell in old} <= {cell for _, cell in new}:
            raise DtlabError(
                f"{name} has been handed in by {_some(sorted(students))}. With parts of other "
                "units its notebooks would have other names, so use another --name for "
                "this assignment."
            )
        raise DtlabError(
            f"{name} has been handed in by {_some(sorted(students))}, with {', '.join(gone)}: "
            "grades would be lost. Include these parts, or use another --name for this assignment."
        )
    added = [cell for cell in new if late and cell not in old and new[cell] is not None]
    return _Settled(
        assignment is not None,
        sorted(students),
        [cell.removesuffix("-check") for _, cell in added],
        late and any(new[cell] != points for cell, points in old.items()),
    )


def _cells_in(assignment: Assignment | None) -> dict[tuple[str, str], float | None]:
    """Returns the cells in the gradebook, with the points of graded cells."""
    cells: dict[tuple[str, str], float | None] = {}
    for notebook in assignment.notebooks if assignment else ():
        cells |= {(notebook.name, cell.name): None for cell in notebook.solution_cells}
        cells |= {(notebook.name, cell.name): cell.max_score for cell in notebook.grade_cells}
    return cells


def _handed_in(directory: CourseDirectory, name: str) -> list[Path]:
    pattern = Path(directory.format_path(directory.submitted_directory, "*", name))
    root = Path(directory.root)
    return [path for path in root.glob(str(pattern.relative_to(root))) if path.is_dir()]


@contextmanager
def _open_for_more(
    directory: CourseDirectory, name: str, notebooks: Mapping[str, NotebookNode], handed_in: bool
) -> Iterator[None]:
    """Lets nbgrader add cells to an assignment with submissions, which it otherwise refuses.

    Adds new notebooks and cells to the gradebook before nbgrader compares them, and then rows for
    their points to each submission. If an exception is raised, removes the new rows again.
    """
    new: list[Notebook | BaseCell | SourceCell] = []
    with Gradebook(directory.db_url, directory.course_id) as book:
        with book.db.no_autoflush:
            for file, notebook in notebooks.items() if handed_in else ():
                known = book.find_assignment(name)
                existing = [row for row in known.notebooks if row.name == Path(file).stem]
                if existing:
                    new += _missing(existing[0], notebook)
                else:
                    new.append(Notebook(name=Path(file).stem, assignment=known))
        book.db.add_all(new)
        book.db.commit()
        try:
            yield
        except BaseException:
            for cell in new:
                book.db.delete(cell)
            book.db.commit()
            raise
        book.db.expire_all()
        with book.db.no_autoflush:
            for submission in book.find_assignment(name).submissions if handed_in else ():
                book.db.add_all([*_lacking(submission)])
        book.db.commit()


def _missing(known: Notebook, notebook: NotebookNode) -> Iterator[BaseCell | SourceCell]:
    """Yields rows for the cells of a notebook that the gradebook lacks."""
    cells = (*known.grade_cells, *known.solution_cells, *known.source_cells)
    have = {(type(row), row.name) for row in cells}
    for cell in notebook.cells:
        role = cell.metadata.get("nbgrader", {})
        name, kind = role.get("grade_id"), {"cell_type": cell.cell_type}
        if is_grade(cell) and (GradeCell, name) not in have:
            yield GradeCell(name=name, notebook=known, max_score=float(role["points"]), **kind)
        if is_solution(cell) and (SolutionCell, name) not in have:
            yield SolutionCell(name=name, notebook=known)
        roles = is_grade(cell) or is_solution(cell) or is_locked(cell)
        if roles and (SourceCell, name) not in have:
            yield SourceCell(name=name, notebook=known, **kind)


def _lacking(
    submission: SubmittedAssignment,
) -> Iterator[SubmittedNotebook | Grade | Comment]:
    """Yields rows that a submission lacks, but that nbgrader would create for it now."""
    have = {row.notebook_id: row for row in submission.notebooks}
    for notebook in submission.assignment.notebooks:
        submitted = have.get(notebook.id) or SubmittedNotebook(
            notebook=notebook, assignment=submission
        )
        yield submitted
        graded = {grade.cell_id for grade in submitted.grades}
        commented = {comment.cell_id for comment in submitted.comments}
        for cell in notebook.grade_cells:
            if cell.id not in graded:
                yield Grade(cell_id=cell.id, notebook=submitted)
        for cell in notebook.solution_cells:
            if cell.id not in commented:
                yield Comment(cell_id=cell.id, notebook=submitted)


def _write(notebooks: Mapping[str, NotebookNode], beside: list[Path], source: Path) -> None:
    """Writes the notebooks and replaces older ones; other files in the folder stay."""
    source.mkdir(parents=True, exist_ok=True)
    for old in source.glob("*level[-_]?.ipynb"):
        old.unlink()
    for file in beside:
        shutil.copy(file, source)
    for name, notebook in notebooks.items():
        (source / name).write_text(nbformat.writes(notebook) + "\n", encoding="utf-8")


def _generate(directory: CourseDirectory, name: str) -> None:
    """Makes nbgrader generate the release and enter its cells into the gradebook."""
    directory.assignment_id = name
    step = GenerateAssignment(coursedir=directory, config=directory.config)
    step.force = True
    result = capture_log(step)
    if not result["success"]:
        log = str(result.get("log") or result["error"]).strip()
        raise DtlabError(f"nbgrader could not generate {name}, so nothing was changed:\n{log}")


def _as_before(directory: CourseDirectory, name: str, known: bool) -> None:
    """Restores the gradebook to the state of the folders, which are restored already."""
    if known:
        with suppress(DtlabError):
            _generate(directory, name)
        return
    with Gradebook(directory.db_url, directory.course_id) as book:
        if any(assignment.name == name for assignment in book.assignments):
            book.remove_assignment(name)


def _registered(directory: CourseDirectory, name: str, due: datetime | None) -> datetime | None:
    """Writes the due date into the gradebook; returns it, or the existing one if `due` is None."""
    with Gradebook(directory.db_url, directory.course_id) as book:
        if due is None:
            known = book.find_assignment(name).duedate  # in UTC, without a time zone
            return known.replace(tzinfo=UTC) if known else None
        book.update_or_create_assignment(name, duedate=due)
    return due


@contextmanager
def _as_it_was_on_failure(*folders: Path) -> Iterator[None]:
    """Restores folders if an exception is raised in the context."""
    with TemporaryDirectory() as safe:
        saved = {folder: Path(safe) / str(place) for place, folder in enumerate(folders)}
        for folder, copy in saved.items():
            if folder.exists():
                shutil.copytree(folder, copy)
        try:
            yield
        except BaseException:
            for folder, copy in saved.items():
                shutil.rmtree(folder, ignore_errors=True)
                if copy.exists():
                    shutil.copytree(copy, folder)
            raise


def _content(asked: Wanted, level: str) -> str:
    parts = [part for part in asked.parts if level == asked.file(part.unit, part.level)]
    points = sum(asked.weights[part.name] for part in parts)
    return f"{points:g} points: {', '.join(part.symbol for part in parts)}"


def _due(due: datetime | None) -> str:
    if due is None:
        return ""
    local, world = due.strftime("%Y-%m-%d %H:%M %Z"), due.astimezone(UTC)
    same = due.utcoffset() == world.utcoffset()
    return f", due {local}" + ("" if same else f" ({world:%Y-%m-%d %H:%M} UTC)")


def _some(names: list[str]) -> str:
    return f"{len(names)} students" if len(names) > 3 else " and ".join(names)
