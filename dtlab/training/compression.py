"""Compressed gradients: average gradients over ranks while sending fewer bytes.

    bf16        each element in 2 bytes                                  half the bytes of fp32
    top-k       the k largest elements of a gradient, with their places  8 bytes for each of them
    PowerSGD    a matrix M [n, m] as P Q^T with r columns                r (n + m) elements

`dtlab/simple.py` has top-k and PowerSGD for one gradient. `Bf16`, `TopK` and `PowerSGD` compress
all gradients of a bucket in few messages. They serve PyTorch's DDP and our `DataParallel`:

    DDP(module).register_comm_hook(None, PowerSGD(rank=2).hook)
    DataParallel(module, compression=PowerSGD(rank=2))

Top-k and PowerSGD lose a part of each gradient. **Error feedback** keeps what was lost in this
step, e = (g + e) - sent, and adds it to the gradient of the next step, so that it is delayed and
not lost. Without it, an element that is never among the k largest is never trained.

    step       gradient   with its error    sent (k = 1)    error
     1         [3, 2]         [3, 2]          [3, 0]        [0, 2]
     2         [3, 2]         [3, 4]          [0, 4]        [3, 0]

Compression pays only if the network is the limit: it costs computation, and all but bf16 change
the training. Top-k all-gathers, so the bytes that a rank receives grow with the number of ranks;
sums of P and Q are all-reduced like any gradient.

Stich, Cordonnier, Jaggi 2018, "Sparsified SGD with memory"; Vogels, Karimireddy, Jaggi 2019,
"PowerSGD", algorithms 1 and 2.
"""

# Without `from __future__ import annotations`: DDP compares the annotations of a hook with types.

from collections.abc import Callable, Hashable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from math import prod
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.futures import Future

__all__ = [
    "Bf16",
    "Compressor",
    "PowerSGD",
    "TopK",
    "power_sgd_elements",
]

Group = dist.ProcessGroup | None


class Compressor:
    """Sums tensors over ranks in a compressed form. It keeps errors and starting points.

    One object serves one model.
    """

    _thread: ThreadPoolExecutor | None = None

    def sum(
        self, tensors: Sequence[Tensor], keys: Sequence[Hashable] = (), group: Group = None
    ) -> None:
        """Replace each tensor by (an approximation of) its sum over the ranks of `group`.

        `keys` identify the tensors from step to step, even where DDP packs them into other
        buckets after its first step. Without keys, a tensor is known by its place.
        Vectors, such as biases, are small: `TopK` and `PowerSGD` send them whole. All ranks must
        call this with tensors of the same shapes in the same order.
        """
        raise NotImplementedError

    def start(self, do: Callable[[], Any]) -> Any:
        """Call `do` in a thread that makes one call after the other; return the future result."""
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, thread_name_prefix="compression")
        return self._thread.submit(do)

    def hook(self, group: Group, bucket: dist.GradBucket) -> Future[Tensor]:  # type: ignore[name-defined]
        """Average a bucket of DDP: `ddp.register_comm_hook(group, compressor.hook)`."""
        result: Future[Tensor] = Future()

        def average() -> Tensor:
            flat: Tensor = bucket.buffer()
            flat /= dist.get_world_size(group)
            self.sum(bucket.gradients(), [id(one) for one in bucket.parameters()], group)
            return flat

        def report(done: Any) -> None:
            error = done.exception()
            result.set_result(done.result()) if error is None else result.set_exception(error)

        self.start(average).add_done_callback(report)
        return result


class Bf16(Compressor):
    """Sums in bf16, as PyTorch's `bf16_compress_hook` does: half the bytes of fp32, no state."""

    def sum(
        self, tensors: Sequence[Tensor], keys: Sequence[Hashable] = (), group: Group = None
    ) -> None:
        """See `Compressor.sum`. Rounding is not fed back: bf16 has 8 significant bits."""
        sent = torch.cat([tensor.flatten() for tensor in tensors]).bfloat16()
        dist.all_reduce(sent, group=group)
        _copy_back(sent, tensors)


class _WithErrors(Compressor):
    """Compresses matrices, sends the other tensors whole, and keeps what compression left out."""

    def __init__(self, error_feedback: bool) -> None:
        super().__init__()
        self.error_feedback = error_feedback
        self.errors: dict[Hashable, Tensor] = {}  # by key

    def sum(
        self, tensors: Sequence[Tensor], keys: Sequence[Hashable] = (), group: Group = None
    ) -> None:
        """See `Compressor.sum`."""
        whole = [tensor for tensor in tensors if not self.compresses(tensor.shape)]
        pairs = zip(keys or range(len(tensors)), tensors, strict=True)
        chosen = {key: tensor for key, tensor in pairs if self.compresses(tensor.shape)}
        if self.error_feedback:
            for key, tensor in chosen.items():
                if key in self.errors:
                    tensor += self.errors[key]
            self.errors |= {key: tensor.clone() for key, tensor in chosen.items()}
        if whole:
            sent = torch.cat([tensor.flatten() for tensor in whole])
            dist.all_reduce(sent, group=group)
            _copy_back(sent, whole)
        if chosen:
            contributions = self._sum_compressed(chosen, group)
            if self.error_feedback:
                for key, contribution in contributions.items():
                    self.errors[key] -= contribution.view_as(self.errors[key])

    def compresses(self, shape: Sequence[int]) -> bool:
        """Whether a tensor of this shape is compressed."""
        return len(shape) > 1

    def _sum_compressed(
        self, tensors: dict[Hashable, Tensor], group: Group
    ) -> dict[Hashable, Tensor]:
        """Sum in place; return, for each tensor, what counts as sent of this rank's."""
        raise NotImplementedError


