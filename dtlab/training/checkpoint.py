"""Checkpoints of a training run: save all that the next step depends on, and continue there.

    checkpoints = Checkpoints("run", model, optimizer, schedule=schedule, samples=samples)
    for step in range(checkpoints.resume(), steps):      # 0, or the step of the newest checkpoint
        train(model, optimizer, next(samples))
        if (step + 1) % 100 == 0:
            checkpoints.save(step + 1)

A resumed run equals the uninterrupted one bit for bit only if everything is saved that the next
step reads: parameters and buffers, optimizer state, learning-rate schedule, loss scaler, the
position in the data, and the random numbers of each rank (dropout, augmentation).

`save` and `load` in `dtlab/simple.py` do this for one process. `Checkpoints` saves sharded models
from all ranks with torch.distributed.checkpoint, in the background if you like, and can continue
with another number of ranks.
"""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import random
import re
import shutil
import warnings
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from torch.optim import Optimizer

from dtlab.errors import DtlabError
from dtlab.training.held import (
    Held,
    Loading,
    Saving,
    Share,
    copy_on_host,
    described,
    digest,
    empty_like_saved,
    go_together,
)

__all__ = ["Checkpoints", "Samples"]


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
        """Return the iterator itself, which continues at its position."""
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

    Each rank saves what it holds, and loading reshards it for the ranks at hand:

    - Parts of a tensor (DTensors as in FSDP2, ZeRO, the layers of `parallel.tensor`) are saved
      with their place in the whole. Another number of ranks reshards them.
    - A tensor whose name only one rank has (an expert of `ExpertParallel`, a stage whose
      parameters have the names of the whole model) is loaded by its name, on any ranks.
    - A value that all ranks hold alike (a plain module, DDP, `DataParallel`) is saved once.
    - Different values under one name (stages that are all `nn.Sequential`) are saved with the
      numbers of their ranks. With another number of ranks they are refused.

    The buffers of DDP and `DataParallel`, which may differ, are the first rank's if the number of
    ranks changes. Names are those of the module inside of these wrappers and of `torch.compile`.
    `parts` are further objects with `state_dict` and `load_state_dict`, for example the schedule,
    the scaler and `Samples`; so is an optimizer with its own `state_dict`, except ZeRO's. The
    random numbers of each rank (of torch, NumPy, Python and CUDA) are saved too.

    With the same number of ranks, in the same roles, the resumed run is bit-identical, with one
    exception: on three or more ranks, the first step of PyTorch's DDP has other buckets than
    later steps, so a resumed run rounds the sums of one step differently. DDP with
    `find_unused_parameters=True` keeps its buckets, and so does `DataParallel`. With another
    number of ranks, each rank's random numbers start anew from the step and the rank.

    A checkpoint is written as `step_12.partial` and renamed when all ranks have finished, so a
    crash during a save leaves the previous checkpoint usable. The newest `keep` stay. To find
    values that differ, each rank hashes what it holds, on the CPU, and rank 0 compares. Hashes of
    the files are saved too, so a torn file is found before anything is loaded from it.
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
        self._writing: tuple[Path, int, Future[None]] | None = None

    def steps(self) -> list[int]:
        """Return the steps of all complete checkpoints in the folder, in order."""
        names = [_NAME.fullmatch(path.name) for path in self.folder.glob("step_*/")]
        return sorted(int(name[1]) for name in names if name)

    # ------------------------------------------------------------------ saving

    def save(self, step: int, *, wait: bool = True) -> None:
        """Save the state after `step` steps.

        With `wait=False` the state is copied to host memory, and written while training continues;
        the next `save`, `wait` or `resume` waits for it.
        Raises: what writing raises, for example OSError for a full disk; with `wait=False` it is
        raised by the next call.
        """
        self.wait()
        path = self.folder / f"step_{step}.partial"
        if self._rank == 0:
            self.folder.mkdir(parents=True, exist_ok=True)
            shutil.rmtree(path, ignore_errors=True)
        state = self._state()
        holders = self._holders({name: described(value) for name, value in state.items()})
        for name in [name for name in state if name in holders]:
            value, holder = state.pop(name), holders[name][self._rank]
            if holder == self._rank:
                state[f"{name}@{holder}"] = value.alone() if isinstance(value, Held) else value
        run = {"step": step, "ranks": self._ranks, "holders": holders}

        def write() -> None:
            writer = FileSystemWriter(path)
            save(state, storage_writer=writer, planner=Saving(run), process_group=self._group)
            hashes = self._file_hashes(path)
            if self._rank == 0:
                (path / _HASHES).write_text(json.dumps(hashes))

        if wait or self._group is None:
            write()
            self._finish(path, step)
        else:
            state = {name: copy_on_host(value) for name, value in state.items()}
            thread = ThreadPoolExecutor(1)
            self._writing = path, step, thread.submit(write)
            thread.shutdown(wait=False)

    def wait(self) -> None:
        """Wait until the checkpoint in the background, if there is one, is complete."""
        if self._writing is not None:
            path, step, written = self._writing
            self._writing = None
            written.result()
            self._finish(path, step)

    def _finish(self, path: Path, step: int) -> None:
        """Give the checkpoint its name, now that every rank has written, and remove old ones."""
        if self._rank == 0:
            whole = path.with_suffix("")
            shutil.rmtree(whole, ignore_errors=True)
            os.replace(path, whole)
            # Newer ones than this were damaged, or resume would have used them: do not count them.
            for old in [each for each in self.steps() if each <= step][: -self.keep]:
                shutil.rmtree(self.folder / f"step_{old}", ignore_errors=True)
        if self._group is not None:
            dist.barrier(self._group)

    def _state(self) -> dict[str, Any]:
        """Return what this rank holds: tensors as `Held`, all else as it is."""
        module, shares = _inner(self.model), _shares(self.model)
        parameters = _parameters(module)
        state: dict[str, Any] = {"random": _random_state()}
        for name, value in module.state_dict().items():
            share = shares.get(parameters.get(_clean(name)))
            held = Held(value, share) if isinstance(value, Tensor) else value
            state[f"model.{_clean(name)}"] = held
        state |= {f"part.{name}": part.state_dict() for name, part in self.parts.items()}
        if _is_opaque(self.optimizer):
            return state | {"optimizer": self.optimizer.state_dict()}
        states = _states(self.optimizer)
        for number, group in enumerate(self.optimizer.param_groups):
            options = {key: value for key, value in group.items() if key not in _OF_A_RANK}
            for name, parameter in _named(parameters, group["params"]):
                state[f"optimizer.group.{name}"] = {"number": number, **options}
                if parameter in shares and not parameter.numel():
                    continue  # the ranks that hold elements of the parameter save its state
                for key, value in states.get(parameter, {}).items():
                    if isinstance(value, Tensor):
                        by_element = value.shape == parameter.shape
                        value = Held(value, shares.get(parameter) if by_element else None)
                    state[f"optimizer.state.{name}/{key}"] = value
        return state

    def _file_hashes(self, path: Path) -> dict[str, str]:
        """Return a hash of each file of tensors; every rank reads some of the files."""
        names = self._everywhere(sorted(file.name for file in path.glob("*.distcp")))[0]
        mine = {}
        for name in names[self._rank :: self._ranks]:
            with (path / name).open("rb") as file:
                mine[name] = hashlib.file_digest(file, "blake2b").hexdigest()
        return {name: value for each in self._everywhere(mine) for name, value in each.items()}

    def _holders(self, described: dict[str, Any]) -> dict[str, list[int | None]]:
        """Return the names under which ranks hold different values, and whose value each has.

        `{"model.0.weight": [0, 0, 2, 2]}`: ranks 0 and 1 hold one value, ranks 2 and 3 another.
        """
        everywhere, result = [described], [dict[str, list[int | None]]()]
        if self._group is not None:
            first = self._rank == 0
            everywhere = [{} for _ in range(self._ranks)]
            dist.gather_object(described, everywhere if first else None, 0, self._group)
        if self._rank == 0:
            for name in dict.fromkeys(name for each in everywhere for name in each):
                values = [each.get(name) for each in everywhere]
                if not go_together([value for value in values if value is not None]):
                    result[0][name] = [None if v is None else values.index(v) for v in values]
        if self._group is not None:
            dist.broadcast_object_list(result, 0, self._group)
        return result[0]

    # ------------------------------------------------------------------ loading

    def resume(self) -> int:
        """Load the newest complete checkpoint and return its step; 0 if there is none.

        A checkpoint that cannot be read, for example because a file is torn, is passed over for
        the one before it, with a warning on rank 0.
        Raises: DtlabError if the checkpoint lacks a part, has other parameters than the model, or
        holds different values under one name for another number of ranks; or if there are
        checkpoints, but none can be read.
        """
        self.wait()
        foreign = [
            path.name for path in sorted(self.folder.glob("step_*"))
            if path.suffix != ".partial" and not (path.is_dir() and _NAME.fullmatch(path.name))
        ]  # fmt: skip
        passed = [f"{name} is not named step_ and a number" for name in foreign]
        damaged, begin = list[str](), 0
        for step in reversed(self._everywhere(self.steps())[0]):
            problem = self._load(self.folder / f"step_{step}")
            if problem is None:
                begin = step
                break
            damaged.append(f"step_{step} cannot be read ({problem})")
        if damaged and not begin:
            raise DtlabError(
                f"{self.folder} has no checkpoint that can be read: {'; '.join(damaged)}. To "
                "start anew, use another folder or remove these."
            )
        if (passed := damaged + passed) and self._rank == 0:
            text = f"{self.folder}: {'; '.join(passed)}. The run continues from step {begin}."
            warnings.warn(text, stacklevel=2)
        return begin

    def _load(self, path: Path) -> str | None:
        """Load a checkpoint; return why it cannot be read, or None."""
        reader, problem, run = FileSystemReader(path), None, {}
        try:
            metadata = reader.read_metadata()
            run, hashes = metadata.planner_data, {}
            if isinstance(run, dict) and "holders" in run:
                hashes = json.loads((path / _HASHES).read_text())
            else:
                problem = "this version of Checkpoints did not write it"
        except Exception as error:  # noqa: BLE001  (a damaged pickle may raise anything)
            problem = f"{type(error).__name__} in .metadata or {_HASHES}"
        for text in filter(None, self._everywhere(problem)):
            return str(text)
        now = self._file_hashes(path)
        for name in hashes:
            if hashes[name] != now.get(name):
                return f"{name} is not as it was written"
        state, places, misfit = dict[str, Any](), dict[str, str](), None
        try:
            state, places = self._wanted(metadata.state_dict_metadata, run)
        except _Misfit as error:
            misfit = str(error)
        names = {name for each in self._everywhere(set(places)) for name in each}
        saved = {name.partition("@")[0] for name in metadata.state_dict_metadata}
        unused = sorted(n for n in saved - names if n.startswith(("model.", "optimizer.group.")))
        if misfit is None and unused:
            misfit = f"it has {unused[0]}, which no rank has now"
        self._refuse(path, self._everywhere(misfit))
        try:
            load(state, storage_reader=reader, planner=Loading(), process_group=self._group)
        except CheckpointException as error:
            return _reason(error)
        misfit = None
        try:
            self._set({name: state[place] for name, place in places.items()}, run)
        except (RuntimeError, ValueError, KeyError, TypeError) as error:  # of load_state_dict
            misfit = _reason(error)
        self._refuse(path, self._everywhere(misfit))
        return None

    def _refuse(self, path: Path, misfits: list[str | None]) -> None:
        for misfit in filter(None, misfits):
            raise DtlabError(
                f"{path} does not fit this model, optimizer and parts ({', '.join(self.parts)}): "
                f"{misfit}. Use the objects of the run that saved it, or another folder."
            )

    def _wanted(
        self, saved: Mapping[str, Any], run: Mapping[str, Any]
    ) -> tuple[dict[str, Any], dict[str, str]]:
        """Return what to load, by the name in the checkpoint, and that name for each own name.

        Tensors of the model are loaded in place. Those of the optimizer are new.
        """
        state, module = self._state(), _inner(self.model)
        wanted = {n: v for n, v in state.items() if not n.startswith("optimizer.state.")}
        parameters, shares = _parameters(module), _shares(self.model)
        stepped = _stepped_shares(self.optimizer)
        known = saved.keys() | run["holders"].keys()
        if not _is_opaque(self.optimizer):
            every = [p for group in self.optimizer.param_groups for p in group["params"]]
            own = dict(_named(parameters, every))
            for name in known:
                of = name.removeprefix("optimizer.state.").rpartition("/")[0]
                if name.startswith("optimizer.state.") and "@" not in name and of in own:
                    wanted[name] = own[of]
        if run["ranks"] != self._ranks:
            del wanted["random"]
        replicated = getattr(self.model, "broadcast_buffers", False)
        buffers = {f"model.{_clean(name)}" for name, _ in module.named_buffers()}
        chosen, places = dict[str, Any](), dict[str, str]()
        for name, value in wanted.items():
            place, alone = name, name in run["holders"]
            if alone:
                holders = run["holders"][name]
                if run["ranks"] != self._ranks and not (replicated and name in buffers):
                    raise _Misfit(
                        f"{run['ranks']} ranks saved it, and hold different values under the name "
                        f"{name}, so {self._ranks} cannot know which to load. Start "
                        f"{run['ranks']} ranks, or give what differs another name on each rank"
                    )
                holder = holders[self._rank if run["ranks"] == self._ranks else 0]
                if holder is None and name.startswith("optimizer.state."):
                    continue  # this rank had no state for the parameter
                place = f"{name}@{holder}"
            if place not in saved:
                raise _Misfit(f"it has no {name}")
            what = value
            if name.startswith("optimizer.state."):
                like, share = value, shares.get(value)
                if value in stepped:
                    share = stepped[value]
                    like = value.new_empty(share.length)
                if value in stepped and not like.numel():
                    continue  # other ranks step the parameter
                what = empty_like_saved(saved[place], like, share, alone)
            elif isinstance(value, Held) and alone:
                what = value.alone()
            _check(name, what, saved[place])
            chosen[place], places[name] = what, place
        return chosen, places

    def _set(self, state: Mapping[str, Any], run: Mapping[str, Any]) -> None:
        """Give every object its state; tensors of the model are loaded already."""
        values: dict[str, Any] = {
            name: v.tensor if isinstance(v, Held) else v for name, v in state.items()
        }
        module = _inner(self.model)
        module.load_state_dict({n: values[f"model.{_clean(n)}"] for n in module.state_dict()})
        if _is_opaque(self.optimizer):
            self.optimizer.load_state_dict(values["optimizer"])
        else:
            self._set_optimizer(values, _parameters(module))
        for name, part in self.parts.items():
            part.load_state_dict(values[f"part.{name}"])
        if run["ranks"] == self._ranks:
            _set_random_state(values["random"])
        else:
            _seed_all(run["step"] * 1_000_003 + self._rank)

    def _set_optimizer(self, values: Mapping[str, Any], parameters: _Parameters) -> None:
        own, shares = self.optimizer.state_dict(), _stepped_shares(self.optimizer)
        packed, state = own["param_groups"], dict[int, dict[str, Any]]()
        for number, group in enumerate(self.optimizer.param_groups):
            named = list(_named(parameters, group["params"]))
            options = [values[f"optimizer.group.{name}"] for name, _ in named]
            if any(digest(each) != digest(options[0]) for each in options):
                raise ValueError(f"the parameters of group {number} were in different groups")
            if options:
                packed[number].update({k: v for k, v in options[0].items() if k != "number"})
            for index, (name, parameter) in zip(packed[number]["params"], named, strict=True):
                start, share = f"optimizer.state.{name}/", shares.get(parameter)
                for key in [key for key in values if key.startswith(start)]:
                    value = values[key]
                    if share and isinstance(value, Tensor) and value.shape == (share.length,):
                        value = Held(value, share)
                    state.setdefault(index, {})[key.removeprefix(start)] = value
        self.optimizer.load_state_dict({**own, "state": state, "param_groups": packed})

    def _everywhere(self, value: Any) -> list[Any]:
        """Return the values of all ranks."""
        values = [value] * self._ranks
        if self._group is not None:
            dist.all_gather_object(values, value, self._group)
        return values


