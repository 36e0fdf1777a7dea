"""What is particular to stage 3, and PyTorch's `fully_shard`; see test_parity.py for the rest."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import dtlab
from dtlab import collectives
from dtlab.parallel.zero.fully_sharded import NaiveZero3, Zero3
from dtlab.training.accumulation import accumulate
from dtlab.training.models import GPT, MLP, Block, ConvNet, GPTConfig
from tests.marks import slow
from tests.parity import Frozen
from tests.staying import on_ranks

SMALL = GPTConfig(vocab_size=37, context=8, num_layers=3, num_heads=2, width=12)
EXACT = {"rtol": 1e-9, "atol": 1e-11}  # float64, so that errors larger than rounding show
State = dict[str, Tensor]


MODELS: dict[str, Callable[[], nn.Module]] = {
    "mlp": lambda: MLP(7, 33, 17, 5, seed=1),
    "conv": lambda: ConvNet(3, 5, seed=1),
    "gpt": lambda: GPT(SMALL, seed=1),
    "frozen": Frozen,
}


def made(name: str, dtype: torch.dtype = torch.float64) -> nn.Module:
    torch.manual_seed(0)
    return MODELS[name]().to(dtype)


def batch(name: str, step: int, size: int, dtype: torch.dtype = torch.float64) -> Any:
    draw = torch.Generator().manual_seed(step)
    if name == "gpt":
        tokens = torch.randint(SMALL.vocab_size, (size, SMALL.context + 1), generator=draw)
        return tokens[:, :-1], tokens[:, 1:]
    shape = (size, 1, 6, 6) if name == "conv" else (size, 7)
    inputs = torch.randn(shape, generator=draw, dtype=torch.float64).to(dtype)
    return inputs, torch.randint(5, (size,), generator=draw)


def loss_of(model: nn.Module, pair: Any) -> Tensor:
    inputs, labels = pair
    return F.cross_entropy(model(inputs).flatten(0, -2).double(), labels.flatten())


def share(pair: Any, rank: int | None = None) -> Any:
    own = dist.get_rank() if rank is None else rank
    return [one.tensor_split(dist.get_world_size())[own] for one in pair]


def train(model: Any, name: str, steps: int, dtype: torch.dtype = torch.float64) -> list[float]:
    """Ten steps of Adam on this rank's share of each batch; the mean loss of each step."""
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    losses = []
    for step in range(steps):
        loss = loss_of(model, share(batch(name, step, 12, dtype)))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        mean = loss.detach()
        dist.all_reduce(mean)
        losses.append(mean.item() / dist.get_world_size())
    return losses


def same(got: Any, wanted: Any, **tolerance: float) -> None:
    for name, tensor in wanted.items():
        torch.testing.assert_close(
            got[name], tensor, **(tolerance or EXACT), msg=lambda text, n=name: f"{n}: {text}"
        )


# PyTorch's own -------------------------------------------------------------------------------


def beside_pytorch(name: str, mixed: bool) -> list[tuple[State, State]]:
    """Parameters after each of five steps, ours and theirs."""
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard  # slow to import

    ours, theirs = made(name, torch.float32), made(name, torch.float32)
    policy = MixedPrecisionPolicy(torch.bfloat16, torch.float32) if mixed else None
    model = Zero3(ours, dtype=torch.bfloat16 if mixed else None,
                  reduce_dtype=torch.float32 if mixed else None)  # fmt: skip
    inner = theirs.blocks if isinstance(theirs, GPT) else theirs.layers
    for block in inner if mixed else [*inner, theirs]:
        if any(True for _ in block.parameters()):
            fully_shard(block, **({"mp_policy": policy} if mixed else {}))
    if mixed:
        fully_shard(theirs, mp_policy=policy)
    pairs = []
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.9) for m in (model, theirs)]
    for step in range(5):
        for one, optimizer in zip((model, theirs), optimizers, strict=True):
            optimizer.zero_grad()
            loss_of(one, share(batch(name, step, 12, torch.float32))).backward()
            optimizer.step()
        whole = {n: p.full_tensor().clone() for n, p in theirs.named_parameters()}
        pairs.append((model.full_state_dict(), whole))
    return pairs


