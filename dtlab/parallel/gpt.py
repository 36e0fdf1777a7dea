"""A GPT trained with data, tensor and pipeline parallelism and ZeRO at once, over a device mesh.

    make_mesh(data=2, pipeline=2, tensor=2)      eight ranks; "tensor" is the innermost axis

    data 0    pipeline 0   ranks 0 1     embedding, blocks 0 1     2 ranks divide each block
              pipeline 1   ranks 2 3     blocks 2 3, norm, head
    data 1    pipeline 0   ranks 4 5     the same layers, for different sequences of the batch
              pipeline 1   ranks 6 7

Each kind of parallelism has its own package, and communicates in its own process group:

    tensor      ParallelBlock, VocabParallelEmbedding    all-reduces inside every block
    pipeline    run_schedule over PipelineStage          hidden states and their gradients
    data        DataParallel, Zero1, Zero2 or Zero3      gradients, and parameters if sharded

This file adds what belongs to no single package: which rank holds which parameters, the token
embedding that the first and the last pipeline stage share, the gradient norm over all shards, and
the dense state dict.

    model = ParallelGPT(GPTConfig(num_layers=4), mesh, zero=1, microbatches=4)
    optimizer = model.make_optimizer(torch.optim.AdamW, lr=3e-4)
    loss = model.forward_backward(tokens, targets)      # this data rank's part of the batch
    model.clip_grad_norm_(1.0)
    optimizer.step()
    optimizer.zero_grad()

Narayanan et al. 2021, "Efficient Large-Scale Language Model Training on GPU Clusters Using
Megatron-LM".
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any, Final, Literal

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh

from dtlab.parallel.data import DataParallel
from dtlab.parallel.pipeline import PipelineStage, run_schedule
from dtlab.parallel.tensor.layers import ParallelBlock
from dtlab.parallel.tensor.linear import ShardedLayer, Split
from dtlab.parallel.tensor.regions import copy_to_region
from dtlab.parallel.tensor.sequence import (
    SequenceLayerNorm,
    gather_from_sequence,
    share_parameters,
)
from dtlab.parallel.tensor.state import gathered, take_shards
from dtlab.parallel.tensor.vocabulary import VocabParallelEmbedding, vocab_parallel_cross_entropy
from dtlab.parallel.zero import Zero1, Zero2, Zero3
from dtlab.schedules import Schedule, gpipe, interleaved, one_f_one_b, zb_h1
from dtlab.training.models import GPT, GPTConfig

__all__ = ["ParallelGPT", "ParallelOptimizer"]

AXES: Final = ("data", "pipeline", "tensor")
ScheduleName = Literal["1f1b", "gpipe", "interleaved", "zb_h1"]


class ParallelGPT:
    """A `training.models.GPT` spread over the ranks of a mesh.

    Every rank starts from the same dense model, which it draws from `seed` and cuts down to its
    own part. So for a moment each rank holds the whole model.

    Args:
        config: the dense model.
        mesh: has the axes "data", "pipeline" and "tensor"; see `parallel.mesh.make_mesh`.
        zero: ZeRO stage, over the data axis; 0 is plain data parallelism.
        sequence_parallel: each tensor rank normalizes only its own tokens.
        schedule: "1f1b", "gpipe", "interleaved" or "zb_h1".
        microbatches: the number of microbatches into which each rank's batch is divided.
        chunks: pipeline stages on each pipeline rank, for "interleaved".
        seed: seed of the dense model's initial parameters.
        dtype: dtype of the parameters; None: PyTorch's default.

    Attributes:
        stages: this rank's parts of the model, as modules with the dense model's parameter names.

    Raises: ValueError for a mesh with other axes, more pipeline stages than blocks, unknown
    options, or options that cannot be combined.
    """

    def __init__(
        self,
        config: GPTConfig,
        mesh: DeviceMesh,
        *,
        zero: int = 0,
        sequence_parallel: bool = False,
        schedule: ScheduleName = "1f1b",
        microbatches: int = 1,
        chunks: int = 1,
        seed: int = 0,
        dtype: torch.dtype | None = None,
    ) -> None:
        if set(mesh.mesh_dim_names or ()) != set(AXES):
            raise ValueError(
                "ParallelGPT needs a mesh with the axes data, pipeline and tensor, such as "
                f"make_mesh(data=2, pipeline=1, tensor=2); this one has {mesh.mesh_dim_names}."
            )
        if zero not in (0, 1, 2, 3):
            raise ValueError(f"zero must be a ZeRO stage from 0 to 3, not {zero!r}.")
        if zero == 3 and schedule == "zb_h1":
            raise ValueError(
                "ZeRO stage 3 frees a block's parameters after its backward, and zb_h1 splits "
                'the backward in two. Choose schedule="1f1b", or zero=2.'
            )
        self.config, self.zero = config, zero
        self.data, self.pipeline, self.tensor = (mesh.get_group(axis) for axis in AXES)
        self.schedule = _schedule(
            schedule, dist.get_world_size(self.pipeline), microbatches, chunks
        )
        dense = GPT(config, seed).to(dtype)
        count = chunks * dist.get_world_size(self.pipeline)
        if count > config.num_layers:
            raise ValueError(
                f"{count} pipeline stages need at least {count} blocks, but the model has "
                f"{config.num_layers}."
            )
        ranks = dist.get_world_size(self.pipeline)
        mine = range(dist.get_rank(self.pipeline), count, ranks)
        self.stages = [
            _Stage(dense, index, count, self.tensor, sequence_parallel) for index in mine
        ]
        self._wrapped = [self._wrap(stage) for stage in self.stages]
        self._pipeline_stages = [
            PipelineStage(module, stage.index, group=self.pipeline)
            for module, stage in zip(self._wrapped, self.stages, strict=True)
        ]
        self._tied = self._shared_table()
        self._is_summed = False  # whether the two copies of the table have exchanged gradients
        self._optimizer: ParallelOptimizer | None = None

    def _wrap(self, stage: _Stage) -> nn.Module:
        if self.zero == 0:
            return DataParallel(stage, group=self.data)
        if self.zero == 3:
            blocks: list[nn.Module] = list(stage.blocks.values())
            if stage.is_first != stage.is_last:  # so that Zero3 divides both copies equally
                blocks.append(stage.token_embedding if stage.is_first else stage.head)
            return Zero3(stage, self.data, blocks=blocks)
        return stage

    def _shared_table(self) -> nn.Parameter | None:
        """Return this rank's copy of the token embedding if a second rank has a copy, or None."""
        if dist.get_world_size(self.pipeline) == 1:
            return None
        tables = [stage.table for stage in self.stages if stage.table is not None]
        return tables[0] if tables else None

    # ------------------------------------------------------------------ one step

    def forward_backward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        """Add the gradients of one batch, and return the mean loss of the whole batch.

        `tokens` and `targets`, [sequences, tokens], are this rank's part of the batch. All ranks
        with the same data coordinate pass the same part, and all parts have the same size. The
        result is the same on all ranks.
        """
        self._is_summed = False
        loss = run_schedule(
            self.schedule, self._pipeline_stages, tokens, targets, self._loss_of
        ).loss
        mean = torch.zeros((), dtype=torch.float64, device=tokens.device)
        if loss is not None:
            mean += loss
        dist.all_reduce(mean, group=self.pipeline)  # only the last stage has the loss
        dist.all_reduce(mean, group=self.data)
        return mean / dist.get_world_size(self.data)

    def _loss_of(self, logits: Tensor, targets: Tensor) -> Tensor:
        return vocab_parallel_cross_entropy(logits, targets, self.tensor)

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """Context manager: accumulate gradients on each data rank without averaging them.

        The first call of `forward_backward` after the block averages the sum; at ZeRO stage 1, the
        optimizer's `step` does.
        """
        with contextlib.ExitStack() as stack:
            for module in self._wrapped:
                if isinstance(module, DataParallel | Zero3):
                    stack.enter_context(module.no_sync())
            if self._optimizer is not None:
                stack.enter_context(self._optimizer.no_sync())
            yield

    def finish_gradients(self) -> None:
        """Add up the gradients of the two copies of the token embedding.

        `clip_grad_norm_` and the optimizer's `step` call this. A second call in the same step does
        nothing.
        """
        if self._tied is not None and not self._is_summed:
            self._sum_tied(self._tied)
        self._is_summed = True

    def _sum_tied(self, table: nn.Parameter) -> None:
        own: Any = torch.zeros_like(table) if table.grad is None else table.grad
        other = torch.empty_like(own)
        last = dist.get_world_size(self.pipeline) - 1
        is_first = dist.get_rank(self.pipeline) == 0
        peer = last if is_first else 0
        operations = [
            dist.P2POp(do, tensor, group=self.pipeline, group_peer=peer)
            for do, tensor in ((dist.isend, own), (dist.irecv, other))
        ]
        for work in dist.batch_isend_irecv(operations):
            work.wait()
        table.grad = own + other if is_first else other + own  # the same sum, to the last bit

    # ------------------------------------------------------------------ optimizer and clipping

    def make_optimizer(
        self, optimizer_class: type[torch.optim.Optimizer], **arguments: Any
    ) -> ParallelOptimizer:
        """Return an optimizer of this rank's parameters; ZeRO divides it over the data axis."""
        self._optimizer = ParallelOptimizer(self, optimizer_class, arguments)
        return self._optimizer

    def clip_grad_norm_(self, max_norm: float) -> Tensor:
        """Scale all gradients so that their norm in the dense model is at most `max_norm`.

        Every rank holds a part of the gradients, and several ranks hold the same replicated
        elements. If n ranks hold an element, its square counts 1/n on each. Communication is one
        all-reduce of one number over all ranks. Returns the norm before scaling, on every rank.
        Raises: RuntimeError at ZeRO stages 1 and 2 before `make_optimizer`.
        """
        self.finish_gradients()
        total = torch.zeros((), dtype=torch.float64, device=self.device)
        parts = list(self._gradient_parts())
        for parameter, part in parts:
            square = torch.linalg.vector_norm(part, dtype=torch.float64) ** 2
            total += square.to(total.device) / self._sharers(parameter)
        dist.all_reduce(total)
        norm = total.sqrt()
        scale = (max_norm / (norm + 1e-6)).clamp(max=1.0)
        for _, part in parts:
            part.mul_(scale.to(part.device, part.dtype))
        return norm.float()

    @property
    def device(self) -> torch.device:
        """The device of this rank's parameters."""
        return next(self.stages[0].parameters()).device

    def _gradient_parts(self) -> Iterator[tuple[nn.Parameter, Tensor]]:
        """Yield this rank's gradients, averaged over the data axis, each with its parameter."""
        if self.zero in (1, 2):
            if self._optimizer is None:
                raise RuntimeError(
                    "clip_grad_norm_ was called before make_optimizer. At ZeRO stages 1 and 2 the "
                    "optimizer has the gradients: call make_optimizer first."
                )
            yield from self._optimizer.gradient_parts()
            return
        for stage in self.stages:
            for parameter in stage.parameters():
                if parameter.grad is not None:
                    yield parameter, parameter.grad

    def _sharers(self, parameter: nn.Parameter) -> int:
        """Return the number of ranks that hold the same elements of this parameter."""
        ranks = 1 if self.zero else dist.get_world_size(self.data)
        if not any(parameter in stage.sharded for stage in self.stages):
            ranks *= dist.get_world_size(self.tensor)
        return 2 * ranks if parameter is self._tied else ranks

    # ------------------------------------------------------------------ state

    def full_state_dict(self) -> dict[str, Tensor]:
        """Return the dense model's `state_dict`, on every rank. Call this on all ranks."""
        return self._full({p: p.detach() for p in self._parameters()}, gradients=False)

    def full_gradients(self) -> dict[str, Tensor]:
        """Return the dense model's gradients by parameter name. Call this on all ranks."""
        self.finish_gradients()
        gradients = {p: p.grad for p in self._parameters() if p.grad is not None}
        return self._full(gradients, gradients=True)

    def _parameters(self) -> Iterator[nn.Parameter]:
        for stage in self.stages:
            yield from stage.parameters()

    def _full(self, tensors: Mapping[nn.Parameter, Tensor], gradients: bool) -> dict[str, Tensor]:
        whole = dict(tensors)
        if self.zero == 3:
            for module in self._wrapped:
                assert isinstance(module, Zero3)
                whole |= module.whole_tensors(tensors.get)
        elif self.zero and gradients and self._optimizer is not None:
            whole = self._optimizer.whole_gradients()
        mine: dict[str, Tensor] = {}
        for stage in self.stages:
            for name, parameter in stage.named_parameters(remove_duplicate=False):
                if parameter in whole:
                    shard = stage.sharded.get(parameter)
                    tensor = whole[parameter]
                    mine[name] = gathered(tensor, *shard) if shard else tensor.clone()
        everyone: list[Any] = [None] * dist.get_world_size(self.pipeline)
        dist.all_gather_object(everyone, mine, group=self.pipeline)
        state: dict[str, Tensor] = {}
        for each in everyone:
            state |= each
        table, head = "token_embedding.weight", "head.weight"
        if table in state or head in state:  # one parameter under two names
            state[table] = state[head] = state.get(table, state.get(head))  # type: ignore[assignment]
        return state

    def load_full_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Load this rank's part of a dense model's `state_dict`, without communication.

        Every rank must pass the whole `state`.

        Raises: ValueError for names that are missing or unknown, or a divided dim of the wrong
        size.
        """
        expected = set(GPT(self.config).state_dict())
        if expected != set(state):
            names = ", ".join(sorted(expected ^ set(state))[:5])
            raise ValueError(
                f"these names are only in the state or only in this model: {names}. Pass the "
                "state of a GPT of the same config."
            )
        rank, ranks = dist.get_rank(self.tensor), dist.get_world_size(self.tensor)
        for module, stage in zip(self._wrapped, self.stages, strict=True):
            parts = {}
            for name, parameter in stage.named_parameters(remove_duplicate=False):
                shard = stage.sharded.get(parameter)
                parts[name] = shard[1].part(state[name], rank, ranks) if shard else state[name]
            if isinstance(module, Zero3):
                module.load_state_dict(parts)
                continue
            with torch.no_grad():
                for name, parameter in stage.named_parameters():
                    parameter.copy_(parts[name])


# This rank's part of the model -------------------------------------------------------------------


class _Stage(nn.Module):
    """Consecutive blocks of the dense model, sharded over the tensor axis.

    The first stage also has the embeddings; the last stage also has the final norm and the output
    layer. Parameters have the names of the dense model. `sharded` maps each parameter that is
    divided among the tensor ranks to its layer and its split.
    """

    def __init__(
        self, dense: GPT, index: int, count: int, group: Any, sequence_parallel: bool
    ) -> None:
        super().__init__()
        layers = len(dense.blocks)
        self.index, self.group, self.sequence_parallel = index, group, sequence_parallel
        self.is_first, self.is_last = index == 0, index == count - 1
        share = range(layers * index // count, layers * (index + 1) // count)
        self.blocks = nn.ModuleDict({
            f"{number}": ParallelBlock.from_dense(
                dense.blocks[number], group, sequence_parallel=sequence_parallel
            )
            for number in share
        })  # fmt: skip
        if self.is_first:
            self.token_embedding = VocabParallelEmbedding.from_dense(
                dense.token_embedding, group=group, sequence_parallel=sequence_parallel
            )
            self.position_embedding = _Positions(
                dense.position_embedding, group, sequence_parallel
            )
        if self.is_last:
            self.norm = _norm(dense.norm, group, sequence_parallel)
            self.head = _Head(dense.token_embedding, group, sequence_parallel)
            if self.is_first:  # one parameter under two names, as in the dense model
                self.head.weight = self.token_embedding.weight
        self.sharded: dict[nn.Parameter, tuple[ShardedLayer, Split]] = {
            layer.get_parameter(name): (layer, split)
            for layer in self.modules()
            if isinstance(layer, ShardedLayer)
            for name, split in layer.splits.items()
        }

    @property
    def table(self) -> nn.Parameter | None:
        """The token embedding or the copy of it in the output layer; None on a middle stage."""
        if self.is_first:
            return self.token_embedding.get_parameter("weight")
        return self.head.get_parameter("weight") if self.is_last else None

    def forward(self, hidden: Tensor) -> Tensor:
        """Map token ids, or hidden states of the previous stage, to hidden states or logits."""
        if self.is_first:
            hidden = self.token_embedding(hidden) + self.position_embedding(hidden)
        for block in self.blocks.values():
            hidden = block(hidden)
        if self.is_last:
            hidden = self.head(self.norm(hidden))
        return hidden


class _Positions(nn.Embedding):
    """Position embeddings; with sequence parallelism, those of this rank's tokens only."""

    def __init__(self, dense: nn.Embedding, group: Any, sequence_parallel: bool) -> None:
        super().__init__(
            dense.num_embeddings, dense.embedding_dim, _weight=dense.weight.detach().clone()
        )
        self.group, self.sequence_parallel = group, sequence_parallel

    def forward(self, tokens: Tensor) -> Tensor:
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        if not self.sequence_parallel:
            return F.embedding(positions, self.weight)
        own = positions.chunk(dist.get_world_size(self.group))[dist.get_rank(self.group)]
        (weight,) = share_parameters(self.weight, group=self.group)
        return F.embedding(own, weight)


