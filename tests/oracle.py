"""Random SPMD programs as data, ranks that run them, and an oracle that knows how they end.

The oracle shares no code and no method with `ranks/watch/matching.py`, which follows events as
they come. Here nothing is followed. A program is known as a whole, so operations are *paired on
paper* first, and then the oracle computes how far each rank can get:

1. A message's ends are paired by counting: the k-th send of rank a to rank b on a group with a tag
   belongs to b's k-th receive from a on that group with that tag. Likewise the n-th collectives of
   all members of a group. One rank posts each end, in the order of its program, so no interleaving
   can change the pairing.
2. Let `at[r]` be the operation that rank r is in; all up to it are posted. Rank r may continue if
   that operation does not block, or if its partners are posted. Progress elsewhere never takes a
   permission away, so from (0, ..., 0) every interleaving ends in the same, greatest `at`: the
   least fixpoint. Hence one order of advancing stands for all of them.
3. A receive from any source breaks (1), because its partner is the first rank that sends. So the
   oracle tries every choice, in every order; each yields a *world*, in which the receive has a
   source and (1) and (2) hold. If worlds end differently, the program's end is a matter of timing.
"""

from __future__ import annotations

import math
import random
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
import torch.distributed as dist
from hypothesis import strategies as st

Kind = Literal[
    "send", "recv", "isend", "irecv", "recv_any", "irecv_any", "wait",
    "all_reduce", "iall_reduce", "broadcast", "reduce", "all_gather", "barrier",
]  # fmt: skip
Verdict = Literal["finish", "standstill", "mismatch", "mismatch, standstill"]

SENDS = ("send", "isend")
ANY_SOURCE_AHEAD = True  # whether programs have irecvs from any source
RECEIVES = ("recv", "irecv", "recv_any", *(("irecv_any",) if ANY_SOURCE_AHEAD else ()))
POSTED = ("isend", "irecv", "irecv_any", "iall_reduce")  # they return at once; `wait` may follow
COLLECTIVES = ("all_reduce", "iall_reduce", "broadcast", "reduce", "all_gather", "barrier")
KINDS = (*SENDS, *RECEIVES, *COLLECTIVES, "wait")
DTYPES = ("float32", "int64")
SHAPES = ((1,), (4,), (2, 2), (8,), (1000,), (70_000,))
REDUCTIONS = ("SUM", "MAX")


@dataclass(frozen=True)
class Op:
    """One operation of one rank; fields that its kind has no use for stay as they are."""

    kind: Kind
    group: int = 0  # in `Program.groups`
    peer: int = -1  # global rank; of a message from a known one
    tag: int = 0
    dtype: str = "float32"
    shape: tuple[int, ...] = (4,)
    reduction: str = "SUM"
    root: int = 0  # global rank
    handle: int = -1  # of an operation that returns at once, and of its `wait`

    def __str__(self) -> str:
        where = f", group={self.group}" if self.group else ""
        tensor = f"{self.dtype}{list(self.shape)}"
        if self.kind == "wait":
            return f"wait(#{self.handle})"
        if self.kind in SENDS + RECEIVES:
            end = "any" if self.peer < 0 else f"rank {self.peer}"
            number = f" #{self.handle}" if self.handle >= 0 else ""
            return f"{self.kind}({end}, {tensor}, tag={self.tag}{where}){number}"
        return f"{_short(self.kind)}({', '.join(map(str, self.description[1:]))}{where})"

    @property
    def description(self) -> tuple[Any, ...]:
        """What must be equal on all ends that belong together."""
        if self.kind in SENDS + RECEIVES:
            return ("message", self.dtype, math.prod(self.shape))
        kind, tensor = _short(self.kind), (self.dtype, self.shape)
        if kind == "barrier":
            return (kind,)
        if kind == "all_gather":
            return (kind, *tensor)
        if kind == "broadcast":
            return (kind, *tensor, self.root)
        return (kind, *tensor, self.reduction, *([self.root] if kind == "reduce" else []))