# ------------------------------------------------------------------------- names and parameters

_HASHES = "hashes.json"  # of the files of tensors: a torn write can leave zeros inside
_NAME = re.compile(r"step_(\d+)")
_OF_A_RANK = ("params", "param_names")  # of a parameter group: all else are its options
_Parameters = dict[str, nn.Parameter]


class _Misfit(Exception):
    """A checkpoint that these objects cannot load, in a sentence without a stop."""


def _check(name: str, value: Any, saved: Any) -> None:
    """Raise `_Misfit` unless a tensor has the saved shape and dtype."""
    here = there = "no tensor"
    if isinstance(value, Held):
        here = f"{list(value.whole)} in {value.dtype}"
    if isinstance(saved, TensorStorageMetadata):
        there = f"{list(saved.size)} in {saved.properties.dtype}"
    if here != there:
        raise _Misfit(f"{name} is {there} in it, and {here} now")


def _inner(model: nn.Module) -> nn.Module:
    """Return the module inside of DDP, `DataParallel` or `Zero3`: a checkpoint has its names."""
    while hasattr(model, "broadcast_buffers") or hasattr(model, "parameter_shares"):
        inside = getattr(model, "module", None)
        if not isinstance(inside, nn.Module):
            break
        model = inside
    return model


def _clean(name: str) -> str:
    """Return a name without what `torch.compile` adds."""
    return name.replace("_orig_mod.", "")


