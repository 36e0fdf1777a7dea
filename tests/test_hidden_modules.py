"""Hidden library code can be neither called nor read, and what is allowed stays."""

from __future__ import annotations

import gc
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

import pytest

from dtlab.checks import known_parts
from dtlab.checks.functions.finished import finished_calls, hidden_modules_of
from dtlab.ranks.sandbox.hidden_modules import files_of, hide_modules

MODULE = """
import functools

__all__ = ["Model", "allowed", "ready"]

def _scale():
    return 2

def allowed(x):
    return x * _scale() + Base().offset()

def _hidden(x):
    return x + 1

def ready(x):
    return _hidden(x)

def _noted(function):
    @functools.wraps(function)
    def wrapper(*args):
        return function(*args)
    return wrapper

@_noted
def decorated(x):
    return -x

@functools.cache
def cached(x):
    return x

class Base:
    def offset(self):
        return 1

class Model:
    def __init__(self):
        self.x = 3

    @property
    def size(self):
        return 3

    @classmethod
    def made(cls):
        return cls.__new__(cls)

    @staticmethod
    def double(x):
        return 2 * x

    @functools.cached_property
    def later(self):
        return 4

    class Inner:
        def deep(self):
            return 5
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A library's module, imported."""
    (tmp_path / "hidden_module.py").write_text(textwrap.dedent(MODULE))
    monkeypatch.syspath_prepend(tmp_path)
    import hidden_module  # type: ignore[import-not-found]

    yield hidden_module
    del sys.modules["hidden_module"]


CALLS: dict[str, Callable[[Any], Any]] = {
    "function": lambda module: module.ready(1),
    "private function": lambda module: module._hidden(1),
    "decorated": lambda module: module.decorated(1),
    "cached": lambda module: module.cached(1),
    "instance": lambda module: module.Model(),
    "property": lambda module: module.Model.__new__(module.Model).size,
    "class method": lambda module: module.Model.made(),
    "static method": lambda module: module.Model.double(1),
    "cached property": lambda module: module.Model.__new__(module.Model).later,
    "inner class": lambda module: module.Model.Inner().deep(),
}


@pytest.mark.parametrize("name", CALLS)
def test_nothing_of_it_can_be_called(module: Any, name: str) -> None:
    kept_elsewhere = module.ready
    hide_modules({"hidden_module": ["allowed"]})
    with pytest.raises(RuntimeError, match=r"hidden_module\..* is not available .* yourself"):
        CALLS[name](module)
    with pytest.raises(RuntimeError):
        kept_elsewhere(1)


def test_what_is_allowed_stays_with_what_it_needs(module: Any) -> None:
    hide_modules({"hidden_module": ["allowed"]})
    assert module.allowed(3) == 7


def test_its_code_is_nowhere_in_memory(module: Any) -> None:
    path = module.__file__
    hide_modules({"hidden_module": ["allowed"]})
    gc.collect()
    functions = [one for one in gc.get_objects() if isinstance(one, FunctionType)]
    left = {one.__qualname__ for one in functions if _was_written_in(one.__code__, path)}
    assert left == {"_scale", "allowed", "Base.offset"}


def _was_written_in(code: CodeType, path: str) -> bool:
    return code.co_filename == path and "_args" not in code.co_varnames


PACKAGE = {
    "__init__": "PARTS = ('first', 'second')",
    "shared": """
TABLE, UNUSED = [1, 2], [3]
def used():
    return TABLE[0]
def unused():
    return UNUSED
""",
    "first": """
import functools
from hidden_package import shared
RIGHT = {"answer": lambda: 42}
SCALE = 10
class Base:
    limit, secret = 5, "right"
    @classmethod
    def on_rank(cls, x):
        return cls.run(x) + cls.limit
    def right(self):
        return self.secret
class Case(Base):
    @staticmethod
    def run(x):
        from hidden_package.second import scaled
        return scaled(x) + shared.used()
    @functools.cached_property
    def table(self):
        return 7
def _factory(table):
    def inner():
        return table
    return inner
enclosing = _factory([8])
@functools.cache
def answer(x=[9]):
    return x
answer()
""",
    "second": """
from hidden_package import first
def scaled(x):
    return x * first.SCALE
def solution():
    return 1
""",
}


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A package whose modules use each other; one method of two classes is allowed."""
    (tmp_path / "hidden_package").mkdir()
    for name, source in PACKAGE.items():
        (tmp_path / "hidden_package" / f"{name}.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    import hidden_package.first  # type: ignore[import-not-found]

    hide_modules({"hidden_package": ["first.Base.on_rank", "first.Case.on_rank"]})
    yield hidden_package
    for name in [name for name in sys.modules if name.partition(".")[0] == "hidden_package"]:
        del sys.modules[name]


def test_an_allowed_method_uses_other_modules_of_its_package(package: Any) -> None:
    assert package.first.Case.on_rank(3) == 3 * 10 + 1 + 5


def test_other_methods_of_its_class_raise(package: Any) -> None:
    case = package.first.Case()
    for call in (case.right, lambda: case.table, package.second.solution, package.shared.unused):
        with pytest.raises(RuntimeError, match="is not available while an answer is graded"):
            call()


def test_constants_that_it_does_not_use_are_deleted(package: Any) -> None:
    assert package.shared.TABLE == [1, 2]
    owners = {"PARTS": package, "UNUSED": package.shared, "RIGHT": package.first,
              "secret": package.first.Base}  # fmt: skip
    assert [name for name, owner in owners.items() if hasattr(owner, name)] == []


def test_refused_functions_hold_nothing(package: Any) -> None:
    with pytest.raises(RuntimeError):
        package.first.answer()  # not what was cached before
    assert package.first.answer.__wrapped__.__defaults__ is None
    with pytest.raises(ValueError, match="empty"):
        _ = package.first.enclosing.__closure__[0].cell_contents


def test_the_folder_of_a_package_is_named(package: Any) -> None:
    assert files_of({"hidden_package": []}) == [str(Path(package.__file__).parent)]


def test_source_and_compiled_form_are_named(module: Any) -> None:
    files = {Path(name).suffix for name in files_of({"hidden_module": []})}
    assert files == {".py", ".pyc"} or sys.dont_write_bytecode


def test_each_part_names_what_its_check_refuses() -> None:
    named = {part.name: dict(hidden_modules_of([part])) for part in known_parts()}
    assert named["01/ring_all_reduce"] == {"dtlab.collectives": (), "dtlab.simple": ()}
    assert "copy_to_region" in named["06/column_linear"]["dtlab.parallel.tensor.regions"]
    assert named["06/g"]["dtlab.parallel.tensor.regions"] == ()
    assert sum(map(bool, named.values())) > 30
    every = dict(hidden_modules_of(known_parts()))
    assert every["dtlab.parallel.tensor.regions"] == ()
    assert all(files_of({name: ()}) for name in every)


def test_an_import_is_no_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = "def f():\n    return 1\nclass C:\n    x = f()\n__all__ = ['C', 'f']\n"
    (tmp_path / "only_imported.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    with finished_calls("only_imported") as found:
        import only_imported  # type: ignore[import-not-found]
    assert not found
    with finished_calls("only_imported") as found:
        only_imported.f()
    assert found == {"only_imported.f"}
    del sys.modules["only_imported"]
