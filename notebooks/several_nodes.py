"""Check that nodes work together. The script is the same for every way to start it.

    python notebooks/several_nodes.py                       one process that launches 2 ranks
    torchrun --nproc-per-node=4 notebooks/several_nodes.py  4 ranks on one node
    torchrun --nnodes=2 --node-rank=0 ...                   the same command on each node
    sbatch notebooks/several_nodes.sbatch                   under Slurm

The ranks report their node and device, all-reduce a sum, train for three steps, compare the result
with one process, and time all-reduces. Rank 0 prints a table and every fault. The exit status is 1
after a fault, else 0. several_nodes.md, beside this file, lists the faults and their causes.
"""

from __future__ import annotations

import argparse
import os
import platform
import socket
import statistics
import sys
import threading
import time
import traceback
import zlib
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector
from torch.utils.data import DistributedSampler, TensorDataset

import dtlab
from dtlab.parallel.data import DataParallel
from dtlab.predict.communication import bus_bandwidth
from dtlab.training.datasets import batches, digits
from dtlab.training.models import MLP

STARTED_ALREADY = "RANK" in os.environ  # by torchrun: this process is a rank
STEPS, SHARE = 3, 4  # training steps, and samples per step and rank
MOST_OFF = 1e-9  # largest difference of a float64 parameter; rounding causes about 1e-16
BYTES_ON_CPU, BYTES_ON_GPU, REPEATS = 16_000_000, 256_000_000, 5


@dataclass
class Rank:
    """A rank's identity and results; rank 0 receives those of all ranks."""

    rank: int
    node: int
    local_rank: int
    host: str
    card: str  # name and UUID of the GPU, or "cpu"
    backend: str
    software: str
    interface: str  # the variables that select the network interface
    total: float = 0.0  # 1 + 2 + ... + world size, by all-reduce
    furthest: float = 0.0  # largest difference of a parameter from one process
    nbytes: int = 0  # of each timed all-reduce
    seconds: dict[str, float] = field(default_factory=dict)  # of an all-reduce, by group


# On every rank --------------------------------------------------------------------------------


def on_rank() -> Rank:
    """Run the checks of one rank. It sends tensors only if all ranks have a consistent setup."""
    me = who_i_am()
    everyone: list[Rank] = [me] * dist.get_world_size()
    dist.all_gather_object(everyone, me)
    if not what_does_not_fit(everyone):
        device = my_device()
        me.total = all_reduced(me.rank + 1, device)
        me.furthest = furthest_from_one_process(device)
        me.nbytes = BYTES_ON_CPU if device.type == "cpu" else BYTES_ON_GPU
        for name, ranks in groups_of(everyone).items():
            group = dist.new_group(ranks)  # all ranks must call it, members or not
            if me.rank in ranks:
                me.seconds[name] = all_reduce_seconds(group, me.nbytes, device)
            dist.barrier()  # one group at a time
    return me


def who_i_am() -> Rank:
    """Return this rank, with the numbers from torchrun or launch."""
    device = my_device()
    card = "cpu"
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        card = f"{properties.name} {properties.uuid}"
    names = ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME")
    return Rank(
        rank=dist.get_rank(),
        node=int(os.environ.get("GROUP_RANK", "0")),
        local_rank=int(os.environ.get("LOCAL_RANK", "0")),
        host=socket.gethostname(),
        card=card,
        backend=str(dist.get_backend_config()),
        software=software(),
        interface=", ".join(f"{name}={os.environ.get(name, '(not set)')}" for name in names),
    )


def my_device() -> torch.device:
    """Return the GPU that launch chose by LOCAL_RANK, or the CPU."""
    if "nccl" in str(dist.get_backend_config()):
        return torch.device("cuda", torch.cuda.current_device())
    return torch.device("cpu")


def software() -> str:
    """Return the versions that must be equal on all ranks, and a checksum of dtlab's source."""
    checksum = 0
    for file in sorted(Path(dtlab.__file__).parent.rglob("*.py")):
        checksum = zlib.crc32(file.read_bytes(), checksum)
    names = [f"Python {platform.python_version()}", f"PyTorch {torch.__version__}"]
    if torch.cuda.is_available():
        names.append(f"NCCL {'.'.join(map(str, torch.cuda.nccl.version()))}")
    return ", ".join([*names, f"dtlab {checksum:08x}"])


def all_reduced(value: float, device: torch.device) -> float:
    """Return the all-reduced sum of `value`: the most wrong element of a long tensor."""
    tensor = torch.full((1_000_000,), float(value), dtype=torch.float64, device=device)
    dist.all_reduce(tensor)
    wanted = dist.get_world_size() * (dist.get_world_size() + 1) / 2
    return float(tensor[(tensor - wanted).abs().argmax()])


