"""What 05/giant_gather, 05/policies and 05/leak, the broken trainings, have in common.

The programs are in `runs_scripts`, as the notebook shows them. Symptoms and numbers are measured
in a run of them; the mended ones are judged by what ranks do, and by the losses of one process.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from dtlab.grading.checking.objections import Objection
from dtlab.grading.checking.trials import Case, Observation, Trial
from dtlab.grading.questions.kinds import Mistake, Number
from dtlab.grading.scripts.mend import Proof
from dtlab.grading.scripts.symptoms import Finding, Scene, Symptom
from dtlab.units.unit05.blocks import alike

if TYPE_CHECKING:
    from torch import Tensor

    from dtlab.trace import Event

__all__ = [
    "EXACT",
    "GIANT",
    "GROWS",
    "IN_16_BITS",
    "ROUNDED",
    "SCRIPTS",
    "SYMPTOMS",
    "ShardedRun",
    "another_mean",
    "deep_and_wide",
    "grows",
    "narrow_gradients",
    "not_in_16_bits",
    "other_losses",
    "scene",
    "too_much_whole",
    "trials_of",
]

# How a check runs a program of Level III: what it is given, and what is noted of it --------------

RATE, _ROWS = 0.1, 8  # as in the scripts; samples of a rank in a step
_DEPTH = 6  # of the model in the notebook
REDUCES = ("reduce_scatter", "all_to_all", "all_reduce")  # what adds gradients up


@dataclass(frozen=True)
class ShardedRun(Case):
    """`script(model, batches)` on `steps` batches of random images for each rank.

    With `watched`, the bytes that exist are noted whenever a batch is drawn; with `kept`, so is
    what is kept outside of tensors.
    """

    seed: int
    width: int
    depth: int
    steps: int = 4
    watched: bool = True
    kept: bool = False

    def __str__(self) -> str:
        return f"{self.depth} layers of width {self.width}, {self.steps} steps"

    @property
    def layer(self) -> int:
        """Elements of a layer."""
        return 4 * self.width**2 + 3 * self.width

    @property
    def root(self) -> int:
        """Elements of what is in no layer."""
        return 65 * self.width + 10 * self.width + 10

    @property
    def elements(self) -> int:
        """Elements of the model."""
        return self.root + self.depth * self.layer

    def state(self) -> list[Tensor]:
        """Parameters to begin with: the same on all ranks.

        The more layers, the smaller, so that losses stay small at the same learning rate.
        """
        import torch

        from dtlab.units.unit05.runs_scripts import Net

        draw = torch.Generator().manual_seed(self.seed)
        shapes = [one.shape for one in Net(self.width, self.depth).parameters()]
        scale = min(1.0, _DEPTH / self.depth) ** 0.5
        return [torch.randn(one, generator=draw) * scale * one[-1] ** -0.5 for one in shapes]

    def batch(self, rank: int, step: int) -> tuple[Tensor, Tensor]:
        """Images and labels of a rank."""
        import torch

        draw = torch.Generator().manual_seed((1009 * self.seed + rank) * 97 + step)
        images = torch.randn(_ROWS, 64, generator=draw)
        return images, torch.randint(10, (_ROWS,), generator=draw)

    def given(self, rank: int, world_size: int) -> dict[str, Any]:
        return {
            "sizes": (self.width, self.depth),
            "state": self.state(),
            "batches": [self.batch(rank, step) for step in range(self.steps)],
            "watched": self.watched,
            "kept": self.kept,
        }

    @staticmethod
    def on_rank(fn: Callable[..., Any], given: dict[str, Any]) -> dict[str, Any]:
        from dtlab.units.unit05.runs_noted import noted

        return noted(fn, given)

    def mistake(self, results: Sequence[Any]) -> str:
        """See `Case`: what is wrong with a run is for its judges to say."""
        return ""


def one_process(case: ShardedRun, ranks: int) -> tuple[list[list[float]], list[list[Tensor]]]:
    """What one process comes to with all batches: each rank's losses; parameters by step."""
    import torch
    import torch.nn.functional as F

    from dtlab.units.unit05.runs_scripts import Net

    model = Net(case.width, case.depth)
    parameters = list(model.parameters())
    for parameter, numbers in zip(parameters, case.state(), strict=True):
        parameter.data = numbers
    losses: list[list[float]] = [[] for _ in range(ranks)]
    after = []
    for step in range(case.steps):
        every = []
        for rank in range(ranks):
            images, labels = case.batch(rank, step)
            every.append(F.cross_entropy(model(images), labels))
            losses[rank].append(float(every[-1].detach()))
        gradients = torch.autograd.grad(sum(every, torch.zeros(())) / ranks, parameters)
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.data = parameter.data - RATE * gradient
        after.append([one.detach().clone() for one in parameters])
    return losses, after


