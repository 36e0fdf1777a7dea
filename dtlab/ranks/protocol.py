"""Messages between notebook, supervisor and ranks, as plain data without PyTorch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from dtlab import torch_internals
from dtlab.predict import Cluster

# Titles of the processes in the process list.
SERVER_TITLE = "dtlab-rank-server"
SUPERVISOR_TITLE = "dtlab-rank-supervisor"
RANK_TITLE = "dtlab-rank"
OUTER_TITLE = "dtlab-sandbox"
NOTEBOOK_TITLE = "dtlab-notebook"

IN_RANK = "DTLAB_RANK"  # environment variable with the rank's number, set in each launched rank
STATUS_FD = "DTLAB_STATUS_FD"  # also set in a rank: descriptor of its socket to the supervisor

# If set, launches with trace=False run without the watcher; used to measure the watcher's cost.
UNWATCHED = "DTLAB_UNWATCHED"
TOUCH_WARNINGS = "DTLAB_TOUCH_WARNINGS"  # "0" in the notebook's environment turns them off

# Upper limit in seconds on the timeout of every launch; a grader sets it for a notebook's cells.
MOST_SECONDS = "DTLAB_MOST_SECONDS"

# Modules that take long to import. The server imports them once a rank has imported one of them.
SLOW_MODULES = (
    torch_internals.COMPILER,  # the first optimizer and the first DDP import it
    "torch.distributed.fsdp",
    "torch.distributed.tensor.parallel",
    "torch.distributed.pipelining",
)
# Words in the code of a call that is likely to import them: the server then imports them first.
SLOW_WORDS = (b"DistributedDataParallel", b"optim", b"fsdp", b"fully_shard", b"pipelining",
              b"parallelize_module", b"DTensor", b"distribute_tensor")  # fmt: skip
ASKED_FOR_SLOW_MODULES = 3  # exit status of a supervisor if a rank imported one of them

# Requests to a server, with the file descriptors that each one carries.
LAUNCH = b"L"  # fork a supervisor: control socket, then (channel, stdout, stderr) of each rank
SANDBOX = b"W"  # fork the outer process of a sandbox, with a server in it: its socket
NOTEBOOK = b"N"  # fork the process of a notebook: a socket for cells, one for its wait status
MODULES = b"M"  # import modules of dtlab: a pipe with their names
READY = b"R"  # the server's byte on its socket: it has imported what it should

# Frames between the notebook and a supervisor, and from a rank to the notebook.
SPEC = b"s"  # notebook -> supervisor: a Spec
CALL = b"c"  # notebook -> supervisor: the packed (function, arguments), opened by ranks only
OUTCOME = b"o"  # supervisor -> notebook: an Outcome, when the ranks are done or have been ended
OPENED = b"O"  # supervisor -> notebook: the ranks of a session are ready
TURN = b"u"  # notebook -> supervisor: a Turn; the packed call goes to each of its ranks
STOP = b"p"  # notebook -> supervisor: interrupt the turn
INPUT = b"i"  # notebook -> rank: the packed last argument, which no other rank receives
REPLY = b"a"  # notebook -> rank, as plain data: the answer to a question
VALUE = b"v"  # rank -> notebook: the function's return value, packed; plain data if `graded`
# rank -> notebook, always as plain data (plain.py), which cannot contain code:
FAILURE = b"f"  # a RemoteFailure
THREAD_FAILURE = b"t"  # a RemoteFailure that ended a thread, not the rank
RECORDS = b"r"  # the recorder's records
SHOWN = b"y"  # rich output of a cell: data by MIME type, and metadata
ASK = b"q"  # a question of the rank, which waits for the answer (asking.py)
TOUCHES = b"h"  # tensors that were touched before the rank had waited for their operation

# Between a grader and a sandbox.
ISOLATION = b"w"  # grader -> outer process: the isolation to set up
MISSING = b"m"  # outer process -> grader, plain: the kinds of isolation that could not be set up
CELL = b"x"  # grader -> notebook's process, plain: a cell's number and source
DONE = b"d"  # notebook's process -> grader, plain: the cell's outputs
TAKE = b"k"  # grader -> notebook's process, plain: the name of a variable
TAKEN = b"n"  # notebook's process -> grader, plain: the variable's value
ENDED = b"e"  # parent of the notebook's process -> grader, plain: its wait status

# Single letters between a rank and its supervisor.
READY = b"R"  # the group is joined
RETURNED = b"F"  # the function has returned
RAISED = b"X"  # the function has raised an exception or called sys.exit
IMPORTED = b"I"  # the rank imported a slow module that the server should import
DELIVERED = b"D"  # everything has been sent to the notebook
COUNT = b"K"  # request to measure the rank's memory now
GO = b"g"  # all ranks are ready: start
LEAVE = b"l"  # all ranks are done: exit
COUNTED = b"k"  # the rank's memory has been measured
REJOIN = b"j"  # the process group is broken: create a new one
CUT = b"c"  # on a separate socket: cut all connections to peers
CUT_STORE = b"C"  # cut connections to the store, on which ranks wait while they create a group


def mixed_seed(seed: int, rank: int) -> int:
    """Return a seed that differs from rank to rank and is the same in every run."""
    return (seed * 1_000_003 + rank + 1) % 2**63


@dataclass(frozen=True)
class Spec:
    """All parameters of a launch except the function and its arguments."""

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
    cluster: Cluster | None = None  # cluster whose links are emulated
    inputs: bool = False  # whether each rank receives a different last argument
    graded: bool = False  # ranks run untrusted code: in a sandbox, with plain data only
    stays: bool = False  # ranks of a session, which receive their calls later
    seed_by_rank: bool = False  # whether each rank has a different seed, made from `seed`
    survivors: bool = False  # whether the launch goes on without ranks that died

    def seed_of(self, rank: int) -> int:
        """Return the seed of a rank's generators."""
        return mixed_seed(self.seed, rank) if self.seed_by_rank else self.seed

    @property
    def looks_at_buffers(self) -> bool:
        """Whether ranks note tensors that are touched too early, which records must confirm."""
        asked_for = self.environment.get(TOUCH_WARNINGS) != "0"
        return self.trace and asked_for and not self.graded


