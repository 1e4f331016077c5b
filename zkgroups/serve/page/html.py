"""What all pages are made of: escaped HTML, numbers for people, drawings and tables."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Final, NamedTuple
from urllib.parse import quote

from ...core.doctor.findings import Severity
from ...core.health import Status, Verdict
from ...core.times import utc
from ..picture.values import Picture, SourceState, TrendPoint

# Numbers and times for people, short enough for a table.


UNKNOWN: Final = "–"
"""Shown for an unknown value, which is never shown as 0."""

_UNITS: Final = ((10**12, "T"), (10**9, "G"), (10**6, "M"), (10**3, "k"))


def count(value: float | None) -> str:
    """Format a number with three digits.

    >>> [count(value) for value in (0, 999, 1234, 45_678_901, None)]
    ['0', '999', '1.23k', '45.7M', '–']
    """
    if value is None:
        return UNKNOWN
    for size, unit in _UNITS:
        if value >= size:
            return f"{value / size:.3g}{unit}" if value / size < 999.5 else f"{value / size:.0f}{unit}"
    return f"{value:.0f}"


def exact(value: int | None) -> str:
    """Format a number with all digits.

    >>> exact(1234567)
    '1,234,567'
    """
    return UNKNOWN if value is None else f"{value:,}"


def rate(value: float | None) -> str:
    """Format messages per second.

    >>> rate(0.0), rate(0.04), rate(3.14), rate(2500)
    ('0/s', '0.04/s', '3.1/s', '2.5k/s')
    """
    if value is None:
        return UNKNOWN
    if 0 < value < 0.1:
        return f"{value:.1g}/s"
    return f"{value:.2g}/s" if value < 10 else f"{count(value)}/s"


def seconds(value: float | None) -> str:
    """Format a duration in its two largest units.

    >>> [seconds(value) for value in (0, 59.9, 61, 3_700, 90_000, None)]
    ['0s', '59s', '1m 1s', '1h 1m', '1d 1h', '–']
    """
    if value is None:
        return UNKNOWN
    whole = int(value)
    numbers = whole // 86_400, whole // 3600 % 24, whole // 60 % 60, whole % 60
    first = next((index for index, number in enumerate(numbers) if number), 3)
    shown = zip(numbers[first : first + 2], "dhms"[first:], strict=False)
    return " ".join(f"{number}{unit}" for number, unit in shown if number) or "0s"


def since(ms: int | None, now_ms: int) -> str:
    """Format how long ago a time was."""
    return UNKNOWN if ms is None else seconds(max(0, now_ms - ms) / 1000)


def moment(ms: int | None) -> str:
    """Format a time in UTC."""
    return UNKNOWN if ms is None else utc(ms)


def time_of_day(ms: int) -> str:
    """Format the time of day in UTC.

    >>> time_of_day(1795255543109)
    '10:05:43'
    """
    return utc(ms)[11:19]


# HTML that is escaped by default.
#
# `element` accepts texts, which it escapes, and other elements, which it does not. So no name can become markup.
# Characters that are invisible or change the direction of text are shown as their numbers, so that a name cannot look
# like another one.


Child = "Html | str | int | None | Iterable[Html | str | None]"

_HIDDEN: Final = re.compile(
    "[\x00-\x1f\x7f-\x9f\xad\u0600-\u0605\u061c\u06dd\u070f\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb]"
)
_VOID: Final = frozenset({"input", "link", "meta", "br"})


class Html(str):
    """Text that is HTML already."""

    __slots__ = ()


def escaped(text: object) -> Html:
    r"""Escape a text, and make invisible characters visible.

    >>> print(escaped("<b>&\u202e"))
    &lt;b&gt;&amp;<span class="esc">\u202e</span>
    """
    if isinstance(text, Html):
        return text
    shown = html.escape(str(text))
    return Html(_HIDDEN.sub(_visible, shown)) if not shown.isascii() or not shown.isprintable() else Html(shown)


def _visible(found: re.Match[str]) -> str:
    return f'<span class="esc">\\u{ord(found[0]):04x}</span>'


def plain(text: str) -> str:
    r"""Make invisible characters visible in a text that is not HTML, such as a title.

    >>> plain("a\u202eb")
    'a\\u202eb'
    """
    return _HIDDEN.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def element(tag: str, /, *children: Child, **attributes: str | int | bool | None) -> Html:  # type: ignore[valid-type]
    """Return an element. `class_` is the attribute class, `data_x` is data-x. None and False leave an attribute out.

    >>> print(element("a", "x<y", href="/?a=1&b", class_="name"))
    <a href="/?a=1&amp;b" class="name">x&lt;y</a>
    """
    parts = [f"<{tag}"]
    for key, value in attributes.items():
        if value is None or value is False:
            continue
        shown = key.rstrip("_").replace("_", "-")
        parts.append(f" {shown}" if value is True else f' {shown}="{html.escape(plain(str(value)))}"')
    parts.append(">")
    parts.extend(_children(children))
    if tag not in _VOID:
        parts.append(f"</{tag}>")
    return Html("".join(parts))


def joined(*children: Child) -> Html:  # type: ignore[valid-type]
    """Join texts and elements."""
    return Html("".join(_children(children)))


def _children(children: Iterable[object]) -> Iterable[str]:
    for child in children:
        if child is None:
            continue
        if isinstance(child, str | int | float):
            yield escaped(child)
        elif isinstance(child, Iterable):
            yield from _children(child)


def group_path(name: str) -> str:
    """Return the path of the page of a group.

    >>> group_path("a b/c?<")
    '/groups/a%20b%2Fc%3F%3C'
    """
    return f"/groups/{quote(name, safe='')}"


def topic_path(name: str) -> str:
    """Return the path of the page of a topic."""
    return f"/topics/{quote(name, safe='')}"


# Small pictures as SVG, drawn by hand: a sparkline, a bar, and a history. They need no style attributes.


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


def history(points: Sequence[TrendPoint], label: str, width: int = 640, height: int = 96) -> Html:
    """Draw lags over time as an area, and below it commits per second as bars."""
    if len(points) < 2:
        return Html("")
    first, top = points[0].ms, max(1, *(each.lag or 0 for each in points))
    scale, floor = width / max(1, points[-1].ms - first), height - 28
    places = [((each.ms - first) * scale, floor - (each.lag or 0) * (floor - 4) / top) for each in points]
    line = "".join(f"{'L' if index else 'M'}{x:.1f} {y:.1f}" for index, (x, y) in enumerate(places))
    gaps = [after.ms - before.ms for before, after in pairwise(points)]
    rates = [each.commits / max(1, gap) for each, gap in zip(points, [gaps[0], *gaps], strict=True)]
    most = max(rates) or 1
    bars = []
    for (x, _), rate, gap in zip(places, rates, [gaps[0], *gaps], strict=True):
        if rate:
            bar = max(1.5, gap * scale * 0.6)
            bars.append(
                element(
                    "rect",
                    class_="commits",
                    x=f"{max(0.0, min(width - bar, x - bar / 2)):.1f}",
                    y=f"{height - 20 * rate / most:.1f}",
                    width=f"{bar:.1f}",
                    height=f"{20 * rate / most:.1f}",
                )
            )
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


# Parts that several pages share: statuses, sources, tables and links to other pages of a list.


_CLASSES: Final = {None: "ok", Severity.INFO: "info", Severity.WARNING: "warning", Severity.ERROR: "error"}

SHOWN: Final = {status: status.value.replace("_", " ").lower() for status in Status}
"""The names of statuses on the page."""


class Heading(NamedTuple):
    """The heading of a column. `link` sorts by it; if it is sorted by it, `sorted` is "ascending" or "descending"."""

    text: str
    class_: str = ""
    link: str = ""
    sorted: str | None = None
    help: str | None = None


def badge(verdict: Verdict) -> Html:
    """Show a status."""
    return element("span", SHOWN[verdict.status], class_=f"badge {_CLASSES[verdict.severity]}")


def severity_class(severity: Severity | None) -> str:
    """Return the class for the colour of a severity."""
    return _CLASSES[severity]


def table(
    caption: str, headings: Sequence[Heading], rows: Iterable[Html], *, class_: str = "", empty: str = "None."
) -> Html:
    """Return a table, or a sentence if it has no rows."""
    body = list(rows)
    if not body:
        return element("p", empty, class_="empty")
    head = element("tr", [_heading(each) for each in headings])
    shown = element(
        "table",
        element("caption", caption, class_="hidden"),
        element("thead", head),
        element("tbody", body),
        class_=class_,
    )
    return element("div", shown, class_="scroll", tabindex="0", role="region", aria_label=caption)


def _heading(heading: Heading) -> Html:
    text: Html | str = heading.text
    if heading.link:
        arrow = {"ascending": " ↑", "descending": " ↓"}.get(heading.sorted or "", "")
        text = element("a", heading.text, element("span", arrow, aria_hidden="true"), href=heading.link)
    return element("th", text, scope="col", class_=heading.class_ or None, aria_sort=heading.sorted, title=heading.help)


def cell(
    *children: Html | str | None, class_: str | None = None, title: str | None = None, label: str | None = None
) -> Html:
    """Return a cell of a table. On a narrow screen without headings, it has the label."""
    return element("td", *children, class_=class_, title=title, data_label=label)


def reason(verdict: Verdict) -> Html:
    """Return a cell with the reason of a status: two lines of it, and all of it where the mouse rests."""
    shown = element("span", verdict.reason, class_="clamp")
    return cell(shown, class_="reason", title=verdict.reason)


def sources(picture: Picture, now_ms: int) -> Html:
    """Show how old the picture is, and whether the sources answer."""
    read_ms = picture.zookeeper.read_ms
    age = (
        "no data yet" if read_ms is None else element("span", since(read_ms, now_ms), class_="age", data_since=read_ms)
    )
    how = "changes of members arrive at once" if picture.live else "read in intervals"
    found = [
        element(
            "li",
            element("span", class_="dot ok" if picture.live else "dot info"),
            "read ",
            age,
            " ago" if read_ms is not None else "",
            title=f"Last complete read: {moment(read_ms)}; {how}.",
        ),
        _source("ZooKeeper", picture.zookeeper, now_ms),
        _source("brokers", picture.brokers, now_ms)
        if picture.brokers is not None
        else element("li", element("span", class_="dot info"), "no brokers: lag is unknown"),
    ]
    return element("ul", found, class_="sources", aria_label="Sources")


def _source(name: str, state: SourceState, now_ms: int) -> Html:
    if state.answers:
        return element(
            "li", element("span", class_="dot ok"), f"{name} {'answers' if name == 'ZooKeeper' else 'answer'}"
        )
    if not state.problem:
        return element("li", element("span", class_="dot info"), f"{name}: not asked yet")
    verb = "does not answer" if name == "ZooKeeper" else "do not answer"
    return element("li", element("span", class_="dot error"), f"{name} {verb} for {since(state.since_ms, now_ms)}")


def banners(picture: Picture) -> Html:
    """Return a banner for each problem that concerns the whole page."""
    found = []
    zookeeper, brokers = picture.zookeeper, picture.brokers
    if zookeeper.problem:
        shown = f"The page shows the state of {moment(zookeeper.read_ms)}." if zookeeper.read_ms else ""
        found.append(
            element(
                "p",
                element("strong", "ZooKeeper does not answer. "),
                f"{shown} ({zookeeper.problem})",
                class_="banner error",
            )
        )
    elif zookeeper.is_read_only:
        text = "It has lost its quorum and is read-only, so this page may be out of date."
        found.append(element("p", element("strong", "ZooKeeper has no leader. "), text, class_="banner warning"))
    if brokers is not None and brokers.problem:
        shown = f"Log ends are those of {moment(brokers.read_ms)}." if brokers.read_ms else "Lag is unknown."
        found.append(
            element(
                "p",
                element("strong", "The brokers do not answer. "),
                f"{shown} ({brokers.problem})",
                class_="banner error",
            )
        )
    return element("div", joined(found), class_="banners", role="status")


def pager(label: str, page: int, pages: int, links: tuple[str, str], shown: str) -> Html:
    """Return links to the page before and after this one."""
    before = element("a", "← Previous", href=links[0], rel="prev") if page > 1 else None
    after = element("a", "Next →", href=links[1], rel="next") if page < pages else None
    return element("nav", before, element("span", shown), after, class_="pager", aria_label=label)
