"""`ParallelGPT` on several ranks against one process: loss, every gradient, and the parameters."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from dtlab import launch
from dtlab.training.models import GPT, GPTConfig

pytestmark = pytest.mark.slow

CONFIG = GPTConfig(vocab_size=30, context=12, num_layers=4, num_heads=4, width=16)
BATCH, CLIP, RATE = 8, 0.5, 1e-2
Step = tuple[float, dict[str, Tensor], float]  # loss, gradients by name, norm


def batch_of(step: int, size: int = BATCH) -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(step)
    tokens = torch.randint(0, CONFIG.vocab_size, (size, 9), generator=draw)
    return tokens[:, :-1], tokens[:, 1:]


def one_process(
    steps: int, calls: int, dtype: torch.dtype
) -> tuple[list[Step], dict[str, Tensor]]:
    """Train in one process by a plain loop; the gradient of one step is of `calls` batches."""
    model = GPT(CONFIG).to(dtype)
    optimizer = torch.optim.Adam(model.parameters(), lr=RATE)
    found = []
    for step in range(steps):
        for call in range(calls):
            tokens, targets = batch_of(step * calls + call)
            loss = F.cross_entropy(model(tokens).flatten(0, 1), targets.flatten())
            loss.backward()  # type: ignore[no-untyped-call]
        gradients = {
            name: one.grad.clone()
            for name, one in model.named_parameters(remove_duplicate=False)
            if one.grad is not None
        }
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()
        optimizer.zero_grad()
        found.append((loss.item(), gradients, norm.item()))
    return found, model.state_dict()


def on_ranks(
    sizes: dict[str, int],
    steps: int,
    options: dict[str, Any],
    calls: int = 1,
    no_sync: bool = False,
) -> tuple[list[Step], dict[str, Tensor]]:
    from contextlib import nullcontext

    from dtlab.parallel.gpt import ParallelGPT
    from dtlab.parallel.mesh import make_mesh

    mesh = make_mesh(**sizes)
    model = ParallelGPT(CONFIG, mesh, **options)
    optimizer = model.make_optimizer(torch.optim.Adam, lr=RATE)
    place, found = mesh.get_local_rank("data"), []
    for step in range(steps):
        for call in range(calls):
            tokens, targets = (
                each.chunk(sizes["data"])[place] for each in batch_of(step * calls + call)
            )
            waits = no_sync and call < calls - 1
            with model.no_sync() if waits else nullcontext():
                loss = model.forward_backward(tokens, targets)
        gradients = model.full_gradients()
        norm = model.clip_grad_norm_(CLIP)
        optimizer.step()
        optimizer.zero_grad()
        found.append((loss.item(), gradients, norm.item()))
    return found, model.full_state_dict()


def compare(
    values: list[Any], steps: int, calls: int = 1, dtype: torch.dtype = torch.float64
) -> None:
    exact = dtype is torch.float64
    wanted, state = one_process(steps, calls, dtype)
    for found, ends in values:
        for (loss, gradients, norm), (right_loss, right, right_norm) in zip(
            found, wanted, strict=True
        ):
            assert loss == pytest.approx(right_loss, rel=1e-9 if exact else 1e-5)
            assert norm == pytest.approx(right_norm, rel=1e-6)  # both are returned in fp32
            assert gradients.keys() == right.keys()
            for name, tensor in right.items():
                torch.testing.assert_close(
                    gradients[name], tensor,
                    rtol=0 if exact else 1e-4, atol=1e-9 if exact else 1e-6,
                    msg=partial("the gradient of {}: {}".format, name),
                )  # fmt: skip
        assert ends.keys() == state.keys()
        for name, tensor in state.items():
            torch.testing.assert_close(
                ends[name], tensor, rtol=0, atol=1e-9 if exact else 2e-3,
                msg=partial("{}: {}".format, name),
            )  # fmt: skip


def cases() -> Iterator[tuple[dict[str, int], dict[str, Any]]]:
    """Meshes of two and four ranks, with every ZeRO stage and schedule that fits them."""
    for data, pipeline, tensor in (
        (2, 1, 1),
        (1, 2, 1),
        (1, 1, 2),
        (2, 2, 1),
        (2, 1, 2),
        (1, 2, 2),
    ):
        sizes = {"data": data, "pipeline": pipeline, "tensor": tensor}
        for zero in range(4 if data > 1 else 1):
            yield sizes, {"zero": zero, "sequence_parallel": tensor > 1 and zero % 2 == 0}
        if pipeline > 1:
            yield sizes, {"schedule": "interleaved", "chunks": 2, "zero": data}
            yield sizes, {"schedule": "zb_h1", "zero": data}
            yield sizes, {"schedule": "gpipe", "zero": 3 * (data > 1)}


def name_of(value: Any) -> str:
    return "_".join(f"{key}{each}" for key, each in value.items())


@pytest.mark.parametrize(("sizes", "options"), list(cases()), ids=name_of)
def test_two_and_four_ranks_equal_one_process(
    sizes: dict[str, int], options: dict[str, Any]
) -> None:
    world = sizes["data"] * sizes["pipeline"] * sizes["tensor"]
    options = {"microbatches": 2, "dtype": torch.float64, **options}
    run = launch(on_ranks, sizes, 2, options, world_size=world)
    compare(run.values, 2)


@pytest.mark.parametrize(
    "zero", [0, *(pytest.param(stage, marks=pytest.mark.proof) for stage in (1, 2, 3))]
)
def test_eight_ranks_equal_one_process_for_five_steps(zero: int) -> None:
    sizes = {"data": 2, "pipeline": 2, "tensor": 2}
    options = {"zero": zero, "sequence_parallel": True, "microbatches": 2, "dtype": torch.float64}
    run = launch(on_ranks, sizes, 5, options, world_size=8, timeout=120)
    compare([run.values[0], run.values[-1]], 5)


def test_in_fp32_it_is_one_process_to_rounding() -> None:
    # One step only: Adam divides a gradient that is rounding error by its own size, so from the
    # second step on some weights differ by the learning rate, and gradients with them.
    sizes = {"data": 2, "pipeline": 1, "tensor": 2}
    run = launch(on_ranks, sizes, 1, {"zero": 1}, world_size=4)
    compare(run.values[:1], 1, dtype=torch.float32)


@pytest.mark.parametrize("zero", range(4))
@pytest.mark.parametrize("no_sync", [False, True], ids=["sync", "no_sync"])
def test_accumulation_adds_up_also_the_shared_embedding(zero: int, no_sync: bool) -> None:
    sizes = {"data": 2, "pipeline": 2, "tensor": 1}
    options = {"zero": zero, "microbatches": 2, "dtype": torch.float64}
    run = launch(on_ranks, sizes, 2, options, 3, no_sync, world_size=4)
    compare(run.values, 2, calls=3)


def saved(sizes: dict[str, int], options: dict[str, Any], state: Any = None) -> dict[str, Tensor]:
    from dtlab.parallel.gpt import ParallelGPT
    from dtlab.parallel.mesh import make_mesh

    model = ParallelGPT(CONFIG, make_mesh(**sizes), seed=1, **options)
    if state is not None:
        model.load_full_state_dict(state)
    return model.full_state_dict()


@pytest.mark.parametrize("zero", [0, 1, 3])
def test_a_dense_state_is_loaded_and_saved_unchanged(zero: int) -> None:
    state = GPT(CONFIG, seed=0).state_dict()
    sizes = {"data": 2, "pipeline": 2, "tensor": 1}
    run = launch(saved, sizes, {"zero": zero, "microbatches": 2}, state, world_size=4)
    for found in run.values:
        assert found.keys() == state.keys()
        assert all(torch.equal(found[name], state[name]) for name in state)


@pytest.mark.parametrize(
    ("sizes", "options", "words"),
    [
        ({"data": 2}, {}, r"axes data, pipeline and\s+tensor"),
        ({"data": 2, "pipeline": 1, "tensor": 1}, {"zero": 4}, "ZeRO stage from 0 to 3"),
        ({"data": 1, "pipeline": 2, "tensor": 1}, {"zero": 3, "schedule": "zb_h1"}, "splits"),
        ({"data": 1, "pipeline": 2, "tensor": 1}, {"chunks": 2}, 'schedule="interleaved"'),
        ({"data": 1, "pipeline": 2, "tensor": 1}, {"schedule": "zbv"}, "schedule must be"),
        (
            {"data": 1, "pipeline": 2, "tensor": 1},
            {"schedule": "interleaved", "chunks": 4, "microbatches": 2},
            "need at least 8 blocks",
        ),
    ],
)
def test_sizes_that_do_not_fit_are_explained(
    sizes: dict[str, int], options: dict[str, Any], words: str
) -> None:
    with pytest.raises(Exception, match=words):
        launch(saved, sizes, options, world_size=2)


@pytest.mark.proof
def test_it_trains_as_fsdp2_with_dtensor() -> None:
    from tests.benchmarks.gpt import in_turns

    # The benchmark compares the two losses after each of its steps.
    assert launch(in_turns, 1, world_size=4, trace=False, timeout=120, threads=1, backend="gloo")
