"""Checkpoints of a training run: save all that the next step depends on, and go on from there.

    checkpoints = Checkpoints("run", model, optimizer, schedule=schedule, samples=samples)
    for step in range(checkpoints.resume(), steps):      # 0, or the step of the newest checkpoint
        train(model, optimizer, next(samples))
        if (step + 1) % 100 == 0:
            checkpoints.save(step + 1)

A resumed run equals the uninterrupted one bit for bit only if everything is saved that the next
step reads: parameters and buffers, optimizer state, learning-rate schedule, loss scaler, the
position in the data, and the random numbers of each rank (dropout, augmentation).

`simple_save` and `simple_load` show the idea for one process. `Checkpoints` saves sharded models
from all ranks with torch.distributed.checkpoint, in the background if you like, and can go on
with another number of ranks.
"""

from __future__ import annotations

import os
import pickle
import random
import shutil
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.state_dict import (
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import async_save, save
from torch.optim import Optimizer

from dtlab.errors import DtlabError

__all__ = ["Checkpoints", "Samples", "simple_load", "simple_save"]

# ---------------------------------------------------------------- the simple version, one process


def simple_save(path: Path, step: int, **parts: Stateful) -> None:
    """Save the state of each part in one file. A crash leaves the old file or the new one."""
    state = {name: part.state_dict() for name, part in parts.items()}
    unfinished = path.with_suffix(".partial")
    torch.save({"step": step, "random": torch.get_rng_state(), "parts": state}, unfinished)
    os.replace(unfinished, path)  # atomic: the file is the old one or the new one


def simple_load(path: Path, **parts: Stateful) -> int:
    """Load what `simple_save` saved into the same parts and return its step; 0 without a file."""
    if not path.exists():
        return 0
    saved = torch.load(path, weights_only=True)
    for name, part in parts.items():
        part.load_state_dict(saved["parts"][name])
    torch.set_rng_state(saved["random"])
    return int(saved["step"])


class Stateful(Protocol):
    """What can be saved: a module, an optimizer, a schedule, a scaler, `Samples`."""

    def state_dict(self) -> Any: ...

    def load_state_dict(self, state_dict: Any) -> Any: ...


# --------------------------------------------------------------------------- position in the data


class Samples:
    """An endless iterator over batches of sample numbers that knows its position.

    Every epoch has another random order, drawn from `seed`, and visits each of `num_samples`
    samples once. A batch has `batch_size` samples over all ranks; each rank gets every
    `ranks`-th of them. A batch may end one epoch and begin the next, so all batches are full.
    The state is one number, the samples drawn so far: no sample is lost or repeated, even if
    the run continues with another number of ranks.
    Raises: ValueError if `batch_size` is not a multiple of `ranks`, or a count is below 1.
    """

    def __init__(
        self, num_samples: int, batch_size: int, *, rank: int = 0, ranks: int = 1, seed: int = 0
    ) -> None:
        if min(num_samples, batch_size, ranks) < 1 or batch_size % ranks or not 0 <= rank < ranks:
            raise ValueError(
                f"Samples got num_samples={num_samples}, batch_size={batch_size}, rank={rank}, "
                f"ranks={ranks}. batch_size is the samples of all ranks together: a multiple of "
                "ranks."
            )
        self.num_samples, self.batch_size, self.seed = num_samples, batch_size, seed
        self.rank, self.ranks = rank, ranks
        self.drawn = 0
        self._epoch, self._order = -1, torch.empty(0, dtype=torch.int64)

    def __iter__(self) -> Iterator[Tensor]:
        """Return the iterator itself: it goes on where it is."""
        return self

    def __next__(self) -> Tensor:
        """Return this rank's sample numbers of the next batch, [batch_size / ranks], int64."""
        positions = range(self.drawn + self.rank, self.drawn + self.batch_size, self.ranks)
        self.drawn += self.batch_size
        return torch.stack([self._sample(position) for position in positions])

    def _sample(self, position: int) -> Tensor:
        epoch, place = divmod(position, self.num_samples)
        if epoch != self._epoch:
            generator = torch.Generator().manual_seed(self.seed * 1_000_003 + epoch)
            self._epoch = epoch
            self._order = torch.randperm(self.num_samples, generator=generator)
        return self._order[place]

    def state_dict(self) -> dict[str, int]:
        """Return the position: {"drawn": samples drawn by all ranks so far}."""
        return {"drawn": self.drawn}

    def load_state_dict(self, state_dict: Mapping[str, int]) -> None:
        """Go to a saved position."""
        self.drawn = int(state_dict["drawn"])


# ---------------------------------------------------------------------------------- all the ranks


class Checkpoints:
    """The newest checkpoints of a run in a folder that all ranks can reach.

    `model` is any module: plain, DDP, FSDP2 (`fully_shard`), or with DTensors. Each rank writes
    its shards, and loading reshards them for the ranks at hand. `parts` are further objects with
    `state_dict` and `load_state_dict`, for example the schedule, the scaler and `Samples`; their
    states must be the same on all ranks. The random numbers of each rank (of torch, NumPy, Python
    and CUDA) are saved too. With the same number of ranks the resumed run is bit-identical. With
    another number, each rank's random numbers start anew from the step and the rank.

    A checkpoint is written as `step_12.partial` and renamed when all ranks have finished, so a
    crash during a save leaves the previous checkpoint usable. The newest `keep` stay.
    All ranks call every method. Raises: ValueError if `keep` is below 1.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        model: nn.Module,
        optimizer: Optimizer,
        *,
        keep: int = 2,
        **parts: Stateful,
    ) -> None:
        if keep < 1:
            raise ValueError(f"keep must be 1 or more, not {keep!r}.")
        self.folder, self.keep = Path(folder), keep
        self.model, self.optimizer, self.parts = model, optimizer, parts
        many = dist.is_initialized()
        self._rank, self._ranks = (dist.get_rank(), dist.get_world_size()) if many else (0, 1)
        # A separate group, because a checkpoint may be written during the next steps.
        self._group = dist.new_group(backend="gloo") if many else None
        self._writing: tuple[Path, Future[Any]] | None = None

    def steps(self) -> list[int]:
        """Return the steps of all complete checkpoints in the folder, in order."""
        names = [path.name for path in self.folder.glob("step_*") if path.suffix == ""]
        return sorted(int(name.removeprefix("step_")) for name in names)

    def save(self, step: int, *, wait: bool = True) -> None:
        """Save the state after `step` steps.

        With `wait=False` the state is copied to host memory, and written while training goes on;
        the next `save`, `wait` or `resume` waits for it.
        Raises: what writing raises, for example OSError for a full disk; with `wait=False` it is
        raised by the next call.
        """
        self.wait()
        path = self.folder / f"step_{step}.partial"
        if self._rank == 0:
            self.folder.mkdir(parents=True, exist_ok=True)
            shutil.rmtree(path, ignore_errors=True)
        self._barrier()
        state = self._state() | {
            "run": {"step": step, "ranks": self._ranks},
            f"random_{self._rank}": _random_state(),
        }
        writer = FileSystemWriter(path)
        if wait or self._group is None:
            save(state, storage_writer=writer, process_group=self._group)
            self._finish(path)
        else:
            written = async_save(state, storage_writer=writer, process_group=self._group)
            assert isinstance(written, Future)
            self._writing = path, written

    def wait(self) -> None:
        """Wait until the checkpoint in the background, if there is one, is complete."""
        if self._writing is not None:
            path, written = self._writing
            self._writing = None
            written.result()
            self._finish(path)

    def resume(self) -> int:
        """Load the newest complete checkpoint and return its step; 0 if there is none.

        Raises: DtlabError if the checkpoint lacks a part, or has other parameters than the model.
        """
        self.wait()
        newest = self._agreed(max(self.steps(), default=0))
        if newest == 0:
            return 0
        path = self.folder / f"step_{newest}"
        reader = FileSystemReader(path)
        run = {"step": 0, "ranks": 0}
        state = self._state() | {"run": run}
        mine = f"random_{self._rank}"
        if mine in reader.read_metadata().state_dict_metadata:
            state[mine] = _random_state()
        try:
            load(state, storage_reader=reader, process_group=self._group)
        except (CheckpointException, RuntimeError, ValueError) as error:
            raise DtlabError(
                f"{path} does not fit this model, optimizer and parts ({', '.join(self.parts)}): "
                f"{_reason(error)}. Use the objects of the run that saved it, or another folder."
            ) from None
        set_model_state_dict(self.model, state["model"])
        set_optimizer_state_dict(self.model, self.optimizer, state["optimizer"])
        for name, part in self.parts.items():
            part.load_state_dict(state[f"part_{name}"])
        saved = state["run"]
        if saved["ranks"] == self._ranks:
            _set_random_state(state[mine])
        else:
            _seed_all(saved["step"] * 1_000_003 + self._rank)
        return newest

    def _state(self) -> dict[str, Any]:
        parts = {f"part_{name}": part.state_dict() for name, part in self.parts.items()}
        return {
            "model": get_model_state_dict(self.model),
            "optimizer": get_optimizer_state_dict(self.model, self.optimizer),
            **parts,
        }

    def _finish(self, path: Path) -> None:
        """Give the checkpoint its name, now that every rank has written, and remove old ones."""
        if self._rank == 0:
            whole = path.with_suffix("")
            shutil.rmtree(whole, ignore_errors=True)
            os.replace(path, whole)
            for step in self.steps()[: -self.keep]:
                shutil.rmtree(self.folder / f"step_{step}", ignore_errors=True)
        self._barrier()

    def _barrier(self) -> None:
        if self._group is not None:
            dist.barrier(self._group)

    def _agreed(self, value: int) -> int:
        """Return rank 0's value on all ranks."""
        number = torch.tensor(value)
        if self._group is not None:
            dist.broadcast(number, 0, self._group)
        return int(number)


def _random_state() -> bytes:
    cuda = torch.cuda.get_rng_state() if torch.cuda.is_available() else None
    of_numpy = np.random.get_state()  # noqa: NPY002  (what augmentations use)
    return pickle.dumps((torch.get_rng_state(), of_numpy, random.getstate(), cuda))


def _set_random_state(state: bytes) -> None:
    of_torch, of_numpy, of_python, of_cuda = pickle.loads(state)
    torch.set_rng_state(of_torch)
    np.random.set_state(of_numpy)  # noqa: NPY002
    random.setstate(of_python)
    if of_cuda is not None and torch.cuda.is_available():
        torch.cuda.set_rng_state(of_cuda)


def _seed_all(seed: int) -> None:
    torch.manual_seed(seed)
    np.random.seed(seed % 2**32)  # noqa: NPY002
    random.seed(seed)


def _reason(error: BaseException) -> str:
    """Return the first line of the innermost reason."""
    text = str(error)
    if isinstance(error, CheckpointException):
        text = str(next(iter(error.failures.values()))[0])
    return text.strip().splitlines()[0].rstrip(".")
