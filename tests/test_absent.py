"""Library code that is taken away can be neither called nor read, and what is allowed stays."""

from __future__ import annotations

import gc
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

import pytest

from dtlab.grading import known_parts
from dtlab.grading.checking.finished import absent_of, finished_calls
from dtlab.ranks.sandbox.absent import files_of, take_away

MODULE = '''
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
'''


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A library's module, imported."""
    (tmp_path / "taken_away.py").write_text(textwrap.dedent(MODULE))
    monkeypatch.syspath_prepend(tmp_path)
    import taken_away  # type: ignore[import-not-found]

    yield taken_away
    del sys.modules["taken_away"]


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
    take_away({"taken_away": ["allowed"]})
    with pytest.raises(RuntimeError, match=r"taken_away\..* is not available while .* yourself"):
        CALLS[name](module)
    with pytest.raises(RuntimeError):
        kept_elsewhere(1)


def test_what_is_allowed_stays_with_what_it_needs(module: Any) -> None:
    take_away({"taken_away": ["allowed"]})
    assert module.allowed(3) == 7


def test_its_code_is_nowhere_in_memory(module: Any) -> None:
    path = module.__file__
    take_away({"taken_away": ["allowed"]})
    gc.collect()
    functions = [one for one in gc.get_objects() if isinstance(one, FunctionType)]
    left = {one.__qualname__ for one in functions if _was_written_in(one.__code__, path)}
    assert left == {"_scale", "allowed", "Base.offset"}


def _was_written_in(code: CodeType, path: str) -> bool:
    return code.co_filename == path and "_args" not in code.co_varnames


def test_source_and_compiled_form_are_named(module: Any) -> None:
    files = {Path(name).suffix for name in files_of({"taken_away": []})}
    assert files == {".py", ".pyc"} or sys.dont_write_bytecode


def test_each_part_names_what_its_check_refuses() -> None:
    named = {part.name: dict(absent_of([part])) for part in known_parts()}
    assert named["01/ring_all_reduce"] == {"dtlab.collectives": ()}
    assert "copy_to_region" in named["06/column_linear"]["dtlab.parallel.tensor.regions"]
    assert named["06/g"]["dtlab.parallel.tensor.regions"] == ()
    assert sum(map(bool, named.values())) > 30
    every = dict(absent_of(known_parts()))
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
