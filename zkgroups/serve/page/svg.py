"""Small pictures as SVG, drawn by hand: a sparkline, a bar, and a history. They need no style attributes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from .html import Html, element, joined

SPARK_WIDTH: Final = 72
SPARK_HEIGHT: Final = 22


def sparkline(values: Sequence[int | None], label: str) -> Html:
    """Draw values as a line from 0. Unknown values interrupt it. Empty if there are fewer than two."""
    known = [value for value in values if value is not None]
    if len(known) < 2:
        return Html("")
    top, right = max(1, *known), len(values) - 1
    path, pen_is_up = "", True
    for index, value in enumerate(values):
        if value is None:
            pen_is_up = True
            continue
        x = index * (SPARK_WIDTH - 4) / right + 2
        y = SPARK_HEIGHT - 2 - value * (SPARK_HEIGHT - 4) / top
        path += f"{'M' if pen_is_up else 'L'}{x:.1f} {y:.1f}"
        pen_is_up = False
    return _picture(SPARK_WIDTH, SPARK_HEIGHT, label, element("path", d=path), class_="spark")


def position(start: int, end: int, offset: int, label: str, width: int = 120) -> Html:
    """Draw where an offset is between log start and log end: the part that is consumed, and the rest."""
    length = max(1, end - start)
    consumed = min(1.0, max(0.0, (offset - start) / length)) * width
    return _picture(
        width,
        8,
        label,
        element("rect", class_="left", x=0, y=0, width=width, height=8, rx=2),
        element("rect", class_="done", x=0, y=0, width=f"{consumed:.1f}", height=8, rx=2),
        class_="position",
    )


def history(lags: Sequence[int | None], commits: Sequence[int], label: str, width: int = 640, height: int = 96) -> Html:
    """Draw lags as an area, and below it commits as bars."""
    if len(lags) < 2:
        return Html("")
    step, top = width / (len(lags) - 1), max(1, *(lag or 0 for lag in lags))
    floor = height - 28
    points = [(index * step, floor - (lag or 0) * (floor - 4) / top) for index, lag in enumerate(lags)]
    line = "".join(f"{'L' if index else 'M'}{x:.1f} {y:.1f}" for index, (x, y) in enumerate(points))
    most, bar = max(1, *commits), max(1.5, step * 0.6)
    bars = [
        element(
            "rect",
            class_="commits",
            x=f"{max(0.0, min(width - bar, index * step - bar / 2)):.1f}",
            y=f"{height - 20 * count / most:.1f}",
            width=f"{bar:.1f}",
            height=f"{20 * count / most:.1f}",
        )
        for index, count in enumerate(commits)
        if count
    ]
    area = element("path", class_="area", d=f"{line}L{width} {floor}L0 {floor}Z")
    return _picture(width, height, label, area, element("path", class_="line", d=line), joined(bars), class_="history")


def _picture(width: int, height: int, label: str, *children: Html, class_: str) -> Html:
    return element(
        "svg",
        *children,
        viewBox=f"0 0 {width} {height}",
        width=width,
        height=height,
        role="img",
        aria_label=label,
        class_=class_,
        preserveAspectRatio="none",
    )
