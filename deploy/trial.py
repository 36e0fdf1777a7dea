"""The trial of the hub: an instructor and three learners use it at the same time, in a browser.

    python -m deploy.trial --environment FOLDER --proxy COMMAND [--pictures FOLDER]

FOLDER is the environment that deploy/install.sh made, and COMMAND is configurable-http-proxy
(npm install configurable-http-proxy). The hub listens on free ports of 127.0.0.1, and its files
are in a temporary folder. The command prints what each person sees, and the learners' points; its
exit status is 1 if something fails or stays behind. docs/instructors.md is its protocol.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from threading import Barrier, BrokenBarrierError
from typing import TypeVar

import nbformat
import psutil
from playwright.sync_api import Page, expect

from tests.browser.lab import Notebook, chromium, user_settings

ROOT = Path(__file__).resolve().parents[1]
CONFIG = ROOT / "deploy" / "jupyterhub_config.py"
SOLUTIONS = ROOT / "solutions" / "01_ranks_and_collectives" / "level-2.ipynb"
INSTRUCTOR, COURSE, NAME = "instructor", "dtlab-101", "week-1"
REQUIRED = ("reduce_scatter", "ring_all_reduce")
EXTRA = ("tree_broadcast", "hierarchical_all_reduce")
# The parts that each learner answers; all others stay as they were handed out.
ANSWERS: Mapping[str, tuple[str, ...]] = {
    "ada": (*REQUIRED, *EXTRA),
    "ben": REQUIRED,
    "cleo": (),
}
START_LIMIT, STAGE_LIMIT, END_LIMIT = 60.0, 900.0, 60.0  # seconds
Someone = TypeVar("Someone", bound="Visitor")
Points = dict[str, tuple[float, float]]  # by learner: points, and points that can be had


@dataclass(frozen=True)
class Hub:
    """A running hub: its address, its files, and the passwords of this run."""

    address: str
    folder: Path
    password: str
    instructor_password: str

    def home(self, name: str) -> Path:
        """The folder of a user."""
        return self.folder / "homes" / name


@contextlib.contextmanager
def running_hub(environment: Path, proxy: Path, folder: Path) -> Iterator[Hub]:
    """Start the hub with its files in `folder`, and end it; raise if something stays behind."""
    public, inside, api = ports = free_ports(3)
    hub = Hub(f"http://127.0.0.1:{public}", folder, *map(secrets.token_hex, (8, 32)))
    for name in (INSTRUCTOR, *ANSWERS):  # in a test, cells out of sight must exist too
        user_settings(hub.home(name) / ".jupyter" / "lab" / "user-settings", autosave=120)
    words = [
        str(environment / "bin" / "jupyterhub"), f"--config={CONFIG}",
        f"--JupyterHub.bind_url={hub.address}", f"--JupyterHub.hub_port={inside}",
        f"--ConfigurableHTTPProxy.api_url=http://127.0.0.1:{api}",
        f"--ConfigurableHTTPProxy.command={proxy}",
    ]  # fmt: skip
    variables = {
        **{key: os.environ[key] for key in ("PATH", "LANG") if key in os.environ},
        "HOME": str(folder),
        "DTLAB_HUB": str(folder),
        "DTLAB_TRIAL_PASSWORD": hub.password,
        "DTLAB_TRIAL_INSTRUCTOR_PASSWORD": hub.instructor_password,
    }
    with (folder / "hub.log").open("w") as log:
        process = subprocess.Popen(
            words, cwd=folder, env=variables, stdout=log, stderr=log, start_new_session=True
        )
    try:
        wait_for(lambda: answers(hub.address) or process.poll() is not None, START_LIMIT)
        if process.poll() is not None:
            raise RuntimeError("the hub did not start; its messages are above")
        yield hub
    except BaseException:
        print((folder / "hub.log").read_text()[-6000:], file=sys.stderr)
        raise
    finally:
        process.send_signal(signal.SIGTERM)  # the hub then stops all servers and the proxy
        try:
            process.wait(END_LIMIT)
        finally:
            left = remaining(folder)
            for each in left:
                each.kill()
    assert not left, f"processes left: {[' '.join(each.info['cmdline'] or []) for each in left]}"
    assert all(map(is_free, ports)), f"ports left, of {ports}"


def remaining(folder: Path) -> list[psutil.Process]:
    """Processes that were started for the hub in this folder: their variables name it."""
    found = []
    for process in psutil.process_iter(["cmdline", "environ", "status"]):
        variables = process.info["environ"] or {}
        if process.info["status"] != psutil.STATUS_ZOMBIE and any(
            str(folder) in variables.get(name, "") for name in ("DTLAB_HUB", "NBGRADER_EXCHANGE")
        ):
            found.append(process)
    return found


def free_ports(count: int) -> list[int]:
    """Ports of 127.0.0.1 that no program uses."""
    with contextlib.ExitStack() as stack:
        servers = [
            stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)
        ]
        return [server.getsockname()[1] for server in servers]


def is_free(port: int) -> bool:
    """Whether no program listens at this port."""
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) != 0


def answers(address: str) -> bool:
    """Whether the hub answers."""
    with contextlib.suppress(OSError), urllib.request.urlopen(f"{address}/hub/api/", timeout=5):
        return True
    return False


def wait_for(true: Callable[[], object], limit: float) -> None:
    """Return when `true()` is; raise TimeoutError after `limit` seconds."""
    deadline = time.monotonic() + limit
    while not true():
        if time.monotonic() > deadline:
            raise TimeoutError(f"nothing happened within {limit:g} s")
        time.sleep(0.2)


class Visitor:
    """A person in front of a browser."""

    def __init__(self, page: Page, hub: Hub, name: str, pictures: Path | None) -> None:
        self.page, self.hub, self.name, self.pictures = page, hub, name, pictures
        self.server = f"{hub.address}/user/{name}"

    def say(self, text: str) -> None:
        """Print what this person sees."""
        print(f"{time.strftime('%H:%M:%S')} {self.name:>10}: {text}", flush=True)

    def picture(self, name: str) -> None:
        """Keep what the screen shows, if pictures are wanted."""
        if self.pictures is not None:
            self.page.screenshot(path=self.pictures / f"{self.name}-{name}.png")

    def log_in(self, password: str) -> None:
        """Log in, and wait for JupyterLab."""
        self.page.goto(f"{self.hub.address}/hub/login")
        self.page.fill("#username_input", self.name)
        self.page.fill("#password_input", password)
        self.page.click("#login_submit")
        self.page.wait_for_url("**/user/*/lab**", timeout=180_000)
        self.page.locator(".jp-Launcher").wait_for(timeout=120_000)
        self.say("JupyterLab is open")

    def menu(self, *items: str) -> None:
        """Choose from JupyterLab's menus."""
        self.page.locator(".lm-MenuBar-itemLabel", has_text=items[0]).first.click()
        for item in items[1:]:
            self.page.locator(".lm-Menu-itemLabel").get_by_text(item, exact=True).first.click()


