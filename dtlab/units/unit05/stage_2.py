"""05/stage_2: gradients are reduced to their owners, who alone keep optimizer state for them."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, ClassVar

from dtlab.grading.checking.checks import Check
from dtlab.grading.checking.faults import Fault, Noted, rule, traffic
from dtlab.grading.checking.finished import finished_calls
from dtlab.grading.checking.nets import Net
from dtlab.grading.checking.resident import (
    Mark,
    Moment,
    ResidentCase,
    grown_by,
    layers_of,
    use_twice,
)
from dtlab.grading.checking.trials import Trial
from dtlab.grading.parts import Part
from dtlab.grading.scripts.reference import NEAR, Optimizer, off
from dtlab.units.unit05.blocks import FINISHED, LARGE, OnBlock, draw_blocks, flat_of, lay

if TYPE_CHECKING:
    from torch import Tensor, nn

_RATE, _EPS = 0.05, 0.02  # with a large eps Adam tells a sum of gradients from their mean
_STEPS = 3
_SMALL = 512  # bytes: counters of the optimizer, and padding
_PATIENCE = 0.3  # seconds until gloo has let go of buffers


@dataclass(frozen=True)
class Owned(OnBlock):
    """`fn(parameters, make_optimizer)`, then some steps with `reduce()` and `step()`."""

    finished: ClassVar[tuple[str, ...]] = FINISHED

    @property
    def guilty(self) -> str:
        return "result" if self.topic == "large" else self.topic

    def shows(self, criterion: str) -> bool:
        """See `Faulty`; bytes and memory are measured with the topic "large"."""
        if self.topic == "missing":
            return criterion == "missing"
        return criterion == "result" or (self.topic == "large" and criterion != "missing")

    def given(self, rank: int, world_size: int) -> dict[str, Any]:
        batches = [self.batch(rank, step) for step in range(_STEPS)]
        backwards = self.topic == "missing"  # so that what nobody uses comes first
        share = 4 * -(-self.elements // world_size) + _SMALL
        own = {"batches": batches, "backwards": backwards, "share": share}
        return {**super().given(rank, world_size), **own}

    def batch(self, rank: int, step: int) -> Tensor:
        """What a rank trains on in a step."""
        return self.inputs(97 * step + rank)

    @staticmethod
    def on_rank(fn: Callable[..., Any], given: dict[str, Any]) -> dict[str, Any]:
        from dtlab.grading.checking.modules import filled
        from dtlab.units.unit05.alive import Alive

        held: list[list[int]] = []
        with Alive() as alive, finished_calls(*FINISHED, refuse=True) as finished:
            module = filled(given["kind"], given["sizes"], given["state"])
            trained = [one for one in module.parameters() if one.requires_grad]
            before = alive.bytes
            stage = fn(trained[::-1] if given["backwards"] else list(trained), _adam)
            for inputs in given["batches"]:
                _loss(module, inputs).backward()
                stage.reduce()
                goal = before + given["share"] + (held[-1][-1] if held else 0)
                reduced = alive.settled(goal, _PATIENCE if held else 0) - before
                held.append([reduced, sum(one.grad is not None for one in trained)])
                stage.step()
                module.zero_grad()
                goal = before + 3 * given["share"]
                held[-1].append(alive.settled(goal, _PATIENCE) - before)
            after = [one.detach().clone() for one in module.parameters()]
        return {"after": after, "held": held, "finished": sorted(finished)}

    def faults(self, results: Sequence[Noted]) -> Iterator[Fault]:
        name = "missing" if self.topic == "missing" else "result"
        start = flat_of(list(self.module().parameters()), 1)
        wanted = self._in_one_process(len(results))
        for rank, seen in enumerate(results):
            got = flat_of(seen["after"], 1)
            if got.shape != wanted.shape or not off(got, wanted, start) < NEAR:
                yield name, f"rank {rank}: {self._how(got, wanted, start, len(results))}"
                return
        for rank, seen in enumerate(results):
            if not flat_of(seen["after"], 1).equal(flat_of(results[0]["after"], 1)):
                yield name, f"ranks 0 and {rank} do not have the same bits. Who owns what?"
        if self.topic == "large":
            yield from self._memory(results)

    def _memory(self, results: Sequence[Noted]) -> Iterator[Fault]:
        """After the second step, when all state is there."""
        size = len(results)
        share = 4 * -(-self.elements // size)
        for rank, seen in enumerate(results):
            (_, _, before), (reduced, left, after) = seen["held"][0], seen["held"][1]
            if left or reduced - before > share + _SMALL:
                yield (
                    "gradients",
                    (
                        f"rank {rank}: once reduced, gradients hold "
                        f"{max(reduced - before, 0):,} bytes, and an owner's share of them is "
                        f"{share:,}. Every .grad is to be None, and nobody keeps a view of all."
                    ),
                )
            if after > 3 * share + _SMALL:
                yield (
                    "optimizer",
                    (
                        f"rank {rank}: between steps {after:,} bytes are held beside parameters. "
                        f"A share and Adam's state for it are {3 * share:,}."
                    ),
                )

    # ------------------------------------------------------------------ in one process

    def _in_one_process(self, ranks: int, optimizer: Optimizer | None = None) -> Tensor:
        """All parameters after the steps, end to end."""
        module = self.module()
        start = flat_of(list(module.parameters()), 1)
        adam = optimizer or Optimizer(_RATE, adam=True, eps=_EPS)

        def gradients(now: Tensor, step: int) -> Tensor:
            return self._mean(module, now, step, range(ranks))

        return adam.run(start, gradients, _STEPS)

    def _mean(self, module: nn.Module, now: Tensor, step: int, ranks: Sequence[int]) -> Tensor:
        import torch

        lay(module, now.float())
        module.zero_grad()
        for rank in ranks:
            (_loss(module, self.batch(rank, step)) / len(ranks)).backward()
        every = [
            torch.zeros_like(one) if one.grad is None else one.grad for one in module.parameters()
        ]
        return flat_of(every, 1).double()

    def _how(self, got: Tensor, wanted: Tensor, start: Tensor, ranks: int) -> str:
        """In what the parameters are wrong, where it is something that people do."""
        import torch

        if got.shape != wanted.shape:
            return "parameters have other shapes afterwards."
        if got.equal(start):
            return "the parameters have not moved. Are they gathered, and written back?"
        summed = self._in_one_process(ranks, Optimizer(_RATE, adam=True, eps=_EPS / ranks))
        if ranks > 1 and off(got, summed, start) < NEAR:
            return "stepped with the sum of the gradients, not with their mean."
        size = -(-len(wanted) // ranks)
        right = [
            bool(off(one, two, three) < NEAR)
            for one, two, three in zip(
                *(torch.split(each, size) for each in (got, wanted, start)), strict=True
            )
        ]
        which = f" Right are the shares of ranks {[r for r, yes in enumerate(right) if yes]}."
        return (
            f"after {_STEPS} steps the parameters are off by {off(got, wanted, start):.0%} of the "
            f"way that Adam in one process goes.{which if any(right) else ''}"
        )


class ResidentStage2(ResidentCase):
    """All state is there once a step is made; then come the gradients of the next one."""

    finished: ClassVar[tuple[str, ...]] = FINISHED

    @property
    def moments(self) -> Sequence[Moment]:
        return (
            Moment(
                "optimizer", "after a step", lambda size, n: 3 * size / n,
                "Beside the parameters an owner keeps a share of them, and Adam's state for it.",
            ),
            Moment(
                "gradients", "once the next gradients are reduced", lambda size, n: size / n,
                "An owner keeps its share of the gradients.",
            ),
        )  # fmt: skip

    @staticmethod
    def on_rank(fn: Callable[..., Any], given: Any) -> dict[str, Any]:
        return use_twice(_two_steps, fn)


def _two_steps(fn: Callable[..., Any], width: int, mark: Mark) -> None:
    import torch

    layers, inputs = layers_of(width), torch.ones(2, width)
    mark()
    stage = fn(list(layers.parameters()), _adam)
    _loss(layers, inputs).backward()
    stage.reduce()
    stage.step()
    layers.zero_grad()
    mark()
    _loss(layers, inputs).backward()
    stage.reduce()
    mark()


def _adam(tensors: Sequence[Tensor]) -> Any:
    """Not PyTorch's own: the first one that a process makes takes a second or two."""
    from dtlab.units.unit05.adam import Adam

    return Adam(tensors, _RATE, _EPS)


