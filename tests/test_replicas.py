"""`assert_replicas_equal`: parameters, buffers, and the shards of DTensors."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh

import dtlab
from dtlab.parallel.data import assert_replicas_equal
from tests.staying import on_ranks

pytestmark = pytest.mark.slow


def message(module: nn.Module, **arguments: bool) -> str:
    """What the comparison says on this rank; empty if the replicas are equal."""
    try:
        assert_replicas_equal(module, **arguments)
    except dtlab.DtlabError as error:
        return str(error)
    return ""


def layers() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 4))


class Scaled(nn.Module):
    """A layer with a buffer that every rank must have alike."""

    def __init__(self, scale: float) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 2)
        nn.init.ones_(self.layer.weight)
        nn.init.zeros_(self.layer.bias)
        self.register_buffer("scale", torch.full((3,), scale))


def of_a_buffer() -> list[str]:
    module = Scaled(1.0 + dist.get_rank() / 2)
    return [message(module), message(module, buffers=False), message(Scaled(1.0))]


def test_buffers_are_compared() -> None:
    for buffer, without, equal in on_ranks(of_a_buffer, world_size=3).values:
        assert "scale: ranks 1, 2 differ from rank 0, by at most 1" in buffer
        assert "the replicas differ in 1 of 3 tensors" in buffer
        assert without == equal == ""


def of_batch_statistics() -> list[str]:
    module = layers()
    module(torch.randn(6, 4, generator=torch.Generator().manual_seed(dist.get_rank())))
    in_training = message(module)
    everything = message(module, buffers=True)
    return [in_training, everything, message(module.eval())]


def test_the_running_statistics_of_a_training_batchnorm_follow_each_ranks_batch() -> None:
    for in_training, everything, after in on_ranks(of_batch_statistics, world_size=2).values:
        assert in_training == ""
        assert "1.running_mean: rank 1 differs from rank 0" in everything
        assert "1.running_var: rank 1 differs from rank 0" in after


def sharded(shape: tuple[int, ...], spoil: Callable[[nn.Module], None] | None = None) -> str:
    from torch.distributed.fsdp import fully_shard

    names = ("replicate", "shard")[-len(shape) :]
    module = layers()
    fully_shard(module, mesh=init_device_mesh("cpu", shape, mesh_dim_names=names))
    if spoil is not None:
        spoil(module)
    return message(module)


def spoil_rank_3(module: nn.Module) -> None:
    if dist.get_rank() == 3:
        with torch.no_grad():
            module[2].bias.to_local().add_(0.25)  # type: ignore[index]


def spoil_a_buffer(module: nn.Module) -> None:
    module[1].num_batches_tracked += dist.get_rank()  # type: ignore[index]


def test_shards_of_one_replica_may_differ() -> None:
    assert dtlab.launch(sharded, (3,), world_size=3).values == [""] * 3
    assert dtlab.launch(sharded, (2, 2), world_size=4).values == [""] * 4


def test_shards_are_compared_over_the_replicas() -> None:
    for text in dtlab.launch(sharded, (2, 2), spoil_rank_3, world_size=4).values:
        assert "2.bias: rank 3 differs from rank 1, by at most 0.25" in text
        assert "differ in 1 of" in text


def test_buffers_of_a_sharded_module_are_compared() -> None:
    for text in dtlab.launch(sharded, (2,), spoil_a_buffer, world_size=2).values:
        assert "1.num_batches_tracked: rank 1 differs from rank 0, by at most 1" in text


def of_dtensors() -> list[str]:
    from torch.distributed.tensor import DTensor, Replicate

    mesh = init_device_mesh("cpu", (2,))
    module = nn.Module()
    texts = []
    for values in (torch.ones(3), torch.ones(3) + dist.get_rank()):
        whole = DTensor.from_local(values, mesh, [Replicate()], run_check=False)
        module.weight = nn.Parameter(whole)
        texts.append(message(module))
    return texts


def test_replicated_dtensors_must_be_equal() -> None:
    for equal, other in dtlab.launch(of_dtensors, world_size=2).values:
        assert equal == ""
        assert "weight: rank 1 differs from rank 0, by at most 1" in other


def with_another_layer() -> str:
    module = layers()
    if dist.get_rank():
        module.append(nn.Linear(4, 2))
    return message(module)


def test_a_tensor_that_a_rank_lacks() -> None:
    for text in on_ranks(with_another_layer, world_size=2).values:
        assert "3.weight: rank 1 has another shape than rank 0, or no such tensor" in text
