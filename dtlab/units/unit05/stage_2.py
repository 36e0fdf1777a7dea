"""05/stage_2: ZeRO stage 2, where only the owner of a shard keeps its gradients and Adam state."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from dtlab.checks.comparison import Known, close, difference, same
from dtlab.checks.functions.checks import Check
from dtlab.checks.functions.criteria import Fault, Noted, rule, traffic
from dtlab.checks.functions.nets import Net
from dtlab.checks.functions.resident import LARGE as LARGE_WIDTH
from dtlab.checks.functions.resident import (
    Mark,
    Moment,
    ResidentCase,
    grown_by,
    layers_of,
    use_twice,
)
from dtlab.checks.functions.trials import Trial
from dtlab.checks.parts import Part
from dtlab.checks.programs.reference import Optimizer
from dtlab.checks.words import ranks_in_words
from dtlab.units.unit05.blocks import (
    FINISHED,
    LARGE,
    OnBlock,
    draw_blocks,
    flat_gradients,
    flat_of,
    lay,
    values_of,
)

if TYPE_CHECKING:
    from torch import Tensor, nn

_RATE, _EPS = 0.05, 0.02  # with a large eps, Adam's step on a sum differs from that on a mean
_STEPS = 3
_SMALL = 512  # bytes, for counters of the optimizer and padding
_PATIENCE = 0.3  # seconds until gloo has released its buffers
_GRADIENTS = (
    "A rank must keep only its share of them. Set every .grad to None, and keep no view of all."
)
_OTHER_GRADIENTS = {
    "is as if each rank stepped with its own gradients of its share, not with the mean over the "
    "ranks": "Reduce-scatter the gradients.",
    "is as if each rank stepped its share with the gradients of the next rank's share": "Which "
    "chunk of the mean belongs to rank r?",
}
_STATE = "In addition to the parameters, keep only a rank's share of them and its Adam state."
_SENT = traffic(
    "large",
    2 * _STEPS,
    "Send gradients to their owners once, and parameters back once. An all-reduce sends "
    "twice as much, and so does gloo's own reduce-scatter: see ring_reduce_scatter.",
)


class Adam:
    """Adam with the default betas of `torch.optim.Adam`.

    PyTorch's Adam imports its compiler: the first instance in a process takes a second or two.
    """

    def __init__(self, parameters: Iterable[Tensor], lr: float = _RATE, eps: float = _EPS) -> None:
        self.param_groups: list[dict[str, Any]] = [{"params": list(parameters), "lr": lr}]
        self.state: dict[Tensor, dict[str, Any]] = {}
        self._eps = eps

    def step(self) -> None:
        """Step every tensor that has a gradient."""
        import torch

        group = self.param_groups[0]
        for p in group["params"]:
            if p.grad is None:
                continue
            state = self.state.setdefault(p, {"step": 0})
            state["step"] += 1
            for name, beta, power in (("first", 0.9, 1), ("second", 0.999, 2)):
                average = state.setdefault(name, torch.zeros_like(p))
                average.mul_(beta).add_(p.grad**power, alpha=1 - beta)
            first = state["first"] / (1 - 0.9 ** state["step"])
            second = state["second"] / (1 - 0.999 ** state["step"])
            with torch.no_grad():
                p -= group["lr"] * first / (second.sqrt() + self._eps)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Set all gradients to None."""
        for p in self.param_groups[0]["params"]:
            p.grad = None


