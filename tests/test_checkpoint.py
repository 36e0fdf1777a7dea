"""Checkpoints: a resumed run equals the uninterrupted one."""

from __future__ import annotations

import os
import shutil
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import dtlab
from dtlab.training.checkpoint import Checkpoints, Samples

pytestmark = pytest.mark.slow

DATA = torch.Generator().manual_seed(1)
X, Y = torch.randn(50, 6, generator=DATA), torch.randn(50, 1, generator=DATA)


def _model(seed: int, dropout: float) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(6, 7), nn.Tanh(), nn.Dropout(dropout), nn.Linear(7, 1))


def train(
    folder: str,
    steps: int,
    *,
    kind: str = "ddp",
    every: int = 2,
    wait: bool = True,
    dropout: float = 0.4,
    seed: int = 0,
) -> tuple[int, list[Tensor], list[int]]:
    """Train to `steps`; return where it resumed, the parameters, and the samples it used."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    model: nn.Module = _model(seed, dropout)
    torch.manual_seed(100 + rank)
    if kind == "ddp":
        model = DistributedDataParallel(model)
    elif kind == "fsdp":
        fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 20)
    samples = Samples(len(X), 12, rank=rank, ranks=ranks)
    checkpoints = Checkpoints(folder, model, optimizer, schedule=schedule, samples=samples)
    begin, seen = checkpoints.resume(), []
    for step in range(begin, steps):
        batch = next(samples)
        seen += batch.tolist()
        loss = (model(X[batch]) - Y[batch]).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        if (step + 1) % every == 0:
            checkpoints.save(step + 1, wait=wait)
    checkpoints.wait()
    return begin, [_whole(parameter) for parameter in model.parameters()], seen


def launch(folder: Path, steps: int, ranks: int, **options: Any) -> list[Any]:
    return dtlab.launch(partial(train, str(folder), steps, **options), world_size=ranks).values


def _whole(parameter: Any) -> Any:
    value = parameter.detach()
    return (value.full_tensor() if hasattr(value, "full_tensor") else value).clone()


@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
@pytest.mark.parametrize("ranks", [1, 2])
def test_a_resumed_run_is_bit_identical(kind: str, ranks: int, tmp_path: Path) -> None:
    whole = launch(tmp_path / "a", 7, ranks, kind=kind)
    launch(tmp_path / "b", 5, ranks, kind=kind)
    again = launch(tmp_path / "b", 7, ranks, kind=kind, seed=9)
    for (_, expected, _), (begin, parameters, _) in zip(whole, again, strict=True):
        assert begin == 4
        assert all(map(torch.equal, expected, parameters))
    assert sorted(path.name for path in (tmp_path / "b").iterdir()) == ["step_4", "step_6"]


@pytest.mark.parametrize(("before", "after"), [(1, 4), (4, 2), (2, 3)])
def test_a_run_continues_on_another_number_of_ranks(
    before: int, after: int, tmp_path: Path
) -> None:
    whole = launch(tmp_path / "a", 9, 1, dropout=0)[0]
    first = launch(tmp_path / "b", 4, before, kind="fsdp", dropout=0)
    second = launch(tmp_path / "b", 9, after, kind="fsdp", dropout=0)
    for _, parameters, _ in second:
        torch.testing.assert_close(parameters, whole[1], rtol=2e-5, atol=2e-6)
    drawn = sorted(number for rank in first + second for number in rank[2])
    assert drawn == sorted(whole[2])


def test_a_save_in_the_background_is_the_same(tmp_path: Path) -> None:
    launch(tmp_path / "a", 6, 2, every=1)
    launch(tmp_path / "b", 6, 2, every=1, wait=False)
    runs = [launch(tmp_path / each, 7, 2)[0] for each in "ab"]
    assert runs[0][0] == runs[1][0] == 6
    assert all(map(torch.equal, runs[0][1], runs[1][1]))


def _die_in_a_save(folder: str) -> None:
    train(folder, 4)
    rename = os.replace

    def crash(*paths: Any) -> None:
        if str(paths[0]).endswith("step_6.partial"):
            raise KeyboardInterrupt
        rename(*paths)

    os.replace = crash  # type: ignore[assignment]
    train(folder, 6)


def test_a_crash_during_a_save_leaves_the_previous_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(dtlab.RankError):
        dtlab.launch(_die_in_a_save, str(tmp_path), world_size=2)
    assert {path.name for path in tmp_path.iterdir()} == {"step_2", "step_4", "step_6.partial"}
    begin, parameters, _ = launch(tmp_path, 7, 2)[0]
    assert begin == 4
    expected = launch(tmp_path / "whole", 7, 2)[0][1]
    assert all(map(torch.equal, expected, parameters))


def test_another_model_is_refused_in_one_sentence(tmp_path: Path) -> None:
    def wider() -> None:
        model = nn.Linear(8, 1)
        Checkpoints(tmp_path, model, torch.optim.SGD(model.parameters(), lr=0.1)).resume()

    launch(tmp_path, 2, 1)
    with pytest.raises(dtlab.RankError, match="does not fit this model, optimizer and parts"):
        dtlab.launch(wider, world_size=1)


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_every_epoch_visits_each_sample_once(ranks: int) -> None:
    each = [Samples(20, 6, rank=rank, ranks=ranks, seed=5) for rank in range(ranks)]
    batches = [[next(samples).tolist() for samples in each] for _ in range(10)]
    drawn = [batch[i % ranks][i // ranks] for batch in batches for i in range(6)]
    assert [sorted(drawn[start : start + 20]) for start in (0, 20, 40)] == [list(range(20))] * 3
    assert drawn[:20] != drawn[20:40]


def test_samples_names_a_batch_that_does_not_divide() -> None:
    with pytest.raises(ValueError, match="a multiple of ranks"):
        Samples(20, 7, rank=0, ranks=2)


def _torn(folder: Path) -> None:
    for file in folder.glob("*.distcp"):
        file.write_bytes(file.read_bytes()[:-600])


def _zeros_inside(folder: Path) -> None:
    for file in folder.glob("*.distcp"):
        content = file.read_bytes()
        weights = content.find(torch.full((30,), 4.0).numpy().tobytes())
        if weights >= 0:
            file.write_bytes(content[:weights] + bytes(100) + content[weights + 100 :])


def _one_file_lost(folder: Path) -> None:
    next(folder.glob("*.distcp")).unlink()


def _no_metadata(folder: Path) -> None:
    (folder / ".metadata").unlink()


def _torn_metadata(folder: Path) -> None:
    file = folder / ".metadata"
    file.write_bytes(file.read_bytes()[:100])


def _of_another_tool(folder: Path) -> None:
    shutil.rmtree(folder)
    dcp.save({"w": torch.ones(2)}, checkpoint_id=folder, no_dist=True)


def _empty(folder: Path) -> None:
    shutil.rmtree(folder)
    folder.mkdir()


DAMAGES = (
    _torn,
    _zeros_inside,
    _one_file_lost,
    _no_metadata,
    _torn_metadata,
    _of_another_tool,
    _empty,
)


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_checkpoint_is_passed_over_with_a_sentence(
    damage: Callable[[Path], None], tmp_path: Path
) -> None:
    def resume() -> tuple[int, list[str], bool]:
        model = nn.Linear(40, 30)
        checkpoints = Checkpoints(tmp_path, model, torch.optim.Adam(model.parameters()))
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            begin = checkpoints.resume()
        right = bool((model.weight == begin).all())
        texts = [str(each.message) for each in caught if each.category is UserWarning]
        checkpoints.save(begin + 1)  # does not count the newer, damaged one among those to keep
        return begin, [text for text in texts if "continues" in text], right

    def save() -> None:
        model = nn.Linear(40, 30)
        optimizer = torch.optim.Adam(model.parameters())
        checkpoints = Checkpoints(tmp_path, model, optimizer)
        for step in (2, 4):
            model(torch.ones(1, 40)).sum().backward()
            optimizer.step()
            nn.init.constant_(model.weight, step)
            checkpoints.save(step)

    dtlab.launch(save, world_size=2)
    damage(tmp_path / "step_4")
    (tmp_path / "step_9_by_hand").mkdir()
    (first, other) = dtlab.launch(resume, world_size=2).values
    assert (first[0], first[2]) == (other[0], other[2]) == (2, True)
    assert other[1] == []
    (text,) = first[1]
    assert "step_4 cannot be read (" in text
    assert "step_9_by_hand is not named step_ and a number. The run continues from step 2." in text
    assert {"step_2", "step_3"} <= {path.name for path in tmp_path.iterdir()}


def test_without_a_whole_checkpoint_the_run_does_not_start_anew(tmp_path: Path) -> None:
    launch(tmp_path, 2, 1)
    _no_metadata(tmp_path / "step_2")
    with pytest.raises(dtlab.RankError, match="(?s)no\\s+checkpoint that can be read: step_2"):
        launch(tmp_path, 3, 1)


def test_other_names_and_dtypes_are_refused(tmp_path: Path) -> None:
    def resume(model: nn.Module) -> None:
        Checkpoints(tmp_path, model, torch.optim.SGD(model.parameters(), lr=0.1)).resume()

    two = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    Checkpoints(tmp_path, two, torch.optim.SGD(two.parameters(), lr=0.1)).save(1)
    for model, text in [
        (nn.Sequential(nn.Linear(3, 3)), "it has model.1.bias, which no rank has now"),
        (nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3), nn.Linear(3, 3)), "it has no model.2"),
        (nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3)).bfloat16(), "torch.bfloat16 now"),
        (nn.Sequential(nn.Linear(3, 3), nn.Linear(4, 3)), r"is \[3, 3\] in torch.float32 in it"),
    ]:
        with pytest.raises(dtlab.DtlabError, match=text):
            resume(model)
    resume(torch.compile(two))  # type: ignore[arg-type]
