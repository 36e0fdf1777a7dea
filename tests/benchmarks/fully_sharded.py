"""`Zero3` against PyTorch's `fully_shard`: the same GPT, ranks and Adam, on gloo, in turns."""

from __future__ import annotations

import ctypes
import itertools
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

import dtlab
from dtlab.parallel.zero.fully_sharded import NaiveZero3, Zero3
from dtlab.training.models import GPT, GPTConfig
from tests.benchmarks.pairs import ratio, time_in_turns

CONFIG = GPTConfig(num_layers=6, width=192, context=32)
LARGE = GPTConfig(num_layers=8, width=512, context=32)
BATCH, WARM, STEPS = 2, 3, 21


def _fully_sharded(module: GPT) -> nn.Module:
    from torch.distributed.fsdp import fully_shard  # slow to import

    for block in module.blocks:
        fully_shard(block)
    return fully_shard(module)


def _alone(module: GPT) -> nn.Module:
    """Nothing is sent, and Adam updates only as many elements as a rank holds."""
    sizes = itertools.accumulate(one.numel() for one in module.parameters())
    share = sum(one.numel() for one in module.parameters()) / dist.get_world_size()
    own = [one for one, size in zip(module.parameters(), sizes, strict=True) if size <= share]
    module.own = own
    return module


WRAPS: dict[str, Callable[[GPT], Any]] = {
    "fully_shard": _fully_sharded,
    "Zero3": lambda module: Zero3(module, reshard_after_forward=None),  # as fully_shard has it
    "Zero3, all freed": Zero3,
    "naive": NaiveZero3,
    "alone": _alone,
}


def _stepper(name: str, config: GPTConfig) -> Callable[[Tensor], None]:
    model = WRAPS[name](GPT(config))
    optimizer = torch.optim.Adam(getattr(model, "own", None) or model.parameters())

    def step(tokens: Tensor) -> None:
        logits = model(tokens)
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), tokens.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return step


def in_turns(names: tuple[str, ...] = tuple(WRAPS)) -> dict[str, list[float]]:
    """Seconds of each step on the slowest rank, for each wrapper."""
    draw = torch.Generator().manual_seed(dist.get_rank())
    tokens = torch.randint(256, (BATCH, CONFIG.context), generator=draw)
    return time_in_turns(
        {name: partial(_stepper(name, CONFIG), tokens) for name in names}, STEPS, WARM
    )


def peak(name: str) -> int:
    """The most bytes in use in a step, beyond those before the model was made."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", lambda _: None)
    before = _status("VmRSS")
    step = _stepper(name, LARGE)
    tokens = torch.zeros(1, 8, dtype=torch.long)
    for _ in range(2):
        step(tokens)
    trim(0)
    Path("/proc/self/clear_refs").write_text("5")  # resets the peak
    for _ in range(3):
        step(tokens)
    return _status("VmHWM") - before


def on_the_wire(name: str) -> float:
    """Seconds of a step whose blocks take 10 ms forward and 20 ms backward, without a core."""
    gpt = GPT(GPTConfig(num_layers=4, width=128, context=32))
    for block in gpt.blocks:
        block.register_forward_hook(lambda *_: dtlab.compute(0.01))
        block.register_full_backward_hook(lambda *_: dtlab.compute(0.02))
    model = WRAPS[name](gpt)
    tokens = torch.zeros(BATCH, 32, dtype=torch.long)
    steps = {name: lambda: model(tokens).mean().backward()}
    return median(time_in_turns(steps, 6, warm=2)[name])


def _status(key: str) -> int:
    found = re.search(rf"{key}:\s*(\d+) kB", Path("/proc/self/status").read_text())
    return int(found[1]) * 1024 if found else 0


def main() -> None:
    """Print ratios."""
    print("fully sharded: a GPT of 2.7 million parameters and Adam, gloo")
    for ranks in (2, 4):
        run = dtlab.launch(in_turns, world_size=ranks, trace=False, timeout=300)
        times = run.values[0]
        theirs, alone = median(times["fully_shard"]), median(times["alone"])
        ratios = {name: ratio(each, times["fully_shard"]) for name, each in times.items()}
        print(
            f"  {ranks} ranks: fully_shard {theirs * 1e3:.1f} ms a step, {1 - alone / theirs:.0%} "
            f"of it communication; Zero3 {ratios['Zero3']:.2f} times that (goal 0.9), "
            f"{ratios['Zero3, all freed']:.2f} where the root is freed too; naive "
            f"{ratios['naive']:.2f}"
        )
    wire = dtlab.Cluster(gpus_per_node=2, intra=dtlab.Link(20e-6, 40e6))
    whole = {
        name: dtlab.launch(on_the_wire, name, world_size=2, cluster=wire, timeout=60).values[0]
        for name in ("fully_shard", "Zero3", "naive")
    }
    print(
        f"  a step on an emulated wire, 120 ms of it computation: fully_shard "
        f"{whole['fully_shard'] * 1e3:.0f} ms, Zero3 {whole['Zero3'] * 1e3:.0f} ms, naive "
        f"{whole['naive'] * 1e3:.0f} ms"
    )
    most = {
        name: max(dtlab.launch(peak, name, world_size=2, trace=False, timeout=120).values)
        for name in ("fully_shard", "Zero3", "naive")
    }
    print(
        f"  peak of a model of 25 million parameters on 2 ranks: fully_shard "
        f"{most['fully_shard'] / 1e6:.0f} MB, Zero3 {most['Zero3'] / 1e6:.0f} MB (goal: at most "
        f"fully_shard's), naive {most['naive'] / 1e6:.0f} MB"
    )


if __name__ == "__main__":
    main()
