"""`ParallelBlock` against `parallelize_module` with DTensor: the same block, in turns."""

from __future__ import annotations

from functools import partial
from statistics import median
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

import dtlab
from dtlab.parallel.tensor import ParallelBlock
from dtlab.training.models import Block, GPTConfig
from tests.benchmarks.pairs import ratio, time_in_turns

BATCH, WARM, STEPS, RANKS = 4, 5, 31, 2
CONFIG = GPTConfig(context=64, num_heads=8, width=256)


class Attention(nn.Module):
    """The attention of `training.models` with a layer each for q, k and v, as DTensor needs it."""

    def __init__(self, width: int, head_size: int) -> None:
        super().__init__()
        self.head_size = head_size
        self.q, self.k, self.v, self.projection = (nn.Linear(width, width) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        heads = (
            part(x).unflatten(-1, (-1, self.head_size)).transpose(1, 2)
            for part in (self.q, self.k, self.v)
        )
        gathered = F.scaled_dot_product_attention(*heads, is_causal=True)
        return self.projection(gathered.transpose(1, 2).flatten(2))


def _pytorchs(dense: Block) -> nn.Module:
    """The input becomes a DTensor once for q, k and v, so one all-reduce sums their gradients."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        PrepareModuleInput,
        RowwiseParallel,
        parallelize_module,
    )

    width = dense.attention.projection.out_features
    own = dense.attention
    attention = Attention(width, width // own.num_heads)
    weights, biases = (one.chunk(3) for one in own.queries_keys_values.parameters())
    with torch.no_grad():
        for layer, weight, bias in zip(
            (attention.q, attention.k, attention.v), weights, biases, strict=True
        ):
            layer.weight.copy_(weight)
            layer.bias.copy_(bias)
    attention.projection = own.projection
    dense.attention = attention  # type: ignore[assignment]
    once = PrepareModuleInput(input_layouts=Replicate(), desired_input_layouts=Replicate())
    column = {f"attention.{name}": ColwiseParallel() for name in "qkv"}
    plan: dict[str, Any] = {
        "attention": once, **column, "attention.projection": RowwiseParallel(),
        "mlp.0": ColwiseParallel(), "mlp.2": RowwiseParallel(),
    }  # fmt: skip
    return parallelize_module(dense, init_device_mesh("cpu", (dist.get_world_size(),)), plan)


def _made(width: int) -> dict[str, nn.Module]:
    config = GPTConfig(context=CONFIG.context, num_heads=CONFIG.num_heads, width=width)
    torch.manual_seed(0)
    dense = Block(config)
    return {
        "ours": ParallelBlock.from_dense(dense),
        "in sequence": ParallelBlock.from_dense(dense, sequence_parallel=True),
        "PyTorch": _pytorchs(dense),
    }


def _step(block: nn.Module, x: Tensor) -> Tensor:
    """Forward and backward, the input's gradient too, as in the middle of a model."""
    block.zero_grad()
    x.grad = None
    y: Tensor = block(x.requires_grad_())
    y.backward(torch.ones_like(y))
    return y


def in_turns(width: int, steps: int) -> dict[str, list[float]]:
    """Seconds of each step on the slowest rank, and of its four all-reduces alone."""
    blocks, rank = _made(width), dist.get_rank()
    x = torch.randn(BATCH, CONFIG.context, width, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(_step(blocks["ours"], x), _step(blocks["PyTorch"], x))
    inputs = {name: x.clone() for name in blocks}
    inputs["in sequence"] = x.chunk(RANKS, 1)[rank].contiguous()

    def all_reduces() -> None:
        for _ in range(4):
            dist.all_reduce(x.detach())

    steppers = {name: partial(_step, block, inputs[name]) for name, block in blocks.items()}
    return time_in_turns({**steppers, "all-reduces": all_reduces}, steps, WARM)


def _print(name: str, width: int, steps: int, cluster: Any = None) -> float:
    """A line of ratios; seconds of the peer's step."""
    times = dtlab.launch(
        in_turns, width, steps, world_size=RANKS, trace=False, timeout=300, threads=1,
        cluster=cluster,
    ).values[0]  # fmt: skip
    peer = times["PyTorch"]
    ratios = {name: ratio(each, peer) for name, each in times.items()}
    print(
        f"  {name}, width {width}: parallelize_module {median(peer) * 1e3:.1f} ms, its four "
        f"all-reduces alone {ratios['all-reduces']:.0%} of that; ours {ratios['ours']:.2f} times "
        f"that (goal 0.8), with sequence parallelism {ratios['in sequence']:.2f}"
    )
    return median(peer)


def main(steps: int = STEPS) -> None:
    """Print ratios: over loopback, and over an emulated link that takes a third of the step."""
    print(f"Tensor parallelism: a block, {BATCH} x {CONFIG.context} tokens, {RANKS} ranks, gloo")
    for width in (128, 256):
        seconds = _print("loopback", width, steps)
        sent = 4 * 4 * BATCH * CONFIG.context * width  # bytes: four all-reduces on two ranks
        link = dtlab.Link(1e-5, sent / (0.7 * seconds))
        _print("emulated link", width, steps, dtlab.Cluster(1, RANKS, intra=link))


if __name__ == "__main__":
    main()
