"""The wheel that learners install: what is in it, and that it works without the repository."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import zipfile
from collections.abc import Sequence
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
# What the wheel alone does not install: extras `lab` and `grading`.
EXTRAS = ("jupyterlab", "sklearn", "nbgrader", "nh3", "nbconvert", "sqlalchemy", "ray")

pytestmark = [pytest.mark.slow]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    return next(folder.glob("dtlab-*.whl"))


@pytest.fixture(scope="module")
def site(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel's files as pip puts them into site-packages, where a learner may not write."""
    folder = tmp_path_factory.mktemp("site-packages")
    zipfile.ZipFile(wheel).extractall(folder)
    return folder


def run_installed(site: Path, folder: Path, code: str, *words: str) -> str:
    """Run `code` in `folder` with the wheel's dtlab and without the extras; return its output."""
    without = f"import sys; sys.modules.update(dict.fromkeys({EXTRAS!r}))\n"
    environment = os.environ | {"PYTHONPATH": str(site), "XDG_DATA_HOME": str(folder / "data")}
    done = subprocess.run(
        [sys.executable, "-c", without + code, *words],
        cwd=folder, env=environment, capture_output=True, text=True, timeout=100,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def command(site: Path, folder: Path, *words: str) -> str:
    return run_installed(site, folder, "from dtlab.cli import main; sys.exit(main())", *words)


def names_in(wheel: Path) -> Sequence[str]:
    return zipfile.ZipFile(wheel).namelist()


def test_it_has_the_lessons_and_exercises_but_no_solutions(wheel: Path) -> None:
    names = names_in(wheel)
    for folder in ("notebooks", "exercises"):
        ours = {str(path.relative_to(ROOT)) for path in (ROOT / folder).rglob("*.ipynb")}
        ours = {name for name in ours if ".ipynb_checkpoints" not in name}
        assert ours == {
            name.removeprefix("dtlab/course/")
            for name in names
            if re.match(rf"dtlab/course/{folder}/.*\.ipynb$", name)
        }
    assert "dtlab/course/docs/reference_card.md" in names
    assert not [name for name in names if re.search(r"(^|/)(tests|solutions)/", name)]
    text = b"".join(zipfile.ZipFile(wheel).read(name) for name in names if "exercises" in name)
    assert b"BEGIN SOLUTION" not in text


def test_an_empty_folder_gets_lesson_and_levels(site: Path, tmp_path: Path) -> None:
    told = command(site, tmp_path, "start", "01")
    made = {str(path.relative_to(tmp_path)) for path in (tmp_path / "my").rglob("*.*")}
    assert made >= {
        "my/notebooks/01_ranks_and_collectives.ipynb",
        "my/exercises/01_ranks_and_collectives/01_level_2.ipynb",
        "my/docs/reference_card.md",
    }
    assert "Begin with my/notebooks/01_ranks_and_collectives.ipynb" in told
    inside = tmp_path / "my" / "notebooks"
    assert "kept" in command(site, inside, "start", "01"), "a folder below is the same course"
    assert not (inside / "my").exists()


def test_progress_names_the_next_step(site: Path, tmp_path: Path) -> None:
    assert "dtlab start 00" in command(site, tmp_path, "progress")
    command(site, tmp_path, "start", "00")
    assert "my/notebooks/00_" in command(site, tmp_path, "progress")
    assert "dtlab start 02" in command(site, tmp_path, "progress", "02"), "no copy of it yet"


def test_ranks_and_checks_run_without_the_extras(site: Path, tmp_path: Path) -> None:
    level = ROOT / "solutions" / "01_ranks_and_collectives" / "level-2.ipynb"
    cells = json.loads(level.read_text(encoding="utf-8"))["cells"]
    sources = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    program = tmp_path / "program.py"
    program.write_text(
        "import dtlab\n"
        "import torch\n"
        "import torch.distributed as dist\n"
        "def hello():\n"
        "    return dist.get_rank()\n"
        + next(source for source in sources if "def ring_all_reduce" in source)
        + "\nif __name__ == '__main__':\n"
        "    print(dtlab.__file__, dtlab.launch(hello, world_size=2).values)\n"
        "    report = dtlab.check('01/ring_all_reduce', ring_all_reduce)\n"
        "    print(f'{report.score:g} of {report.max_score:g}')\n",
        encoding="utf-8",
    )
    run = "import runpy; runpy.run_path('program.py', run_name='__main__')"
    told = run_installed(site, tmp_path, run)
    assert str(site) in told and "[0, 1]" in told
    score = re.search(r"^(\d+) of (\d+)$", told, re.MULTILINE)
    assert score and score[1] == score[2], told


def test_lab_says_how_to_get_jupyterlab(site: Path, tmp_path: Path) -> None:
    code = (
        "import importlib.util as u; found = u.find_spec\n"
        "u.find_spec = lambda name, *more: None if name == 'jupyterlab' else found(name, *more)\n"
        "from dtlab.cli import main; print(main())"
    )
    environment = os.environ | {"PYTHONPATH": str(site)}
    done = subprocess.run(
        [sys.executable, "-c", code, "lab"],
        cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert "pip install 'dtlab[lab]'" in done.stderr and done.stdout.strip() == "1"
