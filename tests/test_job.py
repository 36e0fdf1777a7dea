"""One specification of a job: both back ends against one process, and resumed jobs."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import dtlab
from dtlab.parallel.job import JobResult, JobSpec, run_job, simple_job
from tests.staying import on_ranks

ROOT = Path(__file__).parent.parent
BACKENDS = ["all_reduce", "parameter_server"]


class _Model(nn.Module):
    """A tied and a frozen parameter, odd sizes, and if asked a layer of over 256 KiB."""

    def __init__(self, dropout: float = 0.0, hidden: int = 7) -> None:
        super().__init__()
        self.first, self.middle = nn.Linear(6, hidden), nn.Linear(hidden, hidden, bias=False)
        self.again, self.last = self.middle, nn.Linear(hidden, 3)
        self.frozen = nn.Parameter(torch.randn(hidden), requires_grad=False)
        self.dropout = nn.Dropout(dropout)
        self.double()

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = self.middle(self.first(inputs).tanh()).tanh() * self.frozen
        logits: Tensor = self.last(self.dropout(self.again(hidden)))
        return logits


def _data() -> TensorDataset:
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(23, 6, generator=generator, dtype=torch.float64)
    return TensorDataset(inputs, torch.randint(3, (23,), generator=generator))


SPEC = JobSpec(_Model, _data, steps=7, ranks=2, batch_size=7, learning_rate=0.1, seed=3)


def _run(spec: JobSpec, folder: Path | None = None) -> JobResult:
    """Run a job on fresh ranks or on staying ones; every rank must return the same."""
    path = None if folder is None else str(folder)
    results: list[JobResult] = on_ranks(run_job, spec, path, world_size=spec.processes).values
    for other in results[1:]:
        assert other.losses == results[0].losses
        assert _equal(other, results[0])
    return results[0]


def _equal(a: JobResult, b: JobResult) -> bool:
    assert a.parameters.keys() == b.parameters.keys()
    return all(value.equal(b.parameters[name]) for name, value in a.parameters.items())


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_both_back_ends_are_one_process(backend: Any, ranks: int) -> None:
    spec = replace(SPEC, backend=backend, ranks=ranks)
    alone, result = simple_job(spec), _run(spec)
    assert result.losses == pytest.approx(alone.losses, rel=1e-12)
    for name, value in alone.parameters.items():
        torch.testing.assert_close(result.parameters[name], value, rtol=1e-11, atol=1e-13)
    frozen = result.parameters.pop("frozen")
    moved = [not v.equal(dict(_first()).pop(name)) for name, v in result.parameters.items()]
    assert all(moved)
    assert frozen.equal(dict(_first())["frozen"])


def _first() -> list[tuple[str, nn.Parameter]]:
    with torch.random.fork_rng():
        torch.manual_seed(SPEC.seed)
        return list(_Model().named_parameters())


@pytest.mark.parametrize("hidden", [7, pytest.param(190, id="large")])
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_resumed_job_is_bit_identical(backend: Any, hidden: int, tmp_path: Path) -> None:
    """Dropout, momentum, and a checkpoint in the middle of an epoch."""
    model = partial(_Model, 0.4, hidden)
    spec = replace(SPEC, model=model, backend=backend, checkpoint_every=2)
    whole = _run(spec)
    assert _run(replace(spec, steps=5), tmp_path).first_step == 0  # steps 4 and 5 differ
    again = _run(spec, tmp_path)
    assert again.first_step == 4
    assert again.losses == whole.losses[4:]
    assert _equal(again, whole)
    assert [path.name for path in tmp_path.iterdir()] == ["job.pt"]
    finished = _run(replace(spec, steps=6), tmp_path)
    assert (finished.first_step, finished.losses) == (6, [])


def test_a_checkpoint_fits_the_other_back_end_and_other_ranks(tmp_path: Path) -> None:
    """Large parameters come first on a server, so the optimizer's state must be found by name."""
    spec = replace(SPEC, model=partial(_Model, 0.0, 190), checkpoint_every=3)
    served = replace(spec, backend="parameter_server", ranks=3)
    whole = simple_job(spec)
    _run(replace(served, steps=3), tmp_path)
    _run(replace(spec, steps=6), tmp_path)
    last = _run(served, tmp_path)
    assert last.first_step == 6
    for name, value in whole.parameters.items():
        torch.testing.assert_close(last.parameters[name], value, rtol=1e-11, atol=1e-13)


