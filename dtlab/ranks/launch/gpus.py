"""Reservation of GPUs on a node that several learners share.

A reservation is a name that one process at a time may bind, an abstract socket of Linux: nobody
else on the node can take it, no file is left, and it is free as soon as its process has ended,
however that was. Whoever finds too few free cards waits, and says so. What others run besides
dtlab is not looked at.
"""

from __future__ import annotations

import contextlib
import re
import socket
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from dtlab.errors import LaunchError
from dtlab.ranks import system
from dtlab.ranks.protocol import Spec

__all__ = ["reserved", "visible"]

VISIBLE = "CUDA_VISIBLE_DEVICES"
TRY_EVERY = 0.25  # seconds
LIST_LIMIT = 20.0  # seconds that the driver may take to list its cards
_NAME = "\0dtlab-card-"  # an abstract socket begins with a zero byte
_QUEUE = "\0dtlab-queue-"  # of a node: who waits first has it, so that nobody is outrun
_LISTED = re.compile(r"^(?P<indent>\s*)(?:GPU|MIG) .*\(UUID: (?P<uuid>[^)]+)\)")

_lock = threading.Lock()
_held: dict[str, socket.socket] = {}  # this process's reservations,
_uses: Counter[str] = Counter()  # and how many of its launches and sessions use each


@contextlib.contextmanager
def reserved(spec: Spec) -> Iterator[Spec]:
    """A launch's `Spec` with the cards that its ranks may see, theirs until this ends.

    Only where each rank has a GPU of its own; else nothing is reserved. Raises LaunchError.
    """
    if "nccl" not in spec.backend or not system.LINUX:
        yield spec
        return
    node = _listed()
    if not node:
        yield spec
        return
    mine = _take(_visible(spec.environment, node), spec.world_size, _QUEUE + node[0][0])
    try:
        yield replace(spec, environment={**spec.environment, VISIBLE: ",".join(mine)})
    finally:
        _give_back(mine)


def visible(environment: Mapping[str, str]) -> list[str] | None:
    """Cards that a process with this environment may use, by UUID; MIG devices where there are.

    None where the driver does not list them.
    """
    node = _listed()
    return None if node is None else _visible(environment, node)


def _listed() -> list[list[str]] | None:
    """Each GPU of this node: its own UUID, then those of its MIG devices; None: not told."""
    try:
        listed = subprocess.run(
            ["nvidia-smi", "-L"], capture_output=True, text=True, timeout=LIST_LIMIT, check=True
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return None
    cards: list[list[str]] = []
    for found in filter(None, map(_LISTED.match, listed.splitlines())):
        if found["indent"]:
            cards[-1].append(found["uuid"])
        else:
            cards.append([found["uuid"]])
    return cards


def _visible(environment: Mapping[str, str], cards: Sequence[Sequence[str]]) -> list[str]:
    wish = environment.get(VISIBLE)
    if wish is None:
        return [one for card in cards for one in card[1:] or card]
    return _chosen(wish, cards)


def _chosen(wish: str, cards: Sequence[Sequence[str]]) -> list[str]:
    """What CUDA_VISIBLE_DEVICES names, up to the first that there is not, as CUDA has it."""
    found: list[str] = []
    for name in filter(None, (one.strip() for one in wish.split(","))):
        if name.isdigit():
            names = [*cards[int(name)][1:2], cards[int(name)][0]] if int(name) < len(cards) else []
        else:
            names = [one for card in cards for one in card if one.startswith(name)]
        if not names:
            break
        found.append(names[0])
    return [*dict.fromkeys(found)]


def _take(cards: Sequence[str], count: int, queue_of_node: str) -> list[str]:
    """Reserve so many of `cards`; waits until they are free."""
    if len(cards) < count:
        raise LaunchError(
            f"{count} ranks need a GPU each, and {VISIBLE} names {len(cards)} that there are: "
            f"{', '.join(cards) or 'none'}."
        )
    queue, told = None, False
    try:
        while True:
            queue = queue or _bound(queue_of_node)
            mine, free = _try(cards, count) if queue else ([], _free(cards))
            if mine:
                return mine
            if not told:
                told = True
                print(
                    f"Waiting for {count} GPU{'s' * (count > 1)}: {free} of {len(cards)} "
                    f"{'is' if free == 1 else 'are'} free, the others are reserved by launches of "
                    "other notebooks on this node. Ctrl-C gives up.",
                    flush=True,
                )
            time.sleep(TRY_EVERY)
    finally:
        if queue:
            queue.close()


def _try(cards: Sequence[str], count: int) -> tuple[list[str], int]:
    """So many cards, those first that nobody here uses; or none, and how many were free."""
    with _lock:
        fresh: dict[str, socket.socket] = {}
        for card in cards:
            one = None if card in _held or len(fresh) == count else _bound(_NAME + card)
            if one:
                fresh[card] = one
        own = [card for card in cards if card in _held]
        mine = [*fresh, *own][:count]
        if len(mine) < count:
            for one in fresh.values():
                one.close()
            return [], len(mine)
        _held.update(fresh)
        _uses.update(mine)
        return mine, len(mine)


def _free(cards: Sequence[str]) -> int:
    mine, free = _try(cards, len(cards))
    if mine:
        _give_back(mine)
    return free


def _give_back(mine: Sequence[str]) -> None:
    with _lock:
        _uses.subtract(mine)
        for card in mine:
            if not _uses[card]:
                _held.pop(card).close()


def _bound(name: str) -> socket.socket | None:
    """The name, if nobody has it."""
    one = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    try:
        one.bind(name)
    except OSError:
        one.close()
        return None
    return one
