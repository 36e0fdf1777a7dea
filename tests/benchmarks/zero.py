"""`Zero2` against DDP with ZeroRedundancyOptimizer: the same GPT and data, gloo, in turns."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import partial
from statistics import median
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import dtlab
from dtlab.parallel.zero import Zero1, Zero2
from dtlab.training.models import GPT, GPTConfig
from tests.benchmarks.pairs import ratio, time_in_turns

CONFIG = GPTConfig(num_layers=4, width=128, context=32)
LARGE = GPTConfig(num_layers=8, width=512, context=32)
BATCH, WARM, STEPS = 2, 5, 41
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # of glibc's malloc.h
CAP = 0.5  # MiB: several buckets of a model of 3.5 MB
Pair = tuple[nn.Module, Any]


def _pytorchs(gpt: GPT, cap: float | None) -> Pair:
    from torch.distributed.optim import ZeroRedundancyOptimizer

    model = DistributedDataParallel(gpt, bucket_cap_mb=cap, gradient_as_bucket_view=True)
    return model, ZeroRedundancyOptimizer(
        gpt.parameters(), torch.optim.Adam, parameters_as_bucket_view=True, lr=1e-3
    )


def _ours(stage: type[Zero1]) -> Callable[[GPT, float | None], Pair]:
    return lambda gpt, cap: (
        gpt,
        stage(gpt.parameters(), torch.optim.Adam, lr=1e-3, bucket_cap_mb=cap),
    )


PAIRS: dict[str, Callable[[GPT, float | None], Pair]] = {
    "DDP": _pytorchs, "Zero2": _ours(Zero2), "Zero1": _ours(Zero1),
}  # fmt: skip


def _step(model: nn.Module, optimizer: Any, tokens: Tensor) -> None:
    logits = model(tokens)
    nn.functional.cross_entropy(logits.flatten(0, 1), tokens.flatten()).backward()
    optimizer.step()
    optimizer.zero_grad()


def in_turns(steps: int) -> dict[str, list[float]]:
    """Seconds of each step on the slowest rank."""
    made = {name: make(GPT(CONFIG), CAP) for name, make in PAIRS.items()}
    draw = torch.Generator().manual_seed(dist.get_rank())
    tokens = torch.randint(256, (BATCH, CONFIG.context), generator=draw)
    return time_in_turns(
        {name: partial(_step, *pair, tokens) for name, pair in made.items()}, steps, WARM
    )


def peak(name: str, gives_back: bool) -> int:
    """Most bytes in use, beyond those before the model was made, as the kernel counts.

    `gives_back`: malloc returns freed memory at once, so this was in use. Otherwise malloc keeps
    some, and more of it where many tensors come and go.
    """
    if gives_back:
        for which in (M_MMAP_THRESHOLD, M_TRIM_THRESHOLD):
            ctypes.CDLL(None).mallopt(which, 2**17)
    for each in PAIRS.values():  # imports must not count for either
        each(GPT(GPTConfig(num_layers=1, width=4)), None)
    before = _memory("VmRSS")
    pair = PAIRS[name](GPT(LARGE), None)
    for _ in range(3):
        _step(*pair, torch.zeros(1, 8, dtype=torch.long))
    return _memory("VmHWM") - before


def _memory(field: str) -> int:
    with open("/proc/self/status") as status:
        line = next(row for row in status if row.startswith(field))
    return int(line.split()[1]) * 1024


def main(steps: int = STEPS) -> None:
    """Print ratios."""
    print("ZeRO stages 1 and 2: a GPT of 0.9 million parameters, Adam, gloo")
    for ranks in (2, 4):
        run = dtlab.launch(in_turns, steps, world_size=ranks, trace=False, timeout=300)
        times = run.values[0]
        ratios = {name: ratio(each, times["DDP"]) for name, each in times.items()}
        print(
            f"  {ranks} ranks: DDP and ZeroRedundancyOptimizer "
            f"{median(times['DDP']) * 1e3:.1f} ms a step; Zero2 {ratios['Zero2']:.2f} times "
            f"that (goal 1.0), Zero1 {ratios['Zero1']:.2f}"
        )
    for gives_back in (True, False):
        most = {
            name: max(dtlab.launch(peak, name, gives_back, world_size=2, timeout=120).values) / 1e6
            for name in PAIRS
        }
        print(
            f"  peak of a model of 25 million parameters on 2 ranks, "
            f"{'in use' if gives_back else 'with what malloc keeps'}: DDP {most['DDP']:.0f} MB, "
            f"Zero2 {most['Zero2']:.0f} MB (goal: at most DDP's), Zero1 {most['Zero1']:.0f} MB"
        )


if __name__ == "__main__":
    main()
