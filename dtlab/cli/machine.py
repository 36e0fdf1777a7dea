"""The commands for a machine: `dtlab doctor` and `dtlab bench`."""

from __future__ import annotations

import argparse
import shutil
import sys
import time
from pathlib import Path

__all__ = ["add"]


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the commands for a machine to the parser."""
    _add_doctor(commands)
    _add_bench(commands)


def _add_doctor(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    doctor = commands.add_parser(
        "doctor",
        help="report what this machine can do, what is wrong, and how to repair it",
        description="Checks the machine, its software, its GPUs and the course, and launches "
        "ranks on the available backends. Each finding is ok, a note, or wrong, with the command "
        "that repairs it. The doctor changes nothing. The exit status is 1 if something is wrong.",
    )
    doctor.add_argument(
        "--json", action="store_true", help="print JSON, with units in the names of keys"
    )
    doctor.add_argument("--quick", action="store_true", help="skip the checks that launch ranks")
    doctor.set_defaults(run=_doctor)


def _add_bench(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    bench = commands.add_parser(
        "bench",
        help="measure collectives, and the links under them",
        description="Measures collectives at increasing sizes as nccl-tests does: time, algorithm "
        "bandwidth and bus bandwidth, for torch.distributed and for dtlab.collectives. Compares "
        "each result with the expected one. Prints the links that dtlab.predict and "
        "dtlab.Cluster accept. Under torchrun it measures the existing ranks on all nodes, and "
        "rank 0 prints. Ctrl-C stops it and prints the measurements so far. The exit status is 1 "
        "if it was stopped or a result was wrong.",
    )
    bench.add_argument("--ranks", type=int, metavar="N", help="number of ranks; default: one per "
                       "GPU if there are several, else 2. NCCL needs a GPU per rank")  # fmt: skip
    bench.add_argument("--collectives", metavar="A,B", help="only these of all_reduce, "
                       "reduce_scatter, all_gather, broadcast, all_to_all, send_recv")  # fmt: skip
    bench.add_argument("--begin", default="8", metavar="SIZE",
                       help='smallest size, such as "8", "64kB" or "1MiB"')  # fmt: skip
    bench.add_argument("--end", metavar="SIZE", help="largest size; the default is limited by "
                       "--seconds, half of the free memory, and 1 GiB")  # fmt: skip
    bench.add_argument("--factor", type=int, default=8, metavar="N",
                       help="ratio of a size to the previous one; default 8")  # fmt: skip
    bench.add_argument("--backend", help="gloo or nccl; default: nccl if each rank has a GPU")
    bench.add_argument("--seconds", type=float, default=2.0, metavar="S", help="approximate time "
                       "for one curve; default 2. With --end it may take longer")  # fmt: skip
    bench.add_argument("--check", action=argparse.BooleanOptionalAction, default=True,
                       help="compare each result once with the expected one")  # fmt: skip
    bench.add_argument("--json", type=Path, metavar="FILE", help="also write all numbers to FILE")
    bench.add_argument("--figure", type=Path, metavar="FILE", help="draw bus bandwidth against "
                       "size, as .png or .svg")  # fmt: skip
    bench.set_defaults(run=_bench)


def _doctor(options: argparse.Namespace) -> int:
    from dtlab import __version__
    from dtlab.doctor import as_json, as_text, examine

    begun = time.monotonic()
    findings = examine(options.quick, progress=lambda text: print(text, file=sys.stderr))
    seconds = time.monotonic() - begun
    if options.json:
        print(as_json(findings, seconds, __version__))
    else:
        for line in as_text(findings, seconds, shutil.get_terminal_size((100, 24)).columns):
            print(line)
    return 1 if any(finding.status == "wrong" for finding in findings) else 0


def _bench(options: argparse.Namespace) -> int:
    from dtlab.bench.command import bench_and_tell

    names = ("ranks", "begin", "end", "factor", "backend", "seconds", "check", "json", "figure")
    chosen = {name: getattr(options, name) for name in names}
    if options.collectives is not None:
        chosen["collectives"] = options.collectives
    return 0 if bench_and_tell(**chosen) else 1
