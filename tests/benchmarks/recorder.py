"""What watching and recording cost: one operation, and the step of a small GPT.

Launches take turns: unwatched, watched, and recorded (and watched). A step's figures are the
medians of the ratios in each turn. They swing, since two ranks that wait for each other are at
the scheduler's mercy; what an operation costs alone, on a single rank, is steady.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from tqdm import tqdm

import dtlab
from dtlab.ranks.protocol import TOUCH_WARNINGS

TURNS, STEPS = 6, 40
KINDS = ("alone", "watched", "recorded")
TOUCHES = 90  # asynchronous operations of one call whose tensors are watched (the first 100 are)
OPERATIONS = 2000  # in a loop, of which the fastest of 10 counts
ROUNDS = 5  # of launches of each kind, in turn, since a machine may be slow for seconds


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


def step_seconds(with_ddp: bool) -> tuple[float, int]:
    """Median seconds of a step, and how many operations it has.

    One all-reduce for each parameter: from DDP during backward, asynchronous, since a bucket as
    small as this holds only one; or by hand after it, blocking.
    """
    model = small_gpt()
    parameters = list(model.parameters())
    if with_ddp:
        model = DistributedDataParallel(model, bucket_cap_mb=1e-4)
    optimizer = torch.optim.AdamW(parameters, lr=1e-3, foreach=True)
    generator = torch.Generator().manual_seed(dist.get_rank())
    tokens = torch.randint(128, (2, 33), generator=generator)
    times = []
    for _ in range(STEPS):
        dist.barrier()
        start = time.perf_counter()
        optimizer.zero_grad()
        logits = model(tokens[:, :-1])
        nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten()).backward()
        if not with_ddp:
            for parameter in parameters:
                dist.all_reduce(parameter.grad, op=dist.ReduceOp.SUM)
        optimizer.step()
        times.append(time.perf_counter() - start)
    return statistics.median(times[STEPS // 4 :]), len(parameters)


def operation_seconds() -> float:
    """Seconds of one small all-reduce on a single rank: nothing but what it costs to call it."""
    tensor, times = torch.ones(4), []
    for _ in range(10):
        begun = time.perf_counter()
        for _ in range(OPERATIONS):
            dist.all_reduce(tensor)
        times.append((time.perf_counter() - begun) / OPERATIONS)
    return min(times)


def asynchronous_seconds() -> float:
    """Seconds of one small asynchronous all-reduce and its wait, of the first in a launch."""
    tensors = [torch.ones(4) for _ in range(TOUCHES)]
    begun = time.perf_counter()
    for tensor in tensors:
        work = dist.all_reduce(tensor, async_op=True)
        assert work is not None
        work.wait()
    return (time.perf_counter() - begun) / TOUCHES


def touch_seconds() -> float:
    """Seconds that an asynchronous operation takes longer if its tensors are watched."""
    times: dict[str, list[float]] = {"0": [], "1": []}
    for _ in range(4 * ROUNDS):
        for switch, some in times.items():
            os.environ[TOUCH_WARNINGS] = switch
            some += dtlab.launch(asynchronous_seconds, world_size=1).values
    del os.environ[TOUCH_WARNINGS]
    return min(times["1"]) - min(times["0"])


def launched(kind: str, fn: Callable[..., Any], *args: Any, world_size: int) -> list[Any]:
    """What the ranks return in a launch that is unwatched, watched, or recorded."""
    if kind == "alone":
        os.environ["DTLAB_UNWATCHED"] = "1"
    try:
        recorded = kind == "recorded"
        run = dtlab.launch(fn, *args, world_size=world_size, trace=recorded, timeout=120.0)
    finally:
        os.environ.pop("DTLAB_UNWATCHED", None)
    return run.values


def turn(with_ddp: bool) -> dict[str, float]:
    """Step seconds of one launch of each kind; of the slower rank."""
    return {
        kind: max(value[0] for value in launched(kind, step_seconds, with_ddp, world_size=2))
        for kind in KINDS
    }


def main(turns: int = TURNS) -> None:
    """Print what an operation costs, and a line for each way to reduce gradients."""
    operations = len(list(small_gpt().parameters()))
    rounds = [
        {kind: launched(kind, operation_seconds, world_size=1)[0] for kind in KINDS}
        for _ in range(ROUNDS)
    ]
    cost = {kind: min(one[kind] for one in rounds) for kind in KINDS}
    extra = {kind: cost[kind] - cost["alone"] for kind in KINDS}
    share = {kind: 50 * seconds / 0.020 for kind, seconds in extra.items()}
    print(f"an all-reduce on a single rank takes {1e6 * cost['alone']:.1f} us alone")
    for kind, goal in (("watched", "1 %"), ("recorded", "2 %")):
        more = f"{1e6 * extra[kind]:.1f} us more"
        print(f"  {kind}: {more}, 50 of them {share[kind]:.1%} of a 20 ms step (goal {goal})")
    print(
        f"  watching for touches before the wait: {1e6 * touch_seconds():.1f} us more for each of "
        "the first 100 asynchronous operations of a call, nothing for blocking ones"
    )
    for name, with_ddp in (("by hand, blocking", False), ("by DDP, in the background", True)):
        turn(with_ddp)
        seen = [turn(with_ddp) for _ in tqdm(range(turns), desc=name, leave=False)]
        alone = statistics.median(one["alone"] for one in seen)
        watched = statistics.median(one["watched"] / one["alone"] for one in seen)
        recorded = statistics.median(one["recorded"] / one["alone"] for one in seen)
        print(
            f"{operations} all-reduces {name}, in a step of {1e3 * alone:.1f} ms: "
            f"watched {watched:.3f} (goal 1.01), watched and recorded {recorded:.3f} (goal 1.02)"
        )


if __name__ == "__main__":
    main()
