"""Each function of `dtlab/simple.py` gives what the fast one gives, and the file stays short."""

from __future__ import annotations

import ast
import os
import signal
import subprocess
import sys
import time
import warnings
import weakref
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import SGD, Adam

from dtlab import collectives, schedules, simple
from dtlab.checks.functions.finished import hidden_modules_of
from dtlab.checks.parts import known_parts
from dtlab.parallel.context import ring_attention, ulysses_attention
from dtlab.parallel.data import DataParallel
from dtlab.parallel.domain import halo_exchange, own_tile
from dtlab.parallel.expert import ExpertParallel
from dtlab.parallel.mesh import make_mesh
from dtlab.parallel.pipeline import PipelineStage, run_schedule
from dtlab.parallel.server import ParameterServer, ParameterWorker
from dtlab.parallel.tensor import (
    ColumnParallelLinear,
    RowParallelLinear,
    VocabParallelEmbedding,
    vocab_parallel_cross_entropy,
)
from dtlab.parallel.zero import Zero1, Zero2, fully_sharded
from dtlab.predict.simulate import Costs, simulate
from dtlab.training.accumulation import accumulate
from dtlab.training.compression import PowerSGD, TopK
from tests.leftovers import listening
from tests.marks import slow
from tests.staying import BENCH, on_ranks

CLOSE = {"rtol": 1e-10, "atol": 1e-10}
RANKS = pytest.mark.parametrize("ranks", [1, 2, 3, slow(4)])


def _drawn(*shape: int, seed: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def _net(seed: int = 0) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 3)).double()


def _loss(module: nn.Module, step: int) -> Tensor:
    x = _drawn(4, 5, seed=10 * step + dist.get_rank())
    loss: Tensor = module(x).square().sum()
    return loss


def _same(ours: Any, fast: Any) -> None:
    torch.testing.assert_close(ours, fast, **CLOSE)


def _gradients(module: nn.Module) -> list[Tensor | None]:
    return [parameter.grad for parameter in module.parameters()]


# The file ----------------------------------------------------------------------------------------

FILE = Path(simple.__file__)


def test_it_imports_torch_and_the_standard_library_only() -> None:
    imports = list(ast.walk(ast.parse(FILE.read_text())))
    names = {each.name for node in imports if isinstance(node, ast.Import) for each in node.names}
    names |= {str(node.module) for node in imports if isinstance(node, ast.ImportFrom)}
    roots = {name.partition(".")[0] for name in names}
    assert "torch" in roots
    assert roots - {"torch"} <= sys.stdlib_module_names


def test_an_evening_is_enough_to_read_it() -> None:
    source = FILE.read_text()
    docs = set[int]()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
            assert len(ast.get_docstring(node) or "") < 1500
            first = node.body[0]
            if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
                docs.update(range(first.lineno, (first.end_lineno or 0) + 1))
    lines = enumerate(source.splitlines(), 1)
    code = [line for number, line in lines if number not in docs and line.strip(" #") != ""]
    assert len([line for line in code if not line.strip().startswith("#")]) <= 490


def test_every_function_says_what_it_does() -> None:
    for node in ast.parse(FILE.read_text()).body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            assert ast.get_docstring(node), node.name


# Collectives and data parallelism ----------------------------------------------------------------


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
@pytest.mark.parametrize("elements", [1, 3, 12, 1001])
def test_all_reduces(ranks: int, elements: int) -> None:
    def all_reduces() -> bool:
        root, ring, fast_root, fast_ring = (
            _drawn(elements, seed=dist.get_rank()) for _ in range(4)
        )
        simple.root_all_reduce(root)
        simple.ring_all_reduce(ring)
        collectives.naive_all_reduce(fast_root)
        collectives.ring_all_reduce(fast_ring)
        return root.equal(fast_root) and ring.equal(fast_ring)

    assert all(on_ranks(all_reduces, world_size=ranks).values)


@pytest.mark.parametrize("ranks", [1, 3])
@pytest.mark.parametrize("shape", [(), (1,), (2, 3), (4, 0)])
def test_the_ring_with_tensors_of_any_shape(ranks: int, shape: tuple[int, ...]) -> None:
    def sums() -> bool:
        tensor = _drawn(*shape, seed=dist.get_rank())
        simple.ring_all_reduce(tensor)
        wanted = sum(_drawn(*shape, seed=rank) for rank in range(dist.get_world_size()))
        return torch.allclose(tensor, torch.as_tensor(wanted))

    assert all(on_ranks(sums, world_size=ranks).values)


