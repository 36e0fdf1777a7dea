"""Wrappers of Linux system calls for which Python 3.11 has no function."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import platform
import socket
import struct

__all__ = [
    "NEW_GROUPS", "NEW_IPC", "NEW_MOUNTS", "NEW_NAMES", "NEW_NETWORK", "NEW_PROCESSES",
    "NEW_USERS", "bind_readonly", "change_root", "drop_capabilities", "huge_pages",
    "install_filter", "keep_privileges_away", "loopback_up", "mount_private", "mount_proc",
    "mount_scratch", "unshare", "why_no_filter",
]  # fmt: skip

# linux/sched.h
NEW_MOUNTS, NEW_GROUPS, NEW_NAMES, NEW_IPC = 0x00020000, 0x02000000, 0x04000000, 0x08000000
NEW_USERS, NEW_PROCESSES, NEW_NETWORK = 0x10000000, 0x20000000, 0x40000000
# linux/mount.h
_READONLY, _NO_SUID, _NO_DEVICES, _REMOUNT = 1, 2, 4, 32
_BIND, _RECURSIVE, _PRIVATE, _DETACH = 4096, 16384, 1 << 18, 2
_ATTRIBUTES = 1 | 2 | 4  # MOUNT_ATTR_RDONLY, _NOSUID, _NODEV
_HERE, _AT_RECURSIVE = -100, 0x8000  # linux/fcntl.h
# asm/unistd.h
_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}
_SECCOMP = {"x86_64": 317, "aarch64": 277}
_MOUNT_SETATTR = 442
# linux/prctl.h, linux/seccomp.h, linux/capability.h
_PR_SET_DUMPABLE, _PR_SET_SECCOMP, _PR_CAPBSET_DROP, _PR_SET_NO_NEW_PRIVS = 4, 22, 24, 38
_FILTER_MODE, _IS_ACTION_THERE, _FAIL = 2, 2, 0x00050000
_CAPABILITIES = 0x20080522
_COLLAPSE, _HUGE = 25, 2 * 2**20  # asm-generic/mman-common.h; bytes of a huge page
_SIOCGIFFLAGS, _SIOCSIFFLAGS, _IFF_UP = 0x8913, 0x8914, 1

_libc = ctypes.CDLL(None, use_errno=True)


def _checked(result: int, call: str) -> None:
    if result != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{call}: {os.strerror(code)}")


def unshare(kinds: int) -> None:
    """Move this process to new namespaces of these kinds. Raises OSError."""
    if not hasattr(_libc, "unshare"):
        raise OSError("this system has no namespaces")
    _checked(_libc.unshare(kinds), "unshare")


def _mount(source: str, target: str, kind: str, flags: int, options: str = "") -> None:
    _checked(
        _libc.mount(
            source.encode(), target.encode(), kind.encode(), ctypes.c_ulong(flags),
            options.encode(),
        ),
        f"mount {target}",
    )  # fmt: skip


def mount_private() -> None:
    """Hide later mounts in this mount namespace from all other namespaces."""
    _mount("none", "/", "", _RECURSIVE | _PRIVATE)


def mount_scratch(target: str, size: int, mode: str = "1777") -> None:
    """Mount an empty in-memory file system (tmpfs) of at most `size` bytes."""
    flags = _NO_SUID | _NO_DEVICES
    _mount("tmpfs", target, "tmpfs", flags, f"size={size},mode={mode},nr_inodes=20000")


def mount_proc(target: str) -> None:
    """Mount /proc for this PID namespace; users other than root see only their own processes."""
    _mount("proc", target, "proc", _NO_SUID | _NO_DEVICES, "hidepid=2")


def bind_readonly(source: str, target: str, *, devices: bool = False) -> None:
    """Bind-mount a file or folder, with all mounts below it, read-only at a second path."""
    _mount(source, target, "", _BIND | _RECURSIVE)
    if devices:
        return
    attributes = (ctypes.c_uint64 * 4)(_ATTRIBUTES, 0, 0, 0)  # struct mount_attr
    result = _libc.syscall(
        ctypes.c_long(_MOUNT_SETATTR), _HERE, target.encode(), _AT_RECURSIVE,
        ctypes.byref(attributes), ctypes.c_size_t(ctypes.sizeof(attributes)),
    )  # fmt: skip
    if result != 0 and ctypes.get_errno() == errno.ENOSYS:  # before Linux 5.12
        noexec = os.statvfs(target).f_flag & os.ST_NOEXEC  # set by another namespace: must stay
        flags = _BIND | _REMOUNT | _READONLY | _NO_SUID | _NO_DEVICES | noexec
        _mount("none", target, "", flags)
    else:
        _checked(result, f"make {target} read-only")


def change_root(folder: str) -> None:
    """Make a mounted `folder` the root of the file system, and unmount the old root."""
    number = _PIVOT_ROOT.get(platform.machine())
    if number is None:
        raise OSError(f"pivot_root is not known on {platform.machine()}")
    os.chdir(folder)
    _checked(_libc.syscall(ctypes.c_long(number), b".", b"."), "pivot_root")
    _checked(_libc.umount2(b".", _DETACH), "umount")  # the old root is mounted over the new one
    os.chdir("/")


def loopback_up() -> None:
    """Switch on the loopback device of this network namespace."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        request = struct.pack("16sH22x", b"lo", 0)
        flags = struct.unpack_from("H", fcntl.ioctl(sock, _SIOCGIFFLAGS, request), 16)[0]
        fcntl.ioctl(sock, _SIOCSIFFLAGS, struct.pack("16sH22x", b"lo", flags | _IFF_UP))


