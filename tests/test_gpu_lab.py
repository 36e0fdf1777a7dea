"""The GPU lab: it runs to its end with GPUs or without, and its cells fill in the sheet."""

from __future__ import annotations

import json
import math
import re
from itertools import combinations
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import nbformat
import pytest
import torch
from nbformat import NotebookNode

from dtlab.doctor.checks import LINK_WORDS, link_words
from dtlab.predict import CARDS, LINKS, Card, Link
from tests.test_units_run import has_figure, kernel, run_in, says_what_it_shows

LAB = Path(__file__).parent.parent / "notebooks" / "gpu_lab.ipynb"
MINUTES = 90
MOST_LINES = 22  # of a cell, imports apart: it is read aloud
SAVED = ("gpu_lab_sheet.json", "gpu_lab_sheet.md")
ROWS = [  # what the sheet has, for four ranks
    "1 pairs on the fastest link",
    "2 latency of a link",
    "2 bandwidth of a link",
    "3 efficiency on 4 ranks, overlap on",
    "3 efficiency on 4 ranks, overlap off",
    "4 layers that fit at stage 0",
    "4 layers that fit at stage 3",
    "4 bytes at stage 3",
    "5 block, near",
    "5 block, far",
    "5 bytes that a rank sends in a step",
    "5 far over near",
    "6 time of a step",
    "6 bubble",
]


def lab() -> NotebookNode:
    return nbformat.read(LAB, as_version=4)


def cell(name: str) -> NotebookNode:
    return next(one for one in lab().cells if one.id == name)


def parts() -> list[str]:
    """The texts that open the six parts with measurements, and the sheet."""
    return [one.source for one in lab().cells if re.match(r"## \d ", one.source)]


# What it says -----------------------------------------------------------------------------------


def test_it_is_stored_without_outputs() -> None:
    for one in lab().cells:
        assert not one.get("outputs")
        assert one.get("execution_count") is None


def test_each_part_says_what_it_needs_and_the_minutes_make_up_the_lab() -> None:
    opened = parts()
    assert [text[3] for text in opened] == list("1234567")
    minutes = [int(found[1]) for text in opened if (found := re.search(r"\*(\d+) minutes", text))]
    assert len(minutes) == len(opened)
    assert sum(minutes) == MINUTES
    rows = [line.split("|") for line in cell("title").source.splitlines()]
    table = [int(row[2]) for row in rows if len(row) == 6 and row[2].strip().isdigit()]
    assert table == minutes
    for text in opened:
        assert "Needs:" in text
    for text in opened[:6]:
        assert "without" in text.lower()  # GPUs: what happens then
        assert "**Prediction:**" in text


def test_each_part_with_a_measurement_ends_with_questions_and_what_to_write() -> None:
    ends = [one.source for one in lab().cells if one.id.endswith("-questions")]
    assert len(ends) == 6
    for text in ends:
        assert "**Questions.**" in text
        assert "**In the sheet:**" in text


def test_cells_fit_a_screen() -> None:
    code = [one for one in lab().cells if one.cell_type == "code" and one.id != "imports"]
    long = {one.id: len(one.source.splitlines()) for one in code}
    assert not {name: lines for name, lines in long.items() if lines > MOST_LINES}


# Links that the driver reports ------------------------------------------------------------------


def published_link(card: Card, links: dict[tuple[int, int], str]) -> tuple[int, Link]:
    """How many pairs are on the fastest link, and what the lab takes as published."""
    told = [{"gpus": list(pair), "link": link} for pair, link in links.items()]
    rows: list[Any] = []
    names: dict[str, Any] = {
        "ON_GPU": True, "RANKS": 4, "combinations": combinations, "LINK_WORDS": LINK_WORDS,
        "link_words": link_words, "LINKS": LINKS, "Link": Link,
        "findings": [SimpleNamespace(name="links", value={"links": told or None})],
        "write": lambda *row: rows.append(row), "who_guess": SimpleNamespace(reveal=lambda _: 0),
        "dtlab": SimpleNamespace(launch=lambda *_, **__: SimpleNamespace(values=[card])),
    }  # fmt: skip
    for name in ("who-links", "who-table", "bus-published"):
        exec(cell(name).source, names)
    ((_, _, predicted, found, _),) = rows
    assert predicted == 6
    return found, names["PUBLISHED"]


def test_the_fastest_link_of_the_topology_is_counted_and_its_bandwidth_taken() -> None:
    pairs = list(combinations(range(4), 2))
    a100, unknown = CARDS["A100 SXM 80 GB"], Card("A100-SXM4-40GB", 40 * 2**30)
    switch = dict.fromkeys(pairs, "NV12")
    assert published_link(a100, switch) == (6, Link(2e-6, 300e9))
    assert published_link(unknown, switch)[1].bandwidth == 12 * 25e9
    assert published_link(unknown, switch | {(0, 1): "NV4", (2, 3): "SYS"})[0] == 4
    two_sockets = dict.fromkeys(pairs, "SYS") | {(0, 1): "PIX", (2, 3): "NODE"}
    assert published_link(a100, two_sockets) == (1, LINKS["PCIe 4"])
    assert published_link(a100, {}) == (6, LINKS["PCIe 4"])  # unknown: no link counts as fast


