"""Judges a learner's diagnosis of a deadlock: which rank waits in which call for which ranks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from dtlab.checks.functions.checks import UNANSWERED, Verdict, blocked, lost, ok
from dtlab.checks.functions.trials import Observation
from dtlab.checks.questions.quantities import short, whole
from dtlab.checks.words import ranks_in_words
from dtlab.errors import DeadlockError, Waiting

__all__ = ["Wait", "judge_waits", "waits_of"]

_FORM = 'Write a dict with an entry for each rank: {0: ("recv", 3), 1: ("all_reduce", {0, 2})}.'
_WHOM = "Name the members of the group that have not called this operation."
_VARIANTS = {"isend": "send", "irecv": "recv"}


class Wait(NamedTuple):
    """The operation in which a rank is blocked, and the ranks that it waits for."""

    operation: str
    ranks: frozenset[int]


class _Unreadable(Exception):
    """The learner's answer is not a diagnosis; the message says how to write one."""


def waits_of(waiting: Iterable[Waiting]) -> dict[int, Wait]:
    """Converts the watcher's result to the blocked operation of each rank.

    A rank in a collective waits for the members that have not called it, and not for the members
    that wait in the same call.
    """
    entries = list(waiting)
    return {
        entry.rank: Wait(entry.op, frozenset(entry.peers) - _company(entry, entries))
        for entry in entries
    }


def _company(entry: Waiting, entries: Iterable[Waiting]) -> set[int]:
    """Returns the ranks in the same call of a collective: same operation, same members."""
    members = {entry.rank, *entry.peers}
    return {
        other.rank
        for other in entries
        if other.op == entry.op not in ("send", "recv") and {other.rank, *other.peers} == members
    }


def judge_waits(observation: Observation, diagnosis: Any) -> Verdict:
    """Judges {rank: (operation, ranks)}; a rank that does not wait has no entry, or None."""
    try:
        answer = _read({} if diagnosis is None else diagnosis)
    except _Unreadable as error:
        return lost(str(error))
    if not answer:
        return UNANSWERED
    if not isinstance(observation.error, DeadlockError):
        return blocked(
            f"the broken program did not hang here: {observation.trouble or 'it returned'}"
        )
    waiting, ranks = observation.error.waiting, range(observation.trial.world_size)
    actual = waits_of(waiting)
    company = {entry.rank: _company(entry, waiting) for entry in waiting}
    strange = [rank for rank in answer if rank not in ranks]
    if strange:
        return lost(f"{observation.trial.words()}: there is no rank {strange[0]}.")
    objections = (
        _objection(rank, answer.get(rank), actual.get(rank), company.get(rank, set()))
        for rank in ranks
    )
    wrong = next(filter(None, objections), "")
    if wrong:
        return lost(f"{observation.trial.words()}: {wrong}")
    return ok(f"{observation.trial.words()}: this is what the watcher finds")


def _objection(rank: int, answer: Wait | None, actual: Wait | None, company: set[int]) -> str:
    """Says what is wrong with the answer for a rank; empty if nothing is.

    `company` are the ranks in the same call of a collective, including this rank.
    """
    if answer == actual:
        return ""
    if actual is None:
        return f"rank {rank} waits for no rank: it has returned. Which calls did it make before?"
    if answer is None:
        return f"rank {rank} has not finished either. In which operation does it wait?"
    if answer.operation != actual.operation:
        return (
            f"rank {rank} does not wait in {answer.operation}. Go through the program as this "
            "rank: which is the first call that cannot return?"
        )
    return f"rank {rank} waits in {actual.operation}, {_misnamed(rank, answer, actual, company)}"


def _misnamed(rank: int, answer: Wait, actual: Wait, company: set[int]) -> str:
    """Says what is wrong with the ranks in the answer: first too many, then too few.

    The message says that ranks are wrong or missing, but not which ones.
    """
    if not answer.ranks:
        return f"and you name no rank that it waits for. {_WHOM}"
    named, right = ranks_in_words(sorted(answer.ranks)), answer.ranks & actual.ranks
    strange = answer.ranks - actual.ranks
    if strange and actual.operation in ("send", "recv"):
        if right:
            return f"for one of {named} only: the rank that is its src or dst."
        return f"but not for {named}. Work out src and dst for this rank, round the end too."
    if strange:
        objection = f"but not for all of {named}" if right else f"but not for {named}"
        return f"{objection}: {_why_not(rank, strange, company)} {_WHOM}"
    missing = "another is missing" if len(actual.ranks - right) == 1 else "others are missing"
    return f"{named} {'is' if len(right) == 1 else 'are'} right, and {missing}. {_WHOM}"


def _why_not(rank: int, strange: frozenset[int], company: set[int]) -> str:
    """Says why the rank does not wait for (one of) the `strange` ranks."""
    if rank in strange:
        return "a rank does not wait for itself."
    if strange & company:
        return "a rank that waits in the same call has already called it."
    return f"not all of them are members of the group in which rank {rank} waits."


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
    peers = entry[1] if isinstance(entry[1], set | frozenset | tuple | list) else [entry[1]]
    ranks = frozenset(_rank(peer) for peer in peers)
    return Wait(_VARIANTS.get(operation, operation), ranks)


def _rank(value: Any) -> int:
    rank = whole(value)
    if rank is None:
        raise _Unreadable(f"{short(value)} is no rank. {_FORM}")
    return rank
