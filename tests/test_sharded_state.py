"""Sharded state: saved by some ranks, loaded by others, and as one process has it."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor

from dtlab.parallel.zero.fully_sharded import Zero3
from dtlab.training.models import MLP
from tests.marks import slow
from tests.staying import on_ranks
from tests.test_fully_sharded import MODELS, batch, loss_of, made, same, share, train

State = dict[str, Tensor]


def trained_and_saved(name: str) -> tuple[Any, Any, Any, Any]:
    """Train three steps; return this rank's state, the whole state, and the result of two more."""
    model = Zero3(made(name))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    more(model, optimizer, name, range(3))
    shard = copy.deepcopy(model.state_dict(optimizer))
    whole = model.full_state_dict(optimizer)
    more(model, optimizer, name, range(3, 5))
    return shard, whole, model.full_state_dict(), None


def more(model: Any, optimizer: Any, name: str, steps: range) -> None:
    for step in steps:
        optimizer.zero_grad()
        loss_of(model, share(batch(name, step, 12))).backward()
        optimizer.step()


def loaded(name: str, states: Any, blocks: Any) -> State:
    torch.manual_seed(9)
    inner = MODELS[name]().double()
    for one in inner.parameters():
        one.data += 1
    model = Zero3(inner, blocks=blocks)
    optimizer = torch.optim.AdamW(model.parameters(), lr=7.0)
    model.load_state_dict(states, optimizer)
    more(model, optimizer, name, range(3, 5))
    return model.full_state_dict()


@pytest.mark.sample(2)
@pytest.mark.slow
@pytest.mark.parametrize(("saved", "read"), [(3, 2), slow(2, 4), slow(1, 3), slow(4, 1)])
@pytest.mark.parametrize("name", ["gpt", slow("frozen")])
def test_saved_by_some_ranks_and_loaded_by_others(name: str, saved: int, read: int) -> None:
    runs = on_ranks(trained_and_saved, name, world_size=saved).values
    shards, whole, wanted = [one[0] for one in runs], runs[0][1], runs[0][2]
    for states in (shards[::-1], whole):
        for blocks in (None, []):
            for got in on_ranks(loaded, name, states, blocks, world_size=read).values:
                same(got, wanted)


@pytest.mark.slow
def test_a_whole_state_is_that_of_the_unwrapped_module() -> None:
    def both() -> State:
        model = Zero3(made("conv"))
        train(model, "conv", 2)
        return model.full_state_dict()

    def from_plain(state: State) -> State:
        model = Zero3(made("conv"))
        model.load_state_dict(state)
        return model.full_state_dict()

    state = on_ranks(both, world_size=2).values[0]
    plain = made("conv")
    plain.load_state_dict(state)  # strict: the same names and shapes
    again = on_ranks(from_plain, plain.state_dict(), world_size=3).values
    for got in again:
        same(got, state)


def refusals_of_loading() -> list[str]:
    model, other = Zero3(made("mlp")), Zero3(MLP(7, 3, 5).double())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    own = model.state_dict()
    partial = {**own, "parameters": dict(list(own["parameters"].items())[:1])}
    said = []
    for load in (
        lambda: model.load_state_dict(other.state_dict()),
        lambda: model.load_state_dict(partial),
        lambda: model.load_state_dict(own, optimizer),
        lambda: model.load_state_dict({**own, "parameters": {"x": {}}}),
        lambda: other.state_dict(optimizer),
    ):
        with pytest.raises(ValueError) as caught:
            load()
        said.append(str(caught.value))
    return said


def test_a_state_that_does_not_fit_is_refused() -> None:
    shapes, lacks, none, unknown, strangers = on_ranks(
        refusals_of_loading, world_size=1
    ).values[0]
    assert "layers.0.weight is (33, 7) here" in shapes or "(3, 7)" in shapes
    assert "Pass the states of all ranks" in lacks
    assert "Pass the optimizer to state_dict" in none
    assert "which is not in this model" in unknown
    assert "not parameters of this model" in strangers
