"""`launch` under torchrun: the same script, the same `run.values`, on ranks that exist already."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

SCRIPT = """
    import sys
    import torch, torch.distributed as dist
    import dtlab

    def total(scale):
        tensor = torch.full((3,), scale * (dist.get_rank() + 1))
        dist.all_reduce(tensor)
        print("hello")
        return tensor.sum().item(), dist.get_rank()

    def broken():
        if dist.get_rank() == 1:
            raise ValueError("rank one is broken")
        return "fine"

    run = dtlab.launch(total, 2.0)
    again = dtlab.launch(total, 1.0, world_size=dist.get_world_size())
    lines = [
        run.values, again.values[0][0], run.stdout, run.trace.ops(0)["all_reduce"], run.world_size
    ]
    for kind, call in (
        (dtlab.RankError, lambda: dtlab.launch(broken)),
        (dtlab.LaunchError, lambda: dtlab.launch(total, 1.0, world_size=5)),
    ):
        try:
            call()
        except kind as error:
            lines.append(str(error))
            lines.append(getattr(error, "values", None))
    with open(f"{sys.argv[1]}/rank-{dist.get_rank()}", "w") as file:
        print(*lines, sep="\\n", file=file)
"""


@pytest.mark.proof
@pytest.mark.slow
def test_the_same_script_under_torchrun(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(textwrap.dedent(SCRIPT))
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += ["--local-addr=127.0.0.1", "--nproc-per-node=2", "script.py", str(tmp_path)]
    environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    environment["TMPDIR"] = str(tmp_path)  # torchrun leaves a folder there
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=100
    )
    assert done.returncode == 0, done.stderr
    written = [(tmp_path / f"rank-{rank}").read_text() for rank in range(2)]
    assert written[0] == written[1]
    lines = written[0].splitlines()
    assert lines[0] == "[(18.0, 0), (18.0, 1)]"
    assert lines[1] == "9.0"
    assert lines[2] == repr(["hello\n", "hello\n"])
    assert lines[3:5] == ["1", "2"]
    assert lines[5] == "rank 1 raised ValueError: rank one is broken"
    assert 'raise ValueError("rank one is broken")' in lines[6]
    assert lines[7] == "['fine', None]"
    assert "this process is one of 2 ranks" in lines[8]