def test_the_drawing_of_the_ring() -> None:
    lines = [line.split() for line in (simple.ring_all_reduce.__doc__ or "").splitlines()]
    drawn = [line[3:6] for line in lines if line[:1] == ["round"] and len(line) > 5]
    sent = [[str((rank - 1 - k) % 3) for rank in range(3)] for k in range(4)]
    assert drawn == sent


@RANKS
@pytest.mark.parametrize("elements", [None, 1, 20, 10_000])
def test_data_parallelism(ranks: int, elements: int | None) -> None:
    """Three steps, with a hook for each parameter (None), and in buckets."""

    def both() -> None:
        module, other = _net(dist.get_rank()), _net(dist.get_rank())
        finish: Callable[[], None] = lambda: None  # noqa: E731
        if elements is None:
            simple.average_by_hooks(module)
        else:
            finish = simple.average_in_buckets(module, elements)
        fast = DataParallel(other)
        steps = SGD(module.parameters(), lr=0.1), SGD(fast.parameters(), lr=0.1)
        for step in range(3):
            for optimizer in steps:
                optimizer.zero_grad()
            _loss(module, step).backward()
            finish()
            _loss(fast, step).backward()
            _same(_gradients(module), _gradients(other))
            for optimizer in steps:
                optimizer.step()

    on_ranks(both, world_size=ranks)


def test_buckets_are_sent_while_backward_continues() -> None:
    def order() -> list[str]:
        module, events = _net(), list[str]()
        all_reduce = dist.all_reduce
        finish = simple.average_in_buckets(module, 3)
        first = next(iter(module.parameters()))
        first.register_hook(lambda _: events.append("last gradient"))  # type: ignore[no-untyped-call]

        def noted(*args: Any, **options: Any) -> Any:
            events.append("all-reduce")
            return all_reduce(*args, **options)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(dist, "all_reduce", noted)
            _loss(module, 0).backward()
            finish()
        return events

    for events in on_ranks(order, world_size=2).values:
        assert events.index("last gradient") > 0
        assert events.count("all-reduce") == 4


@RANKS
def test_accumulation(ranks: int) -> None:
    """Microbatches of other sizes on each rank, three steps."""

    def both() -> None:
        sizes, loss = [3, 1 + dist.get_rank(), 2], partial(F.mse_loss, reduction="sum")
        module, fast = _net(), DataParallel(_net())
        steps = SGD(module.parameters(), lr=0.1), SGD(fast.parameters(), lr=0.1)
        for step in range(3):
            seed = 10 * step + dist.get_rank()
            x, y = _drawn(sum(sizes), 5, seed=seed), _drawn(sum(sizes), 3, seed=seed + 100)
            batches = list(zip(x.split(sizes), y.split(sizes), strict=True))
            simple.accumulate(module, batches, loss)
            accumulate(fast, batches, lambda model, batch: loss(model(batch[0]), batch[1]))
            _same(_gradients(module), _gradients(fast.module))
            for optimizer in steps:
                optimizer.step()
                optimizer.zero_grad()

    on_ranks(both, world_size=ranks)


# ZeRO --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ranks", [1, 2, 3, slow(4), slow(6)])
@pytest.mark.parametrize(("ours", "theirs"), [(simple.Zero1, Zero1), (simple.Zero2, Zero2)])
def test_zero_1_and_2(ranks: int, ours: Any, theirs: Any) -> None:
    def both() -> None:
        module, fast = _net(dist.get_rank()), _net(dist.get_rank())
        one = ours(module.parameters(), Adam, lr=0.01)
        other = theirs(fast.parameters(), Adam, lr=0.01)
        for step in range(3):
            for each, optimizer in ((module, one), (fast, other)):
                _loss(each, step).backward()
                optimizer.step()
        _same(list(module.parameters()), list(fast.parameters()))

    on_ranks(both, world_size=ranks)


def test_stage_2_keeps_the_gradients_of_owned_parameters_only() -> None:
    def kept() -> list[bool]:
        module = _net()
        simple.Zero2(module.parameters(), SGD, lr=0.1)
        _loss(module, 0).backward()
        return [gradient is not None for gradient in _gradients(module)]

    assert on_ranks(kept, world_size=2).values == [[True, False] * 2, [False, True] * 2]


