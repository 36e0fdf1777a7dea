"""The decision tree for the strategy of a training job, as data.

A question compares two numbers. The answer is yes if the fact is at most the limit. It is also yes
if one of the two numbers is unknown (NaN), so that only known facts rule out a strategy.
`strategy.choose` computes the numbers.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from dtlab.predict.units import four_digits, in_gb

__all__ = ["FACTS", "ROOT", "TREE", "Leaf", "Question", "Step", "tree_words", "walk"]

Facts = Mapping[str, float]

FACTS: Final[Mapping[str, tuple[str, str]]] = MappingProxyType(
    {  # the name of each number, and its unit
        "budget_bytes": ("the budget of a GPU", "bytes"),
        "activation_bytes": ("the activations of one microbatch", "bytes"),
        "replica_bytes": ("a whole replica with its activations", "bytes"),
        "stage1_bytes": ("a rank's part at ZeRO stage 1", "bytes"),
        "stage2_bytes": ("a rank's part at ZeRO stage 2", "bytes"),
        "stage3_bytes": ("a rank's part at ZeRO stage 3", "bytes"),
        "tensor_bytes": ("a rank's part if a node divides the activations too", "bytes"),
        "split_bytes": ("a whole replica with a part of a sample", "bytes"),
        "split_stage3_bytes": ("a rank's part of the states and of a sample", "bytes"),
        "hours": ("the time on one GPU", "hours"),
        "deadline_hours": ("the time available", "hours"),
        "gpus_in_time": ("the fewest GPUs that could meet the deadline", "GPUs"),
        "num_gpus": ("the number of GPUs", "GPUs"),
        "num_blocks": ("the largest number of pipeline stages, one for each block", "GPUs"),
        "pipeline_bytes": ("a pipeline stage with its activations", "bytes"),
        "break_even_tokens": ("the tokens that hide the traffic of ZeRO stage 3", "tokens"),
        "tokens_per_gpu": ("the tokens of each GPU in a step", "tokens"),
    }
)


@dataclass(frozen=True)
class Question:
    """A branch: the next node is `no` if `facts[fact] > facts[limit]`, otherwise `yes`."""

    id: str
    text: str
    fact: str
    limit: str
    yes: str
    no: str

    def holds(self, facts: Facts) -> bool:
        """Return the answer; True if a number is unknown."""
        return not facts[self.fact] > facts[self.limit]


@dataclass(frozen=True)
class Leaf:
    """A strategy and the reason `why`; `because` is the id of the question that decided for it.

    `needs` is the fact with the bytes that each GPU then holds, or None if no strategy fits.
    """

    id: str
    strategy: str
    why: str
    because: str
    needs: str | None


_BUDGET: Final = "budget_bytes"
_NODES: Final[tuple[Question | Leaf, ...]] = (
    Question("replica", "Does a whole replica fit on a GPU?", "replica_bytes", _BUDGET,
             yes="time", no="sample"),
    # A whole replica fits: is one GPU fast enough?
    Question("time", "Is one GPU fast enough?", "hours", "deadline_hours",
             yes="one_gpu", no="gpus"),
    Leaf("one_gpu", "one GPU", "The model fits and training finishes in time. A second GPU would "
         "add communication, and work for you.", because="time", needs="replica_bytes"),
    Question("gpus", "Are there enough GPUs to finish in time?", "gpus_in_time", "num_gpus",
             yes="data", no="more_gpus"),
    Leaf("data", "data parallelism", "Every GPU holds a whole replica and processes other "
         "samples. The model does not change, and only gradients are sent, once per step.",
         because="time", needs="replica_bytes"),
    Leaf("more_gpus", "more GPUs", "Data parallelism is the right strategy, but even at an "
         "efficiency of 100 % these GPUs are too few.", because="gpus", needs="replica_bytes"),
    # A whole replica does not fit: are the model states too large, or a single sample?
    Question("sample", "Do the activations of one microbatch fit on a GPU?", "activation_bytes",
             _BUDGET, yes="stage1", no="split"),
    # The model states are too large: shard no more of them than necessary.
    Question("stage1", "Does the model fit with the optimizer state sharded?", "stage1_bytes",
             _BUDGET, yes="zero1", no="stage2"),
    Leaf("zero1", "ZeRO stage 1", "This is data parallelism in which each rank keeps only a shard "
         "of the optimizer state. A step with Psi parameters still sends 2 Psi elements, for any "
         "number of microbatches.", because="replica", needs="stage1_bytes"),
    Question("stage2", "Does the model fit with the gradients sharded too?", "stage2_bytes",
             _BUDGET, yes="zero2", no="stage3"),
    Leaf("zero2", "ZeRO stage 2", "Gradients are reduced to their owners in backward. A step with "
         "Psi parameters and k microbatches sends (k + 1) Psi elements.", because="replica",
         needs="stage2_bytes"),
    Question("stage3", "Does the model fit with the parameters sharded too?", "stage3_bytes",
             _BUDGET, yes="tokens", no="tensor"),
    Question("tokens", "Does compute hide the traffic of ZeRO stage 3?",
             "break_even_tokens", "tokens_per_gpu", yes="zero3", no="layers"),
    Leaf("zero3", "ZeRO stage 3 (FSDP)", "Parameters are gathered block by block, in forward and "
         "in backward. That sends 3 Psi elements for each microbatch with Psi parameters. The "
         "model does not change.", because="replica", needs="stage3_bytes"),
    # Too few tokens: send activations instead of parameters.
    Question("layers", "Is there at least one block for each GPU?", "num_gpus", "num_blocks",
             yes="pipeline", no="three_d"),
    Leaf("pipeline", "pipeline parallelism", "ZeRO stage 3 would send parameters for too few "
         "tokens. In a pipeline each GPU holds some of the blocks, and sends only the activations "
         "at its boundary. Use at least four microbatches for each pipeline stage, or the bubble "
         "is large.", because="tokens", needs="pipeline_bytes"),
    Leaf("three_d", "data x tensor x pipeline parallelism", "The model would fit at ZeRO stage 3, "
         "but each GPU has too few tokens to compute on during a gather. A pipeline alone does "
         "not help: there are fewer blocks than GPUs. Tensor parallelism in the node and a "
         "pipeline over nodes send activations instead.",
         because="tokens", needs="tensor_bytes"),
    Question("tensor", "Does it fit if the GPUs of a node share activations too?",
             "tensor_bytes", _BUDGET, yes="tensor_parallel", no="context"),
    Leaf("tensor_parallel", "tensor parallelism", "With sequence parallelism it divides "
         "activations too, not only states. It communicates in every layer, so use it inside a "
         "node; across nodes use ZeRO stage 3 or a pipeline.", because="stage3",
         needs="tensor_bytes"),
    Question("context", "Does it fit if all GPUs share states and activations?",
             "split_stage3_bytes", _BUDGET, yes="context_parallel", no="too_few"),
    Leaf("context_parallel", "context or domain parallelism with ZeRO stage 3", "Each sample and "
         "all model states are divided among all GPUs of all nodes.",
         because="tensor", needs="split_stage3_bytes"),
    Leaf("too_few", "more GPUs", "Even with everything sharded, each GPU's part is too large.",
         because="context", needs=None),
    # A single sample is too large: split it, by its tokens or by its space.
    Question("split", "Does a whole replica fit if all GPUs share a sample?", "split_bytes",
             _BUDGET, yes="split_sample", no="split_all"),
    Leaf("split_sample", "context or domain parallelism", "One sample is split: a sequence by its "
         "tokens, an image or a field by its space, with halos. The model is small enough for "
         "whole replicas.", because="sample", needs="split_bytes"),
    Question("split_all", "Does the model fit if all GPUs share the states too?",
             "split_stage3_bytes", _BUDGET, yes="split_and_shard", no="too_few_for_sample"),
    Leaf("split_and_shard", "context or domain parallelism with ZeRO stage 3", "One sample is "
         "split, by its tokens or by its space, and the states are sharded as well.",
         because="sample", needs="split_stage3_bytes"),
    Leaf("too_few_for_sample", "more GPUs", "Even with everything sharded, each GPU's part is "
         "too large.", because="split_all", needs=None),
)  # fmt: skip
ROOT: Final = "replica"
TREE: Final[Mapping[str, Question | Leaf]] = MappingProxyType({node.id: node for node in _NODES})


@dataclass(frozen=True)
class Step:
    """A question on the path, the two numbers that it compares, and the answer."""

    question: Question
    value: float
    limit: float
    holds: bool

    def __str__(self) -> str:
        fact, limit = FACTS[self.question.fact][0], FACTS[self.question.limit][0]
        value, most = self.numbers
        than = "is not more than" if self.holds else "is more than"
        return f"{fact}, {value}, {than} {limit}, {most}"

    @property
    def known(self) -> bool:
        """Whether both numbers are known."""
        return not math.isnan(self.value + self.limit)

    @property
    def numbers(self) -> tuple[str, str]:
        """Value and limit with their unit; bytes in GB, or in bytes if GB shows no difference."""
        unit = FACTS[self.question.fact][1]
        if unit != "bytes":
            return _words(self.value, unit), _words(self.limit, unit)
        value, limit = in_gb(self.value), in_gb(self.limit)
        if value == limit and self.value != self.limit:
            return f"{self.value:,.0f} bytes", f"{self.limit:,.0f} bytes"
        return value, limit


def _words(value: float, unit: str) -> str:
    return "not known" if math.isnan(value) else f"{four_digits(value)} {unit}"


def walk(facts: Facts) -> tuple[tuple[Step, ...], Leaf]:
    """Return the path from the root to a leaf, and the leaf, for these facts."""
    path: list[Step] = []
    node = TREE[ROOT]
    while isinstance(node, Question):
        holds = node.holds(facts)
        path.append(Step(node, facts[node.fact], facts[node.limit], holds))
        node = TREE[node.yes if holds else node.no]
    return tuple(path), node


def tree_words(path: Sequence[Step] = ()) -> str:
    """Return the tree as text, with the numbers of a `path` and an arrow `<--` at its leaf.

    Does a whole replica fit on a GPU?   642 GB > 80 GB
    ├─ yes: Is one GPU fast enough?
    │  ├─ yes: one GPU
    """
    return "\n".join(_lines(ROOT, "", "", {step.question.id: step for step in path}, bool(path)))


def _lines(
    node_id: str, head: str, indent: str, steps: Mapping[str, Step], on_path: bool
) -> Iterator[str]:
    """Yield the lines of a subtree; `head` precedes the first line, `indent` the other lines."""
    node, step = TREE[node_id], steps.get(node_id)
    if isinstance(node, Leaf):
        yield f"{head}{node.strategy}{'   <--' if on_path else ''}"
        return
    beside = "" if step is None else f"   {_comparison(step)}"
    yield f"{head}{node.text}{beside}"
    for answer, child in ((True, node.yes), (False, node.no)):
        fork, below = ("├─ yes: ", "│  ") if answer else ("└─ no: ", "   ")
        taken = on_path and step is not None and step.holds is answer
        yield from _lines(child, indent + fork, indent + below, steps, taken)


def _comparison(step: Step) -> str:
    return (" <= " if step.holds else " > ").join(step.numbers) if step.known else "not known"
