"""A real JupyterLab, started by the README's command on a copy of the course, in real Chromium."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from playwright.sync_api import Browser, Locator, Page, expect, sync_playwright

from tests.marks import retried

ROOT = Path(__file__).parent.parent.parent
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
FLAGS = [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
]  # fmt: skip

# The tab of a panel at the right that is for instructors.
CREATE_ASSIGNMENT = '.jp-SideBar .lm-TabBar-tab:has-text("Create Assignment")'

# What all tests here are marked with.
IN_A_BROWSER = [
    retried,
    pytest.mark.browser,
    pytest.mark.slow,
    pytest.mark.timeout(300),
    pytest.mark.skipif(
        CHROMIUM is None and "CI" not in os.environ, reason="needs Chromium: apt install chromium"
    ),
]


@contextlib.contextmanager
def running_lab(folder: Path, autosave: int = 120) -> Iterator[str]:
    """`make lab` on a copy of the course in `folder`; yields its address. Ends it afterwards.

    JupyterLab saves every `autosave` seconds.
    """
    course = folder / "course"
    for name in ("notebooks", "exercises"):
        shutil.copytree(ROOT / name, course / name)
    shutil.copy(ROOT / "nbgrader_config.py", course)
    make = ["make", "lab", f"COURSE={course}", "PORT=0", "LAB_OPTIONS=--IdentityProvider.token="]
    with _running(make, ROOT, folder, autosave) as address:
        yield address


@contextlib.contextmanager
def running_in(course: Path, folder: Path) -> Iterator[str]:
    """JupyterLab started in an instructor's course folder; what it keeps goes into `folder`."""
    command = [str(Path(sys.executable).parent / "jupyter-lab"), "--no-browser", "--port=0",
               "--allow-root", "--IdentityProvider.token="]  # fmt: skip
    with _running(command, course, folder) as address:
        yield address


@contextlib.contextmanager
def _running(
    command: list[str], place: Path, folder: Path, autosave: int = 120
) -> Iterator[str]:
    """JupyterLab as a new user has it."""
    runtime = folder / "runtime"
    mine = ("JUPYTER", "IPYTHON", "XDG_", "DISPLAY", "WAYLAND_DISPLAY")
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith(mine)},
        "HOME": str(folder / "home"),  # of a user who has never used Jupyter
        "JUPYTER_RUNTIME_DIR": str(runtime),
        "JUPYTERLAB_SETTINGS_DIR": str(user_settings(folder / "settings", autosave)),
    }
    (folder / "home").mkdir()
    with (folder / "lab.log").open("w") as log:
        lab = subprocess.Popen(
            command, cwd=place, env=environment, stdout=log, stderr=log, start_new_session=True
        )
    try:
        yield _address(runtime, lab, folder / "lab.log")
    finally:
        _end(lab)


def user_settings(folder: Path, autosave: int) -> Path:
    """Keep every cell in the page, so that tests find cells out of sight, too."""
    documents = folder / "@jupyterlab" / "docmanager-extension"
    documents.mkdir(parents=True)
    (documents / "plugin.jupyterlab-settings").write_text(f'{{"autosaveInterval": {autosave}}}')
    place = folder / "@jupyterlab" / "notebook-extension"
    place.mkdir(parents=True)
    (place / "tracker.jupyterlab-settings").write_text('{"windowingMode": "none"}')
    return folder


def _address(runtime: Path, lab: subprocess.Popen[bytes], log: Path) -> str:
    """Where the server listens, as it wrote it down."""
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and lab.poll() is None:
        for path in runtime.glob("jpserver-*.json"):
            with contextlib.suppress(json.JSONDecodeError):
                return str(json.loads(path.read_text())["url"]).rstrip("/")
        time.sleep(0.1)
    raise RuntimeError(f"JupyterLab did not start:\n{log.read_text()[-3000:]}")


def _end(lab: subprocess.Popen[bytes]) -> None:
    """Stop the server and its processes; kill those that do not end."""
    family = []
    with contextlib.suppress(psutil.NoSuchProcess):
        first = psutil.Process(lab.pid)
        family = [*first.children(recursive=True), first]
    for process in family:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.send_signal(signal.SIGTERM)
    _, left = psutil.wait_procs(family, timeout=15)
    for process in left:
        process.kill()
    lab.wait(timeout=15)


