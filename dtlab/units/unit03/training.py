"""Steps with accumulated gradients, by a learner's function, and what must come of them.

    microbatches    3 samples   5 samples   1 sample      of one rank in one step
    wanted          the gradient of the mean loss over all 9; of several ranks, over all of theirs

An `Accumulating` case draws a model and microbatches, has each rank go through its own ones, and
compares what `.grad` has then with what one process computes here (`shares`).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

from dtlab.grading.checking.finished import finished_calls
from dtlab.grading.checking.groups import Groups, groups_in_words, members_of
from dtlab.grading.checking.nets import Net
from dtlab.grading.checking.trials import Case
from dtlab.grading.checking.values import sgd_step
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

__all__ = [
    "FINISHED",
    "Accumulated",
    "Accumulating",
    "Arguments",
    "begin",
    "gradients_of",
]

FINISHED = ("dtlab.training.accumulation", "dtlab.training.metrics")
Pair = tuple["Tensor", "Tensor"]  # inputs and targets of a microbatch
Sizes = tuple[tuple[tuple[int, ...], ...], ...]  # of each rank, in each step: its microbatches

_WRAPPERS = {"": "", "ddp": " in PyTorch's DDP", "dtlab": " in dtlab's DataParallel"}


@dataclass(frozen=True)
class Arguments:
    """What one rank trains, and on what: `steps` are its own microbatches, `members` its group.

    `before` is what `.grad` has at the beginning of each step, None where it has nothing.
    """

    kind: str
    sizes: tuple[int, ...]
    state: list[Tensor]
    wrapper: str
    steps: list[list[Pair]]
    before: list[Tensor] | None
    groups: Groups
    members: tuple[int, ...]


@dataclass(frozen=True)
class Accumulated:
    """What one rank saw in each step, and which finished code was called.

    `passes` has the samples and the tensors held before, for each forward pass; `losses` are what
    the function returned: a number, or what else it was in words.
    """

    gradients: list[list[Tensor | None]]
    losses: list[float | str]
    passes: list[list[list[int]]]
    finished: frozenset[str]


@dataclass(frozen=True)
class Accumulating(Case):
    """`fn(model, loss_sum, micro_batches)` in every step; `topic` says what it is to show."""

    finished: ClassVar[tuple[str, ...]] = FINISHED

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

    @property
    def num_steps(self) -> int:
        """Steps of training, which all ranks take."""
        return len(self.sizes[0])

    # ------------------------------------------------------------------ what ranks do

    def micro_batches(self, rank: int, step: int) -> list[Pair]:
        """What one rank goes through in one step."""
        import torch

        generator = torch.Generator().manual_seed((self.seed * 1009 + rank) * 97 + step)
        sizes, (width, *_, outputs) = self.sizes[rank][step], self.net.sizes
        inputs = torch.randn(sum(sizes), width, generator=generator)
        targets = 2 * torch.randn(sum(sizes), outputs, generator=generator)
        ends = list(itertools.accumulate(sizes, initial=0))
        cuts = [slice(*pair) for pair in itertools.pairwise(ends)]
        return [(inputs[cut].clone(), targets[cut].clone()) for cut in cuts]

    def before(self) -> list[Tensor] | None:
        """What is in `.grad` before every step."""
        import torch

        if not self.has_before:
            return None
        generator = torch.Generator().manual_seed(self.seed + 5)
        return [torch.randn(one.shape, generator=generator) for one in self.net.state(self.seed)]

    def given(self, rank: int, world_size: int) -> Arguments:
        return Arguments(
            self.net.kind,
            self.net.sizes,
            self.net.state(self.seed),
            self.wrapper,
            [self.micro_batches(rank, step) for step in range(self.num_steps)],
            self.before(),
            self.groups,
            members_of(self.groups, rank, world_size),
        )

    @staticmethod
    def on_rank(fn: Callable[..., Any], given: Arguments) -> dict[str, Any]:
        from dtlab.trace import span
        from dtlab.units.unit03.graphs import Graphs

        module, model = begin(given)
        graphs, seen = Graphs(module), []
        with finished_calls(*FINISHED, refuse=True) as finished:
            for micro_batches in given.steps:
                _put_before(module, given.before)
                with span("step"), graphs.watched() as passes:
                    loss = fn(model, loss_sum, micro_batches)
                gradients = gradients_of(module)
                seen.append((gradients, plain_value(loss), passes))
                sgd_step(module, [gradients])
        return {"steps": seen, "finished": sorted(finished)}

    def opened(self, result: Any) -> Any:
        import torch

        gradients, losses, passes = map(list, zip(*result["steps"], strict=True))
        if len(gradients) != self.num_steps:
            raise ValueError("not as many steps as there were")
        every = [one for step in gradients for one in step]
        if not all(one is None or isinstance(one, torch.Tensor) for one in every):
            raise TypeError("a rank sent back something else than gradients")
        counted = [[(int(samples), int(held)) for samples, held in step] for step in passes]
        return Accumulated(
            gradients,
            [one if isinstance(one, float) else str(one) for one in losses],
            [[list(one) for one in step] for step in counted],
            frozenset(map(str, result["finished"])),
        )

    # ------------------------------------------------------------------ what must come of it

    @cached_property
    def shares(self) -> dict[tuple[int, ...], list[Shares]]:
        """For each group, and then each step: what every microbatch of every rank gives."""
        everyone = range(len(self.sizes))
        batches = [
            {rank: self.micro_batches(rank, step) for rank in everyone}
            for step in range(self.num_steps)
        ]
        return {
            members: shares_of(self.net.module(self.seed), batches, members, self.before())
            for members in self.groups or (tuple(everyone),)
        }

    @cached_property
    def size_of_gradients(self) -> int:
        """Bytes of all gradients together."""
        shares = next(iter(self.shares.values()))[0]
        return 4 * shares.wanted.numel()

    def mistake(self, results: Sequence[Accumulated]) -> str:
        """The first step in which a gradient is wrong: see `Case`."""
        for members, steps in self.shares.items():
            for number, shares in enumerate(steps):
                for rank in members:
                    sentence = wrong_gradients(results[rank].gradients[number], shares, rank)
                    if sentence:
                        return f"{self._where(number, rank)}: {sentence}"
        return ""

    def wrong_loss(self, results: Sequence[Accumulated]) -> str:
        """The first step in which what a rank returned is not the mean loss; empty if none."""
        for members, steps in self.shares.items():
            for number, shares in enumerate(steps):
                for rank in members:
                    sentence = wrong_loss(results[rank].losses[number], shares, rank)
                    if sentence:
                        return f"{self._where(number, rank)}: {sentence}"
        return ""

    def _where(self, step: int, rank: int) -> str:
        return f"step {step + 1}" + (f", rank {rank}" if len(self.sizes) > 1 else "")


def begin(given: Arguments) -> tuple[nn.Module, nn.Module]:
    """Runs on every rank: the module, and what the learner is given: it, or a wrapper round it."""
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    from dtlab.grading.checking.modules import filled
    from dtlab.parallel.data import DataParallel

    module = filled(given.kind, given.sizes, given.state)
    made = {group: dist.new_group(list(group)) for group in given.groups}
    group = made.get(given.members)
    if given.wrapper == "ddp":
        return module, DistributedDataParallel(module, process_group=group)
    return module, DataParallel(module, group=group) if given.wrapper else module


def gradients_of(module: nn.Module) -> list[Tensor | None]:
    """Copies of what `.grad` has."""
    return [None if one.grad is None else one.grad.detach().clone() for one in module.parameters()]


def _put_before(module: nn.Module, before: Sequence[Tensor] | None) -> None:
    module.zero_grad()
    for parameter, content in zip(module.parameters(), before or (), strict=False):
        if parameter.requires_grad:
            parameter.grad = content.clone()