@pytest.mark.sample(1)
@pytest.mark.slow
@pytest.mark.parametrize("ranks", [slow(2), 3, slow(4)])
@pytest.mark.parametrize("name", ["mlp", slow("conv"), slow("gpt")])
def test_equals_fully_shard_step_by_step(name: str, ranks: int) -> None:
    for pairs in on_ranks(beside_pytorch, name, False, world_size=ranks).values:
        for got, wanted in pairs:
            same(got, wanted, rtol=1e-5, atol=1e-6)


# Not the ConvNet: BatchNorm on a CPU takes no bfloat16 weights with fp32 statistics.
@pytest.mark.slow
@pytest.mark.parametrize("name", ["mlp", slow("gpt")])
def test_equals_fully_shard_in_mixed_precision(name: str) -> None:
    for pairs in on_ranks(beside_pytorch, name, True, world_size=2).values:
        for got, wanted in pairs:
            assert all(one.dtype == torch.float32 for one in got.values())
            same(got, wanted, rtol=1e-5, atol=1e-6)  # both round at the same places


def reduced_in(reduce_dtype: torch.dtype | None) -> dict[str, Any]:
    """Dtypes and traffic of a step in bfloat16."""
    model = Zero3(made("mlp", torch.float32), dtype=torch.bfloat16, reduce_dtype=reduce_dtype)
    loss_of(model, share(batch("mlp", 0, 12, torch.float32))).backward()
    grads = {one.grad.dtype for one in model.parameters() if one.grad is not None}
    return {"shards": {one.dtype for one in model.parameters()}, "grads": grads}


@pytest.mark.slow
def test_shards_and_gradients_keep_their_dtype_in_mixed_precision() -> None:
    for reduce_dtype in (None, torch.float32, torch.float16):
        for seen in on_ranks(reduced_in, reduce_dtype, world_size=2).values:
            assert seen == {"shards": {torch.float32}, "grads": {torch.float32}}


# On the wire ---------------------------------------------------------------------------------

WIDE = GPTConfig(vocab_size=64, context=8, num_layers=3, num_heads=2, width=96)


def steps_of(count: int, micro: int, no_sync: bool, options: dict[str, Any]) -> int:
    """Elements of the model, after `count` steps of `micro` microbatches each."""
    inner = GPT(WIDE, seed=0)
    size = sum(one.numel() for one in inner.parameters())
    model = Zero3(inner, **options)
    tokens = torch.zeros(2, 8, dtype=torch.long)
    for _ in range(count):
        for number in range(micro):
            if no_sync and number < micro - 1:
                with model.no_sync():
                    model(tokens).mean().backward()
            else:
                model(tokens).mean().backward()
    return size


RINGS = {
    "all_gather": collectives.ring_all_gather,
    "reduce_scatter": collectives.ring_reduce_scatter,
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("ranks", "micro", "no_sync", "options", "psi"),
    [
        (2, 1, False, {}, 3),
        slow(4, 1, False, {}, 3),
        slow(3, 1, False, RINGS, 3),
        slow(2, 1, False, {"reshard_after_forward": False}, 2),
        (2, 3, False, {}, 9),
        (2, 3, True, {}, 7),  # gathers are not saved: 2 x 3, and one reduce-scatter
        slow(2, 2, False, {"reshard_after_forward": False}, 4),
    ],
)
def test_bytes_on_the_wire(
    ranks: int, micro: int, no_sync: bool, options: dict[str, Any], psi: int
) -> None:
    """The bytes are those of two further steps, without wrapping; padding is below 0.1 %."""
    few, many = (
        on_ranks(steps_of, count, micro, no_sync, options, world_size=ranks) for count in (1, 3)
    )
    wanted = 2 * psi * few.values[0] * 4 * (ranks - 1) / ranks
    for one, other in zip(few.trace.bytes_wire(), many.trace.bytes_wire(), strict=True):
        assert other - one == pytest.approx(wanted, rel=0.01)


