"""Messages between notebook, supervisor and ranks, as plain data without PyTorch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from dtlab.predict import Cluster

# What the processes call themselves in the process list.
SERVER_TITLE = "dtlab-rank-server"
SUPERVISOR_TITLE = "dtlab-rank-supervisor"
RANK_TITLE = "dtlab-rank"
WARDEN_TITLE = "dtlab-rank-warden"
ROOM_TITLE = "dtlab-room"

IN_RANK = "DTLAB_RANK"  # this environment variable is set inside a launched rank
STATUS_FD = "DTLAB_STATUS_FD"  # and this one: its line to the supervisor

# Set to anything, it keeps the watcher out of launches with trace=False, to measure what it costs.
UNWATCHED = "DTLAB_UNWATCHED"

# Seconds that no launch may pass, whatever its timeout: a grader sets it for a notebook's cells.
MOST_SECONDS = "DTLAB_MOST_SECONDS"

# Modules that take long to import. The server has them ready once a rank has asked for one.
SLOW_MODULES = (
    "torch._dynamo",  # behind the first optimizer and the first DistributedDataParallel
    "torch.distributed.fsdp",
    "torch.distributed.tensor.parallel",
    "torch.distributed.pipelining",
)
ASKED_FOR_SLOW_MODULES = 3  # a supervisor's exit status: a rank did

# What a server is asked to fork; descriptors come with it.
LAUNCH = b"L"  # a supervisor: the control socket, then (channel, stdout, stderr) of each rank
WARDEN = b"W"  # a server behind walls: its socket
ROOM = b"N"  # a notebook's cells, behind walls: the socket for them, one to tell how they ended
MODULES = b"M"  # nothing, but to have modules of dtlab ready: a pipe with their names

# Frames between the notebook and a supervisor, and from a rank to the notebook.
SPEC = b"s"  # notebook -> supervisor: a Spec
CALL = b"c"  # notebook -> supervisor: the packed (function, arguments), opened by ranks only
OUTCOME = b"o"  # supervisor -> notebook: an Outcome; the ranks are gone by then
OPENED = b"O"  # supervisor -> notebook: the ranks of a session are ready
TURN = b"u"  # notebook -> supervisor: a Turn; the packed call goes to each of its ranks
STOP = b"p"  # notebook -> supervisor: interrupt the turn
INPUT = b"i"  # notebook -> rank: the packed last argument, which no other rank sees
VALUE = b"v"  # rank -> notebook: what the function returned, packed; plain where sealed
# rank -> notebook, always as plain data (plain.py), which nothing in a rank can make run:
FAILURE = b"f"  # a RemoteFailure
THREAD_FAILURE = b"t"  # a RemoteFailure that ended a thread, not the rank
RECORDS = b"r"  # what the recorder saw
SHOWN = b"y"  # what a cell shows: by MIME type, and metadata
CHANGED = b"h"  # messages changed before anybody waited for them

# Between a grader and what is behind walls.
WALLS = b"w"  # grader -> warden: the walls to raise
MISSING = b"m"  # warden -> grader, plain: the walls that could not be raised
CELL = b"x"  # grader -> room, plain: its number, its source
DONE = b"d"  # room -> grader, plain: what came of it
TAKE = b"k"  # grader -> room, plain: a name
TAKEN = b"n"  # room -> grader, plain: what it stands for
ENDED = b"e"  # a room's doorkeeper -> grader, plain: its wait status

# Single letters between a rank and its supervisor.
READY = b"R"  # the group is joined
RETURNED = b"F"  # the function has returned
RAISED = b"X"  # the function has raised, or left by sys.exit
IMPORTED = b"I"  # modules were imported that the server could have had ready
DELIVERED = b"D"  # everything has been handed to the notebook
COUNT = b"K"  # count my memory now
GO = b"g"  # all are ready: begin
LEAVE = b"l"  # all are done: end
COUNTED = b"k"  # its memory has been counted
REJOIN = b"j"  # the process group is broken: make another
CUT = b"c"  # on a line of its own: cut all connections to peers
CUT_STORE = b"C"  # and to the store, where ranks wait for a group that others do not make


@dataclass(frozen=True)
class Spec:
    """Everything that a launch needs besides the function and its arguments."""

    world_size: int
    backend: str
    timeout: float | None  # seconds
    trace: bool
    seed: int
    threads: int
    memory_limit: int | None  # bytes per rank
    environment: dict[str, str]
    folder: str
    path: list[str]
    cluster: Cluster | None = None  # whose links are emulated
    inputs: bool = False  # whether each rank is sent a last argument of its own
    sealed: bool = False  # ranks run code that nobody trusts: behind walls, plain data only
    stays: bool = False  # ranks of a session, which run what is sent later


@dataclass(frozen=True)
class Turn:
    """One cell or function that ranks of a session run."""

    ranks: tuple[int, ...]
    timeout: float | None  # seconds


class Frame(NamedTuple):
    """One line of a traceback: where, and in which function."""

    file: str
    line: int
    function: str


@dataclass(frozen=True)
class RemoteFailure:
    """An exception of a rank as plain data; `chain` begins with the exception itself."""

    kind: Literal["exception", "exit", "memory", "result"]
    message: str
    chain: Sequence[tuple[Sequence[Frame], str]]

    @classmethod
    def of(cls, fields: Any) -> RemoteFailure:
        """From its fields in order. Raises ValueError or TypeError for anything else."""
        kind, message, chain = fields
        if kind not in ("exception", "exit", "memory", "result"):
            raise ValueError(f"no kind of failure: {kind!r}")
        told = [
            ([Frame(str(file), int(line), str(name)) for file, line, name in frames], str(text))
            for frames, text in chain
        ]
        return cls(kind, str(message), told)


class OpInfo(NamedTuple):
    """One operation of one rank, as plain data. `partners` are the ranks that it needs."""

    rank: int
    name: str
    description: str  # with what was passed: "all_reduce(float32[4], SUM)"
    partners: tuple[int, ...]
    tag: int
    group: int  # a number that stands for it
    members: tuple[int, ...]  # of the group
    file: str
    line: int


@dataclass(frozen=True)
class Finding:
    """Why ranks will never come back, or should not go on."""

    reason: Literal["standstill", "collective", "message", "stranger", "new_group"]
    ops: list[OpInfo]
    left: list[int]  # ranks that have returned
    unmatched: list[OpInfo] = field(default_factory=list)  # posted, and not complete either
    seconds: float = 0.0  # since the ranks began
    idle: list[int] = field(default_factory=list)  # ranks that do not take part
    threads: bool = False  # several threads of a rank called collectives on the group


Reason = Literal["returned", "failed", "timeout", "deadlock", "interrupted"]


@dataclass
class RankEnd:
    """How one rank ended, as its supervisor saw it."""

    state: Literal["returned", "raised", "died", "stopped", "idle"] = "stopped"
    status: int | None = None  # as os.waitpid reports it, for a rank that died
    stack: list[Frame] = field(default_factory=list)  # where it was last seen, outermost first


@dataclass
class Outcome:
    """How a launch ended."""

    reason: Reason
    ranks: list[RankEnd]
    failed_first: list[int]  # ranks that raised or died, in the order in which that was seen
    wire: list[int | None]  # bytes that each rank put on its sockets, where they can be counted
    finding: Finding | None = None  # for "deadlock"
    waiting: list[OpInfo] = field(default_factory=list)  # what blocked ranks waited for
    unreceived: list[OpInfo] = field(default_factory=list)  # sends that nobody received
    loopback: int | None = None  # bytes, headers included, that ranks sent by any way (walls only)
    hidden: int | None = None  # those of them that no socket of a rank was seen to send
    pairs: list[tuple[int, int, int]] | None = None  # of `wire`: source, target, bytes
    resident: list[list[int | None]] = field(default_factory=list)  # counts of each rank's memory
    rejoined: bool = False  # a session's ranks have another process group since
    over: str = ""  # why a session cannot go on
