"""Wrong arguments of the functions that learners call, and interrupts of scripts."""

from __future__ import annotations

import inspect
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import dtlab
import dtlab.show
from dtlab.errors import ArgumentError, DtlabError, Interrupted

FIGURES = [name for name in dtlab.show.__all__ if inspect.isfunction(getattr(dtlab.show, name))]
WITH_ARGUMENT = [
    name for name in FIGURES if inspect.signature(getattr(dtlab.show, name)).parameters
]


@pytest.mark.parametrize("name", WITH_ARGUMENT)
def test_a_figure_names_its_argument_of_the_wrong_kind(name: str) -> None:
    function = getattr(dtlab.show, name)
    parameters = inspect.signature(function).parameters
    needed = [
        each for each, parameter in parameters.items() if parameter.default is parameter.empty
    ]
    first = next(iter(parameters))
    with pytest.raises(ArgumentError, match=f"{name}: {first} must be .+, not an? object.") as got:
        function(**{each: object() for each in {*needed, first}})
    (shown,) = got.value._render_traceback_()  # in a notebook: no frame of the library
    assert "ArgumentError" in shown


def sentence(call: Callable[..., Any], *args: Any) -> str:
    with pytest.raises((DtlabError, TypeError, ValueError)) as caught:
        call(*args)
    return str(caught.value)


def test_helpers_say_what_they_expect_and_where_to_get_it() -> None:
    trace = (
        "timeline: trace must be a Trace, not None. run.trace is one, after run = dtlab.launch("
    )
    assert sentence(dtlab.show.timeline, None).startswith(trace)
    assert "question must be text, not None" in sentence(dtlab.guess, None)
    assert "ring: num_ranks must be a whole number, such as 4" in sentence(dtlab.show.ring, "x")
    assert "formats must be a list" in sentence(dtlab.show.bit_layouts, "fp32")
    assert "a required argument: 'title'" in sentence(dtlab.show.memory_bars, {"a": {}}, 1)
    assert "1 or more, not None" in sentence(dtlab.repeats, None)
    assert "span needs a name" in sentence(dtlab.span, None)
    assert "must be one of naive, GPipe" in sentence(dtlab.show.explore_pipeline, "x")
    assert "must be one of" in sentence(lambda: dtlab.show.explore_memory(policy="x"))
    with pytest.raises(ArgumentError, match="name the errors"), dtlab.expect(None):
        pass


# Scripts -----------------------------------------------------------------------------------------


def script(tmp_path: Path, body: str) -> subprocess.Popen[str]:
    """A script that launches `fn`, whose lines are `body`; Ctrl-C reaches it."""
    path = tmp_path / "job.py"
    lines = ["import os, time, dtlab", "def fn():", f"    {body}", "dtlab.launch(fn)"]
    path.write_text("\n".join(lines) + "\n")
    return subprocess.Popen(
        [sys.executable, str(path)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("module", "call", "words"),
    [
        ("importlib", "import_module", "the import of dtlab.check was stopped."),
        (
            "dtlab.ranks.session.line",
            "Line._read_some",
            "no session was opened; its ranks have ended.",
        ),
    ],
)
def test_ctrl_c_while_dtlab_is_imported_or_a_session_opens(
    module: str, call: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(name: object, *_: object) -> object:
        if name == "dtlab.errors":
            return dtlab.errors
        raise KeyboardInterrupt

    use = dtlab.session if "session" in module else lambda: dtlab.check
    monkeypatch.setattr(f"{module}.{call}", interrupted)
    with pytest.raises(Interrupted, match=words):
        use()


@pytest.mark.slow
def test_ctrl_c_ends_a_script_with_one_line(tmp_path: Path) -> None:
    started = tmp_path / "started"
    with script(tmp_path, f"open({str(started)!r}, 'w').close(); time.sleep(60)") as process:
        while not started.exists() and process.poll() is None:
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        _, stderr = process.communicate(timeout=30)
    *_, last = stderr.splitlines()
    assert last == "KeyboardInterrupt: the launch was stopped; its ranks have ended."
    assert "Traceback" not in stderr and "launcher.py" not in stderr
    assert process.returncode != 0


@pytest.mark.slow
def test_an_error_of_a_script_has_the_frames_of_the_script_only(tmp_path: Path) -> None:
    with script(tmp_path, "time.sleep('x')") as process:
        _, stderr = process.communicate(timeout=60)
    assert 'job.py", line 4, in <module>' in stderr
    assert "RankError: ranks 0 and 1 raised TypeError" in stderr
    assert f"dtlab{os.sep}ranks" not in stderr
