"""`make bench`: every benchmark, one after the other, or those that are named."""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Sequence

NAMES = (
    "launch", "recorder", "collectives", "watcher", "data_parallel", "zero", "fully_sharded",
    "tensor", "pipeline", "gpt", "parameter_server", "splits",
)  # fmt: skip


def main(words: Sequence[str] | None = None) -> None:
    """Run them."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks", description=__doc__)
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help=f"among {', '.join(NAMES)}; all if left out"
    )
    names = parser.parse_args(words).names
    unknown = [name for name in names if name not in NAMES]
    if unknown:
        parser.error(f"there is no benchmark {unknown[0]!r}: there are {', '.join(NAMES)}")
    for name in names or NAMES:
        importlib.import_module(f"tests.benchmarks.{name}").main()
        print(flush=True)


if __name__ == "__main__":
    main()
