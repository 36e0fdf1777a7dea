"""A class graded by `dtlab grade`, shown and corrected in formgrader, in a real browser."""

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

from dtlab.checks import find_part
from dtlab.classroom.command import grade
from dtlab.classroom.releases.release import release_assignment
from dtlab.classroom.settings import course_directory
from tests.browser.lab import CREATE_ASSIGNMENT, IN_A_BROWSER, chromium, running_in

pytestmark = [*IN_A_BROWSER, pytest.mark.proof]
NAME, PART, DEFENCE = "week-1", "averages", "week-2"


@pytest.fixture(scope="module")
def course(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two students: one has the answers, one has not begun."""
    folder = tmp_path_factory.mktemp("formgrader") / "course"
    for _ in release_assignment("01", parts=f"01/{PART}", name=NAME, course=folder):
        pass
    for student in ("ada", "bob"):
        place = folder / "submitted" / student / NAME
        place.mkdir(parents=True)
        shutil.copy(folder / "release" / NAME / "01_level_1.ipynb", place)
    path = folder / "submitted" / "ada" / NAME / "01_level_1.ipynb"
    notebook = nbformat.read(path, as_version=4)
    own = next(cell for cell in notebook.cells if cell.id == "learner")
    own.source = 'learner = "ada"'
    nbformat.write(notebook, path)
    assert grade(NAME, course=folder)
    for _ in release_assignment("05", parts="05/defence", name=DEFENCE, course=folder):
        pass
    place = folder / "submitted" / "ada" / DEFENCE
    place.mkdir(parents=True)
    shutil.copy(folder / "source" / DEFENCE / "05_level_3.ipynb", place)
    assert grade(DEFENCE, course=folder)
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


def the_defence(course: Path) -> tuple[float | None, str]:
    """The points of the defence, and the comment below it."""
    directory = course_directory(course)
    with Gradebook(directory.db_url, directory.course_id) as book:
        grade = book.find_grade("defence", "05_level_3", DEFENCE, "ada")
        comment = book.find_comment("defence", "05_level_3", DEFENCE, "ada")
        return grade.manual_score, comment.manual_comment or ""


def test_formgrader_shows_the_assignment_and_takes_points(page: Page, course: Path) -> None:
    row = page.locator("tr", has_text=NAME).first
    expect(row).to_contain_text("2", timeout=60_000)  # submissions
    page.get_by_role("link", name="Manual Grading").click()
    page.get_by_role("link", name=NAME).click()
    page.get_by_role("link", name="01_level_1").click()
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


def test_an_instructor_can_create_assignments(page: Page) -> None:
    """`make lab`, for learners, does not show this panel: see test_next_day.py."""
    address = page.url.partition("/formgrader")[0]
    page.goto(f"{address}/lab/workspaces/panels?reset")
    expect(page.locator(CREATE_ASSIGNMENT)).to_be_visible(timeout=60_000)
    page.goto(f"{address}/formgrader")


def test_a_click_on_the_rubric_gives_points_and_says_what_for(page: Page, course: Path) -> None:
    rubric = [what for _, what in find_part("05/defence").check.rubric]
    address = page.url.partition("/formgrader")[0]
    page.goto(f"{address}/formgrader/gradebook/{DEFENCE}/05_level_3")
    page.get_by_role("link", name="Submission #1").click()
    boxes = page.locator(".nbgrader_cell input[type=checkbox]")
    expect(boxes).to_have_count(len(rubric), timeout=30_000)
    page.wait_for_load_state("networkidle")
    comment = page.locator("textarea.comment").last
    comment.fill("Well argued.")
    comment.press("Tab")
    most = [float(one) for one in boxes.evaluate_all("all => all.map(one => one.dataset.points)")]
    boxes.nth(0).check()
    boxes.nth(1).check()
    boxes.nth(1).uncheck()
    if "DTLAB_SHOTS" in os.environ:
        page.screenshot(path=f"{os.environ['DTLAB_SHOTS']}/rubric.png", full_page=True)
    deadline = time.monotonic() + 15
    said = f"{most[0]:g} of {most[0]:g}: {rubric[0]}", f"0 of {most[1]:g}: {rubric[1]}"
    while time.monotonic() < deadline:
        points, text = the_defence(course)
        if points == most[0] and said[1] in text:
            break
        page.wait_for_timeout(100)
    assert points == most[0]
    lines = [line for line in text.split("\n") if line]
    assert lines[:2] == [*said]
    assert lines[-1] == "Well argued."
    page.reload()
    page.wait_for_load_state("networkidle")
    expect(boxes.nth(0)).to_be_checked()
    expect(boxes.nth(1)).not_to_be_checked()
