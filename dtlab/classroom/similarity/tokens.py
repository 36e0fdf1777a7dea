"""Converts programs to tokens without names, comments, prints and layout, to recognize copies.

    for step in range(3):  # once round          for i in range(3):
        total = total + step                         print("round", i)
                                                     s = s + i

both become     for v in range ( 3 ) : NEWLINE INDENT v = v + v NEWLINE

A program is split into its functions, each without its inner functions, so that their order does
not matter. Nothing is executed. In code that Python cannot parse, functions are not separated,
and prints stay.
"""

from __future__ import annotations

import ast
import keyword
import re
import warnings
from collections.abc import Collection, Iterable, Iterator

__all__ = ["Piece", "names_given", "pieces"]

Piece = tuple[str, ...]  # the tokens of a function, or of the code outside functions

_NAME = "v"  # replaces every name that the program defines
_TOO_DEEP = (RecursionError, MemoryError, ValueError)  # from programs written to break a parser

_TOKEN = re.compile(
    r"""(?P<long>'''[\s\S]*?'''|\"{3}[\s\S]*?\"{3})|(?P<comment>\#.*)
    |(?P<text>'(?:\\.|[^'\\\n])*'|"(?:\\.|[^"\\\n])*")|(?P<number>\d[\w.]*)|(?P<name>\w+)
    |\*\*=?|//=?|->|:=|<<=?|>>=?|[=!<>+*/%&|^@-]=|\S""",
    re.VERBOSE,
)
_MAGIC = re.compile(r"^(\s*)[%!].*$", re.MULTILINE)  # IPython's syntax, not Python
_DEFINED = re.compile(r"\s*(?:def|class)\s+(\w+)\s*\(?([^)]*)")
_ASSIGNED = re.compile(r"\s*(?:for\s+)?([\w\s,*()]+?)\s*(?:[-+*/%]?=(?!=)|\bin\b)")

_Block = ast.Module | str  # a program, or a piece of one that cannot be parsed


def names_given(sources: Iterable[str]) -> set[str]:
    """Returns the names that a program defines, which a copy can change."""
    return {name for source in sources for block in _blocks(source) for name in _given(block)}


def pieces(sources: Iterable[str], given: Collection[str]) -> list[Piece]:
    """Returns the functions of a program in several cells, without the names in `given`."""
    result: list[Piece] = []
    for source in sources:
        for block in _blocks(source):
            if isinstance(block, str):
                result.append(tuple(_tokens(block, given)))
                continue
            try:
                result += [tuple(_tokens(text)) for text in _functions(block, given)]
            except _TOO_DEEP:
                result.append(tuple(_tokens(source, given)))
    return [piece for piece in result if piece]


def _blocks(source: str) -> list[_Block]:
    """Parses the source to a tree, or else each block that begins in column 0."""
    source = _MAGIC.sub(r"\1pass", source)
    tree = _tree(source)
    if tree is not None:
        return [tree]
    blocks = re.split(r"^(?=\S)", source, flags=re.MULTILINE)
    return [_tree(block) or block for block in blocks if block.strip()]


def _tree(source: str) -> ast.Module | None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # hides warnings about a learner's code, such as "\d"
        try:
            return ast.parse(source)
        except (SyntaxError, *_TOO_DEEP):
            return None


def _given(block: _Block) -> Iterator[str]:
    if isinstance(block, str):
        yield from _given_in_lines(block)
        return
    for node in ast.walk(block):
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            yield node.id
        elif isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name


def _given_in_lines(block: str) -> Iterator[str]:
    """Guesses the names that code which cannot be parsed defines."""
    for line in block.split("\n"):
        defined, assigned = _DEFINED.match(line), _ASSIGNED.match(line)
        names: list[str] = []
        if defined:
            names = [defined[1], *re.findall(r"(\w+)\s*(?:=[^,]*)?(?:,|$)", defined[2])]
        elif assigned:
            names = re.findall(r"\w+", assigned[1])
        yield from (name for name in names if not keyword.iskeyword(name))


def _functions(tree: ast.Module, given: Collection[str]) -> list[str]:
    """Returns the text of each function without its inner functions, and of the remaining code."""
    nameless = _Nameless(given)
    rest = nameless.visit(tree)
    return [ast.unparse(node) for node in [*nameless.functions, rest]]


class _Nameless(ast.NodeTransformer):
    """Removes from a tree what may differ between two copies, and collects its functions."""

    def __init__(self, given: Collection[str]) -> None:
        self.given = given
        self.functions: list[ast.AST] = []

    def _name(self, name: str) -> str:
        return _NAME if name in self.given else name

    def visit_Name(self, node: ast.Name) -> ast.AST:
        node.id = self._name(node.id)
        return node

    def visit_arg(self, node: ast.arg) -> ast.AST:
        node.arg, node.annotation = self._name(node.arg), None
        return node

    def visit_Call(self, node: ast.Call) -> ast.AST:
        if isinstance(node.func, ast.Name) and node.func.id in self.given:
            for keyword_ in node.keywords:  # the program defines the parameters' names as well
                keyword_.arg = keyword_.arg and self._name(keyword_.arg)
        return self.generic_visit(node)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST | None:
        if node.value is None:
            return None
        return self.generic_visit(ast.Assign([node.target], node.value, lineno=node.lineno))

    def visit_Pass(self, node: ast.Pass) -> None:
        return None

    def visit_Expr(self, node: ast.Expr) -> ast.AST | None:
        called = node.value.func if isinstance(node.value, ast.Call) else None
        prints = isinstance(called, ast.Name) and called.id == "print"
        if prints or isinstance(node.value, ast.Constant):
            return None
        return self.generic_visit(node)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        node.name, node.returns = self._name(node.name), None
        self.functions.append(self.generic_visit(node))

    visit_AsyncFunctionDef = visit_FunctionDef  # type: ignore[assignment]


def _tokens(text: str, given: Collection[str] = ()) -> Iterator[str]:
    """Yields the tokens of valid or invalid Python code, with INDENT and DEDENT."""
    depths, before = [0], ""
    for line in _without_long_texts(text).split("\n"):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        depth = len(line) - len(line.lstrip())
        if depth > depths[-1]:
            depths.append(depth)
            yield "INDENT"
        while depth < depths[-1]:
            depths.pop()
            yield "DEDENT"
        for match in _TOKEN.finditer(line):
            if match.lastgroup == "name" and before != "." and match[0] in given:
                yield _NAME
            elif match.lastgroup == "text":
                yield repr(match[0][1:-1])
            elif match.lastgroup != "comment":
                yield match[0]
            before = match[0]
        yield "NEWLINE"


def _without_long_texts(text: str) -> str:
    """Removes text in triple quotes, which is usually prose."""
    return _TOKEN.sub(lambda match: "" if match.lastgroup == "long" else match[0], text)
