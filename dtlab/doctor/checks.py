"""The checks of `dtlab doctor`: functions from `Facts` to a finding, or to None.

A check returns None where it does not apply, or where another check reports the cause.
"""

from __future__ import annotations

import contextlib
import os
import platform
import shlex
import shutil
import socket
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any, Literal

from dtlab.doctor.probe import Facts, all_reduce
from dtlab.errors import DtlabError
from dtlab.ranks import system

ROOT = Path(__file__).resolve().parents[2]  # the clone, or the folder that dtlab is installed in


@dataclass(frozen=True)
class Finding:
    """The result of one check.

    `status` is "ok"; "note" for something worth knowing; or "wrong" if some part of the course
    will fail. `repair` is the command that repairs this, "" if there is none. `value` is plain
    data that the message rounds or leaves out; its keys name their units ("memory_bytes").
    `examine` fills in `area` and `name` from the table.
    """

    status: Literal["ok", "note", "wrong"]
    message: str
    repair: str = ""
    value: Mapping[str, Any] = field(default_factory=dict)
    area: str = ""
    name: str = ""


def in_gb(nbytes: float) -> str:
    """Format bytes in units of 10^9: `51.6e9` as "51.6 GB". Does not need NumPy."""
    return f"{nbytes / 1e9:.3g} GB"


def pip_install(*requirements: str) -> str:
    """Return the command that installs packages for the Python that runs this dtlab."""
    return f"{shlex.quote(sys.executable)} -m pip install {shlex.join(requirements)}"


# Machine ---------------------------------------------------------------------------------------

SHARED = Path("/dev/shm")
# NCCL's User Guide, Troubleshooting, Docker: --shm-size=1g. Docker's own default is 64 MiB.
ENOUGH_SHARED = 2**30  # bytes
LITTLE_MEMORY, TOO_LITTLE_MEMORY = 4e9, 1e9  # bytes: a notebook with ranks; one import of torch


def operating_system(_: Facts) -> Finding:
    """Report the operating system."""
    message = f"{platform.system()} {platform.release()}, {platform.machine()}"
    if not system.LINUX:
        return Finding("note", f"{message}: no memory limits, no count of bytes sent")
    return Finding("ok", message)


def cpus(_: Facts) -> Finding:
    """Report the usable CPUs, after affinity and the quotas of control groups."""
    usable = system.usable_cpus()
    message = f"{usable:g} of {os.cpu_count()} are usable"
    if usable < 2:
        return Finding("note", f"{message}: ranks take turns, so times mean little")
    return Finding("ok", message)


def memory(_: Facts) -> Finding:
    """Check total memory, free memory, and the limit of this control group."""
    import psutil

    usage, limit = psutil.virtual_memory(), memory_limit()
    free = usage.available if limit is None else min(usage.available, limit)
    value = {"total_bytes": usage.total, "available_bytes": usage.available, "limit_bytes": limit}
    message = f"{in_gb(usage.available)} of {in_gb(usage.total)} are free"
    if limit is not None and limit < usage.total:
        message += f"; this control group may use {in_gb(limit)}"
    repair = "ps -eo rss,pid,args --sort=-rss | head"
    if free < TOO_LITTLE_MEMORY:
        message += ", too little for a notebook with ranks: end large processes or raise the limit"
        return Finding("wrong", message, repair, value)
    if free < LITTLE_MEMORY:
        return Finding("note", f"{message}, which is not much for many ranks", repair, value)
    return Finding("ok", message, "", value)


def memory_limit(proc: str = "/proc/self/cgroup", root: str = "/sys/fs/cgroup") -> int | None:
    """Return the lowest memory limit of this process's control groups in bytes, or None."""
    limits = []
    lines = Path(proc).read_text().splitlines() if Path(proc).exists() else []
    for line in lines:
        _, controllers, group = line.split(":", 2)
        inner = Path(root) / controllers / group.lstrip("/")
        for folder in (inner, *inner.parents):
            for name in ("memory.max", "memory.limit_in_bytes"):  # versions 2 and 1
                with contextlib.suppress(OSError, ValueError):  # no such file, or it says "max"
                    limits.append(int((folder / name).read_text()))
    return min((limit for limit in limits if limit < 2**62), default=None)  # 2**63: no limit


