"""What the cells of lesson 00 call: the ten questions of its last section."""

from dtlab.units.unit00.lesson.preflight import preflight as preflight

__all__ = ["preflight"]
