"""dtlab: learn distributed training by running it, for real, in a notebook.

This face is lazy: `import dtlab` loads neither torch nor anything else until a name is used. In a
notebook's kernel it also starts the process that ranks are forked from, which imports torch while
the first cells are read.
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
    from dtlab.errors import DeadlockError as DeadlockError
    from dtlab.errors import DtlabError as DtlabError
    from dtlab.errors import Failure as Failure
    from dtlab.errors import LaunchError as LaunchError
    from dtlab.errors import RankError as RankError
    from dtlab.errors import RankTimeoutError as RankTimeoutError
    from dtlab.errors import Waiting as Waiting
    from dtlab.errors import expect as expect
    from dtlab.grading import ask as ask
    from dtlab.grading import check as check
    from dtlab.grading.practice import practice as practice
    from dtlab.grading.progress import progress as progress
    from dtlab.predict import Cluster as Cluster
    from dtlab.predict import Link as Link
    from dtlab.ranks.emulate.compute import compute as compute
    from dtlab.ranks.launch.launcher import Run as Run
    from dtlab.ranks.launch.launcher import launch as launch
    from dtlab.ranks.launch.launcher import rank_generator as rank_generator
    from dtlab.ranks.session import Session as Session
    from dtlab.ranks.session import session as session
    from dtlab.show.guess import guess as guess
    from dtlab.trace import Event as Event
    from dtlab.trace import Trace as Trace
    from dtlab.trace import span as span
    from dtlab.training.held import held_bytes as held_bytes
    from dtlab.training.repeats import repeats as repeats

_HOMES = {  # public name -> the module it lives in; None for a module of that name
    "Cluster": "predict",
    "DeadlockError": "errors",
    "DtlabError": "errors",
    "Event": "trace",
    "Failure": "errors",
    "LaunchError": "errors",
    "Link": "predict",
    "RankError": "errors",
    "RankTimeoutError": "errors",
    "Run": "ranks.launch.launcher",
    "Session": "ranks.session",
    "Trace": "trace",
    "Waiting": "errors",
    "ask": "grading",
    "bench": None,  # not imported above: grading imports this face, and bench is above grading
    "check": "grading",
    "collectives": None,
    "compute": "ranks.emulate.compute",
    "expect": "errors",
    "guess": "show.guess",
    "held_bytes": "training.held",
    "launch": "ranks.launch.launcher",
    "practice": "grading.practice",
    "predict": None,
    "progress": "grading.progress",
    "rank_generator": "ranks.launch.launcher",
    "repeats": "training.repeats",
    "schedules": None,
    "session": "ranks.session",
    "show": None,
    "span": "trace",
}
__all__ = sorted(_HOMES)
__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"dtlab has no {name!r}. It has: {', '.join(__all__)}.")
    home = _HOMES[name]
    module = importlib.import_module(f"dtlab.{home or name}")
    return module if home is None else getattr(module, name)


def __dir__() -> list[str]:
    return __all__


def load_ipython_extension(shell: Any) -> None:
    """`%load_ext dtlab`: adds `%%ranks` and `%ranks`."""
    importlib.import_module("dtlab.magics").load(shell)


def _prepare_ranks() -> None:
    """In a notebook's kernel, start the process that ranks are forked from, if memory allows."""
    if "IPython" not in sys.modules:
        return
    system = importlib.import_module("dtlab.ranks.system")
    in_place = importlib.import_module("dtlab.ranks.launch.inplace").environment_is_set()
    if system.in_a_kernel() and not in_place and system.free_memory() > 0.2:
        importlib.import_module("dtlab.ranks.launch.client").SERVER.start()


_prepare_ranks()