@dataclass(frozen=True)
class Turn:
    """One cell or function that ranks of a session run."""

    ranks: tuple[int, ...]
    timeout: float | None  # seconds


class Frame(NamedTuple):
    """One line of a traceback: file, line and function."""

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
        """A failure from its fields in order. Raises ValueError or TypeError for anything else."""
        kind, message, chain = fields
        if kind not in ("exception", "exit", "memory", "result"):
            raise ValueError(f"not a kind of failure: {kind!r}")
        entries = [
            ([Frame(str(file), int(line), str(name)) for file, line, name in frames], str(text))
            for frames, text in chain
        ]
        return cls(kind, str(message), entries)


class OpInfo(NamedTuple):
    """One operation of one rank, as plain data.

    `partners` are the ranks that the operation waits for. `file` and `line` show where it was
    issued; `wait_file` and `wait_line` show where the rank waits for it, if that is known.
    """

    rank: int
    name: str
    description: str  # name and arguments: "all_reduce(float32[4], SUM)"
    partners: tuple[int, ...]
    tag: int
    group: int  # number of the process group
    members: tuple[int, ...]  # ranks of the group
    file: str
    line: int
    wait_file: str = ""
    wait_line: int = 0
    sizes: tuple[int, ...] = ()  # of an all-to-all, as in `Extra` (record/layouts.py)
    lacks: tuple[int, ...] = ()  # members that have not called this collective yet


class Touch(NamedTuple):
    """A tensor that was touched before the rank had waited for the operation that uses it.

    `kind` is "read", "changed", "forgotten" if the rank never waited, or the name of the other
    operation that uses it. `row` is the operation's row in the records of the rank. `file` and
    `line` show where the tensor was touched; they are "" and 0 if that is not known.
    """

    row: int
    kind: str
    time: int  # nanoseconds of CLOCK_MONOTONIC
    file: str
    line: int


@dataclass(frozen=True)
class Finding:
    """A deadlock or a mismatch: why ranks cannot make progress, or must be stopped."""

    reason: Literal["standstill", "collective", "message", "stranger", "new_group", "sizes"]
    ops: list[OpInfo]
    left: list[int]  # ranks that have returned
    unmatched: list[OpInfo] = field(default_factory=list)  # other operations not complete
    seconds: float = 0.0  # since the ranks started
    idle: list[int] = field(default_factory=list)  # ranks that do not run this turn
    threads: bool = False  # several threads of a rank called collectives on the group
    apart: list[OpInfo] = field(default_factory=list)  # see `Machine.apart`
    groups: list[tuple[int, ...]] = field(default_factory=list)  # members of each new group
    exchanged: bool = False  # whether messages between ranks were complete before
    stacks: dict[int, list[Frame]] = field(default_factory=dict)  # of main threads in `ops`
    helpers: list[int] = field(default_factory=list)  # ranks of `ops` that a thread has called


Reason = Literal["returned", "failed", "timeout", "deadlock", "interrupted"]


@dataclass
class RankEnd:
    """How one rank ended, as observed by its supervisor."""

    state: Literal["returned", "raised", "died", "stopped", "idle"] = "stopped"
    status: int | None = None  # as os.waitpid reports it, for a rank that died
    stack: list[Frame] = field(default_factory=list)  # its last known stack, outermost first


@dataclass
class Outcome:
    """How a launch ended."""

    reason: Reason
    ranks: list[RankEnd]
    failed_first: list[int]  # ranks that raised or died, in the order of detection
    wire: list[int | None]  # bytes that each rank sent on its sockets, if they can be counted
    finding: Finding | None = None  # for "deadlock"
    waiting: list[OpInfo] = field(default_factory=list)  # operations of the blocked ranks
    unreceived: list[OpInfo] = field(default_factory=list)  # sends that were not received
    loopback: int | None = None  # bytes with headers that ranks sent in any way (sandbox only)
    hidden: int | None = None  # the part of `loopback` that no socket of a rank accounts for
    pairs: list[tuple[int, int, int]] | None = None  # `wire` by pair: source, target, bytes
    resident: list[list[int | None]] = field(default_factory=list)  # bytes of memory, by rank
    rejoined: bool = False  # the ranks of a session have created a new process group
    over: str = ""  # why a session cannot continue
    calls: list[int] = field(default_factory=list)  # operations that each rank has called
    active: bool = False  # whether ranks still called operations in the last half second
    posted: list[OpInfo] = field(default_factory=list)  # messages without a partner
    polled: list[tuple[OpInfo, list[int]]] = field(default_factory=list)  # with ranks they lack
    lost: list[int] = field(default_factory=list)  # ranks without which the launch went on
