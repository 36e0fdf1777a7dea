"""`DataParallel` against PyTorch's DDP: the same GPT and data, on gloo ranks, in turns."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from statistics import median
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from tqdm import tqdm

import dtlab
from dtlab.parallel.data import DataParallel, NaiveDataParallel
from dtlab.training.models import GPT, GPTConfig
from tests.benchmarks.pairs import ratio, time_in_turns

CONFIG = GPTConfig(num_layers=4, width=128, context=32)
BATCH, WARM, STEPS = 2, 5, 20
LAUNCHES = 7  # which differ more than steps of one do
WIRE_STEPS = 40
CAP = 0.5  # MiB: several buckets of a model of 3.5 MB
WRAPS: dict[str, Callable[[nn.Module], Any]] = {
    "DDP": lambda module: DistributedDataParallel(module, bucket_cap_mb=CAP),
    "DataParallel": lambda module: DataParallel(module, bucket_cap_mb=CAP),
    "naive": NaiveDataParallel,
}
OVERLAPPING = ("DDP", "DataParallel")


def _step(model: nn.Module, tokens: Tensor) -> None:
    logits = model(tokens)
    loss = nn.functional.cross_entropy(logits.flatten(0, 1), tokens.flatten())
    model.zero_grad()
    loss.backward()


def in_turns() -> dict[str, list[float]]:
    """Seconds of each step on the slowest rank, for each wrapper and for DDP without messages."""
    models = {name: wrap(GPT(CONFIG)) for name, wrap in WRAPS.items()}
    draw = torch.Generator().manual_seed(dist.get_rank())
    tokens = torch.randint(256, (BATCH, CONFIG.context), generator=draw)

    def alone() -> None:
        with models["DDP"].no_sync():
            _step(models["DDP"], tokens)

    steps = {name: partial(_step, model, tokens) for name, model in models.items()}
    return time_in_turns({**steps, "alone": alone}, STEPS, WARM)


def held(name: str) -> int:
    """Bytes in use after two steps, beyond those before the model was made."""
    import psutil

    before = psutil.Process().memory_info().rss
    model = WRAPS[name](GPT(GPTConfig(num_layers=8, width=512, context=32)))
    for _ in range(3):
        _step(model, torch.zeros(1, 8, dtype=torch.long))
    return int(psutil.Process().memory_info().rss - before)


def on_the_wire() -> None:
    """Steps whose backward takes 20 ms a block, without a core; every other one sends nothing."""
    models = {name: WRAPS[name](_slow_gpt()) for name in OVERLAPPING}
    tokens = torch.zeros(BATCH, CONFIG.context, dtype=torch.long)
    for number in range(WARM + WIRE_STEPS):
        for name, model in models.items():
            for silent in (False, True):
                dist.barrier()
                quiet = model.no_sync() if silent else nullcontext()
                with quiet, dtlab.span("step", wrap=name, silent=silent, counts=number >= WARM):
                    _step(model, tokens)


def exposed_on_the_wire(trace: dtlab.Trace, rank: int) -> dict[str, float]:
    """Median seconds that a step takes after its last block, beyond a step that sends nothing.

    Until then backward computes. (DDP waits in C++, which the trace does not see.)
    """
    mine = [event for event in trace.events if event.rank == rank]
    computed = [event.end for event in mine if event.name == "compute"]
    after: dict[tuple[str, bool], list[float]] = {}
    for step in mine:
        if step.name == "step" and step.extra["counts"]:
            last = max(end for end in computed if end <= step.end)
            kind = step.extra["wrap"], step.extra["silent"]
            after.setdefault(kind, []).append(step.end - last)
    pairs = {name: zip(after[name, False], after[name, True], strict=True) for name in OVERLAPPING}
    return {name: median(talks - silent for talks, silent in both) for name, both in pairs.items()}


def _slow_gpt() -> nn.Module:
    gpt = GPT(CONFIG)
    for block in gpt.blocks:
        block.register_full_backward_hook(lambda *_: dtlab.compute(0.02))
    return gpt


def main() -> None:
    """Print ratios. The watcher is off, as in the other benchmarks."""
    os.environ["DTLAB_UNWATCHED"] = "1"
    print("data parallelism: a GPT of 0.9 million parameters, gloo")
    for ranks in (2, 4):
        launches = tqdm(range(LAUNCHES), desc=f"{ranks} ranks", leave=False)
        options: dict[str, Any] = {"world_size": ranks, "trace": False, "timeout": 300}
        seen = [dtlab.launch(in_turns, **options).values[0] for _ in launches]
        ours = median(ratio(one["DataParallel"], one["DDP"]) for one in seen)
        ddp, alone, naive = (
            median(median(one[name]) for one in seen) for name in ("DDP", "alone", "naive")
        )
        print(
            f"  {ranks} ranks: DDP {ddp * 1e3:.1f} ms a step, {1 - alone / ddp:.0%} of it "
            f"communication; DataParallel {ours:.2f} times that (goal 1.0); naive "
            f"{naive / ddp:.2f}"
        )
    wire = dtlab.Cluster(gpus_per_node=2, intra=dtlab.Link(20e-6, 100e6))
    trace = dtlab.launch(on_the_wire, world_size=2, cluster=wire, timeout=120).trace
    ranks_see = [exposed_on_the_wire(trace, rank) for rank in range(2)]
    exposed = {name: 1e3 * max(one[name] for one in ranks_see) for name in OVERLAPPING}
    print(
        f"  exposed in a step on an emulated wire: DDP {exposed['DDP']:.1f} ms, "
        f"DataParallel {exposed['DataParallel']:.1f} ms (goal: at most DDP's)"
    )
    taken = {name: max(dtlab.launch(held, name, world_size=2).values) for name in WRAPS}
    print(
        f"  memory of a model of 25 million parameters: DDP {taken['DDP'] / 1e6:.0f} MB, "
        f"DataParallel {taken['DataParallel'] / 1e6:.0f} MB (goal: at most DDP's)"
    )


if __name__ == "__main__":
    main()