def shared_memory(_: Facts) -> Finding:
    """Check the shared memory that NCCL and DataLoader workers need; dtlab's ranks do not."""
    if not SHARED.is_dir():
        return Finding("note", f"this system has no {SHARED}")
    stat = os.statvfs(SHARED)
    size, free = stat.f_blocks * stat.f_frsize, stat.f_bavail * stat.f_frsize
    value = {"size_bytes": size, "free_bytes": free}
    message = f"{SHARED} has {in_gb(free)} of {in_gb(size)} free"
    if size < ENOUGH_SHARED:
        message += ", which is not much for NCCL. If this is a container, start it with more"
        repair = "docker run --shm-size=1g --ulimit memlock=-1 ..."
        return Finding("note", message, repair, value)
    return Finding("ok", message, "", value)


def loopback(_: Facts) -> Finding:
    """Check that a port of 127.0.0.1 can be bound and reached, which ranks need to connect."""
    try:
        with socket.create_server(("127.0.0.1", 0)) as server:
            socket.create_connection(server.getsockname(), timeout=5.0).close()
    except OSError as error:
        message = f"127.0.0.1 cannot be used: {error.strerror or error}; ranks cannot connect"
        return Finding("wrong", message, "sudo ip link set lo up; sudo iptables -S | grep -w lo")
    return Finding("ok", "ports can be bound and reached")


def watcher(_: Facts, folder: Path = Path("/proc/self")) -> Finding:
    """Check the files in /proc that the watcher reads to detect a deadlock of the ranks."""
    if not system.LINUX:
        return Finding("note", "detects less than on Linux: there is no /proc")
    for file in (folder / "stat", folder / f"task/{os.getpid()}/stat", folder / "cgroup"):
        if not os.access(file, os.R_OK):
            message = f"{file} cannot be read: a deadlock is noticed only at the timeout"
            return Finding("wrong", message, "sudo mount -o remount,hidepid=0 /proc")
    return Finding("ok", "/proc is readable: deadlocks are noticed at once")


# Software --------------------------------------------------------------------------------------

OLDEST, NEWEST = (3, 11), (3, 13)
TORCH, NBGRADER = "torch>=2.13,<2.14", "nbgrader>=0.9.6,<0.10"


def python(_: Facts) -> Finding:
    """Check the version of Python, and report its path."""
    message = f"{platform.python_version()}, {sys.executable}"
    if OLDEST <= sys.version_info[:2] <= NEWEST:
        return Finding("ok", message)
    message += ": dtlab needs 3.11 to 3.13. Recreate the environment with one of them"
    return Finding("wrong", message, "make clean && make lab PYTHON=python3.12")


def packages(_: Facts) -> Finding:
    """Check that the packages that dtlab requires are installed in the required versions."""
    try:
        distribution = metadata.distribution("dtlab")
    except metadata.PackageNotFoundError:
        message = "is not installed, only its source is on sys.path: there is no command 'dtlab'"
        return Finding("note", message, pip_install("-e", str(ROOT)))
    lacking = [missing for text in distribution.requires or [] if (missing := _lacking(text))]
    if lacking:
        message = f"{distribution.version}; these packages are missing: {', '.join(lacking)}"
        return Finding("wrong", message, pip_install(*lacking))
    return Finding("ok", f"{distribution.version}, with all required packages")


def _lacking(text: str) -> str | None:
    """Return an unmet requirement in pip's syntax; None if it is met, or belongs to an extra."""
    from packaging.requirements import Requirement

    required = Requirement(text)
    if required.marker is not None and not required.marker.evaluate({"extra": ""}):
        return None
    with contextlib.suppress(metadata.PackageNotFoundError):
        if required.specifier.contains(metadata.version(required.name), prereleases=True):
            return None
    return f"{required.name}{required.specifier}"


def importable(module: str, requirement: str, facts: Facts) -> Finding:
    """Check that a module can be imported, and report its version."""
    info = facts[module]
    if "trouble" not in info:
        return Finding("ok", info["version"])
    repair = pip_install("--force-reinstall", requirement)
    return Finding("wrong", f"cannot be imported: {info['trouble']}", repair)


def torch(facts: Facts) -> Finding:
    """Check that torch can be imported, and report its build and its backends."""
    info = facts["torch"]
    if "trouble" in info:
        return importable("torch", TORCH, facts)
    if not info["gloo"]:
        lacks = "the backend gloo" if info["distributed"] else "torch.distributed"
        message = f"{info['version']} was built without {lacks}: no rank can run"
        return Finding("wrong", message, pip_install("--force-reinstall", TORCH), info)
    build = f"CUDA {info['cuda']}" if info["cuda"] else "a CPU build"
    build = f"ROCm {info['hip']}" if info["hip"] else build
    with_nccl = f", NCCL {info['nccl']}" if info["nccl"] else ""
    return Finding("ok", f"{info['version']}, {build}{with_nccl}", "", info)


