"""Similarity of answers: finds pairs and groups that a person should compare.

    answers ──tokens without names──> passages of 12 tokens ──minus what was handed out──> compared
    pairs with a high score ──joined where they share a learner──> groups

A score is the share of both answers' own tokens that lie in passages which the other one has too:
0 where nothing is shared, 1 where one is the other with new names, other comments, and its
functions in another order. Comparing overlapping passages is due to S. Schleimer, D. S. Wilkerson
and A. Aiken, "Winnowing: Local Algorithms for Document Fingerprinting", SIGMOD 2003, as is leaving
out those that many have. Answers are short here, so all passages are kept and none is winnowed.

Measured on `tests/wrong_answers/01_ranks_and_collectives`: two right answers of Levels II and III
written differently score at most 0.66; a copy with other names and comments and its functions in
another order 1.00, with two lines more at least 0.85, with a sum turned round as well at least
0.76. Level I is left out: its values are drawn for each learner, and grading tells whose they are.

Passages that more than ten learners have are left out too: the text or a hint suggests them. So
answers are also compared with those passages, and those that are then the same from end to end are
one group, however large it is. The course's own solution takes part as one more learner.

A score says that two texts are alike, and never why.
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

from dtlab.grading.alike.tokens import Piece, names_given, pieces
from dtlab.grading.parts import known_parts
from dtlab.grading.questions.answers import Questions

__all__ = ["SOLUTION", "Group", "alike", "compared"]

PASSAGE = 12  # tokens: one to two lines of code
LEAST = 30  # own tokens, some four lines; shorter right answers may be the same by chance
MANY = 10  # learners, or a tenth of them: what more of them have, the text or a hint suggests
SAME = 0.95  # score of two answers that are the same from end to end
SOLUTION = "the course's solution"
LONGEST = 200_000  # characters of an answer that are looked at

_CALL = re.compile(r"""dtlab\.check\(\s*["']([^"']+)""")

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]
Booleans = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Group:
    """Learners whose answers to a part are alike: the score and text of the two most alike."""

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
    """Groups of answers, joined by scores of `threshold` or more; those most alike first.

    `submissions` are notebooks by learner. Text of `released`, the notebook that was handed out,
    is left out of the comparison. `solution` is the course's notebook with solutions. Cells that
    a learner added belong to the part in which they stand.
    """
    regions = _regions(released)
    handed_out = [_source(cell) for cell in released.cells if cell.cell_type == "code"]
    everyone = {**submissions, **({SOLUTION: solution} if solution is not None else {})}
    answers = {learner: _answers(one, regions) for learner, one in everyone.items()}
    names = names_given(handed_out)
    known = {passage for piece in pieces(handed_out, names) for passage in _passages(piece)}
    programs = {}
    for learner, parts in answers.items():
        own = names | names_given(source for sources in parts.values() for source in sources)
        programs[learner] = {part: pieces(sources, own) for part, sources in parts.items()}
    groups = []
    for part in compared(released):
        there = [learner for learner in sorted(programs) if programs[learner].get(part)]
        some = [programs[learner][part] for learner in there]
        scores, whole = _scores(some, known, many=max(MANY, len(some) / 10)), _scores(some, known)
        scores = np.where(whole >= max(SAME, threshold), np.maximum(whole, scores), scores)
        for group in _joined(scores >= threshold):
            inside = np.triu(scores[np.ix_(group, group)], 1)
            pair = np.unravel_index(inside.argmax(), inside.shape)
            one, other = (there[group[number]] for number in pair)
            first, second = ("\n\n\n".join(answers[learner][part]) for learner in (one, other))
            learners = tuple(there[number] for number in group)
            best = float(inside.max())
            groups.append(Group(learners, part, best, (first, second), (one, other)))
    return sorted(groups, key=lambda group: (-group.score, group.learners))


def _joined(alike: Booleans) -> Iterator[list[int]]:
    """The numbers of those that are alike, directly or by way of others."""
    left = set(range(len(alike)))
    while left:
        group, new = set(), {min(left)}
        while new:
            group |= new
            new = {int(n) for one in new for n in np.flatnonzero(alike[one])} - group
        left -= group
        if len(group) > 1:
            yield sorted(group)


def compared(released: NotebookNode) -> list[str]:
    """The parts of a notebook whose answers could have been passed on."""
    drawn = {part.name for part in known_parts() if isinstance(part.check, Questions)}
    parts = dict.fromkeys(part for part, _ in _regions(released).values())
    return [part for part in parts if part not in drawn]


def _regions(released: NotebookNode) -> dict[str, tuple[str, bool]]:
    """For each cell that was handed out: the part that it stands in, and whether it is filled in.

    A part ends with its check; what comes behind the last one belongs to it too.
    """
    regions: dict[str, tuple[str, bool]] = {}
    waiting: list[NotebookNode] = []
    part = "answers"
    for cell in [*released.cells, None]:
        role = cell.metadata.get("nbgrader", {}) if cell is not None else {}
        waiting += [cell] if cell is not None else []
        if role.get("grade"):
            found = _CALL.search(_source(cell))
            part = found[1] if found else str(role.get("grade_id"))
        if role.get("grade") or cell is None:
            for one in waiting:
                filled_in = one.metadata.get("nbgrader", {}).get("solution", False)
                regions[_name(one)] = part, bool(filled_in)
            waiting = []
    return regions


def _answers(
    notebook: NotebookNode, regions: Mapping[str, tuple[str, bool]]
) -> dict[str, list[str]]:
    """What a learner wrote for each part: the cells to fill in, and cells of one's own."""
    answers: dict[str, list[str]] = {}
    room = dict.fromkeys((part for part, _ in regions.values()), LONGEST)
    part = next(iter(room), "")
    for cell in notebook.get("cells", []):
        part, filled_in = regions.get(_name(cell), (part, True))
        source = _source(cell).rstrip()[: room.get(part, 0)]
        if filled_in and cell.get("cell_type") == "code" and source:
            answers.setdefault(part, []).append(source)
            room[part] -= len(source)
    return answers


def _name(cell: NotebookNode) -> str:
    """What nbgrader calls the cell, or its id; empty where it has neither."""
    role = cell.get("metadata", {}).get("nbgrader", {})
    return str(role.get("grade_id") or cell.get("id", ""))


def _source(cell: NotebookNode) -> str:
    source = cell.get("source", "")
    return source if isinstance(source, str) else "".join(map(str, source))


def _passages(piece: Piece) -> Iterator[Piece]:
    """All runs of so many tokens; a shorter piece is one by itself."""
    for start in range(max(1, len(piece) - PASSAGE + 1)):
        yield piece[start : start + PASSAGE]


def _scores(
    programs: Sequence[Sequence[Piece]], known: Collection[Piece], many: float = math.inf
) -> Floats:
    """The score of every program with every other one, as a square table.

    Passages in `known`, and those that more than `many` programs have, are left out.
    """
    if not programs:
        return np.zeros((0, 0))
    laid_out = [_laid_out(program) for program in programs]
    spread = Counter(passage for places in laid_out for passage in {*places} if passage)
    common = {*known, *(passage for passage, learners in spread.items() if learners > many)}
    numbers: dict[tuple[Piece, int], int] = {}
    numbered = [_numbered(places, common, numbers) for places in laid_out]
    places = np.concatenate(numbered)
    own = np.concatenate([_is_token(program) for program in programs]) & ~_covered(places == -1)
    begins = np.cumsum([0, *map(len, numbered[:-1])])
    shared = np.empty((len(programs), len(programs)))
    for one, mine in enumerate(numbered):
        has = np.zeros(len(numbers) + 2, dtype=bool)  # the last two stand for -2 and -1: never
        has[mine[mine >= 0]] = True
        shared[one] = np.add.reduceat((_covered(has[places]) & own).astype(int), begins)
    sizes = np.add.reduceat(own.astype(int), begins)
    scores = (shared + shared.T) / np.maximum(sizes[:, None] + sizes, 1)
    return np.where((sizes[:, None] < LEAST) | (sizes < LEAST), 0.0, scores)


def _laid_out(program: Sequence[Piece]) -> list[Piece | None]:
    """The passages at the places of their first tokens, with room between the pieces."""
    places: list[Piece | None] = []
    for piece in program:
        passages = list(_passages(piece))
        places += [*passages, *[None] * (len(piece) + PASSAGE - 1 - len(passages))]
    return places


def _is_token(program: Sequence[Piece]) -> Booleans:
    """Which of these places have a token."""
    return np.array(
        [place < len(piece) for piece in program for place in range(len(piece) + PASSAGE - 1)]
    )


def _numbered(
    places: Sequence[Piece | None],
    common: Collection[Piece],
    numbers: dict[tuple[Piece, int], int],
) -> Integers:
    """A number for each passage, -1 for one that counts for nobody, -2 where there is none.

    The second time that a passage comes it is another one: so it is matched as often as both have
    it, and no more.
    """
    times: Counter[Piece] = Counter()
    found = []
    for passage in places:
        if passage is None or passage in common:
            found.append(-2 if passage is None else -1)
            continue
        times[passage] += 1
        found.append(numbers.setdefault((passage, times[passage]), len(numbers)))
    return np.array(found)


def _covered(begins: Booleans) -> Booleans:
    """Which places lie in a passage, where passages begin at the places in `begins`."""
    so_far = np.concatenate([np.zeros(PASSAGE, dtype=int), np.cumsum(begins)])
    return np.asarray(so_far[PASSAGE:] > so_far[:-PASSAGE])
