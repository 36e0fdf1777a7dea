"""What a run will take, by arithmetic alone: NumPy at most, never torch."""

from dtlab.predict import asynchronous, built_in, communication, overlap
from dtlab.predict.asynchronous import *  # noqa: F403
from dtlab.predict.built_in import *  # noqa: F403
from dtlab.predict.communication import *  # noqa: F403
from dtlab.predict.overlap import *  # noqa: F403

__all__ = sorted(
    name
    for module in (asynchronous, built_in, communication, overlap)
    for name in module.__all__
)
