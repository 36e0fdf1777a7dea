"""What ranks do in 07/run: a learner's executor on a stage of ours, which notes what is done.

rank r    run(schedule, stage r, ...)
              │  forward: F noted, and how many graphs of earlier microbatches are still there
              ▼  backward: B noted
          gradients, what was noted
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from dtlab.grading.checking.finished import finished_calls

if TYPE_CHECKING:
    from torch import Tensor, nn

__all__ = ["FINISHED", "execute"]

FINISHED = (
    "dtlab.parallel.pipeline",
    "dtlab.parallel.pipeline_data",
    "dtlab.parallel.pipeline_messages",
    "dtlab.parallel.pipeline_plan",
    "torch.distributed.pipelining.schedules",
    "torch.distributed.pipelining.stage",
)


def execute(fn: Callable[..., Any], given: dict[str, Any]) -> dict[str, Any]:
    """One step by `fn`; gradients, and what happened in which order."""
    import torch.distributed as dist

    from dtlab.grading.checking.modules import filled
    from dtlab.schedules import as_schedule
    from dtlab.units.unit07.carried import loss_of

    module = filled(given["kind"], given["layers"], given["state"])
    log: list[str] = []
    graphs: list[int] = []
    rank, last = dist.get_rank(), dist.get_world_size() - 1
    with finished_calls(*FINISHED, refuse=True) as finished:
        fn(
            as_schedule(given["rows"]),
            _noting(module, log, graphs),
            given["sizes"],
            given["width"],
            given["inputs"] if rank == 0 else None,
            given["targets"] if rank == last else None,
            loss_of,
        )
    return {
        "gradients": [one.grad for one in module.parameters()],
        "log": "".join(log),
        "graphs": graphs,
        "finished": sorted(finished),
    }


def _noting(module: nn.Module, log: list[str], graphs: list[int]) -> nn.Module:
    """The module, which writes F and B into `log`, and into `graphs` at each F how many live."""
    import weakref

    import torch

    class Graph:
        """Lives as long as the graph of a forward."""

    living: weakref.WeakSet[Graph] = weakref.WeakSet()

    class Mark(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, output: Tensor) -> Tensor:
            log.append("F")
            graphs.append(len(living))
            ctx.graph = Graph()
            living.add(ctx.graph)
            return output.view_as(output)

        @staticmethod
        def backward(ctx: Any, *gradients: Tensor) -> Tensor:
            log.append("B")
            return gradients[0]

    class Noting(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = module

        def forward(self, x: Tensor) -> Tensor:
            return Mark.apply(self.inner(x))  # type: ignore[no-any-return, no-untyped-call]

    return Noting()
