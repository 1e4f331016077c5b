"""What a page shows, as its address says: filters, search, order and page number. Invalid values are ignored."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Self, TypeVar
from urllib.parse import urlencode

from ...core.health.verdicts import Status, rank
from ..picture.values import GroupPicture, Picture

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

    @classmethod
    def parse(cls, given: Mapping[str, str]) -> Self:
        """Read the parameters of an address.

        >>> Query.parse({"status": "STOP", "q": "bill", "sort": "-lag", "page": "2"})
        Query(status=<Status.STOP: 'STOP'>, search='bill', order='-lag', page=2)
        >>> Query.parse({"status": "?", "sort": "x", "page": "-3"}) == Query()
        True
        """
        status, order, page = given.get("status", ""), given.get("sort", ""), given.get("page", "")
        return cls(
            Status(status) if status in set(Status) else None,
            given.get("q", "").strip()[:MOST_SEARCHED],
            order if order.removeprefix("-") in ORDERS else "status",
            max(1, int(page)) if page.isascii() and page.isdigit() and len(page) < 9 else 1,
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
        }
        shown = urlencode({name: value for name, value in parameters.items() if value})
        return f"/?{shown}" if shown else "/"

    def found(self, picture: Picture) -> list[GroupPicture]:
        """Return the groups that match the search, whatever their status, in order."""
        groups = list(_searched(picture, self.search))
        groups.sort(key=ORDERS[self.order.removeprefix("-")], reverse=self.order.startswith("-"))
        return groups

    def chosen(self, found: Sequence[GroupPicture]) -> list[GroupPicture]:
        """Return those of the groups that have the status."""
        return [group for group in found if self.status in (None, group.verdict.status)]


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
