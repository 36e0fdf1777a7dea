"""Ray: a private cluster, and ranks in its actors."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from dtlab.ranks.ray import cluster


def test_folders_of_clusters_that_were_killed_are_taken_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster.tempfile, "gettempdir", lambda: str(tmp_path))
    monkeypatch.setattr(cluster, "LONGEST", 500)
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    (tmp_path / f"ray-{ended.pid}-abc").mkdir()
    (tmp_path / "ray-of-light").mkdir()
    ours = Path(cluster.short_folder())
    again = Path(cluster.short_folder())
    assert {path.name for path in tmp_path.iterdir()} == {ours.name, again.name, "ray-of-light"}
