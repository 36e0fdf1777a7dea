"""Judges a learner's diagnosis of a deadlock: which rank waits in which call for which ranks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from dtlab.errors import DeadlockError, Waiting
from dtlab.grading.checking.checks import Verdict, blocked, lost, ok
from dtlab.grading.checking.trials import Observation
from dtlab.grading.questions.quantities import short, whole
from dtlab.grading.words import ranks_in_words

__all__ = ["Wait", "judge_waits", "waits_of"]

_FORM = 'Write a dict with an entry for each rank: {0: ("recv", 3), 1: ("all_reduce", {0, 2})}.'
_WHOM = "Name the members of its group that have not called it."
_VARIANTS = {"isend": "send", "irecv": "recv"}


class Wait(NamedTuple):
    """The operation that a rank does not come back from, and the ranks that it waits for."""

    operation: str
    ranks: frozenset[int]


class _Unreadable(Exception):
    """What the learner wrote is no diagnosis; the message says what one looks like."""


def waits_of(waiting: Iterable[Waiting]) -> dict[int, Wait]:
    """What the watcher found, by rank.

    A rank in a collective waits for those members who are not there, not for those who wait in it
    together with it.
    """
    found = list(waiting)
    return {one.rank: Wait(one.op, frozenset(one.peers) - _company(one, found)) for one in found}


def _company(one: Waiting, all_: Iterable[Waiting]) -> set[int]:
    """The ranks that are in the same call of a collective: it has the same members."""
    members = {one.rank, *one.peers}
    return {
        other.rank
        for other in all_
        if other.op == one.op not in ("send", "recv") and {other.rank, *other.peers} == members
    }


def judge_waits(one: Observation, diagnosis: Any) -> Verdict:
    """Judges {rank: (operation, ranks)}; a rank that does not wait has no entry, or None."""
    try:
        said = _read({} if diagnosis is None else diagnosis)
    except _Unreadable as error:
        return lost(str(error))
    if not said:
        return blocked("not answered yet")
    if not isinstance(one.error, DeadlockError):
        return blocked(f"the broken program did not hang here: {one.trouble or 'it came back'}")
    waiting, ranks = one.error.waiting, range(one.trial.world_size)
    found = waits_of(waiting)
    company = {each.rank: _company(each, waiting) for each in waiting}
    strange = [rank for rank in said if rank not in ranks]
    if strange:
        return lost(f"{one.trial.words()}: there is no rank {strange[0]}.")
    objections = (
        _objection(rank, said.get(rank), found.get(rank), company.get(rank, set()))
        for rank in ranks
    )
    wrong = next(filter(None, objections), "")
    if wrong:
        return lost(f"{one.trial.words()}: {wrong}")
    return ok(f"{one.trial.words()}: this is what the watcher finds")


def _objection(rank: int, said: Wait | None, found: Wait | None, company: set[int]) -> str:
    """What is wrong with what was said of a rank; empty if nothing.

    `company` are the ranks in its call of a collective, itself among them.
    """
    if said == found:
        return ""
    if found is None:
        return f"rank {rank} waits for nobody: it has returned. Which calls did it make before?"
    if said is None:
        return f"rank {rank} does not come back either. In which operation does it wait?"
    if said.operation != found.operation:
        return (
            f"rank {rank} does not wait in {said.operation}. Go through the program as this rank: "
            "which is the first call that cannot end?"
        )
    return f"rank {rank} waits in {found.operation}, {_misnamed(rank, said, found, company)}"


def _misnamed(rank: int, said: Wait, found: Wait, company: set[int]) -> str:
    """What is wrong with the ranks that are said to be waited for: too many first, then too few.

    It tells right from wrong, but neither which one is wrong nor which one is missing.
    """
    if not said.ranks:
        return f"and you name nobody whom it waits for. {_WHOM}"
    named, right = ranks_in_words(sorted(said.ranks)), said.ranks & found.ranks
    strange = said.ranks - found.ranks
    if strange and found.operation in ("send", "recv"):
        if right:
            return f"for one of {named} only: the one that it names as src or dst."
        return f"but not for {named}. Work out src and dst for this rank, round the end too."
    if strange:
        words = f"but not for all of {named}" if right else f"but not for {named}"
        return f"{words}: {_why_not(rank, strange, company)} {_WHOM}"
    missing = "another is missing" if len(found.ranks - right) == 1 else "others are missing"
    return f"{named} {'is' if len(right) == 1 else 'are'} right, and {missing}. {_WHOM}"


def _why_not(rank: int, strange: frozenset[int], company: set[int]) -> str:
    """Which kind of rank it does not wait for."""
    if rank in strange:
        return "a rank does not wait for itself."
    if strange & company:
        return "who waits in the same call has called it."
    return "somebody is no member of its group."


def _read(diagnosis: Any) -> dict[int, Wait]:
    if not isinstance(diagnosis, Mapping):
        raise _Unreadable(f"the diagnosis is {type(diagnosis).__name__} here. {_FORM}")
    return {
        _rank(rank): _wait(rank, entry) for rank, entry in diagnosis.items() if entry is not None
    }


def _wait(rank: Any, entry: Any) -> Wait:
    if not (isinstance(entry, tuple | list) and len(entry) == 2 and isinstance(entry[0], str)):
        raise _Unreadable(f"the entry of rank {rank} is {entry!r}. {_FORM}")
    operation = entry[0].strip().casefold().rpartition(".")[2]
    others = entry[1] if isinstance(entry[1], set | frozenset | tuple | list) else [entry[1]]
    ranks = frozenset(_rank(other) for other in others)
    return Wait(_VARIANTS.get(operation, operation), ranks)


def _rank(value: Any) -> int:
    rank = whole(value)
    if rank is None:
        raise _Unreadable(f"{short(value)} is no rank. {_FORM}")
    return rank
