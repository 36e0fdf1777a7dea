"""One hostile or broken submission: what it tries, how its file is made, and what it may earn.

    release notebook ── the parts in `earns` ──> what was handed out
          right answers, those of `answers` in their place, cells `before` and `after`
                        └── `edit` ──> the bytes that are handed in

Only the cells that matter are there, so that judging one takes seconds.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from textwrap import dedent

import nbformat
from nbformat import NotebookNode

from dtlab.checks import Part, known_parts
from dtlab.checks.course import Course
from dtlab.classroom.judging.cells import Limits

__all__ = ["LEARNER", "QUICK", "Hostile", "as_bytes", "cell_of", "code", "right_answer"]

COURSE = Path(__file__).parents[2]
LEARNER = "ada"  # the student
QUICK = Limits(cell=4.0, notebook=30.0)  # of the cells of these notebooks

_MARK = re.compile(r"^\s*### (?:BEGIN|END) SOLUTION\n?", re.MULTILINE)

Edit = Callable[[NotebookNode], "NotebookNode | bytes | None"]


@dataclass(frozen=True)
class Hostile:
    """A submission of chosen parts of one level of a unit.

    `earns` maps the name of each part, without its unit, to the points that it may earn, exactly.
    `before` is a cell of the learner's own below the imports, `after` one at the very end.
    `answers`, by symbol, replaces right answers. `edit` gets the whole notebook, and returns it,
    or the bytes to hand in, or None for nothing at all. Each text of `says` must occur in a note,
    a message or an output, and none of `hides` may. In the code, @name@ stands for a place of
    `canaries.Canaries`. `seconds` is the time that judging it may take.
    """

    name: str
    tries: str
    earns: Mapping[str, float]
    seconds: float
    before: str = ""
    answers: Mapping[str, str] = field(default_factory=dict)
    after: str = ""
    edit: Edit | None = None
    says: Sequence[str] = ()
    hides: Sequence[str] = ()
    limits: Limits = QUICK
    quick: bool = False  # whether `make test` has it too

    @property
    def parts(self) -> list[Part]:
        """The parts that it is about, in course order."""
        return [part for part in known_parts() if part.name.partition("/")[2] in self.earns]

    def handed_out(self) -> NotebookNode:
        """The assignment's notebook, with these parts only."""
        first = self.parts[0]
        answers = tuple(part.answer_id for part in self.parts)
        return _handed_out(first.unit, first.level, answers)

    def handed_in(self, places: Mapping[str, str]) -> bytes | None:
        """The submitted file."""
        notebook = deepcopy(self.handed_out())
        for part in self.parts:
            right = right_answer(part.level, part.answer_id, part.unit)
            answer = self.answers.get(part.symbol, right)
            cell_of(notebook, part.answer_id).source = _filled(answer, places)
        if self.parts[0].level == 1:
            cell_of(notebook, "learner").source = f'import dtlab\n\nlearner = "{LEARNER}"'
        if self.before:
            notebook.cells.insert(1, _own_cell(_filled(self.before, places), "own-before"))
        if self.after:
            notebook.cells.append(_own_cell(_filled(self.after, places), "own-after"))
        made = self.edit(notebook) if self.edit else notebook
        return as_bytes(made) if isinstance(made, NotebookNode) else made


def as_bytes(notebook: NotebookNode) -> bytes:
    """A notebook as a file."""
    return str(nbformat.writes(notebook)).encode()


def code(*pieces: str) -> str:
    """The source of a cell, from pieces that are each indented as it suits them."""
    return "\n\n\n".join(dedent(piece).strip() for piece in pieces)


def cell_of(notebook: NotebookNode, cell_id: str) -> NotebookNode:
    """The cell with this id."""
    return next(cell for cell in notebook.cells if cell.id == cell_id)


@cache
def right_answer(level: int, cell_id: str, unit: str = "01") -> str:
    """The cell of the solution."""
    return _MARK.sub("", cell_of(_read("solutions", unit, level), cell_id).source)


@cache
def _handed_out(unit: str, level: int, answers: tuple[str, ...]) -> NotebookNode:
    notebook = _read("exercises", unit, level)
    kept = {"imports", "learner"}
    kept |= {answer + end for answer in answers for end in ("-given", "", "-check")}
    notebook.cells = [cell for cell in notebook.cells if cell.id in kept]
    return notebook


def _read(folder: str, unit: str, level: int) -> NotebookNode:
    name = Course(COURSE).unit(unit)
    return nbformat.read(COURSE / folder / name / f"level-{level}.ipynb", as_version=4)


def _filled(source: str, places: Mapping[str, str]) -> str:
    for name, place in places.items():
        source = source.replace(f"@{name}@", place)
    return code(source)


def _own_cell(source: str, cell_id: str) -> NotebookNode:
    return nbformat.v4.new_code_cell(source, id=cell_id)
