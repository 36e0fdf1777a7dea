"""Sanitises learners' notebooks, so that no script in them runs in a reader's browser.

Formgrader and feedback pages show a learner's notebook in the grader's browser. A script in an
output or in a Markdown cell would run there with the grader's rights: it could change points and
read the gradebook. Therefore:

    outputs             text and raster images stay; HTML of the judge's reports is sanitised
    Markdown            is rendered, and the HTML is sanitised
    everything else     raw cells become text; widget state and metadata are removed

`settings.configure` puts `Sanitiser` and `markdown_to_html` into nbconvert's `HTMLExporter`, which
both formgrader and `nbgrader generate_feedback` use. The HTML is sanitised by nh3.
"""

from __future__ import annotations

import base64
import binascii
import html
import re
from collections.abc import Mapping
from copy import deepcopy
from typing import Any

import nh3
from jinja2 import pass_context
from jinja2.runtime import Context
from nbconvert.filters.markdown_mistune import IPythonRenderer, MarkdownWithMath
from nbconvert.preprocessors import Preprocessor
from nbformat import NotebookNode

from dtlab.checks.functions.defences import Defence

__all__ = ["Sanitiser", "markdown_to_html", "safe_data", "safe_html"]

_RASTER = {"image/png": b"\x89PNG", "image/jpeg": b"\xff\xd8\xff"}  # first bytes of such a file
_IMAGE = re.compile(r"data:image/(png|jpeg|gif|webp);base64,[A-Za-z0-9+/=\s]*")
_LINK = re.compile(r"(https?://|mailto:|#)", re.IGNORECASE)
_CLASS = re.compile(r"highlight|hll|[a-z][a-z0-9]{0,2}")  # Pygments' classes of coloured code
_ACTIVE_TEX = re.compile(r"\\(href|url|class|cssId|style|require|unicode|data|html\w*)\b")

_TAGS = {
    *("h1", "h2", "h3", "h4", "h5", "h6", "p", "br", "hr", "div", "span", "blockquote", "pre"),
    *("a", "b", "i", "em", "strong", "del", "s", "sub", "sup", "code", "kbd", "img", "ul", "ol"),
    *("li", "dl", "dt", "dd", "details", "summary"),
    *("table", "caption", "thead", "tbody", "tfoot", "tr", "th", "td"),
}
_ATTRIBUTES = {
    "*": {"class", "style"},
    "a": {"href", "title"},
    "img": {"src", "alt", "title", "width", "height"},
    "ol": {"start"},
    "td": {"colspan", "rowspan"},
    "th": {"colspan", "rowspan"},
}
_STYLES = {
    *("color", "background", "background-color", "font-weight", "font-style", "text-align"),
    *("vertical-align", "white-space", "margin", "padding", "border-radius", "border-collapse"),
    *("max-width", "overflow-x"),
}


def safe_html(text: str) -> str:
    """Removes scripts, event handlers, frames, forms, and references to external files from HTML.

    Keeps text, tables, lists, links to the web, and embedded images.
    """
    clean = nh3.clean(
        text,
        tags=_TAGS,
        clean_content_tags={"script", "style", "template", "svg", "math"},
        attributes=_ATTRIBUTES,
        attribute_filter=_attribute,
        filter_style_properties=_STYLES,
        url_schemes={"http", "https", "mailto", "data"},
    )
    return _ACTIVE_TEX.sub(r"\1", clean)  # MathJax turns these commands into links and styles


def _attribute(tag: str, name: str, value: str) -> str | None:
    """Returns the safe value of an attribute; None removes the attribute."""
    if name == "src":
        return value if _IMAGE.fullmatch(value) else None
    if name == "href":
        return value if _LINK.match(value) else None
    if name == "class":
        return " ".join(filter(_CLASS.fullmatch, value.split())) or None
    if name == "style" and re.search(r"url|image|\\|/\*", value, re.IGNORECASE):
        return None  # the style could load an external file
    return value


def safe_data(data: Mapping[str, Any]) -> dict[str, str]:
    """Returns the safe formats of a learner's output: plain text and valid raster images."""
    safe = {}
    for kind, begins in _RASTER.items():
        try:
            picture = base64.b64decode(str(data.get(kind, "")).encode(), validate=False)
        except (binascii.Error, ValueError):
            continue
        if picture.startswith(begins):
            safe[kind] = base64.b64encode(picture).decode()
    text = data.get("text/plain")
    if isinstance(text, str):
        safe["text/plain"] = text
    elif not safe and data:
        safe["text/plain"] = f"[an output of kind {', '.join(sorted(map(str, data)))[:200]}]"
    return safe


@pass_context
def markdown_to_html(context: Context, source: str) -> str:
    """Renders Markdown as nbconvert does, and sanitises it. A filter of nbconvert's templates.

    In formgrader it puts a rubric with boxes to tick above the text of a written defence.
    """
    cell = context.get("cell", {})
    renderer = IPythonRenderer(
        escape=False, attachments=cell.get("attachments", {}), exclude_anchor_links=True
    )
    text = safe_html(MarkdownWithMath(renderer=renderer).render(source))
    in_formgrader = "submission_id" in context.get("resources", {})
    return _rubric(cell.get("metadata", {}).get("nbgrader", {})) + text if in_formgrader else text


def _rubric(role: Mapping[str, Any]) -> str:
    """Returns the rubric of the cell with this nbgrader metadata, if a person grades it."""
    if not (role.get("grade") and role.get("solution")):
        return ""
    from dtlab.checks.parts import known_parts

    for part in known_parts():
        if isinstance(part.check, Defence) and part.grade_id == role.get("grade_id"):
            return part.check.form(float(role["points"]))
    return ""


class Sanitiser(Preprocessor):  # type: ignore[misc]
    """A preprocessor of nbconvert that makes a graded notebook safe to show in a browser."""

    def preprocess(
        self, nb: NotebookNode, resources: dict[str, Any]
    ) -> tuple[NotebookNode, dict[str, Any]]:
        """Returns the notebook with safe cells, and `resources` with escaped names of people."""
        nb = deepcopy(nb)
        nb.metadata = NotebookNode()
        for cell in nb.cells:
            self._make_safe(cell)
        for name in ("student", "first_name", "last_name", "notebook_path"):
            if isinstance(resources.get(name), str):
                resources[name] = html.escape(resources[name])
        return nb, resources

    def _make_safe(self, cell: NotebookNode) -> None:
        role = cell.metadata.get("nbgrader")
        cell.metadata = NotebookNode({"nbgrader": role} if role else {})
        if cell.cell_type == "raw":
            cell.cell_type, cell.source = "markdown", f"<pre>{html.escape(cell.source)}</pre>"
        if cell.cell_type == "code":
            cell.outputs = [_safe_output(output) for output in cell.get("outputs", [])]


def _safe_output(output: NotebookNode) -> NotebookNode:
    """Makes an output of an autograded notebook safe; sanitises the HTML of the reports."""
    if "data" in output:
        markup = output.data.get("text/html")
        output.data = NotebookNode(safe_data(output.data))
        if isinstance(markup, str):
            output.data["text/html"] = safe_html(markup)
        output.metadata = NotebookNode()
    if output.output_type == "stream":
        output.name = "stderr" if output.get("name") == "stderr" else "stdout"
    return output
