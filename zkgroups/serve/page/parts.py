"""Parts that several pages share: statuses, sources, tables and links to other pages of a list."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from ...core.doctor.findings import Severity
from ...core.health.verdicts import Status, Verdict
from ..picture.values import Picture, SourceState
from .html import Html, element, joined
from .numbers import moment, since

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
