"""The planner: memory and step time of every way to spread one model over a cluster.

    search(model, cluster, batch=2048, card="H100 SXM").best(3)

A plan says how many GPUs each kind of parallelism gets, and how a step runs:

    tensor x context x pipeline x data    divide one layer | one sequence | the layers | the batch
    ZeRO stage 0 to 3                     which states the ranks of (data x context) divide
    microbatch, schedule, chunks          the order of work in the pipeline
    recompute, sequence_parallel          which activations are saved, and on which rank

`evaluate` is the simple version: it takes one plan and adds up bytes and seconds with the
formulas of `predict.memory` and `predict.communication`. `search` does the same arithmetic for
all plans at once, in NumPy arrays; a test compares the two on random problems.

The estimate leaves out: kernels that slow down on small matrices (`efficiency` is one number for
all plans), the optimizer's step, the input pipeline, and stragglers.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal, get_args

import numpy as np
import numpy.typing as npt

from dtlab.predict.communication import (
    all_gather_seconds,
    reduce_scatter_seconds,
    ring_all_reduce_seconds,
)
from dtlab.predict.hardware import CARDS, Card, Cluster, Link
from dtlab.predict.memory import PrecisionPolicy, model_states, precision_policy
from dtlab.predict.transformer import Recompute, Transformer, activation_bytes
from dtlab.predict.units import check_bytes, check_count, in_gb, is_number

__all__ = ["Estimate", "Plan", "Problem", "Search", "Transformer", "evaluate", "search"]

Schedule = Literal["1f1b", "gpipe", "interleaved", "zb_h1"]
SCHEDULES: Final[tuple[tuple[Schedule, int], ...]] = (  # with the chunks that are tried
    ("1f1b", 1), ("gpipe", 1), ("zb_h1", 1),
    ("interleaved", 2), ("interleaved", 3), ("interleaved", 4), ("interleaved", 6),
    ("interleaved", 8),
)  # fmt: skip
RECOMPUTE: Final[tuple[Recompute, ...]] = ("none", "selective", "full")
_CHOICES: Final[Mapping[str, Sequence[Any]]] = {  # the values that fields of a plan may have
    "zero": range(4),
    "schedule": get_args(Schedule),
    "recompute": RECOMPUTE,
    "sequence_parallel": (False, True),
}
_FOR_TENSORS: Final = 0.9  # of a card's memory; the CUDA context and gaps take the rest
_LOGIT_BYTES: Final = 6  # fp32 logits, and their gradient in 16 bits


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
        assert self.card.bf16_flops is not None  # `_problem` checks it
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
        try:
            for name in (*_AXES, "microbatch", "chunks"):
                check_count(name, getattr(self, name))
        except ValueError as error:
            return str(error).removesuffix(".")
        for name, choices in _CHOICES.items():
            if getattr(self, name) not in choices:
                words = ", ".join(map(str, choices))
                return f"{name} must be one of {words}, not {getattr(self, name)!r}"
        return ""

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
        """Model FLOPs utilisation: `flops_per_gpu` divided by the card's peak."""
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
    return _evaluate(_problem(model, cluster, batch, card, memory, efficiency, policy), plan)


def _evaluate(problem: Problem, plan: Plan) -> Estimate:
    reason = _illegal(problem, plan)
    if reason:
        return Estimate(plan, reason, {}, {}, problem)
    memory = _memory(problem, plan)
    needed = sum(memory.values())
    if needed > problem.memory:
        reason = f"needs {in_gb(needed)} per GPU, but each GPU has {in_gb(problem.memory)}"
    return Estimate(plan, reason, memory, _seconds(problem, plan), problem)


