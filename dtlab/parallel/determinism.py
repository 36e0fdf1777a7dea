"""The same bits on any number of ranks, and how to find the step at which a bit changed.

Two things make the result of a training run depend on how its work is divided: random numbers that
are drawn in the order of calls, and sums whose order follows the ranks. `generator_at` and
`sum_of_parts` take both away. Then two runs of the same program agree in every bit, whatever the
number of ranks, and a difference between them is a fault. `hashes_of` makes runs comparable
without keeping their states, and `find_corruption` finds the step of the fault by replaying a few
of the steps.

    microbatch      0   1   2   3   4   5   6   7
                     \\ /     \\ /     \\ /     \\ /
                      +       +       +       +         one rank adds all of these, two ranks
                       \\     /         \\     /          add half of them each, four ranks a
                          +               +             quarter: the tree is the same
                             \\         /
                                  +                     between ranks from here up, on two ranks
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

from dtlab.collectives import recursive_doubling_all_reduce

__all__ = ["Corruption", "find_corruption", "generator_at", "hashes_of", "sum_of_parts"]


# Random numbers ----------------------------------------------------------------------------------


def generator_at(*place: int, device: torch.device | str = "cpu") -> torch.Generator:
    """Return a generator whose numbers depend on `place` only, not on what was drawn before.

    `place` says what the numbers are for: `generator_at(seed, step, sample)` gives a sample the
    same dropout mask on whatever rank it is. This is the idea of counter-based generators (Salmon
    et al., "Parallel Random Numbers: As Easy as 1, 2, 3", SC 2011). Raises: ValueError without a
    place, and for a number below 0.
    """
    if not place or min(place) < 0:
        raise ValueError(f"generator_at: name the place by integers of 0 or more, not {place}.")
    digest = hashlib.blake2b(" ".join(map(str, place)).encode(), digest_size=8).digest()
    return torch.Generator(device).manual_seed(int.from_bytes(digest) >> 1)


# A sum in a fixed order --------------------------------------------------------------------------


def sum_of_parts(parts: Sequence[Tensor], group: ProcessGroup | None = None) -> Tensor:
    """Return the sum of the parts of all ranks, with the same bits on any number of ranks.

    The parts of all ranks, in the order of the ranks, are the leaves of one binary tree, such as
    the gradients of consecutive microbatches. A rank adds its own parts, and then exchanges its
    sum with a partner at distance 1, 2, 4, ...: log2(N) messages of one part's size, where a ring
    sends less than two in all. The number of ranks and each rank's number of parts must be powers
    of two, or the trees would differ. Every rank must have as many parts as the others, of one
    shape and dtype. The parts stay as they are. Without torch.distributed there is one rank.

    Raises: ValueError for other numbers of ranks or parts.
    """
    n = dist.get_world_size(group) if dist.is_initialized() else 1
    for what, number in (("ranks", n), ("parts on a rank", len(parts))):
        if number < 1 or number & (number - 1):
            raise ValueError(
                f"sum_of_parts: there are {number} {what}. For a tree that is the same on any "
                "number of ranks, this must be a power of two."
            )
    sums = list(parts)
    while len(sums) > 1:
        sums = [left + right for left, right in zip(sums[::2], sums[1::2], strict=True)]
    total = sums[0].clone(memory_format=torch.contiguous_format)
    if n > 1:  # in a pair one rank adds a + b and the other b + a, which have the same bits
        recursive_doubling_all_reduce(total, group=group)
    return total


# A changed bit -----------------------------------------------------------------------------------


def hashes_of(state: Mapping[Any, Any], prefix: str = "") -> dict[str, str]:
    """Return a hash of every tensor and number in a state dict, by its path in it.

    Nested dicts and lists are followed: "optimizer/state/0/exp_avg". Two states with the same
    hashes have the same bits, shapes and dtypes. Use it on a module's or an optimizer's
    `state_dict()`, or on the gradients by name.
    """
    found: dict[str, str] = {}
    for name, value in state.items():
        path = f"{prefix}{name}"
        if isinstance(value, Mapping):
            found |= hashes_of(value, f"{path}/")
        elif isinstance(value, (list, tuple)):
            found |= hashes_of(dict(enumerate(value)), f"{path}/")
        else:
            found[path] = hashlib.sha256(_bytes_of(value)).hexdigest()[:16]
    return found


def _bytes_of(value: Any) -> bytes:
    if not isinstance(value, Tensor):
        return repr(value).encode()
    plain = value.detach().cpu().contiguous()
    about = f"{plain.dtype} {tuple(plain.shape)}".encode()
    return about + plain.flatten().view(torch.uint8).numpy().tobytes()


@dataclass(frozen=True)
class Corruption:
    """Two runs differ after `step` steps, in the tensors `names`; `replays` of each were run."""

    step: int
    names: tuple[str, ...]
    replays: int


Replay = Callable[[int], Mapping[str, str]]


def find_corruption(run_a: Replay, run_b: Replay, steps: int) -> Corruption | None:
    """Return the first step after which two runs differ; None if they end alike.

    A run is a function that returns the hashes of its state after so many steps, from 0 to
    `steps`: by a replay from the start or from a checkpoint, or by looking them up. Runs that
    differ are taken to differ from then on, since each step continues from the state of the last.
    So a binary search needs each run at most ceil(log2(steps)) + 2 times.

    Raises: ValueError if `steps` is below 1, or if the runs differ before the first step: then
    they are not the same program with the same data.
    """
    if steps < 1:
        raise ValueError(f"find_corruption: steps={steps}, but there must be at least one.")
    replays = 0

    def different(step: int) -> tuple[str, ...]:
        nonlocal replays
        replays += 1
        a, b = run_a(step), run_b(step)
        return tuple(name for name in {**a, **b} if a.get(name) != b.get(name))

    names = different(steps)
    if not names:
        return None
    if before := different(0):
        raise ValueError(
            f"find_corruption: the runs differ before the first step, in {before[0]}, so they are "
            "not the same program with the same data and the same seed."
        )
    alike, differ = 0, steps
    while differ - alike > 1:
        middle = (alike + differ) // 2
        found = different(middle)
        if found:
            differ, names = middle, found
        else:
            alike = middle
    return Corruption(differ, names, replays)
