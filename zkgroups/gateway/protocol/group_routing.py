"""Which groups the gateway answers for, and the broker under whose address it does so."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from enum import Enum, auto
from zlib import crc32

from ...core.java_regex.errors import ExpressionError
from ...core.java_regex.topic_filter import TopicFilter, is_topic_of_kafka, topic_filter
from ...input_errors import InvalidOptionError


class Route(Enum):
    """The coordinator of a group."""

    HERE = auto()
    KAFKA = auto()
    """The real coordinator."""
    NOWHERE = auto()
    """The name is not valid here, and no group goes to a real coordinator."""


@dataclass(frozen=True)
class GroupRouting:
    """Routes groups by their names.

    - `pattern`: the groups that are answered here: a regular expression like those of white lists, for the whole name.
      Without it all groups are answered here.

    >>> routing = GroupRouting("billing-.*")
    >>> routing.route("billing-eu"), routing.route("orders"), GroupRouting().route("a/b")
    (<Route.HERE: 1>, <Route.KAFKA: 2>, <Route.NOWHERE: 3>)
    """

    pattern: str | None = None
    _filter: TopicFilter | None = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        try:
            found = None if self.pattern is None else topic_filter(self.pattern)
        except ExpressionError as error:
            raise InvalidOptionError("group", self.pattern, str(error)) from error
        object.__setattr__(self, "_filter", found)

    def route(self, group: str) -> Route:
        """Return the coordinator of a group."""
        if self._filter is not None:
            return Route.HERE if self._filter.matches(group) else Route.KAFKA
        return Route.HERE if is_topic_of_kafka(group) and group not in {".", ".."} else Route.NOWHERE


def coordinator_node(group: str, nodes: Collection[int]) -> int | None:
    """Return the broker under whose address a group is answered; None if none is known.

    All of them would do. The choice depends only on the name and the brokers, and moves few groups if those change.
    """
    return max(nodes, key=lambda node: (crc32(f"{node}/{group}".encode()), node), default=None)
