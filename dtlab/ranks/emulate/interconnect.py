"""The emulated interconnect on a rank: makes operations take as long as on the emulated links.

    dist.all_reduce ──► recorder's kernel ──► carrier: posts it to the ports ──► gloo, for real
                                                           │                          │
    Work.wait       ──► recorder's hook ────► waiter: waits for gloo, ◄───────────────┘
                                              then sleeps until the ports' time

Ranks exchange real messages, whose contents are never changed; the messages only seem to take
longer. Communication that takes longer than its emulated time is not delayed further. `ports.py`
computes the cost of a message, `predict/built_in.py` that of a built-in collective.

A rank always wakes up a little late, and with eight ranks on two cores much too late; passing a
message to gloo takes time too. These delays must not add up over the rounds of a ring. So every
thread has a clock (`Clock`) that is behind the real one by these delays, and the next operation
is posted at the time of that clock.
"""

from __future__ import annotations

import hashlib
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch.distributed as dist

from dtlab.predict import Route
from dtlab.ranks.emulate.delivery import POLL, Clock, Deliveries, Due
from dtlab.ranks.emulate.ports import Ports
from dtlab.ranks.groups import ByGroup, members_of
from dtlab.ranks.record.operators import Operator
from dtlab.torch_internals import source_rank

__all__ = ["Wire"]

_now = time.perf_counter_ns  # as in ports.py, CLOCK_MONOTONIC