def _parameters(module: nn.Module) -> _Parameters:
    return {_clean(name): p for name, p in module.named_parameters(remove_duplicate=False)}


def _shares(model: nn.Module) -> dict[nn.Parameter | None, Share]:
    return {
        module.get_parameter(name): share
        for module in model.modules()
        for name, share in getattr(module, "parameter_shares", dict)().items()
    }


def _named(
    parameters: _Parameters, chosen: Iterable[nn.Parameter]
) -> Iterator[tuple[str, nn.Parameter]]:
    names = {parameter: name for name, parameter in reversed(parameters.items())}
    for parameter in chosen:
        if parameter not in names:
            raise DtlabError(
                f"the optimizer has a parameter of shape {tuple(parameter.shape)} that the model "
                "does not have. Make the optimizer with parameters of the model that is saved."
            )
        yield names[parameter], parameter


def _is_opaque(optimizer: Optimizer) -> bool:
    """Return whether an optimizer keeps its state in its own way."""
    own = type(optimizer).state_dict is not Optimizer.state_dict
    return own and not hasattr(optimizer, "parameter_shares")


def _stepped_shares(optimizer: Optimizer) -> dict[Tensor, Share]:
    """Return which elements of parameters this rank steps, if the optimizer divides them."""
    shares: dict[Tensor, Share] = getattr(optimizer, "parameter_shares", dict)()
    return shares


def _states(optimizer: Optimizer) -> Mapping[Tensor, Mapping[str, Any]]:
    """Return the state of each parameter; `Held` for what the optimizer divides among ranks."""
    if not hasattr(optimizer, "parameter_shares"):
        return optimizer.state
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    saved = optimizer.state_dict()["state"]
    return {parameters[number]: values for number, values in saved.items()}


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
