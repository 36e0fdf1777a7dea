"""Ranks of a graded answer have of `dtlab.units` what runs the answer, and nothing that judges it.

A graded rank tries to import, call and read every module below `dtlab.units`. What stays is
checked by its bytecode, since the functions that run an answer must find all that they name.
"""

from __future__ import annotations

import ast
import builtins
import contextlib
import dis
import importlib
import inspect
import json
import os
import pkgutil
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

import nbformat
import pytest

import dtlab.units
from dtlab.checks import known_parts
from dtlab.checks.functions.trials import Case, Recording, Trial
from dtlab.checks.programs.broken import Fix
from dtlab.classroom.judging.isolated import IsolatedBench
from dtlab.classroom.judging.rank_needs import judges
from dtlab.classroom.workers.server import JudgesServer
from dtlab.ranks.plain import PickledFunction
from dtlab.ranks.sandbox.filesystem import of_instructors
from dtlab.ranks.sandbox.hidden_modules import Kept, prepared
from dtlab.ranks.sandbox.isolation import Isolation
from dtlab.ranks.transport import pack
from tests.sandboxed import MEMORY, USERS, needs_root

ROOT = Path(__file__).parent.parent
MODULES = [found.name for found in pkgutil.walk_packages(dtlab.units.__path__, "dtlab.units.")]
LIMIT = 60.0  # seconds for a launch on a busy machine


@cache
def kept() -> Kept:
    """What stays, found in this process, which keeps everything."""
    ((name, allowed),) = judges()
    return Kept(importlib.import_module(name), allowed)


def functions() -> list[FunctionType]:
    """The functions of units that stay, except those that dataclasses generate."""
    written = [one for one in kept() if isinstance(one, FunctionType) and kept().defines(one)]
    return [one for one in written if not one.__code__.co_filename.startswith("<")]


def name_of(function: Any) -> str:
    return f"{function.__module__}.{function.__qualname__}"


def cases(cls: type = Case) -> Iterator[type[Case]]:
    """All cases of all units."""
    for inner in cls.__subclasses__():
        if inner.__module__.startswith("dtlab.units."):
            yield inner
        yield from cases(inner)


# What stays --------------------------------------------------------------------------------------


def test_each_case_keeps_the_function_that_runs_an_answer() -> None:
    kept()
    found = set(cases())
    assert len(found) > 100
    for case in found:
        assert inspect.getattr_static(case, "on_rank").__func__ in kept(), case
    programs = [part.check.broken for part in known_parts() if isinstance(part.check, Fix)]
    assert len(programs) > 20
    assert all(program in kept() for program in programs)


def test_answers_keep_the_functions_that_notebooks_import_for_them() -> None:
    used = {value for path in ROOT.glob("solutions/*/level-[23].ipynb") for value in helpers(path)}
    assert len(used) > 5
    assert {name_of(value) for value in used if value not in kept()} == set()


def helpers(path: Path) -> Iterator[Any]:
    """Functions and classes of units that answers of a solution use by the name of an import."""
    imported: dict[str, Any] = {}
    for cell in nbformat.read(path, as_version=4).cells:
        with contextlib.suppress(SyntaxError):  # a line for IPython
            tree = ast.parse(cell.source if cell.cell_type == "code" else "")
            for node in ast.walk(tree):
                if isinstance(node, ast.ImportFrom) and (node.module or "")[:11] == "dtlab.units":
                    module = importlib.import_module(node.module or "")
                    names = ((one.asname or one.name, one.name) for one in node.names)
                    imported |= {name: getattr(module, inner, None) for name, inner in names}
                used = isinstance(node, ast.Name) and cell.metadata.get("nbgrader", {})
                if used and used.get("solution") and callable(imported.get(node.id)):
                    yield imported[node.id]


def test_no_case_keeps_what_judges() -> None:
    """The abstract methods of a case, and others whose names are known to judge."""
    judging = {"given", "opened", "labelled", "beside", "figures", "mistake", "advice", "faults",
               "right", "reference", "one_process"}  # fmt: skip
    kept()
    left = [
        (case, name)
        for case in cases()
        for name in judging & vars(case).keys()
        if vars(case)[name] in kept()
    ]
    assert left == []


