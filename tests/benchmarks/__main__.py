"""`make bench`: every benchmark, one after the other."""

from __future__ import annotations

import importlib

NAMES = (
    "launch", "recorder", "collectives", "watcher", "data_parallel", "zero", "fully_sharded",
    "tensor", "pipeline", "parameter_server",
)  # fmt: skip


def main() -> None:
    """Run them all."""
    for name in NAMES:
        importlib.import_module(f"tests.benchmarks.{name}").main()
        print(flush=True)


main()
