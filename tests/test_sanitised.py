"""No code that a learner wrote runs in the browser of the person who reads it.

The notebooks of tests/hostile/pages.py are rendered as formgrader and `nbgrader generate_feedback`
do it, and looked at in the parsed page. test_formgrader.py opens them in a real browser.
"""

from __future__ import annotations

import base64
from pathlib import Path

import nbgrader.server_extensions.formgrader as formgrader
import pytest
from bs4 import BeautifulSoup
from nbconvert.exporters import HTMLExporter
from nbformat import NotebookNode
from nbformat.v4 import new_markdown_cell, new_notebook
from traitlets.config import Config

from dtlab.checks.report import Criterion, Report
from dtlab.classroom.sanitised import safe_data, safe_html
from dtlab.classroom.settings import configure
from tests.hostile.pages import ELSEWHERE, MARKUP, hostile_cells, hostile_notebook

TEMPLATES = Path(formgrader.__file__).parent / "templates"
BOOTSTRAP = TEMPLATES.parent / "static/node_modules/bootstrap/dist/css"
PNG = base64.b64encode(b"\x89PNG\r\n\x1a\n").decode()
ACTIVE = "script, iframe, object, embed, svg, math, link, form, style, meta, base, input"


def rendered(notebook: NotebookNode, template: str, **resources: object) -> BeautifulSoup:
    """The page that nbgrader makes of a notebook with our settings."""
    config = Config()
    configure(config, Path("/course"))
    config.HTMLExporter.template_name = template
    config.HTMLExporter.extra_template_basedirs = [str(TEMPLATES)]
    config.HTMLExporter.extra_template_paths = [str(BOOTSTRAP)]
    grades = {"notebook": "level-1", "score": 1, "max_score": 2, "late_penalty": 0}
    known = {"base_url": "", "index": 0, "total": 1, "nbgrader": grades, **resources}
    exporter = HTMLExporter(config=config)
    page, _ = exporter.from_notebook_node(notebook, resources=known)
    return BeautifulSoup(page, "html.parser")


def dangers(page: BeautifulSoup) -> list[str]:
    """What could act or fetch something in the part of a page that shows a notebook."""
    shown = page.select_one("#notebook")
    assert shown is not None
    attributes = [item for tag in shown.find_all(True) for item in tag.attrs.items()]
    return [
        *(str(tag)[:80] for tag in shown.select(ACTIVE)),
        *(f"{name}={value}" for name, value in attributes if _acts(name, value)),
    ]


def _acts(name: str, value: object) -> bool:
    text = " ".join(value) if isinstance(value, list) else str(value)
    if name in ("href", "src"):
        return not text.startswith(("https://", "#", "data:image/png;", "data:image/jpeg;"))
    return name.startswith("on") or name == "srcdoc" or ELSEWHERE in text


@pytest.mark.parametrize("template", ["formgrade", "feedback"])
def test_no_cell_of_a_hostile_notebook_acts(template: str) -> None:
    page = rendered(hostile_notebook(), template)
    assert not dangers(page)
    assert f"{page.select_one('#notebook')}".count("window.hacked") > 10  # shown as text
    in_vain = rendered(new_notebook(), template)
    assert len(page.find_all("script")) == len(in_vain.find_all("script"))


def test_without_it_the_payloads_would_act(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dtlab.classroom.sanitised.safe_html", lambda text: text)
    assert len(dangers(rendered(new_notebook(cells=hostile_cells()), "formgrade"))) > 15


@pytest.mark.parametrize("name", ["student", "first_name", "last_name", "notebook_path"])
def test_names_of_people_are_text(name: str) -> None:
    page = rendered(new_notebook(), "formgrade", **{"last_name": "L", "first_name": "F"} | {
        name: f"\"onerror='1'>{MARKUP['handler of an image']}"
    })  # fmt: skip
    assert not page.select("[onerror]")


def test_comments_are_rendered_without_what_acts() -> None:
    cell = new_markdown_cell("x")
    role = {"grade_id": "a", "solution": True, "grade": True, "points": 1, "score": 0}
    cell.metadata.nbgrader = {**role, "comment": f"**Well** done. {MARKUP['handler of an image']}"}
    page = rendered(new_notebook(cells=[cell]), "feedback")
    assert not page.select("[onerror]")
    assert "<strong>Well</strong>" in str(page)


def test_text_tables_code_links_and_pictures_stay() -> None:
    text = "\n".join([
        "# A defence", "", "**Bold**, `code`, $x^2$ and [PyTorch](https://pytorch.org).", "",
        "| a | b |", "|---|---|", "| 1 | 2 |", "", "```python", "x = 1", "```", "",
        "![a plot](attachment:plot.png)",
    ])  # fmt: skip
    cell = new_markdown_cell(text, attachments={"plot.png": {"image/png": PNG}})
    page = rendered(new_notebook(cells=[cell]), "formgrade")
    shown = page.select_one("#notebook")
    assert shown is not None
    for selector in ("h1", "strong", "code", "table td", "div.highlight span.n"):
        assert shown.select(selector), selector
    assert shown.select_one('a[href="https://pytorch.org"]')
    picture = shown.select_one("img")
    assert picture is not None
    assert str(picture["src"]).startswith("data:image/png;base64,")
    assert "$x^2$" in shown.text


def test_the_judges_report_looks_as_before() -> None:
    report = Report("ring", (Criterion("a", 3, 3, "ok", "`x` is right"),))
    clean = safe_html(report._repr_html_())
    for kept in ("<table", "border-collapse:collapse", "background:#1b7f4b", "white-space:nowrap"):
        assert kept in clean


def test_of_an_output_text_and_raster_images_stay() -> None:
    data = {"text/plain": "<b>3</b>", "text/html": "<b>3</b>", "image/png": PNG}
    assert safe_data(data) == {"text/plain": "<b>3</b>", "image/png": PNG}
    assert safe_data({"image/svg+xml": "<svg/>"}) == {
        "text/plain": "[an output of kind image/svg+xml]"
    }
    assert safe_data({"image/png": "no picture", "text/plain": 3}) == {
        "text/plain": "[an output of kind image/png, text/plain]"
    }