def drop_capabilities() -> None:
    """Drop all capabilities, including those of root. This cannot be undone."""
    number = 0
    while _libc.prctl(_PR_CAPBSET_DROP, number, 0, 0, 0) == 0:
        number += 1
    header = struct.pack("=Ii", _CAPABILITIES, 0)
    _checked(_libc.capset(header, bytes(24)), "capset")


def why_no_filter() -> str:
    """The reason why this kernel does not support seccomp filters; empty if it does."""
    number = _SECCOMP.get(platform.machine())
    if number is None:
        return f"not known on {platform.machine()}"
    action = struct.pack("=I", _FAIL)
    if _libc.syscall(ctypes.c_long(number), _IS_ACTION_THERE, 0, action) != 0:
        return os.strerror(ctypes.get_errno())
    return ""


def install_filter(program: bytes) -> None:
    """Install a seccomp filter (an array of struct sock_filter), which checks each system call.

    It applies to this thread and all its descendants, and cannot be removed. Raises OSError.
    """
    steps = ctypes.create_string_buffer(program, len(program))
    fprog = struct.pack("@HP", len(program) // 8, ctypes.addressof(steps))  # struct sock_fprog
    result = _libc.prctl(_PR_SET_SECCOMP, _FILTER_MODE, fprog, 0, 0)
    _checked(result, "a filter of system calls")


def keep_privileges_away() -> None:
    """Prevent programs that this process starts from gaining rights. This cannot be undone."""
    _libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    _libc.prctl(_PR_SET_DUMPABLE, 1, 0, 0, 0)  # a change of user makes /proc/self unreadable


def huge_pages() -> None:
    """Collapse this process's memory into huge pages, as far as possible (Linux 6.1).

    A fork then copies a table of hundreds of pages instead of tens of thousands.
    """
    with open("/proc/self/maps") as lines:
        areas = [line.split() for line in lines]
    for area, rights, *rest in areas:
        if rights != "rw-p" or rest[3:] not in ([], ["[heap]"]):
            continue
        begin, end = (int(address, 16) for address in area.split("-"))
        for at in range(-(-begin // _HUGE) * _HUGE, end - _HUGE + 1, _HUGE):
            _libc.madvise(ctypes.c_void_p(at), ctypes.c_size_t(_HUGE), _COLLAPSE)