def _loss(module: nn.Module, inputs: Tensor) -> Any:
    return module(inputs).square().mean()


_BYTES = (
    "Gradients go to their owners once, and parameters come back once. An all-reduce sends "
    "twice as much, and so does gloo's own reduce-scatter: see ring_reduce_scatter."
)


def _trials(seed: int) -> list[Trial]:
    """1 to 4 ranks; memory and bytes on 4; and parameters that nobody uses."""
    draw = random.Random(seed)

    def case(net: Net, topic: str = "result") -> Owned:
        return Owned(draw.randrange(10**6), net, topic)

    plain, tied = draw_blocks(draw)
    unused = Net("skipping", (*plain.sizes, draw.randint(4, 9)), "a layer frozen, one not used")
    assert all(a > 1 for a, _ in pairwise(plain.sizes))
    return [
        Trial(3, [case(plain), case(tied)]),
        Trial(4, [case(LARGE, "large")]),
        Trial(1, [case(plain)]),
        Trial(2, [case(unused, "missing")]),
        Trial(2, [ResidentStage2()]),
    ]


PART = Part(
    name="05/stage_2",
    level=2,
    title="Stage 2",
    minutes=18,
    difficulty=2,
    check=Check(
        trials=_trials,
        rules=(
            rule("result", 4, "all ranks are where Adam in one process is"),
            rule(
                "bytes",
                3,
                "a step sends each gradient and each parameter once",
                "result",
                also=traffic("large", 2 * _STEPS, _BYTES),
            ),
            rule(
                "gradients",
                2,
                "only an owner's share is left",
                "result",
                also=grown_by("gradients"),
            ),
            rule(
                "optimizer",
                1,
                "state for the own share only",
                "result",
                also=grown_by("optimizer"),
            ),
            rule("missing", 1, "what has no gradient stays", "result"),
        ),
    ),
    reference="dtlab.parallel.zero.optimizers.Zero2",
    symbol="Stage2",
)
