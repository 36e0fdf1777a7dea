"""Judges one notebook: its cells run in a sandbox, and its answers are judged outside.

    notebook ──cell by cell──►  its process in the sandbox (ranks/sandbox/)  outputs
    graded cell:  the answer  ◄── plain data, functions as pickles ── its process
                  part.check.run(answer, hidden seed, IsolatedBench)     points
                  the same with the seed that learners have            messages

Graded cells never run; this module runs their checks. `cells.py` runs the other cells.
"""

from __future__ import annotations

import functools
import hashlib
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from nbformat import NotebookNode
from nbformat.v4 import new_output

from dtlab import torch_internals
from dtlab.checks.functions.finished import hidden_modules_of
from dtlab.checks.parts import Part, find_part, known_parts
from dtlab.checks.questions.answers import Questions
from dtlab.checks.report import Criterion, Report, as_html, as_text
from dtlab.checks.turns import own_turn
from dtlab.classroom.judging.cells import MISSING, Cells, Limits, NotTaken
from dtlab.classroom.judging.isolated import IsolatedBench
from dtlab.errors import DtlabError, LaunchError
from dtlab.ranks.launch.client import Server
from dtlab.ranks.plain import Opaque, is_modest
from dtlab.ranks.sandbox.isolation import HiddenModules, Isolation
from dtlab.ranks.sandbox.sandbox import first_user

__all__ = ["WARM", "Judged", "PartVerdict", "judge", "part_of"]

# Modules that the warm server imports, so that the processes of notebooks and ranks need not, and
# work done there.
WARM = (
    "IPython.core.interactiveshell",
    "matplotlib_inline.backend_inline",
    "matplotlib.pyplot",
    "dtlab.classroom.judging.isolated",
    "dtlab.classroom.judging.rank_needs:prepare",
    "dtlab.show",
    torch_internals.COMPILER,  # optimizers import it
)
_CALL = re.compile(r'^\s*dtlab\.check\("(?P<part>[^"]+)",\s*(?P<symbol>\w+)', re.MULTILINE)
_ELSEWHERE = (
    "the answer is right with the inputs of the check that you can run yourself, but wrong with "
    "others: think of sizes, values and numbers of ranks that your check does not try."
)


@dataclass(frozen=True)
class PartVerdict:
    """The score of one part, in the points of the assignment, and its criteria.

    `seed` is the seed of the check, so that it can be repeated; `seconds` is the check's duration.
    """

    part: str
    grade_id: str
    score: float
    max_score: float
    seed: int
    criteria: tuple[Criterion, ...]
    seconds: float = 0.0


@dataclass
class Judged:
    """A judged notebook with its outputs and a report below each graded cell."""

    notebook: NotebookNode
    verdicts: list[PartVerdict] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)  # for learner and instructor
    missing: list[str] = field(default_factory=list)  # kinds of isolation that the system lacks
    cell_seconds: float = 0.0  # total time of the learner's cells


def part_of(cell: NotebookNode) -> Part | None:
    """Returns the part that a graded cell checks, None for any other cell."""
    if not cell.metadata.get("nbgrader", {}).get("grade") or cell.cell_type != "code":
        return None
    call = _CALL.search(cell.source)
    try:
        return find_part(call["part"]) if call else None
    except DtlabError:
        return None


def judge(
    notebook: NotebookNode,
    server: Server,
    *,
    student: str | None,
    seed: int,
    slot: int = 0,
    limits: Limits | None = None,
    known: Mapping[str, PartVerdict] | None = None,
    seeds: Mapping[str, int] | None = None,
    notes: Sequence[str] = (),
    progress: Callable[[str], None] = lambda _: None,
    waits: Callable[[bool], bool | None] = lambda _: None,
) -> Judged:
    """Runs and judges a notebook, whose graded cells must be unchanged from the release.

    `server` has imported `WARM`. `slot` differs between submissions that are judged at the same
    time. Parts in `known` keep these verdicts; those in `seeds` get the seed of an earlier
    verdict. `notes` are earlier notes on the notebook. `progress` is called with each step;
    `waits(True)` when a cell runs for a long time, so that other work can continue, and
    `waits(False)` when it ends. Raises `LaunchError` if nothing can run here.
    """
    parts = [part for cell in notebook.cells if (part := part_of(cell))]
    hidden = _hidden_modules_of(*(part.name for part in parts))
    isolation = Isolation(user=first_user(slot), hidden_modules=hidden)
    bench = IsolatedBench(server, replace(isolation, user=isolation.user + 256), student)
    drawn = {part.name: _seed_of(seed, part) for part in known_parts()} | dict(seeds or {})
    cells = Cells(server, isolation, limits or Limits(), waits)
    run = _Run(notebook, cells, bench, drawn, known or {})
    try:
        run.all_cells(progress)
    finally:
        cells.close()
        bench.close()
    judged = run.judged
    judged.notes = [*notes, *cells.notes]
    judged.missing, judged.cell_seconds = cells.missing, cells.seconds
    _show_notes(judged)
    return judged


