"""Paths of the course on this machine, and which notebook contains which parts.

notebooks/01_name.ipynb                the lesson
notebooks/01_name_more.ipynb           its sequel, if it has one
exercises/01_name/level-1.ipynb        a released level; its source is in solutions/
my/notebooks/01_name.ipynb             the learner's own copies, which git ignores
my/exercises/01_name/01_level_1.ipynb  named by unit: tabs in JupyterLab show no folder

In a clone, my/ is beside notebooks/ and exercises/. A dtlab that was installed from a wheel brings
those two along, and my/ is in the folder where the learner works. `dtlab start --into FOLDER`
makes my/ in FOLDER.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from dtlab.checks.parts import Part
from dtlab.errors import DtlabError

__all__ = ["CARD", "REPOSITORY", "SEQUEL", "Course", "level_file"]

REPOSITORY = Path(__file__).resolve().parents[2]  # unless dtlab was installed from a wheel
INSTALLED = Path(__file__).resolve().parents[1] / "course"  # the course in a wheel
SEQUEL = "_more"  # ends the name of a lesson's sequel, which is optional


CARD = Path("docs/reference_card.md")
_COPIES = ("my/*/[0-9][0-9]_*", f"my/{CARD}")  # what a folder has where work was begun


def _is_clone(folder: Path) -> bool:
    return (folder / "nbgrader_config.py").is_file() and (folder / "exercises").is_dir()


def level_file(unit: str, level: int | str) -> str:
    """Returns the name of a learner's notebook, such as "01_level_2.ipynb"."""
    return f"{unit}_level_{level}.ipynb"


@dataclass(frozen=True)
class Course:
    """The learner's folder, to which paths of notebooks are relative, and the course's notebooks.

    `root` holds my/, and in a clone notebooks/ and exercises/ too; otherwise `installed` has them.
    """

    root: Path
    installed: Path | None = None

    @property
    def material(self) -> Path:
        """The folder with notebooks/ and exercises/ as the course hands them out."""
        return self.installed or self.root

    @classmethod
    def find(cls) -> Course:
        """Finds the course that contains the working folder, or else the one of this dtlab.

        The learner's folder is the nearest one, from the working folder upwards, that is a clone
        or has copies in my/. If there is none, it is the clone of this dtlab or, with an installed
        course, the working folder. Raises `DtlabError` if there is no course.
        """
        here = Path.cwd()
        folders = (here, *here.parents)
        clones = folders if INSTALLED.is_dir() else (*folders, REPOSITORY)
        clone = next(filter(_is_clone, clones), None)
        if clone is None and not INSTALLED.is_dir():
            raise DtlabError(
                f"{here} is not in a dtlab course: no folder above it has nbgrader_config.py and "
                "exercises/. Go to the folder that you cloned, and try again."
            )
        for folder in folders:
            if folder == clone:
                break
            if any(any(folder.glob(copies)) for copies in _COPIES):
                return cls(folder, clone or INSTALLED)
        return cls(clone) if clone else cls(here, INSTALLED)

    def moved(self, folder: Path) -> Course:
        """Returns the same course with the learner's folder `folder`, in which my/ is."""
        folder = folder.expanduser().resolve()
        folder = folder.parent if folder.name == "my" else folder
        return Course(folder, None if _is_clone(folder) else self.material)

    def units(self) -> list[str]:
        """Returns the names of all units, "00_one_gpu_is_not_enough" first."""
        lessons = (self.material / "notebooks").glob("[0-9][0-9]_*.ipynb")
        names = {path.stem for path in lessons if not path.stem.endswith(SEQUEL)}
        for folder in ("solutions", "exercises"):
            names |= {path.name for path in (self.material / folder).glob("[0-9][0-9]_*/")}
        return sorted(names)

    def unit(self, wanted: str) -> str:
        """Returns the name of the unit with this number or name.

        For any other text, such as the name of a part, raises a `DtlabError` that lists all units.
        """
        for name in self.units():
            if wanted == name or (wanted.isdigit() and name.startswith(f"{wanted.zfill(2)}_")):
                return name
        raise DtlabError(
            f"there is no unit {wanted!r}. Units: {', '.join(self.units())}. Write the number of "
            'a unit, such as "01", which includes all its levels.'
        )

    def unit_or_lab(self, wanted: str) -> str:
        """Does what `unit` does, and also accepts a notebook outside units, such as "gpu_lab"."""
        labs = sorted(path.stem for path in (self.material / "notebooks").glob("[!0-9]*.ipynb"))
        if wanted in labs:
            return wanted
        try:
            return self.unit(wanted)
        except DtlabError as error:
            more = f" There is also {', '.join(labs)}." if labs else ""
            raise DtlabError(f"{error}{more}") from None

    def level(self, part: Part) -> Path:
        """Returns the notebook that contains the part, such as "01_name/level-2.ipynb"."""
        return Path(self.unit(part.unit)) / f"level-{part.level}.ipynb"

    def handed_out(self, unit: str) -> Iterator[Path]:
        """Yields the lesson, its sequel and the levels of a unit, without backups beside them."""
        lessons = f"notebooks/{unit}.ipynb", f"notebooks/{unit}{SEQUEL}.ipynb"
        for pattern in (*lessons, f"exercises/{unit}/level-?.ipynb"):
            found = self.material.glob(pattern)
            yield from sorted(path.relative_to(self.material) for path in found)

    def own(self, notebook: Path) -> Path:
        """Returns the path of the learner's copy; links in a copy lead to other copies."""
        stem, _, level = notebook.stem.partition("-")
        name = level_file(notebook.parent.name[:2], level) if stem == "level" else notebook.name
        return Path("my") / notebook.with_name(name)

    def shown(self, notebook: Path) -> str:
        """Returns the path as JupyterLab shows it; the full path outside of the course."""
        inside = Path.cwd().is_relative_to(self.root)
        return (notebook if inside else self.root / notebook).as_posix()

    def lesson(self, unit: str) -> Path:
        """Returns the lesson of a unit, given by its number or name."""
        return Path("notebooks") / f"{self.unit(unit)}.ipynb"

    def in_use(self, notebook: Path) -> Path:
        """Returns the notebook in which the learner works: the copy, if there is one.

        A copy made by an earlier dtlab is still called level-2.ipynb.
        """
        copies = (self.own(notebook), Path("my") / notebook)
        return next((copy for copy in copies if (self.root / copy).is_file()), notebook)

    def worked_on(self, part: Part) -> Path:
        """Returns the notebook in which the learner does the part: the copy, if there is one."""
        return self.in_use(Path("exercises") / self.level(part))
