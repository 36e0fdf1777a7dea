"""The seccomp filter: system calls that sandboxed code may not make.

    which machine? ── another one ──► the process is killed
    which call?    ── newer than this list ──► ENOSYS ("no such call"), so that libraries fall back
                   ── in _REFUSED ──► EPERM ("not permitted")
                   ── in _ONLY or _NEVER ──► its arguments decide
                   ── any other ──► allowed

The filter has two effects. Code cannot reach the parts of the kernel with the most known
vulnerabilities. And the ranks of a launch share only TCP connections, whose bytes the kernel
counts: no memory, no queues, no file locks, and no sockets that could be passed on.
"""

from __future__ import annotations

import errno
import platform
import socket
import struct
from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

from dtlab.ranks.sandbox import kernel_calls as kernel

__all__ = ["Role", "put_on", "why_not"]

Role = Literal["notebook", "rank"]

# linux/audit.h; the column of a call's number in the tables below
_MACHINES = {"x86_64": (0xC000003E, 0), "aarch64": (0xC00000B7, 1)}
_NEWEST = 462  # mseal, of Linux 6.10
_X32 = 0x40000000  # x86_64 only: calls of the x32 ABI have this bit in their number

# asm/unistd.h; one number if both machines use the same, None if a machine has no such call
_Number = int | tuple[int, int | None]
_OTHERS_MEMORY: dict[str, _Number] = {
    "ptrace": (101, 117), "process_vm_readv": (310, 270), "process_vm_writev": (311, 271),
    "process_madvise": 440, "kcmp": (312, 272), "pidfd_getfd": 438,
}  # fmt: skip
_SHARED_BY_NAME: dict[str, _Number] = {  # visible to all processes of a namespace
    "shmget": (29, 194), "semget": (64, 190), "msgget": (68, 186), "mq_open": (240, 180),
    "add_key": (248, 217), "request_key": (249, 218), "keyctl": (250, 219),
    # these show when another process opens a shared file
    "inotify_init": (253, None), "inotify_init1": (294, 26), "fanotify_init": (300, 262),
}  # fmt: skip
_CHANGES_OF_ISOLATION: dict[str, _Number] = {
    "mount": (165, 40), "umount2": (166, 39), "pivot_root": (155, 41), "chroot": (161, 51),
    "setns": (308, 268), "unshare": (272, 97), "open_tree": 428, "move_mount": 429,
    "fsopen": 430, "fsconfig": 431, "fsmount": 432, "fspick": 433, "mount_setattr": 442,
    "name_to_handle_at": (303, 264), "open_by_handle_at": (304, 265),
}  # fmt: skip
_DEEP_IN_THE_KERNEL: dict[str, _Number] = {
    "bpf": (321, 280), "perf_event_open": (298, 241), "userfaultfd": (323, 282),
    "io_uring_setup": 425, "io_uring_enter": 426, "io_uring_register": 427,
    "init_module": (175, 105), "finit_module": (313, 273), "delete_module": (176, 106),
    "kexec_load": (246, 104), "kexec_file_load": (320, 294), "reboot": (169, 142),
    "swapon": (167, 224), "swapoff": (168, 225), "acct": (163, 89), "quotactl": (179, 60),
    "quotactl_fd": 443, "syslog": (103, 116), "vhangup": (153, 58), "lookup_dcookie": (212, 18),
    "iopl": (172, None), "ioperm": (173, None), "modify_ldt": (154, None),
}  # fmt: skip
# Any process can read these settings of other processes, so a rank could send data by them.
_SEEN_BY_ALL: dict[str, _Number] = {
    "setpriority": (141, 140), "sched_setparam": (142, 118), "sched_setscheduler": (144, 119),
    "sched_setaffinity": (203, 122), "sched_setattr": (314, 274), "ioprio_set": (251, 30),
    "setpgid": (109, 154), "flock": (73, 32),
}  # fmt: skip
_ALWAYS = _OTHERS_MEMORY | _SHARED_BY_NAME | _CHANGES_OF_ISOLATION | _DEEP_IN_THE_KERNEL
_REFUSED: Mapping[Role, Mapping[str, _Number]] = {
    "notebook": _ALWAYS, "rank": _ALWAYS | _SEEN_BY_ALL,
}  # fmt: skip
_CLONE3 = 435  # a filter cannot read the arguments of clone3; if it fails, libraries use `clone`


class _Test(NamedTuple):
    """A test whether the bits of an argument that are set in `mask` equal `value`."""

    argument: int
    value: int
    mask: int = 0xFFFFFFFF


# Alternatives: a call matches if all tests of at least one line hold.
_Lines = Sequence[Sequence[_Test]]
_Calls = Mapping[str, tuple[_Number, _Lines]]
_NEW_WORLDS = (
    kernel.NEW_MOUNTS | kernel.NEW_NAMES | kernel.NEW_IPC | kernel.NEW_USERS
    | kernel.NEW_PROCESSES | kernel.NEW_NETWORK | kernel.NEW_GROUPS
)  # fmt: skip
_KIND = 0xF  # mask: type of a socket, without flags
_LOCKS = (5, 6, 7, 36, 37, 38, 1024, 1026, 1036)  # fcntl: locks, leases, hints, folder events
_ROUTE, _SOCKET_DIAGNOSIS, _TCP = 0, 4, 6  # of netlink; IPPROTO_TCP