@RANKS
def test_stage_3(ranks: int) -> None:
    def both() -> None:
        rank, size = dist.get_rank(), dist.get_world_size()
        weight = _drawn(6 * size, 5, seed=1)
        shard = weight.chunk(size)[rank].clone().requires_grad_()
        dense = nn.Linear(5, 6 * size, bias=False).double()
        dense.weight.data = weight.clone()
        fast = fully_sharded.Zero3(dense)
        optimizers = SGD([shard], lr=0.01), SGD(fast.parameters(), lr=0.01)
        for step in range(3):
            x, other = (_drawn(4, 5, seed=20 * step + rank).requires_grad_() for _ in range(2))
            simple.ShardedLinear.apply(x, shard).square().sum().backward()  # type: ignore[no-untyped-call]
            fast(other).square().sum().backward()
            _same(x.grad, other.grad)
            for optimizer in optimizers:
                optimizer.step()
                optimizer.zero_grad()
        (piece,) = fast.parameters()
        _same(shard.flatten(), piece)

    on_ranks(both, world_size=ranks)


def test_stage_3_frees_each_weight_before_the_next_collective() -> None:
    def ranks() -> tuple[list[int], int, list[str]]:
        gathered: list[weakref.ref[Tensor]] = []
        gathered_before: list[int] = []
        alive = 0
        gather, reduce = simple.gather_rows, dist.reduce_scatter_single

        def gather_and_note(shard: Tensor) -> Tensor:
            weight = gather(shard)
            gathered.append(weakref.ref(weight))
            return weight

        def reduce_and_note(*args: Any) -> None:
            nonlocal alive
            gathered_before.append(len(gathered))
            limit = time.monotonic() + 5  # gloo's thread may hold a tensor a moment longer
            while any(weight() is not None for weight in gathered) and time.monotonic() < limit:
                time.sleep(0.001)
            alive += sum(weight() is not None for weight in gathered)
            reduce(*args)

        x, shard = (torch.ones(4, 4, requires_grad=True) for _ in range(2))
        with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            patch.setattr(simple, "gather_rows", gather_and_note)
            patch.setattr(dist, "reduce_scatter_single", reduce_and_note)
            simple.ShardedLinear.apply(x, shard).sum().backward()  # type: ignore[no-untyped-call]
        return gathered_before, alive, [str(warning.message) for warning in caught]

    assert on_ranks(ranks, world_size=2).values == [([2], 0, [])] * 2


# Tensor parallelism ------------------------------------------------------------------------------


@RANKS
@pytest.mark.parametrize("bias", [True, False])
def test_linear_layers(ranks: int, bias: bool) -> None:
    """Eleven features between the layers, which no number of ranks above one divides."""

    def both() -> None:
        with torch.random.fork_rng():
            torch.manual_seed(3)
            dense = nn.Linear(5, 11, bias).double(), nn.Linear(11, 3, bias).double()
        column = ColumnParallelLinear.from_dense(dense[0])
        row = RowParallelLinear.from_dense(dense[1])
        parameters = [*column.parameters(), *row.parameters()]
        ours = {id(each): each.detach().clone().requires_grad_() for each in parameters}

        def of(parameter: Tensor | None) -> Any:
            return None if parameter is None else ours[id(parameter)]

        for step in range(3):
            x, other = (_drawn(2, 4, 5, seed=step).requires_grad_() for _ in range(2))
            inner = simple.column_linear(x, of(column.weight), of(column.bias)).tanh()
            y = simple.row_linear(inner, of(row.weight), of(row.bias))
            fast = row(column(other).tanh())
            for each in (y, fast):
                each.square().sum().backward()
            _same([y, x.grad], [fast, other.grad])
            _same([of(each).grad for each in parameters], [each.grad for each in parameters])
            with torch.no_grad():
                for parameter in [*parameters, *ours.values()]:
                    parameter -= 0.01 * parameter.grad  # type: ignore[operator]

    on_ranks(both, world_size=ranks)


@RANKS
def test_vocabulary(ranks: int) -> None:
    def both() -> None:
        rank, size = dist.get_rank(), dist.get_world_size()
        dense = nn.Embedding(5 * size, 3).double()
        dense.weight.data = _drawn(5 * size, 3, seed=1)
        fast = VocabParallelEmbedding.from_dense(dense)
        table = dense.weight.detach().chunk(size)[rank].clone().requires_grad_()
        tokens = torch.tensor([[0, 5 * size - 1, 2], [3 % size, 4, 0]])
        ours, theirs = simple.vocab_embedding(tokens, table), fast(tokens)
        for each in (ours, theirs):
            each.square().sum().backward()
        _same([ours, table.grad], [theirs, fast.weight.grad])

        whole = 700 * _drawn(7, 5 * size, seed=2)  # exp would overflow
        whole[1:5, 0] = -torch.inf  # tokens that are ruled out, and are no target
        logits, other = (whole.chunk(size, 1)[rank].clone().requires_grad_() for _ in range(2))
        targets = torch.arange(7) * 2 % (5 * size)
        loss = simple.vocab_cross_entropy(logits, targets)
        wanted = vocab_parallel_cross_entropy(other, targets)
        loss.backward()
        wanted.backward()
        _same([loss, logits.grad], [wanted, other.grad])

    on_ranks(both, world_size=ranks)


