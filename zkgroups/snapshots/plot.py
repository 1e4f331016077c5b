"""Plot a group's offsets, messages read per second, commits per second, and lag if it is known, over time.

    picture = draw(timeline(ArrowLayout.at("/data/groups"), "billing"), "svg")

The background is transparent, and every colour is readable on white and on black. If there are too many lines to
distinguish, only those least like the rest are drawn. The others become a shaded area from their minimum to their
maximum.
"""

from __future__ import annotations

import io
import math
import warnings
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from statistics import median
from typing import Any, Final

from ..exceptions import MissingDependencyError
from .timeline import FEW, Line, LineKind, Point, Timeline

FORMATS: Final = ("svg", "png")

INK: Final = "#767676"
"""The colour of text and axes."""

COLOURS: Final = (
    "#2a7fc1",
    "#c2570c",
    "#2b8a3e",
    "#d6336c",
    "#8a63d2",
    "#a07000",
    "#0c8599",
    "#e03131",
    "#5c7f00",
    "#b05a86",
)
"""The colours of lines."""

_MAX_DOTS: Final = 40
"""A line with more points has no dots."""

_SINGLE_TIME_MARGIN: Final = timedelta(hours=1)
"""The margin around a single time, for which matplotlib would show years."""

_SETTINGS: Final = {
    "font.size": 9.0,
    "text.color": INK,
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "axes.titlecolor": INK,
    "axes.titlelocation": "left",
    "axes.titlesize": 9.0,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": INK,
    "grid.alpha": 0.25,
    "grid.linewidth": 0.6,
    "xtick.color": INK,
    "ytick.color": INK,
    "lines.linewidth": 1.6,
    "legend.frameon": False,
    "text.parse_math": False,  # a topic may have a $ in its name
    "svg.fonttype": "none",  # keep text as text
    "svg.hashsalt": "zkgroups",  # reproducible output
}


def check_installed() -> None:
    """Raise MissingDependencyError if matplotlib is not installed."""
    try:
        import matplotlib as mpl  # noqa: F401
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] not in {"matplotlib", "numpy"}:
            raise
        raise MissingDependencyError("a plot needs matplotlib; from the checkout: pip install '.[plot]'") from error


