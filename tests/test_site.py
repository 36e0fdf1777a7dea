"""The site, built without running the lessons: its links, and that it needs no other host."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Literal
from urllib.parse import unquote

import pytest

from tests.browser.lab import chromium

ROOT = Path(__file__).parent.parent

pytestmark = [
    pytest.mark.proof,
    pytest.mark.timeout(400),
    pytest.mark.skipif(
        importlib.util.find_spec("myst_nb") is None, reason="needs the extra site: make site"
    ),
]


class Links(HTMLParser):
    """The addresses that a page links to, and those that it loads."""

    def __init__(self) -> None:
        super().__init__()
        self.linked: list[str] = []
        self.loaded: list[str] = []
        self.names: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        self.names.add(values.get("id", ""))
        if tag == "a" and "href" in values:
            self.linked.append(values["href"])
        elif tag in ("img", "script", "iframe", "source") and "src" in values:
            self.loaded.append(values["src"])
        elif tag == "link" and values.get("rel") in ("stylesheet", "preload", "icon"):
            self.loaded.append(values["href"])


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    source = tmp_path_factory.mktemp("source")
    target = tmp_path_factory.mktemp("site")
    shutil.copytree(ROOT / "docs" / "site", source, dirs_exist_ok=True)
    for name in ("notebooks", "exercises"):
        shutil.copytree(ROOT / name, source / name)
    for name in ("README.md", "CONTRIBUTING.md"):
        shutil.copy(ROOT / name, source)
    (source / "docs").mkdir()
    for path in (ROOT / "docs").glob("*.*"):
        shutil.copy(path, source / "docs")
    build = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-b", "html"]
    settings = {"DTLAB_SITE_EXECUTION": "off", "DTLAB_REPOSITORY": "owner/name"}
    done = subprocess.run(
        [*build, str(source), str(target)],
        env=os.environ | settings, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return target


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[Path, Links]:
    found = {}
    for path in site.rglob("*.html"):
        found[path] = Links()
        found[path].feed(path.read_text(encoding="utf-8"))
    return found


def test_every_link_leads_to_a_page(pages: dict[Path, Links]) -> None:
    broken = []
    for path, page in pages.items():
        for link in page.linked:
            address, _, name = link.partition("#")
            if re.match(r"[a-z]+:", address):
                continue
            target = (path.parent / unquote(address)).resolve() if address else path
            names = pages[target].names if target in pages else None
            if not target.is_file() or (name and names and unquote(name) not in names):
                broken.append(f"{path.name}: {link}")
    assert not broken, broken[:20]


def test_no_page_needs_another_host(pages: dict[Path, Links]) -> None:
    outside = {
        address
        for page in pages.values()
        for address in page.loaded
        if re.match(r"(https?:)?//", address)
    }
    assert not outside


def test_a_lesson_can_be_downloaded_and_opened_in_colab(site: Path) -> None:
    page = (site / "notebooks" / "01_ranks_and_collectives.html").read_text(encoding="utf-8")
    assert "owner/name/blob/gh-pages/colab/01_ranks_and_collectives.ipynb" in page
    original = (ROOT / "notebooks" / "01_ranks_and_collectives.ipynb").read_text(encoding="utf-8")
    copy = site / "_sources" / "notebooks" / "01_ranks_and_collectives.ipynb"
    assert copy.read_text(encoding="utf-8") == original
    colab = (site / "colab" / "01_ranks_and_collectives.ipynb").read_text(encoding="utf-8")
    assert "%pip install" in colab and "%pip install" not in original


def test_exercises_are_not_solved(site: Path) -> None:
    for path in (site / "exercises").rglob("*.html"):
        assert "BEGIN SOLUTION" not in path.read_text(encoding="utf-8")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_on_a_phone_no_line_is_cut(site: Path, scheme: Literal["light", "dark"]) -> None:
    cut = """[...document.querySelectorAll('article :is(p, li, h1, h2, h3) :is(code, a)')]
        .filter(e => !e.closest('table, pre'))
        .filter(e => Math.max(...[...e.getClientRects()].map(r => r.right)) > innerWidth)
        .map(e => e.textContent)"""
    with chromium() as browser:
        page = browser.new_page(viewport={"width": 390, "height": 800}, color_scheme=scheme)
        for path in sorted(site.rglob("*.html")):
            if "genindex" not in path.name and "_static" not in path.parts:
                page.goto(path.as_uri())
                assert page.evaluate(cut) == [], path
                assert page.evaluate("document.documentElement.scrollWidth") <= 390, path