# Pipelines ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("stages", "count"), [(1, 1), (1, 4), (2, 5), (4, 4), (4, 2), (5, 9)])
def test_the_schedule(stages: int, count: int) -> None:
    assert simple.one_f_one_b(stages, count) == schedules.one_f_one_b(stages, count)


@pytest.mark.parametrize("ranks", [1, 2, slow(3), 4])
@pytest.mark.parametrize("make", [schedules.gpipe, simple.one_f_one_b])
def test_a_pipeline(ranks: int, make: Any) -> None:
    def both() -> None:
        rank, size, count = dist.get_rank(), dist.get_world_size(), 5
        ours, fast = (nn.Linear(6, 6).double() for _ in range(2))
        for module in (ours, fast):
            module.weight.data, module.bias.data = _drawn(6, 6, seed=rank), _drawn(6, seed=rank)
        schedule, stage = make(size, count), PipelineStage(fast)
        optimizers = SGD(ours.parameters(), lr=0.1), SGD(fast.parameters(), lr=0.1)
        for step in range(3):
            batch, targets = (_drawn(2 * count, 6, seed=2 * step + each) for each in range(2))
            microbatches = batch.chunk(count), targets.chunk(count)
            simple.run_schedule(schedule, ours, *microbatches, F.mse_loss)
            run_schedule(schedule, stage, batch, targets, F.mse_loss)
            _same(_gradients(ours), _gradients(fast))
            for optimizer in optimizers:
                optimizer.step()
                optimizer.zero_grad()

    on_ranks(both, world_size=ranks)


class _Transposes(nn.Module):
    """A stage whose output is not contiguous, and whose input gets such a gradient."""

    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight)

    def forward(self, x: Tensor) -> Tensor:
        return (self.weight * x).T


def test_a_pipeline_of_stages_whose_outputs_are_not_contiguous() -> None:
    def both() -> None:
        rank, size, count = dist.get_rank(), dist.get_world_size(), 2
        batch, targets = _drawn(4 * count, 4, seed=1), _drawn(4 * count, 4, seed=2)
        weights = [_drawn(4, 4, seed=10 + stage) for stage in range(size)]
        stages = [_Transposes(weight.clone()) for weight in weights]
        whole = nn.Sequential(*(_Transposes(weight.clone()) for weight in weights))
        inputs, wanted = batch.chunk(count), targets.chunk(count)
        transposed = [x.T.contiguous().T for x in inputs]
        schedule = simple.one_f_one_b(size, count)
        simple.run_schedule(schedule, stages[rank], transposed, wanted, F.mse_loss)
        losses = [F.mse_loss(whole(x), y) / count for x, y in zip(inputs, wanted, strict=True)]
        torch.stack(losses).sum().backward()
        _same(_gradients(stages[rank]), _gradients(whole[rank]))

    on_ranks(both, world_size=2)


@pytest.mark.parametrize("message", [0.0, 0.25])
@pytest.mark.parametrize(
    "schedule",
    [schedules.naive(3, 4), schedules.gpipe(4, 6), schedules.one_f_one_b(4, 7),
     schedules.interleaved(2, 4, 2), schedules.zb_h1(3, 6)],
)  # fmt: skip
def test_the_simulator(schedule: Any, message: float) -> None:
    seconds = {"F": 1.0, "I": 1.5, "W": 0.5, "B": 2.0}
    trace = simulate(schedule, Costs(1.0, 1.5, 0.5, message))
    for rank, times in enumerate(simple.simulate(schedule, seconds, message)):
        spans = [e for e in trace.events if e.rank == rank and e.kind == "compute"]
        assert np.allclose([(e.start, e.end) for e in spans], times)


def test_a_simulation_that_has_no_actions_or_cannot_end() -> None:
    assert simple.simulate([[], []], {}, 0.0) == [[], []]
    circle = [[(0, "B", 0), (0, "F", 0)], [(1, "F", 0), (1, "B", 0)]]
    with pytest.raises(ValueError, match="no rank can proceed"):
        simple.simulate(circle, dict.fromkeys("FBIW", 1.0), 0.0)
    no_backward = [[(0, "F", 0), (0, "B", 0)], [(1, "F", 0)]]
    with pytest.raises(ValueError, match="no rank can proceed"):
        simple.simulate(no_backward, dict.fromkeys("FBIW", 1.0), 0.0)


