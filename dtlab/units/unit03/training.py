"""Runs steps that accumulate gradients with a learner's function, and checks the results.

    microbatches    3 samples   5 samples   1 sample      of one rank in one step
    expected        the gradient of the mean loss over all 9, or over the samples of all ranks

An `Accumulating` case draws a model and microbatches, lets each rank process its microbatches, and
compares `.grad` with what one process computes here (`shares`).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

from dtlab.checks.comparison import same
from dtlab.checks.functions.criteria import Fault, Noted, Seen, of_topic
from dtlab.checks.functions.finished import finished_calls
from dtlab.checks.functions.groups import Groups, groups_in_words, process_group
from dtlab.checks.functions.nets import Net
from dtlab.checks.functions.unseen import Reducing, inside_marks
from dtlab.checks.functions.values import sgd_step
from dtlab.predict.units import counted
from dtlab.units.unit03.shares import (
    Shares,
    loss_sum,
    plain_value,
    shares_of,
    wrong_gradients,
    wrong_loss,
)

if TYPE_CHECKING:
    from torch import Tensor, nn

    from dtlab.trace import Event

__all__ = [
    "FINISHED",
    "Accumulating",
    "Arguments",
    "begin",
    "gradients_of",
    "in_each_step",
]

FINISHED = ("dtlab.training.accumulation", "dtlab.training.metrics", "dtlab.simple")
Pair = tuple["Tensor", "Tensor"]  # inputs and targets of a microbatch
Sizes = tuple[tuple[tuple[int, ...], ...], ...]  # microbatches of each rank in each step

# Advice on a case that fails, by its topic.
_ADVICE = {
    "uneven": "Here ranks have different numbers of microbatches, and one rank has only an empty "
    "one. Every rank must take part in every all-reduce, even without samples. Outside no_sync is "
    "each rank's own last microbatch.",
    "subgroups": "The wrappers' group is `process_group` of PyTorch's DDP, `group` of dtlab's "
    "DataParallel. Pass it to dist.all_reduce and dist.get_world_size.",
}
_MOVED = (
    "your function changes the parameters. Leave optimizer.step() to the loop that calls your "
    "function."
)
_WRAPPERS = {"": "", "ddp": " in PyTorch's DDP", "dtlab": " in dtlab's DataParallel"}


@dataclass(frozen=True)
class Arguments:
    """The model and the microbatches of one rank in all `steps`, and the members of its group.

    `before` is the content of `.grad` at the beginning of each step, None if it is empty.
    """

    kind: str
    sizes: tuple[int, ...]
    state: list[Tensor]
    wrapper: str
    steps: list[list[Pair]]
    before: list[Tensor] | None
    groups: Groups


@dataclass(frozen=True)
class Accumulating(Reducing):
    """Calls `fn(model, loss_sum, micro_batches)` in every step; `topic` names its criterion."""

    finished: ClassVar[tuple[str, ...]] = FINISHED
    also_shows: ClassVar = {"equal": ("once", "graphs", "loss"), "uneven": ("loss",)}

    seed: int
    net: Net
    sizes: Sizes
    topic: str = "equal"
    wrapper: str = ""
    groups: Groups = ()
    has_before: bool = False

    def __str__(self) -> str:
        words = [self.net.words + _WRAPPERS[self.wrapper]]
        if len(self.sizes) == 1:
            each = ("+".join(map(str, sizes)) for sizes in self.sizes[0])
            words.append(f"steps of {' and '.join(each)} samples")
        return ", ".join(words + ([groups_in_words(self.groups)] if self.groups else []))

    def advice(self, trouble: str) -> str:
        return _ADVICE.get(self.topic, "") if self.wrapper else ""

    def micro_batches(self, rank: int, step: int) -> list[Pair]:
        """The microbatches of one rank in one step."""
        import torch

        generator = torch.Generator().manual_seed((self.seed * 1009 + rank) * 97 + step)
        sizes, (width, *_, outputs) = self.sizes[rank][step], self.net.sizes
        inputs = torch.randn(sum(sizes), width, generator=generator)
        targets = 2 * torch.randn(sum(sizes), outputs, generator=generator)
        ends = list(itertools.accumulate(sizes, initial=0))
        cuts = [slice(*pair) for pair in itertools.pairwise(ends)]
        return [(inputs[cut].clone(), targets[cut].clone()) for cut in cuts]

    def before(self) -> list[Tensor] | None:
        """The content of `.grad` before every step; None if it is empty."""
        import torch

        if not self.has_before:
            return None
        generator = torch.Generator().manual_seed(self.seed + 5)
        return [
            torch.randn(tensor.shape, generator=generator) for tensor in self.net.state(self.seed)
        ]

    def given(self, rank: int, world_size: int) -> Arguments:
        return Arguments(
            self.net.kind,
            self.net.sizes,
            self.net.state(self.seed),
            self.wrapper,
            [self.micro_batches(rank, step) for step in range(len(self.sizes[0]))],
            self.before(),
            self.groups,
        )

    @staticmethod
    def on_rank(fn: Callable[..., Any], given: Arguments) -> dict[str, Any]:

        from dtlab.trace import span
        from dtlab.units.unit03.graphs import Graphs

        module, model = begin(given)
        graphs, notes = Graphs(module), []
        with finished_calls(*FINISHED, refuse=True) as finished:
            for micro_batches in given.steps:
                _put_before(module, given.before)
                before = [parameter.detach().clone() for parameter in module.parameters()]
                with span("step"), graphs.watched() as passes:
                    loss = fn(model, loss_sum, micro_batches)
                gradients = gradients_of(module)
                moved = not all(map(same, module.parameters(), before))
                notes.append((gradients, plain_value(loss), passes, moved))
                sgd_step(module, [gradients])
        return {"steps": notes, "finished": sorted(finished)}

    @cached_property
    def shares(self) -> dict[tuple[int, ...], list[Shares]]:
        """For each group and each step, the gradient of every microbatch of every rank."""
        ranks = range(len(self.sizes))
        batches = [
            {rank: self.micro_batches(rank, step) for rank in ranks}
            for step in range(len(self.sizes[0]))
        ]
        return {
            members: shares_of(self.net.module(self.seed), batches, members, self.before())
            for members in self.groups or (tuple(ranks),)
        }

    @property
    def reduced(self) -> list[int]:
        return [4 * step.wanted.numel() for step in next(iter(self.shares.values()))]

    def faults(self, results: Sequence[Noted]) -> Iterator[Fault]:
        others: list[Fault] = []  # reported only if the gradients are right
        for members, steps in self.shares.items():
            for step, shares in enumerate(steps):
                for rank in members:
                    where = f"step {step + 1}" + f", rank {rank}" * (len(self.sizes) > 1)
                    gradients, loss, passes, moved = results[rank]["steps"][step]
                    wrong = _MOVED if moved else wrong_gradients(gradients, shares, rank)
                    if wrong:
                        advice = _ADVICE["subgroups"] if self.topic == "subgroups" else ""
                        yield self.topic, f"{where}: " + wrong + f"\n{advice}" * bool(advice)
                        return
                    wrong = wrong_loss(loss, shares, rank)
                    if wrong and self.topic != "added":
                        others.append(("loss", f"{where}: " + wrong))
                    wrong = _too_much(passes, max(self.sizes[rank][step]))
                    if wrong and self.topic == "equal":
                        others.append(("graphs", f"{where}: {wrong}"))
        yield from others


def _too_much(passes: Sequence[tuple[int, int]], largest: int) -> str:
    """A message about a step's forward passes, each as (samples, tensors held before), or ""."""
    for number, (samples, held) in enumerate(passes):
        if samples > largest:
            return (
                f"the model gets {counted(samples, 'sample')} at once, and the largest "
                f"microbatch has {largest}: accumulation is meant to save memory."
            )
        if held:
            return (
                f"forward pass {number + 1} begins while the graph of an earlier one is still "
                f"held, with {counted(held, 'tensor')}. Call backward for every microbatch, "
                "before the next forward pass and without retain_graph: it frees the graph."
            )
    return ""


