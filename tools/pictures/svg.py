"""A drawing as SVG text: boxes, lines and words in a handful of colours, for light pages and dark ones."""

from __future__ import annotations

import re
from typing import Final
from xml.sax.saxutils import escape

SCHEMES: Final = {
    "light": {
        "paper": "#ffffff", "ink": "#1f2328", "soft": "#59636e", "line": "#8c959f", "plain": "#f0f2f5",
        "blue": "#cfe3ff", "green": "#c6efd3", "amber": "#ffe3b0", "red": "#ffd0cc", "violet": "#e3d7ff",
        "accent": "#0b57d0",
    },
    "dark": {
        "paper": "#1e2129", "ink": "#e6e8ec", "soft": "#a9b1bd", "line": "#7d8590", "plain": "#2b303b",
        "blue": "#1d4a80", "green": "#1f5b38", "amber": "#6b4a12", "red": "#712b28", "violet": "#4a3580",
        "accent": "#7cb0ff",
    },
}  # fmt: skip
"""Colours by name; words in `ink` can be read on all of the others."""

FONT_SIZE: Final = 14
_FONTS: Final = "system-ui, 'Segoe UI', Roboto, 'DejaVu Sans', Helvetica, Arial, sans-serif"
_MONO: Final = "ui-monospace, SFMono-Regular, Menlo, 'DejaVu Sans Mono', Consolas, monospace"
_STYLE: Final = re.compile(r"<style>.*?</style>", re.DOTALL)


class Drawing:
    """A canvas; x goes right, y down, in units of about a pixel."""

    def __init__(self, width: int, height: int, title: str) -> None:
        self._width, self._height = width, height
        self._title = title
        self._parts: list[str] = []

    def box(
        self, x: float, y: float, width: float, height: float, colour: str = "plain",
        *, line: str = "line", radius: float = 6, dashed: bool = False,
    ) -> None:  # fmt: skip
        """A rectangle with a frame."""
        dash = ' stroke-dasharray="5 4"' if dashed else ""
        self._parts.append(
            f'<rect x="{_n(x)}" y="{_n(y)}" width="{_n(width)}" height="{_n(height)}" rx="{_n(radius)}"'
            f' fill="var(--{colour})" stroke="var(--{line})"{dash}/>'
        )

    def words(
        self, x: float, y: float, text: str, *, size: float = FONT_SIZE, anchor: str = "start",
        colour: str = "ink", bold: bool = False, mono: bool = False, halo: bool = False,
    ) -> None:  # fmt: skip
        """One line of text with its base line at y; a halo keeps it apart from lines below it."""
        weight = ' font-weight="600"' if bold else ""
        family = f' font-family="{_MONO}"' if mono else ""
        behind = ' stroke="var(--paper)" stroke-width="5" paint-order="stroke"' if halo else ""
        self._parts.append(
            f'<text x="{_n(x)}" y="{_n(y)}" font-size="{_n(size)}" text-anchor="{anchor}"'
            f' fill="var(--{colour})"{weight}{family}{behind}>{escape(text)}</text>'
        )

    def titled_box(
        self, x: float, y: float, width: float, height: float, title: str, *lines: str,
        colour: str = "plain",
    ) -> None:  # fmt: skip
        """A box with a bold line and softer ones below it, centred."""
        self.box(x, y, width, height, colour)
        top = y + height / 2 - (len(lines) * 17) / 2 + 5
        self.words(x + width / 2, top, title, anchor="middle", bold=True, size=15)
        for number, line in enumerate(lines, 1):
            self.words(x + width / 2, top + 17 * number, line, anchor="middle", size=12.5)

    def line(
        self, *points: tuple[float, float], colour: str = "line", arrow: bool = True,
        both: bool = False, dashed: bool = False, width: float = 1.6,
    ) -> None:  # fmt: skip
        """A line through the points, with an arrow at its end, or at both."""
        path = " ".join(f"{_n(x)},{_n(y)}" for x, y in points)
        ends = f' marker-end="url(#{colour}-end)"' if arrow else ""
        ends += f' marker-start="url(#{colour}-start)"' if both else ""
        dash = ' stroke-dasharray="5 4"' if dashed else ""
        self._parts.append(
            f'<polyline points="{path}" fill="none" stroke="var(--{colour})"'
            f' stroke-width="{_n(width)}"{ends}{dash}/>'
        )

    def text(self) -> str:
        """The file."""
        head = (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {self._width} {self._height}"'
            f' width="{self._width}" height="{self._height}" role="img" font-family="{_FONTS}">'
        )
        paper = f'<rect width="{self._width}" height="{self._height}" fill="var(--paper)"/>'
        title = f"<title>{escape(self._title)}</title>"
        body = [head, title, _style_of_both(), _markers(), paper, *self._parts, "</svg>"]
        return "\n".join(body) + "\n"


def in_one_scheme(svg: str, scheme: str) -> str:
    """The same drawing in the colours of one scheme, whatever its reader's machine prefers."""
    text, num_styles = _STYLE.subn(f"<style>{_rule(scheme)}</style>", svg)
    if num_styles != 1:
        raise ValueError("this is no drawing of tools/pictures: it has no style of its own")
    return text


def _style_of_both() -> str:
    dark = f"@media (prefers-color-scheme: dark) {{ {_rule('dark')} }}"
    return f"<style>{_rule('light')} {dark}</style>"


def _rule(scheme: str) -> str:
    return "svg { " + " ".join(f"--{name}: {it};" for name, it in SCHEMES[scheme].items()) + " }"


def _markers() -> str:
    shapes = {"end": "M0,0 L9,4.5 L0,9 z", "start": "M9,0 L0,4.5 L9,9 z"}
    return "<defs>" + "".join(
        f'<marker id="{colour}-{end}" markerWidth="9" markerHeight="9" refX="{8 if end == "end" else 1}"'
        f' refY="4.5" orient="auto" markerUnits="userSpaceOnUse"><path d="{path}" fill="var(--{colour})"/></marker>'
        for colour in ("line", "accent", "ink")
        for end, path in shapes.items()
    ) + "</defs>"  # fmt: skip


def _n(number: float) -> str:
    return f"{number:.1f}".removesuffix(".0")
