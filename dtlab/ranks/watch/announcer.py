"""The announcer of a rank: publishes each operation before the rank can block in it.

It publishes the operation's group, and a description of everything that must be equal on all ranks
("all_reduce(float32[4], SUM)"), as a hash that is the same on every rank. Because a training step
issues dozens of operations, each description is computed once and then cached.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import torch
import torch.distributed as dist

from dtlab.ranks.groups import ByGroup, members_of
from dtlab.ranks.record.operators import Operator
from dtlab.ranks.watch import board
from dtlab.ranks.words import ranks_in_words

_REDUCTIONS = {kind.value: name for name, kind in dist.ReduceOp.RedOpType.__members__.items()}
# Whether NCCL runs a group's operations on GPU tensors, and its operations without tensors.
_Nccl = tuple[bool, bool]
_Group = tuple[int, int, tuple[int, ...], _Nccl]  # number, index of its text, members, NCCL
# Group: number, index of its text; operation: signature, index of its text; members; NCCL.
_Told = tuple[int, int, int, int, tuple[int, ...], _Nccl]
MOST_TEXT = 200  # characters of a description


class Announcer:
    """Writes the operations and waits of a rank to its part of the board."""

    def __init__(self, writer: board.Writer, world_size: int) -> None:
        self._writer = writer
        self._world = ",".join(map(str, range(world_size)))
        self._main = threading.get_ident()
        self._groups = ByGroup[_Group]()

    def forget_groups(self) -> None:
        """Drop the references to all process groups."""
        self._groups.clear()

    def describe(
        self, operator: Operator, group: Any, shape: Any, dtype: Any, reduction: Any, root: Any,
        words: str = "",
    ) -> _Told:  # fmt: skip
        """The fields of an announcement that equal operations share; `root` is a group rank.

        `shape` is that of a tensor, or has the shapes and dtypes of a list. `words` describe the
        tensors if shape and dtype do not (layouts.py).
        """
        number, group_text, members, nccl = self._groups.get(group) or self._add_group(group)
        tensors = "" if shape is None else _tensors_in_words(shape, dtype, operator.uneven)
        parts = list(filter(None, [words or tensors]))
        parts += [_REDUCTIONS.get(reduction, "?")] if reduction is not None else []
        if root is not None:
            if not 0 <= root < len(members):
                raise ValueError(_no_such_rank(f"{operator.name} has root", root, members))
            parts.append(f"root {members[root]}")
        text = f"{operator.name}({', '.join(parts)})"
        must_fit = text
        if operator.is_message:  # the receiver may use another shape
            must_fit = f"{dtype} {shape.numel() if shape is not None else None}"
        signature = board.number_of(must_fit)
        if len(text) > MOST_TEXT:
            text = f"{text[:MOST_TEXT]} ...)"
        return number, group_text, signature, self._writer.text(text), members, nccl

    def issuer(self, operator: Operator) -> Callable[..., bool]:
        """A function that announces the operations of one operator before they are issued."""
        write, place_of = self._writer.write, self._writer.text
        ident, main = threading.get_ident, self._main
        role = {"send": board.SEND, "recv": board.RECV}.get(operator.name, board.COLLECTIVE)
        has_peer = operator.peer is not None
        own = dist.get_rank() if has_peer else -1
        verb = "sends to" if operator.c10d == "send" else "receives from"

        def announce(
            index: int, shared: _Told, tensor: Any, peer: int, tag: int, waits_later: bool,
            file: str, line: int,
        ) -> bool:  # fmt: skip
            """Announce one operation; returns whether a wait for it must be announced."""
            number, group_text, signature, text, members, nccl = shared
            if has_peer:
                if not 0 <= peer < len(members) or members[peer] == own:
                    raise ValueError(_wrong_peer(own, verb, peer, members))
                peer = members[peer]
            kind = board.ISSUE if waits_later else board.CALL
            on_gpus, without_tensor = nccl
            if on_gpus and getattr(tensor, "is_cuda", without_tensor):
                kind, waits_later = board.QUEUE, False
            thread = ident()
            write(
                kind, index, 0 if thread == main else thread,
                number, group_text, signature, text, peer, tag,
                (place_of(file) << 24) + line if line else 0, role,
            )  # fmt: skip
            return waits_later

        return announce

    def wait(self, index: int, file: str, line: int) -> None:
        """Announce that this thread waits for an operation, in this line of the learner's."""
        self._write(board.WAIT, index, place=(self._writer.text(file) << 24) + line)

    def poll(self, index: int, file: str, line: int) -> None:
        """Announce that is_completed() of an operation has returned False in this line."""
        self._write(board.POLL, index, place=(self._writer.text(file) << 24) + line)

    def source(self, index: int, group: Any, source: int, tag: int) -> None:
        """Announce that an any-source receive is complete; `source` is a rank in its group."""
        number, group_text, members, _ = self._groups.get(group) or self._add_group(group)
        self._write(board.SOURCE, index, number, group_text, peer=members[source], tag=tag)

    def stranger(self, name: str, file: str, line: int) -> None:
        """Announce that an operation is called on a group that this rank is not in."""
        place = (self._writer.text(file) << 24) + line
        self._write(board.STRANGER, -1, text=self._writer.text(f"{name}()"), place=place)

    def new_group(self, ranks: list[int] | None, file: str, line: int) -> None:
        """Announce a call of `new_group`, which all ranks must make."""
        members = self._world if ranks is None else ",".join(map(str, sorted(ranks)))
        group, text = f"new_group|{self._world}", f"new_group([{members}])"
        self._write(
            board.ISSUE, -1, board.number_of(group), self._writer.text(group),
            board.number_of(text), self._writer.text(text),
            place=(self._writer.text(file) << 24) + line, role=board.NEW_GROUP,
        )  # fmt: skip

    def left(self) -> None:
        """Announce that the function has returned."""
        self._write(board.LEFT, -1)

    def sizes(self, index: int, sizes: tuple[int, ...]) -> None:
        """Announce the sizes of the all-to-all that is announced next."""
        thread = threading.get_ident()
        thread = 0 if thread == self._main else thread
        for start in range(0, len(sizes), board.SIZES_AT_ONCE):
            some = sizes[start : start + board.SIZES_AT_ONCE]
            some += (0,) * (board.SIZES_AT_ONCE - len(some))
            self._writer.write(board.SIZES, index, thread, *some)

    # ------------------------------------------------------------------ lookups

    def _write(self, kind: int, index: int, *fields: int, **more: int) -> None:
        thread = threading.get_ident()
        self._writer.write(kind, index, 0 if thread == self._main else thread, *fields, **more)

    def _add_group(self, group: Any) -> _Group:
        nccl, members = (False, False), members_of(group)
        with suppress(KeyError, ValueError):  # created without torch's functions
            backends = dict(part.split(":") for part in dist.get_backend_config(group).split(","))
            nccl = backends.get("cuda") == "nccl", "cpu" not in backends
        text = f"{group.group_name}|{','.join(map(str, members))}"
        entry = (board.number_of(text), self._writer.text(text), members, nccl)
        return self._groups.setdefault(group, entry)


