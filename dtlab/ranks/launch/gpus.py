"""Reservation of GPUs on a node that several learners share.

A reservation is a bound abstract socket of Linux, whose name only one process at a time can bind.
It leaves no file, and ends with its process, however that ends. If too few GPUs are free, the
launch waits and prints a message. GPU use outside dtlab is not considered.
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

__all__ = ["VISIBLE", "reserved", "visible"]

VISIBLE = "CUDA_VISIBLE_DEVICES"
TRY_EVERY = 0.25  # seconds
LIST_LIMIT = 20.0  # seconds that the driver may take to list its GPUs
_NAME = "\0dtlab-card-"  # an abstract socket begins with a zero byte
_QUEUE = "\0dtlab-queue-"  # one per node, held by the first waiting launch: keeps the order
_LISTED = re.compile(r"^(?P<indent>\s*)(?:GPU|MIG) .*\(UUID: (?P<uuid>[^)]+)\)")

_lock = threading.Lock()
_held: dict[str, socket.socket] = {}  # reservations of this process
_uses: Counter[str] = Counter()  # how many launches and sessions of this process use each GPU


@contextlib.contextmanager
def reserved(spec: Spec) -> Iterator[Spec]:
    """Reserve one GPU per rank for the context; yield the `Spec` with CUDA_VISIBLE_DEVICES set.

    Without the NCCL backend, nothing is reserved. Raises LaunchError if there are too few GPUs.
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
    """UUIDs of the GPUs, or of their MIG devices, that a process with this environment may use.

    Returns None if the driver does not list the GPUs.
    """
    node = _listed()
    return None if node is None else _visible(environment, node)


def _listed() -> list[list[str]] | None:
    """Per GPU of this node: its UUID, then those of its MIG devices; None if they are unknown."""
    try:
        listed = subprocess.run(
            ["nvidia-smi", "-L"], capture_output=True, text=True, timeout=LIST_LIMIT, check=True
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return None
    cards: list[list[str]] = []
    for match in filter(None, map(_LISTED.match, listed.splitlines())):
        if match["indent"]:
            cards[-1].append(match["uuid"])
        else:
            cards.append([match["uuid"]])
    return cards


def _visible(environment: Mapping[str, str], cards: Sequence[Sequence[str]]) -> list[str]:
    wish = environment.get(VISIBLE)
    if wish is None:
        return [uuid for card in cards for uuid in card[1:] or card]
    return _chosen(wish, cards)


def _chosen(wish: str, cards: Sequence[Sequence[str]]) -> list[str]:
    """The GPUs that CUDA_VISIBLE_DEVICES names, up to the first unknown one, as in CUDA."""
    chosen: list[str] = []
    for name in filter(None, (part.strip() for part in wish.split(","))):
        if name.isdigit():
            names = [*cards[int(name)][1:2], cards[int(name)][0]] if int(name) < len(cards) else []
        else:
            names = [uuid for card in cards for uuid in card if uuid.startswith(name)]
        if not names:
            break
        chosen.append(names[0])
    return [*dict.fromkeys(chosen)]


def _take(cards: Sequence[str], count: int, queue_of_node: str) -> list[str]:
    """Wait until `count` of the GPUs are free, and reserve them. Raises LaunchError."""
    if len(cards) < count:
        raise LaunchError(
            f"{count} ranks need a GPU each, but {VISIBLE} names {len(cards)} existing GPUs: "
            f"{', '.join(cards) or 'none'}. Use fewer ranks, or name more GPUs."
        )
    queue, announced = None, False
    try:
        while True:
            queue = queue or _bound(queue_of_node)
            mine, free = _try(cards, count) if queue else ([], _free(cards))
            if mine:
                return mine
            if not announced:
                announced = True
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
    """Reserve `count` GPUs, unused ones first; return them and `count`.

    If fewer are free, it reserves none, and returns an empty list and the number that is free.
    """
    with _lock:
        fresh: dict[str, socket.socket] = {}
        for card in cards:
            lock = None if card in _held or len(fresh) == count else _bound(_NAME + card)
            if lock:
                fresh[card] = lock
        held = [card for card in cards if card in _held]
        mine = [*fresh, *held][:count]
        if len(mine) < count:
            for lock in fresh.values():
                lock.close()
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
    """A socket bound to the name, or None if another process has it."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    try:
        sock.bind(name)
    except OSError:
        sock.close()
        return None
    return sock