def _tcp(family: int, protocol: int) -> Sequence[_Test]:
    return [_Test(0, family), _Test(1, socket.SOCK_STREAM, _KIND), _Test(2, protocol)]


_UNIX, _INET, _INET6, _NETLINK = 1, 2, 10, 16
_ALWAYS_ONLY: _Calls = {
    "clone": ((56, 220), [[_Test(0, 0, _NEW_WORLDS)]]),
    "personality": ((135, 92), [[_Test(0, 0)], [_Test(0, 0xFFFFFFFF)]]),
}
_ONLY: Mapping[Role, _Calls] = {
    "notebook": {
        **_ALWAYS_ONLY,
        "socket": ((41, 198), [
            [_Test(0, _UNIX)], [_Test(0, _INET)], [_Test(0, _INET6)],
            [_Test(0, _NETLINK), _Test(2, _ROUTE)],
            [_Test(0, _NETLINK), _Test(2, _SOCKET_DIAGNOSIS)],
        ]),
    },
    "rank": {
        **_ALWAYS_ONLY,
        "socket": ((41, 198), [
            *(_tcp(family, number) for family in (_INET, _INET6) for number in (0, _TCP)),
            [_Test(0, _NETLINK), _Test(2, _ROUTE)],  # to list network addresses
        ]),
        # A pair of stream sockets stays a pair. A datagram socket of a pair can be bound to a
        # name, and then receive messages, with descriptors, from every process that knows it.
        "socketpair": ((53, 199), [[_Test(0, _UNIX), _Test(1, socket.SOCK_STREAM, _KIND)]]),
    },
}  # fmt: skip
_NEVER: Mapping[Role, _Calls] = {
    "notebook": {},
    "rank": {"fcntl": ((72, 25), [[_Test(1, command)] for command in _LOCKS])},
}


def why_not(machine: str = platform.machine()) -> str:
    """The reason why no filter can be installed on this machine; empty if one can."""
    if machine not in _MACHINES:
        return f"not known on {machine}"
    return kernel.why_no_filter()


def put_on(role: Role) -> None:
    """Install the filter for this process and all its descendants. Raises OSError."""
    kernel.install_filter(program(role, platform.machine()))


# The filter program (struct sock_filter, linux/filter.h), which the kernel runs for each call ----

_LOAD, _JUMP_EQUAL, _JUMP_FROM, _JUMP_ABOVE, _AND, _RETURN = 0x20, 0x15, 0x35, 0x25, 0x54, 0x06
_ALLOW, _FAIL, _KILL = 0x7FFF0000, 0x00050000, 0x80000000  # linux/seccomp.h
_NOT_PERMITTED, _NO_SUCH_CALL = _FAIL | errno.EPERM, _FAIL | errno.ENOSYS
_NUMBER_AT, _MACHINE_AT, _ARGUMENTS_AT = 0, 4, 16  # struct seccomp_data; low words come first


class _Step(NamedTuple):
    code: int
    value: int
    then: int = 0  # number of steps to skip if a jump's condition holds
    otherwise: int = 0  # and if it does not hold


def program(role: Role, machine: str) -> bytes:
    """The bytes of the filter program for a role on a machine."""
    code, column = _MACHINES[machine]
    steps = [_Step(_LOAD, _MACHINE_AT), _Step(_JUMP_EQUAL, code, 1), _Step(_RETURN, _KILL)]
    steps.append(_Step(_LOAD, _NUMBER_AT))
    if machine == "x86_64":
        steps += _where(_JUMP_FROM, _X32, [_Step(_RETURN, _KILL)])
    steps += _where(_JUMP_ABOVE, _NEWEST, [_Step(_RETURN, _NO_SUCH_CALL)])
    steps += _where(_JUMP_EQUAL, _CLONE3, [_Step(_RETURN, _NO_SUCH_CALL)])
    for number in _REFUSED[role].values():
        steps += _where_called(number, column, [_Step(_RETURN, _NOT_PERMITTED)])
    for number, lines in _ONLY[role].values():
        steps += _where_called(number, column, _decide(lines, _ALLOW, _NOT_PERMITTED))
    for number, lines in _NEVER[role].values():
        steps += _where_called(number, column, _decide(lines, _NOT_PERMITTED, _ALLOW))
    steps.append(_Step(_RETURN, _ALLOW))
    return b"".join(struct.pack("=HBBI", s.code, s.then, s.otherwise, s.value) for s in steps)


def _where(jump: int, value: int, steps: list[_Step]) -> list[_Step]:
    """Steps that run only if a condition holds."""
    return [_Step(jump, value, 0, len(steps)), *steps]


def _where_called(number: _Number, column: int, steps: list[_Step]) -> list[_Step]:
    value = number if isinstance(number, int) else number[column]
    return [] if value is None else _where(_JUMP_EQUAL, value, steps)


def _decide(lines: _Lines, matched: int, unmatched: int) -> list[_Step]:
    """Steps that return `matched` if the arguments match one of the lines, else `unmatched`."""
    steps: list[_Step] = []
    for line in lines:
        end = [_Step(_RETURN, matched)]
        for test in reversed(line):
            masked = [_Step(_AND, test.mask)] if test.mask != 0xFFFFFFFF else []
            jump = _Step(_JUMP_EQUAL, test.value, 0, len(end))
            end = [_Step(_LOAD, _ARGUMENTS_AT + 8 * test.argument), *masked, jump, *end]
        steps += end
    return [*steps, _Step(_RETURN, unmatched)]
