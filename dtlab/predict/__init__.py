"""Predictions of time, memory and strategy by arithmetic; needs NumPy but not PyTorch."""

from dtlab.predict import (
    asynchronous,
    balance,
    built_in,
    communication,
    context,
    failures,
    memory,
    roofline,
    strategy,
    tasks,
)
from dtlab.predict import hardware as cards
from dtlab.predict import simulate as _simulate
from dtlab.predict.asynchronous import *  # noqa: F403
from dtlab.predict.balance import *  # noqa: F403
from dtlab.predict.built_in import *  # noqa: F403
from dtlab.predict.communication import *  # noqa: F403
from dtlab.predict.context import *  # noqa: F403
from dtlab.predict.failures import *  # noqa: F403
from dtlab.predict.hardware import *  # noqa: F403
from dtlab.predict.hardware import LINKS as LINKS
from dtlab.predict.memory import *  # noqa: F403
from dtlab.predict.roofline import *  # noqa: F403
from dtlab.predict.simulate import *  # noqa: F403
from dtlab.predict.strategy import *  # noqa: F403
from dtlab.predict.tasks import *  # noqa: F403

_MODULES = (
    asynchronous, balance, built_in, cards, communication, context, failures, memory,
    roofline, _simulate, strategy, tasks,
)  # fmt: skip
__all__ = sorted(["LINKS", *(name for module in _MODULES for name in module.__all__)])