def test_the_module_of_each_part_is_tried() -> None:
    names = {f"dtlab.units.unit{part.name.replace('/', '.')}" for part in known_parts()}
    assert len(names) > 150
    assert names <= {*MODULES}


@pytest.mark.slow
def test_functions_that_stay_find_all_names_that_they_use() -> None:
    """This is checked in a separate process, where the rest is hidden."""
    told = subprocess.run(
        [sys.executable, "-m", "tests.test_rank_needs"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    found = json.loads(told.stdout)
    assert found["functions"] > 250
    assert found["missing"] == []


def missing(function: FunctionType, refused: set[int]) -> Iterator[str]:
    """Names of modules and functions of units that a function uses and would not find."""
    where = name_of(function)
    for code in codes(function.__code__):
        home = ""
        for line in dis.get_instructions(code):
            if line.opname == "LOAD_GLOBAL":
                value = function.__globals__.get(line.argval, getattr(builtins, line.argval, None))
                if line.argval not in {**function.__globals__, **vars(builtins)}:
                    yield f"{where}: {line.argval}"
                elif id(value) in refused:
                    yield f"{where}: {line.argval} raises"
            elif line.opname == "IMPORT_NAME":
                home = line.argval
            elif line.opname == "IMPORT_FROM" and home.startswith("dtlab.units"):
                value = getattr(importlib.import_module(home), line.argval, None)
                if value is None or id(value) in refused:
                    yield f"{where}: {home}.{line.argval}"


def codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from codes(constant)


def report_what_is_missing() -> None:
    """Hides the judges from this process, and prints what the rest misses."""
    left = functions()
    ((name, allowed),) = judges()
    removal = prepared(importlib.import_module(name), allowed)
    removal.carry_out()
    refused = {id(function) for function, _ in removal.functions}
    lacking = [one for function in left for one in missing(function, refused)]
    print(json.dumps({"functions": len(left), "missing": lacking}))


# A graded rank -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def server() -> Iterator[JudgesServer]:
    server = JudgesServer()
    server.wait()
    yield server
    server.stop()


@pytest.fixture
def bench(server: JudgesServer) -> Iterator[IsolatedBench]:
    bench = IsolatedBench(server, Isolation(user=USERS, memory=MEMORY), None)
    yield bench
    bench.close()


def told(bench: IsolatedBench, fn: Any) -> Any:
    """What an answer returns in a graded rank."""
    packed = pack(fn)
    answer = PickledFunction(bytes(packed.pickled), tuple(map(bytes, packed.buffers)))
    observation = bench.observe(Trial(1, [Recording(())], limit=LIMIT), answer)
    assert observation.error is None, observation.error
    return observation.results[0][0]


@pytest.mark.slow
@needs_root
def test_a_graded_rank_gets_nothing_of_the_judges(bench: IsolatedBench) -> None:
    modules = MODULES
    source = ROOT / "dtlab/units/unit11/cluster.py"

    def look() -> dict[str, Any]:
        import contextlib
        import gc
        import importlib
        import inspect
        import linecache
        import pathlib
        import sys
        import types

        found: dict[str, Any] = {"files": [], "called": [], "constants": [], "sources": []}
        for name in modules:
            module = importlib.import_module(name)
            for path in (module.__file__, module.__cached__):
                with contextlib.suppress(OSError):
                    found["files"].append(len(pathlib.Path(path).read_bytes()))
            for names in (inspect.getsource, module.__loader__.get_source):
                with contextlib.suppress(OSError, ImportError, TypeError):
                    found["sources"].append(names(module if names is inspect.getsource else name))
            found["sources"] += linecache.getlines(module.__file__)
            for inner, value in vars(module).items():
                of_units = getattr(value, "__module__", "").startswith("dtlab.units")
                if isinstance(value, types.FunctionType) and of_units:
                    with contextlib.suppress(OSError):
                        found["sources"].append(inspect.getsource(value))
                    try:
                        value()
                    except RuntimeError as error:
                        if "is not available while an answer is graded" in str(error):
                            continue
                    except BaseException as error:  # noqa: BLE001  it ran, and that is enough
                        del error
                    found["called"].append(f"{value.__module__}.{value.__qualname__}")
                elif inner[:2] != "__" and not callable(value) and not inspect.ismodule(value):
                    found["constants"].append((name, inner, type(value).__module__))
        gc.unfreeze()
        alive = [one for one in gc.get_objects() if isinstance(one, types.FunctionType)]
        found["alive"] = [
            f"{one.__module__}.{one.__qualname__}"
            for one in alive
            if "/dtlab/units/" in one.__code__.co_filename
            and "_args" not in one.__code__.co_varnames
        ]
        for name in [name for name in sys.modules if name.startswith("dtlab.units")]:
            del sys.modules[name]
        found["again"] = []
        for name in ("dtlab.units", *modules):
            with contextlib.suppress(ImportError):
                again = importlib.import_module(name)
                found["again"].append(again.__file__)
        return found

    source.read_text()  # it is there
    found = told(bench, look)
    stays = {name_of(one) for one in kept() if isinstance(one, FunctionType)}
    assert found["files"] == found["sources"] == []
    assert set(found["called"]) <= stays
    assert set(found["alive"]) <= stays
    named = {name for one in functions() for code in codes(one.__code__) for name in code.co_names}
    for module, name, kind in found["constants"]:
        value = getattr(sys.modules[module], name)
        simple = isinstance(value, bool | int | float | str | tuple)  # equal to one that is needed
        assert name in named or (simple and value in kept()), (module, name)
        assert not kind.startswith("dtlab"), (module, name)
    assert [file for file in found["again"] if file] == []


@pytest.mark.slow
@needs_root
@pytest.mark.parametrize(
    ("module", "path"),
    [
        ("unit11.cluster", "planned_starts"),
        ("unit11.resumable", "Resumed.faults"),
        ("unit11.orchestrator", "Scheduling.given"),
        ("unit07.one_f_one_b", "PART"),
        ("unit10.train_step", "Training.one_process.func"),
        ("unit06.plans_rules", "PART"),
        ("unit05.gather", "Gathering.faults"),
        ("unit02.training", "OnDigits"),
    ],
)
def test_judges_raise_when_an_answer_calls_them(
    bench: IsolatedBench, module: str, path: str
) -> None:
    def call() -> str:
        import importlib

        value: Any = importlib.import_module(f"dtlab.units.{module}")
        try:
            for name in path.split("."):
                value = getattr(value, name)
            return f"got {value(None, [])}"
        except Exception as error:  # noqa: BLE001  the message says which
            return f"{type(error).__name__}: {error}"

    said = told(bench, call)
    assert "is not available while an answer is graded" in said or "AttributeError" in said


@pytest.mark.slow
@needs_root
def test_solutions_and_tests_cannot_be_read(bench: IsolatedBench) -> None:
    folders = [str(ROOT / name) for name in ("solutions", "tests")]

    def look() -> list[str]:

        return [name for one in folders if os.path.exists(one) for name in os.listdir(one)]

    assert told(bench, look) == []
    assert [str(folder) for folder in of_instructors()] == folders


@pytest.mark.slow
@needs_root
def test_a_function_of_the_library_has_all_of_it(bench: IsolatedBench) -> None:
    """A check that runs the library's own function, with an answer's plan, needs its modules."""

    def look() -> Any:

        from dtlab.units.unit11 import cluster, interval

        return os.path.exists(cluster.__file__), interval.PART.name

    observation = bench.observe(Trial(1, [Recording(())], limit=LIMIT), look)
    assert observation.error is None, observation.error
    assert list(observation.results[0][0]) == [True, "11/interval"]


if __name__ == "__main__":
    report_what_is_missing()