def begin(given: Arguments) -> tuple[nn.Module, nn.Module]:
    """Runs on every rank: returns the module, and the module or wrapper for the learner."""
    from torch.nn.parallel import DistributedDataParallel

    from dtlab.checks.functions.modules import filled
    from dtlab.parallel.data import DataParallel

    module = filled(given.kind, given.sizes, given.state)
    group = process_group(given.groups)
    if given.wrapper == "ddp":
        return module, DistributedDataParallel(module, process_group=group)
    return module, DataParallel(module, group=group) if given.wrapper else module


def gradients_of(module: nn.Module) -> list[Tensor | None]:
    """Copies the gradients of a module."""
    gradients = [parameter.grad for parameter in module.parameters()]
    return [None if grad is None else grad.detach().clone() for grad in gradients]


def _put_before(module: nn.Module, before: Sequence[Tensor] | None) -> None:
    module.zero_grad()
    for parameter, content in zip(module.parameters(), before or (), strict=False):
        if parameter.requires_grad:
            parameter.grad = content.clone()


def in_each_step(seen: Seen, topic: str) -> Iterator[tuple[str, int, list[Event]]]:
    """Yields each step of a topic on several ranks: place, bytes to average, and events."""
    for run in of_topic(seen, topic):
        if run.trial.world_size == 1:
            continue
        steps = [
            (f"{run.trial.words(number)}, step {step + 1}", size)
            for number, case in enumerate(run.trial.cases)
            for step, size in enumerate(getattr(case, "reduced", ()))
        ]
        for rank in range(run.trial.world_size):
            marks = inside_marks(run.trace, rank, "step")
            for (where, size), events in zip(steps, marks, strict=False):
                yield f"{where}, rank {rank}", size, events