class TopK(_WithErrors):
    """Sends the largest `fraction` of the elements of each matrix, in absolute value.

    Args:
        fraction: above 0, at most 1. At least one element of each matrix is sent.
        error_feedback: add what was not sent to the gradient of the next step.
    """

    def __init__(self, fraction: float, *, error_feedback: bool = True) -> None:
        if not 0 < fraction <= 1:
            raise ValueError(f"fraction is above 0 and at most 1, not {fraction!r}.")
        super().__init__(error_feedback)
        self.fraction = fraction

    def _sum_compressed(
        self, tensors: dict[Hashable, Tensor], group: Group
    ) -> dict[Hashable, Tensor]:
        sizes = [tensor.numel() for tensor in tensors.values()]
        flat = torch.cat([tensor.flatten() for tensor in tensors.values()])
        places, first = [], 0
        for part in torch.split(flat, sizes):
            k = max(1, int(self.fraction * len(part)))
            places.append(part.abs().topk(k).indices + first)
            first += len(part)
        sent_places = torch.cat(places)
        sent_values = flat[sent_places]
        # One message of 8 bytes per element: all places, then all values.
        message = torch.cat([sent_places.int(), sent_values.float().view(torch.int32)])
        messages = message.new_empty(dist.get_world_size(group), len(message))
        dist.all_gather_single(messages.view(-1), message, group=group)
        total = torch.zeros_like(flat)
        for all_places, bits in (each.chunk(2) for each in messages):
            total.index_add_(0, all_places.long(), bits.view(torch.float32).to(flat))
        _copy_back(total, list(tensors.values()))
        sent = torch.zeros_like(flat).index_copy_(0, sent_places, sent_values)
        return dict(zip(tensors, torch.split(sent, sizes), strict=True))


class PowerSGD(_WithErrors):
    """Sends each matrix M [n, m] as P [n, rank] and Q [m, rank], by one step of power iteration.

    Tensors of more dims count as matrices of their first dim. As in PyTorch's `powerSGD_hook`, a
    tensor is sent whole if that costs less than twice the elements of P and Q.

    Args:
        rank: columns of P and Q.
        error_feedback: add to the next gradient what the approximation left out.
        warm_start: begin with Q of the last step; without it, with a random Q.
        seed: of the random Q; the same on all ranks.
    """

    def __init__(
        self,
        rank: int = 1,
        *,
        error_feedback: bool = True,
        warm_start: bool = True,
        seed: int = 0,
    ) -> None:
        if rank < 1:
            raise ValueError(f"rank is at least 1, not {rank}.")
        super().__init__(error_feedback)
        self.rank, self.warm_start = rank, warm_start
        self._draw = torch.Generator().manual_seed(seed)
        self._starts: dict[Hashable, Tensor] = {}  # Q [m, rank], by key

    def compresses(self, shape: Sequence[int]) -> bool:
        """Whether P and Q have less than half the elements of a tensor of this shape."""
        return len(shape) > 1 and 2 * _factors(shape, self.rank) < prod(shape)

    def _sum_compressed(
        self, tensors: dict[Hashable, Tensor], group: Group
    ) -> dict[Hashable, Tensor]:
        matrices = {key: tensor.flatten(1) for key, tensor in tensors.items()}
        ps = [matrix @ self._start(key, matrix) for key, matrix in matrices.items()]
        ps = [_orthonormal(p) for p in _all_reduced(ps, group)]
        qs = [matrix.T @ p for matrix, p in zip(matrices.values(), ps, strict=True)]
        totals = _all_reduced(qs, group)
        ranks, contributions = dist.get_world_size(group), {}
        for key, tensor, p, q in zip(tensors, tensors.values(), ps, totals, strict=True):
            self._starts[key] = q
            tensor.copy_((p @ q.T).view_as(tensor))
            contributions[key] = tensor / ranks
        return contributions

    def _start(self, key: Hashable, matrix: Tensor) -> Tensor:
        """Return an orthonormal Q: that of the last step, or a random one."""
        if self.warm_start and key in self._starts:
            start = self._starts[key]
        else:
            shape = matrix.shape[1], min(self.rank, *matrix.shape)
            start = torch.randn(shape, generator=self._draw, dtype=matrix.dtype).to(matrix.device)
        return _orthonormal(start)


def _orthonormal(columns: Tensor) -> Tensor:
    """Return a basis of the space that the columns span, computed in fp32 for 16-bit inputs."""
    wide = columns if columns.dtype == torch.float64 else columns.float()
    basis: Tensor = torch.linalg.qr(wide).Q
    return basis.to(columns)


def power_sgd_elements(shapes: Iterable[Sequence[int]], rank: int) -> int:
    """Return the elements that `PowerSGD(rank)` sums in a step, for parameters of these shapes."""
    compressor = PowerSGD(rank)
    return sum(
        _factors(shape, rank) if compressor.compresses(shape) else prod(shape) for shape in shapes
    )


def _factors(shape: Sequence[int], rank: int) -> int:
    """Return the elements of P and Q together."""
    n, m = shape[0], prod(shape[1:])
    return min(n, m, rank) * (n + m)


def _all_reduced(tensors: Sequence[Tensor], group: Group) -> list[Tensor]:
    """Return the sums over ranks, from one message."""
    flat = torch.cat([tensor.flatten() for tensor in tensors])
    dist.all_reduce(flat, group=group)
    parts = torch.split(flat, [tensor.numel() for tensor in tensors])
    return [part.view_as(tensor) for part, tensor in zip(parts, tensors, strict=True)]


def _copy_back(flat: Tensor, tensors: Sequence[Tensor]) -> None:
    parts = torch.split(flat, [tensor.numel() for tensor in tensors])
    for part, tensor in zip(parts, tensors, strict=True):
        tensor.copy_(part.view_as(tensor))
