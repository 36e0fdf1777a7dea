"""Every collective against torch's own and against the same arithmetic in one process."""

from __future__ import annotations

import itertools
import math
import warnings
from collections.abc import Callable
from functools import partial, reduce

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ReduceOp

import dtlab
from dtlab import collectives, messages
from tests.marks import slow
from tests.staying import on_ranks

FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
WHOLE = [torch.int8, torch.uint8, torch.int32, torch.int64, torch.bool]
COMPLEX = [torch.complex64, torch.complex128]
ORDERED = ["SUM", "PRODUCT", "MIN", "MAX"]
BITWISE = ["BAND", "BOR", "BXOR"]
SUPPORTED = [
    *itertools.product(FLOATS, [*ORDERED, "AVG"]),
    *itertools.product(WHOLE, [*ORDERED, *BITWISE]),
    *itertools.product(COMPLEX, ["SUM", "AVG"]),
]
PLAIN = [
    collectives.naive_all_reduce,
    collectives.ring_all_reduce,
    collectives.tree_all_reduce,
    collectives.recursive_doubling_all_reduce,
    collectives.halving_doubling_all_reduce,
]
IN_ONE_PROCESS: dict[str, Callable[..., Tensor]] = {
    "SUM": torch.add, "AVG": torch.add, "PRODUCT": torch.mul, "MIN": torch.minimum,
    "MAX": torch.maximum, "BAND": torch.bitwise_and, "BOR": torch.bitwise_or,
    "BXOR": torch.bitwise_xor,
}  # fmt: skip


def _all_reduces(n: int) -> dict[str, Callable[..., None]]:
    """Every all-reduce, the hierarchical one with every size of node that divides n."""
    nodes = [size for size in range(1, n + 1) if n % size == 0]
    hierarchical = {
        f"hierarchical {size}": partial(collectives.hierarchical_all_reduce, ranks_per_node=size)
        for size in nodes
    }
    return {each.__name__: each for each in PLAIN} | hierarchical


