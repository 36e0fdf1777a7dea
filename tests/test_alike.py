"""Answers that are much alike: copies in disguise are found, independent right answers are not."""

from __future__ import annotations

import ast
import random
import re
import time
from collections.abc import Mapping
from copy import deepcopy
from functools import cache
from itertools import combinations
from pathlib import Path

import nbformat
import pytest
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell

from dtlab.checks import Part, find_part, known_parts
from dtlab.checks.course import Course
from dtlab.checks.functions.defences import Defence
from dtlab.checks.programs.training import FixScript
from dtlab.checks.questions.answers import Questions
from dtlab.classroom.similarity.pairs import LONGEST, SOLUTION, Group, alike
from dtlab.classroom.similarity.tokens import pieces
from tests.known_answers import answers_of

ROOT = Path(__file__).parent.parent
PARTS = [part for part in known_parts() if not isinstance(part.check, Questions | Defence)]
RING, TREE = find_part("01/ring_all_reduce"), find_part("01/tree_broadcast")
# Scripts whose fixing takes more than a line or two.
LONG = {
    "02/script_4", "02/script_6", "02/script_8", "05/run_c", "07/run_a", "09/run_a",
    "11/killed_job",
}  # fmt: skip
SHORT = {"01/fix_4", "06/g", "07/warm_up"}  # one or two lines: all right answers are the same
SCRIPTS = [p for p in PARTS if isinstance(p.check, FixScript) and p.name not in LONG]
WRITTEN = [p for p in PARTS if p not in SCRIPTS and p.name not in SHORT]
part_by_name = pytest.mark.parametrize("part", WRITTEN, ids=lambda part: part.name)


@cache
def read(path: Path) -> NotebookNode:
    return nbformat.read(path, as_version=4)


def notebook(folder: str, part: Part) -> NotebookNode:
    return read(ROOT / folder / Course(ROOT).level(part))


def cell(notebook: NotebookNode, name: str) -> NotebookNode:
    return next(one for one in notebook.cells if one.id == name)


def solution(part: Part) -> str:
    text = str(cell(notebook("solutions", part), part.answer_id).source)
    return re.sub(r"^ *### (BEGIN|END) SOLUTION\n?", "", text, flags=re.MULTILINE)


def handed_in(part: Part, source: str, *own_cells: str) -> NotebookNode:
    """The released notebook with an answer, and the learner's own cells above it."""
    made = deepcopy(notebook("exercises", part))
    answer = cell(made, part.answer_id)
    answer.source = source
    place = made.cells.index(answer)
    made.cells[place:place] = [new_code_cell(own) for own in own_cells]
    return made


def compared(part: Part, threshold: float = 0.8, **sources: str) -> list[Group]:
    given = {learner: handed_in(part, source) for learner, source in sources.items()}
    return alike(given, notebook("exercises", part), threshold)


def score(part: Part, one: str, other: str) -> float:
    pairs = compared(part, 0, one=one, other=other)
    return max((pair.score for pair in pairs if pair.part == part.name), default=0)


def answers(part: Part) -> Mapping[str, str]:
    """The right answers to a part that are no changes of one another."""
    known = answers_of(part)
    assert known is not None
    return {one.__name__: known.cells[one.__name__] for one in known.independent}


class Renamed(ast.NodeTransformer):
    """Gives a program other names, also its arguments."""

    def __init__(self, tree: ast.AST, prefix: str) -> None:
        nodes = list(ast.walk(tree))
        given = {n.id for n in nodes if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
        given |= {n.arg for n in nodes if isinstance(n, ast.arg)}
        given |= {n.name for n in nodes if isinstance(n, ast.FunctionDef)}
        self.names = {name: f"{prefix}{number}" for number, name in enumerate(sorted(given))}

    def visit_Name(self, node: ast.Name) -> ast.AST:
        node.id = self.names.get(node.id, node.id)
        return node

    def visit_arg(self, node: ast.arg) -> ast.AST:
        node.arg, node.annotation = self.names[node.arg], ast.Name("object")
        return node

    def visit_Lambda(self, node: ast.Lambda) -> ast.AST:
        for one in node.args.args:  # these have no annotations
            one.arg = self.names[one.arg]
        node.body = self.visit(node.body)
        return node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        node.name = self.names[node.name]
        node.body.insert(0, ast.Expr(ast.Constant("Mine.")))
        node.body.append(ast.parse("print('done')").body[0])
        return self.generic_visit(node)


def disguised(source: str, prefix: str = "x") -> str:
    """Rewrite a program with other names, texts and layout, and its functions in another order."""
    tree = ast.parse(source)
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef)]
    rest = [node for node in tree.body if node not in functions]
    tree.body = [*rest, *reversed(functions)]
    text = ast.unparse(ast.fix_missing_locations(Renamed(tree, prefix).visit(tree)))
    return text.replace("\n", "  # I think\n").replace("    ", "\t")