def calls() -> list[str]:
    """What happens in a second step, in order: r, 0, 1, 2 gathered, computed, reduced."""
    inner, log = GPT(SMALL, seed=0), []
    sizes: dict[int, str] = {}

    def gather(output: Tensor, input: Tensor, group: Any = None, async_op: bool = True) -> Any:
        log.append(f"gather {sizes[output.data_ptr()]}")
        return dist.all_gather_single(output, input, group=group, async_op=async_op)

    model = Zero3(inner, all_gather=gather)
    names = ["root", "0", "1", "2"]
    for block, name in zip(model.blocks, names, strict=True):
        for shard in block.shards:
            start = shard.start_gather

            def named(start: Any = start, name: str = name, shard: Any = shard) -> None:
                if not shard.is_gathered:
                    log.append(f"gather {name}")
                start()

            shard.start_gather = named
            reduce = shard.start_reduce

            def send(reduce: Any = reduce, name: str = name) -> None:
                log.append(f"reduce {name}")
                reduce()

            shard.start_reduce = send
            shard.transport._all_gather = dist.all_gather_single
        block.module.register_forward_pre_hook(lambda *_, n=name: log.append(f"compute {n}"))
    tokens = torch.zeros(2, 8, dtype=torch.long)
    for _ in range(2):
        log.clear()
        model(tokens).mean().backward()
    return log


@pytest.mark.slow
def test_the_next_block_is_gathered_while_one_computes() -> None:
    """The order is that of the module's drawing: a block's gather comes before its compute."""
    for log in on_ranks(calls, world_size=2).values:
        assert log == [
            "gather root", "gather 0", "compute root", "gather 1", "compute 0",
            "gather 2", "compute 1", "compute 2",
            "gather root", "gather 2", "gather 1", "reduce 2", "gather 0", "reduce 1", "reduce 0",
            "reduce root",
        ]  # fmt: skip


WAYS: dict[str, Callable[[nn.Module], Any]] = {
    "naive": NaiveZero3,
    "no prefetch": lambda module: Zero3(module, prefetch=0),
    "default": Zero3,
}


def exposed(wrap: Callable[[nn.Module], Any]) -> float:
    """Seconds of the quickest of some steps; blocks take 10 ms forward and 20 ms backward."""
    gpt = GPT(GPTConfig(num_layers=4, width=64, context=8))
    for block in gpt.blocks:
        block.register_forward_hook(lambda *_: dtlab.compute(0.01))
        block.register_full_backward_hook(lambda *_: dtlab.compute(0.02))
    model, seconds = wrap(gpt), []
    for _ in range(5):
        dist.barrier()
        begun = time.perf_counter()
        model(torch.zeros(1, 8, dtype=torch.long)).mean().backward()
        seconds.append(time.perf_counter() - begun)
    return min(seconds)


@pytest.mark.proof
@pytest.mark.slow
def test_communication_hides_behind_computation() -> None:
    """A block's 200 KB take 10 ms: 12 gathers and reductions, which the naive way waits for."""
    wire = dtlab.Cluster(gpus_per_node=2, intra=dtlab.Link(20e-6, 10e6))
    seconds = {
        way: max(on_ranks(exposed, WAYS[way], world_size=2, cluster=wire, timeout=60).values)
        for way in WAYS
    }
    # Reductions alone do not hide much: the gather of the next block waits behind them.
    assert seconds["default"] < 0.9 * seconds["no prefetch"]
    assert seconds["default"] < 0.9 * seconds["naive"]


# What is held --------------------------------------------------------------------------------


