"""The sign of each effect in the lesson on ZeRO: what ranks hold and send, and what breaks.

Random effects are measured over five seeds, in one launch; bytes are counted and need one run.
"""

from __future__ import annotations

import time
from contextlib import nullcontext
from functools import cache
from statistics import median
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import clip_grad_norm_
from torch.optim import SGD, Adam

import dtlab
from dtlab import collectives
from dtlab.parallel.zero import Zero1, Zero2, Zero3
from dtlab.predict.memory import model_states
from dtlab.training.models import GPT, Block, GPTConfig
from dtlab.training.saved import saved_bytes
from dtlab.units.unit05.lesson import MemoryWatch, at_stage
from tests.marks import first, retried
from tests.staying import on_ranks

pytestmark = [pytest.mark.slow, pytest.mark.unit("05")]

SEEDS = range(5)
CONFIG = GPTConfig(vocab_size=64, context=8, num_layers=4, num_heads=2, width=48)
PSI = sum(each.numel() for each in GPT(CONFIG).parameters())
STAGES: dict[int, Any] = {1: Zero1, 2: Zero2}


def tokens(seed: int, share: bool = True) -> tuple[Tensor, Tensor]:
    """Twelve sequences, of which this rank has its share."""
    drawn = torch.randint(64, (12, 9), generator=torch.Generator().manual_seed(seed))
    if share:
        drawn = drawn[dist.get_rank() :: dist.get_world_size()]
    return drawn[:, :-1], drawn[:, 1:]


def loss_of(model: nn.Module, seed: int = 0, share: bool = True) -> Tensor:
    inputs, targets = tokens(seed, share)
    return cross_entropy(model(inputs).flatten(0, 1), targets.flatten())


def wrapped(stage: int, module: nn.Module) -> tuple[Any, Any]:
    return at_stage(stage, module, Adam, lr=3e-3)


# What each rank holds ------------------------------------------------------------------------


def held(stage: int) -> tuple[list[tuple[str, dict[str, int]]], float]:
    """What `MemoryWatch` saw in two steps, and the last loss."""
    gpt = GPT(CONFIG)
    model, optimizer = wrapped(stage, gpt)
    watch = MemoryWatch(model, optimizer, [block.mlp for block in gpt.blocks])
    for _ in range(2):
        loss = loss_of(model)
        loss.backward()
        watch.look("backward ends")
        optimizer.step()
        watch.look("step")
        optimizer.zero_grad()
    return watch.moments, loss.item()


@pytest.mark.proof
def test_each_stage_holds_less_and_moments_come_with_the_first_step() -> None:
    most = []
    for stage in range(4):
        for moments, _ in on_ranks(held, stage, world_size=4).values:
            first_end, second_end = (h for name, h in moments if name == "backward ends")
            assert first_end["optimizer state"] == 0 < second_end["optimizer state"]
            total = sum(second_end.values()) - second_end["gathered block"]
            assert total == pytest.approx(model_states(PSI, stage, 4, "fp32").total, rel=0.02)
            names = [name for name, _ in moments]
            assert names[: CONFIG.num_layers] == [f"forward {n}" for n in range(CONFIG.num_layers)]
            gathered = max(h["gathered block"] for _, h in moments)
            assert (gathered > 0) == (stage == 3)
        most.append(total)
    assert most == sorted(most, reverse=True)
    assert most[3] < 0.3 * most[0]


def beside_shards() -> tuple[int, int, int]:
    """Bytes of shards, of the most that is gathered, and of what autograd keeps."""
    model, most = Zero3(GPT(CONFIG)), []
    for block in model.module.blocks:
        block.mlp.register_forward_hook(lambda *_: most.append(dtlab.held_bytes(model.gathered)))
    kept = saved_bytes(model, tokens(0, share=False)[0]).total
    return dtlab.held_bytes([each.data for each in model.parameters()]), max(most), kept


def test_activations_and_gathered_blocks_do_not_shrink_with_the_ranks() -> None:
    two, four = (on_ranks(beside_shards, world_size=n).values[0] for n in (2, 4))
    assert four[0] == pytest.approx(two[0] / 2, rel=0.02)
    assert four[1:] == pytest.approx(two[1:], rel=0.01)


def gathered_at_most(blocks: Any, prefetch: int) -> int:
    gpt = GPT(CONFIG)
    model, seen = Zero3(gpt, blocks=blocks, prefetch=prefetch), []
    for block in gpt.blocks:
        block.mlp.register_forward_hook(lambda *_: seen.append(dtlab.held_bytes(model.gathered)))
    for _ in range(2):
        loss_of(model).backward()
    return max(seen)


