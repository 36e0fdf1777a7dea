"""Points do not depend on how many submissions are judged at once, nor on the process's state."""

import os
import random
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from dtlab.checks.turns import own_turn, turn_paused
from dtlab.units.unit04 import checkpoint_every
from dtlab.units.unit11 import resumable

THREADS, TIMES = 4, 6


def _resumable() -> str:
    return repr([state["parameters"].tolist() for state in resumable.uninterrupted(3, 12)])


def _checkpoint_every() -> str:
    """The faults of the right results, which ranks have computed alone."""
    case = checkpoint_every.Spanning(3, (4, 7, 7, 7, 7, 4), 4, 2, "equal")
    return repr(list(case.faults([_RIGHT])))


def _results() -> Any:
    case = checkpoint_every.Spanning(3, (4, 7, 7, 7, 7, 4), 4, 2, "equal")
    return {"steps": checkpoint_every._train(case._right, **case.given(0, 1))}


_RIGHT = _results()


def _state() -> tuple[object, ...]:
    of_numpy = np.random.get_state()  # noqa: NPY002
    return (
        torch.get_rng_state().tolist(), random.getstate(), repr(of_numpy),
        torch.get_default_dtype(), torch.get_num_threads(), dict(os.environ), os.getcwd(),
    )  # fmt: skip


@pytest.mark.parametrize("judge", [_resumable, _checkpoint_every])
def test_judges_in_several_threads_find_what_one_finds(judge: Callable[[], str]) -> None:
    alone = judge()
    with ThreadPoolExecutor(THREADS) as pool:
        found = list(pool.map(lambda _: judge(), range(THREADS * TIMES)))
    assert found == [alone] * len(found)


@pytest.mark.parametrize("judge", [_resumable, _checkpoint_every])
def test_a_judge_neither_uses_nor_changes_the_state_of_the_process(
    judge: Callable[[], str],
) -> None:
    right = judge()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(77)
        torch.set_default_dtype(torch.float64)
        try:
            before = _state()
            assert judge() == right
            assert _state() == before
        finally:
            torch.set_default_dtype(torch.float32)


def test_a_turn_leaves_nothing_of_the_process_changed() -> None:
    before = _state()
    with own_turn():
        torch.manual_seed(1)
        torch.set_default_dtype(torch.float64)
        torch.set_num_threads(torch.get_num_threads() + 1)
        np.random.seed(1)  # noqa: NPY002
        random.seed(1)
        changed = _state()
        with turn_paused():
            assert _state() == before
        assert _state() == changed
    assert _state() == before


def test_a_turn_leaves_to_others_what_they_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another thread may set a variable or change the folder while a judge works."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OF_ANOTHER", "0")
    with own_turn():
        monkeypatch.setenv("OF_ANOTHER", "1")
        (tmp_path / "below").mkdir()
        monkeypatch.chdir(tmp_path / "below")
        with turn_paused():
            assert Path.cwd() == tmp_path / "below"
    assert Path.cwd() == tmp_path / "below"
    assert os.environ["OF_ANOTHER"] == "1"


def test_a_turn_keeps_its_random_numbers_while_it_is_paused() -> None:
    def drawn(seed: int, pause: float) -> list[float]:
        with own_turn():
            torch.manual_seed(seed)
            random.seed(seed)
            with turn_paused():
                time.sleep(pause)
            return [float(torch.rand(())), random.random()]

    before = _state()
    alone = [drawn(seed, 0) for seed in range(8)]
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(drawn, range(8), [0.05] * 8)) == alone
    assert _state() == before


def test_an_exception_ends_a_turn_and_the_other_turns_continue() -> None:
    before = _state()
    with pytest.raises(ZeroDivisionError), own_turn(), turn_paused():
        _ = 1 / 0
    went_on = threading.Event()

    def go_on() -> None:
        with own_turn():
            went_on.set()

    threading.Thread(target=go_on, daemon=True).start()
    assert went_on.wait(5)
    assert _state() == before