# The sheet --------------------------------------------------------------------------------------


def filled_in() -> dict[str, Any]:
    """Names that the cells of part 7 use, with a sheet of one row."""
    row = {"unit": "ms", "guessed": 3, "predicted": 2.0, "measured": 5.0, "kind": "emulated"}
    return {
        "sheet": {"a": row, "b": row | {"guessed": None}},
        "RANKS": 4, "GPUS": 0, "ON_GPU": False, "GROUP": ["Ada", "Grace"],
        "json": json, "Path": Path, "torch": torch, "Markdown": str,
    }  # fmt: skip


def run_part_7(names: dict[str, Any], *, save: bool) -> None:
    source = cell("sheet-save").source
    assert source.startswith("SAVE = False\n")
    exec(cell("sheet-table").source, names)
    exec(source.replace("SAVE = False", f"SAVE = {save}", 1), names)


def test_nothing_is_saved_unless_it_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    run_part_7(filled_in(), save=False)
    assert not list(tmp_path.iterdir())


def test_the_sheet_is_saved_with_the_names_of_the_group(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    names = filled_in()
    run_part_7(names, save=True)
    assert sorted(each.name for each in tmp_path.iterdir()) == sorted(SAVED)
    record = json.loads((tmp_path / SAVED[0]).read_text())
    assert record["group"] == ["Ada", "Grace"]
    assert record["sheet"] == names["sheet"]
    page = (tmp_path / SAVED[1]).read_text()
    assert "**Ada, Grace**, 4 ranks on the CPU, links emulated" in page
    assert "| a | ms | 3 | 2 | 5 | emulated | 2.5 |" in page
    assert "| b | ms |  | 2 | 5 | emulated | 2.5 |" in page


# The whole lab ----------------------------------------------------------------------------------


def run_of(folder: Path) -> tuple[NotebookNode, dict[str, dict[str, Any]]]:
    """The notebook after a run from a fresh kernel by a group that saves, and its sheet."""
    notebook = lab()
    for one in notebook.cells:
        if one.id == "group":
            one.source = one.source.replace("GROUP = []", 'GROUP = ["Ada", "Grace"]', 1)
        if one.id == "sheet-save":
            one.source = one.source.replace("SAVE = False", "SAVE = True", 1)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        with kernel() as client:
            run_in(client, notebook)
    record = json.loads((folder / SAVED[0]).read_text())
    assert record["group"] == ["Ada", "Grace"]
    return notebook, record["sheet"]


def figures_of(notebook: NotebookNode) -> dict[str, NotebookNode]:
    """The figures by the cell that shows them."""
    shown = [(one.id, output) for one in notebook.cells for output in one.get("outputs", [])]
    return {name: output for name, output in shown if has_figure(output)}


def assert_filled(sheet: dict[str, dict[str, Any]]) -> None:
    for row, one in sheet.items():
        for number in (one["predicted"], one["measured"]):
            assert math.isfinite(number), row
            assert number > 0 or row == "2 latency of a link", row  # a fit may find none


@pytest.mark.proof
@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.skipif(torch.cuda.device_count() > 1, reason="there are GPUs: they are used")
def test_it_runs_without_gpus_and_fills_in_every_row(tmp_path: Path) -> None:
    notebook, sheet = run_of(tmp_path)
    assert list(sheet) == ROWS
    assert_filled(sheet)
    kinds = {row: one["kind"] for row, one in sheet.items()}
    counted = {row for row in ROWS if row[0] == "4" or "bytes" in row}  # never emulated
    assert {row for row, kind in kinds.items() if kind == "measured"} == counted
    figures = figures_of(notebook)
    assert not [name for name, output in figures.items() if not says_what_it_shows(output)]
    for name in ("bus-figure", "ddp-figure", "tensor-figure", "pipe-figure"):
        assert "emulated: " in str(figures[name].data)
    for name in ("zero-figure", "ddp-cores", "pipe-cores"):
        assert "emulated: " not in str(figures[name].data)
    ratios = {row: one["measured"] / one["predicted"] for row, one in sheet.items()}
    assert abs(ratios["4 bytes at stage 3"] - 1) < 0.02
    assert 1 <= ratios["5 bytes that a rank sends in a step"] < 1.05  # headers are small
    assert sheet["5 far over near"]["measured"] > 1.5
    assert sheet[ROWS[3]]["measured"] > sheet[ROWS[4]]["measured"]  # overlap on, and off


@pytest.mark.gpu
@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices")
def test_on_gpus_nothing_is_emulated(tmp_path: Path) -> None:
    notebook, sheet = run_of(tmp_path)
    assert len(sheet) == len(ROWS)
    assert_filled(sheet)
    assert {one["kind"] for one in sheet.values()} == {"measured"}
    figures = figures_of(notebook)
    assert {"ddp-figure", "pipe-figure"} <= figures.keys()
    for output in figures.values():
        assert says_what_it_shows(output)
        assert "emulated" not in str(output.data)