def _illegal(problem: Problem, plan: Plan) -> str:
    """Return why this plan cannot run, even with unlimited memory; empty if it can run."""
    model, length = problem.model, problem.model.sequence_length
    if plan.odd:
        return plan.odd
    if plan.gpus != problem.cluster.size:
        return f"the plan uses {plan.gpus} GPUs, but the cluster has {problem.cluster.size}"
    if model.num_heads % plan.tensor:
        return f"{plan.tensor} tensor ranks do not divide {model.num_heads} heads"
    if model.keys % plan.tensor:
        return f"{plan.tensor} tensor ranks do not divide {model.keys} heads of keys and values"
    if plan.context > 1 and not model.fused_attention:
        return "context parallelism needs fused attention"
    if plan.context > 1 and length % (2 * plan.context):
        return f"2 x {plan.context} context ranks do not divide {length} tokens"
    if plan.pipeline > model.num_layers:
        return f"{plan.pipeline} pipeline stages cannot share {model.num_layers} layers"
    if problem.batch % plan.data:
        return f"{plan.data} data ranks do not divide a batch of {problem.batch}"
    share = problem.batch // plan.data
    if share % plan.microbatch:
        return f"microbatches of {plan.microbatch} do not divide a rank's {share} sequences"
    if plan.zero and plan.data * plan.context == 1:
        return "ZeRO has no second rank to share with"
    if plan.sequence_parallel and plan.tensor == 1:
        return "sequence parallelism needs tensor ranks"
    if plan.sequence_parallel and length // plan.context % plan.tensor:
        return f"{plan.tensor} tensor ranks do not divide the tokens of a rank"
    if plan.recompute == "selective" and model.fused_attention:
        return "fused attention keeps no matrices to recompute"
    if plan.pipeline == 1 and plan.schedule != "1f1b":
        return "one pipeline stage needs no other schedule"
    if (plan.schedule == "interleaved") != (plan.chunks > 1):
        return "chunks belong to the interleaved schedule"
    if plan.pipeline * plan.chunks > model.num_layers:
        return f"{plan.pipeline} x {plan.chunks} chunks cannot share {model.num_layers} layers"
    if plan.chunks > 1 and share // plan.microbatch % plan.pipeline:
        return f"interleaved microbatches come in groups of {plan.pipeline}"
    return ""


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
    logits = _LOGIT_BYTES * tokens * model.vocab_size / t
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

    # Seconds of the slower stage: of the first, or of the last, which also computes the head.
    layers, heads = max(
        ((first, int(p == 1)), (last, 1)),
        key=lambda end: end[0] * (forward + backward) + end[1] * 3 * head,
    )
    stage_forward = layers * forward + heads * head
    stage_backward = layers * backward + heads * 2 * head
    stage = stage_forward + stage_backward
    fill = stage - 2 * layers * compute if plan.schedule == "zb_h1" else stage / plan.chunks
    sent = hidden / t  # each tensor rank sends its share: Narayanan et al. 2021, section 4.1
    sends = 0.0 if p == 1 else 2 * (microbatches * plan.chunks + p - 1)

    # Communication among the ranks that share states: once per step, or once per microbatch at
    # ZeRO stages 2 and 3.
    embeddings = model.embedding_params * (1 if p > 1 or not model.gated else 2)
    params = (first * model.layer_params + embeddings) / t
    reduce = reduce_scatter_seconds(policy.gradients * params, n, links["data"])
    gather = all_gather_seconds(policy.weights * params, n, links["data"])
    data = [
        max(0.0, 2 * reduce - stage_backward),
        max(0.0, reduce - stage_backward) + max(0.0, gather - stage_forward),
        microbatches * max(0.0, reduce - stage_backward) + max(0.0, gather - stage_forward),
        microbatches
        * (max(0.0, gather - stage_forward) + max(0.0, gather + reduce - stage_backward)),
    ][plan.zero]

    even = model.step_flops(problem.batch) / plan.gpus / problem.flops_per_second
    return {
        "compute": even,
        "uneven stages": microbatches * 3 * (layers * compute + heads * head) - even,
        "recomputation": microbatches * layers * again,
        "tensor parallelism": microbatches * layers * (2 * tensor + tensor_again),
        "context parallelism": microbatches * layers * (3 * context + context_again),
        "pipeline bubble": (p - 1) * fill,
        "pipeline messages": sends * links["pipeline"].seconds(sent) if p > 1 else 0.0,
        "data parallelism": data,
    }


# All plans at once -------------------------------------------------------------------------------
#
# A table with one row per plan; each column is an array. Rows of illegal plans are dropped early,
# and counted by reason; the bytes and seconds of the others follow from the formulas above.

_Floats = npt.NDArray[np.float64]
_AXES: Final = ("tensor", "context", "pipeline", "data")


