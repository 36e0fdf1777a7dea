"""The planner: memory and step time of one way to spread a model over a cluster.

    evaluate(model, cluster, 2048, Plan(tensor=8, pipeline=16, data=64), card="H100 SXM")

A plan says how many GPUs each kind of parallelism gets, and how a step runs:

    tensor x context x pipeline x data    divide one layer | one sequence | the layers | the batch
    ZeRO stage 0 to 3                     which states the ranks of (data x context) divide
    microbatch, schedule, chunks          the order of work in the pipeline
    recompute, sequence_parallel          which activations are saved, and on which rank

`evaluate` adds up bytes and seconds with the formulas of `predict.memory`,
`predict.communication` and, for pipelines, `pipeline.py`. `search`, in `all_plans.py`, does the
same arithmetic for all plans at once, in NumPy arrays; a test compares the two on random problems.

What the estimate assumes:

- `efficiency` is one number for all plans, so kernels do not slow down on small matrices.
- The last pipeline stage has the layers that are missing if the stages do not divide them, and the
  output head. A pipeline's messages occupy no rank and do not slow each other down.
- Tensor and context parallelism do not overlap with computing. With sequence parallelism, backward
  gathers the inputs of the column-parallel layers again; this overlaps with the gradients of these
  inputs (Korthikanti et al. 2022, section 4.2.2), and is not counted.
- The communication of the data axis hides behind the forward or backward of one microbatch, even
  the first gather of ZeRO stage 3 and the reduction of the last gradients, which overlap with
  nothing in a real run.
- Fused attention computes the half of the matrix that a causal mask leaves, and the MFU counts
  this half only. Papers often count the whole matrix, which gives a higher MFU.

It leaves out the optimizer's step, the input pipeline, and stragglers.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal, get_args

from dtlab.predict.communication import (
    all_gather_seconds,
    reduce_scatter_seconds,
    ring_all_reduce_seconds,
)
from dtlab.predict.hardware import CARDS, Card, Cluster, Link
from dtlab.predict.memory import PrecisionPolicy, model_states, precision_policy
from dtlab.predict.plan.pipeline import Work, pipeline_seconds
from dtlab.predict.transformer import Recompute, Transformer, activation_bytes
from dtlab.predict.units import check_bytes, check_count, counted, in_gb, is_number

__all__ = ["Estimate", "Plan", "Problem", "Transformer", "evaluate"]

Schedule = Literal["1f1b", "gpipe", "interleaved", "zb_h1"]
SCHEDULES: Final[tuple[tuple[Schedule, int], ...]] = (  # with the chunks that are tried
    ("1f1b", 1), ("gpipe", 1), ("zb_h1", 1),
    ("interleaved", 2), ("interleaved", 3), ("interleaved", 4), ("interleaved", 6),
    ("interleaved", 8),
)  # fmt: skip
RECOMPUTE: Final[tuple[Recompute, ...]] = ("none", "selective", "full")
AXES: Final = ("tensor", "context", "pipeline", "data")
_CHOICES: Final[Mapping[str, Sequence[Any]]] = {  # the values that fields of a plan may have
    "zero": range(4),
    "schedule": get_args(Schedule),
    "recompute": RECOMPUTE,
    "sequence_parallel": (False, True),
}
_FOR_TENSORS: Final = 0.9  # of a card's memory; the CUDA context and gaps take the rest
LOGIT_BYTES: Final = 6  # fp32 logits, and their gradient in 16 bits


# The problem: a model, a cluster, a batch --------------------------------------------------------


@dataclass(frozen=True)
class Problem:
    """The model, cluster and limits for which plans are evaluated; for the fields see `search`."""

    model: Transformer
    cluster: Cluster
    batch: int
    card: Card
    memory: float
    efficiency: float
    policy: PrecisionPolicy

    @property
    def flops_per_second(self) -> float:
        """FLOP/s of one GPU: its dense bf16 peak times the efficiency of the kernels."""
        assert self.card.bf16_flops is not None  # `problem_of` checks it
        return self.card.bf16_flops * self.efficiency


@dataclass(frozen=True)
class Plan:
    """How one model is spread over the GPUs, with the tensor axis innermost and data outermost.

    `tensor`, `context`, `pipeline` and `data` are numbers of ranks. `zero` is the ZeRO stage,
    `microbatch` the sequences in a microbatch, `chunks` the pipeline stages on each rank.
    """

    tensor: int = 1
    context: int = 1
    pipeline: int = 1
    data: int = 1
    zero: int = 0
    microbatch: int = 1
    schedule: Schedule = "1f1b"
    chunks: int = 1
    recompute: Recompute = "none"
    sequence_parallel: bool = False

    @property
    def gpus(self) -> int:
        """The number of GPUs that the plan uses."""
        return self.tensor * self.context * self.pipeline * self.data

    @property
    def odd(self) -> str:
        """Why a value of the plan is impossible on every cluster; empty if all are possible."""
        return next(iter(self.odd_values().values()), "")

    def odd_values(self) -> dict[str, str]:
        """Return why a value is impossible on every cluster, for each field with such a value."""
        odd = {}
        for name in (*AXES, "microbatch", "chunks"):
            try:
                check_count(name, getattr(self, name))
            except ValueError as error:
                odd[name] = str(error).removesuffix(".")
        for name, choices in _CHOICES.items():
            if getattr(self, name) not in choices:
                words = ", ".join(map(str, choices))
                odd[name] = f"{name} must be one of {words}, not {getattr(self, name)!r}"
        return odd

    def __str__(self) -> str:
        words = [f"tp {self.tensor}" + " with sequence parallelism" * self.sequence_parallel]
        words += [f"cp {self.context}"] * (self.context > 1)
        words += [f"pp {self.pipeline}", f"dp {self.data}", f"ZeRO {self.zero}"]
        words.append(f"microbatch {self.microbatch}")
        if self.pipeline > 1:
            words.append(self.schedule + f" in {self.chunks} chunks" * (self.chunks > 1))
        words += [f"{self.recompute} recomputation"] * (self.recompute != "none")
        return ", ".join(words)


# One plan: the simple version --------------------------------------------------------------------


@dataclass(frozen=True)
class Estimate:
    """The memory and the step time of a plan.

    `memory` has the bytes on the fullest GPU by purpose, `seconds` the step time by cause.
    `reason` says why the plan cannot run; it is empty if the plan can run. An illegal plan has
    neither bytes nor seconds.
    """

    plan: Plan
    reason: str
    memory: Mapping[str, float]
    seconds: Mapping[str, float]
    problem: Problem

    @property
    def reasons(self) -> list[str]:
        """All reasons why the plan cannot run that do not follow from another one.

        The first is `reason`, which the plan must correct first.
        """
        illegal = list(_illegal(self.problem, self.plan))
        return illegal or [self.reason] * bool(self.reason)

    @property
    def bytes(self) -> float:
        """Bytes on the fullest GPU."""
        return sum(self.memory.values())

    @property
    def step_seconds(self) -> float:
        """Seconds of one step."""
        return sum(self.seconds.values())

    @property
    def flops_per_gpu(self) -> float:
        """Model FLOPs per second and GPU; recomputation does not count."""
        flops = self.problem.model.step_flops(self.problem.batch)
        return flops / self.step_seconds / self.plan.gpus

    @property
    def mfu(self) -> float:
        """Model FLOPs utilisation: `flops_per_gpu` divided by the card's peak.

        With fused attention, it counts the causal half of attention's operations.
        """
        return self.flops_per_gpu * self.problem.efficiency / self.problem.flops_per_second

    def words(self) -> list[str]:
        """Return sentences on each cost above 1 % of the step, and on what would reduce it."""
        return list(_explained(self))

    def __str__(self) -> str:
        if self.reason:
            return f"{self.plan}: {self.reason}"
        return (
            f"{self.plan}: {self.step_seconds:.4g} s a step, {in_gb(self.bytes)} per GPU, "
            f"MFU {self.mfu:.1%}"
        )


def evaluate(
    model: Transformer,
    cluster: Cluster,
    batch: int,
    plan: Plan,
    *,
    card: str | Card = "H100 SXM",
    memory: float | None = None,
    efficiency: float = 0.5,
    policy: str | PrecisionPolicy = "mixed",
) -> Estimate:
    """Return the memory and the step time of one plan. For the arguments see `search`.

    A plan that cannot run is not an error: the estimate then has a `reason`.
    Raises: ValueError for invalid arguments.
    """
    return estimate_of(problem_of(model, cluster, batch, card, memory, efficiency, policy), plan)


def problem_of(
    model: Transformer,
    cluster: Cluster,
    batch: int,
    card: str | Card,
    memory: float | None,
    efficiency: float,
    policy: str | PrecisionPolicy,
) -> Problem:
    """Return the problem with these arguments of `search`. Raises: ValueError for invalid ones."""
    if isinstance(card, str):
        if card not in CARDS:
            raise ValueError(f"card must be one of {', '.join(CARDS)}, or a Card, not {card!r}.")
        card = CARDS[card]
    if card.bf16_flops is None:
        raise ValueError(
            f"the bf16 FLOP/s of {card.name} are not known. Pass a Card that has them."
        )
    if not (is_number(efficiency) and 0 < efficiency <= 1):
        raise ValueError(
            "efficiency must be a fraction of the card's peak, above 0 and at most 1, not "
            f"{efficiency!r}."
        )
    budget = _FOR_TENSORS * card.memory if memory is None else check_bytes("memory", memory)
    return Problem(
        model, cluster, check_count("batch", batch), card, budget, efficiency,
        precision_policy(policy),
    )  # fmt: skip


def estimate_of(problem: Problem, plan: Plan) -> Estimate:
    """Return the memory and the step time of a plan for a problem; see `evaluate`."""
    reason = next(_illegal(problem, plan), "")
    if reason:
        return Estimate(plan, reason, {}, {}, problem)
    memory = _memory(problem, plan)
    needed = sum(memory.values())
    if needed > problem.memory:
        reason = f"needs {in_gb(needed)} per GPU, but each GPU has {in_gb(problem.memory)}"
    return Estimate(plan, reason, memory, _seconds(problem, plan), problem)


def _illegal(problem: Problem, plan: Plan) -> Iterator[str]:
    """Yield why this plan cannot run, even with unlimited memory; nothing if it can run.

    A reason that follows from an earlier one, or that an odd value hides, is left out.
    """
    odd = plan.odd_values()
    yield from odd.values()

    def known(*names: str) -> bool:
        return odd.keys().isdisjoint(names)

    model, tokens = problem.model, problem.model.sequence_length
    if known(*AXES) and plan.gpus != problem.cluster.size:
        used = counted(plan.gpus, "GPU")
        yield f"the plan uses {used}, but the cluster has {problem.cluster.size:,}"
    if known("tensor") and model.num_heads % plan.tensor:
        yield f"{plan.tensor} tensor ranks do not divide {model.num_heads} heads"
    elif known("tensor") and model.keys % plan.tensor:
        yield f"{plan.tensor} tensor ranks do not divide {model.keys} heads of keys and values"
    if known("context"):
        yield from _illegal_context(model, plan)
    if known("pipeline") and plan.pipeline > model.num_layers:
        yield f"{plan.pipeline} pipeline stages cannot share {model.num_layers} layers"
    if known("data", "microbatch"):
        yield from _illegal_batch(problem, plan)
    elif known("data") and problem.batch % plan.data:
        yield f"{plan.data} data ranks do not divide a batch of {problem.batch}"
    if known("zero", "data", "context") and plan.zero and plan.data * plan.context == 1:
        yield "ZeRO has no second rank to share with"
    if known("sequence_parallel", "tensor", "context") and plan.sequence_parallel:
        if plan.tensor == 1:
            yield "sequence parallelism needs tensor ranks"
        elif not any(_illegal_context(model, plan)) and tokens // plan.context % plan.tensor:
            yield f"{plan.tensor} tensor ranks do not divide the tokens of a rank"
    if plan.recompute == "selective" and model.fused_attention:
        yield "fused attention keeps no matrices to recompute"
    if known("pipeline", "schedule", "chunks"):
        yield from _illegal_schedule(problem, plan, known("data", "microbatch"))


def _illegal_context(model: Transformer, plan: Plan) -> Iterator[str]:
    if plan.context > 1 and not model.fused_attention:
        yield "context parallelism needs fused attention"
    if plan.context > 1 and model.sequence_length % (2 * plan.context):
        yield f"2 x {plan.context} context ranks do not divide {model.sequence_length} tokens"


def _illegal_batch(problem: Problem, plan: Plan) -> Iterator[str]:
    share, rest = divmod(problem.batch, plan.data)
    if rest:
        yield f"{plan.data} data ranks do not divide a batch of {problem.batch}"
    elif share % plan.microbatch:
        yield f"microbatches of {plan.microbatch} do not divide a rank's {share} sequences"


def _illegal_schedule(problem: Problem, plan: Plan, knows_batch: bool) -> Iterator[str]:
    layers = problem.model.num_layers
    if plan.pipeline == 1 and plan.schedule != "1f1b":
        yield "one pipeline stage needs no other schedule"
    elif (plan.schedule == "interleaved") != (plan.chunks > 1):
        yield "chunks belong to the interleaved schedule"
    elif plan.pipeline <= layers < plan.pipeline * plan.chunks:
        yield f"{plan.pipeline} x {plan.chunks} chunks cannot share {layers} layers"
    elif plan.chunks > 1 and knows_batch and not any(_illegal_batch(problem, plan)):
        many = problem.batch // plan.data // plan.microbatch
        if many % plan.pipeline:
            yield f"interleaved microbatches come in groups of {plan.pipeline}"


def _layers(problem: Problem, plan: Plan) -> tuple[int, int, int]:
    """Return the numbers of layers in a chunk, on the first and on the last pipeline stage."""
    chunk = math.ceil(problem.model.num_layers / (plan.pipeline * plan.chunks))
    stage = chunk * plan.chunks
    spare = plan.pipeline * stage - problem.model.num_layers
    return chunk, stage, stage - min(spare, stage)


def _memory(problem: Problem, plan: Plan) -> dict[str, float]:
    """Return the bytes on the fullest GPU, of the first or the last pipeline stage, by purpose."""
    model, (t, p) = problem.model, (plan.tensor, plan.pipeline)
    chunk, first, last = _layers(problem, plan)
    microbatches = problem.batch // (plan.data * plan.microbatch)
    in_flight = {
        "1f1b": (min(p, microbatches) * first, last),
        "zb_h1": (min(p, microbatches) * first, min(p, microbatches) * last),
        "gpipe": (microbatches * first, microbatches * last),
        "interleaved": (
            min(microbatches * plan.chunks, p * plan.chunks + p - 1) * chunk,
            min(microbatches * plan.chunks, (plan.chunks - 1) * p + 1) * chunk,
        ),
    }[plan.schedule]
    kept = _activations(problem, plan, plan.recompute)
    again = _activations(problem, plan, "none") if plan.recompute == "full" else 0
    tokens = plan.microbatch * model.sequence_length // plan.context
    logits = LOGIT_BYTES * tokens * model.vocab_size / t
    embedding = model.embedding_params
    positions = 0 if model.gated else model.sequence_length * model.hidden_size
    ends = []
    for layers, kept_layers, is_first, is_last in (
        (first, in_flight[0], True, p == 1),
        (last, in_flight[1], p == 1, True),
    ):
        tables = embedding * (is_first + (is_last and (model.gated or p > 1)))
        params = math.ceil((layers * model.layer_params + tables) / t) + positions * is_first
        states = model_states(params, plan.zero, plan.data * plan.context, problem.policy)
        layer = model.layer_params / t
        gathered = layer * (2 * problem.policy.weights + problem.policy.gradients)
        ends.append({
            "parameters": states.parameters,
            "gradients": states.gradients,
            "optimizer state": states.optimizer,
            "gathered layers": gathered if plan.zero == 3 else 0.0,
            "activations": kept_layers * kept + again,
            "logits": logits * is_last,
        })  # fmt: skip
    return max(ends, key=lambda end: sum(end.values()))


def _activations(problem: Problem, plan: Plan, recompute: Recompute) -> float:
    """Return the bytes of activations that one layer saves for one microbatch on one GPU."""
    model = problem.model
    return activation_bytes(
        model.sequence_length // plan.context, plan.microbatch, model.hidden_size,
        model.num_heads, plan.tensor, plan.sequence_parallel, recompute, model.dropout,
        model.fused_attention, kv_heads=model.keys, mlp_size=model.mlp, gated=model.gated,
    )  # fmt: skip


def _links(problem: Problem, plan: Plan) -> dict[str, Link]:
    """Return the link that each axis uses: `intra` if each group of the axis lies in one node."""
    links, ranks = {}, 1
    for axis in ("tensor", "context", "pipeline", "data"):
        ranks *= getattr(plan, axis)
        inside = problem.cluster.gpus_per_node % ranks == 0
        links[axis] = problem.cluster.intra if inside else problem.cluster.inter
    if plan.data == 1:  # then the ranks that share states are those of the context axis
        links["data"] = links["context"]
    return links


def _seconds(problem: Problem, plan: Plan) -> dict[str, float]:
    """Return the seconds of one step, by cause. Of communication only the exposed part counts."""
    model, policy, links = problem.model, problem.policy, _links(problem, plan)
    t, c, p, n = plan.tensor, plan.context, plan.pipeline, plan.data * plan.context
    _, first, last = _layers(problem, plan)
    microbatches = problem.batch // (plan.data * plan.microbatch)
    tokens = plan.microbatch * model.sequence_length / c
    speed = t * problem.flops_per_second  # of the ranks that compute one layer together

    # Seconds of one layer for one microbatch: forward, and backward with its recomputation.
    compute = tokens * model.layer_flops / speed
    head = tokens * model.head_flops / speed
    hidden = 2 * tokens * model.hidden_size  # bytes of the hidden states between two layers
    tensor = 2 * ring_all_reduce_seconds(hidden, t, links["tensor"])
    keys = 2 * hidden * c * model.keys / model.num_heads / t
    context = all_gather_seconds(keys, c, links["context"])
    again, tensor_again, context_again = 0.0, 0.0, 0.0
    if plan.recompute == "full":
        again, tensor_again, context_again = compute, tensor, context
    if plan.recompute == "selective":
        again = tokens * model.attention_flops / speed
    forward = compute + tensor + context
    backward = 2 * compute + tensor + 2 * context + again + tensor_again + context_again

    # Seconds of a stage, and of the last one, which also computes the head.
    weights = 2 * tokens * model.layer_weights / speed  # W: attention's products have none
    layer = Work(forward, backward - weights, weights)
    work = Work(*(first * each for each in layer))
    end = Work(*(last * each + head for each in layer))
    layers, heads = (last, 1) if p == 1 or end.total > work.total else (first, 0)
    slower = end if heads else work
    sent = hidden / t  # each tensor rank sends its share: Narayanan et al. 2021, section 4.1
    message = links["pipeline"].seconds(sent) if p > 1 else 0.0
    without, with_messages = (
        float(pipeline_seconds(plan.schedule, p, microbatches, plan.chunks, work, end, each))
        for each in (0.0, message)
    )

    # Communication among the ranks that share states: once per step, or once per microbatch at
    # ZeRO stages 2 and 3.
    embeddings = model.embedding_params * (1 if p > 1 or not model.gated else 2)
    params = (first * model.layer_params + embeddings) / t
    reduce = reduce_scatter_seconds(policy.gradients * params, n, links["data"])
    gather = all_gather_seconds(policy.weights * params, n, links["data"])
    data = [
        max(0.0, 2 * reduce - slower.backward),
        max(0.0, reduce - slower.backward) + max(0.0, gather - slower.forward),
        microbatches * max(0.0, reduce - slower.backward) + max(0.0, gather - slower.forward),
        microbatches
        * (max(0.0, gather - slower.forward) + max(0.0, gather + reduce - slower.backward)),
    ][plan.zero]

    even = model.step_flops(problem.batch) / plan.gpus / problem.flops_per_second
    return {
        "compute": even,
        "uneven stages": microbatches * 3 * (layers * compute + heads * head) - even,
        "recomputation": microbatches * layers * again,
        "tensor parallelism": microbatches * layers * (2 * tensor + tensor_again),
        "context parallelism": microbatches * layers * (3 * context + context_again),
        "pipeline bubble": without - microbatches * slower.total,
        "pipeline messages": with_messages - without,
        "data parallelism": data,
    }


# A plan in words ---------------------------------------------------------------------------------


def _explained(estimate: Estimate) -> Iterator[str]:
    """Yield sentences on the costs of a step, the largest first, and on the obvious remedies."""
    if not estimate.seconds:
        yield f"It cannot run: {estimate.reason}."
        return
    total = estimate.step_seconds
    costs = sorted(estimate.seconds.items(), key=lambda cost: -cost[1])
    yield f"Compute without recomputation: {estimate.seconds['compute'] / total:.0%} of the step."
    for name, seconds in costs:
        if name == "compute" or seconds < 0.01 * total:
            continue
        share = f"{name.capitalize()}: {seconds / total:.0%} of the step."
        yield f"{share} {_change(estimate, name)}".rstrip()
    most = max(estimate.memory, key=lambda part: estimate.memory[part])
    yield (
        f"Each GPU holds {in_gb(estimate.bytes)} of {in_gb(estimate.problem.memory)}; the "
        f"largest part, {in_gb(estimate.memory[most])}, is {most}."
    )


def _change(estimate: Estimate, cost: str) -> str:
    """Return a sentence on what the obvious remedy for a cost would gain, or why it cannot run."""
    plan = estimate.plan
    half, twice = plan.microbatch // 2, plan.data * 2
    if plan.microbatch % 2 == 0:
        fill = ("Twice the microbatches", replace(plan, microbatch=half))
    else:
        more = replace(plan, schedule="interleaved", chunks=2 * plan.chunks)
        fill = (f"{more.chunks} chunks on each rank", more)
    remedies: dict[str, tuple[str, Plan | None]] = {
        "pipeline bubble": fill,
        "recomputation": ("No recomputation", replace(plan, recompute="none")),
        "tensor parallelism": (
            "Half the tensor ranks, and twice the data ranks,",
            replace(plan, tensor=plan.tensor // 2, data=twice,
                    sequence_parallel=plan.sequence_parallel and plan.tensor > 2),
        ),
        "data parallelism": (
            "The next lower ZeRO stage", replace(plan, zero=plan.zero - 1) if plan.zero else None,
        ),
    }  # fmt: skip
    if cost not in remedies:
        return ""
    what, other = remedies[cost]
    if other is None:
        return ""
    found = estimate_of(estimate.problem, other)
    if found.reason:
        needs = found.reason.replace("needs", "would need", 1)
        return f"{what} {needs}." if found.seconds else f"{what}: {found.reason}."
    faster = 1 - found.step_seconds / estimate.step_seconds
    verdict = f"save {faster:.1%}" if faster > 0 else f"cost {-faster:.1%} more"
    return f"{what} would {verdict}."
