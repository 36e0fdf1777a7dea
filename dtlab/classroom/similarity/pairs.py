"""Similarity of answers: finds pairs and groups that a person should compare.

    answers ──tokens without names──> passages of 12 tokens ──minus released text──> compared
    pairs with a high score ──joined if they share a learner──> groups

A score is the share of the tokens of two answers, without released text, that lie in passages
common to both. It is 0 if nothing is shared, and 1 if one answer is the other with new names,
other comments, and its functions in another order. The idea to compare overlapping passages, and
to leave out passages that many learners have, is from S. Schleimer, D. S. Wilkerson and A. Aiken,
"Winnowing: Local Algorithms for Document Fingerprinting", SIGMOD 2003. Answers are short here, so
all passages are kept, without winnowing.

Measured on `tests/known_answers/01_ranks_and_collectives`: two right answers of Levels II and III
written independently score at most 0.66. A copy with other names and comments and its functions in
another order scores 1.00; with two additional lines, at least 0.85; with the operands of a sum
also swapped, at least 0.76. Level I is not compared, since its values are drawn for each learner,
and grading identifies the learner by them.

Passages that more than ten learners have are left out, since the text or a hint suggests them.
Answers are also compared with these passages included; answers that are then the same from
beginning to end form one group of any size. The course's solution is treated as one more learner.

A score says that two texts are similar, not why.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from nbformat import NotebookNode

from dtlab.checks.parts import known_parts
from dtlab.checks.questions.answers import Questions
from dtlab.classroom.similarity.tokens import Piece, names_given, pieces

__all__ = ["SOLUTION", "Group", "alike", "compared"]

PASSAGE = 12  # tokens: one to two lines of code
LEAST = 30  # tokens not released, about four lines; shorter answers may agree by chance
MANY = 10  # learners, or a tenth of them: the text or a hint suggests more frequent passages
SAME = 0.95  # least score of two answers that are the same from beginning to end
SOLUTION = "the course's solution"
LONGEST = 200_000  # characters of an answer that are compared

_CALL = re.compile(r"""dtlab\.check\(\s*["']([^"']+)""")

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]
Booleans = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Group:
    """Learners with similar answers to a part; score and text of the most similar pair."""

    learners: tuple[str, ...]
    part: str
    score: float  # 0 to 1
    sources: tuple[str, str]
    closest: tuple[str, str]  # the learners who wrote `sources`


def alike(
    submissions: Mapping[str, NotebookNode],
    released: NotebookNode,
    threshold: float = 0.8,
    solution: NotebookNode | None = None,
) -> list[Group]:
    """Returns groups of answers joined by scores of at least `threshold`; the most similar first.

    `submissions` are notebooks by learner. Text of `released`, the released notebook, is left out
    of the comparison. `solution` is the course's notebook with solutions. Cells that a learner
    added belong to the part in which they stand.
    """
    regions = _regions(released)
    released_code = [_source(cell) for cell in released.cells if cell.cell_type == "code"]
    everyone = {**submissions, **({SOLUTION: solution} if solution is not None else {})}
    answers = {learner: _answers(notebook, regions) for learner, notebook in everyone.items()}
    names = names_given(released_code)
    known = {passage for piece in pieces(released_code, names) for passage in _passages(piece)}
    programs = {}
    for learner, parts in answers.items():
        given_names = names | names_given(
            source for sources in parts.values() for source in sources
        )
        programs[learner] = {part: pieces(sources, given_names) for part, sources in parts.items()}
    groups = []
    for part in compared(released):
        learners_with_part = [
            learner for learner in sorted(programs) if programs[learner].get(part)
        ]
        programs_of_part = [programs[learner][part] for learner in learners_with_part]
        scores, whole = (
            _scores(programs_of_part, known, many=max(MANY, len(programs_of_part) / 10)),
            _scores(programs_of_part, known),
        )
        scores = np.where(whole >= max(SAME, threshold), np.maximum(whole, scores), scores)
        for group in _joined(scores >= threshold):
            within = np.triu(scores[np.ix_(group, group)], 1)
            pair = np.unravel_index(within.argmax(), within.shape)
            left, right = (learners_with_part[group[number]] for number in pair)
            first, second = ("\n\n\n".join(answers[learner][part]) for learner in (left, right))
            learners = tuple(learners_with_part[number] for number in group)
            best = float(within.max())
            groups.append(Group(learners, part, best, (first, second), (left, right)))
    return sorted(groups, key=lambda group: (-group.score, group.learners))


def _joined(alike: Booleans) -> Iterator[list[int]]:
    """Yields the indices of each connected group of similar answers."""
    left = set(range(len(alike)))
    while left:
        group, new = set(), {min(left)}
        while new:
            group |= new
            new = {int(n) for member in new for n in np.flatnonzero(alike[member])} - group
        left -= group
        if len(group) > 1:
            yield sorted(group)


def compared(released: NotebookNode) -> list[str]:
    """Returns the parts of a notebook whose answers are compared."""
    drawn = {part.name for part in known_parts() if isinstance(part.check, Questions)}
    parts = dict.fromkeys(part for part, _ in _regions(released).values())
    return [part for part in parts if part not in drawn]


def _regions(released: NotebookNode) -> dict[str, tuple[str, bool]]:
    """Maps each released cell to its part, and to whether learners fill it in.

    A part ends with its check; the cells after the last check belong to the last part.
    """
    regions: dict[str, tuple[str, bool]] = {}
    waiting: list[NotebookNode] = []
    part = "answers"
    for cell in [*released.cells, None]:
        role = cell.metadata.get("nbgrader", {}) if cell is not None else {}
        waiting += [cell] if cell is not None else []
        if role.get("grade"):
            call = _CALL.search(_source(cell))
            part = call[1] if call else str(role.get("grade_id"))
        if role.get("grade") or cell is None:
            for waiting_cell in waiting:
                filled_in = waiting_cell.metadata.get("nbgrader", {}).get("solution", False)
                regions[_name(waiting_cell)] = part, bool(filled_in)
            waiting = []
    return regions


def _answers(
    notebook: NotebookNode, regions: Mapping[str, tuple[str, bool]]
) -> dict[str, list[str]]:
    """Returns a learner's code for each part: the cells to fill in, and added cells."""
    answers: dict[str, list[str]] = {}
    space = dict.fromkeys((part for part, _ in regions.values()), LONGEST)
    part = next(iter(space), "")
    for cell in notebook.get("cells", []):
        part, filled_in = regions.get(_name(cell), (part, True))
        source = _source(cell).rstrip()[: space.get(part, 0)]
        if filled_in and cell.get("cell_type") == "code" and source:
            answers.setdefault(part, []).append(source)
            space[part] -= len(source)
    return answers


def _name(cell: NotebookNode) -> str:
    """Returns nbgrader's name of the cell, or its id; empty if it has neither."""
    role = cell.get("metadata", {}).get("nbgrader", {})
    return str(role.get("grade_id") or cell.get("id", ""))


def _source(cell: NotebookNode) -> str:
    source = cell.get("source", "")
    return source if isinstance(source, str) else "".join(map(str, source))


def _passages(piece: Piece) -> Iterator[Piece]:
    """Yields all runs of `PASSAGE` tokens, or the whole piece if it is shorter."""
    for start in range(max(1, len(piece) - PASSAGE + 1)):
        yield piece[start : start + PASSAGE]


def _scores(
    programs: Sequence[Sequence[Piece]], known: Collection[Piece], many: float = math.inf
) -> Floats:
    """Computes the scores of all pairs of programs, as a square matrix.

    Leaves out passages in `known`, and those that more than `many` programs have.
    """
    if not programs:
        return np.zeros((0, 0))
    laid_out = [_laid_out(program) for program in programs]
    spread = Counter(passage for places in laid_out for passage in {*places} if passage)
    common = {*known, *(passage for passage, learners in spread.items() if learners > many)}
    numbers: dict[tuple[Piece, int], int] = {}
    numbered = [_numbered(places, common, numbers) for places in laid_out]
    places = np.concatenate(numbered)
    counted = np.concatenate([_is_token(program) for program in programs]) & ~_covered(
        places == -1
    )
    begins = np.cumsum([0, *map(len, numbered[:-1])])
    shared = np.empty((len(programs), len(programs)))
    for row, mine in enumerate(numbered):
        has = np.zeros(len(numbers) + 2, dtype=bool)  # the last two stand for -2 and -1: False
        has[mine[mine >= 0]] = True
        shared[row] = np.add.reduceat((_covered(has[places]) & counted).astype(int), begins)
    sizes = np.add.reduceat(counted.astype(int), begins)
    scores = (shared + shared.T) / np.maximum(sizes[:, None] + sizes, 1)
    return np.where((sizes[:, None] < LEAST) | (sizes < LEAST), 0.0, scores)


def _laid_out(program: Sequence[Piece]) -> list[Piece | None]:
    """Puts the passages at the places of their first tokens, with gaps between the pieces."""
    places: list[Piece | None] = []
    for piece in program:
        passages = list(_passages(piece))
        places += [*passages, *[None] * (len(piece) + PASSAGE - 1 - len(passages))]
    return places


def _is_token(program: Sequence[Piece]) -> Booleans:
    """Returns which places of `_laid_out` have a token."""
    return np.array(
        [place < len(piece) for piece in program for place in range(len(piece) + PASSAGE - 1)]
    )


def _numbered(
    places: Sequence[Piece | None],
    common: Collection[Piece],
    numbers: dict[tuple[Piece, int], int],
) -> Integers:
    """Returns a number for each passage, -1 for a common passage, -2 for a place without passage.

    The second occurrence of a passage gets another number, so that a passage is matched only as
    often as both programs have it.
    """
    times: Counter[Piece] = Counter()
    result = []
    for passage in places:
        if passage is None or passage in common:
            result.append(-2 if passage is None else -1)
            continue
        times[passage] += 1
        result.append(numbers.setdefault((passage, times[passage]), len(numbers)))
    return np.array(result)


def _covered(begins: Booleans) -> Booleans:
    """Returns which places lie in a passage, if passages begin at the places in `begins`."""
    so_far = np.concatenate([np.zeros(PASSAGE, dtype=int), np.cumsum(begins)])
    return np.asarray(so_far[PASSAGE:] > so_far[:-PASSAGE])
