"""An optimizer whose parameter groups are divided among the ranks.

    all parameters      [ group 0: lr 0.1   | group 1: lr 0.01 ]     `param_groups`, public
    their buckets       [ bucket 0 | bucket 1 | bucket 2 | ... ]     flat, cut into N shards each
    this rank's shards    [segment]  [segment]   [ s ][ s ]          parameters of `_inner`

The subclasses in `optimizers.py` reduce gradients to the segments.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from dtlab.parallel.data.replicas import broadcast
from dtlab.parallel.zero.buckets import ShardedBucket
from dtlab.parallel.zero.optimizer_state import full_state, load_state, sharded_state, shares
from dtlab.parallel.zero.shards import Transport, in_packs
from dtlab.training.held import Share
from dtlab.training.metrics import device_of

__all__ = ["ShardedOptimizer", "all_of", "defaults_of_elementwise"]

MIB = 2**20
SMALLEST, LARGEST = 1 * MIB, 25 * MIB  # bytes of a bucket, as in DataParallel
GATHER_BYTES = 4 * MIB  # less needs more messages, more needs longer copies in gloo
NOT_OPTIONS = {"params", "param_names"}  # keys of a parameter group that are not options


class ShardedOptimizer(torch.optim.Optimizer):
    """Keeps the state of `optimizer_class` for one of N shards; see `Zero1` for the arguments."""

    def __init__(
        self,
        params: Iterable[Any],
        optimizer_class: type[torch.optim.Optimizer],
        group: dist.ProcessGroup | None,
        reduces: bool,
        *,
        master_dtype: torch.dtype | None = None,
        bucket_cap_mb: float | None = None,
        all_gather: Callable[..., Any] | None = None,
        reduce_scatter: Callable[..., Any] | None = None,
        **optimizer_arguments: Any,
    ) -> None:
        self._transport = Transport(group, all_gather, reduce_scatter)
        self._reduces, self._master_dtype = reduces, master_dtype
        if bucket_cap_mb is not None and not bucket_cap_mb > 0:
            raise ValueError(
                f"bucket_cap_mb={bucket_cap_mb!r} is not above 0. Pass a size in MiB, or None."
            )
        self._cap_mb = bucket_cap_mb
        self._class, self._arguments = optimizer_class, optimizer_arguments
        self._inner: torch.optim.Optimizer | None = None
        self._buckets: list[ShardedBucket] = []
        self._frozen: list[Tensor] = []
        params = list(params)
        super().__init__(params, self._try_out(params))
        for param_group in self.param_groups:
            self._make_buckets(param_group)
        if not self._buckets:
            raise ValueError("no parameter needs a gradient, so there is nothing to step.")
        self._inner = self._make_inner(self.param_groups)
        self._set_state()

    # ------------------------------------------------------------------ parameters and groups

    def _try_out(self, params: Sequence[Any]) -> dict[str, Any]:
        """Return the optimizer's defaults; raise TypeError if it needs whole parameters."""
        groups = [each for each in params if isinstance(each, Mapping)]
        options = [{k: v for k, v in each.items() if k not in NOT_OPTIONS} for each in groups]
        device = device_of(self._transport.group)
        return defaults_of_elementwise(self._class, options or [{}], self._arguments, device)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group, as `torch.optim.Optimizer` does. Call this on all ranks, between steps."""
        if self._inner is None:  # called by PyTorch's constructor
            super().add_param_group(param_group)
            return
        self._try_out([param_group])
        super().add_param_group(param_group)
        self._make_buckets(self.param_groups[-1])
        self._inner.add_param_group(self._segment_group(self.param_groups[-1]))
        self._set_state()

    def _make_buckets(self, param_group: dict[str, Any]) -> list[ShardedBucket]:
        """Make buckets of a group's parameters, roughly in the order of their gradients."""
        numbers = {parameter: n for n, parameter in enumerate(all_of(self.param_groups))}
        _refuse_shared_memory(list(numbers))
        unique = dict.fromkeys(param_group["params"])
        trained = [parameter for parameter in unique if parameter.requires_grad]
        frozen = [parameter for parameter in unique if not parameter.requires_grad]
        self._frozen += frozen
        if self._reduces:
            broadcast(frozen, self._group)
        buckets = [
            ShardedBucket(
                pack, [numbers[p] for p in pack], self._transport, self._master_dtype,
                same_start=self._reduces,
            )
            for pack in in_packs(trained[::-1], *self._caps())
        ]  # fmt: skip
        self._buckets += buckets
        return buckets

    def _caps(self) -> tuple[int, int]:
        """Return the size in bytes of the first bucket, and of the other buckets."""
        if self._cap_mb is not None:
            return int(self._cap_mb * MIB), int(self._cap_mb * MIB)
        total = sum(parameter.nbytes for parameter in all_of(self.param_groups))
        return SMALLEST, max(SMALLEST, min(total // 20, LARGEST))

    @property
    def _group(self) -> dist.ProcessGroup | None:
        return self._transport.group

    def _segment_group(self, param_group: dict[str, Any]) -> dict[str, Any]:
        """Return a parameter group for the inner optimizer, with this rank's segments."""
        parameters = set(param_group["params"])
        buckets = [bucket for bucket in self._buckets if bucket.parameters[0] in parameters]
        segments = [segment for bucket in buckets for segment in bucket.segments]
        options = {key: value for key, value in param_group.items() if key not in NOT_OPTIONS}
        return {**options, "params": segments}

    def _make_inner(self, groups: list[dict[str, Any]]) -> torch.optim.Optimizer:
        return self._class([self._segment_group(group) for group in groups], **self._arguments)

    # ------------------------------------------------------------------ the step

    def _check_parameters(self) -> None:
        for bucket in self._buckets:
            bucket.check_not_moved()
        for parameter in self._frozen:
            if parameter.grad is not None:
                raise RuntimeError(
                    f"a parameter of shape {tuple(parameter.shape)} was frozen when the optimizer "
                    "was made, but has a gradient. Unfreeze it before you make the optimizer."
                )

    def _step_segments(self) -> None:
        """Step the segments with the inner optimizer and the current options of the groups."""
        assert self._inner is not None
        for bucket in self._buckets:
            bucket.refresh_master()
        self._copy_options(self.param_groups, self._inner.param_groups)
        self._inner.step()
        self._copy_options(self._inner.param_groups, self.param_groups)

    def _gather(self) -> None:
        """All-gather the new shards, several small ones at a time."""
        pending: list[Tensor] = []
        for bucket in self._buckets:
            bucket.copy_segments_back()
            pending.append(bucket.flat)
            if sum(flat.nbytes for flat in pending) >= GATHER_BYTES or bucket is self._buckets[-1]:
                self._transport.gather_together(pending)()
                pending = []

    @staticmethod
    def _copy_options(source: list[dict[str, Any]], target: list[dict[str, Any]]) -> None:
        for new, old in zip(source, target, strict=True):
            old.update({k: v for k, v in new.items() if k not in NOT_OPTIONS})

    # ------------------------------------------------------------------ saving and loading

    def _set_state(self) -> None:
        """Set `state` to what this rank keeps: the inner optimizer's state, and master weights."""
        assert self._inner is not None
        state: Any = {"optimizer": self._inner.state, "masters": self._masters()}
        self.state = state

    def _masters(self) -> list[Tensor]:
        return [bucket.master for bucket in self._buckets if bucket.master is not bucket.shard]

    def state_dict(self) -> dict[str, Any]:
        """Return this rank's part of the state, without communication: see `state.py`.

        Tensors are views of the state: save it before the next step.
        """
        assert self._inner is not None
        state: dict[str, Any] = sharded_state(self._buckets, self._inner, self.param_groups)
        return state

    @torch.no_grad()
    def load_state_dict(self, state_dict: Mapping[str, Any] | Iterable[Mapping[str, Any]]) -> None:
        """Load this rank's part of a state, which any number of ranks may have saved.

        `state_dict` is a list or generator of what `state_dict` returned on all ranks, in any
        order. What this rank returned is enough if the ranks and the buckets are the same. It may
        also be what `full_state_dict` returned. The model loads the parameters.
        Raises: ValueError if the state lacks elements, or belongs to other parameters or groups.
        """
        assert self._inner is not None
        load_state(self._buckets, self._inner, self.param_groups, state_dict)
        self._copy_options(self._inner.param_groups, self.param_groups)
        self._set_state()

    def parameter_shares(self) -> dict[Tensor, Share]:
        """Return which elements of each parameter this rank steps, for `Checkpoints`."""
        return shares(self._buckets)

    def full_state_dict(self) -> dict[str, Any]:
        """Return the whole state on every rank, in the format of the optimizer in one process.

        Call this on all ranks. `load_full_state_dict` can load the state on any number of ranks,
        and `optimizer_class` itself can load it for the same parameters. Master weights have a
        separate key.
        """
        assert self._inner is not None
        state: dict[str, Any] = full_state(self._buckets, self._inner, self.param_groups)
        return state

    def load_full_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Load this rank's part of a whole optimizer state. The model loads the parameters.

        Raises: ValueError if the saved parameter groups have other numbers of parameters.
        """
        self.load_state_dict(state_dict)


def all_of(groups: Iterable[Mapping[str, Any]]) -> list[Any]:
    """Return the parameters of all groups."""
    return [parameter for group in groups for parameter in group["params"]]


def _refuse_shared_memory(parameters: Sequence[Tensor]) -> None:
    first_at: dict[tuple[torch.device, int], Tensor] = {}
    for p in parameters:
        if p.numel() and first_at.setdefault((p.device, p.data_ptr()), p) is not p:
            raise ValueError(
                f"two parameters, one of shape {tuple(p.shape)}, share memory, but flat tensors "
                "would separate them. Tie them by using one nn.Parameter in both places."
            )


# Which optimizers may step a part of a parameter as if it were a whole parameter -----------------
#
#     whole      optimizer([a a a a a a a a a a a a], [b b b])
#     one rank   optimizer([a a a a a])
#     another    optimizer([a a a a a a a], [b b b])           must compute the same numbers
#
# SGD and Adam pass: the new value of an element depends only on that element and its gradients. An
# optimizer that takes a norm, factors a matrix, or needs a closure does not.

_STEPS, _CUT = 3, 5


def defaults_of_elementwise(
    optimizer_class: Callable[..., torch.optim.Optimizer],
    options: Sequence[Mapping[str, Any]],
    arguments: Mapping[str, Any],
    device: torch.device,
) -> dict[str, Any]:
    """Return the optimizer's default options, after a test that it works element by element.

    The test also covers custom classes. With each of `options`, the options of a parameter group,
    three steps on two small parameters must give the same result as steps on their parts.

    Raises: TypeError if the results differ, or `optimizer_class` is not an optimizer class; and
    the errors of the class itself about its arguments.
    """
    if not (
        isinstance(optimizer_class, type) and issubclass(optimizer_class, torch.optim.Optimizer)
    ):
        raise TypeError(
            f"optimizer_class={optimizer_class!r} is not an optimizer class. Pass the class, and "
            "its arguments after it: (model.parameters(), torch.optim.Adam, lr=1e-3)."
        )
    whole = [torch.linspace(-2, 2, 12, device=device).double().view(4, 3),
             torch.linspace(1, 3, 3, device=device).double().view(3, 1)]  # fmt: skip
    defaults: dict[str, Any] = {}
    for group in options:
        settings = _moving({**arguments}), _moving({**group})
        optimizer = _made(optimizer_class, whole, *settings)
        defaults = optimizer_class([torch.zeros(2, 2, device=device)], **arguments).defaults
        try:
            expected = _stepped(optimizer)
            parts = [[whole[0].flatten()[:_CUT]], [whole[0].flatten()[_CUT:], whole[1]]]
            actual = [
                _stepped(_made(optimizer_class, part, *settings), n)
                for n, part in enumerate(parts)
            ]
        except (TypeError, ValueError, RuntimeError) as error:
            raise TypeError(_refusal(optimizer_class, f"raises: {error}")) from error
        change = expected - torch.cat([tensor.flatten() for tensor in whole])
        differ = (torch.cat(actual) - expected).abs().max()
        if not differ <= 1e-6 * change.abs().max():
            raise TypeError(_refusal(optimizer_class, "computes a different result"))
    return defaults


def _refusal(optimizer_class: type, why: str) -> str:
    name = optimizer_class.__name__
    return (
        f"{name} does not work element by element: given the parts of a parameter, as ranks "
        f"have them, it {why.rstrip('.')}. Use SGD, Adam or AdamW, or keep whole parameters on "
        f"every rank, with DataParallel and {name} itself."
    )


def _moving(options: dict[str, Any]) -> dict[str, Any]:
    """Replace a learning rate of 0, as in a warm-up's first step: at 0 no parameter changes."""
    if "lr" in options and not isinstance(options["lr"], Tensor) and options["lr"] == 0:
        options["lr"] = 0.1
    return options


def _made(
    optimizer_class: Callable[..., torch.optim.Optimizer],
    tensors: Sequence[Tensor],
    arguments: Mapping[str, Any],
    group: Mapping[str, Any],
) -> torch.optim.Optimizer:
    copies = [torch.nn.Parameter(tensor.clone()) for tensor in tensors]
    return optimizer_class([{**group, "params": copies}], **arguments)


def _stepped(optimizer: torch.optim.Optimizer, part: int | None = None) -> Tensor:
    """Return all elements after some steps on random gradients.

    If `part` is 0 or 1, the optimizer has only that part of the elements, and gets its gradients.
    """
    parameters = optimizer.param_groups[0]["params"]
    begin, length = {None: (0, 15), 0: (0, _CUT), 1: (_CUT, 15 - _CUT)}[part]
    for step in range(_STEPS):
        drawn = torch.randn(15, generator=torch.Generator().manual_seed(step)).double()
        pieces = torch.split(drawn[begin : begin + length], [p.numel() for p in parameters])
        for parameter, gradient in zip(parameters, pieces, strict=True):
            parameter.grad = gradient.view_as(parameter).to(parameter.device)
        optimizer.step()
    return torch.cat([parameter.detach().flatten() for parameter in parameters])