def _short(kind: str) -> str:
    return "all_reduce" if kind == "iall_reduce" else kind


@dataclass(frozen=True)
class Program:
    """What each rank does, and the groups that all ranks make first; group 0 is the world."""

    groups: tuple[tuple[int, ...], ...]
    ranks: tuple[tuple[Op, ...], ...]

    def __str__(self) -> str:
        lines = [f"groups: {self.groups}"]
        for rank, ops in enumerate(self.ranks):
            lines.append(f"rank {rank}: " + "; ".join(map(str, ops)))
        return "\n".join(lines)

    @property
    def world_size(self) -> int:
        return len(self.ranks)


# ------------------------------------------------------------------------- on a real rank

_KEPT: list[Any] = []  # operations without a wait must live as long as their rank


def run_program(program: Program) -> int:
    """Run this rank's part; returns how many operations it did."""
    groups: list[Any] = [None, *(dist.new_group(list(ranks)) for ranks in program.groups[1:])]
    works: dict[int, Any] = {}
    ops = program.ranks[dist.get_rank()]
    for op in ops:
        if op.kind == "wait":
            works[op.handle].wait()
            continue
        tensor = torch.ones(op.shape, dtype=getattr(torch, op.dtype))
        members = len(program.groups[op.group])
        work = _issue(op, tensor, groups[op.group], members)
        _KEPT.append((tensor, work))
        if op.handle >= 0:
            works[op.handle] = work
    return len(ops)


def _issue(op: Op, tensor: torch.Tensor, group: Any, members: int) -> Any:
    reduction = getattr(dist.ReduceOp, op.reduction)
    calls: dict[str, Callable[[], Any]] = {
        "send": lambda: dist.send(tensor, op.peer, group, op.tag),
        "recv": lambda: dist.recv(tensor, op.peer, group, op.tag),
        "recv_any": lambda: dist.recv(tensor, None, group, op.tag),
        "irecv_any": lambda: dist.irecv(tensor, None, group, op.tag),
        "isend": lambda: dist.isend(tensor, op.peer, group, op.tag),
        "irecv": lambda: dist.irecv(tensor, op.peer, group, op.tag),
        "all_reduce": lambda: dist.all_reduce(tensor, reduction, group),
        "iall_reduce": lambda: dist.all_reduce(tensor, reduction, group, async_op=True),
        "broadcast": lambda: dist.broadcast(tensor, op.root, group),
        "reduce": lambda: dist.reduce(tensor, op.root, reduction, group),
        "all_gather": lambda: dist.all_gather(_rows(tensor, members), tensor, group),
        "barrier": lambda: dist.barrier(group),
    }
    return calls[op.kind]()


def _rows(tensor: torch.Tensor, count: int) -> list[torch.Tensor]:
    return [torch.empty_like(tensor) for _ in range(count)]


# ------------------------------------------------------------------------- the oracle

Place = tuple[int, int]  # rank, index in its program
Sources = Mapping[Place, int]  # the rank that a receive from any source got its message from


def verdicts(program: Program) -> frozenset[Verdict]:
    """How the program can end: one element, or several where that is a matter of timing."""
    return frozenset(verdict(program, sources) for sources in worlds(program))


def verdict(program: Program, sources: Sources) -> Verdict:
    """How the program ends if its receives from any source get these sources."""
    paper = _Paper(program, sources)
    return paper.verdict(paper.reach(buffered=False))


def worlds(program: Program) -> list[dict[Place, int]]:
    """Every way in which receives from any source can get their messages."""
    ends: list[dict[Place, int]] = []
    seen: set[frozenset[tuple[Place, int]]] = set()
    todo: list[dict[Place, int]] = [{}]
    while todo:
        sources = todo.pop()
        if (key := frozenset(sources.items())) in seen:
            continue
        seen.add(key)
        paper = _Paper(program, sources)
        choices = list(paper.choices(paper.reach(buffered=False)))
        todo += [{**sources, place: source} for place, source in choices]
        if not choices:
            ends.append(sources)
    return ends