def events_of(one: Observation, *names: str) -> list[Event]:
    """What rank 0 called by these names, in order."""
    events = one.trace.events if one.trace is not None else ()
    return [event for event in events if event.rank == 0 and event.name in names]


def largest_gather(one: Observation) -> int:
    """Bytes of the largest all-gather of rank 0."""
    return max((event.bytes for event in events_of(one, "all_gather")), default=0)


SCRIPTS = "dtlab.units.unit05.runs_scripts."
_WIDTH, _DEPTH = 32, 6  # of the model in the notebook
EXACT, IN_16_BITS = 1e-3, 0.2  # of a loss
_LIMIT = 30.0  # seconds: the first program with PyTorch's FSDP imports it


def trials_of(
    ranks: int, *, half: tuple[int, int] = (9, 12), **more: Any
) -> Callable[[int], list[Trial]]:
    """A model of another size; `half` of its width is drawn between these."""

    def trials(seed: int) -> list[Trial]:
        draw = random.Random(seed)
        sizes = 2 * draw.randint(*half), draw.randint(4, 6)
        return [_trial(ranks, ShardedRun(draw.randrange(10**6), *sizes, **more))]

    return trials


def deep_and_wide(seed: int) -> list[Trial]:
    """Many narrow layers, a small part of the model each; and a few that are twice as wide.

    So neither a number of elements nor a part of the model says which modules are layers.
    """
    draw = random.Random(seed)
    width, depth = 2 * draw.randint(6, 9), draw.randint(22, 26)
    deep = ShardedRun(draw.randrange(10**6), width, depth, steps=2)
    return [_trial(3, deep), _trial(3, ShardedRun(deep.seed + 1, 2 * _WIDTH, 4))]


def _trial(ranks: int, case: ShardedRun) -> Trial:
    return Trial(ranks, [case], limit=_LIMIT)


def scene(ranks: int = 2, **more: Any) -> Trial:
    return _trial(ranks, ShardedRun(0, _WIDTH, _DEPTH, **more))


_ROOM, _MORE = 1.25, 1.1  # times what has to be whole, and to be held
_NOISE = 0.02  # of what is held: buffers that are still there
_OBJECTS = 0.75  # of a share: what a step leaves of its own accord is under half of one

# What a mended run has to do --------------------------------------------------------------------


def too_much_whole(case: ShardedRun, results: list[Any], one: Observation) -> str:
    for rank, seen in enumerate(results):
        part = seen["whole"] / (4 * case.elements)
        if part > 0.5:
            return f"while a layer computes on rank {rank}, {part:.0%} of the model is whole."
    largest, goal = largest_gather(one), 4 * max(case.layer, case.root)
    if largest > _ROOM * goal:
        return (
            f"the largest all-gather has {largest:,} bytes, and a layer {4 * case.layer:,}. Which "
            "modules of this model are blocks? It is not the notebook's size."
        )
    gathered = sum(event.bytes for event in events_of(one, "all_gather"))
    steps = min(case.steps, len(results[0]["losses"]))  # too few are told elsewhere
    if gathered < 0.9 * 2 * 4 * case.elements * steps:
        return (
            f"{gathered // steps:,} bytes are gathered in a step, of {4 * case.elements:,}. "
            "What is not gathered for backward stayed whole after forward."
        )
    return ""


