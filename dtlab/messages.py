"""Point-to-point messages for the collectives: receives posted ahead, and arithmetic on chunks."""

from __future__ import annotations

import mmap
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup, ReduceOp

__all__ = [
    "AVG",
    "SUM",
    "Group",
    "Inbox",
    "Op",
    "average",
    "check_sizes",
    "combine",
    "flattened",
    "is_member",
    "scratch_rows",
]

SUM, AVG = ReduceOp.SUM, ReduceOp.AVG
Op = ReduceOp | ReduceOp.RedOpType
Group = ProcessGroup | None


class Inbox:
    """Messages due from `sources`, in that order, their receives posted before they are due.

    A message whose receive stands goes straight to its place; an early one has to ask and wait.
    With `scratch` messages land beside their places, in as many buffers as fit into 4 MiB and at
    least one. On a GPU nothing is posted ahead: NCCL works in the order of issue, so a receive
    would hold up the sends behind it; there each `take` is one batch.
    """

    def __init__(
        self,
        group: Group,
        sources: Sequence[int],
        places: Sequence[Tensor],
        scratch: bool = False,
        tag: int = 0,
    ) -> None:
        self.group, self.sources, self.places, self.tag = group, sources, places, tag
        self.ahead, self.taken = len(places), 0
        if scratch and places:
            largest = max(places, key=Tensor.numel)
            self.ahead = min(len(places), max(1, (4 << 20) // max(1, largest.nbytes)))
            spare = scratch_rows(largest, self.ahead)
            self.places = [spare[i % self.ahead][: p.numel()] for i, p in enumerate(places)]
        self.in_order = _in_order(places)
        self.posted: list[Any] = []
        self.sent: list[Any] = []
        self._post()

    def _post(self) -> None:
        """Post every receive that has a free buffer by now."""
        limit = 0 if self.in_order else min(self.taken + self.ahead, len(self.places))
        for i in range(len(self.posted), limit):
            place, source = self.places[i], self.sources[i]
            self.posted.append(dist.irecv(place, None, self.group, self.tag, source))

    def take(self, while_sending: Tensor | None = None, to: int = -1) -> Tensor:
        """Send to rank `to` of the group, if anything, and wait for the message that is due next.

        What comes back is the caller's until the next call.
        """
        place, source, group = self.places[self.taken], self.sources[self.taken], self.group
        if self.in_order:
            batch = [dist.P2POp(dist.irecv, place, None, group, group_peer=source)]
            if while_sending is not None:
                batch.append(dist.P2POp(dist.isend, while_sending, None, group, group_peer=to))
            for work in dist.batch_isend_irecv(batch):
                work.wait()
        else:
            if while_sending is not None:
                self.sent.append(dist.isend(while_sending, None, group, self.tag, to))
            self._post()
            self.posted[self.taken].wait()
        self.taken += 1
        return place

    def flush(self) -> None:
        """Wait until all that was sent has left, so that it may change."""
        while self.sent:  # each once: gloo hangs where one is waited for twice
            self.sent.pop().wait()


def _in_order(places: Sequence[Tensor]) -> bool:
    """Whether operations run strictly in the order of issue, as NCCL's do."""
    return any(place.is_cuda for place in places)


def scratch_rows(like: Tensor, count: int = 1) -> Tensor:
    """`count` rows the size of `like`, uninitialised, on huge pages where there are any.

    A fresh 32 MB costs 8192 page faults otherwise: more time than the sum computed in it.
    """
    size = count * like.nbytes
    if size < 8 << 20 or like.is_cuda or not hasattr(mmap, "MADV_HUGEPAGE"):
        return like.new_empty(count, like.numel())
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE)
    with suppress(OSError):  # a kernel built without them
        memory.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(memory, dtype=like.dtype).view(count, -1)


_REDUCTIONS: dict[Any, Callable[..., Tensor]] = {
    ReduceOp.SUM: torch.add,
    ReduceOp.AVG: torch.add,  # `average` divides in the end
    ReduceOp.PRODUCT: torch.mul,
    ReduceOp.MIN: torch.minimum,
    ReduceOp.MAX: torch.maximum,
    ReduceOp.BAND: torch.bitwise_and,
    ReduceOp.BOR: torch.bitwise_or,
    ReduceOp.BXOR: torch.bitwise_xor,
}


def combine(op: Op, tensor: Tensor) -> Callable[..., Tensor]:
    """The function of two tensors that `op` stands for, refused where the dtype has none."""
    known: Any = op if op in _REDUCTIONS else next((r for r in _REDUCTIONS if op == r), None)
    if known is None:
        names = ", ".join(each.name for each in _REDUCTIONS)
        raise TypeError(f"{op!r} is not a reduction known here. Pass a dist.ReduceOp: {names}.")
    whole = not (tensor.is_floating_point() or tensor.is_complex())
    bitwise = known in (ReduceOp.BAND, ReduceOp.BOR, ReduceOp.BXOR)
    linear = known in (SUM, AVG)
    if (whole and known == AVG) or (bitwise and not whole) or (tensor.is_complex() and not linear):
        raise TypeError(f"{known.name} does not exist for {tensor.dtype}. Convert the tensor.")
    return _REDUCTIONS[known]


def average(total: Tensor, op: Op, n: int) -> None:
    """Make a sum over n ranks the mean, where `op` is AVG."""
    if op == AVG:  # of complex numbers part by part, as torch's own: other bits otherwise
        (torch.view_as_real(total) if total.is_complex() else total).div_(n)


def is_member(group: Group, name: str) -> bool:
    """Whether this rank is in `group`; warns, as torch.distributed does, where it is not."""
    if dist.get_rank(group) >= 0:
        return True
    dist.distributed_c10d._warn_not_in_group(name)
    return False


@contextmanager
def flattened(tensor: Tensor) -> Iterator[Tensor]:
    """`tensor` in one dimension and out of autograd's sight; as a copy where not contiguous."""
    flat = tensor.detach().contiguous().view(-1)
    yield flat
    if not tensor.is_contiguous():
        tensor.detach().copy_(flat.view(tensor.shape))


def check_sizes(name: str, long: Tensor, short: Tensor, n: int) -> None:
    """One tensor must be n times as long as the other, and both of one dtype."""
    if long.dtype != short.dtype:
        raise TypeError(f"{name}: dtypes differ, {short.dtype} and {long.dtype}. Convert one.")
    if long.numel() != n * short.numel():
        raise ValueError(
            f"{name}: {long.numel()} elements are not {n} x {short.numel()} (shapes "
            f"{tuple(long.shape)} and {tuple(short.shape)}). Make output fit input."
        )