# GPUs ------------------------------------------------------------------------------------------

VISIBLE = "CUDA_VISIBLE_DEVICES"
DRIVER_LOG = "sudo dmesg | grep -iE 'nvrm|xid'"
LINK_WORDS: Mapping[str, str] = {  # the legend of `nvidia-smi topo -m`, the nearest first
    "PIX": "one PCIe bridge",
    "PXB": "several PCIe bridges",
    "PHB": "the CPU's PCIe host bridge",
    "NODE": "host bridges of one NUMA node",
    "SYS": "the link between CPUs",
}


def cards(facts: Facts) -> Finding:
    """List the GPUs that NVIDIA's driver reports, with their memory."""
    info = facts["pynvml"]
    trouble = info.get("trouble", "")
    no_bindings = trouble.startswith("ModuleNotFoundError")
    no_library = trouble.startswith("NVMLError_LibraryNotFound")
    has_driver = system.has_nvidia_driver() or shutil.which("nvidia-smi") is not None
    if (no_bindings or no_library) and not has_driver:
        return Finding("note", "none: ranks run on the CPU, with gloo")
    if no_bindings:
        message = "there is a driver, but the package to read its list of GPUs is not installed"
        return Finding("note", message, pip_install("nvidia-ml-py>=12.535"))
    if no_library:
        message = "there is a driver, but no libnvidia-ml.so.1. If this is a container, start it "
        repair = "docker run --gpus all -e NVIDIA_DRIVER_CAPABILITIES=compute,utility ..."
        return Finding("note", f"{message}with", repair)
    if trouble:
        message = f"the driver: {trouble}. Its log gives the cause; a reboot often helps"
        return Finding("wrong", message, DRIVER_LOG)
    if not info["gpus"]:
        return Finding("note", "the driver lists no GPU: ranks run on the CPU", DRIVER_LOG)
    kinds = Counter((gpu["name"], gpu["memory_bytes"]) for gpu in info["gpus"]).items()
    each = [f"{n} x {name}" + (f" of {in_gb(size)}" if size else "") for (name, size), n in kinds]
    return Finding("ok", f"{', '.join(each)}, driver {info['driver']}", "", info)


def compute_mode(facts: Facts) -> Finding | None:
    """Report a compute mode that restricts which processes can use a GPU."""
    gpus = facts["pynvml"].get("gpus", ())
    prohibited = [gpu["index"] for gpu in gpus if gpu["compute_mode"] == "Prohibited"]
    if prohibited:
        message = f"Prohibited on {_named(prohibited)}: no program can run there"
        return Finding("wrong", message, _on_each(prohibited, "-c DEFAULT"))
    exclusive = [gpu["index"] for gpu in gpus if gpu["compute_mode"] == "Exclusive_Process"]
    if exclusive:
        message = f"Exclusive_Process on {_named(exclusive)}: one process at a time"
        return Finding("note", message, _on_each(exclusive, "-c DEFAULT"))
    return None


def mig(facts: Facts) -> Finding | None:
    """Report GPUs split by MIG: for CUDA, one MIG device is one GPU (NVIDIA's MIG User Guide)."""
    gpus = [gpu for gpu in facts["pynvml"].get("gpus", ()) if gpu["mig_enabled"]]
    whole = [gpu["index"] for gpu in gpus if not gpu["mig_devices"]]
    if whole:
        message = f"on, but without MIG devices on {_named(whole)}: no CUDA program can run there"
        return Finding("wrong", message, _on_each(whole, "-mig 0"))
    if not gpus:
        return None
    profiles = Counter(profile for gpu in gpus for profile in gpu["mig_devices"])
    each = ", ".join(f"{count} x {profile}" for profile, count in profiles.items())
    message = f"on {_named([gpu['index'] for gpu in gpus])}, split into {each}. A process can use "
    return Finding("note", f"{message}only one MIG device, so several ranks run on the CPU")


def _named(gpus: Sequence[int]) -> str:
    return f"GPU{'s' if len(gpus) > 1 else ''} {', '.join(map(str, gpus))}"


