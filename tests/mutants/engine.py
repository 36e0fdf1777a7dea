"""One mutant for each place in a source text that a mutator fits."""

from __future__ import annotations

import ast
import builtins
import copy
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile

from tests.mutants.catalogue import MUTATORS, Mutator

__all__ = ["Mutant", "mutants", "unbound"]

LONG, CONTEXT = 70, 30  # letters: a line that is cut, and what stays of it round the change
BEGIN, END = "### BEGIN SOLUTION", "### END SOLUTION"  # nbgrader's, around what a learner writes


@dataclass(frozen=True)
class Mutant:
    """A changed source text; `change` says what was changed, on which `line` of the solution."""

    mutator: str
    line: int
    change: str
    source: str


def mutants(source: str, mutators: Iterable[Mutator] = MUTATORS) -> list[Mutant]:
    """All distinct mutants of the text between the solution's marks, or of all if it has no marks.

    Left out are changes without an effect, and changes that read an unbound name, because any run
    finds a NameError.
    """
    tree = ast.parse(source)
    original, inside = ast.unparse(tree), _marked_lines(source)
    found: dict[str, Mutant] = {}
    for mutator in mutators:
        for line, changed in _changed_trees(tree, mutator, inside):
            text = ast.unparse(changed)
            if text == original or text in found or unbound(changed) - unbound(tree):
                continue
            found[text] = Mutant(mutator.name, line, _difference(original, text), text)
    return _told_apart(sorted(found.values(), key=lambda mutant: mutant.line))


def _told_apart(found: list[Mutant]) -> list[Mutant]:
    """Add the line's number where the same change is made to two equal lines."""
    often = Counter(mutant.change for mutant in found)
    return [
        replace(one, change=f"line {one.line}: {one.change}") if often[one.change] > 1 else one
        for one in found
    ]


def _marked_lines(source: str) -> set[int]:
    """Numbers of the lines between the marks."""
    inside, lines = BEGIN not in source, set()
    for number, text in enumerate(source.splitlines(), start=1):
        inside = (inside or BEGIN in text) and END not in text
        if inside:
            lines.add(number)
    return lines


def _changed_trees(
    tree: ast.AST, mutator: Mutator, inside: set[int], line: int = 0
) -> Iterator[tuple[int, ast.AST]]:
    """Copies of `tree` in which one place differs, each with the line of that place."""
    for name, value in ast.iter_fields(tree):
        if isinstance(value, list) and value and isinstance(value[0], ast.stmt):
            for where, block in _changed_blocks(value, mutator, inside):
                yield where, _with_field(tree, name, block)
        for index, node in enumerate(value if isinstance(value, list) else [value]):
            if not isinstance(node, ast.AST):
                continue
            here = getattr(node, "lineno", line)
            for where, other in _changed_nodes(node, mutator, inside, here):
                instead = (
                    [*value[:index], other, *value[index + 1 :]]
                    if isinstance(value, list)
                    else other
                )
                yield where, _with_field(tree, name, instead)


def _changed_nodes(
    node: ast.AST, mutator: Mutator, inside: set[int], line: int
) -> Iterator[tuple[int, ast.AST]]:
    if mutator.on_node is not None and line in inside:
        yield from ((line, other) for other in mutator.on_node(node))
    yield from _changed_trees(node, mutator, inside, line)


def _changed_blocks(
    block: list[ast.stmt], mutator: Mutator, inside: set[int]
) -> Iterator[tuple[int, list[ast.stmt]]]:
    """What a block may become; its docstring and the text outside the marks stay."""
    first = next((i for i, one in enumerate(block) if one.lineno in inside), len(block))
    if first < len(block) and isinstance(getattr(block[first], "value", None), ast.Constant):
        first += isinstance(block[first], ast.Expr)
    last = first
    while last < len(block) and block[last].lineno in inside:
        last += 1
    if mutator.on_block is None or first == last:
        return
    for changed in mutator.on_block(block[first:last]):
        pairs = zip(block[first:last], [*changed, None], strict=False)
        line = next((old.lineno for old, new in pairs if old is not new), block[last - 1].lineno)
        yield line, [*block[:first], *changed, *block[last:]]


def _with_field(node: ast.AST, name: str, value: object) -> ast.AST:
    other = copy.copy(node)
    setattr(other, name, value)
    return other


def unbound(tree: ast.AST) -> set[str]:
    """Names that are read and bound nowhere in the text."""
    read: set[str] = set()
    bound = set(dir(builtins))
    added_to = {node.target for node in ast.walk(tree) if isinstance(node, ast.AugAssign)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            reads = isinstance(node.ctx, ast.Load) or node in added_to
            (read if reads else bound).add(node.id)
        elif isinstance(node, ast.arg):
            bound.add(node.arg)
        elif isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            bound.add(node.name)
        elif isinstance(node, ast.alias):
            bound.add((node.asname or node.name).partition(".")[0])
    return read - bound


def _difference(before: str, after: str) -> str:
    """The lines that differ: "a = b + 1 -> a = b - 1"; long blocks and lines are cut."""
    old, new = before.splitlines(), after.splitlines()
    start = _alike(old, new)
    end = _alike(old[start:][::-1], new[start:][::-1])
    if start + end == len(old):  # lines came in: show the one before
        start -= 1
    gone, come = (_in_one_line(lines[start : len(lines) - end]) for lines in (old, new))
    if max(len(gone), len(come)) <= LONG:
        return f"{gone} -> {come}"
    first = max(0, _alike(gone, come) - CONTEXT)
    last = max(0, _alike(gone[::-1], come[::-1]) - CONTEXT)
    return " -> ".join(_cut(text, first, last) for text in (gone, come))


def _alike(one: Sequence[str], other: Sequence[str]) -> int:
    """How many lines or letters are the same from the start."""
    pairs = zip(one, other, strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))


def _in_one_line(lines: list[str]) -> str:
    short = lines if len(lines) <= 3 else [*lines[:2], "..."]
    return "; ".join(line.strip() for line in short) or "nothing"


def _cut(text: str, first: int, last: int) -> str:
    """A text without so many letters at its start and its end, up to whole words."""
    start = text.rfind(" ", 0, first + 1) + 1
    end = text.find(" ", len(text) - last) if last else -1
    middle = text[start : end if end >= 0 else None]
    return f"{'... ' if start else ''}{middle}{' ...' if end >= 0 else ''}"
