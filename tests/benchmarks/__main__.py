"""`make bench`: every benchmark, one after the other."""

from __future__ import annotations

import importlib

NAMES = ("launch", "recorder", "collectives", "watcher", "data_parallel", "parameter_server")


def main() -> None:
    """Run them all."""
    for name in NAMES:
        importlib.import_module(f"tests.benchmarks.{name}").main()
        print(flush=True)


main()