@pytest.mark.slow
def test_a_killed_job_continues(tmp_path: Path) -> None:
    """A worker is killed in step 5; the same call then continues from step 4."""
    spec = replace(SPEC, backend="parameter_server", checkpoint_every=2)
    with dtlab.expect(dtlab.RankError):
        dtlab.launch(run_job, replace(spec, model=_Dying), str(tmp_path), world_size=3)
    result = _run(spec, tmp_path)
    assert result.first_step == 4
    assert _equal(result, _run(spec))


class _Dying(_Model):
    """Worker 2 dies in its fifth forward pass."""

    count = 0

    def forward(self, inputs: Tensor) -> Tensor:
        _Dying.count += 1
        if _Dying.count == 5 and dist.get_rank() == 2:
            os._exit(9)
        return super().forward(inputs)


def test_random_numbers_outside_do_not_change() -> None:
    def unchanged() -> bool:
        before = torch.get_rng_state()
        run_job(SPEC)
        return before.equal(torch.get_rng_state())

    assert all(on_ranks(unchanged, world_size=2).values)


def test_a_group_runs_a_job() -> None:
    def in_a_group() -> Any:
        group = dist.new_group([1, 2])
        return run_job(SPEC, None, group).losses if dist.get_rank() in (1, 2) else None

    other, *both = on_ranks(in_a_group, world_size=3).values
    assert other is None
    assert both[0] == both[1] == pytest.approx(simple_job(SPEC).losses, rel=1e-12)


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("steps", 0, "steps must be a whole number, 1 or more, not 0"),
        ("ranks", 2.0, "ranks must be a whole number, 1 or more, not 2.0"),
        ("ranks", True, "not True"),
        ("checkpoint_every", -1, "checkpoint_every must be a whole number, 0 or more, not -1"),
        ("batch_size", 1, "batch_size=1 leaves some of 2 ranks without a sample"),
        ("backend", "nccl", r"backend 'nccl' is unknown. Pass one of \['all_reduce'"),
        ("learning_rate", 0, "learning_rate=0 must be above 0"),
        ("momentum", 1.0, "momentum=1.0 from 0 to below 1"),
        ("model", _Model(), "model must be a function"),
        ("data", [1], "data must be a function"),
    ],
)
def test_a_field_is_checked(field: str, value: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        replace(SPEC, **{field: value})


def test_wrong_ranks_and_models_are_refused(tmp_path: Path) -> None:
    def told(spec: JobSpec) -> str:
        with pytest.raises((ValueError, dtlab.DtlabError)) as error:
            run_job(spec, str(tmp_path))
        return str(error.value)

    served = replace(SPEC, backend="parameter_server")
    words = on_ranks(told, served, world_size=2).values[0]
    assert "on 3 processes (backend='parameter_server', ranks=2), but the group has 2" in words
    with_buffers = replace(served, model=lambda: nn.Sequential(nn.BatchNorm1d(6)), ranks=1)
    assert "has buffers" in on_ranks(told, with_buffers, world_size=2).values[0]
    _run(replace(SPEC, checkpoint_every=7), tmp_path)
    other = replace(SPEC, model=partial(_Model, 0.0, 8))
    words = on_ranks(told, other, world_size=2).values[1]
    assert "job.pt is the checkpoint of another job: size mismatch" in words


@pytest.mark.proof
def test_it_runs_under_torchrun(tmp_path: Path) -> None:
    program = """
from functools import partial
import torch.distributed as dist
from dtlab.parallel.job import JobSpec, run_job
from dtlab.training.datasets import digits
from dtlab.training.models import MLP
dist.init_process_group("gloo")
spec = JobSpec(partial(MLP, 64, 16, 10), lambda: digits(shifts=False).train, 30, 2, 64, 0.1,
               backend="parameter_server")
result = run_job(spec)
assert result.losses[-1] < 0.7 * result.losses[0], result.losses
dist.destroy_process_group()
"""
    run = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=3"]
    run += [f"--log-dir={tmp_path}"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    ended = subprocess.run(
        [*run, "--no-python", sys.executable, "-c", program],
        capture_output=True, text=True, env=environment, timeout=120, check=False,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr[-3000:]
