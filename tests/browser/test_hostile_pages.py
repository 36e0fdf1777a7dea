"""Notebooks that try to run scripts in a grader's browser, opened in a real one."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import nbformat
import pytest
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell
from nbgrader.apps import NbGraderAPI
from playwright.sync_api import Browser, Page

from dtlab.classroom.command import grade
from dtlab.classroom.releases.release import release_assignment
from dtlab.classroom.settings import course_directory
from tests.browser.lab import IN_A_BROWSER, chromium, running_in
from tests.hostile.pages import ELSEWHERE, MARKUP, hostile_cells, hostile_notebook
from tests.test_sanitised import rendered

pytestmark = IN_A_BROWSER
NAME, PART = "week-1", "averages"
EVE = "eve\"'><img src=x onerror=window.hacked=1>"


@pytest.fixture
def browser() -> Iterator[Browser]:
    with chromium() as browser:
        yield browser


class Visit:
    """A page in which everything that a reader may click has been clicked."""

    def __init__(self, page: Page, address: str) -> None:
        self.page = page
        self.fetched: list[str] = []
        page.on("request", lambda request: self.fetched.append(request.url))
        page.on("dialog", lambda dialog: dialog.dismiss())
        page.goto(address)
        page.wait_for_timeout(500)
        for bait in page.locator(".bait, #notebook a:not([href^='#'])").all():
            if bait.is_visible():
                bait.click(modifiers=["Alt"], no_wait_after=True, timeout=2000)
        page.wait_for_timeout(200)

    @property
    def harm(self) -> list[str]:
        """What the notebook has done."""
        ran = ["a script ran"] if self.page.evaluate("() => 'hacked' in window") else []
        return ran + [url for url in self.fetched if url.startswith(ELSEWHERE)]


def write(notebook: NotebookNode, template: str, folder: Path) -> str:
    path = folder / f"{template}.html"
    path.write_text(str(rendered(notebook, template)))
    return path.as_uri()


@pytest.mark.sample(1)
@pytest.mark.parametrize("template", ["formgrade", "feedback"])
def test_a_page_of_a_hostile_notebook_does_nothing(
    template: str, browser: Browser, tmp_path: Path
) -> None:
    page = browser.new_page()
    assert not Visit(page, write(hostile_notebook(), template, tmp_path)).harm


@pytest.mark.proof
def test_the_payloads_act_where_nothing_is_sanitised(
    browser: Browser, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dtlab.classroom.sanitised.safe_html", lambda text: text)
    page = browser.new_page()
    page.set_default_timeout(5000)
    fetched: list[str] = []
    page.on("request", lambda request: fetched.append(request.url))
    page.goto(write(hostile_notebook(), "feedback", tmp_path), wait_until="commit")
    page.wait_for_function("() => 'hacked' in window")
    assert any(url.startswith(ELSEWHERE) for url in fetched)


# In formgrader ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def course(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Eve hands in all payloads: as Markdown, and as outputs that her cells show."""
    folder = tmp_path_factory.mktemp("hostile") / "course"
    for _ in release_assignment("01", parts=f"01/{PART}", name=NAME, course=folder):
        pass
    place = folder / "submitted" / EVE / NAME
    place.mkdir(parents=True)
    shutil.copy(folder / "release" / NAME / "01_level_1.ipynb", place)
    path = place / "01_level_1.ipynb"
    notebook = nbformat.read(path, as_version=4)
    show = "from IPython.display import HTML, SVG, Javascript, Markdown, display\n"
    shown = [f"display(HTML({text!r}))" for text in MARKUP.values()]
    shown.append(f"display(Javascript({'window.hacked = 1'!r}), Markdown({MARKUP['script']!r}))")
    notebook.cells += [new_code_cell(show + "\n".join(shown)), *hostile_cells()]
    nbformat.write(notebook, path)
    assert grade(NAME, course=folder)
    return folder


@pytest.mark.proof
def test_formgrader_and_feedback_show_a_hostile_notebook(
    course: Path, browser: Browser, tmp_path: Path
) -> None:
    directory = course_directory(course)
    api = NbGraderAPI(directory, config=directory.config)
    (submission,) = api.get_notebook_submissions(NAME, "01_level_1")
    with running_in(course, tmp_path) as address:
        page = browser.new_page()
        visit = Visit(page, f"{address}/formgrader/submissions/{submission['id']}/?index=0")
        assert "window.hacked" in page.inner_text("#notebook")
        assert not visit.harm
        for other in ("manage_students", "manage_assignments", f"manage_submissions/{NAME}",
                      f"manage_students/{quote(EVE)}", f"gradebook/{NAME}/01_level_1",
                      f"manage_students/{quote(EVE)}/{NAME}"):  # fmt: skip
            page.goto(f"{address}/formgrader/{other}")
            page.wait_for_load_state("networkidle")
            assert not visit.harm, other
        api.generate_feedback(NAME)
        (feedback,) = (course / "feedback" / EVE).rglob("*.html")
        answer = page.goto(f"{address}/files/{feedback.relative_to(course)}")
        assert answer is not None
        assert "sandbox" in answer.headers["content-security-policy"]
        assert not Visit(page, feedback.as_uri()).harm
