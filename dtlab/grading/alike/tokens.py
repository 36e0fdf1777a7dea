"""Programs as tokens without names, comments, prints and layout, so that copies look the same.

    for step in range(3):  # once round          for i in range(3):
        total = total + step                         print("round", i)
                                                     s = s + i

are both        for v in range ( 3 ) : INDENT v = v + v

A program is cut into its functions, each without those inside it, so that their order does not
matter. Nothing is executed. What Python cannot parse is cut into tokens as it stands.
"""

from __future__ import annotations

import ast
import keyword
import re
import warnings
from collections.abc import Collection, Iterable, Iterator

__all__ = ["Piece", "names_given", "pieces"]

Piece = tuple[str, ...]  # the tokens of a function, or of what is in no function

_NAME = "v"  # stands for every name that the program gives
_TOO_DEEP = (RecursionError, MemoryError, ValueError)  # from programs made to break a parser

_TOKEN = re.compile(
    r"""(?P<long>'''[\s\S]*?'''|\"{3}[\s\S]*?\"{3})|(?P<comment>\#.*)
    |(?P<text>'(?:\\.|[^'\\\n])*'|"(?:\\.|[^"\\\n])*")|(?P<number>\d[\w.]*)|(?P<name>\w+)
    |\*\*=?|//=?|->|:=|<<=?|>>=?|[=!<>+*/%&|^@-]=|\S""",
    re.VERBOSE,
)
_MAGIC = re.compile(r"^(\s*)[%!].*$", re.MULTILINE)  # IPython's own, not Python
_DEFINED = re.compile(r"\s*(?:def|class)\s+(\w+)\s*\(?([^)]*)")
_ASSIGNED = re.compile(r"\s*(?:for\s+)?([\w\s,*()]+?)\s*(?:[-+*/%]?=(?!=)|\bin\b)")

_Block = ast.Module | str  # a program, or a piece of one that cannot be parsed


def names_given(sources: Iterable[str]) -> set[str]:
    """The names that a program gives to something: all of them may be changed as one likes."""
    return {name for source in sources for block in _blocks(source) for name in _given(block)}


def pieces(sources: Iterable[str], given: Collection[str]) -> list[Piece]:
    """The functions of a program that stands in several cells, without the names in `given`."""
    found: list[Piece] = []
    for source in sources:
        for block in _blocks(source):
            if isinstance(block, str):
                found.append(tuple(_tokens(block, given)))
                continue
            try:
                found += [tuple(_tokens(text)) for text in _functions(block, given)]
            except _TOO_DEEP:
                found.append(tuple(_tokens(source, given)))
    return [piece for piece in found if piece]


def _blocks(source: str) -> list[_Block]:
    """The source as a tree; where it cannot be parsed, each block that begins at the margin."""
    source = _MAGIC.sub(r"\1pass", source)
    tree = _tree(source)
    if tree is not None:
        return [tree]
    blocks = re.split(r"^(?=\S)", source, flags=re.MULTILINE)
    return [_tree(block) or block for block in blocks if block.strip()]


def _tree(source: str) -> ast.Module | None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a learner's "\d" is no concern of the reader
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
    """A guess, for what cannot be parsed."""
    for line in block.split("\n"):
        defined, assigned = _DEFINED.match(line), _ASSIGNED.match(line)
        words: list[str] = []
        if defined:
            words = [defined[1], *re.findall(r"(\w+)\s*(?:=[^,]*)?(?:,|$)", defined[2])]
        elif assigned:
            words = re.findall(r"\w+", assigned[1])
        yield from (word for word in words if not keyword.iskeyword(word))


def _functions(tree: ast.Module, given: Collection[str]) -> list[str]:
    """The text of each function without those inside it, and of what is in none."""
    nameless = _Nameless(given)
    rest = nameless.visit(tree)
    return [ast.unparse(node) for node in [*nameless.functions, rest]]


class _Nameless(ast.NodeTransformer):
    """Takes out of a tree what may differ between two copies, and its functions one by one."""

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
            for one in node.keywords:  # of a function of one's own they are names as well
                one.arg = one.arg and self._name(one.arg)
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
    """The tokens of Python code, right or wrong; indentation as steps in and out."""
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
        for found in _TOKEN.finditer(line):
            if found.lastgroup == "name" and before != "." and found[0] in given:
                yield _NAME
            elif found.lastgroup == "text":
                yield repr(found[0][1:-1])
            elif found.lastgroup != "comment":
                yield found[0]
            before = found[0]
        yield "NEWLINE"


def _without_long_texts(text: str) -> str:
    """The text without what stands in triple quotes: what learners write there is prose."""
    return _TOKEN.sub(lambda found: "" if found.lastgroup == "long" else found[0], text)
