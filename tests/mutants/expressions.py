"""What mutators do to a node of the syntax tree: it becomes one of the nodes they yield.

None changes what it is given. `catalogue.py` says what each one is for, with an example.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from copy import copy


def changed(node: ast.AST, **fields: object) -> ast.AST:
    """A copy of `node` with other values in some fields."""
    other = copy(node)
    for name, value in fields.items():
        setattr(other, name, value)
    return other


def calls(node: ast.AST, *names: str) -> bool:
    """Whether `node` calls a function or method of one of these names."""
    return isinstance(node, ast.Call) and called(node) in names


def called(node: ast.Call) -> str:
    """The name of the function that is called, without the text before the dot."""
    function = node.func
    return getattr(function, "attr", getattr(function, "id", ""))


def plus(node: ast.expr, number: int) -> ast.expr:
    """`node + number`, `node - 1` for -1."""
    sign = ast.Add() if number > 0 else ast.Sub()
    return ast.BinOp(node, sign, ast.Constant(abs(number)))


# Numbers and operators ------------------------------------------------------------------------


def constant(by: int) -> Callable[[ast.AST], Iterator[ast.AST]]:
    def mutate(node: ast.AST) -> Iterator[ast.AST]:
        number = getattr(node, "value", None) if isinstance(node, ast.Constant) else None
        if isinstance(number, (int, float)) and not isinstance(number, bool):
            yield ast.Constant(number + by)

    return mutate


def operators(table: dict[type[ast.AST], type[ast.AST]]) -> Callable[[ast.AST], Iterator[ast.AST]]:
    def mutate(node: ast.AST) -> Iterator[ast.AST]:
        if type(node) in table:
            yield table[type(node)]()

    return mutate


def both_ways(*pairs: tuple[type[ast.AST], type[ast.AST]]) -> dict[type[ast.AST], type[ast.AST]]:
    return dict(pairs) | {right: left for left, right in pairs}


def without_modulo(node: ast.AST) -> Iterator[ast.AST]:
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod):
        yield node.left


def without_term(node: ast.AST) -> Iterator[ast.AST]:
    if isinstance(node, ast.BinOp) and not isinstance(node.op, ast.Mod):
        yield from (node.left, node.right)


def without_minus(node: ast.AST) -> Iterator[ast.AST]:
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        yield node.operand


# Conditions and loops -------------------------------------------------------------------------


def condition(test: Callable[[ast.expr], ast.expr]) -> Callable[[ast.AST], Iterator[ast.AST]]:
    def mutate(node: ast.AST) -> Iterator[ast.AST]:
        if isinstance(node, (ast.If, ast.IfExp, ast.While)):
            yield changed(node, test=test(node.test))
        if isinstance(node, ast.comprehension):
            for index, one in enumerate(node.ifs):
                yield changed(node, ifs=[*node.ifs[:index], test(one), *node.ifs[index + 1 :]])

    return mutate


def negated(test: ast.expr) -> ast.expr:
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        return test.operand
    return ast.UnaryOp(ast.Not(), test)


def always(node: ast.AST) -> Iterator[ast.AST]:
    if not isinstance(node, ast.While):  # that would only be a loop without an end
        yield from condition(lambda test: ast.Constant(True))(node)


def never(node: ast.AST) -> Iterator[ast.AST]:
    yield from condition(lambda test: ast.Constant(False))(node)


def end_of_range(by: int) -> Callable[[ast.AST], Iterator[ast.AST]]:
    def mutate(node: ast.AST) -> Iterator[ast.AST]:
        if isinstance(node, ast.Call) and calls(node, "range"):
            index = min(1, len(node.args) - 1)
            yield with_argument(node, index, plus(node.args[index], by))

    return mutate


def later_start(node: ast.AST) -> Iterator[ast.AST]:
    if isinstance(node, ast.Call) and calls(node, "range"):
        if len(node.args) == 1:
            yield changed(node, args=[ast.Constant(1), *node.args])
        else:
            yield with_argument(node, 0, plus(node.args[0], 1))


def backwards(node: ast.AST) -> Iterator[ast.AST]:
    if isinstance(node, ast.Call) and calls(node, "reversed", "sorted") and len(node.args) == 1:
        yield node.args[0]
    elif isinstance(node, (ast.For, ast.comprehension)) and not calls(node.iter, "reversed"):
        yield changed(node, iter=ast.Call(ast.Name("reversed", ast.Load()), [node.iter], []))


def first_round_only(node: ast.AST) -> Iterator[ast.AST]:
    if isinstance(node, (ast.For, ast.While)):
        yield changed(node, body=[*node.body, ast.Break()])


# Calls ------------------------------------------------------------------------------------------


def with_argument(node: ast.Call, index: int, value: ast.expr) -> ast.AST:
    return changed(node, args=[*node.args[:index], value, *node.args[index + 1 :]])


def swapped_arguments(node: ast.AST) -> Iterator[ast.AST]:
    if isinstance(node, ast.Call):
        for index in range(len(node.args) - 1):
            first, second = node.args[index : index + 2]
            yield changed(node, args=[*node.args[:index], second, first, *node.args[index + 2 :]])


def without_keyword(node: ast.AST) -> Iterator[ast.AST]:
    """Leave out only optional arguments: the call would fail without the others."""
    if isinstance(node, ast.Call):
        for word in node.keywords:
            if word.arg in ("group", "op", "async_op", "tag", "dim"):
                yield changed(node, keywords=[one for one in node.keywords if one is not word])
        for index, value in enumerate(node.args):
            if isinstance(value, ast.Name) and value.id == "group":
                yield changed(node, args=node.args[:index] + node.args[index + 1 :])


def global_ranks(node: ast.AST) -> Iterator[ast.AST]:
    if isinstance(node, ast.keyword) and node.arg in ("group_src", "group_dst"):
        yield changed(node, arg=node.arg.removeprefix("group_"))


def another_function(pairs: dict[str, str]) -> Callable[[ast.AST], Iterator[ast.AST]]:
    def mutate(node: ast.AST) -> Iterator[ast.AST]:
        if isinstance(node, ast.Call) and called(node) in pairs:
            name = "attr" if isinstance(node.func, ast.Attribute) else "id"
            yield changed(node, func=changed(node.func, **{name: pairs[called(node)]}))

    return mutate


def assumed_size(ranks: int) -> Callable[[ast.AST], Iterator[ast.AST]]:
    def mutate(node: ast.AST) -> Iterator[ast.AST]:
        if calls(node, "get_world_size"):
            yield ast.Constant(ranks)

    return mutate


def wider(node: ast.AST) -> Iterator[ast.AST]:
    if calls(node, "empty_like", "zeros_like", "clone", "empty", "zeros", "new_empty"):
        yield ast.Call(ast.Attribute(node, "double", ast.Load()), [], [])  # type: ignore[arg-type]


def no_copy(node: ast.AST) -> Iterator[ast.AST]:
    if isinstance(node, ast.Call) and calls(node, "clone", "contiguous"):
        yield from node.args or [getattr(node.func, "value", node)]
    elif isinstance(node, ast.Call) and calls(node, "empty_like", "zeros_like"):
        yield node.args[0]


# Names and indices ------------------------------------------------------------------------------

TWINS = (
    ("rank", "size"), ("me", "n"), ("left", "right"), ("src", "dst"), ("source", "target"),
    ("outgoing", "mine"), ("mine", "arriving"), ("outgoing", "arriving"), ("output", "input"),
    ("chunks", "parts"), ("node", "seat"), ("inside", "across"), ("parent", "child"),
    ("lower", "upper"), ("first", "last"), ("before", "after"), ("sending", "receiving"),
)  # fmt: skip


def twins(node: ast.AST) -> Iterator[ast.AST]:
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
        for pair in TWINS:
            if node.id in pair:
                yield changed(node, id=pair[1 - pair.index(node.id)])


def crosswise(node: ast.AST) -> Iterator[ast.AST]:
    if isinstance(node, ast.Assign) and isinstance(node.value, ast.Tuple):
        yield changed(node, value=changed(node.value, elts=node.value.elts[::-1]))


def shifted_index(node: ast.AST) -> Iterator[ast.AST]:
    if not isinstance(node, ast.Subscript) or isinstance(node.slice, (ast.Slice, ast.Constant)):
        return
    index = node.slice
    for by in (1, -1):
        inner = isinstance(index, ast.BinOp) and isinstance(index.op, ast.Mod)
        moved = changed(index, left=plus(index.left, by)) if inner else plus(index, by)  # type: ignore[attr-defined]
        yield changed(node, slice=moved)


def shifted_bound(node: ast.AST) -> Iterator[ast.AST]:
    if isinstance(node, ast.Slice):
        for name in ("lower", "upper"):
            bound = getattr(node, name)
            if bound is not None:
                yield changed(node, **{name: plus(bound, 1)})
                yield changed(node, **{name: plus(bound, -1)})


def without_bound(node: ast.AST) -> Iterator[ast.AST]:
    if isinstance(node, ast.Slice):
        yield from (changed(node, **{n: None}) for n in ("lower", "upper") if getattr(node, n))
