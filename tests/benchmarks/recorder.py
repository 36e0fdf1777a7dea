"""What recording costs: the step of a small GPT under DDP, with and without, in the same ranks.

Run as `python tests/benchmarks/recorder.py`. Blocks of steps come in pairs, one recorded and one
not, in alternating order; the figure is the median of their ratios.
"""

from __future__ import annotations

import statistics
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import dtlab
from dtlab.ranks.recorder import Recorder

PAIRS, STEPS = 40, 5


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        q, k, v = (
            part.view(batch, length, self.heads, -1).transpose(1, 2)
            for part in self.qkv(self.norm1(x)).chunk(3, dim=-1)
        )
        mixed = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        return x + self.mlp(self.norm2(x))


def small_gpt(vocabulary: int = 128, width: int = 96, layers: int = 4) -> nn.Module:
    return nn.Sequential(
        nn.Embedding(vocabulary, width),
        *(Block(width, heads=4) for _ in range(layers)),
        nn.LayerNorm(width),
        nn.Linear(width, vocabulary),
    )


def measure(pairs: int, with_ddp: bool) -> tuple[float, float, int]:
    """Median ratio recorded to plain, median seconds of a plain step, operations in a step.

    One all-reduce for each parameter: from DDP during backward, asynchronous, since a bucket as
    small as this holds only one; or by hand after it, blocking.
    """
    rank = dist.get_rank()
    model = small_gpt()
    if with_ddp:
        model = DistributedDataParallel(model, bucket_cap_mb=1e-4)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=True)
    generator = torch.Generator().manual_seed(rank)
    tokens = torch.randint(128, (2, 33), generator=generator)

    def step() -> float:
        dist.barrier()
        start = time.perf_counter()
        optimizer.zero_grad()
        logits = model(tokens[:, :-1])
        nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten()).backward()
        if not with_ddp:
            for parameter in model.parameters():
                dist.all_reduce(parameter.grad, op=dist.ReduceOp.SUM)
        optimizer.step()
        return time.perf_counter() - start

    def block(recorder: Recorder | None) -> float:
        """Median of five steps, after one that is slower because things have just changed."""
        nonlocal operations
        if recorder:
            recorder.start()
        seconds = [step() for _ in range(1 + STEPS)][1:]
        if recorder:  # the barriers are not the step's
            operations = len(recorder.stop().comm) // (1 + STEPS) - 1
        return statistics.median(seconds)

    operations, ratios, plains = 0, [], []
    for pair in range(-2, pairs):
        recorders = (None, Recorder(rank)) if pair % 2 else (Recorder(rank), None)
        seconds = {recorder is None: block(recorder) for recorder in recorders}
        if pair >= 0:  # the first ones warm up
            ratios.append(seconds[False] / seconds[True])
            plains.append(seconds[True])
    return statistics.median(ratios), statistics.median(plains), operations


def main(pairs: int = PAIRS) -> None:
    """Print a line for each way to reduce gradients."""
    for name, with_ddp in (("by hand", False), ("under DDP", True)):
        run = dtlab.launch(measure, pairs, with_ddp, world_size=2, trace=False, timeout=600.0)
        ratio, seconds, operations = run.values[0]
        print(
            f"recorder: a {1e3 * seconds:.1f} ms step of {operations} operations {name} takes"
            f" {ratio:.3f} times as long recorded (goal: under 1.02; median of {pairs} pairs)"
        )


if __name__ == "__main__":
    main()
