"""The first page: how old the picture is, how many groups have which status, and the groups, the worst first."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Final

from ...core.health.verdicts import Status
from ..picture.values import GroupPicture, Picture
from . import svg
from .html import Html, element, group_path, joined
from .numbers import UNKNOWN, count, exact, moment, rate, seconds, since
from .parts import SHOWN, Heading, badge, cell, pager, reason, severity_class, table
from .queries import PER_PAGE, Query, paged

_COLUMNS: Final = (
    ("Status", "status", "", "The status of the worst partition"),
    ("Group", "group", "", None),
    ("Reason", "", "", None),
    ("Lag", "lag", "number", "Messages between the committed offsets and the log ends"),
    ("Time lag", "time-lag", "number", "Age of the oldest first unread message"),
    ("Trend", "", "trend", "Lag in the last sweeps"),
    ("Consumed", "consumed", "number", "Messages per second that the group consumes"),
    ("Produced", "produced", "number", "Messages per second that are written to its partitions"),
    ("Catch-up", "catch-up", "number", "Time until the lag is 0, if both rates stay"),
    ("Unowned", "unowned", "number", "Partitions of subscribed topics that no member owns"),
    ("Last commit", "commit", "number", None),
)
_ASCENDING: Final = {"group"}


def overview(picture: Picture, query: Query, now_ms: int) -> Html:
    """Return the contents of the page."""
    found = query.found(picture)
    chosen = query.chosen(found)
    shown, page, pages = paged(chosen, query.page)
    first = (page - 1) * PER_PAGE
    return joined(
        element("h1", "Consumer groups", class_="hidden"),
        element("div", _filters(found, query), _search(query), class_="tools"),
        table("Groups", _headings(query), _rows(shown, now_ms), class_="groups", empty=_empty(picture, query)),
        pager(
            "Pages of groups",
            page,
            pages,
            (query.text(page=page - 1), query.text(page=page + 1)),
            f"{first + 1}–{first + len(shown)} of {exact(len(chosen))}" if shown else "",
        ),
    )


def _empty(picture: Picture, query: Query) -> str:
    if not picture.is_ready:
        if picture.zookeeper.problem:
            return "The groups are unknown until ZooKeeper answers."
        return "The groups are being read for the first time."
    return "No group matches." if query.search or query.status else "There are no groups."


def _filters(found: Sequence[GroupPicture], query: Query) -> Html:
    """Show the number of groups by status. Each is a link that filters."""
    counts = Counter(group.verdict.status for group in found)
    worst = {group.verdict.status: severity_class(group.verdict.severity) for group in reversed(found)}
    links = [_filter("all", len(found), query.text(status=None), query.status is None, "all")]
    links += [
        _filter(
            SHOWN[status], counts[status], query.text(status=status), query.status is status, worst.get(status, "info")
        )
        for status in Status
        if counts[status] or query.status is status
    ]
    return element("nav", element("ul", links), class_="filters", aria_label="Filter by status")


def _filter(name: str, number: int, link: str, is_current: bool, class_: str) -> Html:
    return element(
        "li",
        element(
            "a",
            element("span", exact(number), class_="count"),
            f" {name}",
            href=link,
            class_=class_,
            aria_current="true" if is_current else None,
        ),
        data_key=name,
    )


def _search(query: Query) -> Html:
    hidden = {"status": query.status, "sort": query.order if query.order != "status" else None}
    return element(
        "form",
        element("label", "Search groups", for_="search", class_="hidden"),
        element(
            "input",
            type="search",
            id="search",
            name="q",
            value=query.search,
            placeholder="Search groups, or topic:NAME   ( / )",
            autocomplete="off",
            spellcheck="false",
            maxlength=200,
        ),
        [element("input", type="hidden", name=name, value=value) for name, value in hidden.items() if value],
        role="search",
        action="/",
        class_="search",
    )


def _headings(query: Query) -> list[Heading]:
    by, is_reversed = query.order.removeprefix("-"), query.order.startswith("-")
    found = []
    for text, order, class_, help in _COLUMNS:
        direction = None
        if order and order == by:
            direction = "ascending" if (order in _ASCENDING) is not is_reversed else "descending"
        other = f"-{order}" if order == by and not is_reversed else order
        found.append(Heading(text, class_, query.text(order=other) if order else "", direction, help))
    return found


def _rows(groups: Iterable[GroupPicture], now_ms: int) -> Iterable[Html]:
    for group in groups:
        lags = [point.lag for point in group.trend]
        yield element(
            "tr",
            cell(badge(group.verdict)),
            element("th", element("a", group.name, href=group_path(group.name)), scope="row", class_="name"),
            reason(group.verdict),
            cell(count(group.lag), class_="number strong", title=exact(group.lag), label="Lag"),
            cell(seconds(group.time_lag), class_="number", label="Time lag"),
            cell(svg.sparkline(lags, _trend(lags)), class_="trend"),
            cell(rate(group.consumed), class_="number", label="Consumed"),
            cell(rate(group.produced), class_="number", label="Produced"),
            cell(catch_up(group), class_="number", label="Catch-up"),
            cell(exact(group.unowned) if group.unowned else UNKNOWN, class_="number", label="Unowned"),
            cell(
                since(group.last_commit_ms, now_ms),
                class_="number",
                title=moment(group.last_commit_ms),
                label="Last commit",
            ),
            data_key=group.name,
            class_=severity_class(group.verdict.severity),
        )


def catch_up(group: GroupPicture) -> str:
    """Show the time to catch up. "never" if the group is not faster than its producers."""
    if group.catch_up is None and group.lag and group.consumed is not None and group.produced is not None:
        return "never"
    return UNKNOWN if group.catch_up == 0 else seconds(group.catch_up)


def _trend(lags: Sequence[int | None]) -> str:
    known = [lag for lag in lags if lag is not None]
    return f"Lag from {exact(known[0])} to {exact(known[-1])}" if known else "Lag unknown"