def longer(source: str, number: int, seed: int = 3) -> str:
    """Insert lines without an effect at random places."""
    tree, generator = ast.parse(source), random.Random(seed)
    bodies = [n.body for n in ast.walk(tree) if isinstance(n, ast.FunctionDef | ast.For)]
    for _ in range(number):
        body = generator.choice(bodies or [tree.body])
        body.insert(generator.randrange(len(body)), ast.parse("count = 0").body[0])
    return ast.unparse(ast.fix_missing_locations(tree))


# What must be found ----------------------------------------------------------------------------


@part_by_name
def test_a_copy_in_disguise_is_found(part: Part) -> None:
    original = solution(part)
    (pair,) = compared(part, ada=original, ben=disguised(original))
    assert (pair.learners, pair.part) == (("ada", "ben"), part.name)
    assert pair.score == pytest.approx(1)
    assert pair.sources[0] == original.rstrip()
    assert "# I think" in pair.sources[1]


@pytest.mark.parametrize("part", SCRIPTS, ids=lambda part: part.name)
def test_a_released_script_that_was_fixed_is_not_listed(part: Part) -> None:
    original = solution(part)
    assert compared(part, ada=original, ben=disguised(original)) == []


@pytest.mark.parametrize("name", sorted(SHORT))
def test_an_answer_too_short_to_be_copied_is_not_listed(name: str) -> None:
    original = solution(find_part(name))
    assert compared(find_part(name), ada=original, ben=disguised(original)) == []


