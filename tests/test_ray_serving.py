"""What lesson 11 sets of Ray Serve, although Ray calls it deprecated."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from tests.test_units import ROOT

LESSON = ROOT / "notebooks" / "11_orchestration_with_ray.ipynb"
SUCCESSOR = "AUTOSCALING_METRIC_PUSH_INTERVAL_S"  # with RAY_SERVE_HANDLE_, RAY_SERVE_REPLICA_


def test_no_module_of_serve_reads_what_replaces_metrics_interval_s() -> None:
    """The lesson says so. If this fails, let `start_serve` set both variables, and not the cell.

    Without 0.2 s the autoscaler hears of a load after 10 s, longer than the phases of the lesson.
    """
    assert '"metrics_interval_s\\": 0.2' in LESSON.read_text()
    found = importlib.util.find_spec("ray")
    if found is None or found.origin is None:
        pytest.skip("Ray is not installed")
    serve = Path(found.origin).parent / "serve"
    mentions = {
        path.relative_to(serve).as_posix()
        for path in serve.rglob("*.py")
        if "tests" not in path.parts and SUCCESSOR in path.read_text(encoding="utf-8")
    }
    assert mentions == {"_private/constants.py", "config.py"}  # their values, and the warning
    assert f"import RAY_SERVE_HANDLE_{SUCCESSOR}" not in (serve / "config.py").read_text()
