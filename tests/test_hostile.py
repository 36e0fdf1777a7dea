"""No submission gets what it did not earn, loses what it did, reads a secret or stays behind.

`make test` has a sample of the catalogue; `python -m tests.hostile` judges all of it and prints a
table. The first tests check the checks that the others use.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import reduce
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from torch import Tensor

from dtlab.checks import known_parts
from dtlab.ranks.sandbox.sandbox import first_user
from tests.hostile import CATALOGUE, HONEST
from tests.hostile.judging import Judging, Stuck, guard
from tests.hostile.outside import Outside, left_behind
from tests.hostile.submissions import Hostile
from tests.known_answers import report_on

FEWEST = 100  # entries of the catalogue
NO_FILE = next(entry for entry in CATALOGUE if entry.name == "no file")

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the sandbox needs Linux")


@pytest.fixture(scope="module")
def judging() -> Iterator[Judging]:
    """One warm server for all, with secrets around it."""
    with Judging() as judging:
        yield judging


def entries() -> Iterator[object]:
    """All entries of the catalogue, the honest one last."""
    for entry in [*CATALOGUE, HONEST]:
        marks = () if entry.quick else pytest.mark.proof
        yield pytest.param(entry, id=entry.name, marks=marks)


def test_the_catalogue_is_large_and_says_what_each_entry_tries() -> None:
    names = [entry.name for entry in [*CATALOGUE, HONEST]]
    assert len(names) >= FEWEST
    assert len(set(names)) == len(names)
    assert all(entry.tries.endswith(".") and entry.parts for entry in CATALOGUE)


REACHES = re.compile(r'inside\("(\w+)"\)((?:\.\w+)*)')


@pytest.mark.slow
def test_attacks_find_what_they_reach_for() -> None:
    """An attack on something that dtlab has renamed would only raise an exception."""
    texts = [text for entry in CATALOGUE for text in (entry.before, *entry.answers.values())]
    chains = sorted({found for text in texts for found in REACHES.findall(text)})

    def reduce_scatter(output: Tensor, input: Tensor, group: Any = None) -> None:
        missing = []
        for name, attributes in chains:
            frame: FrameType | None = sys._getframe()
            while frame is not None and name not in frame.f_locals:
                frame = frame.f_back
            try:
                reduce(getattr, attributes.split(".")[1:], frame and frame.f_locals[name])
            except AttributeError:
                frame = None
            if frame is None:
                missing.append(name + attributes)
        raise ValueError(f"missing: {missing}")

    (part,) = (part for part in known_parts() if part.name == "01/reduce_scatter")
    assert len(chains) > 5
    assert "missing: []" in f"{report_on(part, reduce_scatter)}"


# The checks themselves --------------------------------------------------------------------------


@pytest.mark.proof
@pytest.mark.slow
def test_each_objection_to_an_outcome_is_named(judging: Judging) -> None:
    wrong = {"earns": {"reduce_scatter": 8.0}, "says": ["well done"], "hides": ["handed in"]}
    outcome = judging.judge(replace(NO_FILE, **wrong, seconds=0.001))
    points, unsaid, said, seconds = outcome.objections
    assert points.startswith("it earned")
    assert unsaid == "no text says 'well done'"
    assert said == "a text says 'handed in'"
    assert seconds.endswith("s, and 0.001 are enough")


@pytest.mark.proof
@pytest.mark.slow
def test_a_secret_that_was_told_is_noticed(judging: Judging) -> None:
    canaries = judging.canaries
    gradebook = Path(canaries.places["gradebook"]).read_bytes().decode("latin-1")
    assert canaries.told(gradebook) == ["the gradebook"]
    assert canaries.told(os.environ["COURSE_TOKEN"]) == ["an environment variable"]
    assert canaries.told(canaries.memory.decode()) == ["the memory of the judge"]
    assert not canaries.told("nothing")


@pytest.mark.proof
@pytest.mark.slow
def test_a_process_that_is_left_is_noticed() -> None:
    before = Outside.now()
    command = [sys.executable, "-c", "import subprocess; subprocess.run(['sleep', '60'])"]
    with subprocess.Popen(command, start_new_session=True) as parent:
        deadline = time.monotonic() + 20
        while not Outside.now().processes - before.processes and time.monotonic() < deadline:
            time.sleep(0.02)
        assert any("sleep 60" in what for what in left_behind(before))
        os.killpg(parent.pid, 9)
    assert not left_behind(before)


@pytest.mark.proof
@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_a_file_that_is_left_is_noticed() -> None:
    before = Outside.now()
    with tempfile.NamedTemporaryFile(dir="/dev/shm") as file:
        assert not left_behind(before)  # of another user
        os.chown(file.name, first_user(0) + 257, -1)
        assert left_behind(before) == [f"files: {file.name}"]


def test_a_judge_that_hangs_is_interrupted() -> None:
    with pytest.raises(Stuck), guard(0.05):
        time.sleep(20)


# The catalogue ----------------------------------------------------------------------------------


@pytest.mark.sample(4)
@pytest.mark.slow
@pytest.mark.parametrize("entry", list(entries()))
def test_it_gets_what_it_earns_and_nothing_else(judging: Judging, entry: Hostile) -> None:
    outcome = judging.judge(entry)
    assert not outcome.objections, f"{entry.tries}\n{outcome.objections}\n{outcome.told[-3000:]}"
