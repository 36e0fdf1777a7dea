"""The style of all figures: what the colours mean, and the `Figure` class that draws the sheet.

A colour means the same in every figure of the course. Forward and backward are two blues (both are
compute), communication is orange, the optimizer is wine red, idle time is pale grey with a hatch.
Three colours are from Okabe and Ito (2008), the wine red from Paul Tol. Readers with protanopia,
deuteranopia or tritanopia can tell all pairs apart; `tests/test_figures.py` computes this.

A figure has a near-white background and dark ink in exported HTML, on paper, and in both themes
of JupyterLab; in the dark theme the page dims it. Inverting it would swap light and dark: forward
would look like backward, colour names in the lessons would be wrong, and readers with deuteranopia
could not tell two colours of the palette apart.
"""

from __future__ import annotations

import base64
import html
import io
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final, Literal

from matplotlib.axes import Axes
from matplotlib.colors import to_hex, to_rgb
from matplotlib.figure import Figure as MatplotlibFigure

__all__ = [
    "COLOURS",
    "GRID",
    "INK",
    "LANE",
    "MUTED",
    "PALETTE",
    "SHEET",
    "Figure",
    "Role",
    "blend",
    "centred",
    "edge",
    "is_dark",
    "role_of",
]

Role = Literal["forward", "backward", "communication", "optimizer", "input", "idle", "compute"]

COLOURS: Final[Mapping[Role, str]] = MappingProxyType(
    {
        "forward": "#56B4E9",
        "backward": "#0072B2",
        "communication": "#E69F00",
        "optimizer": "#882255",
        "input": "#009E73",  # the wait for the next batch
        "idle": "#DCDCD8",
        "compute": "#8FA3A8",  # a span whose name matches no other role
    }
)
PALETTE: Final = (  # for things without a role, such as ranks; the first six suit lines
    "#117733", "#CC6677", "#332288", "#8C8C2E", "#661100", "#000000", "#F4A6C8", "#F0E442",
)  # fmt: skip
SHEET: Final = "#FAFAF7"
GRID: Final = "#E2E2DC"
LANE: Final = "#F1F1EC"
INK: Final = "#22262A"
MUTED: Final = "#5B6167"
_DIMMED: Final = 0.8  # brightness in a dark theme; MUTED still has a contrast above 4.5
_STYLE: Final = (
    "<style>"
    ':is(body[data-jp-theme-light="false"], body.vscode-dark) .dtlab-figure '
    f"{{filter: brightness({_DIMMED})}}"
    ".dtlab-frame {position: relative; display: inline-block; max-width: 100%}"
    ".dtlab-frame i {position: absolute; min-width: 3px}"
    ".dtlab-frame i:hover {outline: 2px solid #22262A}"
    "</style>"
)
_SHARPNESS: Final = 2  # drawn at twice the displayed size, to be sharp on high-density screens

_SPAN_ROLES: Final[tuple[tuple[str, Role], ...]] = (
    ("forward", "forward"),
    ("backward", "backward"),
    ("optim", "optimizer"),
    ("step", "optimizer"),
    ("input", "input"),
    ("communication", "communication"),
)


def role_of(kind: str, name: str) -> Role:
    """Return the role, and so the colour, of an event of this kind and name."""
    if kind == "comm":
        return "communication"
    lowered = name.lower()
    for start, role in _SPAN_ROLES:
        if lowered.startswith(start):
            return role
    return "compute"


def blend(colour: str, other: str, share: float) -> str:
    """Mix `colour` with `share` (0 to 1) of `other`."""
    pairs = zip(to_rgb(colour), to_rgb(other), strict=True)
    return str(to_hex([a + (b - a) * share for a, b in pairs]))


def edge(colour: str) -> str:
    """Return the outline colour for a fill: the same hue, dark enough to be visible."""
    return blend(colour, "#000000", 0.45)


def is_dark(colour: str) -> bool:
    """Return whether letters on this fill should be white."""
    red, green, blue = (255 * part for part in to_rgb(colour))
    return 0.299 * red + 0.587 * green + 0.114 * blue < 128


def centred(size: float, colour: str, weight: str = "normal") -> dict[str, Any]:
    """Return the settings of a text that is centred on its position."""
    return {"fontsize": size, "color": colour, "weight": weight, "ha": "center", "va": "center"}