def test_without_a_wrap_policy_all_is_gathered_and_prefetch_takes_a_block() -> None:
    everything, usual, frugal = (
        on_ranks(gathered_at_most, blocks, prefetch, world_size=2).values[0]
        for blocks, prefetch in (([], 1), (Block, 1), (Block, 0))
    )
    assert everything >= 4 * PSI > 1.5 * usual > 1.5 * frugal
    block = sum(each.nbytes for each in GPT(CONFIG).blocks[0].parameters())
    assert usual - frugal == pytest.approx(block, rel=0.02)


# What is sent --------------------------------------------------------------------------------

RINGS = {"all_gather": collectives.ring_all_gather,
         "reduce_scatter": collectives.ring_reduce_scatter}  # fmt: skip


def steps(way: str, count: int, microbatches: int, silent: bool) -> None:
    gpt = GPT(CONFIG)
    model: Any = gpt
    optimizer: Any
    if way == "ZeroRedundancyOptimizer":
        from torch.distributed.optim import ZeroRedundancyOptimizer  # seconds, on every rank

        model, optimizer = (
            DistributedDataParallel(gpt), ZeroRedundancyOptimizer(gpt.parameters(), Adam)
        )  # fmt: skip
    elif way == "DDP":
        model, optimizer = DistributedDataParallel(gpt), Adam(gpt.parameters())
    elif way == "fully_shard":
        from torch.distributed.fsdp import fully_shard  # slow to import

        for each in [*gpt.blocks, gpt]:
            fully_shard(each)
        optimizer = Adam(gpt.parameters())
    elif way == "3":
        model = Zero3(gpt, **RINGS)
        optimizer = Adam(model.parameters())
    else:
        optimizer = STAGES[int(way)](gpt.parameters(), Adam, **RINGS)
    for _ in range(count):
        for number in range(microbatches):
            quiet = silent and number < microbatches - 1
            with model.no_sync() if quiet else nullcontext():
                loss_of(model).backward()
        optimizer.step()
        optimizer.zero_grad()


@cache
def passes(way: str, microbatches: int = 1, silent: bool = False, ranks: int = 2) -> float:
    """Elements in a step of a rank, over Psi (N-1)/N."""
    few, many = (
        on_ranks(steps, way, count, microbatches, silent, world_size=ranks, timeout=90)
        .trace.bytes_wire()
        for count in (1, 3)
    )  # fmt: skip
    each = [(b - a) / 2 for a, b in zip(few, many, strict=True)]
    return max(each) / 4 / (PSI * (ranks - 1) / ranks)


@pytest.mark.proof
def test_stages_1_and_2_send_what_replicas_send_and_stage_3_half_as_much_again() -> None:
    assert passes("DDP") == pytest.approx(2, rel=0.01)
    assert passes("1") == pytest.approx(2, rel=0.01)
    assert passes("2") == pytest.approx(2, rel=0.01)
    assert passes("3") == pytest.approx(3, rel=0.01)


@pytest.mark.proof
def test_pytorchs_own_send_more_than_needed_on_gloo() -> None:
    assert passes("ZeroRedundancyOptimizer") == pytest.approx(3, rel=0.01)
    assert passes("fully_shard") > 1.2 * passes("3")


@pytest.mark.proof
def test_accumulation_helps_where_gradients_may_stay_whole() -> None:
    k = 3
    assert passes("DDP", k, silent=True) == pytest.approx(2, rel=0.01)
    assert passes("1", k) == pytest.approx(2, rel=0.01)
    assert passes("2", k) == pytest.approx(k + 1, rel=0.01)
    assert passes("3", k) == pytest.approx(3 * k, rel=0.01)
    assert passes("3", k, silent=True) == pytest.approx(2 * k + 1, rel=0.01)


def scatters(how: Any, count: int) -> None:
    whole, mine = torch.ones(400_000), torch.empty(100_000)
    for _ in range(count):
        how(mine, whole)


def test_gloos_reduce_scatter_sends_twice_what_a_ring_does() -> None:
    sent = []
    for how in (dist.reduce_scatter_single, collectives.ring_reduce_scatter):
        few, many = (
            on_ranks(scatters, how, count, world_size=4).trace.bytes_wire(1)
            for count in (1, 3)
        )
        sent.append(many - few)
    assert sent[0] == pytest.approx(2 * sent[1], rel=0.02)


