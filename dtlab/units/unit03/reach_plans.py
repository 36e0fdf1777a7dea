"""What `plan` of 03/reach is asked, and what it may return: settings, and misfits in words."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dtlab.grading.checking.trials import Case
from dtlab.grading.questions.quantities import short

_WHOLE = ("micro_batch", "micro_batches", "updates", "warmup")
_NUMBERS = (*_WHOLE, "rate", "start_factor")
_DECAYS = ("cosine", "linear", "constant")


@dataclass(frozen=True)
class Setting(Case):
    """`plan(batch, samples, ranks, memory)`: what it returns for one setting.

    `seeds` are those of the trainings that come of it, if any.
    """

    batch: int
    samples: int
    ranks: int
    memory: int
    seeds: tuple[int, ...] = ()

    def __str__(self) -> str:
        return f"plan({self.batch}, {self.samples}, {self.ranks}, {self.memory})"

    def given(self, rank: int, world_size: int) -> tuple[int, ...]:
        """See `Case`."""
        return self.batch, self.samples, self.ranks, self.memory

    @staticmethod
    def on_rank(fn: Callable[..., Any], given: tuple[int, ...]) -> Any:
        """See `Case`."""
        planned = fn(*given)
        if not isinstance(planned, Mapping):
            return type(planned).__name__
        return {str(name): _plain(value) for name, value in planned.items()}

    def opened(self, result: Any) -> Any:
        """See `Case`. Whole numbers are whole, also where they came as 202.0."""
        if not isinstance(result, Mapping):
            return result
        return {
            name: int(value) if isinstance(value, float) and value.is_integer() else value
            for name, value in result.items()
        }

    def mistake(self, results: Sequence[Any]) -> str:
        """See `Case`."""
        (planned,) = results
        return _misfit(planned)


def _plain(value: Any) -> Any:
    """A number, a word or a list of whole numbers; of anything else the name of its type."""
    if type(value).__module__.partition(".")[0] in ("torch", "numpy") and hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, list | tuple | set | frozenset | range):
        return [one if isinstance(one, int) else type(one).__name__ for one in value]
    return {"type": type(value).__name__}


def _misfit(planned: Any) -> str:
    """Why this is no plan; empty if it is one."""
    if not isinstance(planned, Mapping):
        return f"returns {planned}. Return a dict, as the cell above does."
    missing = [name for name in (*_NUMBERS, "decay", "travel_in") if name not in planned]
    if missing:
        return f"returns a dict without {missing[0]!r}."
    for name in _NUMBERS:
        value = planned[name]
        if isinstance(value, bool) or not isinstance(value, int | float):
            return f"returns {short(value)} for {name!r}: a number is asked for."
        if name in _WHOLE and not isinstance(value, int):
            return f"returns {short(value)} for {name!r}: a whole number is asked for."
    return _out_of_bounds(planned)


def _out_of_bounds(planned: Mapping[str, Any]) -> str:
    for name, least in {"micro_batch": 1, "micro_batches": 1, "updates": 1, "warmup": 0}.items():
        if planned[name] < least:
            return f"returns {planned[name]} for {name!r}."
    if not 0 < planned["rate"] < 1e3:
        return f"returns {short(planned['rate'])} for 'rate'."
    if not 0 <= planned["start_factor"] <= 1:
        return f"returns {short(planned['start_factor'])} for 'start_factor': a share, 0 to 1."
    if planned["warmup"] > planned["updates"]:
        return f"has a warm-up of {planned['warmup']} updates, of {planned['updates']} in all."
    if planned["decay"] not in _DECAYS:
        return f"returns {short(planned['decay'])} for 'decay'. There are: {', '.join(_DECAYS)}."
    if not isinstance(planned["travel_in"], list) or any(
        not isinstance(one, int) for one in planned["travel_in"]
    ):
        return "has to list microbatches by their numbers from 0 in 'travel_in', as [0, 1]."
    return ""
