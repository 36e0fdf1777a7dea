"""Checkpoints of models that are divided among ranks: loaded bit for bit, or refused."""

from __future__ import annotations

import os
import shutil
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

import dtlab
from dtlab.parallel.data import DataParallel, NaiveDataParallel
from dtlab.parallel.expert import ExpertParallel
from dtlab.parallel.pipeline import PipelineStage, run_schedule
from dtlab.parallel.tensor import ColumnParallelLinear, ParallelBlock, RowParallelLinear
from dtlab.parallel.zero import Zero1, Zero2, Zero3
from dtlab.parallel.zero.fully_sharded import NaiveZero3
from dtlab.schedules import one_f_one_b
from dtlab.training.checkpoint import Checkpoints
from dtlab.training.held import digest
from dtlab.training.models import Block, GPTConfig

pytestmark = pytest.mark.slow

WIDTH = 8


def _dense(*layers: nn.Module, hidden: int = 9) -> nn.Sequential:
    return nn.Sequential(nn.Linear(WIDTH, hidden), nn.Tanh(), nn.Linear(hidden, WIDTH), *layers)


def _expert(_: int) -> nn.Module:
    return nn.Sequential(nn.Linear(WIDTH, 5), nn.Tanh(), nn.Linear(5, WIDTH))


def _stages(*, named: bool) -> tuple[nn.Module, list[PipelineStage]]:
    """Return this rank's module and stages of a pipeline of four layers."""
    layers = [nn.Linear(WIDTH, WIDTH) for _ in range(4)]
    rank, ranks = dist.get_rank(), dist.get_world_size()
    mine = range(4 * rank // ranks, 4 * (rank + 1) // ranks)
    stage = nn.Sequential(*[layers[number] for number in mine])
    module = nn.ModuleDict({str(n): layers[n] for n in mine}) if named else stage
    return module, [PipelineStage(stage, rank)]


def _tensor_parallel_of_pytorch() -> nn.Module:
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    return parallelize_module(
        _dense(hidden=12), mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()}
    )


MODELS: dict[str, Any] = {
    "ddp": lambda: DistributedDataParallel(_dense(), find_unused_parameters=True),
    "data parallel": lambda: DataParallel(_dense(nn.BatchNorm1d(WIDTH))),
    "naive data parallel": lambda: NaiveDataParallel(_dense()),
    "fsdp": lambda: fully_shard(_dense()),
    "zero3": lambda: Zero3(_dense()),
    "naive zero3": lambda: NaiveZero3(_dense()),
    "zero1": _dense,
    "zero2": _dense,
    "tensor": lambda: nn.Sequential(
        ParallelBlock.from_dense(Block(GPTConfig(width=WIDTH, num_heads=4))),
        ColumnParallelLinear(WIDTH, 6),
        RowParallelLinear(6, WIDTH),
    ),
    "tensor of PyTorch": _tensor_parallel_of_pytorch,
    "experts": lambda: ExpertParallel(
        nn.ModuleList(map(_expert, range(4))), nn.Linear(WIDTH, 4), choices=2
    ),
    "alone": lambda: nn.Linear(2, 2, bias=False),
    "pipeline": lambda: _stages(named=False),
    "named pipeline": lambda: _stages(named=True),
}


def run(folder: str, kind: str, *, steps: int, save: int = -1, optimizer: str = "AdamW") -> Any:
    """Resume, train to `steps`, and save as step `save`; return the first step and the values."""
    torch.manual_seed(3)
    model, stages = MODELS[kind](), None
    if isinstance(model, tuple):
        model, stages = model
    make = getattr(torch.optim, optimizer)
    options = {"lr": 0.05} | ({"momentum": 0.9} if optimizer == "SGD" else {})
    if kind in ("zero1", "zero2"):
        update = {"zero1": Zero1, "zero2": Zero2}[kind](model.parameters(), make, **options)
    else:
        update = make(model.parameters(), **options)
    checkpoints = Checkpoints(folder, model, update)
    begin = checkpoints.resume()
    rank, ranks = dist.get_rank(), dist.get_world_size()
    alone = {"tensor", "tensor of PyTorch", "pipeline", "named pipeline"}
    for step in range(begin, steps):
        data = torch.Generator().manual_seed(step)
        batch = torch.randn(12, 2 if kind == "alone" else WIDTH, generator=data)
        if kind not in alone:
            batch = batch[rank::ranks]
        update.zero_grad()
        if stages is not None:
            schedule = one_f_one_b(ranks, 3)
            run_schedule(schedule, stages, batch, batch, nn.MSELoss())
        else:
            shaped = batch.unflatten(0, (3, -1)) if kind == "tensor" else batch
            (model(shaped) - shaped.sin()).square().mean().backward()
        update.step()
    if save >= 0:
        checkpoints.save(save)
    return begin, [_local(value) for value in (model.module if hasattr(model, "module") else model)
                   .state_dict().values()]  # fmt: skip