class Owned(OnBlock):
    """A call of `fn(parameters, make_optimizer)`, then some steps with `reduce()` and `step()`.

    With the topic "large", bytes and memory are measured. With "missing", parameters are passed in
    reverse order, so that the first of them have no gradient.
    """

    @property
    def guilty(self) -> str:
        return "missing" if self.topic == "missing" else "result"

    def shows(self, criterion: str) -> bool:
        if self.topic == "large":
            return criterion != "missing"
        return criterion == self.topic

    def given(self, rank: int, world_size: int) -> dict[str, Any]:
        batches = [self.batch(rank, step) for step in range(_STEPS)]
        share = 4 * -(-self.elements // world_size) + _SMALL
        return {**super().given(rank, world_size), "batches": batches, "share": share}

    def batch(self, rank: int, step: int) -> Tensor:
        """The batch of a rank in a step."""
        return self.inputs(97 * step + rank)

    @staticmethod
    def use(fn: Callable[..., Any], block: nn.Module, given: dict[str, Any]) -> dict[str, Any]:
        from dtlab.units.unit05.runs_scripts import Alive

        trained = [p for p in block.parameters() if p.requires_grad]
        share, held = given["share"], list[tuple[int, int, int]]()
        with Alive(*block.parameters()) as alive:
            before = alive.bytes
            stage = fn(trained[::-1] if given["topic"] == "missing" else list(trained), Adam)
            made = after = alive.settled() - before
            for inputs in given["batches"]:
                _loss(block, inputs).backward()
                stage.reduce()
                reduced = alive.settled(before + after + share, _PATIENCE) - before
                left = sum(p.grad is not None for p in trained)
                stage.step()
                block.zero_grad()
                after = alive.settled(before + 3 * share, _PATIENCE) - before
                held.append((reduced, left, after))
        return {"after": values_of(block), "made": made, "held": held}

    def faults(self, results: Sequence[Noted]) -> Iterator[Fault]:
        start, wanted = self.flat(1), self._in_one_process(len(results))
        ends = [flat_of(result["after"], 1) for result in results]
        for rank, got in enumerate(ends):
            hint = _shares(got, wanted, start, len(results))
            known = self._known(start, len(results))
            if wrong := difference(got, wanted, known, start=start, hint=hint):
                yield self.guilty, f"rank {rank}: after {_STEPS} steps of Adam the block " + wrong
                return
            if not same(got, ends[0]):
                yield self.guilty, f"ranks 0 and {rank} differ in bits. Which rank owns which?"
        share = 4 * -(-self.elements // len(results))
        for rank, result in enumerate(results if self.topic == "large" else ()):
            # In the first step no older gradients exist; in the second one, all optimizer state.
            (first, _, before), (reduced, left, after) = result["held"][:2]
            gradients = max(first - result["made"], reduced - before, 0)
            if left or gradients > share + _SMALL:
                message = f"after reduce, gradients hold {gradients:,} bytes, not {share:,}"
                yield "gradients", f"rank {rank}: {message}. {_GRADIENTS}"
            if after > 3 * share + _SMALL:
                message = f"between steps it holds {after:,} bytes in addition to parameters"
                yield "optimizer", f"rank {rank}: {message}, not {3 * share:,}. {_STATE}"

    def _in_one_process(self, ranks: int, eps: float = _EPS) -> Tensor:
        """All parameters, concatenated, after Adam's steps with the ranks' mean gradients."""
        block = self.module()

        def gradients(now: Tensor, step: int) -> Tensor:
            lay(block, now.float())
            block.zero_grad()
            for rank in range(ranks):
                (_loss(block, self.batch(rank, step)) / ranks).backward()
            return flat_gradients(block, 1).double()

        return Optimizer(_RATE, adam=True, eps=eps).run(self.flat(1), gradients, _STEPS)

    def _known(self, start: Tensor, ranks: int) -> Known:
        """The parameters that known mistakes give."""
        known: dict[str, Any] = {
            "is as at the start": (start, "Do you gather the parameters and write them back?")
        }
        if ranks > 1:
            known["is as if you stepped with the sum of the gradients, not with their mean"] = (
                partial(self._in_one_process, ranks, _EPS / ranks)
            )
            for shift, (fact, advice) in enumerate(_OTHER_GRADIENTS.items()):
                known[fact] = partial(self._with_other_gradients, ranks, shift), advice
        return known

    def _with_other_gradients(self, ranks: int, shift: int) -> Tensor:
        """All parameters after Adam's steps in which shares get other gradients than their mean.

        With `shift` 0 a share gets its owner's gradient, with 1 the mean of the next share.
        """
        import torch

        block = self.module()

        def gradients(now: Tensor, step: int) -> Tensor:
            lay(block, now.float())
            flats = []
            for rank in range(ranks):
                block.zero_grad()
                _loss(block, self.batch(rank, step)).backward()
                flats.append(flat_gradients(block, ranks).double())
            mean = torch.stack(flats).mean(0)
            sources = [mean] * ranks if shift else flats
            pieces = [
                source.chunk(ranks)[(rank + shift) % ranks] for rank, source in enumerate(sources)
            ]
            return torch.cat(pieces)[: len(now)]

        return Optimizer(_RATE, adam=True, eps=_EPS).run(self.flat(1), gradients, _STEPS)


def _shares(got: Tensor, wanted: Tensor, start: Tensor, ranks: int) -> str:
    """Says which shares are right, and from which values the first wrong share started."""
    if got.shape != wanted.shape:
        return ""
    every = zip(*(flat.chunk(ranks) for flat in (got, wanted, start)), strict=True)
    right = [rank for rank, (one, due, begin) in enumerate(every) if close(one, due, start=begin)]
    many = len(right) > 1
    which = f"The share{'s' * many} of {ranks_in_words(right)} {'are' if many else 'is'} right."
    which = which if right else ""
    return f"{which}{_origin(got, start, ranks)}".strip()


def _origin(got: Tensor, start: Tensor, ranks: int) -> str:
    """Explains from which values the first wrong share started; empty if from its own."""
    shares = start.chunk(ranks)
    for rank, share in enumerate(got.chunk(ranks)):
        if same(share, shares[rank]):
            return f" The share of rank {rank} is as at the start: do you all-gather the shares?"
        near = float((share - shares[rank]).abs().mean()) / 2
        if float(share.abs().mean()) < near:
            return f" The share of rank {rank} began at 0, not at its part of the parameters."
        for other, values in enumerate(shares):
            size = min(len(share), len(values))
            if other != rank and float((share[:size] - values[:size]).abs().mean()) < near:
                return f" The share of rank {rank} holds values of the share of rank {other}."
    return ""


@dataclass(frozen=True)
class LargeStage2(ResidentCase):
    """A case that measures memory after one step and after the next gradients are reduced.

    Its parameters are compared too, since a class that did nothing would need no memory.
    """

    finished: ClassVar[tuple[str, ...]] = FINISHED
    moments = (
        Moment(
            "optimizer",
            "after a step",
            lambda size, n: 3 * size / n,
            _STATE,
            passes=lambda size, n: size,  # all gradients, before they are reduced
        ),
        Moment(
            "gradients",
            "after the next reduce",
            lambda size, n: size / n,
            _GRADIENTS,
            passes=lambda size, n: size,
        ),
    )

    seed: int

    def given(self, rank: int, world_size: int) -> Tensor:
        import torch

        draw = torch.Generator().manual_seed(1009 * self.seed + rank)
        return torch.randn(2, LARGE_WIDTH, generator=draw)

    @classmethod
    def on_rank(cls, fn: Callable[..., Any], given: Tensor) -> dict[str, Any]:
        def use(fn: Callable[..., Any], width: int, mark: Mark) -> dict[str, Any]:
            return cls.train(fn, layers_of(width), given[:, :width], mark)

        return use_twice(use, fn)

    @staticmethod
    def train(fn: Callable[..., Any], layers: Any, inputs: Tensor, mark: Mark) -> dict[str, Any]:
        mark()
        stage = fn(list(layers.parameters()), Adam)
        _loss(layers, inputs).backward()
        stage.reduce()
        stage.step()
        layers.zero_grad()
        mark()
        sample = _sample(layers)
        _loss(layers, inputs).backward()
        stage.reduce()
        mark()
        return {"sample": sample}

    def faults(self, results: Sequence[Noted]) -> Iterator[Fault]:
        layers = layers_of(LARGE_WIDTH)
        for rank in range(len(results)):
            (_loss(layers, self.given(rank, len(results))) / len(results)).backward()
        start = _sample(layers)
        Adam(layers.parameters()).step()
        wanted = _sample(layers)
        for rank, result in enumerate(results):
            if difference(result["sample"], wanted, start=start):
                for moment in self.moments:
                    yield (
                        moment.criterion,
                        f"rank {rank}: the parameters are wrong after a step on layers of this "
                        "size. Nothing in your class may depend on a certain size.",
                    )
                return


def _sample(layers: Any) -> Tensor:
    """Some elements of each layer's parameters."""
    import torch

    return torch.cat([p.detach().flatten()[::4099].clone() for p in layers.parameters()])


def _loss(module: nn.Module, inputs: Tensor) -> Any:
    return module(inputs).square().mean()


def _trials(seed: int) -> list[Trial]:
    """Trials on 1 to 4 ranks; of memory and bytes on 4; with parameters the loss does not use."""
    draw = random.Random(seed)

    def case(net: Net, topic: str = "result") -> Owned:
        return Owned(draw.randrange(10**6), net, topic)

    plain, tied = draw_blocks(draw)
    unused = Net("skipping", (*plain.sizes, draw.randint(4, 9)), "a frozen layer, an unused one")
    return [
        Trial(3, [case(plain), case(tied)]),
        Trial(4, [case(LARGE, "large")]),
        Trial(1, [case(plain)]),
        Trial(2, [case(unused, "missing")]),
        Trial(4, [LargeStage2(draw.randrange(10**6))]),
    ]


PART = Part(
    name="05/stage_2",
    level=2,
    title="ZeRO stage 2, gradients go to their owners",
    minutes=18,
    difficulty=2,
    check=Check(
        trials=_trials,
        rules=(
            rule("result", 4, "all ranks have the parameters of Adam in one process"),
            rule("bytes", 3, "gradients and parameters are sent once", "result", also=_SENT),
            rule(
                "gradients",
                2,
                "after reduce a rank has only its share of the gradients",
                "result",
                also=grown_by("gradients"),
            ),
            rule(
                "optimizer",
                1,
                "between steps a rank has only its share and the state of that",
                "result",
                also=grown_by("optimizer"),
            ),
            rule("missing", 1, "parameters without a gradient are unchanged", "result"),
        ),
    ),
    reference="dtlab.simple.Zero2",
    symbol="Stage2",
    short_path="1 to 4",
)
