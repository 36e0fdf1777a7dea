"""Pipelines against `torch.distributed.pipelining`, in turns; bubbles measured and simulated."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from statistics import median
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

import dtlab
from dtlab.parallel.pipeline import PipelineStage, StandIn, run_schedule
from dtlab.parallel.pipeline.split_backward import NaiveHalves
from dtlab.predict import Costs, bubble, simulate
from dtlab.schedules import (
    Schedule,
    gpipe,
    interleaved,
    naive,
    one_f_one_b,
    stage_ranks,
    zb_h1,
    zb_h2,
)
from tests.benchmarks.pairs import ratio, time_in_turns

RANKS, MICROBATCHES, CHUNKS = 4, 8, 2
WIDTH, SAMPLES = 64, 256  # messages of 64 kB
WARM, STEPS = 3, 25
UNIT = 0.02  # seconds of F, I and W of a stand-in
SPANS = ("forward", "backward", "backward_input", "backward_weight")
Step = Callable[[Tensor], None]


def _layer(stage: int) -> nn.Module:
    torch.manual_seed(stage)
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU())


def _ours(schedule: Schedule, **options: Any) -> Step:
    own = sorted({action.stage for action in schedule[dist.get_rank()]})
    stages = [PipelineStage(_layer(stage), stage) for stage in own]
    return lambda batch: _done(run_schedule(schedule, stages, batch, batch, F.mse_loss, **options))


def _pytorchs(schedule: Schedule) -> Step:
    """The library's own class for this order."""
    from torch.distributed import pipelining  # slow to import

    own = sorted({action.stage for action in schedule[dist.get_rank()]})
    count = len(stage_ranks(schedule))
    stages = [
        pipelining.PipelineStage(_layer(stage), stage, count, torch.device("cpu")) for stage in own
    ]
    peer: Any
    if len(stages) == 1:
        peer = pipelining.Schedule1F1B(stages[0], MICROBATCHES, loss_fn=F.mse_loss)
    else:
        peer = pipelining.ScheduleInterleaved1F1B(stages, MICROBATCHES, loss_fn=F.mse_loss)

    def step(batch: Tensor) -> None:
        inputs = [batch] if 0 in own else []
        if count - 1 in own:
            peer.step(*inputs, target=batch, losses=[])
        else:
            peer.step(*inputs)

    return step


def _alone(schedule: Schedule) -> Step:
    """A step with the same computation on each rank, and no messages."""
    own = sorted({action.stage for action in schedule[dist.get_rank()]})
    layers = {stage: _layer(stage) for stage in own}

    def step(batch: Tensor) -> None:
        for part in batch.chunk(MICROBATCHES):
            for layer in layers.values():
                F.mse_loss(layer(part.detach().requires_grad_()), part).backward()

    return step


def _done(_: object) -> None:
    return None


def in_turns(schedule: Schedule, peer: bool) -> dict[str, list[float]]:
    """Seconds of each step on the slowest rank."""
    steps = {"ours": _ours(schedule), "alone": _alone(schedule)}
    steps |= {"theirs": _pytorchs(schedule)} if peer else {}
    steps |= {} if peer else {"naive": _ours(schedule, halves=NaiveHalves)}
    batch = torch.randn(MICROBATCHES * SAMPLES, WIDTH)
    return time_in_turns({name: partial(step, batch) for name, step in steps.items()}, STEPS, WARM)


def stand_in(schedule: Schedule) -> None:
    """Two steps in which every action takes its time and no core."""
    own = sorted({action.stage for action in schedule[dist.get_rank()]})
    stages = [PipelineStage(StandIn(UNIT, UNIT, UNIT, dtlab.compute), stage) for stage in own]
    for _ in range(2):
        dist.barrier()
        run_schedule(schedule, stages, *[torch.ones(MICROBATCHES, 4)] * 2, F.mse_loss)


def last_step(trace: dtlab.Trace, schedule: Schedule) -> dtlab.Trace:
    """The spans of the last step."""
    events = []
    for rank, row in enumerate(schedule):
        own = [one for one in trace.events if one.rank == rank and one.name in SPANS]
        events += own[-len(row) :]
    return dtlab.Trace(events)


def bubbles() -> dict[str, tuple[float, float]]:
    """Measured and simulated, of the total."""
    made = {make.__name__: make(RANKS, MICROBATCHES) for make in (naive, gpipe, one_f_one_b)}
    made["interleaved"] = interleaved(RANKS, MICROBATCHES, CHUNKS)
    made |= {make.__name__: make(RANKS, MICROBATCHES) for make in (zb_h1, zb_h2)}
    found = {}
    for name, schedule in made.items():
        trace = dtlab.launch(stand_in, schedule, world_size=RANKS, timeout=60).trace
        predicted = simulate(schedule, Costs(UNIT, UNIT, UNIT))
        found[name] = bubble(last_step(trace, schedule)), bubble(predicted)
    return found


def main() -> None:
    """Print ratios."""
    print(f"pipelines: {RANKS} ranks, {MICROBATCHES} microbatches, gloo")
    orders = {
        "1F1B": one_f_one_b(RANKS, MICROBATCHES),
        "interleaved": interleaved(RANKS, MICROBATCHES, CHUNKS),
        "ZB-H1": zb_h1(RANKS, MICROBATCHES),
    }
    for name, schedule in orders.items():
        peer = name != "ZB-H1"  # PyTorch's zero bubble schedules have another order
        times = dtlab.launch(
            in_turns, schedule, peer, world_size=RANKS, trace=False, timeout=300, threads=1
        ).values[0]
        base = "theirs" if peer else "naive"
        whole, alone = median(times[base]), median(times["alone"])
        who = "PyTorch" if peer else "W the naive way"
        goal = " (goal 1.0)" if peer else ""
        print(
            f"  {name}: {who} {whole * 1e3:.1f} ms a step, {1 - alone / whole:.0%} of it "
            f"communication; ours {ratio(times['ours'], times[base]):.2f} times that{goal}"
        )
    for name, (measured, predicted) in bubbles().items():
        print(
            f"  bubble of {name} with stand-ins: {measured:.1%} of the total, {predicted:.1%} "
            f"simulated (goal: within 5 points)"
        )


if __name__ == "__main__":
    main()
