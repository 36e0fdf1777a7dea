"""`ParallelGPT`: names of gradients and parameters, and what it refuses.

That it trains as one process does on every mesh is shown in test_parity.py.
"""

from __future__ import annotations

import copy
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


def batch() -> tuple[Tensor, Tensor]:
    tokens = torch.randint(0, 30, (8, 9), generator=torch.Generator().manual_seed(0))
    return tokens[:, :-1], tokens[:, 1:]


def gradients_alone() -> dict[str, Tensor]:
    model, (tokens, targets) = GPT(CONFIG).double(), batch()
    F.cross_entropy(model(tokens).flatten(0, 1), targets.flatten()).backward()
    named = model.named_parameters(remove_duplicate=False)
    return {name: one.grad for name, one in named if one.grad is not None}


def gradients_on_ranks(sizes: dict[str, int], options: dict[str, Any]) -> dict[str, Tensor]:
    from dtlab.parallel.gpt import ParallelGPT
    from dtlab.parallel.mesh import make_mesh

    mesh = make_mesh(**sizes)
    model = ParallelGPT(CONFIG, mesh, **options)
    model.make_optimizer(torch.optim.SGD, lr=0.1)  # stages 1 and 2 hold gradients in it
    place = mesh.get_local_rank("data")
    model.forward_backward(*(each.chunk(sizes["data"])[place] for each in batch()))
    return model.full_gradients()


@pytest.mark.parametrize("zero", range(4))
def test_gradients_have_the_names_of_the_dense_model(zero: int) -> None:
    sizes = {"data": 2, "pipeline": 2, "tensor": 1}
    options = {"zero": zero, "microbatches": 2, "dtype": torch.float64}
    wanted = gradients_alone()
    for gradients in launch(gradients_on_ranks, sizes, options, world_size=4).values:
        assert gradients.keys() == wanted.keys()
        for name, one in wanted.items():
            torch.testing.assert_close(
                gradients[name], one, rtol=0, atol=1e-9, msg=partial("{}: {}".format, name)
            )


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


def resumed(zero: int) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """The parameters after four steps, and after two, a pause and two more."""
    from dtlab.parallel.gpt import ParallelGPT
    from dtlab.parallel.mesh import make_mesh

    mesh = make_mesh(data=2, pipeline=2, tensor=1)
    tokens, targets = (each.chunk(2)[mesh.get_local_rank("data")] for each in batch())

    def made() -> tuple[Any, Any]:
        model = ParallelGPT(CONFIG, mesh, zero=zero, microbatches=2)
        return model, model.make_optimizer(torch.optim.Adam, lr=0.01)

    def train(model: Any, optimizer: Any) -> None:
        for _ in range(2):
            model.forward_backward(tokens, targets)
            optimizer.step()
            optimizer.zero_grad()

    model, optimizer = made()
    train(model, optimizer)
    again, other = made()
    again.load_full_state_dict(model.full_state_dict())
    other.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    other.param_groups[0]["lr"] = optimizer.param_groups[0]["lr"] = 0.02  # their optimizers' too
    train(model, optimizer)
    train(again, other)
    return model.full_state_dict(), again.full_state_dict()


@pytest.mark.parametrize("zero", range(4))
def test_a_rank_saves_and_loads_its_optimizers(zero: int) -> None:
    for straight, after_pause in launch(resumed, zero, world_size=4).values:
        assert straight.keys() == after_pause.keys()
        assert all(torch.equal(straight[name], after_pause[name]) for name in straight)


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