def held_through_a_step(options: dict[str, Any]) -> dict[str, Any]:
    """Bytes of parameters and gathered blocks, at each call of a block, and before and after."""
    inner = GPT(WIDE, seed=0)
    whole = dtlab.held_bytes(inner)
    layer = dtlab.held_bytes(inner.blocks[0])
    model = Zero3(inner, **options)
    optimizer = torch.optim.Adam(model.parameters())
    most: list[tuple[int, int]] = []

    def look(*_: Any) -> None:
        most.append((dtlab.held_bytes(model.gathered), dtlab.held_bytes(model.unreduced)))

    tokens = torch.zeros(2, 8, dtype=torch.long)
    for _ in range(2):
        most.clear()
        for block in inner.blocks:
            block.mlp.register_forward_hook(look)
            block.mlp.register_full_backward_hook(look)
        output = model(tokens)
        between = dtlab.held_bytes(model.gathered)
        output.mean().backward()
        optimizer.step()
    return {
        "whole": whole, "layer": layer, "most": most, "between": between,
        "after": (dtlab.held_bytes(model.gathered), dtlab.held_bytes(model.unreduced)),
        "shards": dtlab.held_bytes(list(model.parameters())),
        "state": dtlab.held_bytes(optimizer),
        "storages": [
            one.flat.untyped_storage().nbytes() for block in model.blocks for one in block.shards
        ],
    }  # fmt: skip


@pytest.mark.slow
def test_a_rank_holds_its_shards_and_two_blocks_at_most() -> None:
    ranks = 4
    for held in on_ranks(held_through_a_step, {}, world_size=ranks).values:
        root = held["whole"] - 3 * held["layer"]
        gathered = max(one for one, _ in held["most"])
        assert 1.0 * (root + 2 * held["layer"]) <= gathered < 1.01 * (root + 2 * held["layer"])
        gradients = max(one for _, one in held["most"])
        assert gradients < 1.01 * (root + 2 * held["layer"])
        assert held["between"] == 0
        assert held["after"] == (0, 0)
        assert set(held["storages"]) == {0}
        # parameters and gradients, and two moments, of a fourth each
        assert held["shards"] == pytest.approx(2 * held["whole"] / ranks, rel=0.01)
        assert held["state"] == pytest.approx(2 * held["whole"] / ranks, rel=0.01)


@pytest.mark.slow
def test_without_prefetch_it_is_one_block_and_with_no_blocks_it_is_all() -> None:
    one = on_ranks(held_through_a_step, {"prefetch": 0}, world_size=2).values[0]
    root = one["whole"] - 3 * one["layer"]
    assert max(g for g, _ in one["most"]) < 1.01 * (root + one["layer"])
    everything = on_ranks(held_through_a_step, {"blocks": []}, world_size=2).values[0]
    assert max(g for g, _ in everything["most"]) >= everything["whole"]
    stays = on_ranks(held_through_a_step, {"reshard_after_forward": False}, world_size=2).values[0]
    assert stays["between"] >= stays["whole"]
    assert stays["after"] == (0, 0)


# Accumulation, clipping, groups --------------------------------------------------------------


def full_gradients(model: Any) -> State:
    """The whole gradients, as the difference that a step of plain SGD at rate 1 makes."""
    before = model.full_state_dict()
    torch.optim.SGD(model.parameters(), lr=1.0).step()
    after = model.full_state_dict()
    return {name: before[name] - after[name] for name in before if "layers" in name}


def micro_batches(way: str) -> tuple[State, int]:
    model = Zero3(made("mlp"))
    parts = [share(batch("mlp", step, 12)) for step in range(3)]
    held = 0
    if way == "plain":
        for part in parts:
            (loss_of(model, part) / 3).backward()
            held = max(held, dtlab.held_bytes(model.unreduced))
    elif way == "no_sync":
        with model.no_sync():
            for part in parts[:2]:
                (loss_of(model, part) / 3).backward()
                held = max(held, dtlab.held_bytes(model.unreduced))
        (loss_of(model, parts[2]) / 3).backward()
    elif way == "one backward":
        (sum(loss_of(model, part) for part in parts) / 3).backward()
    elif way == "twice":
        loss = sum(loss_of(model, part) for part in parts) / 6
        loss.backward(retain_graph=True)
        loss.backward()
    else:
        accumulate(model, parts, lambda m, one: loss_of(m, one) * len(one[0]))
    return full_gradients(model), held


