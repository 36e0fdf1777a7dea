"""`git archive` makes a course for learners: all that they use, and no solutions."""

from __future__ import annotations

import io
import subprocess
import tarfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="needs the repository")
def test_an_archive_for_learners_has_no_solutions() -> None:
    command = ["git", "archive", "--worktree-attributes", "HEAD"]
    made = subprocess.run(command, cwd=ROOT, capture_output=True, check=True).stdout
    with tarfile.open(fileobj=io.BytesIO(made)) as archive:
        names = archive.getnames()
    folders = {name.partition("/")[0] for name in names}
    assert {"dtlab", "notebooks", "exercises", "docs", "Makefile", "README.md"} <= folders
    assert not folders & {"solutions", "tests"}