def narrow(count: int, reduce_dtype: torch.dtype) -> None:
    model = Zero3(GPT(CONFIG), dtype=torch.bfloat16, reduce_dtype=reduce_dtype, **RINGS)
    for _ in range(count):
        loss_of(model).backward()


@pytest.mark.proof
def test_16_bits_on_the_wire_are_what_the_policy_says() -> None:
    found = []
    for dtype in (torch.float32, torch.bfloat16):
        few, many = (
            on_ranks(narrow, count, dtype, world_size=2).trace.bytes_wire(0)
            for count in (1, 3)
        )
        found.append((many - few) / 2 / (PSI / 2))
    assert found == pytest.approx([8, 6], rel=0.015)


def on_a_slow_wire(prefetch: int) -> float:
    """Seconds of a step; a layer's gather takes 10 ms, and its forward, and half its backward."""
    layers = nn.Sequential(*[nn.Linear(224, 224) for _ in range(5)])
    for layer in layers:
        layer.register_forward_hook(lambda *_: dtlab.compute(0.01))
        layer.register_full_backward_hook(lambda *_: dtlab.compute(0.02))
    model, seconds = Zero3(layers, prefetch=prefetch), []
    for _ in range(7):
        dist.barrier()
        started = time.perf_counter()
        model(torch.ones(1, 224, requires_grad=True)).sum().backward()
        seconds.append(time.perf_counter() - started)
    return median(seconds[2:])


@retried
@pytest.mark.proof
def test_prefetch_shortens_a_step_on_the_emulated_wire() -> None:
    wire = dtlab.Cluster(gpus_per_node=2, intra=dtlab.Link(20e-6, 10e6))
    without, with_it = (
        max(on_ranks(on_a_slow_wire, prefetch, world_size=2, cluster=wire).values)
        for prefetch in (0, 1)
    )
    assert with_it < 0.95 * without


# What is the same, and what breaks -----------------------------------------------------------


def losses(stage: int | None, seed: int) -> list[float]:
    """The losses of four steps with a stage; None stands for one process."""
    gpt = GPT(CONFIG, seed=seed)
    model, optimizer = (gpt, Adam(gpt.parameters(), lr=3e-3)) if stage is None else wrapped(
        stage, gpt)  # fmt: skip
    found = []
    for step in range(4):
        loss = loss_of(model, 10 * seed + step, share=stage is not None)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        mean = loss.detach()
        if stage is not None:
            dist.all_reduce(mean)
            mean /= dist.get_world_size()
        found.append(mean.item())
    return found


def all_stages() -> dict[tuple[int | None, int], list[float]]:
    """The losses by stage and seed; stage None stands for one process."""
    stages = *range(4), None
    return {(stage, seed): losses(stage, seed) for seed in SEEDS for stage in stages}


@pytest.mark.proof
def test_every_stage_has_the_losses_of_one_process() -> None:
    found = on_ranks(all_stages, world_size=3, timeout=90).values[0]
    for (_, seed), got in found.items():
        assert got == pytest.approx(found[None, seed], rel=1e-4)


def clipped(seed: int, locally: bool) -> Tensor:
    """The whole gradient after clipping to 0.1: what a step at rate 1 takes away."""
    model = Zero3(GPT(CONFIG, seed=seed))
    loss_of(model, seed).backward()
    if locally:
        clip_grad_norm_(model.parameters(), 0.1)
    else:
        model.clip_grad_norm_(0.1)
    before = model.full_state_dict()
    SGD(model.parameters(), lr=1.0).step()
    after = model.full_state_dict()
    names = [name for name, _ in GPT(CONFIG).named_parameters()]
    return torch.cat([(before[name] - after[name]).flatten() for name in names])


def in_one_process(seed: int) -> Tensor:
    model = GPT(CONFIG, seed=seed)
    loss_of(model, seed, share=False).backward()
    clip_grad_norm_(model.parameters(), 0.1)
    return torch.cat([each.grad.flatten() for each in model.parameters()
                      if each.grad is not None])  # fmt: skip


def in_three_ways() -> list[tuple[Tensor, Tensor, Tensor]]:
    return [(clipped(seed, True), clipped(seed, False), in_one_process(seed)) for seed in SEEDS]


