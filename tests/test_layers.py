"""The house stays in order: rooms import only the rooms below them, and what must be light is."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@pytest.mark.slow
def test_rooms_import_only_rooms_below() -> None:
    done = subprocess.run(
        ["lint-imports", "--no-cache"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        env={"PATH": str(Path(sys.executable).parent)},
    )
    assert done.returncode == 0, done.stdout


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