class Figure(MatplotlibFigure):
    """A Matplotlib figure with alt text that a notebook displays exactly once.

    It does not use pyplot: a notebook needs no import or setting for it, no global list of figures
    changes, and a figure that is the last expression of a cell is shown once. `alt_text` describes
    the contents of this figure in words.
    """

    alt_text: str
    hints: list[str]  # HTML elements over parts of the picture, with words for the mouse

    def __init__(self, width: float, height: float, *, alt_text: str = "") -> None:
        """`width` and `height` are in inches; the figure is displayed at 96 pixels per inch."""
        super().__init__(figsize=(width, height), dpi=96, facecolor=SHEET, edgecolor=SHEET)
        self.alt_text = alt_text
        self.hints = []

    def sheet(self, left: float, bottom: float, width: float, height: float) -> Axes:
        """Add empty axes, without frame or ticks; positions in inches from the lower left."""
        across, upwards = self.get_size_inches()
        box = (left / across, bottom / upwards, width / across, height / upwards)
        axes = self.add_axes(box, facecolor="none")
        axes.set_axis_off()
        return axes

    def heading(self, words: str, below: str = "") -> None:
        """Write the figure's title at the top left, and a smaller line below it."""
        self._at_top(words, 0.25, "title", fontsize=11.5, color=INK, weight="bold")
        if below:
            self._at_top(below, 0.47, "subtitle", fontsize=8.5, color=MUTED)

    def add_hint(
        self, axes: Axes, box: tuple[float, float, float, float], words: str
    ) -> None:
        """Show `words` while the mouse is over a box of `axes`: left, right, lower, upper end."""
        corners = axes.transData.transform([(box[0], box[2]), (box[1], box[3])])
        (left, low), (right, high) = 100 * self.transFigure.inverted().transform(corners)
        title = html.escape(words).replace("\n", "&#10;")
        self.hints.append(
            f'<i title="{title}" style="left:{left:.2f}%;top:{100 - high:.2f}%;'
            f'width:{right - left:.2f}%;height:{high - low:.2f}%"></i>'
        )

    def _at_top(self, words: str, inches: float, gid: str, **style: Any) -> None:
        width, height = self.get_size_inches()
        text = self.text(0.15 / width, 1 - inches / height, words, gid=gid)
        text.set(ha="left", va="center", **style)

    def to_png(self) -> bytes:
        """Return the figure as a PNG at twice its displayed size."""
        buffer = io.BytesIO()
        self.savefig(
            buffer,
            format="png",
            dpi=96 * _SHARPNESS,
            facecolor=SHEET,
            bbox_inches=None,
            pil_kwargs={"compress_level": 2},  # takes a third less time for a tenth more bytes
        )
        return buffer.getvalue()

    def to_html(self) -> str:
        """Return the figure as an `<img>` element with its alt text."""
        return self._image(base64.b64encode(self.to_png()).decode("ascii"))

    def _image(self, picture: str) -> str:
        """Return an `<img>` for a base64 PNG that can replace another one without a flicker."""
        width, height = self._pixels
        image = (
            f'<img alt="{html.escape(self.alt_text)}" width="{width}" height="{height}" '
            f'class="dtlab-figure" '
            f'style="display:block;max-width:100%;height:auto;border-radius:6px" decoding="sync" '
            f'src="data:image/png;base64,{picture}">'
        )
        if self.hints:
            hints = f'<span aria-hidden="true">{"".join(self.hints)}</span>'
            image = f'<div class="dtlab-frame">{image}{hints}</div>'
        return _STYLE + image

    @property
    def _pixels(self) -> tuple[int, int]:
        """Displayed width and height in pixels."""
        width, height = self.get_size_inches()
        return round(96 * width), round(96 * height)

    def _repr_mimebundle_(
        self, include: Any = None, exclude: Any = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return an `<img>` with alt text; front ends without HTML get the PNG and the text."""
        width, height = self._pixels
        picture = base64.b64encode(self.to_png()).decode("ascii")
        image = self._image(picture)
        data = {"text/html": image, "image/png": picture, "text/plain": self.alt_text}
        return data, {"image/png": {"width": width, "height": height, "alt": self.alt_text}}