@dataclass(frozen=True)
class Search:
    """All plans of a problem, fastest first, and the numbers of rejected plans.

    `count` includes the rejected plans. `rejected` maps each kind of reason to the number of plans
    rejected for it; all plans of an impossible mesh count as one. `why_not` gives the full reason
    for any plan.
    """

    problem: Problem
    count: int
    rejected: Mapping[str, int]
    _columns: Mapping[str, npt.NDArray[Any]]
    _order: npt.NDArray[np.int64]

    def __len__(self) -> int:
        """Return the number of plans that can run."""
        return len(self._order)

    def best(self, count: int = 10) -> list[Estimate]:
        """Return the `count` fastest plans; equally fast plans are sorted by their bytes."""
        return [_evaluate(self.problem, self._plan(row)) for row in self._order[:count]]

    def within(self, times: float) -> list[Estimate]:
        """Return the plans that take at most `times` as long as the fastest, fastest first."""
        seconds = self._columns["seconds"][self._order]
        return self.best(int(np.searchsorted(seconds, times * seconds[:1].sum(), side="right")))

    def rank_of(self, plan: Plan) -> int | None:
        """Return how many plans are faster; None for a plan that cannot run."""
        estimate = _evaluate(self.problem, plan)
        if estimate.reason:
            return None
        seconds = self._columns["seconds"][self._order]
        return int(np.searchsorted(seconds, estimate.step_seconds * (1 - 1e-9)))

    def why_not(self, plan: Plan) -> str:
        """Return why a plan cannot run; empty if it can."""
        return _evaluate(self.problem, plan).reason

    def points(self) -> tuple[_Floats, _Floats, npt.NDArray[np.bool_]]:
        """Return arrays with an entry per plan: bytes, step seconds, whether it fits in memory.

        The arrays have all plans that satisfy every constraint other than memory.
        """
        columns = self._columns
        return columns["bytes"], columns["seconds"], columns["bytes"] <= self.problem.memory

    def plan_at(self, row: int) -> Plan:
        """Return the plan at this index of the arrays of `points`."""
        return self._plan(row)

    def _plan(self, row: int) -> Plan:
        values = {name: self._columns[name][row] for name in _FIELDS}
        schedule, _ = SCHEDULES[int(values.pop("kind"))]
        recompute = RECOMPUTE[int(values.pop("recompute"))]
        shared = bool(values.pop("sequence_parallel"))
        whole = {name: int(value) for name, value in values.items()}
        return Plan(schedule=schedule, recompute=recompute, sequence_parallel=shared, **whole)


_FIELDS: Final = (
    *_AXES, "zero", "microbatch", "kind", "chunks", "recompute", "sequence_parallel",
)  # fmt: skip