class Wire:
    """Delays the operations of one rank by the times that `ports` computes."""

    def __init__(self, rank: int, ports: Ports) -> None:
        self.rank = rank
        self.on_delivery: Callable[[Any], None] = lambda work: None  # set by the recorder
        self._ports = ports
        self._unbox_group, self._unbox = dist.ProcessGroup.unbox, dist.Work.unbox
        self._groups = ByGroup[tuple[int, tuple[int, ...]]]()
        self._routes: dict[tuple[str, int, int], tuple[Route, list[int]]] = {}
        self._counts: Counter[tuple[int, ...]] = Counter()  # operations by group, or channel
        # Receives from any source that are not complete, by group and tag.
        self._any_source: Counter[tuple[int, int]] = Counter()
        self._due: dict[int, Due] = {}  # by the id of its Work
        self._clock = Clock()
        self._deliveries = Deliveries(ports, self._delivered)

    def compute(self, seconds: float) -> None:
        """Sleep for the time that `seconds` of compute take on the emulated cluster."""
        stretched = int(seconds * self._ports.cluster.slowdown * 1e9)
        self._clock.sleep_until(self._clock.now() + stretched)

    # ------------------------------------------------------------------ posting

    def carrier(self, operator: Operator, redispatch: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap an operator's `redispatch` so that it also posts the operation to the ports."""
        post = self._post_message if operator.is_message else self._post_collective
        work_at, async_at = operator.work, operator.async_op

        def carry(keyset: Any, *args: Any) -> Any:
            begun = _now()
            due = post(operator, args)
            try:
                result = redispatch(keyset, *args)
            except BaseException:
                self._withdraw(due)
                raise
            boxed = result if work_at is None else result[work_at]
            if boxed is None:  # no Work, so the caller has waited
                self._clock.sleep_until(self._end(due))
                return result
            self._clock.exclude(_now() - begun)
            due.work = due.real = self._unbox(boxed)
            if async_at is None or not (len(args) <= async_at or args[async_at]):
                self._due[id(due.work)] = due
                return result
            boxed = self._deliveries.replace(due)
            self._due[id(due.work)] = due
            self._deliveries.add(due)
            return boxed if work_at is None else (*result[:work_at], boxed, *result[work_at + 1 :])

        return carry

    def _post_message(self, operator: Operator, args: tuple[Any, ...]) -> Due:
        """Post a send or a receive. The k-th send on a channel matches the k-th receive.

        The channel of a receive from any source is known only when the receive is complete. Until
        then, it is also unknown which messages other receives with the same group and tag get.
        """
        posted = self._clock.now()
        group, members = self._group(args[operator.group])
        tag = args[operator.tag] if operator.tag is not None else 0
        peer = -1 if operator.peer is None else members[args[operator.peer]]
        size = _size(args[0])
        inbox = (group, tag)
        if operator.name == "send":
            ends = (self.rank, peer)
        else:
            ends = (peer, self.rank)
            if peer < 0:
                self._any_source[inbox] += 1
            if self._any_source[inbox]:
                return Due(0, (), posted, (inbox, *ends, size))
        channel = (group, tag, *ends)
        key = self._next(channel)
        self._ports.message(key, *ends, size, posted)
        return Due(key, channel, posted, (inbox, *ends, size))

    def _post_collective(self, operator: Operator, args: tuple[Any, ...]) -> Due:
        posted = self._clock.now()
        group, members = self._group(args[operator.group])
        root = -1 if operator.root is None else members[args[operator.root]]
        route, ports = self._route(operator.name, group, members, root)
        size = 0 if operator.payload is None else _size(args[operator.payload])
        key = self._next((group,))
        whole = size * len(members) if operator.part else size
        self._ports.collective(key, _key(group), route, ports, whole, posted)
        return Due(key, (group,), posted)

    def _next(self, channel: tuple[int, ...]) -> int:
        """The key of a channel's next operation; all ranks of the channel get the same key."""
        self._counts[channel] += 1
        return _key(*channel, self._counts[channel])

    def _withdraw(self, due: Due) -> None:
        """Undo the posting of an operation that raised when it was issued."""
        if due.key:
            self._counts[due.channel] -= 1
            self._ports.withdraw(due.key)
        elif due.message is not None and due.message[1] < 0:
            self._any_source[due.message[0]] -= 1

    def _group(self, boxed: Any) -> tuple[int, tuple[int, ...]]:
        """The number of a group, which is the same on all ranks, and its members."""
        group = self._unbox_group(boxed)
        known = self._groups.get(group)
        if known is None:
            members = members_of(group)
            digest = hashlib.blake2b(f"{group.group_name}|{members}".encode(), digest_size=7)
            known = self._groups[group] = (int.from_bytes(digest.digest()), members)
        return known

    def _route(
        self, name: str, group: int, members: tuple[int, ...], root: int
    ) -> tuple[Route, list[int]]:
        known = self._routes.get((name, group, root))
        if known is None:
            route = Route(name, self._ports.cluster, members, root)
            known = self._routes[name, group, root] = route, self._ports.ports_on(route.pairs)
        return known

    # ------------------------------------------------------------------ waiting

    def waiter(self, plain: Callable[..., Any]) -> Callable[..., Any]:
        """A replacement of `Work.wait` that also waits until the emulated links have delivered."""

        def wait(work: Any, *args: Any, **kwargs: Any) -> Any:
            due = self._due.pop(id(work), None)
            if due is None:
                return plain(work, *args, **kwargs)
            with due.lock:
                if not due.is_here:
                    plain(due.real, *args, **kwargs)
                    due.is_here = True
            self._clock.sleep_until(self._end(due))
            if due.future is not None:
                self._deliveries.deliver(due)
            return True

        return wait

    def _delivered(self, work: Any) -> None:
        self._due.pop(id(work), None)
        self.on_delivery(work)

    def _end(self, due: Due) -> int:
        """The emulated end of an operation whose real part is complete, in nanoseconds."""
        if due.message is None:
            while (over := self._ports.end(due.key)) is None:  # not all members have posted it
                time.sleep(POLL * 1e-9)
            return over
        inbox, src, dst, size = due.message
        if due.key:
            end = self._ports.end(due.key)
        else:
            if src < 0:
                self._any_source[inbox] -= 1
                src = self._world_rank(inbox[0], source_rank(due.real))
            due.key = self._next((*inbox, src, dst))
            end = self._ports.message(due.key, src, dst, size, due.posted)
        if end is None:
            # The other rank has not posted its side under this key, but the message has arrived.
            end = self._ports.message(due.key, src, dst, size, self._clock.now())
        return end or 0

    def _world_rank(self, group: int, rank: int) -> int:
        return next(members for number, members in self._groups.values() if number == group)[rank]


def _key(*numbers: int) -> int:
    """A hash of a tuple of numbers, which is the same in all processes and never 0."""
    return hash(numbers) & (1 << 62) - 1 or 1


def _size(payload: Any) -> int:
    """Bytes of a tensor, of a list of tensors, or of the first list in a list of lists."""
    while isinstance(payload, list) and payload and isinstance(payload[0], list):
        payload = payload[0]
    if isinstance(payload, list):
        return sum(tensor.nbytes for tensor in payload)
    return int(payload.nbytes)