class _Head(ShardedLayer):
    """The output layer: each rank computes the logits of its part of the vocabulary."""

    weight: Tensor

    def __init__(self, dense: nn.Embedding, group: Any, sequence_parallel: bool) -> None:
        super().__init__(group)
        self.sequence_parallel = sequence_parallel
        self.splits = {"weight": Split(0, (dense.num_embeddings,))}
        self.load_part_of(dense)

    def forward(self, hidden: Tensor) -> Tensor:
        if self.sequence_parallel:
            hidden = gather_from_sequence(hidden, self.group)
        else:
            hidden = copy_to_region(hidden, self.group)
        return F.linear(hidden, self.weight)


def _norm(dense: nn.LayerNorm, group: Any, sequence_parallel: bool) -> nn.LayerNorm:
    size, eps = dense.normalized_shape[0], dense.eps
    norm = (
        SequenceLayerNorm(size, eps, group=group) if sequence_parallel else nn.LayerNorm(size, eps)
    )
    return take_shards(norm, dense)


def _schedule(name: ScheduleName, stages: int, microbatches: int, chunks: int) -> Schedule:
    makes = {"1f1b": one_f_one_b, "gpipe": gpipe, "zb_h1": zb_h1}
    if name == "interleaved":
        return interleaved(stages, microbatches, chunks)
    if name not in makes:
        names = ", ".join([*makes, "interleaved"])
        raise ValueError(f"schedule must be one of {names}, not {name!r}.")
    if chunks != 1:
        raise ValueError(f'chunks={chunks} needs schedule="interleaved".')
    return makes[name](stages, microbatches)


