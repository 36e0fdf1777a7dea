"""07/run, extra: write the executor, which runs a rank's actions with sends and receives."""

from __future__ import annotations

import random
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from dtlab.checks.comparison import close
from dtlab.checks.functions.checks import Check
from dtlab.checks.functions.criteria import Fault, Faulty, Noted, Seen, of_topic, rule
from dtlab.checks.functions.finished import finished_calls
from dtlab.checks.functions.trials import Trial
from dtlab.checks.parts import Part
from dtlab.predict.units import counted
from dtlab.schedules import Action, Schedule, as_schedule, gpipe, one_f_one_b
from dtlab.units.unit07.judging import batch_of, loss_of, one_process, stage_net

if TYPE_CHECKING:
    from torch import Tensor, nn

FINISHED = (
    "dtlab.simple",
    "dtlab.parallel.pipeline.executor",
    "dtlab.parallel.pipeline.microbatches",
    "dtlab.parallel.pipeline.messages",
    "torch.distributed.pipelining.schedules",
    "torch.distributed.pipelining.stage",
)
_LIMIT = 3.0  # seconds
_NONE = 1e-6  # factor of a gradient: a smaller one counts as zero
_OF_TURNS = "order", "waits", "memory"  # criteria that wait for the result too
_LOCAL = 1  # graphs: that of the last microbatch, to which a local name may still refer