def search(
    model: Transformer,
    cluster: Cluster,
    batch: int,
    *,
    card: str | Card = "H100 SXM",
    memory: float | None = None,
    efficiency: float = 0.5,
    policy: str | PrecisionPolicy = "mixed",
) -> Search:
    """Return all plans for a model on all GPUs of a cluster, with their bytes and seconds.

    Args:
        batch: sequences in one step, over all ranks.
        card: the GPU, or its name in `CARDS`.
        memory: bytes that each GPU has for tensors; None: 90 % of the card's.
        efficiency: the fraction of the card's peak that kernels reach, above 0 and at most 1.
        policy: bytes per parameter, see `predict.memory.POLICIES`.

    Raises: ValueError for invalid arguments.
    """
    problem = _problem(model, cluster, batch, card, memory, efficiency, policy)
    rejected: Counter[str] = Counter()
    blocks = [
        _rows(problem, mesh, micro)
        for mesh in _meshes(problem, rejected)
        for micro in [_divisors(batch // mesh[3])]
    ]
    columns = {
        name: np.concatenate([block[name] for block in blocks])
        if blocks
        else np.zeros(0, dtype=np.int64)
        for name in _FIELDS
    }
    columns = _legal_rows(problem, columns, rejected)
    columns["bytes"], columns["seconds"] = _costs(problem, columns)
    fits = columns["bytes"] <= problem.memory
    rejected["does not fit in memory"] += int((~fits).sum())
    rows = np.flatnonzero(fits)
    order = rows[np.lexsort((columns["bytes"][rows], columns["seconds"][rows]))]
    count = len(rows) + sum(rejected.values())
    return Search(problem, count, {k: v for k, v in rejected.items() if v}, columns, order)


def _problem(
    model: Transformer,
    cluster: Cluster,
    batch: int,
    card: str | Card,
    memory: float | None,
    efficiency: float,
    policy: str | PrecisionPolicy,
) -> Problem:
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


def _divisors(number: int) -> list[int]:
    small = [each for each in range(1, math.isqrt(number) + 1) if number % each == 0]
    return sorted({*small, *(number // each for each in small)})


def _meshes(problem: Problem, rejected: Counter[str]) -> Iterator[tuple[int, int, int, int]]:
    """Yield the sizes of the four axes for which a plan may be legal; count the other meshes."""
    gpus, model = problem.cluster.size, problem.model
    for tensor in _divisors(gpus):
        for context in _divisors(gpus // tensor):
            for pipeline in _divisors(gpus // tensor // context):
                data = gpus // tensor // context // pipeline
                if model.num_heads % tensor or model.keys % tensor:
                    rejected["tensor ranks do not divide the heads"] += 1
                elif context > 1 and not model.fused_attention:
                    rejected["context parallelism needs fused attention"] += 1
                elif context > 1 and model.sequence_length % (2 * context):
                    rejected["context ranks do not divide the tokens"] += 1
                elif pipeline > model.num_layers:
                    rejected["more pipeline stages than layers"] += 1
                elif problem.batch % data:
                    rejected["data ranks do not divide the batch"] += 1
                else:
                    yield tensor, context, pipeline, data


def _rows(
    problem: Problem, mesh: tuple[int, int, int, int], micro: Sequence[int]
) -> dict[str, npt.NDArray[np.int64]]:
    """Return all combinations of the remaining choices for one mesh, as columns."""
    tensor, context, pipeline, data = mesh
    kinds = [0] if pipeline == 1 else range(len(SCHEDULES))
    recompute = [0, 2] if problem.model.fused_attention else [0, 1, 2]
    stages = [0, 1, 2, 3] if data * context > 1 else [0]
    choices = [micro, kinds, recompute, stages, [0, 1] if tensor > 1 else [0]]
    grid = np.array(list(itertools.product(*choices)), dtype=np.int64).T
    columns = dict(
        zip(("microbatch", "kind", "recompute", "zero", "sequence_parallel"), grid, strict=True)
    )
    for name, size in zip(_AXES, mesh, strict=True):
        columns[name] = np.full(grid.shape[1], size)
    columns["chunks"] = np.array([chunks for _, chunks in SCHEDULES])[columns["kind"]]
    return columns


def _legal_rows(
    problem: Problem, columns: dict[str, npt.NDArray[Any]], rejected: Counter[str]
) -> dict[str, npt.NDArray[Any]]:
    """Return the rows that are legal, whatever memory they need; count the illegal rows."""
    model = problem.model
    share = problem.batch // np.maximum(columns["data"] * columns["microbatch"], 1)
    tokens = model.sequence_length // np.maximum(columns["context"], 1)
    faults = {
        "tensor ranks do not divide the tokens": (columns["sequence_parallel"] == 1)
        & (tokens % np.maximum(columns["tensor"], 1) > 0),
        "more chunks than layers": columns["pipeline"] * columns["chunks"] > model.num_layers,
        "interleaved microbatches come in groups": (columns["chunks"] > 1)
        & (share % np.maximum(columns["pipeline"], 1) > 0),
    }
    legal = np.ones(len(share), dtype=bool)
    for reason, fault in faults.items():
        rejected[reason] += int((legal & fault).sum())
        legal &= ~fault
    return {name: column[legal] for name, column in columns.items()}


def _costs(problem: Problem, columns: Mapping[str, npt.NDArray[Any]]) -> tuple[_Floats, _Floats]:
    """Return the bytes on the fullest GPU and the seconds of a step, for every row."""
    model, policy = problem.model, problem.policy
    t, c, p, d, zero, b, kind, v, recompute, shared = (columns[name] for name in _FIELDS)
    length, h, layers = model.sequence_length, model.hidden_size, model.num_layers
    m = problem.batch // np.maximum(d * b, 1)
    n = d * c
    chunk = -(-layers // np.maximum(p * v, 1))
    first = chunk * v
    last = first - np.minimum(p * first - layers, first)
    is_gpipe, is_zb, is_interleaved = (
        np.isin(kind, [k for k, (name, _) in enumerate(SCHEDULES) if name == wanted])
        for wanted in ("gpipe", "zb_h1", "interleaved")
    )
    full, selective = recompute == 2, recompute == 1

    # Bytes.
    tokens = b * (length // c)
    outside = np.where(shared == 1, t, 1)
    whole = 8 * tokens * h // outside + (2 * tokens * h // outside if model.dropout else 0)
    attention = 4 * tokens * h * (model.num_heads + model.keys) // model.num_heads // t
    kept = whole + attention + (8 if model.gated else 4) * tokens * model.mlp // t
    if not model.fused_attention:
        matrices = (5 if model.dropout else 2) * model.num_heads * length * length * b // t
        kept = kept + np.where(selective, 0, matrices)
    again = np.where(full, kept, 0)
    kept = np.where(full, 2 * tokens * h, kept)
    logits = _LOGIT_BYTES * tokens * model.vocab_size / t
    most = np.minimum(p, m)
    positions = 0 if model.gated else length * h
    total = np.zeros(len(t))
    for is_first, stage in ((True, first), (False, last)):
        if is_first:
            in_flight = np.where(is_gpipe, m, most) * first
            interleaved = np.minimum(m * v, p * v + p - 1) * chunk
        else:
            in_flight = np.where(is_gpipe, m, np.where(is_zb, most, 1)) * last
            interleaved = np.minimum(m * v, (v - 1) * p + 1) * chunk
        in_flight = np.where(is_interleaved, interleaved, in_flight)
        holds_first, holds_last = (
            np.full(len(t), is_first) | (p == 1),
            ~np.full(len(t), is_first) | (p == 1),
        )
        tables = holds_first + (holds_last & ((p > 1) | model.gated)) * 1
        params = np.ceil((stage * model.layer_params + model.embedding_params * tables) / t)
        params = params + positions * holds_first
        states = sum(
            part * params / np.where(zero >= least, n, 1)
            for part, least in zip(policy.parts, (3, 2, 1), strict=True)
        )
        gathered = model.layer_params / t * (2 * policy.weights + policy.gradients)
        held = states + np.where(zero == 3, gathered, 0) + in_flight * kept + again
        total = np.maximum(total, held + logits * holds_last)

    # Seconds.
    latency, bandwidth = _links_of_rows(problem, t, c, p, d)
    speed = t * problem.flops_per_second
    compute, head = tokens * model.layer_flops / speed, tokens * model.head_flops / speed
    hidden = 2 * tokens * h
    ring = (t - 1) * latency["tensor"] + (t - 1) / t * hidden / bandwidth["tensor"]
    tensor = 2 * 2 * ring
    keys = 2 * hidden * c * model.keys / model.num_heads / t
    context = (c - 1) * latency["context"] + (c - 1) / c * keys / bandwidth["context"]
    forward = compute + tensor + context
    backward = 2 * compute + tensor + 2 * context + np.where(full, forward, 0)
    backward = backward + np.where(selective, tokens * model.attention_flops / speed, 0)
    both = forward + backward
    with_head = last * both + 3 * head
    slower = np.where(p == 1, True, with_head > first * both)
    stage_layers, heads = np.where(slower, last, first), slower * 1
    stage_forward = stage_layers * forward + heads * head
    stage_backward = stage_layers * backward + heads * 2 * head
    stage = stage_forward + stage_backward
    fill = np.where(is_zb, stage - 2 * stage_layers * compute, stage / v)
    send = latency["pipeline"] + hidden / t / bandwidth["pipeline"]
    sends = np.where(p > 1, 2 * (m * v + p - 1), 0)
    tables = np.where((p > 1) | (not model.gated), 1, 2)
    params = (first * model.layer_params + model.embedding_params * tables) / t
    rounds = (n - 1) * latency["data"]
    reduce = rounds + (n - 1) / n * policy.gradients * params / bandwidth["data"]
    gather = rounds + (n - 1) / n * policy.weights * params / bandwidth["data"]
    after = np.maximum(0, reduce - stage_backward)
    before = np.maximum(0, gather - stage_forward)
    data = np.select(
        [zero == 0, zero == 1, zero == 2],
        [np.maximum(0, 2 * reduce - stage_backward), after + before, m * after + before],
        m * (before + np.maximum(0, gather + reduce - stage_backward)),
    )
    return total, m * stage + (p - 1) * fill + sends * send + data


def _links_of_rows(
    problem: Problem, t: Any, c: Any, p: Any, d: Any
) -> tuple[dict[str, _Floats], dict[str, _Floats]]:
    """Return latency and bandwidth of each axis for every row, as `_links` does for one plan."""
    latency, bandwidth, ranks = {}, {}, 1
    cluster = problem.cluster
    for axis, size in zip(_AXES, (t, c, p, d), strict=True):
        ranks = ranks * size
        inside = cluster.gpus_per_node % np.maximum(ranks, 1) == 0
        latency[axis] = np.where(inside, cluster.intra.latency, cluster.inter.latency)
        bandwidth[axis] = np.where(inside, cluster.intra.bandwidth, cluster.inter.bandwidth)
    for links in (latency, bandwidth):
        links["data"] = np.where(d == 1, links["context"], links["data"])
    return latency, bandwidth


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
            "One ZeRO stage less", replace(plan, zero=plan.zero - 1) if plan.zero else None,
        ),
    }  # fmt: skip
    if cost not in remedies:
        return ""
    what, other = remedies[cost]
    if other is None:
        return ""
    found = _evaluate(estimate.problem, other)
    if found.reason:
        needs = found.reason.replace("needs", "would need", 1)
        return f"{what} {needs}." if found.seconds else f"{what}: {found.reason}."
    faster = 1 - found.step_seconds / estimate.step_seconds
    verdict = f"save {faster:.1%}" if faster > 0 else f"cost {-faster:.1%} more"
    return f"{what} would {verdict}."