def verdicts_of_every_interleaving(program: Program) -> frozenset[Verdict]:
    """Compute `verdicts` by brute force: one step of one rank at a time, in every order.

    For small programs, to check what the head of this file says.
    """
    ends: set[Verdict] = set()
    seen: set[Any] = set()
    todo: list[tuple[tuple[int, ...], dict[Place, int]]] = [((0,) * program.world_size, {})]
    while todo:
        at, sources = todo.pop()
        if (key := (at, frozenset(sources.items()))) in seen:
            continue
        seen.add(key)
        paper = _Paper(program, sources)
        after: list[tuple[tuple[int, ...], dict[Place, int]]] = [
            *((moved, sources) for moved in paper.moves(at)),
            *((at, {**sources, place: source}) for place, source in paper.choices(at)),
        ]
        todo += after
        if not after:
            ends.add(paper.verdict(at))
    return frozenset(ends)


def reach(program: Program, sources: Sources, *, buffered: bool) -> list[int]:
    """How many operations each rank has completed when no rank can continue.

    `buffered`: no send waits for its receive.
    """
    return _Paper(program, sources).reach(buffered=buffered)


class _Paper:
    """A program whose operations are paired on paper."""

    def __init__(self, program: Program, sources: Sources) -> None:
        self.program, self.sources = program, sources
        self.ends: dict[Any, dict[Any, Place]] = defaultdict(dict)  # by meeting: rank, place
        self.meeting: dict[Place, tuple[Any, int]] = {}  # the meeting of an op, and its size
        self.issued: dict[tuple[int, int], int] = {}  # by rank and handle: its index
        for rank, ops in enumerate(program.ranks):
            self._pair(rank, ops)

    def _pair(self, rank: int, ops: Sequence[Op]) -> None:
        count: dict[Any, int] = defaultdict(int)
        for index, op in enumerate(ops):
            if op.kind == "wait":
                continue
            if op.handle >= 0:
                self.issued[rank, op.handle] = index
            who: Any = rank
            if op.kind in COLLECTIVES:
                line: Any = ("collective", op.group)
                size = len(self.program.groups[op.group])
            else:
                peer = self.sources.get((rank, index), op.peer)
                if peer < 0 and op.kind == "recv_any":
                    return  # its source is not known: the rank reaches nothing after it
                if peer < 0:
                    continue
                who = op.kind in SENDS
                line, size = self._channel(op, rank, peer), 2
            meeting = (line, count[line, who])
            count[line, who] += 1
            self.ends[meeting][who] = (rank, index)
            self.meeting[rank, index] = (meeting, size)

    def _channel(self, op: Op, rank: int, peer: int) -> Any:
        ends = (rank, peer) if op.kind in SENDS else (peer, rank)
        return ("message", op.group, op.tag, *ends)

    def reach(self, *, buffered: bool) -> list[int]:
        """The fixpoint `at`."""
        at, moved = [0] * self.program.world_size, True
        while moved:
            moved = False
            for rank, ops in enumerate(self.program.ranks):
                while at[rank] < len(ops) and self._may_pass((rank, at[rank]), at, buffered):
                    at[rank] += 1
                    moved = True
        return at

    def _may_pass(self, place: Place, at: Sequence[int], buffered: bool) -> bool:
        rank, index = place
        op = self.program.ranks[rank][index]
        if op.kind in POSTED:
            return True
        if op.kind == "wait":
            index = self.issued[rank, op.handle]
            op = self.program.ranks[rank][index]
        if op.kind in SENDS and buffered:
            return True
        return self._complete((rank, index), at)

    def _complete(self, place: Place, at: Sequence[int]) -> bool:
        if place not in self.meeting:
            return False
        meeting, size = self.meeting[place]
        return len(self._present(meeting, at)) == size

    def _present(self, meeting: Any, at: Sequence[int]) -> list[Op]:
        """The operations of a meeting that are posted."""
        places = self.ends[meeting].values()
        return [self.program.ranks[rank][index] for rank, index in places if index <= at[rank]]

    def mismatched(self, at: Sequence[int]) -> bool:
        """Whether operations that belong together, and are posted, differ."""
        return any(
            len({op.description for op in self._present(meeting, at)}) > 1 for meeting in self.ends
        )

    def verdict(self, at: Sequence[int]) -> Verdict:
        """The verdict on a state in which no rank can continue."""
        stuck = any(here < len(ops) for here, ops in zip(at, self.program.ranks, strict=True))
        if self.mismatched(at):
            return "mismatch, standstill" if stuck else "mismatch"
        return "standstill" if stuck else "finish"

    def moves(self, at: Sequence[int]) -> Iterator[tuple[int, ...]]:
        """Every state that is one step of one rank away."""
        for rank, here in enumerate(at):
            if here < len(self.program.ranks[rank]) and self._may_pass((rank, here), at, False):
                yield (*at[:rank], here + 1, *at[rank + 1 :])

    def choices(self, at: Sequence[int]) -> Iterator[tuple[Place, int]]:
        """Posted receives from any source that have no source yet, each with a possible one."""
        for rank, (here, ops) in enumerate(zip(at, self.program.ranks, strict=True)):
            for index, op in enumerate(ops[: here + 1]):
                place = (rank, index)
                if op.kind not in ("recv_any", "irecv_any") or place in self.sources:
                    continue
                for source in self.program.groups[op.group]:
                    if source != rank and self._has_sent(source, place, at):
                        yield place, source

    def _has_sent(self, source: int, place: Place, at: Sequence[int]) -> bool:
        """Whether `source` has sent a message that no earlier receive of the rank takes.

        (An irecv from any source has a unique tag, so no other receive competes with it.)
        """
        rank, here = place
        channel = self._channel(self.program.ranks[rank][here], rank, source)
        taken = sum(
            1 for meeting, ends in self.ends.items() if meeting[0] == channel and False in ends
        )
        end = self.ends.get((channel, taken), {}).get(True)
        return end is not None and end[1] <= at[source]