def _on_each(gpus: Sequence[int], options: str) -> str:
    """Return the command that changes a setting of these GPUs."""
    return f"for i in {' '.join(map(str, gpus))}; do sudo nvidia-smi -i $i {options}; done"


def usable(facts: Facts) -> Finding | None:
    """Report how many GPUs torch can use, and which ones CUDA_VISIBLE_DEVICES hides."""
    info, gpus = facts["torch"], facts["pynvml"].get("gpus", ())
    unlisted = "trouble" in facts["pynvml"] and shutil.which("nvidia-smi") is not None
    if "trouble" in info or not (gpus or info["devices"] or unlisted):
        return None
    devices, chosen = len(info["devices"]), os.environ.get(VISIBLE)
    value = {"cuda_visible_devices": chosen, "devices": info["devices"]}
    message = f"torch sees {devices} of {len(gpus)}" if gpus else f"torch sees {devices}"
    names = [name.strip() for name in (chosen or "").split(",")]
    unknown = [name for name in names if name.isdigit() and int(name) >= len(gpus)]
    if gpus and unknown:
        message += f": {VISIBLE} names GPU {unknown[0]}, which does not exist, so CUDA ignores it "
        return Finding("wrong", f"{message}and all GPUs after it", f"unset {VISIBLE}", value)
    if chosen is not None and (devices or chosen.strip() in ("", "-1")):
        return Finding("note", f"{message}: {VISIBLE}={chosen!r}", f"unset {VISIBLE}", value)
    if devices:
        return Finding("ok", message, "", value)
    if not (info["cuda"] or info["hip"]):
        message += ": it is a CPU build. Install the CUDA build"
        return Finding("wrong", message, pip_install("--force-reinstall", TORCH), value)
    reason = info["cuda_trouble"] or "no reason given"
    message += f": {reason}. Its CUDA {info['cuda']} may need a newer driver"
    return Finding("wrong", message, "nvidia-smi | grep 'CUDA Version'", value)


def links(facts: Facts) -> Finding | None:
    """Report the links between GPUs, in the notation of `nvidia-smi topo -m`."""
    info = facts["pynvml"]
    if len(info.get("gpus", ())) < 2:
        return None
    if info["links_trouble"]:
        return Finding("note", f"unknown: {info['links_trouble']}", value={"links": None})
    pairs = Counter(pair["link"] for pair in info["links"])
    each = [
        f"{count} pair{'s' if count > 1 else ''} by {link_words(link)} ({link})"
        for link, count in pairs.most_common()
    ]
    return Finding("ok", "; ".join(each), value={"links": info["links"]})


def link_words(link: str) -> str:
    """Describe a link: "NV18" as "18 NVLinks"."""
    if link.startswith("NV") and link[2:].isdigit():
        return f"{int(link[2:])} NVLink{'s' if int(link[2:]) > 1 else ''}"
    return LINK_WORDS.get(link, link)


def peer_access(facts: Facts) -> Finding | None:
    """Check that GPUs can read each other's memory; else NCCL copies through host memory."""
    count = len(facts["torch"].get("devices", ()))
    if count < 2:
        return None
    without = facts["torch"]["no_peers"]
    if not without:
        return Finding("ok", "each GPU can read the memory of every other GPU")
    message = f"{len(without)} of {count * (count - 1)} directions have no peer access: NCCL uses "
    message += "host memory there. This is usual in a virtual machine, or if PCIe ACS is on"
    repair = "sudo lspci -vvv | grep -i acsctl"
    return Finding("note", message, repair, {"pairs_without_peer_access": without})


# Ranks -----------------------------------------------------------------------------------------

ELEMENTS = 1_000_000  # of 4 bytes
MOST_GPUS = 8  # most ranks in the check of NCCL: sums over more are not exact, see `all_reduce`
RANKS_LIMIT = 60.0  # seconds for the function on the ranks


def gloo(facts: Facts) -> Finding | None:
    """Check two ranks on gloo, and whether the kernel counts the bytes that they send."""
    return on_ranks("gloo", 2) if facts["torch"].get("gloo") else None  # `torch` reports this


def nccl(facts: Facts) -> Finding | None:
    """Check NCCL with a rank on each GPU that torch sees, if there is a GPU."""
    info = facts["torch"]
    count = len(info.get("devices", ()))
    if not count or info["hip"]:
        return None
    if not info["nccl"]:
        message = f"torch {info['version']} was built without NCCL: ranks run on the CPU"
        return Finding("note", message)
    return on_ranks("nccl", min(count, MOST_GPUS))


