"""Tensor parallelism against the dense model in one process, and against PyTorch's own."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from dtlab import simple
from dtlab.parallel.data import DataParallel
from dtlab.parallel.mesh import make_mesh
from dtlab.parallel.tensor import (
    ColumnParallelLinear,
    ParallelAttention,
    ParallelBlock,
    ParallelMLP,
    RankDropout,
    RowParallelLinear,
    VocabParallelEmbedding,
    clip_grad_norm_,
    full_state_dict,
    gather_from_region,
    load_full_state_dict,
    reduce_from_region,
    regions,
    scatter_to_region,
    sequence,
    vocab_parallel_cross_entropy,
)
from dtlab.parallel.tensor.sequence import (
    SequenceLayerNorm,
    gather_from_sequence,
    reduce_scatter_to_sequence,
    scatter_to_sequence,
)
from dtlab.predict.memory import activation_bytes
from dtlab.training.activation import checkpoint
from dtlab.training.models import GPT, Block, GPTConfig
from dtlab.training.saved import saved_bytes
from dtlab.training.transformer_layer import TransformerLayer
from tests.marks import slow
from tests.parity import Engine, assert_trains_alike
from tests.staying import on_ranks

EXACT = {"rtol": 1e-10, "atol": 1e-10}
SINGLE = {"rtol": 1e-4, "atol": 1e-5}
WIDTH, HEADS, TOKENS = 24, 12, 12  # 1, 2, 3 and 4 ranks divide them
CONFIG = GPTConfig(vocab_size=29, context=TOKENS, num_layers=2, num_heads=HEADS, width=WIDTH)


def drawn(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def same(got: Any, wanted: Any, **tolerance: float) -> None:
    torch.testing.assert_close(got, wanted, **(tolerance or EXACT))


def full_gradients(module: nn.Module) -> dict[str, Tensor]:
    """The gradients of the dense module, put together as its parameters are."""
    shadow = copy.deepcopy(module)
    for one, other in zip(shadow.parameters(), module.parameters(), strict=True):
        assert other.grad is not None or not other.requires_grad
        one.data = torch.zeros_like(one) if other.grad is None else other.grad.clone()
    return full_state_dict(shadow)


def check_gradients(module: nn.Module, dense: nn.Module, **tolerance: float) -> None:
    got = full_gradients(module)
    wanted = {
        name: torch.zeros_like(one) if one.grad is None else one.grad
        for name, one in dense.named_parameters(remove_duplicate=False)
    }
    assert got.keys() == wanted.keys()
    for name, gradient in got.items():
        torch.testing.assert_close(
            gradient, wanted[name], **(tolerance or EXACT), msg=lambda t, n=name: f"{n}: {t}"
        )


# The pairs -----------------------------------------------------------------------------------


def rows_of(doc: str | None) -> dict[str, tuple[str, str]]:
    """Function, and what it says it sends forward and backward."""
    assert doc
    words = [line.split() for line in doc.splitlines()]
    known = {*dir(regions), *dir(sequence)}
    return {w[0]: (w[-2], w[-1]) for w in words if w and w[0] in known and len(w) in (3, 4)}


def forward_once_backward_twice(module: Any, name: str) -> None:
    x = torch.ones(2, 4, 6, requires_grad=True)
    y = getattr(module, name)(x)
    loss = (y[0] if isinstance(y, tuple) else y).sum()
    loss.backward(retain_graph=True)
    loss.backward()


@pytest.mark.parametrize("module", [regions, sequence])
def test_the_table_says_what_is_sent(module: Any) -> None:
    table = rows_of(module.__doc__)
    assert table.keys() == {name for name in module.__all__ if name[0].islower()} - {
        "check_tokens"
    }
    for name, (forward, backward) in table.items():
        wanted = Counter({forward: 1}) + Counter({backward: 2})
        del wanted["none"]
        got = on_ranks(forward_once_backward_twice, module, name, world_size=2).trace.ops(0)
        got["reduce_scatter"] += got.pop("all_to_all", 0)  # as gloo does it
        assert +got == wanted, name


def pairs() -> None:
    rank, ranks = dist.get_rank(), dist.get_world_size()
    whole, weights = drawn(2, 12, 7, seed=1), drawn(ranks, 2, 12, 7, seed=2)

    def gradient(fn: Callable[[Tensor], Tensor], x: Tensor, of: Tensor) -> Tensor:
        x = x.clone().requires_grad_()
        (fn(x) * of).sum().backward()
        assert x.grad is not None
        return x.grad

    own = whole.tensor_split(ranks, -1)[rank]  # 7 features: not divided
    same(scatter_to_region(whole), own)
    same(gather_from_region(own, total=7), whole)
    same(gradient(scatter_to_region, whole, weights[0].tensor_split(ranks, -1)[rank]), weights[0])
    own_weight = weights[0].tensor_split(ranks, -1)[rank]
    same(gradient(lambda x: gather_from_region(x, total=7), own, weights[0]), own_weight)
    same(reduce_from_region(weights[rank]), weights.sum(0))
    same(gradient(regions.copy_to_region, whole, weights[rank]), weights.sum(0))
    tokens = whole.chunk(ranks, 1)[rank]
    same(scatter_to_sequence(whole), tokens)
    same(gather_from_sequence(tokens), whole)
    same(reduce_scatter_to_sequence(weights[rank]), weights.sum(0).chunk(ranks, 1)[rank])
    same(
        gradient(gather_from_sequence, tokens, weights[rank]), weights.sum(0).chunk(ranks, 1)[rank]
    )
    alike = gradient(lambda x: gather_from_sequence(x, then_sharded=False), tokens, weights[0])
    same(alike, weights[0].chunk(ranks, 1)[rank])
    by_row = scatter_to_sequence(whole.transpose(0, 1), dim=0)  # [s, b, h], and not contiguous
    same(by_row, tokens.transpose(0, 1))
    same(gather_from_sequence(by_row, dim=0), whole.transpose(0, 1))


@pytest.mark.parametrize("ranks", [1, 2, 3, slow(4)])
def test_each_function_and_its_gradient(ranks: int) -> None:
    on_ranks(pairs, world_size=ranks)


# Linear layers -------------------------------------------------------------------------------


def linears(outputs: int) -> None:
    """The naive functions, the layers, and the dense layers, of sizes that need not divide."""
    torch.manual_seed(3)
    first, last = nn.Linear(5, outputs).double(), nn.Linear(outputs, 5).double()
    torch.manual_seed(3)
    column, row = ColumnParallelLinear(5, outputs), RowParallelLinear(outputs, 5)
    same(full_state_dict(column)["weight"], first.weight.float(), rtol=0, atol=0)
    same(
        full_state_dict(row), {n: t.float() for n, t in last.state_dict().items()}, rtol=0, atol=0
    )
    column, row = ColumnParallelLinear.from_dense(first), RowParallelLinear.from_dense(last)
    naive = copy.deepcopy(column), copy.deepcopy(row)
    dense_x, x, naive_x = (drawn(2, 3, 5).requires_grad_() for _ in range(3))
    wanted = last(first(dense_x).tanh())
    got = row(column(x).tanh())
    inner = simple.column_linear(naive_x, naive[0].weight, naive[0].bias).tanh()
    plain = simple.row_linear(inner, naive[1].weight, naive[1].bias)
    for y in (wanted, got, plain):
        y.square().sum().backward()
    same([got, x.grad], [wanted, dense_x.grad])
    same([plain, naive_x.grad], [wanted, dense_x.grad])
    for pair in ((column, row), naive):
        check_gradients(pair[0], first)
        check_gradients(pair[1], last)
    everywhere = ColumnParallelLinear.from_dense(first, gather_output=True)
    alone = RowParallelLinear.from_dense(last, input_is_parallel=False)
    vector = drawn(5)
    same(alone(everywhere(vector)), last(first(vector)))  # of one dim, as nn.Linear takes it
    across = drawn(3, 2, 5).transpose(0, 1).requires_grad_()
    row(column(across)).sum().backward()
    column.weight.requires_grad_(False)
    bare = ColumnParallelLinear.from_dense(nn.Linear(5, outputs, bias=False))
    assert bare.bias is None
    assert not ColumnParallelLinear.from_dense(first.requires_grad_(False)).weight.requires_grad


@pytest.mark.parametrize("ranks", [1, 2, 3, slow(4)])
@pytest.mark.parametrize("outputs", [slow(12), 7])
def test_linear_layers_equal_the_dense_ones(outputs: int, ranks: int) -> None:
    on_ranks(linears, outputs, world_size=ranks)


# The block -----------------------------------------------------------------------------------


def denses() -> dict[str, nn.Module]:
    torch.manual_seed(5)
    kinds: dict[str, nn.Module] = {
        "of GPT": Block(CONFIG),
        "selective": TransformerLayer(WIDTH, HEADS, dropout=0.0, recompute="selective"),
        "full": TransformerLayer(WIDTH, HEADS, dropout=0.0, recompute="full"),
    }
    for kind in kinds.values():
        for name, parameter in kind.named_parameters():
            if "norm" in name or "bias" in name:
                nn.init.normal_(parameter)  # not one and zero: a bias added twice shows
    return kinds


def blocks(dtype: torch.dtype) -> None:
    tolerance = EXACT if dtype is torch.float64 else SINGLE
    for name, dense in denses().items():
        dense = dense.to(dtype)
        x = drawn(3, TOKENS, WIDTH, dtype=dtype).requires_grad_()
        wanted = dense(x)
        wanted.square().sum().backward()
        for sequence_parallel in (False, True):
            block = ParallelBlock.from_dense(dense, sequence_parallel=sequence_parallel)
            own = drawn(3, TOKENS, WIDTH, dtype=dtype).requires_grad_()
            if sequence_parallel:
                got = gather_from_sequence(block(scatter_to_sequence(own)), then_sharded=False)
            else:
                got = block(own)
            got.square().sum().backward()
            same(got, wanted, **tolerance)
            same(own.grad, x.grad, **tolerance)
            check_gradients(block, dense, **tolerance)
            same(full_state_dict(block), dense.state_dict(), rtol=0, atol=0)
            assert list(block.state_dict()) == list(dense.state_dict())
            assert block.recompute == getattr(dense, "recompute", "none"), name


@pytest.mark.covering(1)
@pytest.mark.parametrize("ranks", [1, slow(2), 3, 4])
@pytest.mark.parametrize("dtype", [torch.float64, slow(torch.float32)])
def test_a_block_equals_the_dense_one(ranks: int, dtype: torch.dtype) -> None:
    on_ranks(blocks, dtype, world_size=ranks)


def one_block(sequence_parallel: bool, backward: bool) -> None:
    block = ParallelBlock(WIDTH, HEADS, sequence_parallel=sequence_parallel)
    x = torch.ones(2, TOKENS // (2 if sequence_parallel else 1), WIDTH, requires_grad=True)
    y = block(x)
    if backward:
        y.sum().backward()


def test_two_all_reduces_forward_and_two_backward() -> None:
    forward = on_ranks(one_block, False, False, world_size=2).trace.ops(0)
    both = on_ranks(one_block, False, True, world_size=2).trace.ops(0)
    assert forward == {"all_reduce": 2}
    assert both == {"all_reduce": 4}


def test_sequence_parallelism_gathers_and_scatters_as_in_the_paper() -> None:
    forward = on_ranks(one_block, True, False, world_size=2).trace.ops(0)
    both = on_ranks(one_block, True, True, world_size=2).trace.ops(0)
    assert forward == {"all_gather": 2, "all_to_all": 2}  # an all-to-all scatters, on gloo
    backward = both - forward
    # Two conjugates of each, two inputs that are gathered again, and the norms' gradients.
    assert backward == {"all_gather": 2 + 2, "all_to_all": 2, "all_reduce": 2}


def several_block_forms() -> None:
    """Sizes that have no dense class: grouped heads, and an MLP that the ranks do not divide."""
    torch.manual_seed(8)
    ranks = dist.get_world_size()
    attention = ParallelAttention(WIDTH, 12, num_kv_heads=ranks, dtype=torch.float64)
    state = full_state_dict(attention)
    x = drawn(2, 6, WIDTH)
    rows = F.linear(x, state["queries_keys_values.weight"], state["queries_keys_values.bias"])
    q, k, v = (
        part.unflatten(-1, (-1, 2)).transpose(1, 2)
        for part in rows.split([WIDTH, 2 * ranks, 2 * ranks], -1)
    )
    gathered = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    gathered = gathered.transpose(1, 2).flatten(2)
    wanted = F.linear(gathered, state["projection.weight"], state["projection.bias"])
    same(attention(x), wanted)
    attention.fused = False
    same(attention(x), wanted)
    dense = nn.Sequential(nn.Linear(6, 11), nn.GELU("tanh"), nn.Linear(11, 6)).double()
    mlp = ParallelMLP.from_dense(dense)
    x = drawn(2, 6)
    mlp(x).square().sum().backward()
    dense(x).square().sum().backward()
    same(mlp(x), dense(x))
    check_gradients(mlp, dense)
    for _ in range(2):
        torch.manual_seed(9)
        whole = TransformerLayer(WIDTH, HEADS)
        torch.manual_seed(9)
        block = ParallelBlock(WIDTH, HEADS)  # the same seed, the same start
        same(full_state_dict(block), whole.state_dict(), rtol=0, atol=0)


@pytest.mark.parametrize("ranks", [slow(1), 2, slow(3), slow(4)])
def test_grouped_heads_uneven_features_and_the_dense_start(ranks: int) -> None:
    on_ranks(several_block_forms, world_size=ranks)


# Vocabulary ----------------------------------------------------------------------------------


def vocabularies(size: int) -> None:
    dense = nn.Embedding(size, 6).double()
    ids = torch.randint(size, (2, 12), generator=torch.Generator().manual_seed(1))
    wanted = dense(ids)
    wanted.square().sum().backward()
    for sequence_parallel in (False, True):
        table = VocabParallelEmbedding.from_dense(dense, sequence_parallel=sequence_parallel)
        got = table(ids)
        if sequence_parallel:
            got = gather_from_sequence(got, then_sharded=False)
        same(got, wanted)
        got.square().sum().backward()
        check_gradients(table, dense)
    for scale, ignore in ((1.0, -100), (500.0, 3), (1.0, size - 1)):
        logits = (scale * drawn(2, 12, size)).requires_grad_()
        own = scatter_to_region(logits)
        for reduction in ("mean", "sum", "none"):
            got = vocab_parallel_cross_entropy(own, ids, ignore_index=ignore, reduction=reduction)
            same_as = F.cross_entropy(
                logits.flatten(0, 1), ids.flatten(), ignore_index=ignore, reduction=reduction
            )
            same(got.flatten(), same_as.flatten())
            weight = drawn(got.numel(), seed=2).view(got.shape)
            mine = torch.autograd.grad((got * weight).sum(), logits, retain_graph=True)
            theirs = torch.autograd.grad((same_as * weight.flatten()).sum(), logits)
            same(mine, theirs)
    half = logits.detach().bfloat16()
    got = vocab_parallel_cross_entropy(scatter_to_region(half), ids)
    same(got, F.cross_entropy(half.flatten(0, 1), ids.flatten()), rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("ranks", [1, 2, slow(3), 4])
@pytest.mark.parametrize("size", [slow(12), 29])
def test_vocabulary(size: int, ranks: int) -> None:
    on_ranks(vocabularies, size, world_size=ranks)


# A whole model -------------------------------------------------------------------------------


class ShardedGPT(nn.Module):
    """`GPT` with its vocabulary, its blocks and its head shared by ranks, under the same names."""

    def __init__(self, dense: GPT, group: Any = None, sequence_parallel: bool = False) -> None:
        super().__init__()
        self.group, self.sequence_parallel = group, sequence_parallel
        options: dict[str, Any] = {"group": group, "sequence_parallel": sequence_parallel}
        self.token_embedding = VocabParallelEmbedding.from_dense(
            dense.token_embedding, group=group
        )
        self.position_embedding = copy.deepcopy(dense.position_embedding)
        self.blocks = nn.ModuleList(ParallelBlock.from_dense(b, **options) for b in dense.blocks)
        self.norm = copy.deepcopy(dense.norm)
        if sequence_parallel:
            self.norm = SequenceLayerNorm(dense.config.width, group=group, dtype=torch.float64)
        self.head = ColumnParallelLinear.from_dense(dense.head, **options)
        self.head.weight = self.token_embedding.weight

    def forward(self, tokens: Tensor) -> Tensor:
        hidden = self.token_embedding(tokens) + self.position_embedding.weight[: tokens.shape[1]]
        if self.sequence_parallel:
            hidden = scatter_to_sequence(hidden, self.group)
        for block in self.blocks:
            hidden = block(hidden)
        return self.head(self.norm(hidden))


class TensorParallel(Engine):
    """The sharded model on the tensor axis, with its replicas averaged on the data axis."""

    def __init__(self, data: int, sequence_parallel: bool, *args: Any) -> None:
        self.mesh = make_mesh(data=data, tensor=dist.get_world_size() // data)
        self.tensor, self.sequence_parallel = self.mesh.get_group("tensor"), sequence_parallel
        super().__init__(*args)

    def wrap(self, _: Any) -> None:
        inner = ShardedGPT(self.module, self.tensor, self.sequence_parallel)
        self.params = list(inner.parameters())
        self.model = DataParallel(inner, group=self.mesh.get_group("data"), bucket_cap_mb=0.01)

    def place(self, _: Any) -> int:
        return self.mesh.get_local_rank("data")

    def backward(self, inputs: Tensor, labels: Tensor, share: float) -> Tensor:
        loss = share * vocab_parallel_cross_entropy(self.model(inputs), labels, self.tensor)
        loss.backward()
        return loss.detach()

    def no_sync(self) -> AbstractContextManager[Any]:
        return self.model.no_sync()

    def clip(self, norm: float, kind: float) -> float:
        return float(clip_grad_norm_(self.model, norm, kind))

    def state(self) -> dict[str, Tensor]:
        whole = full_state_dict(self.model)
        assert whole["head.weight"] is whole["token_embedding.weight"]
        return {name: whole[name].clone() for name in self.names}


@pytest.mark.parametrize(
    ("data", "tensor", "sequence_parallel"),
    [(1, 3, False), (2, 2, True), slow(1, 2, False), slow(1, 4, True), slow(2, 2, False)],
)
def test_trains_as_in_one_process(data: int, tensor: int, sequence_parallel: bool) -> None:
    engine = partial(TensorParallel, data, sequence_parallel)
    assert_trains_alike(
        engine, ["gpt, frozen"], ["clipped", "silent"], ranks=data * tensor, replicas=data
    )


def state_round_trip(state: dict[str, Tensor]) -> dict[str, Any]:
    torch.manual_seed(dist.get_rank())  # whatever it starts with
    model = ShardedGPT(GPT(CONFIG, seed=dist.get_rank()).double())
    own = model.state_dict()
    load_full_state_dict(model, state)
    load_full_state_dict(DataParallel(model, group=dist.new_subgroups(1)[0]), state)
    assert own["head.weight"].shape == (15 - dist.get_rank(), WIDTH)
    for wrong, error in (
        ({**state, "head.weight": state["head.weight"][1:]}, ValueError),
        ({"head.weight": state["head.weight"]}, RuntimeError),
        ({**state, "more": state["head.weight"]}, RuntimeError),
    ):
        with pytest.raises(error):
            load_full_state_dict(model, wrong)
    return full_state_dict(model)


def test_a_dense_state_is_loaded_and_saved() -> None:
    state = GPT(CONFIG, seed=2).double().state_dict()
    for got in on_ranks(state_round_trip, state, world_size=2).values:
        same(got, dict(state), rtol=0, atol=0)


def clipping() -> None:
    torch.manual_seed(1)
    dense = Block(CONFIG).double()
    block = ParallelBlock.from_dense(dense)
    for kind in (1.0, 2.0, float("inf")):
        for model, clip in (
            (dense, lambda n, k=kind: nn.utils.clip_grad_norm_(dense.parameters(), n, k)),
            (block, lambda n, k=kind: clip_grad_norm_(block, n, k)),
        ):
            model.zero_grad()
            model(drawn(2, TOKENS, WIDTH)).square().sum().backward()
            model.norm = clip(1.5)
        same(float(block.norm), float(dense.norm), rtol=1e-6, atol=0)
        check_gradients(block, dense)
    with pytest.raises(ValueError, match="no layer is divided"):
        clip_grad_norm_(nn.Linear(2, 2), 1.0)


def test_clipping_by_the_true_norm() -> None:
    on_ranks(clipping, world_size=3)


# Dropout -------------------------------------------------------------------------------------


def dropped(sequence_parallel: bool, fused: bool) -> tuple[list[Tensor], Tensor, Tensor]:
    """Masks on the stream, of attention, and a number drawn after it."""
    block = ParallelBlock(
        WIDTH, HEADS, dropout=0.5, sequence_parallel=sequence_parallel, fused_attention=fused,
        recompute="full",
    )  # fmt: skip
    masks: list[Tensor] = []
    for part in (block.attention_dropout, block.mlp_dropout):
        part.register_forward_hook(lambda _, x, y: masks.append((y != 0) | (x[0] == 0)))
    ones = torch.ones(2, block.attention.num_heads // dist.get_world_size(), TOKENS, 2)
    attention = (block.attention._fused if fused else block.attention.core)(ones, ones, ones)
    x = drawn(2, TOKENS // (2 if sequence_parallel else 1), WIDTH, dtype=torch.float32)
    block(x.requires_grad_()).sum().backward()
    same(masks[0], masks[2])  # recomputed, as far as needed, with the same random numbers
    block.eval()
    same(block(x), block(x))
    assert RankDropout(0.0)(x) is x
    return masks[:2], attention, torch.rand(3)


@pytest.mark.parametrize(
    ("sequence_parallel", "fused"),
    [(False, True), (True, False), slow(False, False), slow(True, True)],
)
def test_dropout_is_alike_where_all_have_the_same(sequence_parallel: bool, fused: bool) -> None:
    first, second = on_ranks(dropped, sequence_parallel, fused, world_size=2).values
    for mine, others in zip(first[0], second[0], strict=True):
        assert torch.equal(mine, others) is not sequence_parallel
        assert 0.3 < mine.float().mean() < 0.7
    assert not torch.equal(first[1], second[1])  # other heads: always
    assert torch.equal(first[2], second[2])  # in step again


# Beside other things -------------------------------------------------------------------------


def beside() -> None:
    torch.manual_seed(1)
    dense = Block(CONFIG)
    block = ParallelBlock.from_dense(dense)
    x = drawn(2, TOKENS, WIDTH, dtype=torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        got, wanted = block(x), dense(x)
    for y in (got, wanted):
        y.float().square().sum().backward()
    same(got, wanted, rtol=0.05, atol=0.05)
    check_gradients(block, dense, rtol=0.1, atol=0.3)
    block.zero_grad()
    dense.zero_grad()
    for _ in range(2):  # gradients add up
        checkpoint(block, x.requires_grad_()).sum().backward()
        dense(x).sum().backward()
    check_gradients(block, dense, **SINGLE)
    with torch.no_grad():
        same(block(x), dense(x), **SINGLE)


def test_autocast_checkpoints_and_gradients_that_add_up() -> None:
    on_ranks(beside, world_size=2)


def pytorchs() -> None:
    """Compare the MLP with `parallelize_module`: outputs, and gradients of this rank's shards."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        parallelize_module,
    )

    torch.manual_seed(1)
    dense = nn.Sequential(nn.Linear(6, 10), nn.GELU(), nn.Linear(10, 6)).double()
    mlp = ParallelMLP.from_dense(dense)
    plan = {"0": ColwiseParallel(), "2": RowwiseParallel()}
    theirs = parallelize_module(dense, init_device_mesh("cpu", (2,)), plan)
    pairs = [(mlp, theirs)]
    for ours, other in pairs:
        x = drawn(4, 6)
        got, wanted = ours(x), other(x)
        same(got, wanted)
        for y in (got, wanted):
            y.square().sum().backward()
        for one, its in zip(ours.parameters(), other.parameters(), strict=True):
            same(one.grad, its.grad.to_local())


