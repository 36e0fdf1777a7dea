"""What a run will take, by arithmetic alone: NumPy at most, never torch."""

from dtlab.predict import built_in, communication
from dtlab.predict.built_in import *  # noqa: F403
from dtlab.predict.communication import *  # noqa: F403

__all__ = sorted([*built_in.__all__, *communication.__all__])
