"""The parameter server against one process on the whole batch, and against data parallelism."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import dtlab
from dtlab.parallel.data import NaiveDataParallel
from dtlab.parallel.server import ParameterServer, ParameterWorker, ServerReport
from dtlab.parallel.server.shards import balanced
from tests.marks import slow
from tests.staying import on_ranks

ROOT = Path(__file__).parent.parent
NUM_STEPS = 6
OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "SGD": partial(torch.optim.SGD, lr=0.1),
    "momentum": partial(torch.optim.SGD, lr=0.1, momentum=0.9, weight_decay=0.1),
    "Adam": partial(torch.optim.Adam, lr=0.01),
}
Result = tuple[ServerReport, dict[str, Tensor]] | list[dict[str, Tensor]]


class _Model(nn.Module):
    """A tied, a frozen, an unused and a scalar parameter, sizes that do not divide."""

    def __init__(self) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(0)
            self.first = nn.Linear(7, 13)
            self.middle = nn.Linear(13, 13, bias=False)
            self.again = self.middle
            self.last = nn.Linear(13, 5)
            self.scale = nn.Parameter(torch.tensor(1.0))
            self.frozen = nn.Parameter(torch.ones(13), requires_grad=False)
            self.unused = nn.Parameter(torch.ones(3))
        self.double()  # rounding that grows is not what this looks for

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = self.middle(self.first(inputs).relu()).relu() * self.frozen
        logits: Tensor = self.last(self.again(hidden) * self.scale)
        return logits


def _batch(step: int, num_workers: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(step)
    size = 4 * num_workers + 3  # does not divide
    inputs = torch.randn(size, 7, generator=generator, dtype=torch.float64)
    return inputs, torch.randint(5, (size,), generator=generator)


def _shares(step: int, num_workers: int) -> list[tuple[Tensor, Tensor]]:
    inputs, targets = _batch(step, num_workers)
    parts = zip(inputs.tensor_split(num_workers), targets.tensor_split(num_workers), strict=True)
    return list(parts)


def _values(model: nn.Module) -> dict[str, Tensor]:
    return {name: each.detach().clone() for name, each in model.named_parameters()}


def _served(server: ParameterServer) -> tuple[ServerReport, dict[str, Tensor]]:
    report = server.serve()
    return report, {name: each.detach() for name, each in server.parameters.items()}


def _train(servers: int, optimizer: str, *consistency: Any) -> Result:
    """What a learner writes. A worker returns its parameters after each pull."""
    model, seen = _Model(), []
    if dist.get_rank() < servers:
        return _served(ParameterServer(model, OPTIMIZERS[optimizer], servers, *consistency))
    with ParameterWorker(model, servers) as worker:
        for step in range(NUM_STEPS):
            worker.pull()
            seen.append(_values(model))
            inputs, targets = _shares(step, worker.num_workers)[worker.index]
            cross_entropy(model(inputs), targets).backward()
            worker.push(samples=len(inputs))
        worker.pull()
        seen.append(_values(model))
    return seen


def _alone(optimizer: str, num_workers: int) -> list[dict[str, Tensor]]:
    """One process on the whole batch."""
    model = _Model()
    stepper, history = OPTIMIZERS[optimizer](list(model.parameters())), [_values(model)]
    for step in range(NUM_STEPS):
        stepper.zero_grad()
        inputs, targets = _batch(step, num_workers)
        cross_entropy(model(inputs), targets).backward()
        stepper.step()
        history.append(_values(model))
    return history


# "sync" -------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.covering(1)
@pytest.mark.parametrize("optimizer", ["SGD", slow("momentum"), slow("Adam")])
@pytest.mark.parametrize(("servers", "workers"), [slow(1, 1), slow(1, 3), (2, 2), slow(3, 1)])
def test_sync_is_one_process_on_the_whole_batch(
    servers: int, workers: int, optimizer: str
) -> None:
    run = on_ranks(_train, servers, optimizer, "sync", world_size=servers + workers)
    expected = _alone(optimizer, workers)
    for history in run.values[servers:]:
        for ours, alone in zip(history, expected, strict=True):
            torch.testing.assert_close(ours, alone)
    kept: dict[str, Tensor] = {}
    for report, parameters in run.values[:servers]:
        assert report.updates == NUM_STEPS
        assert set(report.delays) == set(report.leads) == {0}
        assert not kept.keys() & parameters.keys()
        kept |= parameters
    trained = {name: each for name, each in expected[-1].items() if name != "frozen"}
    torch.testing.assert_close(kept, trained)


def _data_parallel() -> list[dict[str, Tensor]]:
    module = _Model()
    module.unused.requires_grad_(False)
    model = NaiveDataParallel(module)
    stepper, history = OPTIMIZERS["SGD"](list(model.parameters())), [_values(module)]
    for step in range(NUM_STEPS):
        stepper.zero_grad()
        inputs, targets = _shares(step, 2)[dist.get_rank()]
        cross_entropy(model(inputs[:5]), targets[:5]).backward()
        stepper.step()
        history.append(_values(module))
    return history


def _equal_shares() -> Result:
    model, seen = _Model(), []
    model.unused.requires_grad_(False)
    if dist.get_rank() < 1:
        return _served(ParameterServer(model, OPTIMIZERS["SGD"]))
    with ParameterWorker(model) as worker:
        for step in range(NUM_STEPS):
            worker.pull()
            seen.append(_values(model))
            inputs, targets = _shares(step, 2)[worker.index]
            cross_entropy(model(inputs[:5]), targets[:5]).backward()
            worker.push()
        worker.pull()
        seen.append(_values(model))
    return seen


@pytest.mark.slow
def test_sync_is_data_parallelism_bit_by_bit() -> None:
    """Two gradients have only one sum, whether a server or an all-reduce adds them."""
    ours = on_ranks(_equal_shares, world_size=3).values[1:]
    theirs = on_ranks(_data_parallel, world_size=2).values
    torch.testing.assert_close(ours, theirs, rtol=0, atol=0)


# "bounded" and "async" ----------------------------------------------------------------


class _Counter(nn.Module):
    """A model whose parameter counts the updates of each worker."""

    def __init__(self, num_workers: int) -> None:
        super().__init__()
        self.seen = nn.Parameter(torch.zeros(num_workers))


def _count(steps: list[int], pause: float, *consistency: Any) -> Any:
    """Each worker adds 1 in its own place; the first one is slow. What it saw, step by step."""
    model = _Counter(len(steps))
    if dist.get_rank() == 0:
        return _served(ParameterServer(model, partial(torch.optim.SGD, lr=1.0), 1, *consistency))
    seen = []
    with ParameterWorker(model) as worker:
        for _ in range(steps[worker.index]):
            worker.pull()
            seen.append(model.seen.tolist())
            dtlab.compute(pause * (worker.index == 0))
            model.seen.grad = torch.zeros_like(model.seen)
            model.seen.grad[worker.index] = -1
            worker.push()
    return seen


@pytest.mark.slow
@pytest.mark.parametrize("bound", [0, 1, 3])
def test_bounded_holds_the_fast_back(bound: int) -> None:
    num_workers, steps = 3, 12
    run = on_ranks(_count, [steps] * num_workers, 0.02, "bounded", bound, world_size=4)
    (report, parameters), *workers = run.values
    assert report.updates == num_workers * steps
    assert parameters["seen"].tolist() == [steps] * num_workers
    assert max(report.leads) == bound  # reached, since one is slow, and never passed
    assert max(report.delays) <= (2 * bound + 1) * (num_workers - 1)
    for me, history in enumerate(workers):
        for step, seen in enumerate(history):  # what the workers themselves saw says so too
            assert seen[me] == step
            assert min(seen) >= step - bound


@pytest.mark.slow
def test_async_waits_for_no_worker() -> None:
    run = on_ranks(_count, [3, 30, 30], 0.2, "async", world_size=4)
    (report, parameters), slow, *_ = run.values
    assert parameters["seen"].tolist() == [3, 30, 30]
    assert report.updates == 63
    assert max(report.leads) > 3  # the fast ones were far ahead of the slow one
    assert slow[-1][0] == 2
    assert min(slow[-1][1:]) > 3  # the others were far ahead of it
    assert max(report.delays) >= 10


@pytest.mark.slow
def test_sync_waits_for_slow_workers_but_not_for_those_that_have_ended() -> None:
    run = on_ranks(_count, [2, 5, 8], 0.02, "sync", world_size=4)
    report, parameters = run.values[0]
    assert report.updates == 8
    assert report.lost == []
    third, half = 1 / 3, 1 / 2
    expected = torch.tensor([2 * third, 2 * third + 3 * half, 2 * third + 3 * half + 3])
    torch.testing.assert_close(parameters["seen"], expected)


def _logged(num_steps: int) -> Any:
    """Async workers that keep what they pulled and pushed."""
    model, log = _Model(), []
    if dist.get_rank() == 0:
        return _served(ParameterServer(model, OPTIMIZERS["SGD"], 1, "async"))
    with ParameterWorker(model) as worker:
        for step in range(num_steps):
            worker.pull()
            before = _values(model)
            inputs, targets = _shares(step, 2)[worker.index]
            cross_entropy(model(inputs), targets).backward()
            gradients = {n: p.grad for n, p in model.named_parameters() if p.grad is not None}
            log.append((before, gradients))
            worker.push()
    return log


@pytest.mark.slow
def test_async_updates_are_whole() -> None:
    """All gradients together make the last state; each pull saw a state between two updates."""
    (_, final), *logs = on_ranks(_logged, 10, world_size=3).values
    start, rate = _values(_Model()), 0.1
    gradients = [gradient for log in logs for _, gradient in log]
    for name, last in final.items():
        total = sum((g[name] for g in gradients if name in g), torch.zeros_like(last))
        torch.testing.assert_close(last, start[name] - rate * total)
    mine, theirs = logs
    for step, (before, _) in enumerate(mine):
        fits = []
        for applied in range(len(theirs) + 1):
            sums = [g for _, g in (*mine[:step], *theirs[:applied])]
            state = {n: start[n] - rate * sum(g[n] for g in sums if n in g) for n in final}
            fits.append(all(torch.allclose(before[n], state[n], atol=1e-9) for n in final))
        assert sum(fits) == 1, step


def _pull_while_others_push(size: int) -> Any:
    model = nn.Linear(size, 1, bias=False)
    nn.init.zeros_(model.weight)
    if dist.get_rank() == 0:
        return _served(ParameterServer(model, partial(torch.optim.SGD, lr=1.0), 1, "async"))
    torn = 0
    with ParameterWorker(model) as worker:
        for _ in range(12):
            worker.pull()
            torn += int(model.weight.min() != model.weight.max())
            model.weight.grad = torch.full_like(model.weight, -1)
            worker.push()
    return torn


@pytest.mark.slow
def test_async_pulls_are_whole_while_others_push() -> None:
    """8 MB that are sent while the next update is made; each update adds 1 to all of it."""
    (_, kept), *torn = on_ranks(_pull_while_others_push, 2_000_000, world_size=4).values
    assert torn == [0, 0, 0]
    assert kept["weight"].unique().tolist() == [36]


# Tables -------------------------------------------------------------------------------

ROWS, WIDTH = 1000, 16


class _Recommender(nn.Module):
    """Two tables and a dense layer."""

    def __init__(self) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(0)
            self.users = nn.Embedding(ROWS, WIDTH, sparse=True)
            self.items = nn.Embedding(ROWS // 2, WIDTH, sparse=True)
            self.top = nn.Linear(2 * WIDTH, 1)
        self.double()

    def forward(self, users: Tensor, items: Tensor) -> Tensor:
        joined = torch.cat([self.users(users), self.items(items)], dim=1)
        scores: Tensor = self.top(joined).tanh()
        return scores


def _visits(step: int, index: int) -> tuple[Tensor, Tensor]:
    """Some rows come twice in a batch, and some with both workers."""
    generator = torch.Generator().manual_seed(10 * step + index)
    return tuple(torch.randint(rows, (9,), generator=generator) for rows in (30, 20))  # type: ignore[return-value]


def _recommend(servers: int) -> Any:
    model = _Recommender()
    if dist.get_rank() < servers:
        return _served(ParameterServer(model, OPTIMIZERS["SGD"], servers))
    with torch.no_grad():
        model.items.weight.zero_()  # what a worker needs comes from the servers
    with ParameterWorker(model, servers) as worker:
        for step in range(NUM_STEPS):
            users, items = _visits(step, worker.index)
            worker.pull({"users.weight": users, "items.weight": items})
            model(users, items).mean().backward()
            worker.push()
    return None


def _recommend_alone() -> dict[str, Tensor]:
    model = _Recommender()
    stepper = OPTIMIZERS["SGD"](list(model.parameters()))
    for step in range(NUM_STEPS):
        stepper.zero_grad()
        batches = zip(*(_visits(step, index) for index in range(2)), strict=True)
        model(*(torch.cat(parts) for parts in batches)).mean().backward()
        stepper.step()
    return _values(model)


@pytest.mark.slow
@pytest.mark.parametrize("servers", [1, 2])
def test_tables_train_as_in_one_process_and_only_their_rows_travel(servers: int) -> None:
    run = on_ranks(_recommend, servers, world_size=servers + 2)
    kept = {name: p for _, parameters in run.values[:servers] for name, p in parameters.items()}
    torch.testing.assert_close(kept, _recommend_alone())
    batches = [_visits(step, index) for step in range(NUM_STEPS) for index in range(2)]
    distinct = sum(len(rows.unique()) for batch in batches for rows in batch)
    dense = 2 * NUM_STEPS * (256 + 64)  # bytes: 32 weights and a bias of 8, each on 64 bytes
    reports = [report for report, _ in run.values[:servers]]
    assert sum(r.bytes_sent for r in reports) == distinct * 8 * WIDTH + dense
    assert sum(r.bytes_received for r in reports) == distinct * (8 * WIDTH + 2 * 8) + dense
    assert run.trace is not None
    sent = sum(run.trace.bytes_sent(rank) for rank in range(servers))
    assert sent == sum(r.bytes_sent for r in reports)


# Keys ---------------------------------------------------------------------------------


def test_keys_are_spread_by_size() -> None:
    sizes = {"a": 7, "b": 6, "c": 5, "d": 4, "e": 3, "f": 0}
    assert balanced(sizes, 2) == [{"a", "d", "e"}, {"b", "c", "f"}]
    split = balanced(sizes, 3)
    assert sorted(name for names in split for name in names) == sorted(sizes)
    assert sorted(sum(sizes[name] for name in names) for names in split) == [7, 9, 9]


def _mixed_dtypes() -> Any:
    model = nn.ParameterDict({
        "16 bits": nn.Parameter(torch.ones(3, dtype=torch.bfloat16)),
        "32 bits": nn.Parameter(torch.ones(5)),
        "64 bits": nn.Parameter(torch.ones((), dtype=torch.float64)),
    })
    if dist.get_rank() == 0:
        return _served(ParameterServer(model, partial(torch.optim.SGD, lr=0.5)))
    with ParameterWorker(model) as worker:
        worker.pull()
        for parameter in model.values():
            parameter.grad = torch.full_like(parameter, dist.get_rank())
        worker.push()
        worker.pull()
        return _values(model)


@pytest.mark.slow
def test_keys_of_several_dtypes_share_a_message() -> None:
    (report, kept), *workers = on_ranks(_mixed_dtypes, world_size=4).values
    assert {name: (p.dtype, p.flatten().tolist()) for name, p in kept.items()} == {
        "16 bits": (torch.bfloat16, [0.0] * 3),
        "32 bits": (torch.float32, [0.0] * 5),
        "64 bits": (torch.float64, [0.0]),
    }
    torch.testing.assert_close(workers, [kept] * 3)
    assert report.pushes == {1: 1, 2: 1, 3: 1}


def _wide() -> nn.ParameterDict:
    """Keys that are sent alone between small ones that are sent together."""
    rows = {"a": 3, "b": 300, "c": 5, "d": 301, "e": 302, "f": 2}
    return nn.ParameterDict({name: nn.Parameter(torch.zeros(n, 300)) for name, n in rows.items()})


def _gradient(name: str, like: Tensor) -> Tensor | None:
    """Numbers in order; of one key transposed in memory, of another none."""
    numbers = torch.arange(like.numel(), dtype=like.dtype).view_as(like) + ord(name)
    return {"d": None, "e": numbers.t().contiguous().t()}.get(name, numbers)


def _push_in_many_shapes(dtype: torch.dtype) -> Any:
    model = _wide()
    if dist.get_rank() == 0:
        return _served(ParameterServer(model, partial(torch.optim.SGD, lr=1.0)))
    with ParameterWorker(model) as worker:
        model.to(dtype)
        for name, parameter in model.items():
            parameter.grad = _gradient(name, parameter.detach())
        worker.push()
    return None


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_large_gradients_arrive_from_wherever_they_lie(dtype: torch.dtype) -> None:
    _, kept = on_ranks(_push_in_many_shapes, dtype, world_size=3).values[0]
    for name, values in kept.items():
        pushed = _gradient(name, values)
        assert values.equal(-pushed if pushed is not None else torch.zeros(values.shape)), name


def _moved() -> Any:
    model = nn.Linear(3, 2)
    if dist.get_rank() == 0:
        return _served(ParameterServer(model, partial(torch.optim.SGD, lr=1.0)))
    with ParameterWorker(model) as worker:
        model.double()  # or to a device: the parameters are no longer where a pull writes
        model(torch.ones(1, 3, dtype=torch.float64)).sum().backward()
        worker.push()
        worker.pull()
    return _values(model)


@pytest.mark.slow
def test_a_module_may_move_after_its_worker_was_made() -> None:
    (_, kept), moved = on_ranks(_moved, world_size=2).values
    assert moved["weight"].dtype == torch.float64
    torch.testing.assert_close(moved, {n: each.double() for n, each in kept.items()})


def _in_subgroup() -> Any:
    groups = [dist.new_group(ranks) for ranks in ([0, 2], [1, 3])]
    group, model = groups[dist.get_rank() % 2], nn.Linear(1, 1, bias=False)
    if dist.get_rank(group) == 0:
        nn.init.constant_(model.weight, dist.get_rank())
        ParameterServer(model, OPTIMIZERS["SGD"], group=group).serve()
    else:
        with ParameterWorker(model, group=group) as worker:
            worker.pull()
    return model.weight.item()


@pytest.mark.slow
def test_each_group_has_a_separate_server() -> None:
    assert on_ranks(_in_subgroup, world_size=4).values == [0, 1, 0, 1]


# Workers and servers that die ----------------------------------------------------------


@pytest.fixture(scope="module")
def deaths(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What each case came to, without `dtlab.launch`: that ends all ranks when one fails."""
    folder = tmp_path_factory.mktemp("stores")
    command = [sys.executable, "-m", "tests.dying_ranks", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    cases: dict[str, Any] = json.loads(done.stdout)
    return cases


@pytest.mark.proof
@pytest.mark.sample(1)
@pytest.mark.slow
@pytest.mark.parametrize("consistency", ["sync", "bounded", "async"])
@pytest.mark.parametrize("how", ["killed", "killed in a push", "killed in a pull", "raises"])
def test_a_worker_that_dies_stops_no_other(
    deaths: dict[str, Any], how: str, consistency: str
) -> None:
    """Ranks 0 and 1 serve; rank 2 does 4 steps and dies; ranks 3 and 4 do all of their 10."""
    codes, reports = deaths[f"{how}, {consistency}"]
    assert codes == [0, 0, 1 if how == "raises" else -9, 0, 0]
    for report in reports:
        assert report["lost"] == ([] if how == "raises" else [2])
        assert report["pushes"] == {"2": 4, "3": 10, "4": 10}
        shares = [4 / 3, 4 / 3 + 6 / 2, 4 / 3 + 6 / 2] if consistency == "sync" else [4, 10, 10]
        assert report["seen"] == pytest.approx(shares)


@pytest.mark.proof
@pytest.mark.slow
def test_workers_hear_of_a_server_that_fails_and_leave_the_other(deaths: dict[str, Any]) -> None:
    codes, reports = deaths["a server fails"]
    assert codes == [0, 1, 7, 7, 7]  # 7: a worker that met ConnectionError
    assert [report["lost"] for report in reports] == [[]]


# What goes wrong ----------------------------------------------------------------------


def _refuses(rank: int, message: str, make: Callable[[], object]) -> None:
    if dist.get_rank() == rank:
        with pytest.raises((ValueError, IndexError), match=message):
            make()


def _wrong_use() -> None:
    model, sgd = nn.Linear(2, 2), OPTIMIZERS["SGD"]
    server = partial(ParameterServer, model, sgd)
    _refuses(1, "rank 1 is not one of 1 servers. Make a ParameterWorker", server)
    _refuses(0, "rank 0 is one of 1 servers. Make", partial(ParameterWorker, model))
    _refuses(0, "2 of 2 ranks cannot be servers", partial(server, 2))
    _refuses(0, "'lazy' is unknown", partial(server, consistency="lazy"))
    _refuses(0, "consistency='bounded' does not", partial(server, consistency="bounded"))
    _refuses(0, "consistency='sync' does not go with staleness=2", partial(server, staleness=2))
    _refuses(0, "0 or more, not -1", partial(server, consistency="bounded", staleness=-1))
    few = partial(ParameterServer, nn.ReLU(), sgd)
    _refuses(0, "0 parameters cannot be divided among 1 servers", few)
    table = nn.Embedding(3, 2, sparse=True)
    if dist.get_rank() == 0:
        ParameterServer(table, sgd).serve()
        return
    with ParameterWorker(table) as worker:
        _refuses(1, "not a table. The tables are", partial(worker.pull, {"bias": torch.ones(1)}))
        _refuses(1, "has 3 rows", partial(worker.pull, {"weight": torch.tensor([0, 3])}))
        _refuses(1, "of 1 or more, not 0", partial(worker.push, 0))


@pytest.mark.slow
def test_arguments_that_do_not_fit_are_refused() -> None:
    on_ranks(_wrong_use, world_size=2)


def _another_model() -> None:
    if dist.get_rank() == 0:
        ParameterServer(nn.Linear(2, 2), OPTIMIZERS["SGD"]).serve()
    else:
        ParameterWorker(nn.Linear(2, 3)).pull()


@pytest.mark.slow
def test_tells_a_worker_with_another_model() -> None:
    with pytest.raises(dtlab.RankError, match="rank 1 has other parameters than this server"):
        on_ranks(_another_model, world_size=2)


def _optimizer_refuses() -> None:
    model = nn.Embedding(3, 2, sparse=True)
    if dist.get_rank() == 0:
        ParameterServer(model, torch.optim.Adam).serve()  # type: ignore[arg-type]
        return
    with ParameterWorker(model) as worker:
        model(torch.tensor([1])).sum().backward()
        worker.push()
        worker.pull()


@pytest.mark.slow
def test_what_an_optimizer_raises_ends_the_server() -> None:
    with pytest.raises(dtlab.RankError, match="rank 0 raised RuntimeError: Adam does not support"):
        on_ranks(_optimizer_refuses, world_size=3)


@pytest.mark.proof
@pytest.mark.slow
def test_a_slow_worker_is_no_deadlock() -> None:
    """All other ranks wait for longer than the watcher takes to report a deadlock."""
    run = on_ranks(_count, [2, 2], 1.5, "sync", world_size=3)
    assert run.values[0][0].updates == 2
