"""Packages import only packages below them, nothing imports in a circle, and types are right."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
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


def test_the_simple_versions_and_the_engines_do_not_import_each_other() -> None:
    graph = grimp.build_graph("dtlab", cache_dir=None)
    assert not graph.find_modules_directly_imported_by("dtlab.simple")
    assert not graph.find_modules_that_directly_import("dtlab.simple")


def test_parts_compare_values_by_the_kit() -> None:
    """`difference` and `same` of dtlab/checks/comparison.py, so that messages are alike."""
    rooms = ROOT / "dtlab" / "units", ROOT / "dtlab" / "checks" / "programs"
    own = re.compile(r"\.equal\(|torch\.(equal|isclose|allclose|testing)|\.(allclose|isclose)\(")
    found = [
        f"{path.relative_to(ROOT)}:{number}"
        for path in sorted(path for room in rooms for path in room.rglob("*.py"))
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if own.search(line.replace("math.isclose(", ""))
    ]
    assert not found


def drawing() -> list[list[str]]:
    """The floors of the house in docs/architecture.md, from the top: what each line names."""
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    house = text.split("```\n│")[1].split("```")[0]
    floors = [re.findall(r"^[│▼](  (?:  )?\w+(?:/|\.py)) ", floor, re.MULTILINE)
              for floor in re.split(r"^.*────.*$", "│" + house, flags=re.MULTILINE)]  # fmt: skip
    return [floor for floor in floors if floor]


def test_the_drawing_has_the_order_of_the_contract() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    (contract,) = settings["tool"]["importlinter"]["contracts"]
    layers = [set(re.findall(r"dtlab\.(\w+)", layer)) for layer in contract["layers"]]
    floors = [
        {re.split(r"[/.]", name.strip())[0] for name in floor if name[2] != " "}
        for floor in drawing()
    ]
    assert floors == [layer for layer in layers if layer != {"__main__"}]


def test_the_drawing_shows_all_packages() -> None:
    shown, folder = set(), ""
    for name in (name for floor in drawing() for name in floor):
        folder = name.strip() if name[2] != " " else folder
        shown.add(folder if name[2] != " " else folder + name.strip())
    inside = "ranks", "parallel", "show"
    found = [
        *(ROOT / "dtlab").iterdir(),
        *(f for one in inside for f in (ROOT / "dtlab" / one).iterdir()),
    ]
    packages = {
        f"{one.relative_to(ROOT / 'dtlab')}/" for one in found if (one / "__init__.py").exists()
    }
    assert {one for one in shown if one.endswith("/")} == packages


def test_folders_hold_few_files() -> None:
    """More than 15 modules in a folder mean that a sub-package is missing."""
    folders = [folder for folder in (ROOT / "dtlab").rglob("*") if folder.is_dir()]
    count = {folder: len(list(folder.glob("*.py"))) for folder in folders}
    limit = {folder: 20 if folder.parent.name == "units" else 15 for folder in folders}
    full = {str(one.relative_to(ROOT)): count[one] for one in folders if count[one] > limit[one]}
    assert not full, f"more modules than 15, or 20 in a unit: join two, or make a package: {full}"


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_types_are_right() -> None:
    done = subprocess.run([sys.executable, "-m", "mypy"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    "module",
    ["dtlab", "dtlab.errors", "dtlab.trace", "dtlab.predict", "dtlab.show", "dtlab.checks",
     "dtlab.doctor", "dtlab.parallel.mesh"],
)  # fmt: skip
def test_these_load_no_torch(module: str) -> None:
    code = f"import sys, {module}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


LEARNERS_PATH = """
import os, sys

import dtlab
from dtlab.cli import main

os.execve = lambda *_: print("JupyterLab begins here")
assert main(["start", "01", "--into", "."]) == main(["lab", "01"]) == main(["progress"]) == 0
dtlab.practice(abs, -1, returns=[1, 1])
report = dtlab.check("01/ring_all_reduce", abs)
assert report.score == 0 < report.max_score
found = [name for name in sys.modules if name.startswith(("dtlab.classroom", "nbgrader"))]
sys.exit(", ".join(found) or 0)
"""


@pytest.mark.slow
def test_a_learner_imports_nothing_of_the_classroom(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", LEARNERS_PATH],
        cwd=tmp_path, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "JupyterLab begins here" in done.stdout
