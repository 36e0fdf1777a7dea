"""dtlab: learn distributed training by running real processes from a notebook.

Attributes of this module are imported at first use, so `import dtlab` does not load torch. In a
notebook's kernel the import also starts the server process from which ranks are forked; it
imports torch while you read the first cells.
"""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import dtlab.collectives as collectives  # noqa: F401
    import dtlab.predict as predict  # noqa: F401
    import dtlab.schedules as schedules  # noqa: F401
    import dtlab.show as show  # noqa: F401
    from dtlab.checks import ask as ask
    from dtlab.checks import check as check
    from dtlab.checks.practice import practice as practice
    from dtlab.checks.progress import progress as progress
    from dtlab.errors import DeadlockError as DeadlockError
    from dtlab.errors import DtlabError as DtlabError
    from dtlab.errors import Failure as Failure
    from dtlab.errors import LaunchError as LaunchError
    from dtlab.errors import MismatchError as MismatchError
    from dtlab.errors import RankError as RankError
    from dtlab.errors import RankTimeoutError as RankTimeoutError
    from dtlab.errors import Waiting as Waiting
    from dtlab.errors import expect as expect
    from dtlab.predict import Cluster as Cluster
    from dtlab.predict import Link as Link
    from dtlab.ranks.emulate.compute import compute as compute
    from dtlab.ranks.launch.launcher import Run as Run
    from dtlab.ranks.launch.launcher import launch as launch
    from dtlab.ranks.launch.launcher import rank_generator as rank_generator
    from dtlab.ranks.session import Session as Session
    from dtlab.ranks.session import session as session
    from dtlab.show.guess import calibration as calibration
    from dtlab.show.guess import guess as guess
    from dtlab.show.remeasure import remeasure as remeasure
    from dtlab.show.repeats import repeats as repeats
    from dtlab.trace import Event as Event
    from dtlab.trace import Trace as Trace
    from dtlab.trace import span as span
    from dtlab.training.live import held_bytes as held_bytes

_MODULE_OF = {  # public name -> the module that defines it; None if the name is a module
    "Cluster": "predict",
    "DeadlockError": "errors",
    "DtlabError": "errors",
    "Event": "trace",
    "Failure": "errors",
    "LaunchError": "errors",
    "Link": "predict",
    "MismatchError": "errors",
    "RankError": "errors",
    "RankTimeoutError": "errors",
    "Run": "ranks.launch.launcher",
    "Session": "ranks.session",
    "Trace": "trace",
    "Waiting": "errors",
    "ask": "checks",
    "bench": None,  # not imported above: grading imports this file, and bench is above grading
    "calibration": "show.guess",
    "check": "checks",
    "collectives": None,
    "compute": "ranks.emulate.compute",
    "expect": "errors",
    "guess": "show.guess",
    "held_bytes": "training.live",
    "launch": "ranks.launch.launcher",
    "practice": "checks.practice",
    "predict": None,
    "progress": "checks.progress",
    "rank_generator": "ranks.launch.launcher",
    "remeasure": "show.remeasure",
    "repeats": "show.repeats",
    "schedules": None,
    "session": "ranks.session",
    "show": None,
    "span": "trace",
}
__all__ = sorted(_MODULE_OF)
__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"dtlab has no name {name!r}. It has: {', '.join(__all__)}.")
    path = _MODULE_OF[name]
    try:
        module = importlib.import_module(f"dtlab.{path or name}")
    except KeyboardInterrupt:
        stopped = importlib.import_module("dtlab.errors").Interrupted
        raise stopped(f"the import of dtlab.{name} was stopped.") from None
    return module if path is None else getattr(module, name)


def __dir__() -> list[str]:
    return __all__


def load_ipython_extension(shell: Any) -> None:
    """Register the magics `%%ranks` and `%ranks`; IPython calls this for `%load_ext dtlab`."""
    importlib.import_module("dtlab.magics").load(shell)


def _prepare_ranks() -> None:
    """Start the server that forks ranks, if this is a notebook's kernel and memory is free."""
    if "IPython" not in sys.modules:
        return
    system = importlib.import_module("dtlab.ranks.system")
    in_place = importlib.import_module("dtlab.ranks.launch.inplace").environment_is_set()
    if system.in_a_kernel() and not in_place and system.free_memory() > 0.2:
        importlib.import_module("dtlab.ranks.launch.client").SERVER.start()


_prepare_ranks()
