"""The mutators: each makes one kind of mistake wherever it fits, drawn before and after."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from tests.mutants import expressions as nodes
from tests.mutants import statements as blocks
from tests.mutants.expressions import both_ways
from tests.mutants.statements import Block

__all__ = ["MUTATORS", "Mutator"]


@dataclass(frozen=True)
class Mutator:
    """One kind of mistake; exactly one of `on_node` and `on_block` is given."""

    name: str
    before: str
    after: str
    on_node: Callable[[ast.AST], Iterable[ast.AST]] | None = None
    on_block: Callable[[Block], Iterable[Block]] | None = None

    def __str__(self) -> str:
        return f"{self.name:<31}{_in_one_line(self.before):<30} ->  {_in_one_line(self.after)}"


def _in_one_line(source: str) -> str:
    return "; ".join(line.strip() for line in source.splitlines())


def _each(
    name: str, before: str, after: str, change: Callable[[ast.stmt], Iterable[Block]]
) -> Mutator:
    """A mutator of single statements."""
    return Mutator(name, before, after, on_block=blocks.one_by_one(change))


_SUMS = both_ways((ast.Add, ast.Sub))
_PRODUCTS = both_ways((ast.Mult, ast.FloorDiv), (ast.Pow, ast.Mult)) | {ast.Div: ast.Mult}
_BITS = both_ways((ast.BitAnd, ast.BitOr), (ast.LShift, ast.RShift)) | {ast.BitXor: ast.BitAnd}
_LIMITS = both_ways((ast.Lt, ast.LtE), (ast.Gt, ast.GtE))
_SIDES = both_ways((ast.Lt, ast.Gt), (ast.LtE, ast.GtE))
_FUNCTIONS = {
    "get_rank": "get_world_size",
    "get_world_size": "get_rank",
    "min": "max",
    "max": "min",
}
_BLOCKING = {"isend": "send", "irecv": "recv"}
_UNFINISHED = {"send": "isend", "recv": "irecv"}
_COPY, _ADD = {"add_": "copy_"}, {"copy_": "add_"}
_CUT = {"tensor_split": "split", "split": "tensor_split", "chunk": "split"}

MUTATORS = (
    # Numbers and operators
    Mutator("constant one larger", "step - 1", "step - 2", nodes.constant(1)),
    Mutator("constant one smaller", "step - 1", "step - 0", nodes.constant(-1)),
    Mutator("plus for minus", "rank - 1", "rank + 1", nodes.operators(_SUMS)),
    Mutator("times for divided", "size // 2", "size * 2", nodes.operators(_PRODUCTS)),
    Mutator("another bit operation", "1 << step", "1 >> step", nodes.operators(_BITS)),
    Mutator("and for or", "a and b", "a or b", nodes.operators(both_ways((ast.And, ast.Or)))),
    Mutator("modulo dropped", "(rank + 1) % size", "rank + 1", nodes.without_modulo),
    Mutator("term dropped", "rank - 1 - step", "rank - 1", nodes.without_term),
    Mutator("minus sign dropped", "-step", "step", nodes.without_minus),
    # Conditions and loops
    Mutator("comparison off by one", "step < size", "step <= size", nodes.operators(_LIMITS)),
    Mutator("comparison turned round", "step < size", "step > size", nodes.operators(_SIDES)),
    Mutator(
        "condition negated", "a if c else b", "a if not c else b", nodes.condition(nodes.negated)
    ),
    Mutator("condition always true", "a if c else b", "a if True else b", nodes.always),
    Mutator("condition never true", "a if c else b", "a if False else b", nodes.never),
    Mutator("loop one round longer", "range(size)", "range(size + 1)", nodes.end_of_range(1)),
    Mutator("loop one round shorter", "range(size)", "range(size - 1)", nodes.end_of_range(-1)),
    Mutator("loop starts one later", "range(size)", "range(1, size)", nodes.later_start),
    Mutator(
        "loop runs backwards", "[f(x) for x in a]", "[f(x) for x in reversed(a)]", nodes.backwards
    ),
    Mutator(
        "first round only",
        "for x in a:\n    f(x)",
        "for x in a:\n    f(x)\n    break",
        nodes.first_round_only,
    ),
    # Calls
    Mutator("arguments swapped", "dist.send(a, b)", "dist.send(b, a)", nodes.swapped_arguments),
    Mutator("argument left out", "f(a, group=group)", "f(a)", nodes.without_keyword),
    Mutator("global rank for group rank", "f(a, group_src=b)", "f(a, src=b)", nodes.global_ranks),
    Mutator(
        "another function",
        "dist.get_rank()",
        "dist.get_world_size()",
        nodes.another_function(_FUNCTIONS),
    ),
    Mutator(
        "blocking call", "dist.isend(a, b)", "dist.send(a, b)", nodes.another_function(_BLOCKING)
    ),
    Mutator(
        "call without a wait",
        "dist.recv(a, b)",
        "dist.irecv(a, b)",
        nodes.another_function(_UNFINISHED),
    ),
    Mutator("add where a copy belongs", "a.copy_(b)", "a.add_(b)", nodes.another_function(_ADD)),
    Mutator("copy where a sum belongs", "a.add_(b)", "a.copy_(b)", nodes.another_function(_COPY)),
    Mutator("cut another way", "a.tensor_split(n)", "a.split(n)", nodes.another_function(_CUT)),
    Mutator("always two ranks", "dist.get_world_size()", "2", nodes.assumed_size(2)),
    Mutator("always four ranks", "dist.get_world_size()", "4", nodes.assumed_size(4)),
    Mutator("wider dtype", "a.clone()", "a.clone().double()", nodes.wider),
    Mutator("no copy", "b = a.clone()", "b = a", nodes.no_copy),
    # Names and indices
    Mutator("a neighbouring name", "f(left, right)", "f(left, left)", nodes.twins),
    Mutator("assigned crosswise", "left, right = a, b", "left, right = b, a", nodes.crosswise),
    Mutator("index shifted by one", "a[k % n]", "a[(k + 1) % n]", nodes.shifted_index),
    Mutator("slice shifted by one", "a[:n]", "a[:n - 1]", nodes.shifted_bound),
    Mutator("slice without a bound", "a[:n]", "a[:]", nodes.without_bound),
    # Statements
    _each("wait removed", "f(a)\nb.wait()", "f(a)", blocks.without_wait),
    _each("statement removed", "f(a)\ng(b)", "g(b)", blocks.without_statement),
    _each("statement twice", "f(a)", "f(a)\nf(a)", blocks.twice),
    Mutator("statements swapped", "f(a)\ng(b)", "g(b)\nf(a)", on_block=blocks.swapped_statements),
    _each("rebinding for in place", "a += b", "a = a + b", blocks.rebinding),
    _each("copy where a sum belongs", "a += b", "a.copy_(b)", blocks.copied),
    _each("nothing returned", "return a", "return", blocks.nothing_returned),
)
