"""Data parallelism against one process on the whole batch, and against PyTorch's own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

import dtlab
from dtlab import collectives
from dtlab.parallel.data import (
    DataParallel,
    NaiveDataParallel,
    assert_replicas_equal,
)
from tests.marks import retried, slow
from tests.staying import on_ranks

STEPS, LOCAL_BATCH = 5, 6
TINY = 0.0003  # MiB: some parameters a bucket


class Tied(nn.Module):
    """A language model with one table for its input and its output."""

    def __init__(self, vocabulary: int = 29, width: int = 12) -> None:
        super().__init__()
        self.table = nn.Embedding(vocabulary, width)
        self.block = nn.TransformerEncoderLayer(width, 3, 20, dropout=0.0, batch_first=True)
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.table.weight

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.block(self.table(tokens))).mean(1)


class Frozen(nn.Sequential):
    """The first layer is not trained, and weights are stored column by column."""

    def __init__(self) -> None:
        super().__init__(nn.Linear(7, 9), nn.Tanh(), nn.Linear(9, 9), nn.Linear(9, 5))
        self[0].requires_grad_(False)
        self[2].weight = nn.Parameter(self[2].weight.detach().t().contiguous().t())


class Mixed(nn.Module):
    """Parameters of two dtypes."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(7, 8), nn.Linear(8, 8, dtype=torch.float64)
        self.third = nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.third(self.second(self.first(x).double()).float())


def mlp() -> nn.Module:
    sizes = nn.Linear(7, 33), nn.Linear(33, 17), nn.Linear(17, 5)
    return nn.Sequential(sizes[0], nn.ReLU(), sizes[1], nn.ReLU(), sizes[2])


def convolutional() -> nn.Module:
    return nn.Sequential(
        nn.Unflatten(1, (1, 7)), nn.Conv1d(1, 4, 3, padding=1), nn.BatchNorm1d(4), nn.ReLU(),
        nn.Conv1d(4, 6, 3), nn.BatchNorm1d(6), nn.Flatten(), nn.Linear(30, 5),
    )  # fmt: skip


MODELS: dict[str, Callable[[], nn.Module]] = {
    "mlp": mlp, "convolutional": convolutional, "tied": Tied, "frozen": Frozen, "mixed": Mixed,
}  # fmt: skip


def batch(step: int, size: int, tokens: bool) -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(step)
    if tokens:
        shape = (size, 8)
        return torch.randint(29, shape, generator=draw), torch.randint(29, (size,), generator=draw)
    return torch.randn(size, 7, generator=draw), torch.randint(5, (size,), generator=draw)


def share_of(whole: tuple[Tensor, Tensor], group: Any = None) -> tuple[Tensor, Tensor]:
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    inputs, labels = (one.tensor_split(size)[rank] for one in whole)
    return inputs, labels


Record = list[dict[str, Tensor]]


def train(
    model: nn.Module, name: str, ranks: int, share: bool, inner: nn.Module | None = None
) -> Record:
    """Gradients of each step, and the parameters and buffers after the last one."""
    own = inner or model
    optimizer = torch.optim.SGD(own.parameters(), lr=0.1, momentum=0.9)
    seen: Record = []
    for step in range(STEPS):
        whole = batch(step, LOCAL_BATCH * ranks, name == "tied")
        inputs, labels = share_of(whole) if share else whole
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(inputs), labels).backward()
        seen.append({n: p.grad.clone() for n, p in own.named_parameters() if p.grad is not None})
        optimizer.step()
    return [*seen, {n: t.clone() for n, t in own.state_dict().items()}]


def ours(name: str, wrap: Callable[[nn.Module], nn.Module]) -> Record:
    torch.manual_seed(dist.get_rank())  # other parameters on each rank, until they are wrapped
    inner = MODELS[name]()
    model = wrap(inner)
    seen = train(model, name, dist.get_world_size(), True, inner)
    assert_replicas_equal(inner)
    return seen


def alone(name: str, ranks: int) -> Record:
    torch.manual_seed(0)
    return train(MODELS[name](), name, ranks, False)


def same(got: Record, wanted: Record, **tolerance: float) -> None:
    for one, other in zip(got, wanted, strict=True):
        assert one.keys() == other.keys()
        for name in one:
            torch.testing.assert_close(
                one[name], other[name], **tolerance, msg=lambda text, name=name: f"{name}: {text}"
            )