def other_losses(near: float) -> Objection:
    def objection(case: ShardedRun, results: list[Any], one: Observation) -> str:
        wanted, _ = one_process(case, len(results))
        for rank, (seen, own) in enumerate(zip(results, wanted, strict=True)):
            losses = seen["losses"]
            if len(losses) != len(own):
                return (
                    f"rank {rank} returns {len(losses)} losses, and there are {len(own)} batches."
                )
            for step, (got, want) in enumerate(zip(losses, own, strict=True)):
                if not abs(got - want) <= near * want:
                    return (
                        f"rank {rank}, step {step}: the loss is {got:.4f}, and in one process "
                        f"{want:.4f}. Only what is broken has to change."
                    )
        return ""

    return objection


def grows(case: ShardedRun, results: list[Any], one: Observation) -> str:
    share = 4 * case.elements / len(results)
    # Buffers that collectives still have, and the memory in which the model began, count too.
    most = _MORE * (3 * share + 4 * (case.elements + case.layer + case.root))
    for rank, seen in enumerate(results):
        arrays = [kept["arrays"] for kept in seen["kept"][1:-1]]
        held = [a + b for a, b in zip(seen["alive"][1:-1], arrays, strict=True)]
        if _rises(held, _NOISE * held[0]):
            of_numpy = arrays[-1] - arrays[0]
            which = f", {of_numpy:,} of them in NumPy's arrays" if of_numpy > 0 else ""
            return (
                f"rank {rank} holds {held[-1] - held[0]:,} bytes more before the last batch than "
                f"before the second{which}. What is kept of each step?"
            )
        if max(held) > most:
            return (
                f"rank {rank} holds {max(held):,} bytes between steps. Its pieces, their "
                f"gradients and mean are {3 * share:,.0f}, beside buffers. Is the mean whole?"
            )
        if outside := _outside_of_tensors(seen["kept"][1:-1], share):
            return f"rank {rank}: {outside}"
    return ""


def _outside_of_tensors(kept: list[dict[str, int]], share: float) -> str:
    """What is said of Python's objects, and of graphs, that become more with every step."""
    objects, nodes = ([one[name] for one in kept] for name in ("objects", "nodes"))
    if _rises(objects, _OBJECTS * share):
        return (
            f"lists, bytes and other objects of Python's take {objects[-1] - objects[0]:,} bytes "
            "more before the last batch than before the second. What is kept of each step?"
        )
    if _rises(nodes, 0):
        return (
            f"before the second batch autograd remembers {nodes[0]} operations, and before the "
            f"last one {nodes[-1]}: a graph reaches back through all steps. Which tensor that you "
            "keep, or add up, still has its graph?"
        )
    return ""


def _rises(counts: list[int], by: float) -> bool:
    """Whether it is more at each step, by more than this."""
    return all(b > a + by for a, b in pairwise(counts))


def another_mean(case: ShardedRun, results: list[Any], one: Observation) -> str:
    import torch

    _, after = one_process(case, len(results))
    for place, steps in enumerate(zip(*after, strict=True)):
        got = torch.cat([seen["pieces"][place] for seen in results])
        if not alike(got, torch.stack(steps).mean(0).flatten()):
            last = alike(got, steps[-1].flatten())
            why = "It has the parameters of the last step." if last else ""
            return f"parameter {place} does not end as the mean over the steps. {why}".rstrip()
    return ""


def narrow_gradients(case: ShardedRun, results: list[Any], one: Observation) -> str:
    reduced = events_of(one, *REDUCES)
    narrow = [event for event in reduced if "16" in str(event.extra.get("dtype"))]
    if narrow:
        count = sum(event.bytes for event in narrow) // case.steps
        return (
            f"{count:,} bytes of gradients travel in 16 bits in each step, in {len(narrow)} "
            "operations. Which policy do these modules have?"
        )
    if sum(event.bytes for event in reduced) < 4 * case.elements * case.steps * 0.9:
        return "not all gradients are added up over the ranks."
    return ""


