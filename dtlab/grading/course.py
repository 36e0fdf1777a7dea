"""Paths of the course on this machine, and which notebook contains which parts.

notebooks/01_name.ipynb              the lesson
exercises/01_name/level-1.ipynb      what is handed out; solutions/ holds its source
my/notebooks/..., my/exercises/...   the learner's own copies, out of git's sight
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from dtlab.errors import DtlabError
from dtlab.grading.parts import Part

__all__ = ["REPOSITORY", "Course"]

REPOSITORY = Path(__file__).resolve().parents[2]  # save where a wheel was installed


@dataclass(frozen=True)
class Course:
    """The folder of the course. Paths of notebooks are relative to it."""

    root: Path

    @classmethod
    def find(cls) -> Course:
        """The course around the working folder, or the one that this dtlab belongs to.

        Raises `DtlabError` where neither is one.
        """
        here = Path.cwd()
        for folder in (here, *here.parents, REPOSITORY):
            if (folder / "nbgrader_config.py").is_file() and (folder / "exercises").is_dir():
                return cls(folder)
        raise DtlabError(
            f"{here} is in no dtlab course: there is no folder above it with nbgrader_config.py "
            "and exercises/. Go to the folder that you cloned, and try again."
        )

    def units(self) -> list[str]:
        """The names of all units, "00_one_gpu_is_not_enough" first."""
        found = {path.stem for path in (self.root / "notebooks").glob("[0-9][0-9]_*.ipynb")}
        for folder in ("solutions", "exercises"):
            found |= {path.name for path in (self.root / folder).glob("[0-9][0-9]_*/")}
        return sorted(found)

    def unit(self, wanted: str) -> str:
        """The name of the unit with this number or name.

        Raises `DtlabError` that lists all units, also for a level or a part of one.
        """
        for name in self.units():
            if wanted == name or (wanted.isdigit() and name.startswith(f"{wanted.zfill(2)}_")):
                return name
        raise DtlabError(
            f"there is no unit {wanted!r}. Units: {', '.join(self.units())}. Name one by its "
            'number, as "01"; its levels come with it.'
        )

    def unit_or_lab(self, wanted: str) -> str:
        """As `unit`, or the name of a notebook that stands beside the units: "gpu_lab"."""
        labs = sorted(path.stem for path in (self.root / "notebooks").glob("[!0-9]*.ipynb"))
        if wanted in labs:
            return wanted
        try:
            return self.unit(wanted)
        except DtlabError as error:
            more = f" There is also {', '.join(labs)}." if labs else ""
            raise DtlabError(f"{error}{more}") from None

    def level(self, part: Part) -> Path:
        """The notebook that asks for the part, as "01_name/level-2.ipynb"."""
        return Path(self.unit(part.unit)) / f"level-{part.level}.ipynb"

    def handed_out(self, unit: str) -> Iterator[Path]:
        """The lesson of a unit and its levels; not the backups that may lie beside them."""
        for pattern in (f"notebooks/{unit}.ipynb", f"exercises/{unit}/level-?.ipynb"):
            yield from sorted(path.relative_to(self.root) for path in self.root.glob(pattern))

    def own(self, notebook: Path) -> Path:
        """Where the learner's copy of a notebook belongs; the links in it lead to other copies."""
        return Path("my") / notebook

    def shown(self, notebook: Path) -> str:
        """Its path as JupyterLab shows it, and in full for who works outside of the course."""
        inside = Path.cwd().is_relative_to(self.root)
        return (notebook if inside else self.root / notebook).as_posix()

    def worked_on(self, part: Part) -> Path:
        """The notebook in which the learner does the part: the copy, where there is one."""
        released = Path("exercises") / self.level(part)
        own = self.own(released)
        return own if (self.root / own).is_file() else released
