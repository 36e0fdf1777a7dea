"""Which blocks a module is cut into, and which block has which parameter."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from torch import nn

from dtlab.parallel.zero.wrap_policy import ownership
from dtlab.training.models import GPT, MLP, Block, GPTConfig

SMALL = GPTConfig(vocab_size=37, context=8, num_layers=3, num_heads=2, width=12)


def cut(module: nn.Module, blocks: Any = None) -> dict[str, list[str]]:
    """The names of the parameters of each block, by the name of the block."""
    modules = {one: name for name, one in module.named_modules()}
    names = {one: name for name, one in module.named_parameters()}
    found = ownership(module, blocks)
    return {modules[m]: [names[one.parameter] for one in owned] for m, owned in found.items()}


def nested() -> nn.Module:
    layers = nn.Sequential(*(nn.Linear(9, 9) for _ in range(3)))
    return nn.Sequential(nn.Linear(4, 4), layers)


@pytest.mark.parametrize(
    ("make", "wanted"),
    [
        (lambda: GPT(SMALL), ["", "blocks.0", "blocks.1", "blocks.2"]),
        (lambda: MLP(7, 33, 17, 5), ["", "layers.0", "layers.2", "layers.4"]),
        (nested, ["", "1.0", "1.1", "1.2"]),
        (lambda: nn.Linear(3, 3), [""]),
    ],
)
def test_blocks_are_where_the_least_is_gathered_at_once(
    make: Callable[[], nn.Module], wanted: list[str]
) -> None:
    assert list(cut(make())) == wanted


def test_the_picture_of_a_gpt() -> None:
    found = cut(GPT(GPTConfig(num_layers=2)))
    root = ["token_embedding.weight", "position_embedding.weight", "norm.weight", "norm.bias"]
    assert found[""] == root
    assert len(found["blocks.0"]) == len(found["blocks.1"]) == 12
    everything = [name for names in found.values() for name in names]
    assert len(everything) == len(set(everything)) == 28


def test_a_class_a_predicate_a_list_or_nothing() -> None:
    model = GPT(SMALL)
    blocks = ["", "blocks.0", "blocks.1", "blocks.2"]
    assert list(cut(model, Block)) == blocks
    assert list(cut(model, lambda one: isinstance(one, Block))) == blocks
    assert list(cut(model, [model.blocks[2], model.blocks[0]])) == ["", "blocks.0", "blocks.2"]
    assert list(cut(model, [])) == [""]


def test_a_tied_parameter_belongs_to_the_block_around_all_of_its_uses() -> None:
    model = nn.Sequential(nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3)), nn.Linear(3, 3))
    model[0][1].weight = model[0][0].weight
    model[1].bias = model[0][0].bias
    found = cut(model, [model[0], model[0][0], model[0][1], model[1]])
    assert found == {
        "": ["0.0.bias"], "0": ["0.0.weight"], "0.0": [], "0.1": ["0.1.bias"], "1": ["1.weight"],
    }  # fmt: skip


def test_a_module_with_two_parents_belongs_around_both() -> None:
    inner = nn.Linear(3, 3)
    model = nn.Sequential(nn.Sequential(inner), nn.Sequential(inner))
    assert cut(model, [model[0], model[1]])[""] == ["0.0.weight", "0.0.bias"]