WRAPS: dict[str, Callable[[nn.Module], nn.Module]] = {
    "naive": NaiveDataParallel,
    "one bucket": DataParallel,
    "many buckets": lambda module: DataParallel(module, bucket_cap_mb=TINY),
    "by a ring": lambda module: DataParallel(
        module, bucket_cap_mb=TINY, all_reduce=collectives.ring_all_reduce
    ),
}


@pytest.mark.slow
@pytest.mark.covering(2)
@pytest.mark.parametrize("ranks", [slow(1), slow(2), 3, slow(4)])
@pytest.mark.parametrize("wrap", ["naive", slow("one bucket"), "many buckets", slow("by a ring")])
@pytest.mark.parametrize("name", ["mlp", "tied", slow("frozen"), slow("mixed")])
def test_equals_one_process_on_the_whole_batch(name: str, wrap: str, ranks: int) -> None:
    run, wanted = on_ranks(ours, name, WRAPS[wrap], world_size=ranks), alone(name, ranks)
    for values in run.values:
        same(values, wanted, rtol=1e-4, atol=1e-6)


def pytorchs(name: str) -> Record:
    torch.manual_seed(dist.get_rank())
    inner = MODELS[name]()
    model = DistributedDataParallel(inner, bucket_cap_mb=TINY)
    return train(model, name, dist.get_world_size(), True, inner)


@pytest.mark.slow
@pytest.mark.covering(2)
@pytest.mark.parametrize("ranks", [2, slow(3)])
@pytest.mark.parametrize("wrap", [slow("naive"), "many buckets"])
@pytest.mark.parametrize("name", MODELS)
def test_equals_pytorchs_own(name: str, wrap: str, ranks: int) -> None:
    got = on_ranks(ours, name, WRAPS[wrap], world_size=ranks).values
    wanted = on_ranks(pytorchs, name, world_size=ranks).values
    for one, other in zip(got, wanted, strict=True):
        same(one, other, rtol=1e-5, atol=1e-6)


# Unused parameters ---------------------------------------------------------------


