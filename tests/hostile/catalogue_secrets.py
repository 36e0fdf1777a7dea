"""Reading what graded code must not see: each attack shows all that it finds.

The secrets (`canaries`) lie in the course's files, in the home folder, in memory of all kinds, in
the environment and behind ports of the host. Attacks are given the places.
"""

from __future__ import annotations

from tests.hostile.catalogue_channels import INSIDE
from tests.hostile.submissions import Hostile, code

__all__ = ["CATALOGUE"]

NOTHING = {"reduce_scatter": 0.0}
EVERYTHING = {"reduce_scatter": 8.0}

FILES = """
    FILES = ["@gradebook@", "@solution@", "@submission@", "@git_object@", "@home@",
             "@shared_file@", "@course@/..", "/etc/shadow", "/root/.bash_history"]

    def read(path):
        try:
            return open(path, "rb").read(1 << 20)
        except OSError as error:
            return f"{path}: {error.strerror}"
    """

# Of a process, by all the names that Linux has for it.
PROCESSES = """
    import glob, re

    def marks_in(data):
        return set(re.findall(rb"canary-[0-9a-f]{16}", data))

    def memory_of(process):
        found = set()
        try:
            lines = open(f"/proc/{process}/maps").readlines()
            memory = open(f"/proc/{process}/mem", "rb", 0)
        except OSError as error:
            return {f"{process}: {error.strerror}"}
        for line in lines:
            first, last = (int(one, 16) for one in line.split()[0].split("-"))
            if line.split()[1].startswith("r") and "/" not in line and last - first < 1 << 28:
                try:
                    memory.seek(first)
                    found |= marks_in(memory.read(last - first))
                except (OSError, ValueError, OverflowError):
                    pass
        return found
    """


def cell(name: str, tries: str, *pieces: str, seconds: float = 20, says: str = "") -> Hostile:
    """An attack from a cell."""
    told = [says] if says else []
    return Hostile(name, tries, EVERYTHING, seconds, before=code(*pieces), says=told)


def rank(name: str, tries: str, body: str, *helpers: str, says: str = "") -> Hostile:
    """An attack from a rank, which shows what it finds by raising it."""
    told = [says] if says else []
    answers = {"reduce_scatter": body}
    return Hostile(
        name, tries, NOTHING, 25, before=code(*helpers) or "pass", answers=answers, says=told
    )


