"""`ParallelGPT` against the same composition in PyTorch (FSDP2, DTensor), in turns."""

from __future__ import annotations

from statistics import median
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

import dtlab
from dtlab.parallel.gpt import ParallelGPT
from dtlab.parallel.mesh import make_mesh
from dtlab.training.models import GPT, GPTConfig
from tests.benchmarks.pairs import ratio, time_in_turns
from tests.benchmarks.tensor import Attention

CONFIG = GPTConfig(vocab_size=512, context=64, num_layers=4, num_heads=8, width=256)
BATCH, WARM, STEPS, SIZES = 8, 3, 15, {"data": 2, "pipeline": 1, "tensor": 2}


def pytorchs(config: GPTConfig, mesh: Any) -> GPT:
    """The dense GPT, each block cut over the tensor axis and sharded over the data axis."""
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import Replicate
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        PrepareModuleInput,
        RowwiseParallel,
        parallelize_module,
    )

    model = GPT(config)
    once = PrepareModuleInput(input_layouts=Replicate(), desired_input_layouts=Replicate())
    for block in model.blocks:
        dense: Any = block.attention
        attention = Attention(config.width, config.width // config.num_heads)
        weights, biases = (one.chunk(3) for one in dense.queries_keys_values.parameters())
        with torch.no_grad():
            for layer, weight, bias in zip(
                (attention.q, attention.k, attention.v), weights, biases, strict=True
            ):
                layer.weight.copy_(weight)
                layer.bias.copy_(bias)
        attention.projection = dense.projection
        block.attention = attention
        plan: dict[str, Any] = {
            "attention": once, "attention.projection": RowwiseParallel(),
            **{f"attention.{name}": ColwiseParallel() for name in "qkv"},
            "mlp.0": ColwiseParallel(), "mlp.2": RowwiseParallel(),
        }  # fmt: skip
        parallelize_module(block, mesh["tensor"], plan)
    parallelize_module(model, mesh["tensor"], {
        "token_embedding": RowwiseParallel(input_layouts=Replicate()),
        "head": ColwiseParallel(output_layouts=Replicate()),
    })  # fmt: skip
    model.head.weight = model.token_embedding.weight
    for block in model.blocks:
        fully_shard(block, mesh=mesh["data"])
    return fully_shard(model, mesh=mesh["data"])


def batch_of(config: GPTConfig, mesh: Any) -> tuple[Tensor, Tensor]:
    """This data rank's tokens and targets."""
    draw = torch.Generator().manual_seed(0)
    tokens = torch.randint(0, config.vocab_size, (BATCH, config.context + 1), generator=draw)
    mine = tokens.chunk(SIZES["data"])[mesh.get_local_rank("data")]
    return mine[:, :-1].contiguous(), mine[:, 1:].contiguous()


def in_turns(steps: int) -> dict[str, list[float]]:
    """Seconds of each step on the slowest rank; both have the same losses."""
    mesh = make_mesh(**SIZES)
    tokens, targets = batch_of(CONFIG, mesh)
    ours, theirs = ParallelGPT(CONFIG, mesh, zero=3), pytorchs(CONFIG, mesh)
    optimizers: list[Any] = [
        ours.make_optimizer(torch.optim.SGD, lr=0.1),
        torch.optim.SGD(theirs.parameters(), lr=0.1),
    ]

    losses: dict[str, list[float]] = {"ours": [], "PyTorch": []}

    def our_step() -> None:
        loss = ours.forward_backward(tokens, targets)
        optimizers[0].step()
        optimizers[0].zero_grad()
        losses["ours"].append(float(loss))

    def their_step() -> None:
        loss = F.cross_entropy(theirs(tokens).flatten(0, 1), targets.flatten())
        loss.backward()  # type: ignore[no-untyped-call]
        optimizers[1].step()
        optimizers[1].zero_grad()
        mean = loss.detach().clone()
        dist.all_reduce(mean, group=mesh.get_group("data"))
        losses["PyTorch"].append(float(mean) / SIZES["data"])

    times = time_in_turns({"ours": our_step, "PyTorch": their_step}, steps, WARM)
    torch.testing.assert_close(losses["ours"], losses["PyTorch"], rtol=1e-4, atol=0)
    return times


def main(steps: int = STEPS) -> None:
    """Print the ratio."""
    times = dtlab.launch(
        in_turns, steps, world_size=4, trace=False, timeout=300, threads=1, backend="gloo"
    ).values[0]
    print(
        f"ParallelGPT, {CONFIG.num_layers} blocks of width {CONFIG.width}, tensor 2 x data 2, "
        f"4 ranks, gloo: FSDP2 with DTensor {1e3 * median(times['PyTorch']):.0f} ms a step; "
        f"ours {ratio(times['ours'], times['PyTorch']):.2f} times that (goal 1.0)"
    )


if __name__ == "__main__":
    main()
