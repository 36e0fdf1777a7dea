"""pyproject.toml has the versions of PyTorch and nbgrader; all other places agree with it."""

from __future__ import annotations

import os
import re
import subprocess
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS = PROJECT["optional-dependencies"].values()
NEEDED = [*PROJECT["dependencies"], *(each for extra in EXTRAS for each in extra)]


def text(file: str) -> str:
    return (ROOT / file).read_text(encoding="utf-8")


def needed(name: str) -> str:
    """A package's requirement in pyproject.toml, such as "torch>=2.13,<2.14"."""
    (found,) = {each for each in NEEDED if Requirement(each).name == name}
    return found


def bounds(name: str) -> dict[str, Version]:
    return {each.operator: Version(each.version) for each in Requirement(needed(name)).specifier}


@pytest.mark.parametrize("name", ["torch", "nbgrader"])
def test_these_have_an_upper_bound(name: str) -> None:
    """Private names of PyTorch, and nbgrader's converters, may change in each minor version."""
    found = bounds(name)
    assert found.keys() == {">=", "<"}
    assert found["<"] == Version(f"{found['<'].major}.{found['<'].minor}")


def commands(*more: str) -> str:
    """What `make lab` would run where nothing is installed yet."""
    environment = {name: value for name, value in os.environ.items() if name != "TORCH"}
    return subprocess.run(
        ["make", "-n", "lab", "VENV=no-such-folder", *more],
        cwd=ROOT, env=environment, capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip


def test_the_makefile_installs_this_pytorch() -> None:
    assert f'pip install -q "{needed("torch")}";' in commands()
    assert 'pip install -q "torch==2.13.0"' in commands("TORCH=torch==2.13.0")
    assert "torch" not in re.sub(r"^#.*|TORCH\w*", "", text("Makefile").split("$(READY):")[1])


def test_the_hub_installs_this_pytorch() -> None:
    (typed,) = re.findall(r'"(torch[<>=][^"]*)"', text("deploy/install.sh"))
    assert typed == needed("torch")


def test_the_diagnosis_names_the_versions_needed() -> None:
    files = text("dtlab/doctor/__init__.py") + text("dtlab/doctor/checks.py")
    typed = re.findall(r'"([a-z_-]+[<>=]=?[^"]*)"', files)
    assert {*typed} >= {needed("torch"), needed("matplotlib"), needed("nvidia-ml-py")}
    assert {*typed} <= {*NEEDED}


def test_the_page_of_platforms_names_these_versions() -> None:
    first, end = bounds("torch")[">="], bounds("torch")["<"]
    minors = [f"{first.major}.{minor}" for minor in range(first.minor, end.minor)]
    words = minors[0] if len(minors) == 1 else f"{minors[0]} to {minors[-1]}"
    (row,) = re.findall(r"^\| PyTorch \| (.*) \|$", text("docs/troubleshooting.md"), re.MULTILINE)
    assert row == words


def test_no_other_file_names_a_version_to_install() -> None:
    known = {"Makefile", "deploy/install.sh", "pyproject.toml"}
    folders = ".github", "deploy", "docs"
    files = [*ROOT.glob("*.*"), *(file for each in folders for file in (ROOT / each).rglob("*"))]
    pattern = re.compile(r"\b(torch|nbgrader) ?([<>=~]=|[<>])")
    wrong = [
        str(file.relative_to(ROOT))
        for file in files
        if file.suffix in (".md", ".sh", ".yml", ".toml", ".py", "") and file.is_file()
        and pattern.search(file.read_text(encoding="utf-8"))
    ]  # fmt: skip
    assert not {*wrong} - known
