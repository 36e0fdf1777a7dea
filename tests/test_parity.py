"""Every engine of data parallelism and ZeRO trains as one process does, and as PyTorch's own."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from dtlab import collectives
from dtlab.parallel.data import DataParallel, NaiveDataParallel
from dtlab.parallel.gpt import ParallelGPT
from dtlab.parallel.mesh import make_mesh
from dtlab.parallel.zero import Zero1, Zero2
from dtlab.parallel.zero.fully_sharded import NaiveZero3, Zero3
from tests.marks import proof
from tests.parity import PROGRAMS, Engine, State, Stepped, assert_trains_alike

TINY = 0.0003  # MiB: some parameters a bucket
RINGS = {
    "all_gather": collectives.ring_all_gather,
    "reduce_scatter": collectives.ring_reduce_scatter,
}


# Engines -----------------------------------------------------------------------------------------


class Wrapped(Engine):
    """A module that averages gradients in backward."""

    def __init__(self, cls: Any, *args: Any, options: Any = None) -> None:
        self.cls, self.options = cls, options or {}
        super().__init__(*args)

    def wrap(self, group: Any) -> None:
        self.model = self.cls(self.module, **self.groups(group), **self.options)

    def groups(self, group: Any) -> dict[str, Any]:
        """How the group is passed."""
        return {"process_group" if self.cls is DistributedDataParallel else "group": group}

    def no_sync(self) -> AbstractContextManager[Any]:
        return self.model.no_sync()


class FullySharded(Wrapped):
    """Stage 3."""

    def clip(self, norm: float, kind: float) -> float:
        return float(self.model.clip_grad_norm_(norm, kind))

    def state(self) -> State:
        whole = self.model.full_state_dict()
        return {name: whole[name] for name in self.names}  # without buffers and second names


class Stepping(Engine):
    """An optimizer that reduces and steps shards."""

    def __init__(self, cls: Any, *args: Any, options: Any = None) -> None:
        self.cls, self.options = cls, {"bucket_cap_mb": TINY, **(options or {})}
        super().__init__(*args)

    def stepping(self, stepped: Stepped, group: Any) -> Any:
        return self.cls(self.params, stepped.cls, group, **stepped.arguments, **self.options)

    def no_sync(self) -> AbstractContextManager[Any]:
        return self.optimizer.no_sync()

    def state(self) -> State:
        self.optimizer.full_state_dict()  # which changes nothing
        return super().state()

    def clip(self, norm: float, kind: float) -> float:
        return float(self.optimizer.clip_grad_norm_(norm, kind))


class PyTorchsStage1(Wrapped):
    """DDP with `ZeroRedundancyOptimizer`."""

    def stepping(self, stepped: Stepped, group: Any) -> Any:
        from torch.distributed.optim import ZeroRedundancyOptimizer  # seconds, on every rank

        return ZeroRedundancyOptimizer(
            self.params, stepped.cls, process_group=group, **stepped.arguments
        )


def by(engine: Any, cls: Any, **options: Any) -> Any:
    """A function that makes this engine of a class; ranks get it by pickling."""
    return partial(engine, cls, options=options)


REPLICATED = {
    "naive": by(Wrapped, NaiveDataParallel),
    "one bucket": by(Wrapped, DataParallel),
    "many buckets": by(Wrapped, DataParallel, bucket_cap_mb=TINY),
    "by a ring": by(
        Wrapped, DataParallel, bucket_cap_mb=TINY, all_reduce=collectives.ring_all_reduce
    ),
}
STEPPED = {
    "stage 1": by(Stepping, Zero1),
    "stage 1, rings, large buckets": by(Stepping, Zero1, bucket_cap_mb=None, **RINGS),
    "stage 2": by(Stepping, Zero2),
    "stage 2, rings, large buckets": by(Stepping, Zero2, bucket_cap_mb=None, **RINGS),
}
SHARDED = {
    "stage 3, naive": by(FullySharded, NaiveZero3),
    "stage 3": by(FullySharded, Zero3),
    "stage 3 stays": by(FullySharded, Zero3, reshard_after_forward=False),
    "stage 3, root stays": by(FullySharded, Zero3, reshard_after_forward=None, prefetch=2),
    "stage 3, no prefetch": by(FullySharded, Zero3, prefetch=0),
    "stage 3, one block": by(FullySharded, Zero3, blocks=[]),
    "stage 3, layers": by(FullySharded, Zero3, blocks=nn.Linear),
    "stage 3, rings": by(FullySharded, Zero3, **RINGS),
}
ENGINES = REPLICATED | STEPPED | SHARDED
ORDINARY = ("mlp", "convolutional", "gpt", "tied", "frozen", "few", "branches", "shared")
RECOMPUTED = ("recomputing", "recomputing without a tie", "recomputing without a tie, reentrant")
IN_STEP = {"naive", *SHARDED} - {"stage 3, one block"}  # their ranks must call the same blocks
NOT_FOR = {
    *((name, "branches") for name in IN_STEP),
    ("stage 3, layers", "few"),
    ("stage 3, layers", "tied"),  # PyTorch's attention uses a Linear's weight without calling it
    *(("stage 3, naive", one) for one in ("frozen", "silent", "left by an error")),
}
MAIN = ("naive", "many buckets", "stage 1", "stage 2", "stage 3")
ALL = [*MAIN, *(proof(name) for name in ENGINES if name not in MAIN)]


def suiting(name: str, things: Iterable[str]) -> list[str]:
    """The models or programs that an engine can train."""
    return [one for one in things if (name, one) not in NOT_FOR]


class OnAMesh(Engine):
    """All kinds of parallelism at once."""

    def __init__(self, sizes: Any, options: Any, module: Any, stepped: Stepped, _: Any) -> None:
        self.mesh = make_mesh(**sizes)
        dtype = next(module.parameters()).dtype
        self.model = ParallelGPT(module.config, self.mesh, dtype=dtype, **options)
        self.model.load_full_state_dict(module.state_dict())
        self.optimizer = self.model.make_optimizer(stepped.cls, **stepped.arguments)

    def place(self, group: Any) -> int:
        return self.mesh.get_local_rank("data")

    def backward(self, inputs: Tensor, labels: Tensor, share: float) -> Tensor:
        return share * self.model.forward_backward(inputs, labels)

    def no_sync(self) -> AbstractContextManager[Any]:
        return self.model.no_sync()

    def clip(self, norm: float, kind: float) -> float:
        return float(self.model.clip_grad_norm_(norm))

    def state(self) -> State:
        whole = self.model.full_state_dict()
        del whole["head.weight"]  # one parameter under two names
        return whole


def meshes() -> Iterator[Any]:
    """Two to four ranks, with every ZeRO stage and schedule that fits them."""
    for data, pipeline, tensor in (
        (2, 1, 1), (1, 2, 1), (1, 1, 2), (1, 1, 3), (1, 1, 4), (2, 2, 1), (2, 1, 2), (1, 2, 2),
    ):  # fmt: skip
        sizes = {"data": data, "pipeline": pipeline, "tensor": tensor}
        options: list[dict[str, Any]] = [
            {"zero": zero, "sequence_parallel": tensor > 1 and zero % 2 == 0}
            for zero in range(4 if data > 1 else 1)
        ]
        if pipeline > 1:
            options += [
                {"schedule": "interleaved", "chunks": 2, "zero": data},
                {"schedule": "zb_h1", "zero": data},
                {"schedule": "gpipe", "zero": 3 * (data > 1)},
            ]
        elif data == 1:
            options += [{"sequence_parallel": False}]
        for each in options:
            name = ", ".join(f"{key} {value}" for key, value in {**sizes, **each}.items())
            yield pytest.param(sizes, each, id=name)


# Against one process -----------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("name", ALL)
def test_every_model_trains_as_in_one_process(name: str) -> None:
    assert_trains_alike(ENGINES[name], suiting(name, ORDINARY), optimizers=["SGD", "AdamW"])


@pytest.mark.slow
@pytest.mark.parametrize("name", ALL)
def test_every_program_ends_as_in_one_process(name: str) -> None:
    assert_trains_alike(ENGINES[name], programs=suiting(name, PROGRAMS))


@pytest.mark.slow
@pytest.mark.parametrize("name", ALL)
def test_recomputed_layers_count_once(name: str) -> None:
    reentrant = ["recomputing, reentrant"] if name in STEPPED else []
    assert_trains_alike(ENGINES[name], [*RECOMPUTED, *reentrant], ranks=2)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in ENGINES if name not in MAIN])
def test_other_ways_train_as_in_one_process(name: str) -> None:
    assert_trains_alike(ENGINES[name], programs=["steps", "microbatches"])


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [proof(1), 2, proof(4)])
@pytest.mark.parametrize("name", MAIN)
def test_on_other_numbers_of_ranks(name: str, ranks: int) -> None:
    models = suiting(name, ("mlp", "frozen", "few"))
    assert_trains_alike(ENGINES[name], models, optimizers=["Adam"], ranks=ranks)


@pytest.mark.slow
@pytest.mark.parametrize("name", MAIN[1:])
def test_within_a_group(name: str) -> None:
    assert_trains_alike(ENGINES[name], programs=["steps", "clipped"], ranks=4, members=[1, 3])


@pytest.mark.slow
@pytest.mark.parametrize("name", MAIN[1:])
def test_in_single_precision(name: str) -> None:
    models = ["mlp", "tied", *(["mixed"] if name not in SHARDED else [])]
    assert_trains_alike(ENGINES[name], models, optimizers=["Adam"], dtype=torch.float32)


def trains_on(sizes: dict[str, int], options: dict[str, Any], *programs: str) -> None:
    assert_trains_alike(
        partial(OnAMesh, sizes, {"microbatches": 2, **options}),
        ["gpt, 12 heads" if sizes["tensor"] == 3 else "gpt"],
        programs,
        ranks=math.prod(sizes.values()),
        replicas=sizes["data"],
    )


@pytest.mark.slow
@pytest.mark.parametrize(("sizes", "options"), list(meshes()))
def test_on_every_mesh(sizes: dict[str, int], options: dict[str, Any]) -> None:
    trains_on(sizes, options, "clipped")


@pytest.mark.slow
@pytest.mark.parametrize("zero", range(4))
def test_accumulation_and_a_schedule_on_a_mesh(zero: int) -> None:
    """Also the shared embedding adds up, whose two copies exchange gradients."""
    sizes = {"data": 2, "pipeline": 2, "tensor": 1}
    trains_on(sizes, {"zero": zero}, "microbatches", "silent", "scheduled")


@pytest.mark.slow
@pytest.mark.parametrize("zero", [0, *map(proof, (1, 2, 3))])
def test_on_a_mesh_of_eight_ranks(zero: int) -> None:
    sizes = {"data": 2, "pipeline": 2, "tensor": 2}
    trains_on(sizes, {"zero": zero, "sequence_parallel": True}, "clipped")


# Beside PyTorch's own ----------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("name", MAIN)
def test_as_pytorchs_own(name: str) -> None:
    ddp = by(Wrapped, DistributedDataParallel, find_unused_parameters=True)
    assert_trains_alike(ENGINES[name], suiting(name, ORDINARY), reference=ddp)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["stage 1", "stage 2"])
def test_as_pytorchs_stage_1(name: str) -> None:
    ddp = by(PyTorchsStage1, DistributedDataParallel)
    assert_trains_alike(ENGINES[name], ["mlp", "tied"], optimizers=["Adam"], reference=ddp)