def on_ranks(backend: str, ranks: int) -> Finding:
    """Launch ranks that run all-reduces; check the sum, and report its time."""
    from dtlab.ranks.launch import inplace
    from dtlab.ranks.launch.launcher import launch

    if inplace.environment_is_set():
        message = f"not tried: {', '.join(inplace.NEEDED)} are set, as in a rank of an existing "
        message += "process group. If this process is not such a rank:"
        return Finding("note", message, f"unset {' '.join(inplace.NEEDED)}")
    repair = f'{shlex.quote(sys.executable)} -c "import dtlab; print(dtlab.launch(int))"'
    repair = f"NCCL_DEBUG=INFO {repair}" if backend == "nccl" else repair
    subject = f"{ranks} ranks" if ranks > 1 else "1 rank"
    try:
        run = launch(all_reduce, ELEMENTS, backend == "nccl", world_size=ranks, backend=backend,
                     timeout=RANKS_LIMIT)  # fmt: skip
    except DtlabError as error:
        first_line = str(error).strip().partition("\n")[0].rstrip(".")[:300]
        message = f"{subject} failed: {first_line}. To see the full error:"
        return Finding("wrong", message, repair, {"error": str(error)})
    errors, seconds = sum(count for count, _ in run.values), max(took for _, took in run.values)
    sent = run.trace.bytes_wire() if run.trace is not None else [None]
    value = {
        "ranks": ranks, "all_reduce_bytes": 4 * ELEMENTS, "all_reduce_seconds": seconds,
        "launch_seconds": run.seconds, "wrong_elements": errors, "rank_0_bytes_sent": sent[0],
    }  # fmt: skip
    if errors:
        message = f"{subject}: {errors} elements of the sum are wrong"
        return Finding("wrong", message, repair, value)
    message = f"{subject}, the sum is correct; an all-reduce of {4 * ELEMENTS / 1e6:g} MB takes "
    message += f"{seconds * 1e3:.3g} ms"
    if backend == "gloo" and system.LINUX and not all(sent):
        message += "; the kernel does not count the bytes sent (netlink sock_diag), so criteria "
        message += "about traffic use the recorded calls instead"
        return Finding("note", message, "sudo modprobe -a inet_diag tcp_diag", value)
    return Finding("ok", message, "", value)


# Course ----------------------------------------------------------------------------------------

CONFIG = "nbgrader_config.py"
LITTLE_DISK, TOO_LITTLE_DISK = 2e9, 0.2e9  # bytes: outputs of a class; a notebook and its backup
EFFECTS = {  # kinds of isolation in the sandbox, and what is lost without them
    "another user": "learners' code runs as you",
    "files": "it can read and change your files",
    "processes": "it can see and end your processes",
    "network": "it can connect to other programs and machines",
    "shared memory": "it can use your shared memory",
    "memory and processes together": "limits hold for a process instead of a submission, and "
    "time limits include waiting for a CPU",
    "system calls": "it can use all functions of the kernel",
}


def course_folder() -> Path | None:
    """Return the course that contains the working folder, or the clone that contains this file."""
    folders = (Path.cwd(), *Path.cwd().parents, ROOT)
    return next((folder for folder in folders if (folder / CONFIG).is_file()), None)


def nbgrader(facts: Facts) -> Finding:
    """Check that nbgrader, which only instructors need, can be imported."""
    if facts["nbgrader"].get("trouble") == "ModuleNotFoundError: No module named 'nbgrader'":
        message = "is not installed; only instructors need it"
        return Finding("note", message, pip_install(NBGRADER))
    return importable("nbgrader", NBGRADER, facts)


def settings(facts: Facts) -> Finding | None:
    """Check the nbgrader_config.py of the course."""
    if "trouble" in facts["nbgrader"]:
        return None  # the check of nbgrader reports this
    folder = course_folder()
    if folder is None:
        message = f"{Path.cwd()} is not in a course folder: there is no {CONFIG} in it or above "
        message += "it. To check your course, change to its folder"
        return Finding("note", message, "cd THE_COURSE && dtlab doctor")
    from dtlab.classroom.settings import course_directory

    try:
        course_directory(folder)
    except DtlabError as error:
        repair = f"${{EDITOR:-vi}} {shlex.quote(str(folder / CONFIG))}"
        return Finding("wrong", str(error), repair)
    return Finding("ok", str(folder / CONFIG))