def not_in_16_bits(case: ShardedRun, results: list[Any], one: Observation) -> str:
    import torch

    for rank, seen in enumerate(results):
        if seen["inputs"] != ["bfloat16"]:
            return (
                f"layers compute in {' and '.join(seen['inputs'])} on rank {rank}, not bfloat16."
            )
        losses = torch.tensor(seen["losses"])
        if bool(losses.bfloat16().float().equal(losses)):
            return "the losses have no more digits than bfloat16: outputs are to be float32."
    wide = [e for e in events_of(one, "all_gather") if "32" in str(e.extra.get("dtype"))]
    if wide:
        return f"{len(wide)} all-gathers travel in float32: parameters are gathered in bfloat16."
    return _too_much_gathered(case, one)


def _too_much_gathered(case: ShardedRun, one: Observation) -> str:
    largest = largest_gather(one)
    if largest > _ROOM * 2 * max(case.layer, case.root):
        return f"an all-gather has {largest:,} bytes: is every layer still a block of its own?"
    return ""


# Symptoms of the programs of Level III, as the notebook lists them, and the numbers --------------

_APART = 0.25  # of a loss: rounding to bfloat16 takes a fifth of it

# What is measured -------------------------------------------------------------------------------


def _case(scene: Scene) -> ShardedRun:
    (case,) = scene.one.trial.cases
    assert isinstance(case, ShardedRun)
    return case


def _first(scene: Scene) -> dict[str, Any]:
    found: Any = scene.one.results[0][0]
    assert isinstance(found, dict)
    return found


def _giant(scene: Scene) -> Finding:
    part = _first(scene)["whole"] / (4 * _case(scene).elements)
    return Finding(part > 0.5, f"while a layer computed, {part:.0%} of the model was whole")


def _grows(scene: Scene) -> Finding:
    held = _first(scene)["alive"][1:-1]
    grows = all(b > a + _NOISE * held[0] for a, b in pairwise(held)) and bool(any(held))
    words = "more with every step" if grows else "not more with every step"
    return Finding(grows, f"between steps a rank held {words}")


def _rounded(scene: Scene) -> Finding:
    dtypes = {str(one.extra.get("dtype")) for one in events_of(scene.one, *REDUCES)}
    words = f"gradients travelled as {' and '.join(sorted(dtypes))}"
    return Finding(any(one.endswith("16") for one in dtypes), words)


def _wide(scene: Scene) -> Finding:
    inputs = _first(scene)["inputs"]
    dtypes = {str(one.extra.get("dtype")) for one in events_of(scene.one, "all_gather")}
    words = f"layers computed in {' and '.join(inputs)}, gathered were {' and '.join(dtypes)}"
    return Finding("bfloat16" in inputs and "float32" in dtypes, words)


def _rounded_losses(scene: Scene) -> Finding:
    import torch

    losses = torch.tensor(_first(scene)["losses"])
    rounded = bool(losses.bfloat16().float().equal(losses))
    return Finding(rounded, f"losses had {'no ' * rounded}more digits than bfloat16")


def _apart(scene: Scene) -> Finding:
    wanted, _ = one_process(_case(scene), len(scene.one.results[0]))
    found: list[Any] = scene.one.results[0]
    far = max(
        abs(a - b) / b
        for seen, own in zip(found, wanted, strict=True)
        for a, b in zip(seen["losses"], own, strict=True)
    )
    return Finding(far > _APART, f"losses were off those of one process by up to {far:.1%}")


def _stands(scene: Scene) -> Finding:
    import torch

    pairs = zip(_first(scene)["pieces"], _case(scene).state(), strict=True)
    moved = [not bool(torch.isin(own, start).all()) for own, start in pairs if own.numel()]
    return Finding(not any(moved), f"{sum(moved)} of {len(moved)} pieces moved")


