"""What the cells of lesson 05 call: a model at any ZeRO stage, and the bytes that a rank holds."""

from dtlab.units.unit05.lesson.memory_watch import MemoryWatch as MemoryWatch
from dtlab.units.unit05.lesson.memory_watch import at_stage as at_stage

__all__ = ["MemoryWatch", "at_stage"]