def gradebook(facts: Facts) -> Finding | None:
    """Check that the gradebook can be read, and has the version of the installed nbgrader."""
    folder = course_folder()
    if folder is None or "trouble" in facts["nbgrader"]:
        return None
    from alembic.migration import MigrationContext
    from sqlalchemy import NullPool, create_engine
    from sqlalchemy.engine import make_url
    from sqlalchemy.exc import DBAPIError

    from dtlab.classroom.settings import course_directory

    try:
        place = make_url(str(course_directory(folder).db_url))
    except DtlabError:
        return None  # the check of the settings reports this
    if place.get_backend_name() != "sqlite" or not place.database:
        message = f"{place.render_as_string()} was not checked: only SQLite databases are"
        return Finding("note", message)
    path, quoted = place.database, shlex.quote(place.database)
    if not Path(path).exists():
        return Finding("ok", f"does not exist yet; nbgrader will create it: {path}")
    if not os.access(path, os.R_OK | os.W_OK):
        message = f"{path} cannot be read and written by this user"
        return Finding("wrong", message, f"sudo chown $USER {quoted}; chmod u+rw {quoted}")
    try:
        with create_engine(place, poolclass=NullPool).connect() as connection:
            revision = MigrationContext.configure(connection).get_current_revision()
    except DBAPIError as error:
        if "locked" in str(error.orig):
            message = f"{path} is locked: another program is writing to it"
            return Finding("note", message, f"fuser -v {quoted}")
        message = f"{path} cannot be read: {error.orig}. Move it away, and put a backup in its "
        return Finding("wrong", f"{message}place", f"mv {quoted} {quoted}.broken")
    return _of_revision(revision, path, folder)


def _of_revision(revision: str | None, path: str, folder: Path) -> Finding:
    """Check that the installed nbgrader works with a gradebook of this revision."""
    from alembic.script import ScriptDirectory
    from nbgrader.dbutil import ALEMBIC_DIR

    scripts = ScriptDirectory(ALEMBIC_DIR)
    value = {"revision": revision, "newest_revision": scripts.get_current_head()}
    if revision == value["newest_revision"]:
        return Finding("ok", f"{path} has the version of this nbgrader", "", value)
    if revision and revision not in {script.revision for script in scripts.walk_revisions()}:
        message = f"{path} was created by a newer nbgrader (revision {revision})"
        return Finding("wrong", message, pip_install("--upgrade", "nbgrader"), value)
    message = f"{path} was created by an older nbgrader. This command backs up and upgrades it:"
    upgrade = f"{shlex.quote(sys.executable)} -m nbgrader db upgrade"
    return Finding("wrong", message, f"cd {shlex.quote(str(folder))} && {upgrade}", value)


def sandbox(facts: Facts) -> Finding | None:
    """Check which isolation the sandbox of `dtlab grade` has here; only grading needs it."""
    if "trouble" in facts["nbgrader"]:
        return None  # no classes are graded on this machine
    from dtlab.ranks.launch.client import SERVER
    from dtlab.ranks.sandbox.isolation import Isolation
    from dtlab.ranks.sandbox.sandbox import Sandbox, first_user

    with Sandbox(SERVER, Isolation(user=first_user(0))) as started:
        return isolation(started.missing)


def isolation(missing: Sequence[str]) -> Finding:
    """Return the finding for a sandbox that lacks these kinds: "files (not permitted)", ..."""
    if not missing:
        return Finding("ok", "complete: submissions can be graded safely")
    kinds = [kind.partition(" (")[0] for kind in missing]
    lost = "; ".join(f"{kind}: {effect}" for kind, effect in EFFECTS.items() if kind in kinds)
    message = f"dtlab grade isolates submissions only in part here. Missing isolation: {lost}. To "
    message += "grade code that you do not trust, use a machine on which you are root"
    return Finding("note", message, value={"missing": list(missing)})


def disk(_: Facts) -> Finding:
    """Check the free space on the disk of the course."""
    folder = course_folder() or Path.cwd()
    free = shutil.disk_usage(folder).free
    message = f"{in_gb(free)} are free in {folder}"
    repair = f"du -xh {shlex.quote(str(folder))} | sort -h | tail"
    if free < TOO_LITTLE_DISK:
        return Finding("wrong", f"{message}, too little to save notebooks", repair)
    if free < LITTLE_DISK:
        return Finding("note", f"{message}, which is not much", repair)
    return Finding("ok", message)
