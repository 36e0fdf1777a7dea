"""Writes an assignment into a course folder and its gradebook, or changes nothing.

source/week-3/level-2.ipynb   with solutions      release/week-3/level-2.ipynb   for learners
gradebook.db                  its cells, their points, its due date
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
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

from dtlab.errors import DtlabError
from dtlab.grading.assignments.cutting import cut
from dtlab.grading.assignments.wanted import Wanted
from dtlab.grading.course import Course
from dtlab.grading.notebooks import normalise
from dtlab.grading.parts import known_parts
from dtlab.grading.settings import begin_course, course_directory

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
    """Makes the assignment `name` in a course folder from the solutions in `home`.

    Raises `DtlabError` where there is one of that name, save with `force`; and also then where
    learners have handed in parts that it would not have any more, since grades would be lost.
    """
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
    yield f"{name}: {asked.points:g} points{_due(due)}"
    students = ", ".join(settled.students)
    if settled.added:
        yield (
            f"Added: {', '.join(settled.added)}. Handed in before that: {students}. They lose "
            "these points unless they hand in again, with the new notebook."
        )
    if settled.changed:
        yield f"Points have changed. Grade again what was handed in: {students}."


def _notebooks(origin: Path, unit: str, asked: Wanted) -> dict[str, NotebookNode]:
    """The instructor's notebooks of the assignment from one unit, by their names there."""
    there = {path.name: path.name for path in _beside(origin)}
    there |= {f"level-{level}.ipynb": asked.file(unit, level) for level in asked.levels(unit)}
    made = {}
    for level in asked.levels(unit):
        path = origin / f"level-{level}.ipynb"
        if not path.is_file():
            raise DtlabError(f"there is no {path} to make level {level} of.")
        notebook = nbformat.read(path, as_version=4)
        parts = [part for part in known_parts() if (part.unit, part.level) == (unit, level)]
        normalise(notebook, parts, name=str(path))
        made[there[path.name]] = cut(notebook, parts, asked.weights, there)
    return made


def _beside(origin: Path) -> list[Path]:
    """What lies beside the notebooks and goes with them: pictures, data."""
    found = (path for path in sorted(origin.iterdir()) if path.is_file())
    return [path for path in found if path.suffix not in _NOT_COPIED]


@dataclass(frozen=True)
class _Settled:
    """Whether the gradebook knows an assignment, and who has handed it in.

    For them: the parts that are added, and whether points of the others change.
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
    """Raises `DtlabError` where something would be overwritten, or lost."""
    with Gradebook(directory.db_url, directory.course_id) as book:
        try:
            assignment = book.find_assignment(name)
        except MissingEntry:
            assignment = None
        old = _cells_in(assignment)
        taken = old or any(folder.exists() and any(folder.iterdir()) for folder in folders)
        if taken and not force:
            raise DtlabError(
                f"there is an assignment {name} already, in {folders[0].parent}. Take another "
                "--name. Or replace its notebooks with --force: grades that exist are kept."
            )
        students = {one.student.id for one in assignment.submissions} if assignment else set()
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
                "units its notebooks would have other names, so take another --name for this one."
            )
        raise DtlabError(
            f"{name} has been handed in by {_some(sorted(students))}, with {', '.join(gone)}: "
            "grades would be lost. Ask for these too, or take another --name for this one."
        )
    added = [cell for cell in new if late and cell not in old and new[cell] is not None]
    return _Settled(
        assignment is not None,
        sorted(students),
        [cell.removesuffix("-check") for _, cell in added],
        late and any(new[cell] != points for cell, points in old.items()),
    )


def _cells_in(assignment: Assignment | None) -> dict[tuple[str, str], float | None]:
    """The cells that the gradebook knows, with the points of those that are graded."""
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
    """Lets nbgrader add to an assignment that was handed in, which it refuses.

    The gradebook gets new notebooks and cells before nbgrader compares, and afterwards each
    submission gets a place for their points. Where anything goes wrong meanwhile they go again.
    """
    new: list[Notebook | BaseCell | SourceCell] = []
    with Gradebook(directory.db_url, directory.course_id) as book:
        with book.db.no_autoflush:
            for file, notebook in notebooks.items() if handed_in else ():
                known = book.find_assignment(name)
                found = [one for one in known.notebooks if one.name == Path(file).stem]
                if found:
                    new += _missing(found[0], notebook)
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
    """The cells of a notebook that the gradebook lacks."""
    cells = (*known.grade_cells, *known.solution_cells, *known.source_cells)
    have = {(type(one), one.name) for one in cells}
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
    """The rows of a submission that nbgrader would make for it today, and that it lacks."""
    have = {one.notebook_id: one for one in submission.notebooks}
    for notebook in submission.assignment.notebooks:
        own = have.get(notebook.id) or SubmittedNotebook(notebook=notebook, assignment=submission)
        yield own
        graded = {grade.cell_id for grade in own.grades}
        told = {comment.cell_id for comment in own.comments}
        for cell in notebook.grade_cells:
            if cell.id not in graded:
                yield Grade(cell_id=cell.id, notebook=own)
        for cell in notebook.solution_cells:
            if cell.id not in told:
                yield Comment(cell_id=cell.id, notebook=own)


def _write(notebooks: Mapping[str, NotebookNode], beside: list[Path], source: Path) -> None:
    """Writes the notebooks in place of older ones; what else is in the folder stays."""
    source.mkdir(parents=True, exist_ok=True)
    for old in source.glob("*level-?.ipynb"):
        old.unlink()
    for file in beside:
        shutil.copy(file, source)
    for name, notebook in notebooks.items():
        (source / name).write_text(nbformat.writes(notebook) + "\n", encoding="utf-8")


def _generate(directory: CourseDirectory, name: str) -> None:
    """Lets nbgrader make the release, and write down in the gradebook what is in it."""
    directory.assignment_id = name
    step = GenerateAssignment(coursedir=directory, config=directory.config)
    step.force = True
    done = capture_log(step)
    if not done["success"]:
        told = str(done.get("log") or done["error"]).strip()
        raise DtlabError(f"nbgrader could not generate {name}, so all is as it was:\n{told}")


def _as_before(directory: CourseDirectory, name: str, known: bool) -> None:
    """Makes the gradebook fit the folders again, which are as they were."""
    if known:
        with suppress(DtlabError):
            _generate(directory, name)
        return
    with Gradebook(directory.db_url, directory.course_id) as book:
        if any(one.name == name for one in book.assignments):
            book.remove_assignment(name)


def _registered(directory: CourseDirectory, name: str, due: datetime | None) -> datetime | None:
    """Writes the due date into the gradebook; returns it, or the one that it has already."""
    with Gradebook(directory.db_url, directory.course_id) as book:
        if due is None:
            known = book.find_assignment(name).duedate  # in UTC, and does not say so
            return known.replace(tzinfo=UTC) if known else None
        book.update_or_create_assignment(name, duedate=due)
    return due


@contextmanager
def _as_it_was_on_failure(*folders: Path) -> Iterator[None]:
    """Puts folders back where anything goes wrong meanwhile."""
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