# Sequences, fields, experts ----------------------------------------------------------------------


@RANKS
def test_attention(ranks: int) -> None:
    def both() -> None:
        seeds = [3 * dist.get_rank() + each for each in range(3)]
        heads = 2 * dist.get_world_size()
        q, k, v = (_drawn(2, heads, 7, 5, seed=seed) for seed in seeds)
        _same(simple.ulysses_attention(q, k, v), ulysses_attention(q, k, v))
        _same(simple.ring_attention(q, k, v), ring_attention(q, k, v, causal=False))

    on_ranks(both, world_size=ranks)


@RANKS
def test_a_halo(ranks: int) -> None:
    def both() -> None:
        mesh = make_mesh(y=dist.get_world_size())
        tile = own_tile(_drawn(7, 3, seed=0), mesh)
        assert torch.equal(simple.halo_exchange(tile), halo_exchange(tile, mesh, 1))

    on_ranks(both, world_size=ranks)


@RANKS
@pytest.mark.parametrize("favourite", [False, True])
def test_experts(ranks: int, favourite: bool) -> None:
    """It also works if all tokens choose one expert, so that most ranks compute nothing."""

    def both() -> None:
        rank, size = dist.get_rank(), dist.get_world_size()
        with torch.random.fork_rng():
            torch.manual_seed(1)
            experts = nn.ModuleList(nn.Linear(4, 4).double() for _ in range(2 * size))
            router = nn.Linear(4, 2 * size).double()
        if favourite:
            router.bias.data[-1] += 100
        fast = ExpertParallel(experts, router)
        x, other = (_drawn(5 + rank, 4, seed=rank).requires_grad_() for _ in range(2))
        y = simple.routed_experts(x, router, list(fast.experts))
        parameters = [*router.parameters(), *fast.experts.parameters()]
        weight = _drawn(5 + rank, 4, seed=9)
        ours = list(torch.autograd.grad((y * weight).sum(), [x, *parameters]))
        for gradient in ours[1:3]:
            dist.all_reduce(gradient)  # the router is on every rank
        result = fast(other)
        _same(y, result)
        _same(ours, list(torch.autograd.grad((result * weight).sum(), [other, *parameters])))

    on_ranks(both, world_size=ranks)


# Slow networks, a server, checkpoints ------------------------------------------------------------


def _matrix(step: int) -> Tensor:
    return _drawn(13, 9, seed=97 * step + dist.get_rank()).float()


@RANKS
def test_compression(ranks: int) -> None:
    def both() -> None:
        top_k, power = TopK(0.1), PowerSGD(2, seed=5)
        errors = torch.zeros(13, 9), torch.zeros(13, 9)
        q = torch.randn(9, 2, generator=torch.Generator().manual_seed(5))
        for step in range(5):
            means = (
                simple.top_k_mean(_matrix(step), errors[0], k=11),
                simple.power_sgd_mean(_matrix(step), q, errors[1]),
            )
            for compressor, mean in zip((top_k, power), means, strict=True):
                total = _matrix(step)
                compressor.sum([total])
                wanted = total / dist.get_world_size()
                torch.testing.assert_close(mean, wanted, rtol=1e-4, atol=1e-5)

    on_ranks(both, world_size=ranks)


@pytest.mark.parametrize("ranks", [2, 3, slow(4)])
def test_a_parameter_server(ranks: int) -> None:
    make = partial(SGD, lr=0.05, momentum=0.9)

    def ours() -> list[Tensor]:
        module = _net()
        parameters = list(module.parameters())
        if dist.get_rank() == 0:
            simple.serve(module, make(parameters), 3)
        else:
            simple.work(module, [partial(_loss, module, step) for step in range(3)])
        return [parameter.detach() for parameter in parameters]

    def fast() -> list[Tensor] | None:
        module = _net()
        if dist.get_rank() == 0:
            server = ParameterServer(module, make)
            server.serve()
            return [server.parameters[name].detach() for name, _ in module.named_parameters()]
        with ParameterWorker(module) as worker:
            for step in range(3):
                worker.pull()
                _loss(module, step).backward()
                worker.push()
        return None

    _same(on_ranks(ours, world_size=ranks).values[0], on_ranks(fast, world_size=ranks).values[0])