def furthest_from_one_process(device: torch.device) -> float:
    """Return the largest difference between parameters trained with DataParallel and alone."""
    world_size = dist.get_world_size()
    data = TensorDataset(*digits().train[: STEPS * SHARE * world_size])
    ours, alone = (MLP(64, 32, 10, seed=0).double().to(device) for _ in range(2))
    sampler: DistributedSampler[int] = DistributedSampler(data, shuffle=False)
    train(DataParallel(ours), batches(data, SHARE, sampler=sampler), device)
    train(alone, batches(data, SHARE * world_size), device)
    difference = parameters_to_vector(ours.parameters()) - parameters_to_vector(alone.parameters())
    return difference.abs().max().item()


def train(model: nn.Module, steps: Iterable[tuple[Tensor, ...]], device: torch.device) -> None:
    """Train with plain SGD, one batch per step."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for images, labels in steps:
        optimizer.zero_grad()
        F.cross_entropy(model(images.double().to(device)), labels.to(device)).backward()
        optimizer.step()


def groups_of(everyone: Sequence[Rank]) -> dict[str, list[int]]:
    """Return the groups to time: the ranks of each node, one rank of every node, and all ranks."""
    nodes = ranks_by_node(everyone)
    groups = {f"in node {node}": ranks for node, ranks in nodes.items()}
    if len(nodes) > 1:
        groups["across nodes"] = [ranks[0] for ranks in nodes.values()]
    if 1 < len(nodes) < len(everyone):
        groups["all ranks"] = [one.rank for one in everyone]
    return {name: ranks for name, ranks in groups.items() if len(ranks) > 1}


def ranks_by_node(everyone: Sequence[Rank]) -> dict[int, list[int]]:
    """Return {node: its ranks}."""
    nodes = defaultdict(list)
    for one in everyone:
        nodes[one.node].append(one.rank)
    return dict(sorted(nodes.items()))


def all_reduce_seconds(group: dist.ProcessGroup, nbytes: int, device: torch.device) -> float:
    """Return the median time of an all-reduce; the first, which opens connections, is left out."""
    tensor, seconds = torch.ones(nbytes // 4, device=device), []
    for _ in range(1 + REPEATS):
        dist.barrier(group)
        begun = time.perf_counter()
        dist.all_reduce(tensor, group=group)
        if device.type == "cuda":
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - begun)
    return statistics.median(seconds[1:])


# Faults ---------------------------------------------------------------------------------------


def what_does_not_fit(everyone: Sequence[Rank]) -> list[str]:
    """Return sentences on different software or backends and shared GPUs; none if all is well."""
    said = []
    for what, of in (("software", lambda one: one.software), ("backend", lambda one: one.backend)):
        kinds = defaultdict(list)
        for one in everyone:
            kinds[of(one)].append(one.rank)
        if len(kinds) > 1:
            listed = "; ".join(f"{named(ranks)}: {kind}" for kind, ranks in kinds.items())
            said.append(f"The {what} differs. Make it the same on every node. {listed}")
    holders = defaultdict(list)
    for one in everyone:
        holders[one.card].append(one.rank)
    for card, ranks in holders.items():
        if card != "cpu" and len(ranks) > 1:
            said.append(
                f"One GPU is shared by {named(ranks)}: {card}. Each rank needs its own GPU: "
                "start one torchrun on each node, with no more ranks than the node has GPUs."
            )
    return said


def what_went_wrong(everyone: Sequence[Rank]) -> list[str]:
    """Return sentences on wrong sums and parameters; none if all are right."""
    wanted = sum(one.rank + 1 for one in everyone)
    wrong = [one.rank for one in everyone if one.total != wanted]
    if wrong:
        got = ", ".join(f"{everyone[rank].total:g}" for rank in wrong)
        return [f"The all-reduce is wrong: {named(wrong)} got {got} instead of {wanted}."]
    away = [one.rank for one in everyone if not one.furthest <= MOST_OFF]
    if away:
        most = max(everyone[rank].furthest for rank in away)
        return [
            f"Training differs from one process: after {STEPS} steps, the parameters of "
            f"{named(away)} are off by up to {most:.2g}. The all-reduce of gradients is wrong."
        ]
    return []


def unlike_slurm(everyone: Sequence[Rank]) -> list[str]:
    """Return a sentence if srun started tasks on more or fewer nodes than the ranks are on."""
    wanted, there = os.environ.get("SLURM_STEP_NUM_NODES"), len(ranks_by_node(everyone))
    if not STARTED_ALREADY or wanted is None or int(wanted) == there:
        return []
    return [f"srun started tasks on {wanted} nodes, but these ranks are on {there}."]


# The table, on rank 0 -------------------------------------------------------------------------


def table(everyone: Sequence[Rank]) -> str:
    """Return a table of the ranks, and one of the speed of all-reduces."""
    width = max(len("host"), *(len(one.host) for one in everyone))
    lines = [f"rank  node  {'host':<{width}}  local rank  device"]
    for one in everyone:
        place = f"{one.rank:4}  {one.node:4}  {one.host:<{width}}"
        lines.append(f"{place}  {one.local_rank:10}  {one.card}")
    if any(one.seconds for one in everyone):
        lines += ["", "all-reduce    ranks         size      time  bus bandwidth"]
    for name, ranks in groups_of(everyone).items():
        if not everyone[ranks[0]].seconds:
            continue  # not timed, because of a fault
        nbytes = everyone[0].nbytes
        seconds = max(everyone[rank].seconds[name] for rank in ranks)  # the slowest rank's
        speed = bus_bandwidth("all_reduce", nbytes, seconds, len(ranks))
        lines.append(
            f"{name:<12}  {listing(ranks):<10}  {nbytes / 1e6:3.0f} MB  {seconds * 1e3:5.1f} ms"
            f"  {speed / 1e9:8.2f} GB/s"
        )
    return "\n".join(lines)


def remarks(everyone: Sequence[Rank]) -> str:
    """Return lines on the software, the results and the hosts."""
    first, furthest = everyone[0], max(one.furthest for one in everyone)
    lines = [first.software, first.interface]
    if first.total:
        lines += [
            f"sum of 1 to {len(everyone)} by all-reduce: {first.total:g}",
            f"{STEPS} steps of DataParallel: parameters differ by {furthest:.1e} from one process",
        ]
    hosts, nodes = {one.host for one in everyone}, ranks_by_node(everyone)
    if len(hosts) < len(nodes):
        lines.append(
            f"{len(nodes)} nodes on {len(hosts)} host{'s' * (len(hosts) > 1)}, "
            f"{', '.join(sorted(hosts))}: messages between nodes of one host cross no network."
        )
    return "\n".join(lines)


def named(ranks: Sequence[int]) -> str:
    """Return "rank 3", or "ranks 0-3, 8"."""
    return f"rank{'s' * (len(ranks) > 1)} {listing(ranks)}"


def listing(ranks: Sequence[int]) -> str:
    """Return [0, 1, 2, 3, 8] as "0-3, 8"."""
    runs: list[list[int]] = []
    for rank in ranks:
        if runs and rank == runs[-1][-1] + 1:
            runs[-1].append(rank)
        else:
            runs.append([rank])
    return ", ".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else f"{run[0]}" for run in runs)


# The whole check ------------------------------------------------------------------------------


def give_up(limit: float) -> None:
    """Print the line at which this rank waits, and end the rank."""
    where = f"rank {os.environ['RANK']} on {socket.gethostname()}"
    frame = sys._current_frames()[threading.main_thread().ident or 0]
    lines = "".join(traceback.format_stack(frame))
    print(f"{where} still waits after {limit:g} s:\n{lines}", file=sys.stderr, flush=True)
    time.sleep(1.0)  # torchrun ends all ranks after the first: let the other ranks print
    os._exit(1)


def main() -> int:
    """Return the exit status: 0 if all is well."""
    parser = argparse.ArgumentParser(description="Check that nodes work together.")
    parser.add_argument("--limit", type=float, default=120.0, help="seconds until a rank gives up")
    limit = parser.parse_args().limit
    timer = threading.Timer(limit, give_up, [limit])
    timer.daemon = True
    if STARTED_ALREADY:  # otherwise launch has a time limit
        timer.start()
    try:
        run = dtlab.launch(on_rank, trace=False, timeout=limit)
    except dtlab.DtlabError as error:
        said, off = "", [str(error)]
    else:
        off = what_does_not_fit(run.values) or what_went_wrong(run.values)
        off += unlike_slurm(run.values)
        nodes = len(ranks_by_node(run.values))
        said = f"{run.world_size} ranks on {nodes} node{'s' * (nodes > 1)}, {run.backend}\n\n"
        said += f"{table(run.values)}\n\n{remarks(run.values)}\n\n"
    if os.environ.get("RANK", "0") == "0":
        print(said + ("\n".join(off) if off else "All is well."), flush=True)
    if dist.is_initialized():
        dist.barrier()  # torchrun ends all ranks when one fails: print first
    timer.cancel()
    return 1 if off else 0


if __name__ == "__main__":
    sys.exit(main())