SYMPTOMS: dict[str, Symptom] = {
    "giant gather": Symptom("while one layer computes, over half of the model is whole", _giant),
    "grows": Symptom("between steps a rank holds more bytes after every step", _grows),
    "rounded gradients": Symptom("gradients travel and are added up in 16 bits", _rounded),
    "wide gathers": Symptom("layers compute in 16 bits, and are gathered in 32", _wide),
    "rounded losses": Symptom("the losses have no more digits than bfloat16", _rounded_losses),
    "apart": Symptom("losses are off those of one process by over a quarter", _apart),
    "stands": Symptom("no piece of the parameters moves", _stands),
}

# The numbers ------------------------------------------------------------------------------------


def _of_gathers(scene: Scene) -> Mapping[str, Any]:
    case, ranks = _case(scene), scene.one.trial.world_size
    return {"bytes": largest_gather(scene.one), "ranks": ranks, "model": 4 * case.elements,
            "layer": 4 * case.layer, "root": 4 * case.root}  # fmt: skip


def _of_reduces(scene: Scene) -> Mapping[str, Any]:
    case = _case(scene)
    narrow = [one for one in events_of(scene.one, *REDUCES) if "16" in str(one.extra.get("dtype"))]
    step = sum(one.bytes for one in narrow) / case.steps
    return {"bytes": step, "steps": case.steps, "depth": case.depth, "root": 4 * case.root,
            "ranks": scene.one.trial.world_size}  # fmt: skip


def _of_memory(scene: Scene) -> Mapping[str, Any]:
    case, held = _case(scene), _first(scene)["alive"]
    return {
        "bytes": (held[-2] - held[1]) / (case.steps - 2),
        "steps": case.steps,
        "ranks": scene.one.trial.world_size,
    }


def _right(given: Mapping[str, Any]) -> float:
    return float(given["bytes"])


GIANT = Proof(
    _of_gathers,
    Number(
        _right,
        (
            Mistake(lambda g: g["bytes"] / g["ranks"], "that is what one rank has of it."),
            Mistake(lambda g: g["bytes"] / 4, "those are elements: a parameter has 4 bytes."),
            Mistake(lambda g: g["model"], "that is the whole model: what is outside its layers?"),
            Mistake(lambda g: g["layer"], "that is one layer, as it should be."),
            Mistake(lambda g: g["root"], "that is what is in no layer."),
        ),
        "Look through the events called all_gather, of one rank: which has the most bytes?",
        tolerance=0.001,
    ),
)

ROUNDED = Proof(
    _of_reduces,
    Number(
        _right,
        (
            Mistake(lambda g: g["bytes"] * g["steps"], "that is the whole run. Divide by steps."),
            Mistake(lambda g: 2 * g["bytes"], "that is what they would have in float32."),
            Mistake(lambda g: g["bytes"] / g["depth"], "that is one layer."),
            Mistake(lambda g: g["bytes"] / g["ranks"], "that is what one rank is left with."),
            Mistake(lambda g: g["bytes"] + g["root"], "some of these travel in float32."),
            Mistake(lambda g: g["root"], "those travel in float32, as they should."),
        ),
        "Add up the bytes of rank 0's events called reduce_scatter whose dtype has 16 bits, and "
        "divide by the steps.",
        tolerance=0.001,
    ),
)

GROWS = Proof(
    _of_memory,
    Number(
        _right,
        (
            Mistake(lambda g: g["bytes"] / g["ranks"], "that would be a rank's own pieces."),
            Mistake(lambda g: g["bytes"] * g["steps"], "that is all steps together."),
            Mistake(lambda g: g["bytes"] / 4, "those are elements: a parameter has 4 bytes."),
            Mistake(lambda g: g["bytes"] / 2, "that would be so in 16 bits."),
        ),
        "Compare what a rank holds when a batch is drawn with what it held at the batch before, "
        "from the second one on.",
        tolerance=0.02,
    ),
)