@pytest.mark.slow
@pytest.mark.parametrize("way", ["plain", "no_sync", "one backward", "twice", slow("accumulate")])
def test_gradients_of_micro_batches_add_up(way: str) -> None:
    whole = made("mlp")
    sum(loss_of(whole, batch("mlp", step, 12)) / 3 for step in range(3)).backward()
    wanted = {name: one.grad for name, one in whole.named_parameters()}
    for got, held in on_ranks(micro_batches, way, world_size=3).values:
        same(got, wanted)
        assert (held > 0) == (way == "no_sync")  # elsewhere whole gradients are gone at once


def grouped(before: bool) -> State:
    """No decay for biases: groups made by shape before wrapping, or by name after."""
    inner = made("gpt")
    if before:
        flat = [one for one in inner.parameters() if one.ndim < 2]
        rest = [one for one in inner.parameters() if one.ndim >= 2]
    model = Zero3(inner)
    if not before:
        named = dict(model.module.named_parameters())
        flat = [one for name, one in named.items() if len(model.shapes[name]) < 2]
        rest = [one for name, one in named.items() if len(model.shapes[name]) >= 2]
    optimizer = torch.optim.AdamW([{"params": flat, "weight_decay": 0.0}, {"params": rest}],
                                  lr=1e-2, weight_decay=0.5)  # fmt: skip
    for step in range(3):
        optimizer.zero_grad()
        loss_of(model, share(batch("gpt", step, 6))).backward()
        optimizer.step()
    return model.full_state_dict()


@pytest.mark.slow
def test_parameter_groups_by_shape_and_by_name() -> None:
    whole = made("gpt")
    flat = [one for one in whole.parameters() if one.ndim < 2]
    rest = [one for one in whole.parameters() if one.ndim >= 2]
    optimizer = torch.optim.AdamW([{"params": flat, "weight_decay": 0.0}, {"params": rest}],
                                  lr=1e-2, weight_decay=0.5)  # fmt: skip
    for step in range(3):
        optimizer.zero_grad()
        loss_of(whole, batch("gpt", step, 6)).backward()
        optimizer.step()
    for before in (True, False):
        for got in on_ranks(grouped, before, world_size=2).values:
            same(got, dict(whole.named_parameters()))


def recomputed_traffic(recomputes: bool, steps: int) -> None:
    inner = GPT(WIDE, seed=0)
    if recomputes:
        for block in inner.blocks:
            run = block.forward
            block.forward = lambda x, run=run: checkpoint(run, x, use_reentrant=False)
    model = Zero3(inner)
    for _ in range(steps):
        model(torch.zeros(2, 8, dtype=torch.long)).mean().backward()


@pytest.mark.slow
def test_recomputation_gathers_no_more() -> None:
    runs = {
        (way, steps): on_ranks(recomputed_traffic, way, steps, world_size=2)
        for way in (False, True) for steps in (1, 2)
    }  # fmt: skip
    gathers = [
        runs[way, 2].trace.ops(0)["all_gather"] - runs[way, 1].trace.ops(0)["all_gather"]
        for way in (False, True)
    ]
    assert gathers == [8, 8]  # four blocks, the root among them, forward and backward


def disturbed() -> None:
    """Passes without gradients, and passes that fail in forward and in backward."""
    model = Zero3(made("mlp"))
    layer = model.module.layers[2]
    inputs, _ = share(batch("mlp", 0, 12))
    for _ in range(2):
        with torch.no_grad():
            seen = model(inputs)
            assert not model.gathered
        with torch.inference_mode():
            assert torch.equal(model(inputs), seen)
        hook = layer.register_forward_hook(fail)
        with pytest.raises(KeyError):
            model(inputs)
        hook.remove()
        assert not model.gathered
        output = model(inputs)
        output.grad_fn.next_functions[1][0].register_prehook(fail)
        with pytest.raises(KeyError):
            output.sum().backward()