class Branches(nn.Module):
    """Ranks with an odd number take the left branch; no rank takes the third."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right, self.never = (nn.Linear(3, 3) for _ in range(3))
        self.head = nn.Linear(3, 2)

    def forward(self, x: Tensor, left: bool) -> Tensor:
        return self.head((self.left if left else self.right)(x))


def branches(wrap: Callable[[nn.Module], nn.Module]) -> list[dict[str, Tensor | None]]:
    torch.manual_seed(3)
    inner, rank = Branches(), dist.get_rank()
    model = wrap(inner)
    seen = []
    for step in range(3):
        inner.zero_grad()
        model(torch.full((2, 3), float(rank + 1)), (rank + step) % 2 == 1).sum().backward()
        seen.append({n: p.grad and p.grad.clone() if p.grad is None else p.grad.clone()
                     for n, p in inner.named_parameters()})  # fmt: skip
    return seen


@pytest.mark.slow
def test_a_parameter_that_a_rank_does_not_use_counts_as_zero_there() -> None:
    def theirs(module: nn.Module) -> nn.Module:
        return DistributedDataParallel(module, find_unused_parameters=True)

    for cap in (None, TINY):
        got = on_ranks(branches, lambda m, cap=cap: DataParallel(m, cap), world_size=3).values
        wanted = on_ranks(branches, theirs, world_size=3).values
        for one, other in zip(got, wanted, strict=True):
            for mine, its in zip(one, other, strict=True):
                assert {n for n, g in mine.items() if g is None} == {"never.weight", "never.bias"}
                for name, gradient in mine.items():
                    if gradient is not None:
                        torch.testing.assert_close(gradient, its[name])


# no_sync, and backward passes of other kinds ------------------------------------------------


def accumulate(wrap: Callable[[nn.Module], Any], fails: bool) -> tuple[list[Tensor], int]:
    """Three small batches, of which only the last one communicates."""
    torch.manual_seed(1)
    inner = mlp()
    model = wrap(inner)
    losses = nn.functional.cross_entropy
    parts = [share_of(batch(step, 4 * dist.get_world_size(), False)) for step in range(3)]
    if fails:
        with pytest.raises(KeyError), model.no_sync():
            raise KeyError("in the middle")
        inner.zero_grad()
    with model.no_sync():
        for inputs, labels in parts[:2]:
            losses(model(inputs), labels).backward()
    inputs, labels = parts[2]
    losses(model(inputs), labels).backward()
    return [p.grad.clone() for p in inner.parameters() if p.grad is not None], 0


@pytest.mark.slow
@pytest.mark.parametrize("wrap", ["naive", "one bucket", "many buckets"])
@pytest.mark.parametrize("fails", [False, True])
def test_gradients_add_up_inside_no_sync_and_travel_once(wrap: str, fails: bool) -> None:
    run = on_ranks(accumulate, WRAPS[wrap], fails, world_size=3)
    torch.manual_seed(1)
    torch.manual_seed(1)
    whole = mlp()
    for step in range(3):
        inputs, labels = batch(step, 12, False)
        nn.functional.cross_entropy(whole(inputs), labels).backward()
    for gradients, _ in run.values:
        for gradient, parameter in zip(gradients, whole.parameters(), strict=True):
            torch.testing.assert_close(gradient, parameter.grad)
    count = {"naive": 6, "one bucket": 1, "many buckets": 3}[wrap]
    assert run.trace.ops(0)["all_reduce"] == count


def loaded(wrap: Callable[[nn.Module], nn.Module]) -> tuple[Any, bool]:
    """What loading the state of another model says, and whether the two are then equal."""
    source, model = mlp(), wrap(mlp())
    told = model.load_state_dict({**source.state_dict(), "other": torch.ones(1)}, strict=False)
    pairs = zip(source.state_dict().values(), model.state_dict().values(), strict=True)
    return told.unexpected_keys, all(torch.equal(*pair) for pair in pairs)


@pytest.mark.slow
@pytest.mark.parametrize("wrap", ["naive", "one bucket"])
def test_the_state_of_a_plain_module_is_loaded(wrap: str) -> None:
    assert on_ranks(loaded, WRAPS[wrap]).values == [(["other"], True)] * 2


def two_blocks(wrap: Callable[[nn.Module], Any]) -> list[Tensor]:
    """Gradients and buffers of this rank after a backward pass in each of two nested blocks."""
    torch.manual_seed(1)
    inner = convolutional()
    model = wrap(inner)
    parts = [share_of(batch(step, 4 * dist.get_world_size(), False)) for step in range(2)]
    with model.no_sync():
        for n, (inputs, labels) in enumerate(parts):
            with model.no_sync() if n == 0 else nullcontext():
                nn.functional.cross_entropy(model(inputs), labels).backward()
    return [*(p.grad.clone() for p in inner.parameters() if p.grad is not None), *inner.buffers()]


@pytest.mark.slow
@pytest.mark.parametrize("wrap", ["naive", "many buckets"])
def test_nothing_travels_inside_nested_no_sync_blocks(wrap: str) -> None:
    run, ddp = on_ranks(two_blocks, WRAPS[wrap]), on_ranks(two_blocks, DistributedDataParallel)
    for mine, its in zip(run.values, ddp.values, strict=True):
        for one, other in zip(mine, its, strict=True):
            torch.testing.assert_close(one, other)
    assert "all_reduce" not in run.trace.ops(0)


def twice(wrap: Callable[[nn.Module], nn.Module]) -> list[Tensor]:
    """Two backward passes for one step: the gradients add up."""
    torch.manual_seed(1)
    inner = mlp()
    model = wrap(inner)
    inputs, labels = share_of(batch(0, 4 * dist.get_world_size(), False))
    loss = nn.functional.cross_entropy(model(inputs), labels)
    loss.backward(retain_graph=True)
    loss.backward()
    return [p.grad.clone() for p in inner.parameters() if p.grad is not None]


@pytest.mark.slow
@pytest.mark.parametrize("wrap", ["one bucket", "many buckets"])
def test_a_second_backward_adds_its_mean(wrap: str) -> None:
    run = on_ranks(twice, WRAPS[wrap], world_size=2)
    torch.manual_seed(1)
    whole = mlp()
    inputs, labels = batch(0, 8, False)
    (2 * nn.functional.cross_entropy(whole(inputs), labels)).backward()
    for gradient, parameter in zip(run.values[1], whole.parameters(), strict=True):
        torch.testing.assert_close(gradient, parameter.grad)


class Recomputing(nn.Module):
    def __init__(self, reentrant: bool) -> None:
        super().__init__()
        self.reentrant = reentrant
        self.first, self.second, self.third = nn.Linear(7, 9), nn.Linear(9, 9), nn.Linear(9, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = checkpoint(self.second, self.first(x).tanh(), use_reentrant=self.reentrant)
        return checkpoint(self.third, x.tanh(), use_reentrant=self.reentrant)


def recomputed(reentrant: bool) -> list[Tensor]:
    torch.manual_seed(1)
    inner = Recomputing(reentrant)
    model = DataParallel(inner, TINY)
    for step in range(2):
        inner.zero_grad()
        inputs, labels = share_of(batch(step, 4 * dist.get_world_size(), False))
        nn.functional.cross_entropy(model(inputs), labels).backward()
    return [p.grad.clone() for p in inner.parameters() if p.grad is not None]


@pytest.mark.slow
@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpointed_layers_are_averaged_once(reentrant: bool) -> None:
    run = on_ranks(recomputed, reentrant, world_size=2)
    torch.manual_seed(1)
    whole = Recomputing(False)
    inputs, labels = batch(1, 8, False)
    nn.functional.cross_entropy(whole(inputs), labels).backward()
    for gradient, parameter in zip(run.values[0], whole.parameters(), strict=True):
        torch.testing.assert_close(gradient, parameter.grad)


def broken_off() -> list[Tensor]:
    """A backward pass that fails in the middle on all ranks, and a good one after it."""
    torch.manual_seed(1)
    inner = mlp()
    model = DataParallel(inner, TINY)
    inputs, labels = share_of(batch(0, 4 * dist.get_world_size(), False))

    def fail(_: Tensor) -> None:
        raise KeyError("in the middle")

    handle = inner[0].bias.register_hook(fail)
    with pytest.raises(KeyError):
        nn.functional.cross_entropy(model(inputs), labels).backward()
    handle.remove()
    inner.zero_grad()
    nn.functional.cross_entropy(model(inputs), labels).backward()
    return [p.grad.clone() for p in inner.parameters() if p.grad is not None]


@pytest.mark.slow
def test_a_pass_that_was_broken_off_leaves_nothing_behind() -> None:
    run = on_ranks(broken_off, world_size=2)
    torch.manual_seed(1)
    whole = mlp()
    inputs, labels = batch(0, 8, False)
    nn.functional.cross_entropy(whole(inputs), labels).backward()
    for gradient, parameter in zip(run.values[0], whole.parameters(), strict=True):
        torch.testing.assert_close(gradient, parameter.grad)


# Batches that run out ------------------------------------------------------------------------


def uneven(wrap: Callable[[nn.Module], Any], by_all: bool) -> dict[str, Tensor]:
    """Rank r has r + 1 batches."""
    torch.manual_seed(1)
    inner = convolutional()
    model = wrap(inner)
    optimizer = torch.optim.SGD(inner.parameters(), lr=0.1)
    with model.join(divide_by_initial_world_size=by_all):
        for step in range(dist.get_rank() + 1):
            inputs, labels = batch(10 * dist.get_rank() + step, 4, False)
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(inputs), labels).backward()
            optimizer.step()
    return dict(inner.state_dict())


@pytest.mark.slow
@pytest.mark.parametrize("by_all", [True, False])
@pytest.mark.parametrize("cap", [None, TINY])
def test_uneven_batches_join_as_pytorchs_do(by_all: bool, cap: float | None) -> None:
    got = on_ranks(uneven, lambda m: DataParallel(m, cap), by_all, world_size=3).values
    wanted = on_ranks(uneven, DistributedDataParallel, by_all, world_size=3).values
    for one, other in zip(got, wanted, strict=True):
        same([one], [other], rtol=1e-5, atol=1e-6)


# What it costs -------------------------------------------------------------------------------


def held() -> tuple[int, int]:
    inner = mlp()
    model = DataParallel(inner, TINY)
    for step in range(2):
        inner.zero_grad()
        model(batch(step, 4, False)[0]).sum().backward()
    gradients = [p.grad for p in inner.parameters()]
    flat = [bucket.flat for bucket in model._buckets]
    return sum(g.numel() * 4 for g in gradients), dtlab.held_bytes(gradients, flat)


@pytest.mark.slow
def test_gradients_take_their_memory_once() -> None:
    for needed, taken in on_ranks(held, world_size=2).values:
        assert needed <= taken <= needed + 100


def slow_backward(cap: float) -> None:
    """Layers whose backward takes 20 ms each, without a core."""

    class Slow(torch.autograd.Function):
        @staticmethod
        def forward(context: Any, x: Tensor) -> Tensor:
            return x.clone()

        @staticmethod
        def backward(context: Any, gradient: Tensor) -> Tensor:
            dtlab.compute(0.02)
            return gradient

    class Layer(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(Slow.apply(x))

    model = DataParallel(nn.Sequential(*(Layer(64, 64) for _ in range(6))), cap)
    for _ in range(2):
        loss = model(torch.ones(2, 64)).sum()
        with dtlab.span("backward"):
            loss.backward()


@pytest.fixture
def slow_wire() -> Iterator[dtlab.Cluster]:
    yield dtlab.Cluster(gpus_per_node=2, intra=dtlab.Link(1e-3, 2e6))


@pytest.mark.slow
@retried
def test_buckets_are_sent_while_backward_continues(slow_wire: dtlab.Cluster) -> None:
    """16 kB take 9 ms on this wire: each fits into the next layer's 20 ms."""
    trace = on_ranks(slow_backward, 64 * 64 * 4 / 2**20, world_size=2, cluster=slow_wire).trace
    for rank in (0, 1):
        passes = [e for e in trace.events if e.rank == rank and e.name == "backward"]
        reduced = [e for e in trace.events if e.rank == rank and e.name == "all_reduce"]
        assert len(passes) == 2 and len(reduced) == 12
        for one in passes:
            inside = [e for e in reduced if one.start <= e.start <= one.end]
            assert inside[0].start < one.start + 0.06
            assert one.end - one.start < 6 * 0.02 + 0.06


