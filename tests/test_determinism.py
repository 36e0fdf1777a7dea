"""The same bits on 1, 2 and 4 ranks, and the step at which a bit was changed."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import mse_loss
from torch.optim import Adam

import dtlab
from dtlab.parallel.determinism import (
    Corruption,
    find_corruption,
    generator_at,
    hashes_of,
    sum_of_parts,
)

MICROBATCHES, STEPS = 8, 5


# Random numbers ----------------------------------------------------------------------------------


def test_numbers_depend_on_the_place_and_not_on_what_was_drawn_before() -> None:
    first = torch.rand(5, generator=generator_at(7, 3, 1))
    torch.rand(100)
    assert torch.equal(torch.rand(5, generator=generator_at(7, 3, 1)), first)
    others = [(7, 3, 2), (7, 1, 3), (8, 3, 1), (7, 3), (73, 1), (7, 31)]
    assert all(not torch.equal(torch.rand(5, generator=generator_at(*p)), first) for p in others)


def test_numbers_of_neighbouring_places_are_uniform_and_not_related() -> None:
    drawn = torch.stack([torch.rand(4, generator=generator_at(0, k)) for k in range(2000)])
    assert drawn.mean().item() == pytest.approx(0.5, abs=0.02)
    assert drawn.std().item() == pytest.approx(math.sqrt(1 / 12), abs=0.02)
    related = torch.corrcoef(torch.stack([drawn[:-1, 0], drawn[1:, 0]]))[0, 1]
    assert abs(related.item()) < 0.1


@pytest.mark.parametrize("place", [(), (-1,), (3, -2)])
def test_a_place_is_named_by_numbers_from_0_on(place: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="integers of 0 or more"):
        generator_at(*place)


# Sums --------------------------------------------------------------------------------------------


def _parts(count: int) -> list[Tensor]:
    """Numbers of very different sizes, whose sum depends on the order."""
    draw = torch.Generator().manual_seed(count)
    scales = 10.0 ** torch.randint(-6, 7, (count, 1), generator=draw)
    return list(torch.randn(count, 1001, generator=draw) * scales)


def _mine(parts: list[Tensor]) -> list[Tensor]:
    per_rank = len(parts) // dist.get_world_size()
    return parts[per_rank * dist.get_rank() :][:per_rank]


def _summed(count: int) -> tuple[Tensor, bool]:
    mine = _mine(_parts(count))
    before = [part.clone() for part in mine]
    total = sum_of_parts(mine)
    return total, all(map(torch.equal, before, mine))


def _reduced(count: int) -> Tensor:
    total = torch.stack(_mine(_parts(count))).sum(0)
    dist.all_reduce(total)
    return total


@pytest.mark.parametrize("count", [4, 8, 32])
def test_a_sum_has_the_same_bits_on_any_number_of_ranks(count: int) -> None:
    alone = sum_of_parts(_parts(count))
    exact = torch.stack(_parts(count)).double().sum(0)
    torch.testing.assert_close(alone.double(), exact, rtol=1e-4, atol=1.0)
    for n in (1, 2, 4):
        for total, unchanged in dtlab.launch(_summed, count, world_size=n).values:
            assert torch.equal(total, alone)
            assert unchanged


def test_an_all_reduce_has_other_bits_on_another_number_of_ranks() -> None:
    """Otherwise the test above would show nothing."""
    two, four = (dtlab.launch(_reduced, 8, world_size=n).values[0] for n in (2, 4))
    assert not torch.equal(two, four)


@pytest.mark.parametrize(("n", "count"), [(1, 3), (1, 6), (2, 6), (3, 3)])
def test_other_numbers_of_ranks_or_parts_are_refused(n: int, count: int) -> None:
    with pytest.raises(dtlab.RankError, match="must be a power of two"):
        dtlab.launch(_summed, count, world_size=n)
    with pytest.raises(ValueError, match="0 parts on a rank"):
        sum_of_parts([])


# Training ----------------------------------------------------------------------------------------


class Job:
    """A small job whose steps have the same bits on 1, 2, 4 and 8 ranks.

    `flip` names a step, a microbatch and a bit: this bit of one number of its gradient is changed.
    """

    def __init__(self, flip: tuple[int, int, int] | None = None) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 2))
        self.optimizer = Adam(self.model.parameters(), lr=0.01)
        self.flip = flip

    def gradient(self, step: int, microbatch: int) -> Tensor:
        draw = generator_at(0, step, microbatch)
        inputs, targets = torch.randn(4, 6, generator=draw), torch.randn(4, 2, generator=draw)
        mask = (torch.rand(inputs.shape, generator=draw) < 0.9).float()
        loss = mse_loss(self.model(inputs * mask), targets)
        grads = torch.autograd.grad(loss, list(self.model.parameters()))
        flat = torch.cat([grad.flatten() for grad in grads])
        if self.flip is not None and self.flip[:2] == (step, microbatch):
            bit = torch.tensor(1 << self.flip[2]).to(torch.int32)  # bit 31 is the sign
            flat.view(torch.int32)[flat.abs().argmax()] ^= bit
        return flat

    def step(self, step: int, mine: range) -> None:
        total = sum_of_parts([self.gradient(step, m) for m in mine]) / MICROBATCHES
        sizes = [parameter.numel() for parameter in self.model.parameters()]
        pairs = zip(self.model.parameters(), total.split(sizes), strict=True)
        for parameter, part in pairs:
            parameter.grad = part.view_as(parameter).clone()
        self.optimizer.step()

    def hashes(self) -> dict[str, str]:
        state = {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}
        return hashes_of(state)


def _trained() -> list[dict[str, str]]:
    per_rank = MICROBATCHES // dist.get_world_size()
    mine = range(per_rank * dist.get_rank(), per_rank * (dist.get_rank() + 1))
    job, seen = Job(), []
    for step in range(STEPS):
        job.step(step, mine)
        seen.append(job.hashes())
    return seen


def test_training_has_the_same_bits_on_any_number_of_ranks() -> None:
    runs = [dtlab.launch(_trained, world_size=n).values for n in (1, 2, 4, 8)]
    alone = runs[0][0]
    assert len({tuple(step.items()) for step in alone}) == STEPS  # each step changes something
    assert all(rank == alone for run in runs for rank in run)


# Corruption --------------------------------------------------------------------------------------


class Replays:
    """A run that is replayed from its start for each question, and counts the replays."""

    def __init__(self, flip: tuple[int, int, int] | None = None) -> None:
        self.flip, self.asked = flip, list[int]()

    def __call__(self, steps: int) -> Mapping[str, str]:
        self.asked.append(steps)
        job = Job(self.flip)
        for step in range(steps):
            job.step(step, range(MICROBATCHES))
        return job.hashes()


@pytest.mark.parametrize("step", [0, 1, 6, 12])
@pytest.mark.parametrize("bit", [20, 23, 31])  # of the fraction, the exponent and the sign
def test_the_step_of_a_flipped_bit_is_found_by_few_replays(step: int, bit: int) -> None:
    clean, faulty = Replays(), Replays((step, 3, bit))
    found = find_corruption(clean, faulty, 13)
    assert found is not None
    assert found.step == step + 1  # the state after this many steps is the first that differs
    # In its first step Adam divides the gradient by its own size, so perhaps only moments differ.
    assert any(name.startswith("optimizer/") for name in found.names)
    assert found.replays == len(clean.asked) == len(faulty.asked) <= math.ceil(math.log2(13)) + 2


def test_runs_that_end_alike_need_one_replay() -> None:
    clean = Replays()
    assert find_corruption(clean, Replays(), 9) is None
    assert clean.asked == [9]


@pytest.mark.parametrize("steps", [1, 2, 3, 100, 1000])
def test_every_step_is_found(steps: int) -> None:
    for bad in {1, steps, *random.Random(steps).choices(range(1, steps + 1), k=20)}:
        found = find_corruption(lambda s: {"x": "a"}, lambda s, b=bad: {"x": "ab"[s >= b]}, steps)
        assert found is not None
        assert (found.step, found.names) == (bad, ("x",))
        assert found.replays <= math.ceil(math.log2(steps)) + 2


def test_runs_that_begin_apart_are_refused() -> None:
    with pytest.raises(ValueError, match="differ before the first step, in x"):
        find_corruption(lambda s: {"x": "a"}, lambda s: {"x": "b"}, 5)
    with pytest.raises(ValueError, match="steps=0"):
        find_corruption(lambda s: {}, lambda s: {}, 0)


def test_a_tensor_that_only_one_run_has_is_a_difference() -> None:
    later = {"x": "a", "y": "b"}
    found = find_corruption(lambda s: {"x": "a"}, lambda s: later if s > 3 else {"x": "a"}, 8)
    assert found == Corruption(4, ("y",), 5)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (torch.zeros(3), -torch.zeros(3)),
        (torch.zeros(4), torch.zeros(2, 2)),
        (torch.zeros(3), torch.zeros(3, dtype=torch.int32)),
        (torch.ones(2, dtype=torch.bfloat16), torch.full((2,), 1.01, dtype=torch.bfloat16)),
        (3, 3.0),
        (True, 1),
    ],
)
def test_hashes_tell_bits_shapes_dtypes_and_numbers_apart(one: object, other: object) -> None:
    assert hashes_of({"a": one}) != hashes_of({"a": other})
    assert hashes_of({"a": one}) == hashes_of({"a": one})


def test_hashes_have_the_path_of_each_value() -> None:
    state = {"b": torch.ones(()), "c": {"d": [torch.ones(2), 4]}, "e": torch.ones(2, 3).T}
    assert list(hashes_of(state)) == ["b", "c/d/0", "c/d/1", "e"]
    assert hashes_of({"e": state["e"]}) == hashes_of({"e": torch.ones(3, 2)})
