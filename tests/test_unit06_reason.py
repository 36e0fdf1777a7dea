"""The right answers of Level I of unit 06 are what PyTorch does on ranks, for every learner."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from torch.utils.flop_counter import FlopCounterMode

import dtlab
from dtlab.checks import find_part, known_parts
from dtlab.checks.questions.answers import Questions
from tests.known_answers import Answers, answers_of
from tests.staying import on_ranks

PARTS = [part for part in known_parts() if (part.unit, part.level) == ("06", 1)]

LEARNERS = [f"learner{number}" for number in range(4)]
MANY_LEARNERS = [f"somebody {number}" for number in range(100)]
RANKS = 2


def known(symbol: str) -> Answers:
    answers = answers_of(find_part(f"06/{symbol}"))
    assert answers is not None
    return answers


def drawn(symbol: str, learner: str) -> tuple[Any, dict[str, Any]]:
    """What a learner is given, and the right answers."""
    check = find_part(f"06/{symbol}").check
    assert isinstance(check, Questions)
    given = check.given(symbol, learner)
    return given, known(symbol).right[0](given)


# 06/shapes -------------------------------------------------------------------------------------

SMALL = {
    "hidden": 16, "size": 4, "heads": 4, "kv_heads": 2, "inner": 48, "vocabulary": 300,
    "ranks": RANKS,
}  # fmt: skip


class Halves(nn.Module):
    """A block without attention's core: what PyTorch calls colwise and rowwise, twice."""

    def __init__(self) -> None:
        super().__init__()
        h = SMALL["hidden"]
        rows = SMALL["size"] * (SMALL["heads"] + 2 * SMALL["kv_heads"])
        self.norm, self.mlp_norm = nn.LayerNorm(h), nn.LayerNorm(h)
        self.queries_keys_values, self.projection = nn.Linear(h, rows), nn.Linear(h, h)
        self.first, self.second = nn.Linear(h, SMALL["inner"]), nn.Linear(SMALL["inner"], h)

    def forward(self, x: Tensor) -> Tensor:
        """Every output of the first half goes into the second."""
        own = self.queries_keys_values(self.norm(x))
        x = x + self.projection(own.unflatten(-1, (-1, 2)).sum(-1))  # two rows for each feature
        added: Tensor = self.second(F.gelu(self.first(self.mlp_norm(x))))
        return x + added


def parallel_halves(by_tokens: bool) -> nn.Module:
    torch.manual_seed(0)
    mesh, into = init_device_mesh("cpu", (RANKS,)), ("queries_keys_values", "first")
    outputs = Shard(0) if by_tokens else Replicate()
    plan: dict[str, Any] = {name: ColwiseParallel() for name in into}
    plan |= {
        name: RowwiseParallel(output_layouts=outputs, use_local_output=not by_tokens)
        for name in ("projection", "second")
    }
    block = Halves()
    if by_tokens:
        for name in into:
            plan[name] = ColwiseParallel(input_layouts=Shard(0))
        plan |= {name: SequenceParallel(sequence_dim=0) for name in ("norm", "mlp_norm")}
        plan[""] = PrepareModuleInput(input_layouts=(Shard(0),), desired_input_layouts=(Shard(0),))
    return parallelize_module(block, mesh, plan)


def shapes_of_pytorch() -> dict[str, tuple[int, ...]]:
    block = parallel_halves(by_tokens=False)
    parameters = dict(block.named_parameters())
    local = {
        name: one.to_local() if isinstance(one, DTensor) else one
        for name, one in parameters.items()
    }
    return {name: tuple(one.shape) for name, one in local.items()}


@pytest.mark.slow
def test_shapes_are_those_of_pytorchs_tensor_parallel_api() -> None:
    right = known("shapes").right[0](SMALL)
    for shapes in on_ranks(shapes_of_pytorch, world_size=RANKS).values:
        assert list(shapes["first.weight"]) == right["first"]
        assert list(shapes["second.weight"]) == right["second"]
        assert list(shapes["queries_keys_values.weight"]) == right["queries_keys_values"]
        layers = ("queries_keys_values", "projection", "first", "second")
        assert [shapes[f"{name}.bias"][0] for name in layers] == right["biases"]
        sizes = [torch.Size(shape).numel() for shape in shapes.values()]
        assert sum(sizes) == right["parameters"]