def _wrong_peer(own: int, verb: str, peer: int, members: tuple[int, ...]) -> str:
    """What is wrong with a message to or from `peer`, a number in the group; and what to write."""
    size = len(members)
    if 0 <= peer < size:
        there = ""
        if members != tuple(range(dist.get_world_size())):
            there = f": it is number {peer} of the group of {ranks_in_words(members)}"
        advice = "With one rank, no message is needed: N - 1 rounds are 0 rounds."
        if size > 1:
            other = ": of two ranks, the other one is 1 - rank" if size == 2 else ""
            advice = (
                f"If you mean another rank, check how you compute its number{other}. If you mean "
                "this rank's own part, as in an all-to-all by messages, copy it without a "
                "message: buffer.copy_(part)."
            )
        return f"a rank {verb} itself{there}. {advice}"
    text = _no_such_rank(f"rank {own} {verb}", peer, members)
    number = members.index(own) if own in members else own
    if peer in members:  # a global rank, where a number in the group is expected
        return text
    if size == 1:
        return f"{text} On one rank there is no neighbour: send and receive nothing."
    if peer == 1 - number and size > 2:
        return f"{text} If you wrote 1 - rank: that is the other rank only if there are two ranks."
    if peer == number + 1:
        side = "" if verb == "sends to" else " If messages go to the right, receive from rank - 1."
        return (
            f"{text} The last rank has no right neighbour: in a ring it is (rank + 1) % {size}; "
            f"in a line or a tree, skip a rank that does not exist.{side}"
        )
    if peer == number - 1:
        return (
            f"{text} Rank 0 has no left neighbour: in a ring it is (rank - 1) % {size}; in a line "
            "or a tree, skip a rank that does not exist."
        )
    return text


def _no_such_rank(start: str, number: int, members: tuple[int, ...]) -> str:
    """A sentence for a number that no rank of the group has; `start` is its beginning."""
    last = len(members) - 1
    if members == tuple(range(dist.get_world_size())):
        ranks = f"the ranks are 0 to {last}" if last else "there is only rank 0"
        return f"{start} rank {number}, but {ranks}."
    return (
        f"{start} number {number} of a group, but the group of {ranks_in_words(members)} has the "
        f"numbers 0 to {last}. group_dst= and group_src= take such numbers; for a global rank, "
        "write dst= or src=."
    )


def _tensors_in_words(shape: Any, dtype: torch.dtype | None, uneven: bool) -> str:
    """A tensor, or a list of tensors, of which `shape` has the shapes and dtypes."""
    if dtype is not None:
        return _tensor_in_words(shape, dtype, uneven=uneven)
    words = [_tensor_in_words(*each, uneven=uneven) for each in shape]
    return ", ".join(dict.fromkeys(words) if uneven else words)


def _tensor_in_words(shape: torch.Size, dtype: torch.dtype, *, uneven: bool) -> str:
    name = str(dtype).removeprefix("torch.")
    return name if uneven else f"{name}[{', '.join(map(str, shape))}]"
