"""Point-to-point messages for the collectives: receives posted early, and sums of chunks."""

from __future__ import annotations

import mmap
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup, ReduceOp

from dtlab import torch_internals

__all__ = [
    "AVG",
    "SUM",
    "Group",
    "Inbox",
    "Op",
    "check_sizes",
    "combine",
    "divide_if_average",
    "flattened",
    "is_member",
    "scratch_rows",
]

SUM, AVG = ReduceOp.SUM, ReduceOp.AVG
Op = ReduceOp | ReduceOp.RedOpType
Group = ProcessGroup | None


class Inbox:
    """Receives messages from `sources`, in that order, posting each receive early; also sends.

    If the receive is posted before the message arrives, the message goes straight into its tensor
    in `places`. Otherwise the sender must first request a buffer and wait. With `scratch`,
    messages go into separate buffers: at least one, and up to 4 MiB of them. On a GPU
    nothing is posted early: NCCL runs operations in the order of issue, so a receive would block
    the sends that are issued after it. On a GPU each `take` is one batch of operations.
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
        """Post every receive that has a free buffer."""
        limit = 0 if self.in_order else min(self.taken + self.ahead, len(self.places))
        for i in range(len(self.posted), limit):
            place, source = self.places[i], self.sources[i]
            self.posted.append(dist.irecv(place, None, self.group, self.tag, source))

    def take(self, while_sending: Tensor | None = None, to: int = -1) -> Tensor:
        """Send `while_sending` to rank `to` of the group, and return the next received message.

        With `while_sending=None` nothing is sent. The result is valid until the next call.
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
        """Wait for all sends, after which their tensors may be changed."""
        while self.sent:  # wait for each send only once: gloo hangs at a second wait
            self.sent.pop().wait()


def _in_order(places: Sequence[Tensor]) -> bool:
    """Return whether the backend runs operations strictly in the order of issue, as NCCL does."""
    return any(place.is_cuda for place in places)


def scratch_rows(like: Tensor, count: int = 1) -> Tensor:
    """Return uninitialised memory for `count` rows the size of `like`, if possible in huge pages.

    Without huge pages, 32 MB of new memory cost 8192 page faults, which take longer than a sum
    of that size.
    """
    size = count * like.nbytes
    if size < 8 << 20 or like.is_cuda or not hasattr(mmap, "MADV_HUGEPAGE"):
        return like.new_empty(count, like.numel())
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE)
    with suppress(OSError):  # a kernel built without huge pages
        memory.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(memory, dtype=like.dtype).view(count, -1)


_REDUCTIONS: dict[Any, Callable[..., Tensor]] = {
    ReduceOp.SUM: torch.add,
    ReduceOp.AVG: torch.add,  # `divide_if_average` divides at the end
    ReduceOp.PRODUCT: torch.mul,
    ReduceOp.MIN: torch.minimum,
    ReduceOp.MAX: torch.maximum,
    ReduceOp.BAND: torch.bitwise_and,
    ReduceOp.BOR: torch.bitwise_or,
    ReduceOp.BXOR: torch.bitwise_xor,
}


def combine(op: Op, tensor: Tensor) -> Callable[..., Tensor]:
    """Return the function of two tensors for `op`.

    Raises: TypeError for an unknown `op`, or if the tensor's dtype does not support it.
    """
    known: Any = op if op in _REDUCTIONS else next((r for r in _REDUCTIONS if op == r), None)
    if known is None:
        names = ", ".join(reduction.name for reduction in _REDUCTIONS)
        raise TypeError(
            f"{op!r} is not a reduction that dtlab supports. Pass a dist.ReduceOp: {names}."
        )
    whole = not (tensor.is_floating_point() or tensor.is_complex())
    bitwise = known in (ReduceOp.BAND, ReduceOp.BOR, ReduceOp.BXOR)
    linear = known in (SUM, AVG)
    if (whole and known == AVG) or (bitwise and not whole) or (tensor.is_complex() and not linear):
        raise TypeError(f"{known.name} does not exist for {tensor.dtype}. Convert the tensor.")
    return _REDUCTIONS[known]


def divide_if_average(total: Tensor, op: Op, n: int) -> None:
    """Divide a sum over n ranks by n in place if `op` is AVG."""
    if op == AVG:  # complex numbers part by part, as torch does, so that the bits agree
        (torch.view_as_real(total) if total.is_complex() else total).div_(n)


def is_member(group: Group, name: str) -> bool:
    """Return whether this rank is in `group`; if not, warn as torch.distributed does."""
    if dist.get_rank(group) >= 0:
        return True
    torch_internals.warn_not_in_group(name)
    return False


@contextmanager
def flattened(tensor: Tensor) -> Iterator[Tensor]:
    """Yield `tensor` detached and one-dimensional: a view, or a copy that is written back."""
    flat = tensor.detach().contiguous().view(-1)
    yield flat
    if not tensor.is_contiguous():
        tensor.detach().copy_(flat.view(tensor.shape))


def check_sizes(name: str, long: Tensor, short: Tensor, n: int) -> None:
    """Raise TypeError if dtypes differ, ValueError unless `long` is n times as long as `short`."""
    if long.dtype != short.dtype:
        raise TypeError(
            f"{name}: the dtypes {short.dtype} and {long.dtype} differ. Convert one tensor."
        )
    if long.numel() != n * short.numel():
        raise ValueError(
            f"{name}: {long.numel()} elements are not {n} x {short.numel()} (shapes "
            f"{tuple(long.shape)} and {tuple(short.shape)}). Make output fit input."
        )