def fail(*_: Any) -> None:
    raise KeyError("in the middle")


@pytest.mark.slow
def test_a_pass_that_fails_leaves_nothing_gathered() -> None:
    on_ranks(disturbed, world_size=2)


# Bad input -----------------------------------------------------------------------------------


class OwnOptimizer(torch.optim.Optimizer):
    """Takes the sign of the gradient, or divides by its norm."""

    def __init__(self, params: Any, lr: float = 0.1, norm: bool = False) -> None:
        super().__init__(params, {"lr": lr, "norm": norm})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for one in group["params"]:
                if one.grad is not None:
                    grad = one.grad / one.grad.norm() if group["norm"] else one.grad.sign()
                    one -= group["lr"] * grad


def optimizers() -> dict[str, str]:
    """What each says at its first step."""
    said = {}
    kinds: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
        "own": OwnOptimizer,
        "norm": lambda pieces: OwnOptimizer(pieces, norm=True),
        "LBFGS": torch.optim.LBFGS,
        "Adafactor": torch.optim.Adafactor,
        **{
            name: getattr(torch.optim, name)
            for name in ("SGD", "Adam", "AdamW", "RMSprop", "Adagrad", "NAdam", "RAdam", "Adamax",
                         "Adadelta", "ASGD", "Rprop")
        },
    }  # fmt: skip
    for name, kind in kinds.items():
        model = Zero3(made("mlp"))
        optimizer = kind(list(model.parameters()))
        loss = loss_of(model, share(batch("mlp", 0, 12)))
        loss.backward()
        try:
            optimizer.step(lambda loss=loss: loss) if name == "LBFGS" else optimizer.step()
            said[name] = ""
        except TypeError as error:
            said[name] = str(error)
    return said


@pytest.mark.slow
def test_optimizers_that_do_not_work_element_by_element_are_refused() -> None:
    said = on_ranks(optimizers, world_size=2).values[1]
    assert {name for name, text in said.items() if text} == {"norm", "LBFGS", "Adafactor"}
    assert "OwnOptimizer does not work element by element" in said["norm"]


def sparse() -> str:
    model = Zero3(nn.Sequential(nn.Embedding(5, 3, sparse=True), nn.Linear(3, 2)))
    with pytest.raises(TypeError) as caught:
        model(torch.zeros(2, dtype=torch.long)).sum().backward()
    return str(caught.value)


def frozen_later() -> None:
    model = Zero3(nn.Linear(2, 2))
    next(model.parameters()).requires_grad_(False)
    model(torch.zeros(1, 2))


def bad_arguments() -> list[str]:
    said = []
    linear = nn.Linear(2, 2)
    for make in (
        lambda: Zero3(nn.ReLU()),
        lambda: Zero3(nn.Linear(2, 2).requires_grad_(False)),
        lambda: Zero3(nn.Linear(2, 2, device="meta")),
        lambda: Zero3(nn.Sequential(nn.Linear(2, 2)), blocks=Block),
        lambda: Zero3(nn.Sequential(nn.Linear(2, 2)), blocks=[linear]),
        lambda: Zero3(GPT(SMALL), blocks=nn.ModuleList),
        lambda: Zero3(nn.Linear(2, 2), prefetch=-1),
        lambda: Zero3(nn.Linear(2, 2)).double(),
        frozen_later,
    ):
        with pytest.raises((ValueError, RuntimeError)) as caught:
            make()
        said.append(str(caught.value))
    return said


@pytest.mark.slow
def test_bad_arguments_are_refused() -> None:
    assert "sparse=False" in on_ranks(sparse, world_size=1).values[0]
    pieces = ["nothing to train", "nothing to train", "meta device", "no submodule is a Block",
              "not submodules of the sharded", "it is never called", "prefetch=-1",
              "before you wrap it", "has become False"]  # fmt: skip
    said = on_ranks(bad_arguments, world_size=1).values[0]
    for piece, text in zip(pieces, said, strict=True):
        assert piece in text