class Instructor(Visitor):
    """Types commands into JupyterLab's terminal."""

    def open_terminal(self) -> None:
        """Open a terminal, and wait until its shell has executed a line."""
        self.menu("File", "New", "Terminal")
        self.screen = self.page.locator(".jp-Terminal .xterm-helper-textarea")
        self.screen.wait_for(state="attached", timeout=60_000)
        ready = self.hub.home(self.name) / ".ready"
        for _ in range(30):
            self._type("touch ~/.ready")
            self.page.wait_for_timeout(1000)
            if ready.exists():
                return
        raise TimeoutError("the terminal does not answer")

    def run(self, command: str, limit: float = 300.0) -> str:
        """Run a command in the terminal, and return its output; raise if it fails."""
        home = self.hub.home(self.name)
        output, status = home / ".output", home / ".status"
        status.unlink(missing_ok=True)
        self._type(f"{{ {command}; }} 2>&1 | tee ~/.output; echo ${{PIPESTATUS[0]}} > ~/.status")
        wait_for(lambda: status.exists() and status.read_text().endswith("\n"), limit)
        text = output.read_text()
        self.say(f"$ {command}\n{text.rstrip()}")
        if status.read_text() != "0\n":
            raise RuntimeError(f"{command} ended with status {status.read_text()}")
        return text

    def _type(self, line: str) -> None:
        self.screen.focus()
        self.page.keyboard.insert_text(line)
        self.page.keyboard.press("Enter")


