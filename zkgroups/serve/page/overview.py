"""The first page: how old the picture is, how many groups have which status, and the groups, the worst first."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Self, TypeVar
from urllib.parse import urlencode

from ...core.health import Status, rank
from ..picture.values import GroupPicture, Picture
from . import html
from .html import (
    SHOWN,
    UNKNOWN,
    Heading,
    Html,
    badge,
    cell,
    count,
    element,
    exact,
    group_path,
    joined,
    moment,
    pager,
    rate,
    reason,
    seconds,
    severity_class,
    since,
    table,
)

# What a page shows, as its address says: filters, search, order and page number. Invalid values are ignored.


T = TypeVar("T")

PER_PAGE: Final = 50
MOST_SEARCHED: Final = 200
"""The longest text to search for."""

TOPIC_PREFIX: Final = "topic:"


def _descending(value: float | None) -> tuple[bool, float]:
    """Return a sort key: the largest value first, unknown values last."""
    return value is None, -(value or 0)


ORDERS: Final[Mapping[str, Callable[[GroupPicture], Any]]] = {
    "status": lambda group: (*rank(group.verdict), -(group.lag or 0)),
    "group": lambda group: group.name,
    "members": lambda group: _descending(group.living),
    "lag": lambda group: _descending(group.lag),
    "time-lag": lambda group: _descending(group.time_lag),
    "consumed": lambda group: _descending(group.consumed),
    "produced": lambda group: _descending(group.produced),
    "catch-up": lambda group: _descending(group.catch_up),
    "unowned": lambda group: _descending(group.unowned),
    "commit": lambda group: _descending(group.last_commit_ms),
}
"""The orders of the table of groups. A minus before the name reverses it."""


@dataclass(frozen=True, slots=True)
class Query:
    """The choice of groups, and the page."""

    status: Status | None = None
    search: str = ""
    order: str = "status"
    page: int = 1
    all_groups: bool = False
    """Show also the groups that are not in use."""

    @classmethod
    def parse(cls, given: Mapping[str, str]) -> Self:
        """Read the parameters of an address.

        >>> Query.parse({"status": "STOP", "q": "bill", "sort": "-lag", "page": "2"})
        Query(status=<Status.STOP: 'STOP'>, search='bill', order='-lag', page=2, all_groups=False)
        >>> Query.parse({"status": "?", "sort": "x", "page": "-3"}) == Query()
        True
        """
        status, order, page = given.get("status", ""), given.get("sort", ""), given.get("page", "")
        return cls(
            Status(status) if status in set(Status) else None,
            given.get("q", "").strip()[:MOST_SEARCHED],
            order if order.removeprefix("-") in ORDERS else "status",
            max(1, int(page)) if page.isascii() and page.isdigit() and len(page) < 9 else 1,
            given.get("all") == "1",
        )

    def text(self, **changes: Any) -> str:
        """Return the address of a page like this one, with changes. A change of anything else shows the first page.

        >>> Query(search="a b").text(page=2), Query(page=3).text(status=Status.STOP), Query(page=3).text(page=1)
        ('/?q=a+b&page=2', '/?status=STOP', '/')
        """
        changed = replace(self, **({"page": 1} | changes))
        parameters = {
            "status": changed.status,
            "q": changed.search,
            "sort": changed.order if changed.order != "status" else "",
            "page": changed.page if changed.page > 1 else "",
            "all": "1" if changed.all_groups else "",
        }
        shown = urlencode({name: value for name, value in parameters.items() if value})
        return f"/?{shown}" if shown else "/"

    def found(self, picture: Picture) -> list[GroupPicture]:
        """Return the groups that match the search, whatever their status, in order, also those that are not in use."""
        groups = list(_searched(picture, self.search))
        groups.sort(key=ORDERS[self.order.removeprefix("-")], reverse=self.order.startswith("-"))
        return groups

    def in_use(self, found: Sequence[GroupPicture]) -> list[GroupPicture]:
        """Return the groups that are in use, or all."""
        return [group for group in found if self.all_groups or group.in_use]

    def chosen(self, found: Sequence[GroupPicture]) -> list[GroupPicture]:
        """Return those of the groups that have the status, and are in use unless all are wanted."""
        return [group for group in self.in_use(found) if self.status in (None, group.verdict.status)]


def _searched(picture: Picture, text: str) -> Sequence[GroupPicture]:
    wanted = text.casefold()
    if not wanted:
        return list(picture.groups.values())
    if wanted.startswith(TOPIC_PREFIX):
        part = wanted.removeprefix(TOPIC_PREFIX).strip()
        names = {name for topic, found in picture.topics.items() if part in topic.casefold() for name in found.groups}
        return [picture.groups[name] for name in names if name in picture.groups]
    return [group for name, group in picture.groups.items() if wanted in name.casefold()]


def paged(items: Sequence[T], page: int, per_page: int = PER_PAGE) -> tuple[Sequence[T], int, int]:
    """Return the items of a page, its number within bounds, and the number of pages.

    >>> paged("abcde", 9, per_page=2)
    ('e', 3, 3)
    >>> paged("", 1)
    ('', 1, 1)
    """
    pages = max(1, -(-len(items) // per_page))
    page = min(page, pages)
    return items[(page - 1) * per_page : page * per_page], page, pages


_COLUMNS: Final = (
    ("Status", "status", "", "The status of the worst partition"),
    ("Group", "group", "", None),
    ("Reason", "", "", None),
    ("Members", "members", "number", "Registered instances that may be alive"),
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
        element("div", _filters(query.in_use(found), query), _unused(found, query), _search(query), class_="tools"),
        table("Groups", _headings(query), _rows(shown, now_ms), class_="groups", empty=_empty(picture)),
        pager(
            "Pages of groups",
            page,
            pages,
            (query.text(page=page - 1), query.text(page=page + 1)),
            f"{first + 1}–{first + len(shown)} of {exact(len(chosen))}" if shown else "",
        ),
    )


def _empty(picture: Picture) -> str:
    if not picture.is_ready:
        if picture.zookeeper.problem:
            return "The groups are unknown until ZooKeeper answers."
        return "The groups are being read for the first time."
    return "No group matches." if picture.groups else "There are no groups."


def _unused(found: Sequence[GroupPicture], query: Query) -> Html | None:
    """Show how many groups are not in use, as a link that shows or hides them. None if there are none."""
    number = sum(not group.in_use for group in found)
    if not number:
        return None
    text = f"{'hide' if query.all_groups else 'show'} {exact(number)} not in use"
    help = "No members, no owners, and no commit for a day (--abandoned-after)"
    link = element("a", text, href=query.text(all_groups=not query.all_groups), title=help)
    return element("p", link, class_="quiet")


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
    hidden = {
        "status": query.status,
        "sort": query.order if query.order != "status" else None,
        "all": "1" if query.all_groups else None,
    }
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
        lags = [point.lag for point in group.trend.recent]
        yield element(
            "tr",
            cell(badge(group.verdict)),
            element("th", element("a", group.name, href=group_path(group.name)), scope="row", class_="name"),
            reason(group.verdict),
            cell(exact(group.living), class_="number", label="Members"),
            cell(count(group.lag), class_="number strong", title=exact(group.lag), label="Lag"),
            cell(seconds(group.time_lag), class_="number", label="Time lag"),
            cell(html.sparkline(lags, _trend(lags)), class_="trend"),
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