@part_by_name
def test_a_copy_with_lines_put_in_is_found(part: Part) -> None:
    original = solution(part)
    lines = min(2, len(original.splitlines()) // 8)  # of a short answer, two are a lot
    assert score(part, original, longer(disguised(original), lines)) >= 0.8


def test_a_right_answer_with_one_line_less_is_found() -> None:
    shorter = solution(RING).replace("        sending.wait()\n", "")
    assert shorter != solution(RING)
    assert score(RING, solution(RING), disguised(shorter)) >= 0.8


def test_functions_in_the_learners_own_cells_count() -> None:
    part = find_part("01/hierarchical_all_reduce")
    tree = ast.parse(disguised(solution(part)))
    first, *others = (ast.unparse(node) for node in tree.body)
    given = {
        "ada": handed_in(part, solution(part)),
        "ben": handed_in(part, others[-1], first, *others[:-1]),
    }
    (pair,) = alike(given, notebook("exercises", part))
    assert pair.score == pytest.approx(1)
    assert first in pair.sources[1]


def test_what_does_not_parse_is_compared_too() -> None:
    original, copy = solution(RING), disguised(solution(RING))
    assert score(RING, original, f"{copy}\n\ndef helper(:\n    return\n") >= 0.8
    # The broken block itself stays as it is, with annotations and prints.
    broken = original.replace("range(2 * (size - 1))", "range(2 * (size - 1)")
    broken_too = copy.replace("range(2 *", "range((2 *")
    assert score(RING, broken, broken_too) >= 0.6


def test_tokens_are_the_same_parsed_or_not() -> None:
    parsed = pieces(["x = f(x, 'a')"], {"x"})
    assert parsed == [("v", "=", "f", "(", "v", ",", "'a'", ")", "NEWLINE")]
    (broken,) = pieces(['y=f( y,"a")  # and so on\n    )\n'], {"y"})
    assert broken == (*parsed[0], "INDENT", ")", "NEWLINE")


# What must not be listed -----------------------------------------------------------------------


@pytest.mark.sample(12)
@pytest.mark.slow
@pytest.mark.parametrize(
    "part", [part for part in WRITTEN if len(answers(part)) > 1], ids=lambda part: part.name
)
def test_right_answers_written_differently_are_not_listed(part: Part) -> None:
    right = answers(part)
    scores = {
        (one, other): score(part, right[one], right[other])
        for one, other in combinations(right, 2)
    }
    print({" ".join(names): round(value, 2) for names, value in scores.items()})
    assert max(scores.values()) <= 0.7


@pytest.mark.slow
def test_released_code_does_not_count() -> None:
    for part in PARTS:
        untouched = str(cell(notebook("exercises", part), part.answer_id).source)
        assert not compared(part, 0.01, ada=untouched, ben=untouched)


def test_the_program_to_fix_does_not_count() -> None:
    part = find_part("01/fix_4")
    program = str(cell(notebook("exercises", part), "fix_4-program").source)
    both = program.replace("with_neighbours", "fixed_4")
    assert not compared(part, 0.01, ada=both, ben=disguised(both))


def test_a_few_lines_are_no_sign() -> None:
    few = "def ring_all_reduce(tensor, group=None):\n    dist.all_reduce(tensor, group=group)\n"
    assert not compared(RING, 0.01, ada=few, ben=few)


def test_code_that_many_answers_share_is_no_sign() -> None:
    parts = [part for part in WRITTEN if "fix" not in part.name]
    own = [next(iter(answers(part).values())) for part in parts[:12]]
    common = f"\n\n{solution(RING)}"
    class_ = {f"learner {n:02}": disguised(own[n] + common, f"n{n}_") for n in range(12)}
    assert not compared(RING, 0.9, **class_)


def test_a_ring_is_one_group_however_large() -> None:
    class_ = {f"learner {n:02}": disguised(solution(RING), f"n{n}_") for n in range(30)}
    for count in (3, 10, 11, 30):
        (ring,) = compared(RING, **dict(list(class_.items())[:count]))
        assert len(ring.learners) == count
        assert ring.score > 0.95


def test_two_learners_who_share_more_are_a_group() -> None:
    class_ = {f"learner {n:02}": disguised(solution(RING), f"n{n}_") for n in range(11)}
    more = f"\n\n{answers(TREE)['tree_by_splitting']}\n"
    class_["learner 03"] += more
    class_["learner 07"] += more
    groups = [group.learners for group in compared(RING, **class_)]
    assert ("learner 03", "learner 07") in groups
    assert sorted(map(len, groups)) == [2, 9]


def test_a_copy_of_the_courses_solution_is_found() -> None:
    given = {"ada": handed_in(RING, disguised(solution(RING)))}
    (group,) = alike(given, notebook("exercises", RING), solution=notebook("solutions", RING))
    assert group.learners == ("ada", SOLUTION)


def test_answers_of_drawn_values_are_not_compared() -> None:
    part = find_part("01/results")
    assert not compared(part, 0.01, ada=solution(part), ben=solution(part))


# Whatever is handed in -------------------------------------------------------------------------


@pytest.mark.sample(3)
@pytest.mark.slow
@pytest.mark.parametrize(
    "source",
    [
        "",
        "\x00",
        "(" * 5000,
        "-" * 50_000 + "1",
        "x = " + "[" * 90 + "]" * 90,
        "'" * 3 + "never closed",
        "%%bash\nrm -rf /\n",
        "!ls\n%timeit ring()\nx = !pwd\n",
        "def f(:\n" * 3000,
        "\\" * 1000,
        "print(f'{x!r:>{width}}')\n" * 500,
        "a = '\\d'\n" * 2000,
        "😀 = 1\nif True:\n\tx = 1\n        y = 2\n",
        "x = 1\n" * 100_000,
    ],
    ids=range(14),
)
def test_no_submission_stops_the_comparison(source: str) -> None:
    begun = time.process_time()
    ring = solution(RING)
    pairs = compared(RING, ada=source, ben=source, carl=ring, dora=disguised(ring))
    assert ("carl", "dora") in [pair.learners for pair in pairs]
    assert time.process_time() - begun < 30


@pytest.mark.proof
@pytest.mark.slow
def test_what_is_far_too_long_is_cut() -> None:
    long = "".join(f"x{number} = f({number})\n" for number in range(20_000))
    given = {learner: handed_in(RING, long, long) for learner in ("ada", "ben")}
    (pair,) = alike(given, notebook("exercises", RING))
    assert LONGEST - 100 < len(pair.sources[0]) < LONGEST + 100


def test_a_notebook_without_cells_or_names_is_read() -> None:
    nameless = handed_in(RING, solution(RING))
    for one in nameless.cells:
        one.metadata = {}
        one.pop("id", None)
    given = {
        "ada": nbformat.from_dict({"cells": []}),
        "ben": nbformat.from_dict({}),
        "carl": nameless,
    }
    assert alike(given, notebook("exercises", RING), 0.01) == []


@pytest.mark.proof
@pytest.mark.slow
def test_two_hundred_are_compared_in_well_under_a_minute() -> None:
    parts = [part for part in PARTS if part.level == 2 and part.name.startswith("01/")]
    right = {part.answer_id: list(answers(part).values()) for part in parts}
    generator, class_ = random.Random(5), {}
    for number in range(200):
        made = deepcopy(notebook("exercises", RING))
        for name, sources in right.items():
            changed = disguised(generator.choice(sources), f"n{number}_")
            cell(made, name).source = longer(changed, generator.randrange(6), number)
        class_[f"learner {number:03}"] = made
    begun = time.process_time()
    alike(class_, notebook("exercises", RING))
    seconds = time.process_time() - begun
    print(f"200 notebooks of {len(right)} parts: {seconds:.1f} s of one core")
    assert seconds < 30