# The optimizer -----------------------------------------------------------------------------------


class ParallelOptimizer(torch.optim.Optimizer):
    """The optimizers of this rank as one: see `ParallelGPT.make_optimizer`.

    Its `param_groups` are theirs, so PyTorch's learning-rate schedulers change the rates of all.

    At ZeRO stage 2, a token embedding with a copy on another rank is an exception. Its gradient
    is complete only after the gradients of the two copies are summed, so `step` reduces it, as at
    ZeRO stage 1.
    """

    def __init__(
        self, model: ParallelGPT, optimizer_class: type[torch.optim.Optimizer], arguments: Any
    ) -> None:
        self.model = model
        self.optimizers: list[Any] = []
        for stage in model.stages:
            parameters = list(stage.parameters())
            if model.zero in (0, 3):
                self.optimizers.append(optimizer_class(parameters, **arguments))
                continue
            tied = [p for p in parameters if p is model._tied]
            others = [p for p in parameters if p is not model._tied]
            kinds: list[tuple[Any, list[nn.Parameter]]] = [(Zero1, parameters)]
            if model.zero == 2:
                kinds = [(Zero2, others), (Zero1, tied)]
            self.optimizers += [
                kind(each, optimizer_class, model.data, **arguments)
                for kind, each in kinds
                if each
            ]
        super().__init__(self._groups(), self.optimizers[0].defaults)

    def _groups(self) -> list[dict[str, Any]]:
        return [group for each in self.optimizers for group in each.param_groups]

    def step(self) -> None:  # type: ignore[override]
        """Sum the gradients of the shared token embedding, and update every parameter."""
        self.model.finish_gradients()
        for each in self.optimizers:
            each.step()

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clear all gradients."""
        for each in self.optimizers:
            each.zero_grad(set_to_none)

    def state_dict(self) -> dict[str, Any]:
        """Return this rank's part of the state, for the same rank of an equal mesh."""
        return {"optimizers": [each.state_dict() for each in self.optimizers]}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Load what `state_dict` returned on this rank."""
        for each, state in zip(self.optimizers, state_dict["optimizers"], strict=True):
            each.load_state_dict(state)
        self.param_groups = self._groups()

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """Context manager: accumulate gradients without reducing them (`ParallelGPT.no_sync`)."""
        with contextlib.ExitStack() as stack:
            for each in self.optimizers:
                if isinstance(each, Zero1):
                    stack.enter_context(each.no_sync())
            yield

    def gradient_parts(self) -> Iterator[tuple[nn.Parameter, Tensor]]:
        """Yield this rank's reduced gradients at ZeRO stages 1 and 2, with their parameters."""
        for each in self.optimizers:
            yield from each.reduced_gradients()

    def whole_gradients(self) -> dict[nn.Parameter, Tensor]:
        """Return whole gradients by parameter, at ZeRO stages 1 and 2. Call this on all ranks."""
        found: dict[nn.Parameter, Tensor] = {}
        for each in self.optimizers:
            found |= each.whole_gradients()
        return found