def draw(shown: Timeline, form: str) -> bytes:
    """Draw a timeline as SVG or PNG."""
    check_installed()
    import matplotlib as mpl
    from matplotlib.figure import Figure

    with mpl.rc_context(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about missing glyphs
        mpl.rcdefaults()
        mpl.rcParams.update(_SETTINGS)
        figure = Figure(figsize=(11.0, 7.5), dpi=120, layout="constrained")
        _fill(figure, shown)
        written = io.BytesIO()
        figure.savefig(written, format=form, transparent=True, metadata={"Date": None} if form == "svg" else None)
    return written.getvalue()


def _fill(figure: Any, shown: Timeline) -> None:
    from matplotlib.dates import AutoDateLocator, ConciseDateFormatter

    times = [datetime.fromtimestamp(time, UTC) for time in shown.times]
    drawn, others = select_lines(shown.lines)
    has_lags = any(point.lag is not None for line in shown.lines for point in line.points)
    charts = _CHARTS if has_lags else _CHARTS[:-1]
    axes = figure.subplots(len(charts), 1, sharex=True, height_ratios=[3, *[2] * (len(charts) - 1)])
    together = ", sum of all partitions" if shown.by is LineKind.TOPIC else ""
    for each, (title, value, steps) in zip(axes, charts, strict=True):
        each.set_title(title if steps else f"{title}{together}")
        each.yaxis.set_major_formatter(lambda number, _position: compact_number(number))
        _draw_others(each, times, others, value, steps=steps)
        for colour, line in zip(COLOURS, drawn, strict=False):
            _draw_line(each, times, [value(point) for point in line.points], colour, steps=steps)
        if value is not _CHARTS[0][1]:
            known = [number for line in shown.lines for point in line.points if (number := value(point))]
            each.set_ylim(0, 1.08 * max(known, default=1.0))
    locator = AutoDateLocator(tz=UTC)
    axes[-1].xaxis.set_major_locator(locator)
    axes[-1].xaxis.set_major_formatter(ConciseDateFormatter(locator, tz=UTC))
    if len(times) == 1:
        axes[-1].set_xlim(times[0] - _SINGLE_TIME_MARGIN, times[0] + _SINGLE_TIME_MARGIN)
    figure.suptitle(_title(shown), x=0.01, ha="left", fontsize=11.0)
    _name_lines(figure, axes[0], drawn, others)


_CHARTS: Final[tuple[tuple[str, Callable[[Point], float | None], bool], ...]] = (
    ("Offset", lambda point: point.offset, False),
    ("Messages read per second", lambda point: point.messages, True),
    ("Offsets committed per second", lambda point: point.commits, True),
    ("Lag", lambda point: point.lag, False),
)
"""The title and the values of each chart, and whether they hold for the time since the previous point."""


def _title(shown: Timeline) -> str:
    sample = "" if len(shown.times) == shown.snapshots else f", of which {len(shown.times)} are shown"
    count = f"{shown.snapshots} snapshot{'' if shown.snapshots == 1 else 's'}{sample}"
    return f"{shorten(shown.group, 50)} in {shorten(shown.cluster, 50)}, by {count}; times are UTC"


def select_lines(lines: Sequence[Line]) -> tuple[list[Line], list[Line]]:
    """Split into lines to draw and others: lines that went back come first, then those least like the rest."""
    if len(lines) <= FEW:
        return list(lines), []
    typical = median(line.moved for line in lines)
    order = sorted(lines, key=lambda line: (line.went_back, abs(line.moved - typical)), reverse=True)
    chosen = {id(line) for line in order[: FEW - 1]}
    return [line for line in lines if id(line) in chosen], [line for line in lines if id(line) not in chosen]


def _draw_line(
    axes: Any, times: Sequence[datetime], values: Sequence[float | None], colour: str, *, steps: bool
) -> None:
    """Draw rates as steps over their interval, and offsets as points."""
    numbers = [math.nan if value is None else value for value in values]
    style = (
        {"drawstyle": "steps-pre"} if steps else {"marker": "o", "markersize": 3.0 if len(times) <= _MAX_DOTS else 0.0}
    )
    axes.plot(times, numbers, color=colour, **style)


def _draw_others(
    axes: Any,
    times: Sequence[datetime],
    others: Sequence[Line],
    value: Callable[[Point], float | None],
    *,
    steps: bool,
) -> None:
    if not others:
        return
    known = [
        [each for each in map(value, points) if each is not None] or [math.nan]
        for points in zip(*(line.points for line in others), strict=True)
    ]
    bounds = [min(each) for each in known], [max(each) for each in known]
    axes.fill_between(times, *bounds, color=INK, alpha=0.35, linewidth=0.8, step="pre" if steps else None)


def _name_lines(figure: Any, axes: Any, drawn: Sequence[Line], others: Sequence[Line]) -> None:
    """Add the legend. Names are set afterwards, because matplotlib ignores labels that start with an underscore."""
    names = [shorten(line.name) for line in drawn] + [f"{len(others)} others"] * bool(others)
    handles = [*axes.lines, *axes.collections]
    legend = figure.legend(handles, [str(number) for number in range(len(names))], loc="outside right upper")
    for text, name in zip(legend.get_texts(), names, strict=True):
        text.set_text(name)


def shorten(name: str, most: int = 30) -> str:
    """Shorten a name in the middle.

    >>> shorten("orders-of-the-northern-region/12", 20)
    'orders-of…-region/12'
    """
    return name if len(name) <= most else f"{name[: most // 2 - 1]}…{name[-(most // 2) :]}"


def compact_number(number: float) -> str:
    """Format a number for an axis.

    >>> compact_number(1_250_000), compact_number(-20_000), compact_number(0.05), compact_number(0)
    ('1.25M', '-20k', '0.05', '0')
    """
    for factor, letter in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(number) >= factor:
            return f"{number / factor:.12g}{letter}"
    return f"{number:.12g}"
