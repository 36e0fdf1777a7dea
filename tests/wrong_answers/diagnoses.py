"""What can be changed in a diagnosis without a difference."""

from __future__ import annotations

__all__ = ["numbers_near"]


def numbers_near(said: str, number: int) -> dict[str, str]:
    """A number that was measured and is one off, by the change."""
    return {
        f"{said} -> {said.replace(str(number), str(other))}": "that is rounding"
        for other in (number - 1, number + 1)
    }