def _of_rank(rank: int, size: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Small whole numbers: their sums and products are exact in every dtype and order."""
    generator = torch.Generator().manual_seed(rank)
    return torch.randint(0, 4, (size,), generator=generator).to(dtype)


def _quiet(function: Callable[..., None], *args: object, **kwargs: object) -> None:
    """Torch's own, without its note that the name is deprecated (its successor is new in 2.13)."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        function(*args, **kwargs)


# All-reduce ---------------------------------------------------------------------------


def _wrong_all_reduces(sizes: list[int], kinds: list[tuple[torch.dtype, str]]) -> list[str]:
    n, me, wrong = dist.get_world_size(), dist.get_rank(), []
    for size, (dtype, op) in itertools.product(sizes, kinds):
        everyone = [_of_rank(rank, size, dtype) for rank in range(n)]
        alone = reduce(IN_ONE_PROCESS[op], everyone[1:], everyone[0].clone())
        if op == "AVG":
            (torch.view_as_real(alone) if dtype.is_complex else alone).div_(n)
        torchs = everyone[me].clone()
        dist.all_reduce(torchs, op=getattr(ReduceOp, op))
        assert torch.equal(torchs, alone), (dtype, op)
        for name, all_reduce in _all_reduces(n).items():
            ours = everyone[me].clone()
            assert all_reduce(ours, getattr(ReduceOp, op)) is None
            if not torch.equal(ours, torchs):
                wrong.append(f"{name} of {size} x {dtype}, {op}: {ours} is not {torchs}")
    return wrong


@pytest.mark.slow
@pytest.mark.parametrize("n", [slow(1), 2, 3, slow(4), slow(5), slow(8)])
def test_all_reduce_of_any_size_equals_torchs(n: int) -> None:
    sizes = [0, 1, 2, 3, 7, 8, 257, 100_003]
    run = on_ranks(_wrong_all_reduces, sizes, [(torch.float32, "SUM")], world_size=n)
    assert run.values == [[]] * n


@pytest.mark.sample(1)
@pytest.mark.slow
@pytest.mark.parametrize("n", [2, 3])
def test_all_reduce_of_every_dtype_and_reduction_equals_torchs(n: int) -> None:
    run = on_ranks(_wrong_all_reduces, [11], SUPPORTED, world_size=n)
    assert run.values == [[]] * n


@pytest.mark.proof
@pytest.mark.slow
def test_large_messages_and_more_chunks_than_buffers() -> None:
    """Chunks of 8.8 MB: both receives share one buffer, which is on huge pages."""
    run = on_ranks(_wrong_all_reduces, [6_600_001], [(torch.float32, "SUM")], world_size=3)
    assert run.values == [[]] * 3


@pytest.mark.slow
def test_order_of_issue_is_enough() -> None:
    """The path that CUDA tensors take: nothing posted ahead, one batch in each exchange."""

    def ranks() -> list[str]:
        messages._in_order = lambda places: True  # this process ends with the launch
        return _wrong_all_reduces([0, 10], [(torch.float32, "SUM")]) + _wrong_others((3,))

    assert on_ranks(ranks, world_size=4).values == [[]] * 4


@pytest.mark.slow
def test_refuses_exactly_what_gloo_refuses() -> None:
    def ranks() -> None:
        every = itertools.product([*FLOATS, *WHOLE, *COMPLEX], [*ORDERED, *BITWISE, "AVG"])
        for dtype, op in every:
            if (dtype, op) in SUPPORTED:
                continue
            with pytest.raises((RuntimeError, ValueError)):
                dist.all_reduce(torch.ones(2, dtype=dtype), getattr(ReduceOp, op))
            for all_reduce in _all_reduces(2).values():
                with pytest.raises(TypeError, match=f"{op} does not exist for {dtype}"):
                    all_reduce(torch.ones(2, dtype=dtype), getattr(ReduceOp, op))
        with pytest.raises(TypeError, match="'sum' is not a reduction"):
            collectives.ring_all_reduce(torch.ones(2), "sum")
        tensor = torch.ones(2)
        collectives.ring_all_reduce(tensor, ReduceOp(ReduceOp.SUM))  # the other type of SUM
        assert tensor.tolist() == [2, 2]

    on_ranks(ranks, world_size=2)


@pytest.mark.slow
def test_all_ranks_get_the_same_bits() -> None:
    def ranks() -> dict[str, bytes]:
        n, results = dist.get_world_size(), {}
        for name, all_reduce in _all_reduces(n).items():
            generator = torch.Generator().manual_seed(dist.get_rank())
            tensor = torch.randn(1001, generator=generator)
            all_reduce(tensor)
            results[name] = tensor.numpy().tobytes()
        return results

    for n in (3, 5):
        first, *others = on_ranks(ranks, world_size=n).values
        assert all(other == first for other in others)


@pytest.mark.slow
def test_shapes_strides_and_autograd() -> None:
    def ranks() -> None:
        for all_reduce in _all_reduces(3).values():
            for tensor in (
                torch.ones(()),
                torch.ones(2, 0, 3),
                torch.ones(4, 3).t(),
                torch.ones(4, 3)[:, 1],
                torch.ones(2, 3, 4, 4).to(memory_format=torch.channels_last),
                torch.ones(5, requires_grad=True),
                torch.ones(5, requires_grad=True) * 1,
            ):
                strides = tensor.stride()
                all_reduce(tensor)
                assert (tensor == 3).all()
                assert tensor.stride() == strides
        whole = torch.ones(4, 3)
        collectives.ring_all_reduce(whole[:, 1])
        assert whole.tolist() == [[1, 3, 1]] * 4  # neighbours in memory are unchanged

    on_ranks(ranks, world_size=3)


# The others ---------------------------------------------------------------------------


def _wrong_others(shape: tuple[int, ...]) -> list[str]:
    n, me, wrong = dist.get_world_size(), dist.get_rank(), []
    size, long = math.prod(shape), (n * shape[0], *shape[1:])
    for dtype in (torch.float32, torch.bool, torch.complex64, torch.float16):
        whole, part = _of_rank(me, n * size, dtype).view(long), torch.empty(shape, dtype=dtype)
        before, gathered = whole.clone(), torch.empty(long, dtype=dtype)

        expected = part.clone()
        _quiet(dist.reduce_scatter_tensor, expected, whole)
        collectives.ring_reduce_scatter(part, whole)
        if not torch.equal(part, expected) or not torch.equal(whole, before):
            wrong.append(f"ring_reduce_scatter {shape} {dtype}")

        _quiet(dist.all_gather_into_tensor, expected := gathered.clone(), part)
        collectives.ring_all_gather(gathered, part)
        if not torch.equal(gathered, expected):
            wrong.append(f"ring_all_gather {shape} {dtype}")

        dist.all_to_all_single(expected := torch.empty_like(whole), whole)
        collectives.pairwise_all_to_all(gathered, whole)
        if not torch.equal(gathered, expected):
            wrong.append(f"pairwise_all_to_all {shape} {dtype}")

        for src in range(n):
            expected, copied = part.clone() * 0 + me, part.clone() * 0 + me
            dist.broadcast(expected, src)
            collectives.tree_broadcast(copied, src)
            if not torch.equal(copied, expected):
                wrong.append(f"tree_broadcast {shape} {dtype} from {src}")
    return wrong


@pytest.mark.sample(3)
@pytest.mark.slow
@pytest.mark.parametrize("n", [slow(1), 2, 3, slow(4), slow(5), slow(8)])
def test_the_others_equal_torchs(n: int) -> None:
    def ranks() -> list[str]:
        return [text for shape in ((0,), (1,), (7,), (5, 3)) for text in _wrong_others(shape)]

    assert on_ranks(ranks, world_size=n).values == [[]] * n


@pytest.mark.slow
def test_input_and_output_may_share_memory_and_have_strides() -> None:
    def ranks() -> None:
        n, me = dist.get_world_size(), dist.get_rank()
        total = sum(_of_rank(rank, 2 * n) for rank in range(n))
        tensor = _of_rank(me, 2 * n)
        collectives.ring_reduce_scatter(tensor.view(n, 2)[me], tensor)
        collectives.ring_all_gather(tensor, tensor.view(n, 2)[me])
        assert torch.equal(tensor, total)

        tensor = torch.arange(n) + 10 * me
        collectives.pairwise_all_to_all(tensor, tensor)
        assert tensor.tolist() == [me + 10 * rank for rank in range(n)]

        tensor, part = _of_rank(me, 4 * n).view(2 * n, 2), torch.zeros(2, 2)
        collectives.ring_reduce_scatter(part[:, 1], tensor[:, 1])
        total = sum(_of_rank(rank, 4 * n).view(2 * n, 2)[:, 1] for rank in range(n))
        assert part[:, 0].tolist() == [0, 0]
        assert torch.equal(part[:, 1], total[2 * me : 2 * me + 2])
        collectives.ring_all_gather(tensor[:, 0], part[:, 1])
        assert torch.equal(tensor[:, 0], total)

    on_ranks(ranks, world_size=3)


def test_average_of_a_reduce_scatter() -> None:
    def ranks() -> list[float]:
        output = torch.empty(2)
        collectives.ring_reduce_scatter(output, torch.arange(6.0), ReduceOp.AVG)
        return output.tolist()

    assert on_ranks(ranks, world_size=3).values == [[0, 1], [2, 3], [4, 5]]


@pytest.mark.slow
def test_sizes_that_do_not_fit_are_refused() -> None:
    def ranks() -> None:
        two, seven = torch.ones(2), torch.ones(7)
        for call, where in (
            (lambda: collectives.ring_reduce_scatter(two, seven), "7 elements are not 3 x 2"),
            (lambda: collectives.ring_all_gather(seven, two), "7 elements are not 3 x 2"),
            (lambda: collectives.pairwise_all_to_all(seven, seven), "7 elements .* 3 equal"),
            (lambda: collectives.pairwise_all_to_all(two, seven), "7 elements are not 1 x 2"),
            (lambda: collectives.hierarchical_all_reduce(two, ranks_per_node=2), "divides 3"),
            (lambda: collectives.hierarchical_all_reduce(two, ranks_per_node=0), "divides 3"),
        ):
            with pytest.raises(ValueError, match=where):
                call()
        with pytest.raises(TypeError, match="float32 and torch.int32"):
            collectives.ring_all_gather(torch.ones(6).int(), two)
        with pytest.raises(TypeError, match="AVG does not exist"):
            collectives.ring_reduce_scatter(two.int(), torch.ones(6).int(), ReduceOp.AVG)

    on_ranks(ranks, world_size=3)


# Groups -------------------------------------------------------------------------------


@pytest.mark.slow
def test_subgroups_and_global_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DTLAB_UNWATCHED", "1")  # the watcher refuses what torch only warns of

    def ranks() -> list[str]:
        me, members, outside = dist.get_rank(), [0, 2, 3], []
        group = dist.new_group(members)
        calls: list[Callable[[Tensor], None]] = [
            lambda t, each=each: each(t, group=group) for each in _all_reduces(3).values()
        ]
        for call in calls:
            tensor = _of_rank(me, 10)
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                call(tensor)
            outside += [str(warning.message) for warning in caught]
            heard = members if me in members else [me]
            assert torch.equal(tensor, sum(_of_rank(rank, 10) for rank in heard))
        if me in members:
            tensor = torch.full((3,), me)
            collectives.tree_broadcast(tensor, 2, group)
            assert tensor.tolist() == [2, 2, 2]
            part = torch.empty(1, dtype=torch.int64)
            collectives.ring_reduce_scatter(part, tensor, group=group)
            collectives.ring_all_gather(tensor, part + me, group)
            assert tensor.tolist() == [6, 8, 9]
            collectives.pairwise_all_to_all(tensor, torch.full((3,), me), group)
            assert tensor.tolist() == members
            with pytest.raises(ValueError, match="not part of group"):
                collectives.tree_broadcast(tensor, 1, group)
        return outside

    values = on_ranks(ranks, world_size=4, trace=False).values
    assert [len(each) for each in values] == [0, len(_all_reduces(3)), 0, 0]
    assert "naive_all_reduce on global rank 1 which does not belong" in values[1][0]


@pytest.mark.slow
@pytest.mark.parametrize("src", [-1, 2, 7])
def test_a_broadcast_from_a_rank_that_does_not_exist(src: int) -> None:
    def ranks() -> None:
        for group in (None, dist.group.WORLD):
            with pytest.raises(ValueError, match=f"src={src} is not one of the 2 ranks"):
                collectives.tree_broadcast(torch.ones(3), src, group)

    on_ranks(ranks, world_size=2)


@pytest.mark.proof
@pytest.mark.slow
def test_many_calls_in_a_row_beside_torchs() -> None:
    def ranks() -> None:
        n, me = dist.get_world_size(), dist.get_rank()
        group = dist.new_group(list(range(n))[::-1])
        for step in range(15):
            size = (step * 37) % 101
            expected = sum(_of_rank(rank + step, size) for rank in range(n))
            for all_reduce in (*_all_reduces(n).values(), dist.all_reduce):
                tensor = _of_rank(me + step, size)
                all_reduce(tensor, group=group if step % 2 else None)
                assert torch.equal(tensor, expected)

    on_ranks(ranks, world_size=4)


# What goes over the wire ---------------------------------------------------------------


@pytest.mark.parametrize("n", [2, 3, 4, 5])
def test_a_ring_sends_the_fewest_bytes_to_its_right_only(n: int) -> None:
    size = 60_000
    trace = on_ranks(lambda: collectives.ring_all_reduce(torch.ones(size)), world_size=n).trace
    for rank in range(n):
        assert trace.sends(rank) == trace.rounds(rank) == 2 * (n - 1)
        assert trace.bytes_sent(rank) == 2 * (n - 1) * size * 4 // n
        assert trace.peers(rank) == {(rank - 1) % n, (rank + 1) % n}
    sends = [event for event in trace.events if "send" in event.name]
    assert {(event.rank, *event.peers) for event in sends} == {(r, (r + 1) % n) for r in range(n)}
    assert {event.bytes for event in sends} == {size * 4 // n}
    assert set(trace.ops()) <= {"send", "recv", "isend", "irecv"}


@pytest.mark.slow
def test_messages_of_the_others() -> None:
    """(function, ranks, elements) -> per rank the messages, the elements sent, and the peers."""
    n, size = 8, 64
    for all_reduce, count, sent, peers in (
        (collectives.recursive_doubling_all_reduce, 3, 3 * size, 3),
        (collectives.halving_doubling_all_reduce, 6, 2 * (n - 1) * size // n, 3),
        (partial(collectives.hierarchical_all_reduce, ranks_per_node=4), 8, 112, 3),
    ):
        trace = on_ranks(lambda f=all_reduce: f(torch.ones(size)), world_size=n).trace
        for rank in range(n):
            assert trace.sends(rank) == count
            assert trace.bytes_sent(rank) == 4 * sent
            assert len(trace.peers(rank)) == peers
    trace = on_ranks(lambda: collectives.tree_all_reduce(torch.ones(size)), world_size=n).trace
    assert sum(trace.bytes_sent()) == 2 * (n - 1) * size * 4
    assert [len(trace.peers(rank)) for rank in range(n)] == [3, 1, 2, 1, 3, 1, 2, 1]


def test_the_drawing_of_the_ring_is_what_happens() -> None:
    def ranks() -> list[int]:
        tensor, sent, isend = torch.ones(8), [], dist.isend

        def spy(message: Tensor, *args: object, **kwargs: object) -> dist.Work | None:
            sent.append((message.data_ptr() - tensor.data_ptr()) // 8)  # chunks of two floats
            return isend(message, *args, **kwargs)

        dist.isend = spy
        collectives.ring_all_reduce(tensor)
        return sent

    values = dtlab.launch(ranks, world_size=4).values  # fresh ranks, since `isend` is patched
    rows = zip(*values, strict=True)
    drawing = [line[:52].split() for line in collectives.ring_all_reduce.__doc__.splitlines()]
    drawn = [line for line in drawing if line[:1] == ["round"]]
    assert drawn == [["round", str(k), *map(str, row)] for k, row in enumerate(rows, 1)]


def test_names_are_sorted_and_public() -> None:
    names = collectives.__all__
    assert names == sorted(names)
    assert all(getattr(collectives, name).__doc__ for name in names)


# Labelled data ----------------------------------------------------------------------------------


def test_labelled_data_shows_what_each_collective_does() -> None:
    first, second = [1, 2], [10, 20]
    wanted = {
        "broadcast": ([first, None], [first, first]),
        "scatter": ([first, None], [[1], [2]]),
        "gather": ([first, second], [[1, 2, 10, 20], None]),
        "reduce": ([first, second], [[11, 22], None]),
        "all_gather": ([first, second], [[1, 2, 10, 20]] * 2),
        "reduce_scatter": ([first, second], [[11], [22]]),
        "all_to_all": ([first, second], [[1, 10], [2, 20]]),
        "all_reduce": ([first, second], [[11, 22]] * 2),
    }

    def every() -> list[list[list[int] | None]]:
        found = [collectives.run_labelled(name) for name in wanted]
        return [[None if t is None else t.tolist() for t in pair] for pair in found]

    ranks = on_ranks(every, world_size=2).values
    for number, name in enumerate(wanted):
        before, after = zip(*(rank[number] for rank in ranks), strict=True)
        assert (list(before), list(after)) == wanted[name], name
    with pytest.raises(ValueError, match="'all_sum' is unknown"):
        collectives.run_labelled("all_sum")
