"""What `dtlab.held_bytes` counts, and how often."""

from __future__ import annotations

import torch
from torch import nn

import dtlab


def test_a_storage_counts_once_and_whole() -> None:
    whole = torch.zeros(10, 10)
    assert dtlab.held_bytes(whole) == 400
    assert dtlab.held_bytes(whole, whole[3], [whole.t()], {"a": whole.view(-1)}) == 400
    assert dtlab.held_bytes(whole[3]) == 400
    assert dtlab.held_bytes(whole[3].clone()) == 40
    assert dtlab.held_bytes() == dtlab.held_bytes("text", 3, None) == 0


def test_a_module_has_parameters_buffers_and_gradients() -> None:
    model = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3))
    parameters, buffers = (12 + 3 + 3 + 3) * 4, (3 + 3) * 4 + 8
    assert dtlab.held_bytes(model) == parameters + buffers
    model(torch.ones(2, 4)).sum().backward()
    assert dtlab.held_bytes(model) == 2 * parameters + buffers


def test_tied_weights_count_once() -> None:
    first, second = nn.Linear(5, 5, bias=False), nn.Linear(5, 5, bias=False)
    second.weight = first.weight
    assert dtlab.held_bytes(nn.Sequential(first, second)) == 100


def test_an_optimizer_has_its_state_after_the_first_step() -> None:
    model = nn.Linear(4, 3, bias=False)
    optimizer = torch.optim.Adam(model.parameters())
    assert dtlab.held_bytes(optimizer) == 0
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
    assert dtlab.held_bytes(optimizer) == 2 * 48 + 4  # two moments, and a count of steps


def test_other_objects_are_looked_into() -> None:
    class Holder:
        def __init__(self) -> None:
            self.tensors, self.own = [torch.zeros(3), torch.zeros(3)], self

    assert dtlab.held_bytes(Holder()) == 24


def test_an_object_at_a_reused_address_is_counted() -> None:
    """Lists made on the way are gone at once, and the next thing may get their ids."""
    model = nn.Sequential(*[nn.Linear(3, 3) for _ in range(40)])
    optimizers = [torch.optim.Adam(layer.parameters()) for layer in model]
    model(torch.ones(1, 3)).sum().backward()
    for optimizer in optimizers:
        optimizer.step()
    states = 2 * 4 * sum(each.numel() for each in model.parameters())
    steps = 4 * 2 * len(optimizers)
    assert dtlab.held_bytes(*optimizers) == states + steps
    assert dtlab.held_bytes([{"all": optimizers}]) == states + steps
