"""The table of a report fits a narrow page: it never scrolls, and its points stay on one line."""

from __future__ import annotations

import pytest

from dtlab.checks.report import Criterion, Report
from tests.browser.lab import IN_A_BROWSER, chromium

pytestmark = IN_A_BROWSER

# What JupyterLab's stylesheet says of tables in an output.
LAB = """
.out {overflow: auto; font: 13px sans-serif}
table {table-layout: fixed; border-collapse: collapse; font-size: 12px}
td {white-space: normal; padding: .5em; text-align: right; max-width: none}
"""
WIDE = "rank 0   " + "0F0 " * 60 + "\nrank 1       1F0  1B0 "
REPORT = Report(
    "hierarchical_all_reduce",
    (
        Criterion("result", 10, 2.5, "lost", "`" + "a_long_name_without_a_gap" * 8 + "`"),
        Criterion("schedule", 10, 0, "blocked", f"the grid is:\n{WIDE}\nand that is all"),
        Criterion("bytes", 3, 0, "open", "each rank sends 2(N-1)/N x 4.2 MB"),
    ),
    cell_points=40,
)


@pytest.mark.parametrize("width", [1200, 600, 320])
def test_a_report_does_not_scroll_and_its_points_do_not_wrap(width: int) -> None:
    with chromium() as browser:
        page = browser.new_page(viewport={"width": width, "height": 900})
        page.set_content(f"<style>{LAB}</style><div class=out>{REPORT._repr_html_()}</div>")
        out = page.locator(".out")
        assert out.evaluate("box => box.scrollWidth <= box.clientWidth")
        for cell in page.locator("td:nth-child(-n+2)").all():
            assert cell.evaluate("cell => cell.scrollWidth <= cell.clientWidth")
            assert cell.bounding_box()["width"] < 100  # type: ignore[index]
            range_ = "cell => {const r = document.createRange(); r.selectNodeContents(cell);"
            assert cell.evaluate(f"{range_} return r.getBoundingClientRect().height}}") < 24
        last = page.locator("tr").last.locator("td").last
        assert last.bounding_box()["width"] > width / 2  # type: ignore[index]