@pytest.mark.proof
def test_clipping_by_the_local_norm_is_too_long_and_turned() -> None:
    found = on_ranks(in_three_ways, world_size=4, timeout=90).values[0]
    for locally, by_all, wanted in found:
        assert (by_all - wanted).norm() < 0.01 * wanted.norm()
        assert locally.norm() == pytest.approx(2 * 0.1, rel=0.02)  # sqrt(4) times too long
        assert torch.cosine_similarity(locally, wanted, dim=0) < 0.99


@pytest.mark.parametrize("seed", first(SEEDS))
def test_a_step_of_one_length_is_sqrt_n_times_too_long_in_shards(seed: int) -> None:
    gradient = torch.randn(4000, generator=torch.Generator().manual_seed(seed))
    for ranks in (2, 4, 16):
        shards = torch.cat([each / each.norm() for each in gradient.chunk(ranks)])
        assert shards.norm().item() == pytest.approx(ranks**0.5, rel=1e-4)


# PyTorch's fully_shard: the meta device, and a mesh of two dimensions -------------------------

LARGE = GPTConfig(num_layers=4, num_heads=8, width=1024, context=16)  # 203 MB


def built_whole() -> None:
    GPT(LARGE)


def built_on_meta() -> int:
    from torch.distributed.fsdp import fully_shard  # slow to import

    with torch.device("meta"):
        gpt = GPT(LARGE)
    for module in (*gpt.blocks, gpt):
        fully_shard(module)
    gpt.to_empty(device="cpu")
    parameters: list[Any] = list(gpt.parameters())
    shards = [each.to_local().detach() for each in parameters]
    for each in shards:
        each.normal_()
    return sum(each.nbytes for each in shards)


def test_a_model_on_meta_is_initialised_where_the_whole_does_not_fit() -> None:
    with pytest.raises(dtlab.RankError, match="memory"):
        dtlab.launch(built_whole, world_size=2, memory_limit=80_000_000)
    held = dtlab.launch(built_on_meta, world_size=4, memory_limit=130_000_000, timeout=90).values
    whole = 4 * sum(each.numel() for each in GPT(LARGE).parameters())
    assert held == pytest.approx([whole / 4] * 4, rel=0.01)


def hybrid() -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard  # slow to import

    nodes = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
    gpt = GPT(CONFIG)
    for module in (*gpt.blocks, gpt):
        fully_shard(module, mesh=nodes)
    loss_of(gpt).backward()


def test_hybrid_sharding_sends_only_an_all_reduce_of_shards_between_nodes() -> None:
    carried: dict[tuple[str, tuple[int, ...]], float] = {}
    for event in dtlab.launch(hybrid, world_size=4, timeout=90).trace.events:
        if event.rank == 0 and event.kind == "comm":
            key = event.name, event.extra["group"]
            carried[key] = carried.get(key, 0) + event.bytes / (4 * PSI)
    assert carried.keys() == {
        ("all_gather", (0, 1)), ("reduce_scatter", (0, 1)), ("all_reduce", (0, 2))
    }  # fmt: skip
    assert carried["all_reduce", (0, 2)] == pytest.approx(0.5, rel=0.02)
    assert carried["reduce_scatter", (0, 1)] == pytest.approx(1, rel=0.02)


def after_backward(way: str, steps: int = 4) -> float:
    """Seconds of the optimizer's step, after a backward pass that hides all that it can hide."""
    layers = nn.Sequential(*[nn.Linear(224, 224) for _ in range(5)])
    for layer in layers:
        layer.register_full_backward_hook(lambda *_: dtlab.compute(0.024))
    model: Any = layers
    optimizer: Any
    if way == "DDP":
        model = DistributedDataParallel(layers, bucket_cap_mb=0.19)
        optimizer = SGD(layers.parameters(), lr=0.1)
    else:
        optimizer = Zero2(layers.parameters(), SGD, lr=0.1, bucket_cap_mb=0.19)
    seconds = []
    for _ in range(steps):
        model(torch.ones(1, 224, requires_grad=True)).sum().backward()
        started = time.perf_counter()
        optimizer.step()
        optimizer.zero_grad()
        seconds.append(time.perf_counter() - started)
    return median(seconds[1:])


@retried
def test_the_all_gather_of_stage_2_is_exposed_after_the_step() -> None:
    wire = dtlab.Cluster(gpus_per_node=2, intra=dtlab.Link(20e-6, 12.5e6))
    ddp, zero = (
        max(dtlab.launch(after_backward, way, world_size=2, cluster=wire).values)
        for way in ("DDP", "Zero2")
    )
    assert zero > 0.035 > ddp  # 500 kB at 12.5 MB/s are 40 ms