class Learner(Visitor):
    """Fetches, writes, submits, and reads feedback."""

    def assignments(self) -> None:
        """Open nbgrader's list of assignments."""
        self.page.goto(f"{self.server}/lab?reset", timeout=60_000)
        self.page.locator(".jp-Launcher").wait_for(timeout=120_000)
        self.menu("Nbgrader", "Assignment List")

    def press(self, button: str, in_list: str, then_in: str) -> None:
        """Press a button beside the assignment, and wait until it is in the list `then_in`."""
        row = self.page.locator(f"#{in_list}_assignments_list .list_item", has_text=NAME).first
        row.get_by_role("button", name=button).click(timeout=60_000)
        moved = self.page.locator(f"#{then_in}_assignments_list .list_item", has_text=NAME)
        moved.first.wait_for(timeout=60_000)

    def fetch(self) -> None:
        """Fetch the assignment."""
        self.assignments()
        self.press("Fetch", "released", "fetched")
        self.picture("fetched")
        self.say(f"{NAME} is among the downloaded assignments")

    def work(self, solutions: Mapping[str, str]) -> None:
        """Write this learner's answers, and run their checks."""
        parts = ANSWERS[self.name]
        notebook = Notebook(self.page, self.server, f"{NAME}/01_level_2.ipynb")
        if parts:
            notebook.run(notebook.cell("import dtlab"))
        for part in parts:
            cell = notebook.cell(f"def {part}(")
            notebook.write(cell, solutions[part])
            notebook.run(cell)
            check = notebook.cell(f'dtlab.check("01/{part}"')
            notebook.run(check, timeout=180)
            report = check.locator(".jp-OutputArea-output").last
            score = re.search(r"\d+ of \d+ points", report.inner_text())
            self.say(f"{part}: {score.group() if score else report.inner_text()}")
        self.picture("worked")
        notebook.save()
        notebook.shut_down()

    def submit(self) -> None:
        """Hand in."""
        self.assignments()
        self.press("Submit", "fetched", "submitted")
        self.picture("submitted")
        self.say(f"{NAME} is among the submitted assignments")

    def read_feedback(self) -> tuple[float, float]:
        """Fetch feedback and open it; return the points that it shows, and the points possible."""
        self.assignments()
        self.press("Fetch Feedback", "submitted", "submitted")
        self.page.locator("a", has_text="(view feedback)").click(timeout=60_000)
        self.page.locator(".jp-DirListing-item", has_text="01_level_2.html").dblclick()
        title = self.page.frame_locator(".jp-HTMLViewer iframe").get_by_text("(Score:").first
        expect(title).to_be_visible(timeout=60_000)
        self.picture("feedback")
        self.say(title.inner_text())
        points, most = re.findall(r"[\d.]+", title.inner_text().partition("(Score:")[2])[:2]
        return float(points), float(most)


def trial(environment: Path, proxy: Path, pictures: Path | None = None) -> Points:
    """Run the whole trial in a temporary folder; return the points that the learners saw."""
    solutions = {cell.id: cell.source for cell in nbformat.read(SOLUTIONS, as_version=4).cells}
    stages = Barrier(1 + len(ANSWERS), timeout=STAGE_LIMIT)  # all take each stage together

    def learn(hub: Hub, name: str) -> tuple[float, float]:
        with in_browser(Learner, hub, name) as learner:
            stages.wait()  # three people log in at the same time
            learner.log_in(hub.password)
            stages.wait()  # the assignment is released
            learner.fetch()
            learner.work(solutions)
            learner.submit()
            stages.wait()  # all have submitted
            stages.wait()  # the feedback is released
            return learner.read_feedback()

    def teach(hub: Hub) -> None:
        with in_browser(Instructor, hub, INSTRUCTOR) as instructor:
            stages.wait()
            instructor.log_in(hub.instructor_password)
            instructor.open_terminal()
            release = f"dtlab release 01 --levels 2 --name {NAME} --course ~/{COURSE}"
            instructor.run(f"cd {ROOT} && {release}")
            instructor.run(f"cd ~/{COURSE} && nbgrader release_assignment {NAME}")
            stages.wait()
            stages.wait()
            instructor.run(f"cd ~/{COURSE} && nbgrader collect {NAME}")
            instructor.run(f"dtlab grade {NAME} --course ~/{COURSE}", limit=600)
            for command in ("generate_feedback", "release_feedback"):
                instructor.run(f"cd ~/{COURSE} && nbgrader {command} {NAME}")
            instructor.picture("released")
            stages.wait()

    @contextlib.contextmanager
    def in_browser(kind: type[Someone], hub: Hub, name: str) -> Iterator[Someone]:
        try:
            with chromium() as browser:
                yield kind(browser.new_page(), hub, name, pictures)
        except BrokenBarrierError:
            raise
        except BaseException:
            stages.abort()  # nobody else waits in vain
            raise

    with (
        tempfile.TemporaryDirectory(prefix="dtlab-hub-") as folder,
        running_hub(environment, proxy, Path(folder)) as hub,
        ThreadPoolExecutor(1 + len(ANSWERS)) as pool,
    ):
        taught = pool.submit(teach, hub)
        learned = {name: pool.submit(learn, hub, name) for name in ANSWERS}
        troubles = [done.exception() for done in (taught, *learned.values())]
        for trouble in troubles:
            if trouble is not None and not isinstance(trouble, BrokenBarrierError):
                raise trouble
        return {name: done.result() for name, done in learned.items()}


def main() -> None:
    """Run the trial from the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--environment", type=Path, required=True)
    parser.add_argument("--proxy", type=Path, required=True)
    parser.add_argument("--pictures", type=Path)
    options = parser.parse_args()
    points = trial(options.environment.absolute(), options.proxy.absolute(), options.pictures)
    for name, (earned, most) in points.items():
        print(f"{name}: {earned:g} of {most:g} points")


if __name__ == "__main__":
    main()