def test_the_padded_vocabulary_of_gpt_2_is_the_papers() -> None:
    """Narayanan et al. 2021 take V = 51200, which is GPT-2's 50257 on eight ranks."""
    given = SMALL | {"vocabulary": 50257, "ranks": 8}
    assert 8 * known("shapes").right[0](given)["vocabulary"] == 51200


def test_some_learners_may_use_three_ranks_and_some_only_powers_of_two() -> None:
    allowed = Counter("3" in drawn("shapes", learner)[1]["allowed"] for learner in MANY_LEARNERS)
    assert min(allowed.values()) > 20
    for given, right in (drawn("shapes", learner) for learner in MANY_LEARNERS):
        assert str(given["ranks"]) in right["allowed"]
        assert right["parameters"] == int(right["parameters"])
        assert given["inner"] % given["ranks"] == 0


# 06/holds, on real ranks -----------------------------------------------------------------------

TOKENS, WIDTH = 4, 8


class Summed(torch.autograd.Function):
    """f and g at once: which of the passes adds up is said by `forward_too`."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, forward_too: bool) -> Tensor:
        ctx.forward_too = forward_too
        if forward_too:
            x = x.clone()
            dist.all_reduce(x)
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        (gradient,) = gradients
        if not ctx.forward_too:
            gradient = gradient.clone()
            dist.all_reduce(gradient)
        return gradient, None


class Tokens(torch.autograd.Function):
    """f and g of sequence parallelism: all-gather one way, reduce-scatter the other."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, reduce: bool) -> Tensor:
        ctx.reduce = reduce
        return own_sums(x) if reduce else all_tokens(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        (gradient,) = gradients
        return all_tokens(gradient) if ctx.reduce else own_sums(gradient), None


def all_tokens(own: Tensor) -> Tensor:
    gathered = own.new_empty(own.shape[0] * dist.get_world_size(), own.shape[1])
    dist.all_gather_into_tensor(gathered, own.contiguous())
    return gathered


def own_sums(parts: Tensor) -> Tensor:
    total = parts.contiguous().clone()
    dist.all_reduce(total)
    return total.chunk(dist.get_world_size())[dist.get_rank()]


def block(rank: int, ranks: int, by_tokens: bool = False) -> dict[str, Tensor]:
    """The tensors of 06/holds on one of `ranks`, from a forward and a backward pass."""
    names = ("queries", "keys", "values", "projection", "first", "second")
    draw = torch.Generator().manual_seed(0)
    whole = {name: torch.randn(WIDTH, WIDTH, generator=draw) for name in names}
    x, bias = torch.randn(TOKENS, WIDTH, generator=draw), torch.randn(WIDTH, generator=draw)
    cut = {name: int(name in ("projection", "second")) for name in names}
    own = {n: w.chunk(ranks, cut[n])[rank].clone().requires_grad_() for n, w in whole.items()}
    norm = torch.ones(WIDTH, requires_grad=True)
    x = x.chunk(ranks)[rank] if by_tokens else x
    if ranks == 1:
        f = g = lambda tensor: tensor
    else:
        kind = Tokens if by_tokens else Summed
        f, g = (lambda t: kind.apply(t, False)), (lambda t: kind.apply(t, True))

    seen = {"bias": bias, "norm": F.layer_norm(x, (WIDTH,), norm)}
    inside = f(seen["norm"])
    q, k, v = (inside @ own[name].T for name in names[:3])
    size = WIDTH // RANKS
    heads = [t.unflatten(-1, (-1, size)).transpose(0, 1) for t in (q, k, v)]
    attended = F.scaled_dot_product_attention(*heads, is_causal=True)
    seen["queries"] = q
    seen["product"] = attended.transpose(0, 1).flatten(1) @ own["projection"].T
    seen["after"] = g(seen["product"])
    hidden = x + seen["after"]
    entered = f(F.layer_norm(hidden, (WIDTH,)))
    entered.retain_grad()  # its gradient has not been through f
    seen["gelu"] = F.gelu(entered @ own["first"].T)
    (hidden + g(seen["gelu"] @ own["second"].T) + bias).square().sum().backward()
    seen |= {"before_f": entered.grad, "first_grad": own["first"].grad, "norm_grad": norm.grad}
    squares = sum(one.grad.square().sum() for one in own.values())
    return {n: t.detach() for n, t in (seen | {"squares": squares}).items()}


def on_rank(by_tokens: bool) -> dict[str, Tensor]:
    return block(dist.get_rank(), dist.get_world_size(), by_tokens)


def kind_of(parts: list[Tensor], dense: Tensor) -> str:
    """Whole, a sum, or which dim is shared."""
    near = {"rtol": 1e-4, "atol": 1e-4}
    if all(part.shape == dense.shape and torch.allclose(part, dense, **near) for part in parts):
        return "whole"
    if parts[0].shape == dense.shape and torch.allclose(sum(parts), dense, **near):
        return "sum"
    for dim in range(dense.dim()):
        together = torch.cat(parts, dim)
        if together.shape == dense.shape and torch.allclose(together, dense, **near):
            return f"dim {dim}"
    return "neither"


@pytest.mark.slow
def test_ranks_hold_what_the_answers_say() -> None:
    names = {name: name for name in block(0, 1) if name != "squares"}
    given = {"tensors": names, "layers": 1, "count": 1, "squares": [1], "common": 1}
    right, dense = known("holds").right[0](given), block(0, 1)
    for by_tokens in (False, True):
        ranks = on_ranks(on_rank, by_tokens, world_size=RANKS).values
        kinds = {name: kind_of([one[name] for one in ranks], dense[name]) for name in names}
        assert "neither" not in kinds.values()
        found = {kind: {n for n in names if kinds[n] == kind} for kind in kinds.values()}
        assert found["sum"] == right["sums_sp" if by_tokens else "sums"]
        if by_tokens:
            assert found["dim 0"] - {"first_grad"} == right["tokens"]
        else:
            assert found["whole"] == right["whole"]


@pytest.mark.slow
def test_the_norm_of_shards_and_whole_gradients_is_that_of_one_process() -> None:
    ranks, dense = on_ranks(on_rank, False, world_size=RANKS).values, block(0, 1)
    whole = [one["norm_grad"].square().sum() for one in (dense, ranks[0])]
    given = {
        "tensors": dict.fromkeys(block(0, 1), "A"), "layers": 1, "count": 1,
        "squares": [float(one["squares"]) for one in ranks], "common": float(whole[1]),
    }  # fmt: skip
    norm = float((dense["squares"] + whole[0]).sqrt())
    assert known("holds").right[0](given)["norm"] == pytest.approx(norm, rel=1e-4)


def train(by_tokens: bool) -> None:
    module = parallel_halves(by_tokens)
    x = torch.randn(TOKENS // RANKS if by_tokens else TOKENS, SMALL["hidden"])
    dist.barrier()
    with dtlab.span("forward"):
        output = module(x)
    with dtlab.span("backward"):
        output = output.to_local() if isinstance(output, DTensor) else output
        output.sum().backward()


def calls(run: dtlab.Run) -> list[Counter[str]]:
    """The collectives of rank 0 in the forward and in the backward pass."""
    assert run.trace is not None
    events = [event for event in run.trace.events if event.rank == 0]
    spans = [next(one for one in events if one.name == name) for name in ("forward", "backward")]
    return [
        Counter(e.name for e in events if e.kind == "comm" and span.start <= e.start <= span.end)
        for span in spans
    ]


@pytest.mark.slow
def test_pytorch_makes_as_many_calls_as_the_answers_say() -> None:
    given = {"tensors": dict.fromkeys(block(0, 1), "A"), "layers": 1, "count": 1,
             "squares": [1], "common": 1}  # fmt: skip
    forward, backward = calls(on_ranks(train, False, world_size=RANKS))
    found = [each["all_reduce"] for each in (forward, backward)]
    assert found == known("holds").right[0](given)["calls"] == [2, 2]


@pytest.mark.slow
def test_with_sequence_parallelism_pytorch_goes_round_as_often_as_the_answers_say() -> None:
    """PyTorch keeps the gathered tensors, which is the first of the two answers."""
    forward, backward = calls(on_ranks(train, True, world_size=RANKS))
    assert forward["all_gather"] == forward["reduce_scatter"] == 2
    _, right = drawn("volume", LEARNERS[0])
    one_pass = right["layer"] / 8  # an all-reduce is two of them
    assert (forward + backward).total() * one_pass == pytest.approx(right["sequence"][0])


def test_the_order_of_letters_does_not_reveal_the_answer() -> None:
    wholes = Counter(letter for one in MANY_LEARNERS for letter in drawn("holds", one)[1]["whole"])
    assert len(wholes) == 9
    assert min(wholes.values()) > 20


# 06/volume -------------------------------------------------------------------------------------


@pytest.mark.parametrize("learner", LEARNERS)
def test_volume_is_the_papers_formula(learner: str) -> None:
    given, right = drawn("volume", learner)
    t, bsh = given["ranks"], given["micro_batch"] * given["sequence"] * given["hidden"]
    layer = 8 * bsh * (t - 1) / t / 1e6
    assert right["layer"] == pytest.approx(layer)
    assert right["sequence"] == pytest.approx([layer, layer * 10 / 8])
    assert right["recomputed"] == pytest.approx(layer * 12 / 8)


def test_operations_of_a_layer_are_what_pytorch_counts() -> None:
    b, s, h = 2, 16, 32
    x = torch.randn(b, s, h, requires_grad=True)
    weights = [torch.randn(h, n, requires_grad=True) for n in (3 * h, h, 4 * h)]
    down = torch.randn(4 * h, h, requires_grad=True)
    with FlopCounterMode(display=False) as counter:
        q, k, v = (x @ weights[0]).chunk(3, -1)
        y = (q @ k.transpose(1, 2)).softmax(-1) @ v @ weights[1]
        (F.gelu(y @ weights[2]) @ down).sum().backward()
    assert counter.get_total_flops() == round(72 * b * s * h**2 * (1 + s / (6 * h)))


def test_waiting_is_short_inside_a_node_and_long_between_nodes() -> None:
    cards = Counter[str]()
    for given, right in (drawn("volume", learner) for learner in MANY_LEARNERS):
        inside, between = right["share"]
        assert 0.5 < inside < between < 90
        assert right["milliseconds"][1] > 7 * right["milliseconds"][0]
        assert 1 < right["largest"] < min(given["node"], given["kv_heads"])
        cards[given["card"]] += 1
    assert min(cards.values()) > 20


# 06/kept ---------------------------------------------------------------------------------------


def test_what_fits_is_neither_all_nor_nothing_and_never_close() -> None:
    found = Counter[int]()
    for given, right in (drawn("kept", learner) for learner in MANY_LEARNERS):
        found[len(right["fits"])] += 1
        sizes = [right[name] * given["layers"] / 1e3 for name in ("tensor", "both", "full")]
        assert all(abs(size / given["room"] - 1) > 0.05 for size in sizes)
    assert set(found) <= {1, 2, 3, 4}
    assert len(found) > 2


def test_selective_and_full_recomputation_of_175_billion_parameters() -> None:
    """Korthikanti et al. 2022: 5as/h is 80 at a = 96, h = 12288, s = 2048."""
    given = {
        "heads": 96, "hidden": 12288, "sequence": 2048, "micro_batch": 1, "ranks": 8,
        "layers": 1, "room": 1,
    }  # fmt: skip
    right = known("kept").right[0](given)
    assert right["sequence"] / right["both"] == pytest.approx((34 + 80) / 34)
    assert right["tensor"] / right["floor"] == pytest.approx((10 + 24 / 8 + 80 / 8) / 10)
    assert right["full"] / right["floor"] == pytest.approx(2 / 10)