class _Run:
    """The judging of one notebook, cell by cell."""

    def __init__(
        self,
        notebook: NotebookNode,
        cells: Cells,
        bench: IsolatedBench,
        seeds: Mapping[str, int],
        known: Mapping[str, PartVerdict],
    ) -> None:
        self.judged = Judged(notebook)
        self._cells, self._bench = cells, bench
        self._seeds, self._known = seeds, known

    def all_cells(self, progress: Callable[[str], None]) -> None:
        """Runs or judges all cells from top to bottom."""
        number = 0
        for cell in self.judged.notebook.cells:
            if cell.cell_type != "code":
                continue
            number += 1
            part = part_of(cell)
            progress(part.name if part else f"cell {number}")
            cell.execution_count = number
            cell.outputs = (
                self._judge(cell, part) if part else self._cells.run(number, cell.source)
            )

    def _judge(self, cell: NotebookNode, part: Part) -> list[NotebookNode]:
        seed, begun = self._seeds[part.name], time.monotonic()
        if part.name in self._known:
            seed, criteria = self._known[part.name].seed, self._known[part.name].criteria
        else:
            criteria = self._criteria(cell, part, seed)
        role = cell.metadata.nbgrader
        report = Report(part.symbol, criteria, cell_points=role.points)
        seconds = time.monotonic() - begun
        verdict = PartVerdict(
            part.name, role.grade_id, report.credit, role.points, seed, criteria, seconds
        )
        self.judged.verdicts.append(verdict)
        shown = {"text/plain": report.number, "text/html": report._repr_html_()}
        return [new_output("execute_result", data=shown, execution_count=cell.execution_count)]

    def _criteria(self, cell: NotebookNode, part: Part, seed: int) -> tuple[Criterion, ...]:
        take, number = self._cells.take, cell.execution_count
        try:
            answer = take(part.symbol, number)
            learner = take("learner", number) if isinstance(part.check, Questions) else None
        except NotTaken as why:
            return _nothing(part, f"{part.symbol} could not be taken from the notebook: {why}")
        if answer is MISSING:
            return _nothing(part, f"{part.symbol} is not defined when this cell is reached.")
        if isinstance(answer, Opaque):
            return _nothing(part, f"{part.symbol} is {answer.type_name} here.")
        if not (is_modest(answer) and is_modest(learner)):
            return _nothing(part, f"{part.symbol} is too large, or too deep, to be an answer.")
        typed = learner if isinstance(learner, str) else ""
        return self._settled(part, answer, seed, typed)

    def _settled(self, part: Part, answer: Any, seed: int, learner: str) -> tuple[Criterion, ...]:
        """Judges an answer: points from the hidden inputs, messages from the public inputs."""
        self._bench.begin(_hidden_modules_of(part.name))
        try:
            with own_turn():
                hidden = part.check.run(part.symbol, answer, seed, learner, self._bench)
        except LaunchError as error:
            raise LaunchError(f"{part.name} could not be judged here: {error}") from error
        if isinstance(part.check, Questions) or all(rule.status == "ok" for rule in hidden):
            return tuple(hidden)
        if self._bench.unwritten:
            return tuple(hidden)
        if self._bench.timed_out:  # a second run would take the limit again
            return tuple(map(self._bench.without_troubles, hidden))
        with own_turn():
            known = part.check.run(part.symbol, answer, 0, learner, self._bench)
        return tuple(map(_public, hidden, known))


@functools.cache
def _hidden_modules_of(*parts: str) -> HiddenModules:
    """The library modules that are hidden from answers to these parts.

    Finding them makes trials, some of which train, so it needs a turn.
    """
    with own_turn():
        return hidden_modules_of(map(find_part, parts))


def _public(hidden: Criterion, known: Criterion) -> Criterion:
    """Returns the result for the hidden inputs with the message for the learner's inputs.

    If the hidden inputs show no known mistake, the result has the one of the learner's inputs.
    """
    if hidden.status == "ok":
        return hidden
    if known.status == "ok":
        return replace(hidden, message=_ELSEWHERE)
    return replace(hidden, message=known.message, mistake=hidden.mistake or known.mistake)


def _nothing(part: Part, why: str) -> tuple[Criterion, ...]:
    return (Criterion("answer", part.points, 0, "lost", why),)


def _seed_of(seed: int, part: Part) -> int:
    """Returns a seed for one part; never 0, which is the seed of learners' own checks."""
    digest = hashlib.sha256(f"{seed}\n{part.name}".encode()).digest()
    return 1 + int.from_bytes(digest[:4]) % (2**31 - 2)


def _show_notes(judged: Judged) -> None:
    """Inserts the notes above the first report, so that the learner's feedback contains them."""
    graded = [cell for cell in judged.notebook.cells if part_of(cell)]
    if judged.notes and graded:
        lines = "".join(f"<li>{as_html(note)}</li>" for note in judged.notes)
        html = f"<p>Notes on your submission:</p><ul>{lines}</ul>"
        text = "Notes on your submission:\n" + "\n".join(map(as_text, judged.notes))
        shown = new_output("display_data", data={"text/plain": text, "text/html": html})
        graded[0].outputs.insert(0, shown)
