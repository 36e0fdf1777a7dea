"""One specification of a training job, which two back ends execute.

    spec = JobSpec(model=partial(MLP, 64, 32, 10), data=lambda: digits().train, steps=200,
                   ranks=2, batch_size=32, learning_rate=0.1, backend="parameter_server")
    run = dtlab.launch(run_job, spec, "checkpoints", world_size=spec.processes)

    all_reduce          `ranks` processes average their gradients       DataParallel
    parameter_server    `ranks` workers, and one process that keeps     ParameterServer
                        the parameters: the first rank of the group

A scheduler of jobs needs the specification only: how many processes to start, and that they
all call `run_job(spec, folder)`. If some of them die, the same call continues from the last
checkpoint. A checkpoint is one file that fits both back ends and any number of ranks.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd import backward
from torch.optim import SGD, Optimizer
from torch.utils.data import TensorDataset

from dtlab.errors import DtlabError
from dtlab.parallel.data import DataParallel
from dtlab.parallel.server import ParameterServer, ParameterWorker
from dtlab.training.checkpoint import Samples

if TYPE_CHECKING:
    from os import PathLike

    from dtlab.messages import Group

__all__ = ["JobResult", "JobSpec", "run_job", "simple_job"]

Backend = Literal["all_reduce", "parameter_server"]


@dataclass(frozen=True)
class JobSpec:
    """What to train and how, whatever executes it.

    `model` and `data` are functions that each rank calls: for the model, and for a TensorDataset
    of inputs and labels. `batch_size` counts the samples of all workers in a step. The optimizer
    is SGD with `learning_rate` and `momentum`. A checkpoint is saved every `checkpoint_every`
    steps; 0: never. `seed` determines the order of samples and all random numbers.
    Raises: ValueError for an invalid field.
    """

    model: Callable[[], nn.Module]
    data: Callable[[], TensorDataset]
    steps: int
    ranks: int
    batch_size: int
    learning_rate: float
    backend: Backend = "all_reduce"
    checkpoint_every: int = 0
    momentum: float = 0.9
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("steps", "ranks", "batch_size", "checkpoint_every", "seed"):
            value, least = getattr(self, name), int(name not in ("checkpoint_every", "seed"))
            if not isinstance(value, int) or isinstance(value, bool) or value < least:
                raise ValueError(f"{name} must be a whole number, {least} or more, not {value!r}.")
        if self.batch_size < self.ranks:
            raise ValueError(
                f"batch_size={self.batch_size} leaves some of {self.ranks} ranks without a "
                "sample. It counts the samples of all ranks in a step."
            )
        if self.backend not in (known := ["all_reduce", "parameter_server"]):
            raise ValueError(f"backend {self.backend!r} is unknown. Pass one of {known}.")
        if not self.learning_rate > 0 or not 0 <= self.momentum < 1:
            raise ValueError(
                f"learning_rate={self.learning_rate!r} must be above 0, and "
                f"momentum={self.momentum!r} from 0 to below 1."
            )
        for name in ("model", "data"):
            value = getattr(self, name)
            if not callable(value) or isinstance(value, nn.Module):
                raise ValueError(f"{name} must be a function without arguments; ranks call it.")

    @property
    def processes(self) -> int:
        """The number of processes to start: a parameter server is one more than the workers."""
        return self.ranks + (self.backend == "parameter_server")


class JobResult(NamedTuple):
    """What every rank returns: the same on all of them.

    `losses` has the mean loss of each step from `first_step` on: 0, or the step of the checkpoint
    from which the job continued.
    """

    parameters: dict[str, Tensor]
    losses: list[float]
    first_step: int


def simple_job(spec: JobSpec) -> JobResult:
    """Run a job in one process, on whole batches. Both back ends give these numbers, rounded."""
    job, losses = _Job(spec), list[float]()
    optimizer = job.optimizer(job.trained().values())
    for batch in job.batches():
        optimizer.zero_grad()
        loss = job.loss(job.model, batch)
        backward(loss)
        optimizer.step()
        losses.append(loss.item())
    return JobResult(job.values(), losses, 0)


def run_job(
    spec: JobSpec, folder: str | PathLike[str] | None = None, group: Group = None
) -> JobResult:
    """Run a job on the ranks of `group`, of which there must be `spec.processes`.

    All of them call this. Checkpoints are saved in `folder`, which all ranks can reach, and a job
    that finds one there continues from it; with None, no checkpoints are saved. A continued job
    is bit-identical to one that was not interrupted if the number of ranks is the same.
    Raises: ValueError for another number of ranks, or if a parameter server gets a model with
    buffers; DtlabError if the checkpoint belongs to another model.
    """
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    if size != spec.processes:
        raise ValueError(
            f"this job runs on {spec.processes} processes (backend={spec.backend!r}, "
            f"ranks={spec.ranks}), but the group has {size}. Start spec.processes ranks."
        )
    device = torch.device("cpu")
    if dist.get_backend(group) == "nccl":
        device = torch.device("cuda", torch.cuda.current_device())
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        job = _Job(spec, device, Path(folder) / "job.pt" if folder is not None else None)
        if spec.backend == "all_reduce":
            losses = _average(job, rank, group)
        elif rank == 0:
            losses = _serve(job, group)
        else:
            losses = _work(job, rank - 1, group)
    shares = torch.zeros(max(0, spec.steps - job.first_step), dtype=torch.float64, device=device)
    shares[: len(losses)] = torch.tensor(losses, dtype=shares.dtype)  # the server has none
    dist.all_reduce(shares, group=group)
    return JobResult(job.values(), shares.tolist(), job.first_step)


def _average(job: _Job, rank: int, group: Group) -> list[float]:
    """Run one rank of the back end "all_reduce"; return its shares of the losses."""
    model, losses = DataParallel(job.model, group=group), list[float]()
    optimizer = job.optimizer(job.trained().values())
    job.load(optimizer=optimizer)
    if rank == 0:
        job.save_after_steps_of(optimizer)
    for batch in job.batches(rank, job.spec.ranks):
        optimizer.zero_grad()
        loss = job.loss(model, batch)
        backward(loss * job.spec.ranks)  # the ranks average, and get the sum of all shares
        optimizer.step()
        losses.append(loss.item())
    return losses


def _serve(job: _Job, group: Group) -> list[float]:
    """Keep the parameters, for workers that pull them and push gradients."""
    server = ParameterServer(job.model, job.optimizer, group=group)
    for name, parameter in job.trained().items():
        parameter.data = server.parameters[name].data  # so a checkpoint has the server's values
    # The server orders parameters by size. In the model's order a checkpoint fits both back ends.
    server.optimizer = job.optimizer([server.parameters[name] for name in job.trained()])
    job.load(optimizer=server.optimizer)
    job.save_after_steps_of(server.optimizer, unless=server.report.lost)
    if lost := server.serve().lost:
        raise ConnectionError(f"workers on ranks {lost} have died. Start the job again.")
    return []


def _work(job: _Job, index: int, group: Group) -> list[float]:
    """Compute gradients of a part of each batch; return the shares of the losses."""
    losses = list[float]()
    with ParameterWorker(job.model, group=group) as worker:
        for batch in job.batches(index, job.spec.ranks):
            worker.pull()
            loss = job.loss(job.model, batch)
            backward(loss * job.spec.ranks)  # the server averages
            worker.push()
            losses.append(loss.item())
        worker.pull()
    return losses


class _Job:
    """What a rank needs to run a job, at the step of the last checkpoint."""

    def __init__(
        self, spec: JobSpec, device: torch.device | str = "cpu", path: Path | None = None
    ) -> None:
        self.spec, self._path = spec, path
        with torch.random.fork_rng([]):
            torch.manual_seed(spec.seed)
            self.model = spec.model().to(device)
        self._data = [tensor.to(device) for tensor in spec.data().tensors]
        if spec.backend == "parameter_server" and any(True for _ in self.model.buffers()):
            raise ValueError(
                "the model has buffers, such as the averages of BatchNorm, and a parameter server "
                'keeps parameters only. Use backend="all_reduce", or a model without buffers.'
            )
        self.first_step = self.load(model=self.model)

    def load(self, **parts: nn.Module | Optimizer) -> int:
        """Load parts of the checkpoint, if there is one, and return its step."""
        if self._path is None or not self._path.exists():
            return 0
        try:
            saved = torch.load(self._path, weights_only=True)
            for name, part in parts.items():
                part.load_state_dict(saved["parts"][name])
            return int(saved["step"])
        except (KeyError, RuntimeError, ValueError) as error:
            reason = str(error).strip().splitlines()[-1].strip()
            raise DtlabError(
                f"{self._path} is the checkpoint of another job: {reason} Use another folder."
            ) from None

    def trained(self) -> dict[str, nn.Parameter]:
        return {name: p for name, p in self.model.named_parameters() if p.requires_grad}

    def optimizer(self, parameters: Iterable[nn.Parameter]) -> Optimizer:
        return SGD(parameters, lr=self.spec.learning_rate, momentum=self.spec.momentum)

    def batches(self, index: int = 0, workers: int = 1) -> Iterator[list[Tensor]]:
        """Yield a worker's samples of each step, and set its random numbers.

        Both depend on the seed, the step and the worker only, so a checkpoint needs no more than
        the number of the step.
        """
        samples = Samples(len(self._data[0]), self.spec.batch_size, seed=self.spec.seed)
        samples.load_state_dict({"drawn": self.first_step * self.spec.batch_size})
        for step in range(self.first_step, self.spec.steps):
            torch.manual_seed((self.spec.seed * 1_000_003 + step) * 1_000_003 + index)
            numbers = next(samples)[index::workers]
            yield [tensor[numbers] for tensor in self._data]

    def loss(self, model: nn.Module, batch: list[Tensor]) -> Tensor:
        """Return this share of the mean cross-entropy of the whole batch."""
        inputs, targets = batch
        logits = model(inputs)
        total = F.cross_entropy(logits.flatten(0, -2), targets.flatten(), reduction="sum")
        return total / (self.spec.batch_size * targets[0].numel())

    def save_after_steps_of(self, optimizer: Optimizer, unless: Sequence[int] = ()) -> None:
        """Save the model and the optimizer after every `checkpoint_every` steps of the latter.

        `unless` are dead workers: a server continues without them, on a part of each batch.
        """
        every, path = self.spec.checkpoint_every, self._path
        if every and path:
            path.parent.mkdir(parents=True, exist_ok=True)
            steps = itertools.count(self.first_step + 1)

            def save(*_: object) -> None:
                if (step := next(steps)) % every == 0 and not unless:
                    states = {
                        "model": self.model.state_dict(),
                        "optimizer": optimizer.state_dict(),
                    }
                    unfinished = path.with_suffix(".partial")
                    torch.save({"step": step, "parts": states}, unfinished)
                    os.replace(unfinished, path)  # atomic: the file is the old one or the new one

            optimizer.register_step_post_hook(save)

    def values(self) -> dict[str, Tensor]:
        return {name: value.detach().clone() for name, value in self.model.named_parameters()}