def _trained(path: Path, steps: int) -> list[Tensor]:
    """Parameters of a net with dropout after some steps, with a checkpoint after each."""
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(5, 8), nn.Dropout(0.4), nn.Linear(8, 1)).double()
    optimizer = Adam(module.parameters(), lr=0.05)
    for step in range(simple.load(path, module=module, optimizer=optimizer), steps):
        optimizer.zero_grad()
        module(_drawn(4, 5, seed=step)).square().sum().backward()
        optimizer.step()
        simple.save(path, step + 1, module=module, optimizer=optimizer)
    return [parameter.detach() for parameter in module.parameters()]


def test_a_resumed_run_is_the_same(tmp_path: Path) -> None:
    wanted = _trained(tmp_path / "whole.pt", 6)
    _trained(tmp_path / "parts.pt", 3)
    assert all(map(torch.equal, wanted, _trained(tmp_path / "parts.pt", 6)))
    assert not list(tmp_path.glob("*.partial"))


def test_saves_to_two_paths_do_not_disturb_each_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As of two ranks, one of which saves while the other has written its file only in part."""
    module, written = nn.Linear(2, 1), torch.save

    def write(state: Any, path: Path) -> None:
        written(state, path)
        if path.name.startswith("model.0"):
            simple.save(tmp_path / "model.1", 2, module=module)

    monkeypatch.setattr(torch, "save", write)
    simple.save(tmp_path / "model.0", 1, module=module)
    steps = [simple.load(tmp_path / name, module=module) for name in ("model.0", "model.1")]
    assert steps == [1, 2]
    assert len(list(tmp_path.iterdir())) == 2


def test_a_crash_in_a_save_leaves_the_last_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = nn.Linear(2, 2)
    simple.save(tmp_path / "run.pt", 1, module=module)
    monkeypatch.setattr(os, "replace", lambda *_: (_ for _ in ()).throw(OSError("no power")))
    with pytest.raises(OSError, match="no power"):
        simple.save(tmp_path / "run.pt", 2, module=module)
    assert simple.load(tmp_path / "run.pt", module=module) == 1


# The launcher ------------------------------------------------------------------------------------


def _total(factor: int) -> Tensor:
    x = torch.full((5,), float(factor * dist.get_rank()))
    simple.ring_all_reduce(x)
    return x


@pytest.mark.parametrize("ranks", [1, slow(2), 4])
def test_launch_returns_one_result_for_each_rank(ranks: int) -> None:
    results = simple.launch(_total, ranks, 2)
    assert [result.tolist() for result in results] == [[float(ranks * (ranks - 1))] * 5] * ranks


def _processes_and_ports() -> tuple[set[int], int, Any, set[str]]:
    # With the first store, torch opens a pipe that stays for all later ones.
    dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)  # type: ignore
    process = psutil.Process()
    children = {child.pid for child in process.children(recursive=True)}
    return children, process.num_fds(), listening(), set(os.listdir(os.environ["TMPDIR"]))


def _raises() -> None:
    if dist.get_rank() == 1:
        raise ValueError("an odd batch")
    dist.barrier()


def _is_killed() -> None:
    if dist.get_rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    dist.recv(torch.ones(1), src=1)


def _exits() -> None:
    if dist.get_rank() == 1:
        os._exit(0)
    dist.recv(torch.ones(1), src=1)


def _calls_exit() -> None:
    if dist.get_rank() == 1:
        sys.exit(3)
    dist.barrier()


def _returns_what_cannot_be_sent() -> Any:
    return lambda: None


def _receive_first() -> None:
    """Every rank waits for its left neighbour before it sends to the right one."""
    rank, n = dist.get_rank(), dist.get_world_size()
    dist.recv(torch.empty(1), src=(rank - 1) % n)
    dist.send(torch.ones(1), dst=(rank + 1) % n)


def _one_step_more() -> None:
    """Rank 2 has one batch more than the others."""
    for _ in range(3 if dist.get_rank() == 2 else 2):
        dist.all_reduce(torch.ones(3))


def _other_order() -> None:
    if dist.get_rank() == 0:
        dist.barrier()
    dist.all_reduce(torch.ones(3))
    if dist.get_rank() > 0:
        dist.barrier()


@pytest.mark.parametrize(
    ("fn", "message"),
    [
        (_raises, r"(?s)rank 1 failed:\nTraceback.*in _raises.*ValueError: an odd batch"),
        (_is_killed, r"^rank 1 died, exit code -9$"),
        (_exits, r"^rank 1 died, exit code 0$"),
        (_calls_exit, r"(?s)rank 1 failed:\n.*SystemExit: 3"),
        (_returns_what_cannot_be_sent, r"(?s)rank \d failed:.*pickle"),
        (
            _receive_first,
            r"^deadlock: rank 0 is blocked in recv 2, for rank 2; rank 2 is blocked in recv 1, "
            r"for rank 1; rank 1 is blocked in recv 0, for rank 0\.$",
        ),
        (
            _one_step_more,
            r"^deadlock: rank 2 is blocked in all_reduce, for rank 0, which has finished\.$",
        ),
        (
            _other_order,
            r"^deadlock: rank 0 is blocked in barrier, for rank 1; rank 1 is blocked in "
            r"all_reduce, for rank 0; all ranks must call the same collectives in the same "
            r"order\.$",
        ),
    ],
)
def test_launch_explains_what_failed_and_leaves_nothing(fn: Any, message: str) -> None:
    before = _processes_and_ports()
    with pytest.raises(RuntimeError, match=message) as caught:
        simple.launch(fn, 3)
    assert _processes_and_ports() == before, caught  # also while the exception is kept


def test_launch_leaves_nothing_after_a_good_run() -> None:
    before = _processes_and_ports()
    simple.launch(_total, 2, 1)
    assert _processes_and_ports() == before


def test_what_ranks_print_is_not_lost_in_a_pipe() -> None:
    code = "from dtlab import simple; simple.launch(lambda: print('here'), 2)"
    buffered = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    command = [sys.executable, "-c", code]
    assert subprocess.run(command, env=buffered, stdout=subprocess.PIPE, text=True).stdout == (
        "here\n" * 2
    )


def test_ranks_end_if_their_launcher_is_killed() -> None:
    code = (
        "import os, signal, torch.distributed as dist\n"
        "from dtlab import simple\n"
        "def fn():\n"
        "    os.write(1, b'%d ' % os.getpid())\n"
        "    dist.barrier()\n"
        "    if dist.get_rank() == 0:\n"
        "        os.kill(os.getppid(), signal.SIGKILL)\n"
        "simple.launch(fn, 2)\n"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout
    pids = [int(pid) for pid in out.split()]
    limit = time.monotonic() + 20
    while any(map(psutil.pid_exists, pids)) and time.monotonic() < limit:
        time.sleep(0.05)
    assert len(pids) == 2
    assert not any(map(psutil.pid_exists, pids))


def _late_but_right() -> None:
    """Ranks that wait long, messages under way, other orders of tags, and parts of the ranks."""
    rank, n = dist.get_rank(), dist.get_world_size()
    x, left, right = torch.ones(3), (rank - 1) % n, (rank + 1) % n
    if rank == 0:
        time.sleep(0.5)
    dist.all_reduce(x)
    if rank == 0:
        time.sleep(0.5)
    if rank == 2:
        dist.recv(x, src=1)
    dist.broadcast(x, src=0)
    if rank == 1:  # it has waited for rank 0 only
        dist.send(x, dst=2)
    sends = [dist.isend(torch.full((2,), float(tag)), dst=right, tag=tag) for tag in (1, 2)]
    late = dist.irecv(torch.empty(2), src=left, tag=1)
    dist.recv(torch.empty(2), src=left, tag=2)
    if rank == 1:
        time.sleep(0.5)
    for work in (*sends, late):
        work.wait()  # type: ignore[union-attr]
    both = [dist.P2POp(dist.isend, x, right), dist.P2POp(dist.irecv, torch.empty(3), left)]
    for work in dist.batch_isend_irecv(both):
        work.wait()
    group = dist.new_group([0, 1])
    if rank < 2:
        dist.all_reduce(x, group=group)
    if rank == 2:
        time.sleep(0.5)
        dist.send(x, dst=0)
    if rank == 0:
        assert dist.recv(x) == 2  # from any rank
    dist.barrier()


def test_a_correct_program_is_no_deadlock() -> None:
    simple.launch(_late_but_right, 3)


BLOCK, END, FINISHED = "block", "end", "finished"


@pytest.mark.parametrize(
    ("logs", "found"),
    [
        ([[], []], ""),
        ([[BLOCK, "recv 1"], []], ""),  # rank 1 computes
        ([[BLOCK, "recv 1"], ["send 0", BLOCK, "recv 0"]], ""),  # a message is under way to rank 0
        ([[BLOCK, "recv 1"], ["send 0 tag 1", BLOCK, "recv 0"]], "recv 1, for rank 1; rank 1"),
        ([[BLOCK, "send 1"], [BLOCK, "recv any"]], ""),
        ([[BLOCK, "send 1 tag 3"], ["recv any tag 3", BLOCK, "barrier"]], ""),
        ([[BLOCK, "recv 1"], ["recv any", BLOCK, "recv 0"]], "rank 0 is blocked in recv 1"),
        ([[BLOCK, "send 1"], [BLOCK, "recv 0"]], ""),
        ([[BLOCK, "recv any"], [FINISHED]], ""),  # from whom is not known
        ([[BLOCK, "send 1"], [BLOCK, "send 0"]], "rank 0 is blocked in send 1, for rank 1"),
        ([[BLOCK, "barrier"], [BLOCK, "barrier", END, FINISHED]], ""),  # returns in a moment
        ([[BLOCK, "barrier"], [BLOCK, "barrier", END, BLOCK, "recv 0"]], ""),
        ([[BLOCK, "barrier"], [FINISHED]], "barrier, for rank 1, which has finished"),
        ([[BLOCK, "barrier"], [BLOCK, "recv 2"], []], ""),  # rank 2 may send to rank 1
        ([[BLOCK, "barrier"], [BLOCK, "recv 2"], [BLOCK, "recv 1"]],
         "rank 0 is blocked in barrier, for rank 1; rank 1 is blocked in recv 2, for rank 2; "
         "rank 2 is blocked in recv 1, for rank 1."),
        ([[BLOCK, "all_reduce"], [BLOCK, "barrier"]], "the same collectives in the same order"),
        ([[BLOCK, "broadcast 0"], [BLOCK, "recv 0"]], ""),  # rank 0 sends and goes on
        ([[], [BLOCK, "broadcast 0"], [BLOCK, "recv 1"]], ""),  # rank 1 waits for rank 0 only
        ([[BLOCK, "broadcast 1"], [BLOCK, "recv 0"]], "is blocked in broadcast 1, for rank 1"),
        ([[BLOCK, "broadcast 1"], [BLOCK, "broadcast 0"]], "rank 0 is blocked in broadcast 1"),
    ],
)  # fmt: skip
def test_deadlocks_are_found_in_logs(logs: list[list[str]], found: str) -> None:
    reason = simple.find_deadlock(logs)
    assert found in reason
    assert bool(found) == bool(reason)


def _job(folder: Path, dies: bool) -> list[Tensor]:
    """Six steps of data parallelism; rank 1 may die in the fourth, when it is run first."""
    module, died = _net(), folder / "died"
    simple.average_by_hooks(module)
    parts = {"module": module, "optimizer": Adam(module.parameters(), lr=0.05)}
    for step in range(simple.load(folder / "run.pt", **parts), 6):
        if dies and step == 3 and dist.get_rank() == 1 and not died.exists():
            died.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        parts["optimizer"].zero_grad()
        _loss(module, step).backward()
        parts["optimizer"].step()
        if dist.get_rank() == 0:
            simple.save(folder / "run.pt", step + 1, **parts)
    return [parameter.detach() for parameter in module.parameters()]


def test_a_job_continues_after_a_rank_has_died(tmp_path: Path) -> None:
    results = []
    for dies in (False, True):
        folder = tmp_path / str(dies)
        folder.mkdir()
        results.append(simple.launch_until_done(_job, 2, int(dies), folder, dies))
        assert (folder / "died").exists() == dies
    whole, restarted = results
    for ours, wanted in zip(restarted, whole, strict=True):
        assert all(map(torch.equal, ours, wanted))


def test_a_job_that_always_fails_ends_with_its_error() -> None:
    with pytest.raises(RuntimeError, match="an odd batch"):
        simple.launch_until_done(_raises, 2, 1)


# Checks ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("unit", ["01", "02", "03", "05", "06", "07", "08", "09", "11"])
def test_it_counts_as_finished_code_in_the_units_whose_parts_it_solves(unit: str) -> None:
    parts = [part for part in known_parts() if part.name.startswith(f"{unit}/")]
    assert "dtlab.simple" in [module for module, _ in hidden_modules_of(parts)]


@pytest.mark.parametrize(
    ("part", "name"),
    [("01/ring_all_reduce", "ring_all_reduce"), ("07/one_f_one_b", "one_f_one_b")],
)
def test_a_check_refuses_it_as_an_answer(part: str, name: str) -> None:
    check: Any = next(each.check for each in known_parts() if each.name == part)
    criteria = check.run(name, getattr(simple, name), bench=BENCH)
    assert any(f"dtlab.simple.{name}" in criterion.message for criterion in criteria)
    assert sum(criterion.earned for criterion in criteria) < sum(each.points for each in criteria)