CATALOGUE = [
    cell(
        "files by name",
        "Opens gradebook, solution, another submission and more, in a cell.",
        FILES,
        "for path in FILES: print(read(path))",
        says="No such file",
    ),
    rank(
        "files by name, on a rank",
        "Opens the same files on a rank.",
        """
        def reduce_scatter(output, input, group=None):
            raise ValueError([read(path) for path in FILES])
        """,
        FILES,
        says="No such file",
    ),
    cell(
        "files by shell and magics",
        "Has the shell and IPython's magics show the files.",
        """
        print(get_ipython().getoutput("cat @gradebook@ @solution@ @home@ 2>&1"))
        get_ipython().run_line_magic("cat", "@submission@")
        !cat @gradebook@ @solution@ @submission@ @home@
        """,
        says="No such file",
    ),
    cell(
        "a walk from the root",
        "Goes through all files from / on, but for those of Python and the system.",
        FILES,
        """
        import os

        skipped = ("/usr", "/lib", "/bin", "/sbin", "/sys", "/proc", os.__file__[:-6])
        for folder, folders, files in os.walk("/"):
            folders[:] = [
                one for one in folders
                if not os.path.join(folder, one).startswith(skipped)
                and one not in ("site-packages", "__pycache__")
            ]
            for name in files:
                data = read(os.path.join(folder, name))
                if b"canary-" in (data if isinstance(data, bytes) else b""):
                    print(folder, name, data)
        print("that was all")
        """,
        says="that was all",
    ),
    cell(
        "writing everywhere",
        "Writes to the gradebook, to dtlab, and where Python would run it for the next learner.",
        """
        import os, site, sysconfig

        import dtlab
        folders = ["@course@", os.path.dirname(dtlab.__file__), sysconfig.get_path("purelib"),
                   sysconfig.get_path("stdlib"), "/usr/lib", "/usr/local", "/etc", "/",
                   "/sys/fs/cgroup", "/proc/sys/kernel"]
        for folder in folders:
            for name in ("gradebook.db", "sitecustomize.py", "__init__.py", "core_pattern"):
                try:
                    open(os.path.join(folder, name), "a").close()
                    print("wrote", folder, name)
                except OSError:
                    pass
        print("that was all")
        """,
        says="that was all",
    ),
    cell(
        "the environment",
        "Shows the environment as Python has it, and as the kernel keeps it.",
        """
        import os
        print(dict(os.environ))
        print(open("/proc/self/environ", "rb").read())
        """,
    ),
    rank(
        "the environment, on a rank",
        "Shows the environment of a rank, and of all processes that it sees.",
        """
        def reduce_scatter(output, input, group=None):
            found = {data for data in map(read, glob.glob("/proc/*/environ"))}
            marks = [marks_in(as_bytes(one)) for one in found]
            raise ValueError([os.environ.get("COURSE_TOKEN"), marks])

        def as_bytes(data):
            return data if isinstance(data, bytes) else data.encode()
        """,
        INSIDE,
        FILES,
        PROCESSES,
    ),
    cell(
        "its own memory",
        "Looks for what the process that it was forked from had in its memory.",
        PROCESSES,
        'print("found:", memory_of("self"))',
        says="found:",
    ),
    rank(
        "its own memory, on a rank",
        "Looks through the memory that a rank was forked with.",
        """
        def reduce_scatter(output, input, group=None):
            found = memory_of("self") if dist.get_world_size() == 1 else "see above"
            raise ValueError(f"found: {found}")
        """,
        PROCESSES,
        says="found:",
    ),
    cell(
        "the memory of others",
        "Reads the memory of every process that it sees, and their files by their descriptors.",
        PROCESSES,
        """
        import os

        for process in glob.glob("/proc/[0-9]*"):
            number = process.split("/")[2]
            if int(number) != os.getpid():
                print("found:", number, memory_of(number))
            for link in glob.glob(f"{process}/fd/*") + [f"{process}/root", f"{process}/cwd"]:
                try:
                    print("found:", link, os.readlink(link))
                    print(os.listdir(link + "/../../../work"), os.listdir(link + "/root"))
                except OSError:
                    pass
        print("that was all")
        """,
        says="that was all",
    ),
    rank(
        "the memory of another rank",
        "Looks for the input of rank 1 in the memory of rank 1.",
        """
        import ctypes

        def reduce_scatter(output, input, group=None):
            rank, size = dist.get_rank(), dist.get_world_size()
            if size == 1:
                output.copy_(input)
                return
            processes = torch.zeros(size, dtype=torch.int64)
            processes[rank] = os.getpid()
            dist.all_reduce(processes)
            left = processes[rank - 1].item()
            attached = ctypes.CDLL(None).ptrace(16, left, 0, 0)
            raise ValueError(f"attached: {attached}, {memory_of(left)}")
        """,
        INSIDE,
        PROCESSES,
        says="attached: -1",
    ),
    cell(
        "ports of the host",
        "Asks the ports and abstract sockets of the host's own programs.",
        """
        import socket

        for family, address in (
            (socket.AF_INET, ("127.0.0.1", @port@)),
            (socket.AF_INET, ("0.0.0.0", @port@)),
            (socket.AF_UNIX, chr(0) + "@abstract@"),
            (socket.AF_INET, ("1.1.1.1", 53)),
        ):
            with socket.socket(family) as one:
                one.settimeout(0.5)
                try:
                    one.connect(address)
                    print("it says:", one.recv(1000))
                except OSError as error:
                    print(error)
        """,
        says="refused",
    ),
    rank(
        "ports of the host, on a rank",
        "Asks a port of the host's from a rank.",
        """
        def reduce_scatter(output, input, group=None):
            with socket.create_connection(("127.0.0.1", @port@), 1) as one:
                raise ValueError(one.recv(1000))
        """,
        INSIDE,
        says="refused",
    ),
    cell(
        "shared memory of the host",
        "Attaches a segment of System V's by its number, and lists all there are.",
        """
        import ctypes, os

        libc = ctypes.CDLL(None)
        libc.shmat.restype = ctypes.c_void_p
        at = libc.shmat(@segment@, None, 0o10000)
        print("found:", None if at in (None, 2**64 - 1) else ctypes.string_at(at, 23))
        print(open("/proc/sysvipc/shm").read(), os.listdir("/dev/shm"))
        """,
        says="found: None",
    ),
    cell(
        "open descriptors",
        "Goes to the folders and files behind all descriptors that it was born with.",
        """
        import os

        for fd in os.listdir("/proc/self/fd"):
            try:
                print(fd, os.readlink(f"/proc/self/fd/{fd}"))
                os.fchdir(int(fd))
                print(os.listdir("."), os.listdir("../../.."), open("@gradebook@"[1:]).read())
            except OSError:
                pass
        """,
        says="socket:",
    ),
    cell(
        "new namespaces",
        "Becomes root in a namespace of users, and mounts and changes what it then may.",
        """
        import ctypes, os, subprocess

        libc = ctypes.CDLL(None, use_errno=True)
        print("unshare:", libc.unshare(0x10000000 | 0x20000), os.strerror(ctypes.get_errno()))
        for name, text in (("setgroups", "deny"), ("uid_map", f"0 {os.getuid()} 1")):
            try:
                open(f"/proc/self/{name}", "w").write(text)
            except OSError as error:
                print(error)
        os.makedirs("/tmp/there", exist_ok=True)
        for kind in (b"proc", b"devtmpfs", b"cgroup", b"cgroup2", b"debugfs", b"tmpfs"):
            if libc.mount(b"none", b"/tmp/there", kind, 0, None) == 0:
                print(kind, sorted(os.listdir("/tmp/there"))[:5])
        print(libc.chroot(b"/tmp/there"))
        for path in ("@gradebook@", "../" * 20 + "@gradebook@", "@home@"):
            try:
                print(open(path, "rb").read())
            except OSError as error:
                print(error)
        """,
        says="No such file",
    ),
    # Files that the judge itself is made to read ------------------------------------------------
    rank(
        "a line of a file, as where it failed",
        "Raises in code whose file it says is another submission: errors quote the line.",
        """
        def reduce_scatter(output, input, group=None):
            exec(compile("raise ValueError('here')", "@submission@", "exec"))
        """,
        says="ValueError: here",
    ),
    rank(
        "a line of a file, as where it waits",
        "Waits without end in code whose file it says is a solution: deadlocks quote the line.",
        """
        def reduce_scatter(output, input, group=None):
            dist = torch.distributed
            exec(compile("dist.recv(output)", "@solution@", "exec"))
        """,
        says="the ranks did not finish",
    ),
    rank(
        "a line of a file, as where it computes",
        "Computes without end in code whose file it says is the home folder's.",
        """
        def reduce_scatter(output, input, group=None):
            exec(compile("while True: pass", "@home@", "exec"))
        """,
        says="still running",
    ),
    Hostile(
        "hidden inputs",
        "Shows its input where that is hidden, and then hangs, so that nothing is run again.",
        NOTHING,
        25,
        before="from dtlab.checks.functions.values import labelled",
        answers={
            "reduce_scatter": """
                def reduce_scatter(output, input, group=None):
                    if dist.get_world_size() == 5:
                        while True: pass
                    known = input.equal(labelled(0, len(input), dist.get_rank()))
                    raise ValueError("practice" if known else f"a hidden input: {input[:9]}")
                """
        },
        hides=["a hidden input: tensor"],
    ),
]
