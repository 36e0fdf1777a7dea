"""Without root, code is isolated as far as the system allows, and what is missing is reported."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

NOBODY = 65534
KINDS = {
    "another user", "memory and processes together", "processes", "files", "network",
    "shared memory", "system calls",
}  # fmt: skip
PROGRAM = """
import json, os, sys
import torch
import torch.distributed as dist
from dtlab.ranks.sandbox import system_calls as calls
from dtlab.ranks.sandbox import kernel_calls as kernel
from dtlab.ranks.launch.client import Server
from dtlab.ranks.sandbox.sandbox import Sandbox, NotebookEnded
from dtlab.ranks.launch.launcher import launch_graded
from dtlab.ranks.sandbox.isolation import Isolation

def total(rank):
    numbers = torch.ones(1000)
    dist.all_reduce(numbers)
    return numbers.sum().item()

def processes(rank):
    return len([name for name in os.listdir("/proc") if name.isdigit()])

if __name__ == "__main__":
    if "nothing" in sys.argv:  # a system that gives no namespaces
        kernel.keep_privileges_away()
        calls.put_on("notebook")
    server, told = Server("IPython.core.interactiveshell", "matplotlib.pyplot"), {}
    with Sandbox(server, Isolation(user=2_000_000)) as sandbox:
        told["missing"] = sandbox.missing
        notebook = sandbox.start_notebook()
        told["cell"] = notebook.run(1, "import dtlab\\nprint(dtlab.launch(lambda: 5).values)", 30)
        source = "print(open('/proc/self/status').read().split('CapEff:')[1].split()[0])"
        told["rights"] = notebook.run(4, source, 30)
        told["files"] = notebook.run(2, f"import os\\nprint(os.path.exists({__file__!r}))", 30)
        try:
            notebook.run(3, "import os\\nos._exit(4)", 30)
        except NotebookEnded as error:
            told["end"] = str(error)
        for fn in (total, processes):
            run = launch_graded(fn, inputs=[0, 1, 2], door=sandbox, timeout=30)
            told[fn.__name__] = run.values
        told["hidden"] = run.trace.hidden_bytes
    server.stop()
    print(json.dumps(told))
"""


def as_user_nobody(tmp_path: Path, *arguments: str) -> dict[str, Any]:
    """What the program tells, run by a user without rights."""
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    who: dict[str, Any] = {}
    if os.geteuid() == 0:
        who = {"user": NOBODY, "group": NOBODY, "extra_groups": []}
        for each in (tmp_path, *tmp_path.parents):
            if each.name.startswith(("pytest", "dtlab-tests", tmp_path.name)):
                each.chmod(0o755)
        os.chown(tmp_path, NOBODY, NOBODY)
    who["env"] = {**os.environ, "HOME": str(tmp_path), "PYTHONDONTWRITEBYTECODE": "1"}
    who |= {"cwd": tmp_path, "capture_output": True, "text": True, "timeout": 100}
    try:
        sees = subprocess.run([sys.executable, "-c", "import torch, dtlab"], **who)
    except OSError as error:
        pytest.skip(f"nobody may not run our Python (run a copy in /tmp): {error}")
    if sees.returncode:
        pytest.skip("nobody may not read our code (run a copy in /tmp)")
    command = [sys.executable, str(program), *arguments]
    done = subprocess.run(command, **who)
    assert done.returncode == 0, done.stderr
    told: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    told["missing"] = {name.partition(" (")[0] for name in told["missing"]}
    return told


@pytest.mark.skipif(sys.platform != "linux" or os.geteuid() != 0, reason="takes root, and Linux")
@pytest.mark.skipif(shutil.which("setpriv") is None, reason="takes setpriv")
@pytest.mark.proof
def test_root_that_may_not_change_users_says_so_and_runs_the_code(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    rights = ["setpriv", "--bounding-set=-setuid", "--inh-caps=-all"]
    done = subprocess.run(
        [*rights, sys.executable, str(program)], capture_output=True, text=True, timeout=100
    )
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout.splitlines()[-1])
    assert any(name.startswith("another user") for name in told["missing"])
    assert told["cell"][0]["text"] == "[5, 5]\n"
    assert told["total"] == [3000.0] * 3


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has this isolation")
@pytest.mark.parametrize("arguments", [(), ("nothing",)], ids=["namespaces", "nothing"])
def test_isolation_that_needs_no_root_is_set_up(
    arguments: tuple[str, ...], tmp_path: Path
) -> None:
    told = as_user_nobody(tmp_path, *arguments)
    missing = told["missing"]
    assert {"another user", "memory and processes together"} <= missing <= KINDS
    assert "system calls" not in missing
    if arguments:
        assert {"processes", "files", "network", "shared memory"} <= missing
    assert told["cell"][0]["text"] == "[5, 5]\n"
    assert told["files"][0]["text"] == f"{'files' in missing}\n"
    assert int(told["rights"][0]["text"], 16) == 0
    assert told["end"] == "it ended by itself, with exit status 4"
    assert told["total"] == [3000.0] * 3
    assert (told["hidden"] is None) == ("network" in missing)
    if "processes" not in missing:
        assert max(told["processes"]) < 10
