"""What mutators do to statements: from a block to the blocks that may replace it."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator

from tests.mutants.expressions import calls, changed

Block = list[ast.stmt]


def one_by_one(
    change: Callable[[ast.stmt], Iterable[Block]],
) -> Callable[[Block], Iterator[Block]]:
    """A mutator of blocks, made from a function that replaces one statement."""

    def mutate(block: Block) -> Iterator[Block]:
        for index, statement in enumerate(block):
            for instead in change(statement):
                yield [*block[:index], *instead, *block[index + 1 :]] or [ast.Pass()]

    return mutate


def without_wait(statement: ast.stmt) -> Iterator[Block]:
    if isinstance(statement, ast.Expr) and calls(statement.value, "wait", "barrier"):
        yield []


def without_statement(statement: ast.stmt) -> Iterator[Block]:
    if not isinstance(statement, (ast.FunctionDef, ast.Pass)):
        yield []


def twice(statement: ast.stmt) -> Iterator[Block]:
    """Repeat a statement, unless it is a copy, which has the same effect twice."""
    copies = isinstance(statement, ast.Expr) and calls(statement.value, "copy_")
    if isinstance(statement, (ast.Expr, ast.AugAssign, ast.For)) and not copies:
        yield [statement, statement]


def swapped_statements(block: Block) -> Iterator[Block]:
    """Swap two statements, unless both are assignments or definitions: those change nothing."""
    for index in range(len(block) - 1):
        pair = block[index : index + 2]
        if not all(isinstance(one, (ast.Assign, ast.FunctionDef)) for one in pair):
            yield [*block[:index], *pair[::-1], *block[index + 2 :]]


def in_place(statement: ast.stmt) -> tuple[ast.expr, str, ast.expr] | None:
    """The target, the method and the operand of `target.method_(operand)`; None if it is not."""
    call = statement.value if isinstance(statement, ast.Expr) else None
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute):
        return None
    if not call.func.attr.endswith("_") or len(call.args) != 1:
        return None
    return call.func.value, call.func.attr, call.args[0]


def stored(target: ast.expr, value: ast.expr) -> Block:
    return [ast.Assign([changed(target, ctx=ast.Store())], value, lineno=0)]  # type: ignore[list-item]


def rebinding(statement: ast.stmt) -> Iterator[Block]:
    call = in_place(statement)
    if call is not None:
        target, method, operand = call
        out_of_place = ast.Call(
            ast.Attribute(target, method.rstrip("_"), ast.Load()), [operand], []
        )
        yield stored(target, operand if method == "copy_" else out_of_place)
    elif isinstance(statement, ast.AugAssign) and not isinstance(statement.value, ast.Constant):
        target = changed(statement.target, ctx=ast.Load())  # type: ignore[assignment]
        yield stored(target, ast.BinOp(target, statement.op, statement.value))


def copied(statement: ast.stmt) -> Iterator[Block]:
    if isinstance(statement, ast.AugAssign) and isinstance(statement.op, ast.Add):
        target = changed(statement.target, ctx=ast.Load())
        method = ast.Attribute(target, "copy_", ast.Load())  # type: ignore[arg-type]
        yield [ast.Expr(ast.Call(method, [statement.value], []))]


def nothing_returned(statement: ast.stmt) -> Iterator[Block]:
    if isinstance(statement, ast.Return) and statement.value is not None:
        yield [ast.Return()]