def _local(value: Any) -> Tensor:
    if isinstance(value, dict):
        return torch.zeros(0)
    return (value.to_local() if hasattr(value, "to_local") else value).detach().clone()


def launch(folder: Path, kind: str, ranks: int, **options: Any) -> list[Any]:
    return dtlab.launch(partial(run, str(folder), kind, **options), world_size=ranks).values


def same(left: list[Any], right: list[Any]) -> bool:
    return all(
        all(map(torch.equal, a, b)) for (_, a), (_, b) in zip(left, right, strict=True)
    )  # fmt: skip


@pytest.mark.parametrize("kind", sorted(MODELS))
def test_the_same_ranks_resume_bit_for_bit(kind: str, tmp_path: Path) -> None:
    ranks = 4
    whole = launch(tmp_path / "a", kind, ranks, steps=4)
    launch(tmp_path / "b", kind, ranks, steps=2, save=2)
    again = launch(tmp_path / "b", kind, ranks, steps=4)
    assert [begin for begin, _ in again] == [2] * ranks
    assert same(whole, again)


@pytest.mark.parametrize(
    ("kind", "ranks", "others"),
    [
        ("ddp", 4, 2), ("data parallel", 2, 3), ("fsdp", 2, 3), ("zero3", 2, 3), ("zero3", 4, 1),
        ("zero1", 2, 3), ("zero2", 4, 2), ("naive zero3", 3, 2), ("tensor", 2, 4),
        ("tensor", 4, 1), ("tensor of PyTorch", 2, 3), ("experts", 2, 4), ("experts", 4, 1),
        ("named pipeline", 4, 2),
    ],
)  # fmt: skip
def test_another_number_of_ranks_loads_bit_for_bit(
    kind: str, ranks: int, others: int, tmp_path: Path
) -> None:
    """Other ranks load and save again, and the first number of ranks finds what it had saved."""
    optimizer = "SGD" if (kind, others) == ("zero3", 1) else "AdamW"
    whole = launch(tmp_path / "a", kind, ranks, steps=4, optimizer=optimizer)
    launch(tmp_path / "b", kind, ranks, steps=2, save=2, optimizer=optimizer)
    between = launch(tmp_path / "b", kind, others, steps=2, save=3, optimizer=optimizer)
    assert [begin for begin, _ in between] == [2] * others
    shutil.rmtree(tmp_path / "b/step_2")
    os.rename(tmp_path / "b/step_3", tmp_path / "b/step_2")
    again = launch(tmp_path / "b", kind, ranks, steps=4, optimizer=optimizer)
    if kind == "data parallel":  # each rank's BatchNorm buffers are the first rank's again
        whole, again = whole[:1], again[:1]
    assert same(whole, again)


