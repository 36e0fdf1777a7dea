"""`dtlab.launch` of four ranks that do one all-reduce, against PyTorch's two ways to start ranks.

Goals: at least 30 times faster than either; in a fresh kernel, torch's import plus at most 0.6 s;
a session of four ranks in at most 0.5 s.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path

import torch
import torch.distributed as dist

import dtlab

from .pairs import interleaved, seconds

WORLD_SIZE = 4


def one_all_reduce() -> None:
    """What each rank does."""
    tensor = torch.ones(4)
    dist.all_reduce(tensor)


SPAWN = """
    import os, sys
    import torch, torch.distributed as dist, torch.multiprocessing as mp

    def rank(number, path):
        dist.init_process_group("gloo", init_method=f"file://{path}", rank=number, world_size=4)
        dist.all_reduce(torch.ones(4))
        dist.barrier()
        dist.destroy_process_group()

    if __name__ == "__main__":
        import time
        begun = time.perf_counter()
        mp.spawn(rank, (sys.argv[1],), nprocs=4)
        print(time.perf_counter() - begun)
"""
UNDER_TORCHRUN = """
    import torch, torch.distributed as dist
    dist.init_process_group("gloo")
    dist.all_reduce(torch.ones(4))
    dist.destroy_process_group()
"""
FRESH = """
    import sys, time
    begun = time.perf_counter()
    if sys.argv[1] == "torch":
        import torch
    else:
        import dtlab
        def one_all_reduce():
            import torch, torch.distributed as dist
            dist.all_reduce(torch.ones(4))
        dtlab.launch(one_all_reduce, world_size=4)
    print(time.perf_counter() - begun)
"""
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}


def printed_seconds(folder: Path, text: str, *arguments: str) -> float:
    """What a script says that it took, its own start not counted."""
    path = folder / "script.py"
    path.write_text(textwrap.dedent(text))
    command = [sys.executable, str(path), *arguments]
    done = subprocess.run(
        command, capture_output=True, text=True, check=True, env=ENVIRONMENT, timeout=120
    )
    return float(done.stdout)


def torchrun(folder: Path) -> None:
    path = folder / "under_torchrun.py"
    path.write_text(textwrap.dedent(UNDER_TORCHRUN))
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += ["--local-addr=127.0.0.1", f"--nproc-per-node={WORLD_SIZE}", str(path)]
    environment = {**ENVIRONMENT, "TMPDIR": str(folder)}
    subprocess.run(command, capture_output=True, check=True, env=environment, timeout=120)


def main() -> None:
    """Print the ratios."""

    def launch() -> None:
        dtlab.launch(one_all_reduce, world_size=WORLD_SIZE)

    launch()
    print("launch of 4 ranks, one all-reduce (goal: 30 times faster)")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        spawned, launched = [], []
        for number in range(5):
            spawned.append(printed_seconds(folder, SPAWN, str(folder / f"store{number}")))
            launched.append(statistics.median(seconds(launch) for _ in range(3)))
        ratio = statistics.median(a / b for a, b in zip(spawned, launched, strict=True))
        ours, theirs = statistics.median(launched), statistics.median(spawned)
        print(f"  spawn     {theirs:6.3f} s   dtlab {ours:6.3f} s   {ratio:5.1f} times faster")
        theirs, ours, ratio = interleaved(lambda: torchrun(folder), launch, 5)
        print(f"  torchrun  {theirs:6.3f} s   dtlab {ours:6.3f} s   {ratio:5.1f} times faster")
        pairs = [
            (printed_seconds(folder, FRESH, "dtlab"), printed_seconds(folder, FRESH, "torch"))
            for _ in range(5)
        ]
    more = statistics.median(a - b for a, b in pairs)
    print(f"first launch in a fresh process: torch's import plus {more:.2f} s (goal: 0.6)")
    opened, turns = session_seconds()
    print(f"a session of 4 ranks opens in {opened:.2f} s (goal: 0.5), a turn takes {turns:.3f} s")


def session_seconds() -> tuple[float, float]:
    """Seconds to open a session on a warm server, and seconds of an all-reduce in it."""
    opened, turns = [], []
    for _ in range(5):
        with dtlab.session(WORLD_SIZE) as session:
            opened.append(session.seconds)
            turns += [seconds(lambda: session.run(one_all_reduce)) for _ in range(5)]
    return statistics.median(opened), statistics.median(turns)


if __name__ == "__main__":
    main()