# ------------------------------------------------------------------------- random programs


def random_program(rng: random.Random) -> Program:
    """A program that finishes; in most cases with a fault or two put into it."""
    draft = _Draft(rng)
    for _ in range(rng.randint(1, 6)):
        draft.event()
    draft.place_waits()
    fault = rng.choice(("none", "none", "order", "order", "order", "fit", "fit", "any"))
    for _ in range(0 if fault == "none" else rng.choice((1, 1, 2))):
        draft.mutate({"order": ORDER_FAULTS, "fit": FIT_FAULTS}.get(fault, _ANY_FAULTS))
    return draft.program()


def programs() -> st.SearchStrategy[Program]:
    """Random programs for Hypothesis, which shrinks the numbers that the generator draws."""
    return st.randoms(use_true_random=False).map(random_program)


def unshrinkable_programs() -> st.SearchStrategy[Program]:
    """Random programs without shrinking, for slow tests; Hypothesis would prefer simple ones."""
    return st.integers(0, 2**32).map(lambda seed: random_program(random.Random(seed)))


class _Draft:
    """A program that is being built: each event is appended to the ranks that take part in it.

    Since all ranks take part in events in the same order, a program without faults finishes.
    """

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        world_size = rng.choice((2, 2, 2, 3, 3, 4, 4, 5, 6))
        self.ranks: list[list[Op]] = [[] for _ in range(world_size)]
        self.groups = [tuple(range(world_size))]
        for _ in range(rng.choice((0, 0, 1, 2))):
            size = rng.randint(2, world_size)
            self.groups.append(tuple(sorted(rng.sample(range(world_size), size))))
        self.handles = 0
        self.from_any_source = 0

    def program(self) -> Program:
        return Program(tuple(self.groups), tuple(tuple(ops) for ops in self.ranks))

    # -------------------------------------------------------------- events that fit

    def event(self) -> None:
        self.rng.choice((self.collective, self.message, self.message, self.ring))()

    def template(self, kind: Kind) -> Op:
        """An operation with everything but its ends."""
        rng, group = self.rng, self.rng.randrange(len(self.groups))
        shape = rng.choice(SHAPES[:-1]) if rng.random() < 0.95 else SHAPES[-1]
        dtype, root = rng.choice(DTYPES), rng.choice(self.groups[group])
        tag, reduction = rng.choice((0, 0, 0, 1)), rng.choice(REDUCTIONS)
        return Op(kind, group, -1, tag, dtype, shape, reduction, root)

    def collective(self) -> None:
        op = self.template(self.rng.choice(COLLECTIVES))  # type: ignore[arg-type]
        for rank in self.groups[op.group]:
            self.add(rank, op)

    def message(self) -> None:
        op = self.template("send")
        source, target = self.rng.sample(self.groups[op.group], 2)
        receive: Any = self.rng.choice(RECEIVES if self.from_any_source < 3 else ("recv", "irecv"))
        from_any_source = receive in ("recv_any", "irecv_any")
        self.from_any_source += from_any_source
        if receive == "irecv_any":
            op = replace(op, tag=10 + self.handles)  # see `_has_sent`
        self.add(source, replace(op, kind=self.rng.choice(SENDS), peer=target))
        self.add(target, replace(op, kind=receive, peer=-1 if from_any_source else source))

    def ring(self) -> None:
        """Each sends to the next and receives from the one before, one of both in advance."""
        op = self.template("send")
        members = self.groups[op.group]
        send_first = self.rng.random() < 0.5
        for place, rank in enumerate(members):
            after, before = members[(place + 1) % len(members)], members[place - 1]
            if send_first:
                self.add(rank, replace(op, kind="isend", peer=after))
                self.add(rank, replace(op, kind="recv", peer=before))
            else:
                self.add(rank, replace(op, kind="irecv", peer=before))
                self.add(rank, replace(op, kind="send", peer=after))

    def add(self, rank: int, op: Op) -> None:
        if op.kind in POSTED:
            op = replace(op, handle=self.handles)
            self.handles += 1
        self.ranks[rank].append(op)

    def place_waits(self) -> None:
        """Wait for what returned at once: anywhere behind it, or in one case of five never."""
        for ops in self.ranks:
            for op in [op for op in ops if op.handle >= 0]:
                if self.rng.random() < 0.8:
                    behind = self.rng.randint(ops.index(op) + 1, len(ops))
                    ops.insert(behind, Op("wait", handle=op.handle))

    # -------------------------------------------------------------- faults

    def mutate(self, faults: Sequence[Callable[[_Draft], bool]]) -> None:
        """Put one in; some draws find nothing to change, then others are tried."""
        for _ in range(8):
            if self.rng.choice(faults)(self):
                return

    def pick(self, *kinds: str) -> tuple[list[Op], int] | None:
        """A rank's operations and the index of one of these kinds."""
        found = [(ops, i) for ops in self.ranks for i, op in enumerate(ops) if op.kind in kinds]
        return self.rng.choice(found) if found else None

    def change(self, kinds: Sequence[str], field: str, values: Sequence[Any] | None) -> bool:
        """Give one operation of these kinds another value; None: a rank of its group."""
        if (picked := self.pick(*kinds)) is None:
            return False
        ops, index = picked
        op, owner = ops[index], self._owner(ops)
        members = [rank for rank in self.groups[op.group] if field == "root" or rank != owner]
        others = [v for v in (members if values is None else values) if v != getattr(op, field)]
        if not others:
            return False
        ops[index] = replace(op, **{field: self.rng.choice(others)})
        return True

    def _owner(self, ops: list[Op]) -> int:
        return next(rank for rank, each in enumerate(self.ranks) if each is ops)

    def drop(self) -> bool:
        """A rank leaves an operation out."""
        if (picked := self.pick(*(k for k in KINDS if k != "wait"))) is None:
            return False
        ops, index = picked
        op = ops.pop(index)
        if op.handle >= 0:
            ops[:] = [each for each in ops if each.handle != op.handle]
        return True

    def twice(self) -> bool:
        """A rank does something once too often."""
        if (picked := self.pick("send", "recv", "barrier", "all_reduce", "broadcast")) is None:
            return False
        ops, index = picked
        ops.insert(self.rng.randint(index, len(ops)), ops[index])
        return True

    def swap(self) -> bool:
        """A rank does two things in the other order."""
        pairs = [
            (ops, i) for ops in self.ranks for i in range(len(ops) - 1)
            if ops[i].handle < 0 or ops[i].handle != ops[i + 1].handle
        ]  # fmt: skip
        if not pairs:
            return False
        ops, index = self.rng.choice(pairs)
        ops[index : index + 2] = ops[index + 1], ops[index]
        return True

    def block(self) -> bool:
        """Make all isends, or all irecvs, blocking."""
        ahead, blocking = self.rng.choice((("isend", "send"), ("irecv", "recv")))
        if self.pick(ahead) is None:
            return False
        for ops in self.ranks:
            gone = {op.handle for op in ops if op.kind == ahead}
            ops[:] = [op for op in ops if op.kind != "wait" or op.handle not in gone]
            kind: Any = blocking
            ops[:] = [replace(op, kind=kind, handle=-1) if op.kind == ahead else op for op in ops]
        return True

    def wait_at_once(self) -> bool:
        """A rank waits for something right after it has issued it."""
        if (picked := self.pick(*POSTED)) is None:
            return False
        ops, index = picked
        handle = ops[index].handle
        ops[:] = [op for op in ops if op.kind != "wait" or op.handle != handle]
        place = next(i for i, op in enumerate(ops) if op.handle == handle)
        ops.insert(place + 1, Op("wait", handle=handle))
        return True

    def other_group(self) -> bool:
        """A rank uses a wrong group, which it and its partner are in."""
        if (picked := self.pick(*(k for k in KINDS if k != "wait"))) is None:
            return False
        ops, index = picked
        op = ops[index]
        needed = {self._owner(ops), op.peer if op.peer >= 0 else self._owner(ops)}
        if op.kind in ("broadcast", "reduce"):
            needed.add(op.root)
        groups = [g for g, ranks in enumerate(self.groups) if g != op.group and needed <= {*ranks}]
        if not groups:
            return False
        ops[index] = replace(op, group=self.rng.choice(groups))
        return True

    def other_collective(self) -> bool:
        """A rank calls another collective."""
        kinds = [kind for kind in COLLECTIVES if kind != "iall_reduce"]
        return self.change(kinds, "kind", kinds)


Fault = Callable[[_Draft], bool]
_KNOWN_ENDS = (*SENDS, "recv", "irecv")
_WITH_TENSOR = tuple(kind for kind in KINDS if kind not in ("wait", "barrier"))
ORDER_FAULTS: tuple[Fault, ...] = (
    _Draft.drop,
    _Draft.twice,
    _Draft.swap,
    _Draft.swap,
    _Draft.block,
    _Draft.block,
    _Draft.wait_at_once,
    _Draft.other_group,
    lambda draft: draft.change((*SENDS, "recv", "irecv", "recv_any"), "tag", (0, 1, 2)),
    lambda draft: draft.change(_KNOWN_ENDS, "peer", None),
)
FIT_FAULTS: tuple[Fault, ...] = (
    _Draft.other_collective,
    lambda draft: draft.change(_WITH_TENSOR, "dtype", DTYPES),
    lambda draft: draft.change(_WITH_TENSOR, "shape", SHAPES),
    lambda draft: draft.change(("all_reduce", "iall_reduce", "reduce"), "reduction", REDUCTIONS),
    lambda draft: draft.change(("broadcast", "reduce"), "root", None),
)
_ANY_FAULTS = (*ORDER_FAULTS, *FIT_FAULTS)
