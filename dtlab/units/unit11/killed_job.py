"""11/killed_job: a training program that is killed and started again.

    original   the broken program, not killed: its training is right
    whole      the fixed program, not killed                              equal to the original?
    first      the fixed program, killed: before a step, or in a save     its disk remains
    second     the fixed program again, with this disk                    equal to the whole run?

These runs follow each other in one launch, each with a new model. Every rank has its own disk, a
stand-in that can be killed in the middle of a write. Parameters are compared bit for bit before
each step, so the load of the machine does not matter. The faults of the program:

    names as text      "step_8" comes after "step_12", so the newest checkpoint is not found
    seed after load    restores the random numbers, and then starts them anew
    save in a step     the scaler and the schedule in a checkpoint are one step behind
    final name         a half-written checkpoint has it too; hidden by the first fault
    own newest         ranks can continue from different steps; hidden by the one before
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from io import BytesIO
from typing import TYPE_CHECKING, Any

from dtlab.checks.comparison import same
from dtlab.checks.functions.criteria import Fault, Faulty, Noted, rule
from dtlab.checks.functions.trials import Trial
from dtlab.checks.programs.training import Scene, proof, script_part
from dtlab.predict.units import counted

if TYPE_CHECKING:
    from torch import Tensor, nn

__all__ = ["PART", "Disk", "Kill", "Killed", "Restarted", "first_difference"]

_LIMIT = 30.0  # seconds for runs that take one
_SIZES = (12, 10, 4)  # of the model's layers
_SAMPLES = 50


class Killed(BaseException):
    """Ends a run as SIGKILL would: a program must not catch it."""


@dataclass(frozen=True)
class Kill:
    """When a run is killed: before a step, or after a number of writes.

    In the last of `writes`, the ranks in `torn` get no further than the half. The others are
    killed before their next step.
    """

    step: int | None = None
    writes: int | None = None
    torn: tuple[int, ...] = ()


class Disk:
    """The disk of a rank: files with a name each. `rename` happens completely or not at all."""

    def __init__(self) -> None:
        self._files: dict[str, bytes | None] = {}  # None: half-written
        self.writes, self.tear_at = 0, 0  # the number of the write that stops half-way; 0: none

    def names(self) -> list[str]:
        """Return the names of all files, also of half-written ones, in no particular order."""
        return [*self._files]

    def save(self, name: str, state: Any) -> None:
        """Write a file with `torch.save`; an existing one is overwritten."""
        import torch

        file = BytesIO()
        torch.save(state, file)
        self.writes += 1
        is_torn = self.writes == self.tear_at
        self._files[name] = None if is_torn else file.getvalue()
        if is_torn:
            raise Killed

    def load(self, name: str) -> Any:
        """Read a file with `torch.load`. Raises: EOFError if it is half-written."""
        import torch

        content = self._files[name]
        if content is None:
            raise EOFError(f"{name} is only half-written")
        return torch.load(BytesIO(content), weights_only=True)

    def rename(self, old: str, new: str) -> None:
        """Give a file another name. If a file has that name already, it is replaced."""
        self._files[new] = self._files.pop(old)

    def remove(self, name: str) -> None:
        """Delete a file."""
        del self._files[name]


@dataclass(frozen=True)
class Restarted(Faulty):
    """Runs of `program(model, images, labels, disk, steps, every)`, one of which is killed."""

    also_shows = {"exact": ("training", "newest")}  # noqa: RUF012  as in `Faulty`

    topic: str
    seed: int
    steps: int
    every: int
    kill: Kill

    def __str__(self) -> str:
        where = f"killed before step {self.kill.step}"
        if self.kill.writes is not None:
            torn = " and ".join(map(str, self.kill.torn))
            where = f"killed while rank {torn} writes checkpoint {self.kill.writes}"
        return f"{self.steps} steps, a checkpoint after every {self.every}, {where}"

    @property
    def newest(self) -> int:
        """The step of the newest checkpoint that every rank has completely."""
        if self.kill.writes is not None:
            return (self.kill.writes - bool(self.kill.torn)) * self.every
        return (self.kill.step or 0) // self.every * self.every

    def given(self, rank: int, world_size: int) -> dict[str, Any]:
        import torch

        draw = torch.Generator().manual_seed(self.seed)
        images = torch.randn(_SAMPLES, _SIZES[0], generator=draw)
        labels = torch.randint(_SIZES[-1], (_SAMPLES,), generator=draw)
        kill, torn = self.kill, rank in self.kill.torn
        return {"data": [images, labels], "steps": self.steps, "every": self.every,
                "step": kill.step, "writes": kill.writes, "torn": torn}  # fmt: skip

    @staticmethod
    def on_rank(fn: Callable[..., Any], given: dict[str, Any]) -> dict[str, Any]:
        from dtlab.units.unit11.killed_job_script import resumable

        disk = Disk()
        runs = {"original": _run(resumable, given, Disk()), "whole": _run(fn, given, Disk())}
        runs["first"] = _run(fn, given, disk, kills=True)
        runs["second"] = _run(fn, given, disk)
        return runs

    def faults(self, results: Sequence[Noted]) -> Iterator[Fault]:
        for rank, runs in enumerate(results):
            if where := first_difference(runs["original"], runs["whole"], 0):
                words = "not killed, does not train as the program in the cell above"
                yield "training", f"rank {rank}, {words}: {where}. Change only what is broken."
        begun = [self.steps - len(runs["second"]["samples"]) for runs in results]
        for rank, step in enumerate(begun):
            if step != self.newest:
                kind = "torn" if step > self.newest and self.topic == "torn" else "newest"
                yield kind, f"rank {rank} goes on from step {step}. {self._advice(step)}"
        for rank, (runs, step) in enumerate(zip(results, begun, strict=True)):
            if step >= 0 and (where := first_difference(runs["whole"], runs["second"], step)):
                words = (
                    f"goes on from step {step}, and then differs from the run that is not killed"
                )
                yield "exact", f"rank {rank} {words}: {where}."

    def advice(self, trouble: str) -> str:
        if self.topic != "torn" or "EOFError" in trouble:
            return ""
        return (
            "Do all ranks go on from the same step? And does a rank wait, while it saves, for a "
            "rank that was killed?"
        )

    def _advice(self, step: int) -> str:
        complete = "No checkpoint is complete on all ranks."
        if self.newest:
            complete = f"The newest one that all ranks have completely is of step {self.newest}."
        if step > self.newest and self.kill.step is not None:
            return f"{complete} Save after every {self.every} steps, not more often."
        return complete


def _run(
    program: Callable[..., Any], given: dict[str, Any], disk: Disk, kills: bool = False
) -> dict[str, Any]:
    """Runs a program with a new model; returns what it trained on, step by step."""
    import torch

    model, notes = _model(), dict[str, Any](samples=[], random=[], before=[], killed=False)
    step, writes = (given["step"], given["writes"]) if kills else (None, None)
    disk.writes, disk.tear_at = 0, writes if writes and given["torn"] else 0

    def note(_: Any, inputs: tuple[Tensor]) -> None:
        if len(notes["samples"]) == step or (writes and disk.writes >= writes):
            raise Killed
        notes["samples"].append(inputs[0][:, 0].clone())
        notes["random"].append(torch.get_rng_state()[:64].clone())
        notes["before"].append(_flat(model))

    model.register_forward_pre_hook(note)
    torch.manual_seed(1)
    try:
        program(model, *given["data"], disk, given["steps"], given["every"])
    except Killed:
        notes["killed"] = True
    notes["before"].append(_flat(model))
    return notes


def _model() -> nn.Module:
    import torch
    from torch import nn

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        inputs, hidden, outputs = _SIZES
        return nn.Sequential(
            nn.Linear(inputs, hidden), nn.Tanh(), nn.Dropout(0.3), nn.Linear(hidden, outputs)
        )


def _flat(model: nn.Module) -> Tensor:
    import torch

    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def first_difference(run: Any, other: Any, begin: int) -> str:
    """Where a run, of all steps, first differs from another one that begins later; or empty."""
    if len(run["samples"]) - begin != len(other["samples"]):
        return f"it makes {counted(len(other['samples']), 'step')}"
    words = {"samples": "it trains on other samples", "random": "its random numbers are others",
             "before": "its parameters are others before it"}  # fmt: skip
    for step in range(begin, len(run["before"])):
        for key, what in words.items():
            found = other[key][step - begin : step - begin + 1]
            if found and not same(found[0], run[key][step]):
                is_end = step == len(run["samples"])
                return "its final parameters are others" if is_end else f"in step {step} {what}"
    return ""


# The part ----------------------------------------------------------------------------------------


def _measured(scene: Scene) -> dict[str, int]:
    first, second = (scene.results[0][run]["samples"] for run in ("first", "second"))
    return {"done": len(first), "begun": scene.case.steps - len(second)}


def _trials(seed: int) -> list[Trial]:
    draw = random.Random(seed)
    every, torn = draw.choice((3, 4)), draw.randint(0, 1)
    steps = 4 * every + 3
    cases = [
        (2, Restarted("exact", seed, steps, every, Kill(step=4 * every + 1))),
        (3, Restarted("exact", seed + 1, steps, every, Kill(step=draw.randint(5, 2 * every)))),
        (2, Restarted("torn", seed + 2, steps, every, Kill(writes=4, torn=(torn,)))),
        (2, Restarted("torn", seed + 3, steps, every, Kill(writes=2, torn=(1 - torn,)))),
        (3, Restarted("torn", seed + 4, steps, every, Kill(writes=1, torn=(draw.randint(0, 2),)))),
    ]
    return [Trial(ranks, [case], limit=_LIMIT) for ranks, case in cases]


PART = script_part(
    "11/killed_job", "Run A", 35, 3,
    "dtlab.units.unit11.killed_job_script.resumable",
    Trial(2, [Restarted("exact", 0, 16, 4, Kill(step=13))], limit=_LIMIT),
    _trials,
    (
        rule("training", 1, "a run that is not killed trains as before"),
        rule("exact", 3, "a resumed run equals the run that is not killed, bit for bit"),
        rule("newest", 2, "it goes on from the newest checkpoint that all ranks have"),
        rule("torn", 3, "a checkpoint that a rank has only in half does not count on any rank"),
    ),
    [
        "begin, names = 0, sorted(disk.names())",
        "state = disk.load(names[-1])",
        "torch.manual_seed(100 + rank)",
        "state = {name: part.state_dict() for name, part in parts.items()}",
        'disk.save(f"step_{step + 1}", state)',
        "scaler.update()",
        "schedule.step()",
    ],
    "Follow the state that the next step reads: when is it saved, which file is read, and what "
    "changes it afterwards?",
    proof=proof(
        _measured,
        "done - begun",
        "How many steps did the first run do, and from which step does the second one go on?",
        {
            "done - 12": "that is what it would be with the newest checkpoint. What does it load?",
            "begun": "that is the step from which it goes on. How many had been done before?",
            "done": "those are all steps of the first run. Which of them count?",
        },
    ),
)  # fmt: skip
