"""`dtlab doctor` and `dtlab bench`."""

from __future__ import annotations

import argparse
import shutil
import sys
import time
from pathlib import Path

__all__ = ["add"]


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """What is asked of a machine."""
    _add_doctor(commands)
    _add_bench(commands)


def _add_doctor(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    doctor = commands.add_parser(
        "doctor",
        help="say what this machine can do, what is wrong, and what mends it",
        description="Looks at the machine, its software, its GPUs and the course, launches ranks "
        "on the backends that there are, and says of each thing whether it is ok, worth a note or "
        "wrong, with the command that mends it. Changes nothing. Ends with 1 where something is "
        "wrong.",
    )
    doctor.add_argument(
        "--json", action="store_true", help="the same as JSON, with units in the names of keys"
    )
    doctor.add_argument("--quick", action="store_true", help="leave out what is tried on ranks")
    doctor.set_defaults(run=_doctor)


def _add_bench(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    bench = commands.add_parser(
        "bench",
        help="measure collectives, and the links under them",
        description="Measures collectives at growing sizes as nccl-tests does: time, algorithm "
        "and bus bandwidth, torch.distributed's beside dtlab.collectives', each result compared "
        "with the expected one. Prints the links that dtlab.predict and dtlab.Cluster take. "
        "Under torchrun it measures the ranks that there are, on all nodes, and rank 0 prints. "
        "Ctrl-C ends it with what was measured so far. Ends with 1 where it was stopped or a "
        "result was wrong.",
    )
    bench.add_argument("--ranks", type=int, metavar="N", help="one for each GPU if there are "
                       "several, else 2; each on a GPU of its own with NCCL")  # fmt: skip
    bench.add_argument("--collectives", metavar="A,B", help="only these of all_reduce, "
                       "reduce_scatter, all_gather, broadcast, all_to_all, send_recv")  # fmt: skip
    bench.add_argument("--begin", default="8", metavar="SIZE", help='as "8", "64kB" or "1MiB"')
    bench.add_argument("--end", metavar="SIZE", help="without it as far as --seconds and half of "
                       "the free memory allow, and 1 GiB at most")  # fmt: skip
    bench.add_argument("--factor", type=int, default=8, metavar="N", help="from size to size; 8")
    bench.add_argument("--backend", help="gloo or nccl; without it nccl if each rank has a GPU")
    bench.add_argument("--seconds", type=float, default=2.0, metavar="S", help="for one curve, "
                       "about; 2 as a rule. With --end it may take longer")  # fmt: skip
    bench.add_argument("--check", action=argparse.BooleanOptionalAction, default=True,
                       help="compare each result once with the expected one")  # fmt: skip
    bench.add_argument("--json", type=Path, metavar="FILE", help="write all numbers there too")
    bench.add_argument("--figure", type=Path, metavar="FILE", help="draw bus bandwidth against "
                       "size, as .png or .svg")  # fmt: skip
    bench.set_defaults(run=_bench)


def _doctor(options: argparse.Namespace) -> int:
    from dtlab import __version__
    from dtlab.doctor import examine
    from dtlab.doctor.show import as_json, as_text

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

    wishes = ("ranks", "begin", "end", "factor", "backend", "seconds", "check", "json", "figure")
    chosen = {name: getattr(options, name) for name in wishes}
    if options.collectives is not None:
        chosen["collectives"] = options.collectives
    return 0 if bench_and_tell(**chosen) else 1