@dataclass(frozen=True)
class Running(Faulty):
    """Calls `fn(schedule, module, sizes, width, inputs, targets, loss)` on a given stage.

    rank r    fn(schedule, stage r, ...)
                  │  forward: logs F, and how many graphs of earlier microbatches are alive
                  ▼  backward: logs B
              returns gradients and log
    """

    finished: ClassVar[tuple[str, ...]] = FINISHED
    also_shows: ClassVar = {"result": _OF_TURNS, "turns": _OF_TURNS}
    advices: ClassVar = {
        "rank 0 receives from": "In backward, a gradient comes from the next stage: receive it "
        "from rank + 1."
    }

    seed: int
    schedule: Schedule
    name: str
    sizes: tuple[int, ...]
    width: int
    topic: str = "result"

    def __str__(self) -> str:
        return f"{self.name}, samples of the microbatches: {', '.join(map(str, self.sizes))}"

    @property
    def batch(self) -> tuple[list[Tensor], list[Tensor]]:
        """The inputs and targets, as one tensor per microbatch."""
        return batch_of(self.seed, self.sizes, self.width)

    def given(self, rank: int, world_size: int) -> dict[str, Any]:
        inputs, targets = self.batch
        net = stage_net(self.width, 6)
        return {
            "rows": [[str(action) for action in row] for row in self.schedule],
            "kind": net.kind,
            "layers": net.sizes,
            "state": net.state(self.seed + rank),
            "sizes": list(self.sizes),
            "width": self.width,
            "inputs": inputs if rank == 0 else None,
            "targets": targets if rank == world_size - 1 else None,
        }

    @staticmethod
    def on_rank(fn: Callable[..., Any], given: dict[str, Any]) -> dict[str, Any]:
        from dtlab.checks.functions.modules import filled

        module = filled(given["kind"], given["layers"], given["state"])
        log: list[str] = []
        graphs: list[int] = []
        _log_passes(module, log, graphs)
        names = ("sizes", "width", "inputs", "targets")
        with finished_calls(*FINISHED, refuse=True) as finished:
            fn(as_schedule(given["rows"]), module, *(given[name] for name in names), loss_of)
        return {
            "gradients": [parameter.grad for parameter in module.parameters()],
            "log": "".join(log),
            "graphs": graphs,
            "finished": sorted(finished),
        }

    def faults(self, results: Sequence[Noted]) -> Iterator[Fault]:
        net = stage_net(self.width, 6)
        modules = [net.module(self.seed + rank) for rank in range(len(results))]
        wanted = one_process(modules, *self.batch)
        gradients = [result["gradients"] for result in results]
        for rank in range(len(results)):
            if not _is_times(1.0, gradients[rank], wanted[rank]):
                without = any(gradient is None for gradient in gradients[rank])
                why = "a parameter has no gradient." if without else self._how(gradients, wanted)
                lacking = "" if without else self._undone(results)
                yield self.topic, lacking or f"rank {rank}: {why}"
                return
        if self.topic == "turns":
            yield from self._order_faults(results)

    def _undone(self, results: Sequence[Noted]) -> str:
        """Names the first action that a rank has left out at the end; empty if there is none."""
        for rank, (row, result) in enumerate(zip(self.schedule, results, strict=True)):
            listed, done = "".join(action.kind for action in row), str(result["log"])
            if done != listed and listed.startswith(done):
                left = row[len(done)]
                return f"rank {rank} does {done}, but its list is {listed}: {left} is missing."
        return ""

    def _how(
        self, grads: Sequence[Sequence[Tensor | None]], wanted: Sequence[Sequence[Tensor]]
    ) -> str:
        """Explains the gradients of all ranks, which are wrong."""
        factors = []
        for got, right in zip(grads, wanted, strict=True):
            last = got[-1] if got[-1] is not None else 0 * right[-1]
            factor = float((last * right[-1]).sum() / right[-1].square().sum())
            if abs(factor) > _NONE and _is_times(factor, got, right):
                factors.append(f"{factor:.3g}")
        if len(factors) == len(grads):
            if set(factors) == {str(len(self.sizes))}:
                return "gradients are those of the sum over the microbatches, not of the mean."
            listing = ", ".join(f"{factor} on rank {rank}" for rank, factor in enumerate(factors))
            return f"gradients are the right ones times {listing}. What is scaled already?"
        for k in (len(self.sizes) - 1, 0):
            if self._is_of_microbatch(k, grads):
                return (
                    f"gradients are those of microbatch {k} alone. Those of all microbatches add "
                    "up: is .grad cleared or overwritten between them?"
                )
        hints = {
            "uneven": " How much does a sample count in the mean over all samples?",
            "any": " Ranks order microbatches differently: which microbatch is in each message?",
        }
        hint = hints.get(self.topic) or _where(grads, wanted)
        return f"gradients are not those of one process.{hint}"

    def _is_of_microbatch(self, number: int, grads: Sequence[Sequence[Tensor | None]]) -> bool:
        """Whether these are the gradients of one microbatch, averaged or weighted by its size."""
        modules = [stage_net(self.width, 6).module(self.seed + rank) for rank in range(len(grads))]
        inputs, targets = self.batch
        alone = one_process(modules, [inputs[number]], [targets[number]])
        share = self.sizes[number] / sum(self.sizes)
        return any(
            all(_is_times(factor, got, right) for got, right in zip(grads, alone, strict=True))
            for factor in (1.0, share)
        )

    def _order_faults(self, results: Sequence[Noted]) -> Iterator[Fault]:
        """Yields faults in the order of actions, and in the graphs that stay alive."""
        for rank, (row, result) in enumerate(zip(self.schedule, results, strict=True)):
            listed, done = "".join(action.kind for action in row), str(result["log"])[:200]
            if done != listed:
                yield "order", f"rank {rank} does {done}, but its list is {listed}."
                break
        for rank, result in enumerate(results):
            in_flight, graphs = 0, list(map(int, result["graphs"]))
            for kind in str(result["log"]):
                if kind == "F" and graphs.pop(0) > in_flight + _LOCAL:
                    yield (
                        "memory",
                        f"rank {rank}: when a forward begins while "
                        f"{counted(in_flight, 'microbatch', 'microbatches')} are "
                        "in flight, more graphs than that are still alive. What still refers to "
                        "their outputs or losses?",
                    )
                    return
                in_flight += 1 if kind == "F" else -1


def _where(
    grads: Sequence[Sequence[Tensor | None]], wanted: Sequence[Sequence[Tensor]]
) -> str:
    """A hint from the ranks whose gradients are wrong."""
    last = len(grads) - 1
    wrong = [rank for rank in range(last + 1) if not _is_times(1.0, grads[rank], wanted[rank])]
    if last in wrong:
        return (
            f" Neither are those of rank {last}, which computes the loss: look at its loss, its "
            "targets, and its inputs."
        )
    sender = max(wrong) + 1
    return (
        f" Those of rank {sender} are right: does it send back the gradient of the tensor that it "
        f"received, and does rank {sender - 1} start its backward with that?"
    )