# What is said -------------------------------------------------------------------------------


def wrong_start() -> str:
    inner = mlp()
    model = DataParallel(inner)
    with torch.no_grad():
        inner[2].bias[0] += dist.get_rank()  # type: ignore[index, operator]
    try:
        assert_replicas_equal(model.module)
    except dtlab.DtlabError as error:
        return str(error)
    return ""


@pytest.mark.slow
def test_replicas_that_differ_are_named() -> None:
    for text in on_ranks(wrong_start, world_size=3).values:
        assert "differ in 1 of 6 tensors" in text
        assert "2.bias: ranks 1, 2 differ from rank 0, by at most 2" in text


@pytest.mark.slow
def test_a_state_has_the_names_of_the_module() -> None:
    def states() -> tuple[list[str], list[str]]:
        inner = mlp()
        model = DataParallel(inner)
        model.load_state_dict(inner.state_dict())
        return list(model.state_dict()), list(inner.state_dict())

    for mine, its in on_ranks(states, world_size=2).values:
        assert mine == its


def refused(wrap: Callable[[], object]) -> str:
    try:
        wrap()
    except (TypeError, ValueError) as error:
        return str(error)
    return ""


def sparse() -> None:
    model = DataParallel(nn.Embedding(5, 3, sparse=True))
    model(torch.tensor([1])).sum().backward()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("wrap", "says"),
    [
        (lambda: DataParallel(mlp(), 0), "bucket_cap_mb=0 is not above 0. Pass"),
        (lambda: DataParallel(mlp().requires_grad_(False)), "no parameter of this module needs"),
        (sparse, "a gradient of shape (5, 3) is sparse"),
    ],
)
def test_unsupported_modules_are_refused(wrap: Callable[[], object], says: str) -> None:
    assert all(says in text for text in on_ranks(refused, wrap, world_size=2).values)


def in_a_group() -> list[Tensor]:
    """Ranks 1 and 3 are a group and share a batch."""
    group = dist.new_group([1, 3])
    if dist.get_rank() not in (1, 3):
        return []
    torch.manual_seed(dist.get_rank())
    inner = mlp()
    model = DataParallel(inner, TINY, group)
    inputs, labels = share_of(batch(0, 8, False), group)
    nn.functional.cross_entropy(model(inputs), labels).backward()
    assert_replicas_equal(inner, group)
    return [p.grad.clone() for p in inner.parameters() if p.grad is not None]


@pytest.mark.slow
def test_averages_within_a_group() -> None:
    run = on_ranks(in_a_group, world_size=4)
    torch.manual_seed(1)
    whole = mlp()
    inputs, labels = batch(0, 8, False)
    nn.functional.cross_entropy(whole(inputs), labels).backward()
    for rank in (1, 3):
        for gradient, parameter in zip(run.values[rank], whole.parameters(), strict=True):
            torch.testing.assert_close(gradient, parameter.grad)
