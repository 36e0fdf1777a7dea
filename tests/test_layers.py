"""Packages import only packages below them, nothing imports in a circle, and types are right."""

from __future__ import annotations

import subprocess
import sys
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import grimp
import pytest

ROOT = Path(__file__).parent.parent


@pytest.mark.slow
def test_packages_import_only_packages_below() -> None:
    done = subprocess.run(
        ["lint-imports", "--no-cache"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        env={"PATH": str(Path(sys.executable).parent)},
    )
    assert done.returncode == 0, done.stdout


def test_no_module_imports_itself_by_way_of_others() -> None:
    graph = grimp.build_graph("dtlab", cache_dir=None)
    modules = {one: graph.find_modules_directly_imported_by(one) for one in graph.modules}
    try:
        TopologicalSorter(modules).prepare()
    except CycleError as error:
        pytest.fail(" imports ".join(reversed(error.args[1])))


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_types_are_right() -> None:
    done = subprocess.run([sys.executable, "-m", "mypy"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    "module",
    ["dtlab", "dtlab.errors", "dtlab.trace", "dtlab.predict", "dtlab.show", "dtlab.grading",
     "dtlab.doctor"],
)  # fmt: skip
def test_these_load_no_torch(module: str) -> None:
    code = f"import sys, {module}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