class Uneven(nn.Module):
    """A layer under two names, a frozen one, and sizes that no number of ranks divides."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 5)
        self.frozen = nn.Linear(WIDTH, WIDTH).requires_grad_(False)
        self.again = self.first

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.again(self.frozen(self.first(x)).tanh()))


def uneven(folder: str, stage: int, *, steps: int = 0, keep: bool = True) -> tuple[int, Any]:
    """Resume, train some steps from there and save; the first step, and the whole state."""
    torch.manual_seed(dist.get_rank() if stage == 3 else 3)
    inner = Uneven() if stage == 3 else Uneven().bfloat16()
    blocks = [inner.first, inner.last] if keep else []
    model = Zero3(inner, blocks=blocks) if stage == 3 else inner
    groups = [{"params": [*inner.first.parameters(), *inner.frozen.parameters()]},
              {"params": inner.last.parameters(), "lr": 0.01 if steps else 7.0}]  # fmt: skip
    options = {"lr": 0.05, "weight_decay": 0.1}
    if stage == 3:
        update: Any = torch.optim.AdamW(groups, **options)
    else:
        cap = 1e-4 if keep else 1.0  # many buckets, or one for each group
        masters = {"master_dtype": torch.float32, "bucket_cap_mb": cap}
        update = {1: Zero1, 2: Zero2}[stage](groups, torch.optim.AdamW, **masters, **options)
    checkpoints = Checkpoints(folder, model, update)
    begin = checkpoints.resume()
    for step in range(begin, begin + steps):
        data = torch.Generator().manual_seed(100 * step + dist.get_rank())
        x = torch.randn(3, WIDTH, generator=data).to(inner.first.weight.dtype)
        model(x).float().square().mean().backward()
        update.step()
        update.zero_grad()
    if steps:
        checkpoints.save(begin + steps)
    whole = model.full_state_dict(update) if stage == 3 else update.full_state_dict()
    of_optimizer = whole["optimizer"] if stage == 3 else whole
    sorted_groups = [dict(sorted(group.items())) for group in of_optimizer["param_groups"]]
    of_optimizer["param_groups"] = sorted_groups  # torch's load_state_dict changes their order
    return begin, [digest(whole), digest(inner.state_dict() if stage < 3 else {})]


@pytest.mark.parametrize(("ranks", "others"), [(4, 3), (2, 3), (3, 1)])
@pytest.mark.parametrize("stage", [1, 2, 3])
def test_every_stage_of_zero_loads_on_other_ranks(
    stage: int, ranks: int, others: int, tmp_path: Path
) -> None:
    """With tied, frozen and master weights, two groups, other buckets; Adam's state included."""
    saved = dtlab.launch(partial(uneven, str(tmp_path), stage, steps=3), world_size=ranks).values
    again = partial(uneven, str(tmp_path), stage, keep=False)
    loaded = dtlab.launch(again, world_size=others).values
    assert [begin for begin, _ in loaded] == [3] * others
    assert {str(whole) for _, whole in loaded} == {str(saved[0][1])}


@pytest.mark.parametrize(
    ("kind", "others", "name"),
    [("pipeline", 1, "model.0.weight"), ("alone", 3, "model.weight")],
)
def test_parameters_that_cannot_be_distinguished_are_refused(
    kind: str, others: int, name: str, tmp_path: Path
) -> None:
    def different(folder: str) -> None:
        model = nn.Linear(2, 2, bias=False)
        nn.init.constant_(model.weight, 10.0 * (1 + dist.get_rank()))
        Checkpoints(folder, model, torch.optim.SGD(model.parameters(), lr=0.1)).save(2)

    if kind == "alone":
        dtlab.launch(different, str(tmp_path), world_size=2)
    else:
        launch(tmp_path, kind, 2, steps=2, save=2)
    with pytest.raises(dtlab.RankError, match="(?s)hold different\\s+values under the name") as e:
        launch(tmp_path, kind, others, steps=2)
    assert name in str(e.value)


def test_two_experts_of_one_name_are_restored_unchanged(tmp_path: Path) -> None:
    """What torch.distributed.checkpoint loses: it keeps one of several tensors of one name."""

    def save_and_resume() -> list[float]:
        expert = nn.Linear(2, 2, bias=False)
        checkpoints = Checkpoints(tmp_path, expert, torch.optim.SGD(expert.parameters(), lr=0.1))
        nn.init.constant_(expert.weight, 10.0 * (1 + dist.get_rank()))
        checkpoints.save(1)
        nn.init.zeros_(expert.weight)
        checkpoints.resume()
        return expert.weight.flatten().tolist()

    assert dtlab.launch(save_and_resume, world_size=3).values == [
        [10.0] * 4,
        [20.0] * 4,
        [30.0] * 4,
    ]
