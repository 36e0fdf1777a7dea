"""What ranks print reaches the notebook's stdout while they run, by rank, and bounded."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import time
import warnings

import pytest
import torch.distributed as dist

import dtlab
from dtlab.ranks.launch import output as output_module
from dtlab.ranks.launch.output import Output


def shown(*writes: tuple[int, str], world_size: int = 2) -> str:
    """What is shown of these writes of (rank, text) to stdout."""
    file = io.StringIO()
    output = Output(world_size, file)
    for rank, text in writes:
        output.feed(rank, "out", text.encode())
        output._due = 0.0
        output.show_if_due()
    output.finish()
    return file.getvalue()


def test_what_comes_together_is_grouped_by_rank() -> None:
    file = io.StringIO()
    output = Output(2, file)
    for rank, text in [(1, "b1\n"), (0, "a1\n"), (1, "b2\n"), (0, "a2\n")]:
        output.feed(rank, "out", text.encode())
    output.show_if_due()
    assert file.getvalue() == "" and 0 < output.patience() <= output_module.GATHER
    output.finish()
    assert file.getvalue() == "rank 0: a1\nrank 0: a2\nrank 1: b1\nrank 1: b2\n"


def test_lines_carry_their_rank() -> None:
    assert shown((0, "a\nb\n"), (1, "c\n")) == "rank 0: a\nrank 0: b\nrank 1: c\n"


def test_a_line_in_pieces_is_one_line() -> None:
    assert shown((1, "hal"), (0, "x\n"), (1, "lo\n")) == "rank 0: x\nrank 1: hallo\n"


def test_a_line_without_an_end_is_shown_at_the_end() -> None:
    assert shown((1, "no end")) == "rank 1: no end\n"


def test_what_kineto_prints_of_a_profiler_is_not_shown() -> None:
    line = "USDT:2026-11-26 20:25:14 12135:12135 SyncActivityProfilerHandler.cpp:52] profiler_"
    assert shown((0, f"a\n{line}start\n{line}stop\nUSDT: 3\n")) == "rank 0: a\nrank 0: USDT: 3\n"


def test_rank_0s_progress_bar_is_drawn_in_place() -> None:
    text = shown((0, "\r 0%"), (0, "\r50%"), (0, "\r100%\n"))
    assert text == "rank 0:  0%\rrank 0: 50%\rrank 0: 100%\n"


def test_other_ranks_do_not_break_into_a_progress_bar() -> None:
    text = shown((0, "\r 0%"), (1, "\r10%"), (1, "\r20%"), (1, "note\n"), (0, "\r50%\n"))
    assert text == "rank 0:  0%\nrank 1: 20%note\nrank 0:  0%\rrank 0: 50%\n"


def test_text_cut_inside_a_character() -> None:
    file = io.StringIO()
    output = Output(1, file)
    for byte in "Größe\n".encode():
        output.feed(0, "out", bytes([byte]))
    output.finish()
    assert "Größe\n" in file.getvalue() and output.kept("out") == ["Größe\n"]


def test_too_much_output_is_cut_with_a_note(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output_module, "KEEP", 50)
    monkeypatch.setattr(output_module, "SHOW", 30)
    text = shown((0, "short\n"), *[(1, "0123456789\n")] * 10)
    assert "only the first 30 characters are shown. Most is from rank 1: 110 char" in text
    assert "rank 1: 60 more characters were not kept" in text
    assert text.count("0123456789") == 1


def test_prints_of_ranks_are_kept_by_rank(capsys: pytest.CaptureFixture[str]) -> None:
    def speak() -> None:
        print("hello from", dist.get_rank())
        print("a warning", file=sys.stderr)
        os.write(1, b"from C\n")

    run = dtlab.launch(speak)
    assert run.stdout == [f"hello from {rank}\nfrom C\n" for rank in (0, 1)]
    assert run.stderr == ["a warning\n"] * 2
    captured = capsys.readouterr()
    assert "rank 0: from C" in captured.out.splitlines()
    assert captured.err == ""  # nbgrader takes stderr for a failure


def test_warnings_of_torch_and_of_children_do_not_reach_stderr(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def warn() -> None:
        warnings.warn("look out", stacklevel=1)
        subprocess.run([sys.executable, "-c", "import sys; print('child', file=sys.stderr)"])

    dtlab.launch(warn, world_size=1)
    captured = capsys.readouterr()
    assert captured.err == ""
    assert "look out" in captured.out and "rank 0: child" in captured.out


def test_output_streams_while_ranks_run() -> None:
    seen: list[tuple[float, str]] = []

    class Clock(io.StringIO):
        def write(self, text: str) -> int:
            seen.append((time.monotonic(), text))
            return len(text)

    def slow() -> None:
        print("first")
        time.sleep(0.5)
        print("second")

    old, sys.stdout = sys.stdout, Clock()
    try:
        dtlab.launch(slow, world_size=1)
    finally:
        sys.stdout = old
    times = {text.strip(): at for at, text in seen}
    assert times["rank 0: second"] - times["rank 0: first"] > 0.2


def test_tqdm_in_rank_0_looks_right(capsys: pytest.CaptureFixture[str]) -> None:
    def bar() -> None:
        from tqdm import tqdm

        for _ in tqdm(range(3), desc="steps", disable=dist.get_rank() != 0):
            time.sleep(0.15)

    dtlab.launch(bar)
    lines = capsys.readouterr().out.split("\r")
    assert all(line.startswith("rank 0: steps:") for line in lines)
    assert "100%" in lines[-1] and "3/3" in lines[-1]


def test_a_flood_neither_blocks_nor_fills_the_memory(capsys: pytest.CaptureFixture[str]) -> None:
    def flood() -> None:
        for _ in range(100):
            print("x" * 99_999)

    run = dtlab.launch(flood, world_size=1)
    assert len(run.stdout[0]) == output_module.KEEP
    out = capsys.readouterr().out
    assert "more characters were not kept" in out
    assert len(out) < 2 * output_module.SHOW


@pytest.mark.slow
def test_printing_without_end_ends_at_the_time_limit(capsys: pytest.CaptureFixture[str]) -> None:
    def endless() -> None:
        while True:
            print("again and again")

    with pytest.raises(dtlab.RankTimeoutError):
        dtlab.launch(endless, timeout=1.0)
    assert len(capsys.readouterr().out) < 2 * output_module.SHOW