def _log_passes(module: nn.Module, log: list[str], graphs: list[int]) -> None:
    """Makes the module log F and B, and at each F the number of graphs that are alive."""
    living: weakref.WeakSet[Callable[..., None]] = weakref.WeakSet()
    forward = module.forward

    def logged_forward(x: Tensor) -> Tensor:
        def begins(_: Tensor) -> None:  # lives as long as the graph of this forward
            log.append("B")

        output: Tensor = forward(x)
        log.append("F")
        graphs.append(len(living))
        if output.requires_grad:
            output.register_hook(begins)  # type: ignore[no-untyped-call]
            living.add(begins)
        return output

    module.forward = logged_forward


def _is_times(factor: float, grads: Sequence[Tensor | None], right: Sequence[Tensor]) -> bool:
    """Whether these are the right gradients times this factor."""
    pairs = zip(grads, right, strict=True)
    return all(got is not None and close(got, factor * wanted) for got, wanted in pairs)


def _unwaited(observations: Seen) -> str:
    """Names a send that a rank does not wait for under 1F1B; empty if there is none."""
    for run in of_topic(observations, "turns"):
        for event in run.trace.events if run.trace is not None else ():
            if event.name == "send" and not event.extra.get("blocked", True):
                peer = ", ".join(map(str, event.peers))
                return (
                    f"{run.trial.words()}: rank {event.rank} does not wait for a send to rank "
                    f"{peer}. Its tensor may be freed before the send is complete."
                )
    return ""


def shuffled(draw: random.Random, count: int) -> Schedule:
    """A schedule of two ranks with different orders of microbatches, forward and backward."""
    numbers = range(count)
    rows: list[list[Action]] = []
    forwards, backwards = draw.sample(numbers, count), draw.sample(numbers, count)
    rows.append([Action(0, "F", k) for k in forwards] + [Action(0, "B", k) for k in backwards])
    others = draw.sample(numbers, count)
    rows.append([Action(1, kind, k) for k in others for kind in "FB"])
    different = others[0] != forwards[0] and backwards[0] != others[0]
    return Schedule(rows) if different else shuffled(draw, count)


def _trials(seed: int) -> list[Trial]:
    """Trials with GPipe (all messages one way, then the other), a short microbatch, 1F1B, any."""
    draw = random.Random(seed)

    def case(schedule: Schedule, name: str, topic: str, short: bool = False) -> Running:
        size, count = draw.randint(6, 7), max(action.microbatch for action in schedule[0]) + 1
        sizes = (*[size] * (count - 1), draw.randint(1, size - 2) if short else size)
        return Running(draw.randrange(10**6), schedule, name, sizes, draw.randint(3, 6), topic)

    return [
        Trial(3, [case(gpipe(3, draw.randint(3, 5)), "GPipe", "result")], limit=_LIMIT),
        Trial(1, [case(gpipe(1, 3), "GPipe", "result")], limit=_LIMIT),
        Trial(2, [case(gpipe(2, 3), "GPipe", "uneven", short=True)], limit=_LIMIT),
        Trial(3, [case(one_f_one_b(3, draw.randint(7, 8)), "1F1B", "turns")], limit=_LIMIT),
        Trial(2, [case(shuffled(draw, 4), "another order on each rank", "any")], limit=_LIMIT),
    ]


PART = Part(
    name="07/run",
    level=2,
    title="The executor",
    minutes=30,
    difficulty=3,
    stretch=True,
    check=Check(
        trials=_trials,
        compiles=True,  # the first backward with a gradient argument imports the compiler too
        rules=(
            rule("result", 3, "with GPipe, gradients are those of one process"),
            rule("uneven", 1, "samples have equal weight, even in a short microbatch", "result"),
            rule("turns", 2, "1F1B runs to its end on all ranks", "result"),
            rule("order", 1, "actions run in the order of the list", "turns", on="turns"),
            rule(
                "waits",
                1,
                "run returns when all messages are sent",
                "turns",
                also=_unwaited,
                on="turns",
            ),
            rule("memory", 2, "a microbatch is released after its backward", "turns", on="turns"),
            rule("any", 1, "microbatches may come in any order", "result"),
        ),
    ),
    reference="dtlab.simple.run_schedule",
)
