"""Decide which groups the gateway answers for, and which broker clients see as their coordinator."""

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
    """The coordinator on the brokers."""
    REFUSED = auto()
    """Refused: the gateway answers for all groups, and the name is not valid here."""


@dataclass(frozen=True)
class GroupRouting:
    """Routes groups by their names.

    - `pattern`: a regular expression like those of white lists. The gateway answers for the groups whose whole name
      matches. None: it answers for all groups.

    >>> routing = GroupRouting("billing-.*")
    >>> routing.route("billing-eu"), routing.route("orders"), GroupRouting().route("a/b")
    (<Route.HERE: 1>, <Route.KAFKA: 2>, <Route.REFUSED: 3>)
    """

    pattern: str | None = None
    _filter: TopicFilter | None = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        try:
            found = None if self.pattern is None else topic_filter(self.pattern)
        except ExpressionError as error:
            raise InvalidOptionError("group", self.pattern, f"it must be a regular expression: {error}") from error
        object.__setattr__(self, "_filter", found)

    def route(self, group: str) -> Route:
        """Return the coordinator of a group."""
        if self._filter is not None:
            return Route.HERE if self._filter.matches(group) else Route.KAFKA
        return Route.HERE if is_topic_of_kafka(group) and group not in {".", ".."} else Route.REFUSED


def coordinator_node(group: str, nodes: Collection[int]) -> int | None:
    """Return the broker that clients see as the coordinator of a group; None if no broker is known.

    The gateway answers under the address of every broker, so any choice is correct. This choice depends only on the
    name of the group and on the brokers. If the brokers change, it changes for few groups.
    """
    return max(nodes, key=lambda node: (crc32(f"{node}/{group}".encode()), node), default=None)