@pytest.mark.slow
def test_equals_parallelize_module() -> None:
    on_ranks(pytorchs, world_size=2)


def activations(sequence_parallel: bool) -> int:
    block = ParallelBlock(
        WIDTH, HEADS, dropout=0.1, fused_attention=False, sequence_parallel=sequence_parallel
    )
    ranks = dist.get_world_size() if sequence_parallel else 1
    return saved_bytes(block, torch.ones(2, TOKENS // ranks, WIDTH)).total


def test_sequence_parallelism_shares_what_norms_and_dropout_keep() -> None:
    unit = 4 * 2 * TOKENS * WIDTH  # bytes of [b, s, h]
    scores = 4 * 2 * HEADS * TOKENS**2
    alone = on_ranks(activations, True, world_size=1).values[0]
    tensor = on_ranks(activations, False, world_size=4).values[0]
    both = on_ranks(activations, True, world_size=4).values[0]
    # Tensors of [b, s, h]: 4 of the norms and 2 masks are whole; 12 and three matrices shared.
    slack = 8 * 2 * TOKENS * 4  # mean and deviation of the norms
    assert alone == pytest.approx(18 * unit + 3 * scores, abs=slack + 1500)
    assert tensor == pytest.approx(6 * unit + (12 * unit + 3 * scores) / 4, abs=slack + 1500)
    assert both == pytest.approx(alone / 4, abs=slack + 1500)


def inputs_kept(sequence_parallel: bool) -> tuple[int, int]:
    """Bytes that a recomputed block keeps, counted, and by the formula for 16 bits, in 32."""
    sizes = {"sequence_parallel": sequence_parallel, "recompute": "full"}
    block = ParallelBlock(WIDTH, HEADS, dropout=0.1, fused_attention=False, **sizes)  # type: ignore[arg-type]
    ranks = dist.get_world_size()
    x = torch.ones(2, TOKENS // (ranks if sequence_parallel else 1), WIDTH)
    formula = activation_bytes(TOKENS, 2, WIDTH, HEADS, ranks, **sizes)  # type: ignore[arg-type]
    return saved_bytes(block, x).total, 2 * formula


@pytest.mark.parametrize("ranks", [1, 2, slow(4)])
@pytest.mark.parametrize("sequence_parallel", [False, True])
def test_full_recomputation_keeps_the_input_of_a_ranks_own_tokens(
    sequence_parallel: bool, ranks: int
) -> None:
    counted, formula = on_ranks(inputs_kept, sequence_parallel, world_size=ranks).values[0]
    assert counted == formula == 4 * 2 * TOKENS * WIDTH // (ranks if sequence_parallel else 1)


# Bad input -----------------------------------------------------------------------------------


def refused() -> list[str]:
    said = []
    column, row = ColumnParallelLinear(4, 6), RowParallelLinear(6, 4)
    tall = RowParallelLinear(6, 4, sequence_parallel=True)
    table = VocabParallelEmbedding(7, 4)
    ids = torch.tensor([[1, 7]])
    for attempt in (
        lambda: ParallelAttention(24, 8),
        lambda: ParallelAttention(24, 6, num_kv_heads=2),
        lambda: ParallelAttention(24, 6, num_kv_heads=4),
        lambda: ParallelBlock(25, 6),
        lambda: ParallelBlock(24, 6, recompute="some"),  # type: ignore[arg-type]
        lambda: ColumnParallelLinear(4, 2),
        lambda: ColumnParallelLinear(4, 6, pieces=(3, 4)),
        lambda: ColumnParallelLinear(4, 6, pieces=(3, 3), gather_output=True),
        lambda: VocabParallelEmbedding(2, 4),
        lambda: column(torch.ones(1, 5)),
        lambda: row(torch.ones(1, 6)),
        lambda: tall(torch.ones(1, 4, 2)),
        lambda: scatter_to_sequence(torch.ones(1, 4, 2)),
        lambda: scatter_to_region(torch.ones(1, 2)),
        lambda: gather_from_region(torch.ones(1, 4), total=7),
        lambda: table(ids),
        lambda: vocab_parallel_cross_entropy(torch.ones(1, 2, 3), torch.tensor([0])),
        lambda: vocab_parallel_cross_entropy(torch.ones(1, 2, 3), ids.fill_(9)),
        lambda: vocab_parallel_cross_entropy(torch.ones(1, 3), ids[0, :1], reduction="all"),  # type: ignore[arg-type]
    ):
        with pytest.raises((ValueError, IndexError)) as caught:
            attempt()
        said.append(str(caught.value))
    return said


def test_bad_input_is_refused_before_anything_hangs() -> None:
    pieces = [
        "3 ranks do not divide 8 heads of queries and 8 heads of keys and values, and each rank "
        "needs whole heads. Use a group of 1 or 2 or 4 or 8 ranks",
        "3 ranks do not divide 6 heads of queries and 2", "4 heads of keys and values do not",
        "6 heads do not divide a hidden size of 25", 'not \'some\'',
        "3 ranks cannot share dim 0 of weight, which has 2",
        "pieces=(3, 4) sum to 7 outputs, but out_features=6. Pass pieces that sum to",
        "the outputs of a layer with pieces cannot be gathered. Use gather_output=False",
        "which has 2 elements",
        "needs 4 features, but the input has shape (1, 5)",
        "These are its part of 6 features. Do not gather",
        "3 ranks do not divide 4 tokens (dim -2 of (1, 4, 2)). Pad the sequence to 6.",
        "3 ranks do not divide 4 tokens", "3 ranks cannot share a last dim of 2",
        "of 7 elements, not 4", "id 7 is outside of the vocabulary of 7",
        "need a target of shape (1, 2)", "id 9 is outside of the vocabulary of 9", "not 'all'",
    ]  # fmt: skip
    for said in on_ranks(refused, world_size=3).values:
        for piece, text in zip(pieces, said, strict=True):
            assert piece in text


def outside() -> str:
    group = dist.new_group([0])
    if dist.get_rank() == 0:
        return str(ColumnParallelLinear(2, 2, group=group)(torch.ones(1, 2)).shape)
    with pytest.raises(ValueError, match="not in the group") as caught:
        ColumnParallelLinear(2, 2, group=group)
    return str(caught.value)


def test_a_rank_outside_of_the_group_is_refused() -> None:
    assert "ColumnParallelLinear: this rank" in on_ranks(outside, world_size=2).values[1]
