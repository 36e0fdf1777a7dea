"""The search: all plans of a problem at once, with the formulas of `cost.py` in NumPy arrays.

    search(model, cluster, batch=2048, card="H100 SXM").best(3)
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from dtlab.predict.hardware import Card, Cluster
from dtlab.predict.memory import PrecisionPolicy
from dtlab.predict.plan.cost import (
    AXES,
    LOGIT_BYTES,
    RECOMPUTE,
    SCHEDULES,
    Estimate,
    Plan,
    Problem,
    estimate_of,
    problem_of,
)
from dtlab.predict.plan.pipeline import Work, pipeline_seconds
from dtlab.predict.transformer import Transformer

__all__ = ["Search", "search"]

# A table with one row per plan; each column is an array. Rows of illegal plans are dropped early,
# and counted by reason; the bytes and seconds of the others follow from the formulas above.

_Floats = npt.NDArray[np.float64]


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
        return [estimate_of(self.problem, self._plan(row)) for row in self._order[:count]]

    def within(self, times: float) -> list[Estimate]:
        """Return the plans that take at most `times` as long as the fastest, fastest first."""
        seconds = self._columns["seconds"][self._order]
        return self.best(int(np.searchsorted(seconds, times * seconds[:1].sum(), side="right")))

    def rank_of(self, plan: Plan) -> int | None:
        """Return how many plans are faster; None for a plan that cannot run."""
        estimate = estimate_of(self.problem, plan)
        if estimate.reason:
            return None
        seconds = self._columns["seconds"][self._order]
        return int(np.searchsorted(seconds, estimate.step_seconds * (1 - 1e-9)))

    def why_not(self, plan: Plan) -> str:
        """Return why a plan cannot run; empty if it can."""
        return estimate_of(self.problem, plan).reason

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
    *AXES, "zero", "microbatch", "kind", "chunks", "recompute", "sequence_parallel",
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
    problem = problem_of(model, cluster, batch, card, memory, efficiency, policy)
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
    for name, size in zip(AXES, mesh, strict=True):
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
    kept = np.where(full, 2 * tokens * h // outside, kept)
    logits = LOGIT_BYTES * tokens * model.vocab_size / t
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
    weights = 2 * tokens * model.layer_weights / speed
    layer = Work(forward, backward - weights, weights)
    work = Work(*(first * each for each in layer))
    end = Work(*(last * each + head for each in layer))
    on_end = (p == 1) | (end.total > work.total)
    stage_forward = np.where(on_end, end.forward, work.forward)
    stage_backward = np.where(on_end, end.backward, work.backward)
    message = latency["pipeline"] + hidden / t / bandwidth["pipeline"]
    pipeline = np.zeros(len(t))
    for number, (name, chunks) in enumerate(SCHEDULES):
        rows = np.flatnonzero(kind == number)
        middle, final = (Work(*(each[rows] for each in stage)) for stage in (work, end))
        pipeline[rows] = pipeline_seconds(
            name, p[rows], m[rows], chunks, middle, final, message[rows]
        )
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
    return total, pipeline + data


def _links_of_rows(
    problem: Problem, t: Any, c: Any, p: Any, d: Any
) -> tuple[dict[str, _Floats], dict[str, _Floats]]:
    """Return latency and bandwidth of each axis for every row, as `_links` does for one plan."""
    latency, bandwidth, ranks = {}, {}, 1
    cluster = problem.cluster
    for axis, size in zip(AXES, (t, c, p, d), strict=True):
        ranks = ranks * size
        inside = cluster.gpus_per_node % np.maximum(ranks, 1) == 0
        latency[axis] = np.where(inside, cluster.intra.latency, cluster.inter.latency)
        bandwidth[axis] = np.where(inside, cluster.intra.bandwidth, cluster.inter.bandwidth)
    for links in (latency, bandwidth):
        links["data"] = np.where(d == 1, links["context"], links["data"])
    return latency, bandwidth
