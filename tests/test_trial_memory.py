"""A trial limits the memory of its ranks, on a learner's machine and in the sandbox."""

from __future__ import annotations

import pytest
import torch

from dtlab.checks.functions.bench import HERE, Bench
from dtlab.checks.functions.trials import Recording, Trial
from dtlab.classroom.judging.isolated import IsolatedBench
from dtlab.ranks.launch.client import Server
from dtlab.ranks.sandbox.isolation import Isolation
from tests.sandboxed import MEMORY, USERS, needs_root, server  # noqa: F401

pytestmark = pytest.mark.slow


def kinds(bench: Bench) -> list[str | None]:
    """How a rank fails that takes little, and one that takes more than the limit."""

    def take(megabytes: int) -> None:
        torch.zeros(10**6 * megabytes, dtype=torch.uint8)

    trials = [Trial(1, [Recording((size,))], limit=30.0, memory=100_000_000) for size in (20, 400)]
    failures = [bench.observe(trial, take).failure for trial in trials]
    return [failure and failure.kind for failure in failures]


def test_more_memory_than_a_trial_allows_is_refused() -> None:
    assert kinds(HERE) == [None, "memory"]


@needs_root
def test_it_is_refused_in_the_sandbox_too(server: Server) -> None:  # noqa: F811
    bench = IsolatedBench(server, Isolation(user=USERS, memory=MEMORY), None)
    try:
        assert kinds(bench) == [None, "memory"]
    finally:
        bench.close()
