"""A class graded by `dtlab grade`, looked at and corrected in formgrader, in a real browser."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import nbformat
import pytest
from nbgrader.api import Gradebook
from playwright.sync_api import Page, expect

from dtlab.grading.assignments.release import release_assignment
from dtlab.grading.classroom.command import grade
from dtlab.grading.settings import course_directory
from tests.browser.lab import IN_A_BROWSER, chromium, running_in

pytestmark = [*IN_A_BROWSER, pytest.mark.proof]
NAME, PART = "week-1", "averages"


@pytest.fixture(scope="module")
def course(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two students: one has the answers, one has not begun."""
    folder = tmp_path_factory.mktemp("formgrader") / "course"
    for _ in release_assignment("01", parts=f"01/{PART}", name=NAME, course=folder):
        pass
    for student in ("ada", "bob"):
        place = folder / "submitted" / student / NAME
        place.mkdir(parents=True)
        shutil.copy(folder / "release" / NAME / "level-1.ipynb", place)
    path = folder / "submitted" / "ada" / NAME / "level-1.ipynb"
    notebook = nbformat.read(path, as_version=4)
    own = next(cell for cell in notebook.cells if cell.id == "learner")
    own.source = 'learner = "ada"'
    nbformat.write(notebook, path)
    assert grade(NAME, course=folder)
    return folder


@pytest.fixture(scope="module")
def page(course: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    folder = tmp_path_factory.mktemp("jupyter")
    with running_in(course, folder) as address, chromium() as browser:
        tab = browser.new_page()
        tab.goto(f"{address}/formgrader")
        yield tab


def scores(course: Path) -> list[float]:
    directory = course_directory(course)
    with Gradebook(directory.db_url, directory.course_id) as book:
        return [one.score for one in book.assignment_submissions(NAME)]


def test_formgrader_shows_the_assignment_and_takes_points(page: Page, course: Path) -> None:
    row = page.locator("tr", has_text=NAME).first
    expect(row).to_contain_text("2", timeout=60_000)  # submissions
    page.get_by_role("link", name="Manual Grading").click()
    page.get_by_role("link", name=NAME).click()
    page.get_by_role("link", name="level-1").click()
    page.get_by_role("link", name="Submission #1").click()
    if "DTLAB_SHOTS" in os.environ:
        page.wait_for_timeout(3000)
        page.screenshot(path=f"{os.environ['DTLAB_SHOTS']}/formgrader.png", full_page=True)
    box = page.locator("input.score").first
    expect(page.locator("body")).to_contain_text("averages", timeout=30_000)
    page.wait_for_load_state("networkidle")  # the boxes are there before the scores have come
    box.fill("3")
    box.press("Tab")
    deadline = time.monotonic() + 15
    while 3.0 not in scores(course) and time.monotonic() < deadline:
        page.wait_for_timeout(100)
    assert sorted(scores(course)) == [0.0, 3.0]


def test_manual_points_survive_the_next_run(page: Page, course: Path) -> None:
    assert grade(NAME, course=course, again=True)
    assert sorted(scores(course)) == [0.0, 3.0]