@contextlib.contextmanager
def chromium() -> Iterator[Browser]:
    """Headless Chromium of the system."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        try:
            yield browser
        finally:
            browser.close()


class Notebook:
    """A notebook open in JupyterLab."""

    def __init__(self, page: Page, address: str, path: str) -> None:
        self.page = page
        workspace = Path(path).stem  # notebooks that are open at a time do not share one
        page.goto(f"{address}/lab/workspaces/{workspace}/tree/{path}?reset", timeout=60_000)
        self.panel = page.locator(".jp-NotebookPanel:not(.lm-mod-hidden)")
        self.panel.locator(".jp-Cell").first.wait_for(timeout=60_000)
        self.kernel = self.panel.locator(".jp-Toolbar-kernelName")
        expect(self.kernel).to_contain_text("Python", timeout=60_000)  # "idle" is shown before it
        self.wait_until_idle()

    def wait_until_idle(self, timeout: float = 60.0) -> None:
        """Wait until the kernel is idle."""
        self.page.locator('.jp-NotebookPanel-toolbar [data-status="idle"]').first.wait_for(
            timeout=timeout * 1000
        )

    def menu(self, *items: str) -> None:
        """Choose from the menus: `menu("Run", "Run All Cells")`."""
        self.page.locator(".lm-MenuBar-itemLabel", has_text=items[0]).first.click()
        for item in items[1:]:
            self.page.locator(".lm-Menu-itemLabel", has_text=item).first.click()

    def save(self) -> None:
        """Save it, and wait until it is."""
        self.menu("File", "Save Notebook")
        expect(self.page.locator(".lm-TabBar-tab.jp-mod-dirty")).to_have_count(0, timeout=30_000)

    def begin_all(self) -> None:
        """Have every cell run."""
        cells = self.panel.locator(".jp-CodeCell").count()
        for _ in range(5):  # a page that has just opened may not listen yet
            self.menu("Run", "Run All Cells")
            self.page.wait_for_timeout(1500)
            if self.unexecuted() < cells or self.panel.locator("text=[*]:").count():
                break

    def end_all(self, timeout: float = 120.0) -> None:
        """Return when the last cell has run."""
        waiting = self.panel.locator(".jp-InputPrompt", has_text="[*]:")
        expect(waiting).to_have_count(0, timeout=timeout * 1000)
        self.wait_until_idle(timeout)

    def cell(self, text: str) -> Locator:
        """The first code cell that contains `text`."""
        return self.panel.locator(".jp-CodeCell", has_text=text).first

    def write(self, cell: Locator, text: str) -> None:
        """Replace a cell's text, as if typed."""
        editor = cell.locator(".cm-content")
        editor.click()
        self.page.keyboard.press("ControlOrMeta+A")
        self.page.keyboard.press("Delete")
        self.page.keyboard.insert_text(text)

    def run(self, cell: Locator, timeout: float = 60.0, wait: bool = True) -> None:
        """Run one cell by the keyboard."""
        prompt = cell.locator(".jp-InputPrompt")
        before = prompt.inner_text()
        for _ in range(5):  # a page that has just opened may not listen yet
            cell.locator(".cm-content").click()
            self.page.keyboard.press("ControlOrMeta+Enter")
            self.page.wait_for_timeout(1000)
            if prompt.inner_text() != before:
                break
        expect(prompt).not_to_have_text(before)
        if wait:
            expect(prompt).not_to_have_text("[*]:", timeout=timeout * 1000)
            self.wait_until_idle(timeout)

    def errors(self) -> list[str]:
        """The text of every error output, and of everything written to stderr."""
        kinds = ("error", "stderr")
        mime = ",".join(f'[data-mime-type="application/vnd.jupyter.{kind}"]' for kind in kinds)
        return self.panel.locator(mime).all_inner_texts()

    def unexecuted(self) -> int:
        """How many code cells have not run."""
        prompts = self.panel.locator(".jp-CodeCell .jp-InputPrompt").all_inner_texts()
        return sum(prompt.strip() in ("[ ]:", "[*]:") for prompt in prompts)

    def shut_down(self) -> None:
        """End the kernel, as closing the notebook for good does."""
        self.menu("Kernel", "Shut Down Kernel")
        expect(self.kernel).to_have_text("No Kernel", timeout=15_000)
