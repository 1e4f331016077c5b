"""A picture of what became of a group: its offsets, and how fast messages were read and offsets committed.

    picture = draw(timeline(spark, "/data/groups", "billing"), "svg")

There is no ground, and every colour stands out from white as from black. As many lines are drawn as can be told apart:
where there are more, those that are least like the rest, and for the others what lies between the lowest and the
highest of them.
"""

from __future__ import annotations

import io
import math
import warnings
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from statistics import median
from typing import Any, Final

from ...exceptions import MissingDependencyError
from .timeline import FEW, By, Line, Point, Timeline

FORMATS: Final = ("svg", "png")

INK: Final = "#767676"
"""Of all words, and of axes."""

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
"""Of lines."""

_FEW_TIMES: Final = 40
"""So many are dots on a line."""

_AROUND: Final = timedelta(hours=1)
"""What is beside a single time; matplotlib would show years."""

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
    "svg.fonttype": "none",  # words stay words
    "svg.hashsalt": "zkgroups",  # the same picture has the same bytes
}


def check_installed() -> None:
    """Raise an error that says what to install where it is missing."""
    try:
        import matplotlib as mpl  # noqa: F401
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] not in {"matplotlib", "numpy"}:
            raise
        raise MissingDependencyError("a plot needs matplotlib: pip install 'zkgroups[plot]'") from error


def draw(found: Timeline, form: str) -> bytes:
    """The picture, as SVG or PNG."""
    check_installed()
    import matplotlib as mpl
    from matplotlib.figure import Figure

    with mpl.rc_context(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of letters that the font lacks
        mpl.rcdefaults()
        mpl.rcParams.update(_SETTINGS)
        figure = Figure(figsize=(11.0, 7.5), dpi=120, layout="constrained")
        _fill(figure, found)
        written = io.BytesIO()
        figure.savefig(written, format=form, transparent=True, metadata={"Date": None} if form == "svg" else None)
    return written.getvalue()


def _fill(figure: Any, found: Timeline) -> None:
    from matplotlib.dates import AutoDateLocator, ConciseDateFormatter

    times = [datetime.fromtimestamp(time, UTC) for time in found.times]
    drawn, others = told_apart(found.lines)
    axes = figure.subplots(3, 1, sharex=True, height_ratios=(3, 2, 2))
    together = ", of all partitions together" if found.by is By.TOPIC else ""
    titles = (f"Offset{together}", "Messages read per second", "Offsets committed per second")
    for each, title, value in zip(axes, titles, _VALUES, strict=True):
        each.set_title(title)
        each.yaxis.set_major_formatter(lambda number, _position: in_short(number))
        steps = value is not _VALUES[0]
        _draw_others(each, times, others, value, steps=steps)
        for colour, line in zip(COLOURS, drawn, strict=False):
            _draw_line(each, times, [value(point) for point in line.points], colour, steps=steps)
        if steps:
            known = [number for line in found.lines for point in line.points if (number := value(point))]
            each.set_ylim(0, 1.08 * max(known, default=1.0))
    locator = AutoDateLocator(tz=UTC)
    axes[-1].xaxis.set_major_locator(locator)
    axes[-1].xaxis.set_major_formatter(ConciseDateFormatter(locator, tz=UTC))
    if len(times) == 1:
        axes[-1].set_xlim(times[0] - _AROUND, times[0] + _AROUND)
    figure.suptitle(_title(found), x=0.01, ha="left", fontsize=11.0)
    _name_lines(figure, axes[0], drawn, others)


_VALUES: Final[tuple[Callable[[Point], float | None], ...]] = (
    lambda point: point.offset,
    lambda point: point.messages,
    lambda point: point.commits,
)


def _title(found: Timeline) -> str:
    shown = "" if len(found.times) == found.snapshots else f", of which {len(found.times)} are shown"
    count = f"{found.snapshots} snapshot{'' if found.snapshots == 1 else 's'}{shown}"
    return f"{short(found.group, 50)} in {short(found.cluster, 50)}, by {count}; times are UTC"


def told_apart(lines: Sequence[Line]) -> tuple[list[Line], list[Line]]:
    """Those to be drawn, and the others: what went back comes first, then what moved least like the rest."""
    if len(lines) <= FEW:
        return list(lines), []
    middle = median(line.moved for line in lines)
    order = sorted(lines, key=lambda line: (line.went_back, abs(line.moved - middle)), reverse=True)
    chosen = {id(line) for line in order[: FEW - 1]}
    return [line for line in lines if id(line) in chosen], [line for line in lines if id(line) not in chosen]


def _draw_line(
    axes: Any, times: Sequence[datetime], values: Sequence[float | None], colour: str, *, steps: bool
) -> None:
    """What is known of an interval is drawn over all of it; what stands alone is a dot."""
    numbers = [math.nan if value is None else value for value in values]
    style = (
        {"drawstyle": "steps-pre"} if steps else {"marker": "o", "markersize": 3.0 if len(times) <= _FEW_TIMES else 0.0}
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
    """Beside the picture. Names are put in afterwards, because matplotlib leaves out what begins with an underscore."""
    names = [short(line.name) for line in drawn] + [f"{len(others)} others"] * bool(others)
    handles = [*axes.lines, *axes.collections]
    legend = figure.legend(handles, [str(number) for number in range(len(names))], loc="outside right upper")
    for text, name in zip(legend.get_texts(), names, strict=True):
        text.set_text(name)


def short(name: str, most: int = 30) -> str:
    """A name that leaves room for the picture.

    >>> short("orders-of-the-northern-region/12", 20)
    'orders-of…-region/12'
    """
    return name if len(name) <= most else f"{name[: most // 2 - 1]}…{name[-(most // 2) :]}"


def in_short(number: float) -> str:
    """A number beside an axis.

    >>> in_short(1_250_000), in_short(-20_000), in_short(0.05), in_short(0)
    ('1.25M', '-20k', '0.05', '0')
    """
    for factor, letter in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(number) >= factor:
            return f"{number / factor:.12g}{letter}"
    return f"{number:.12g}"
