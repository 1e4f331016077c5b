"""The groups and topics of a ZooKeeper, chosen by expressions, as a value that can be sent to another process."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from ..core.selection import Selection, check_expression
from ..input_errors import InvalidOptionError
from .connection_options import ConnectionOptions
from .session.options import check_hosts

MAX_PARALLELISM: Final = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class ZooKeeperSource(ConnectionOptions):
    """The options of a connection, and expressions for the whole names of groups and topics."""

    groups: str | None = None
    topics: str | None = None
    parallelism: int | None = None
    """The number of tasks that read, with Spark."""

    def __post_init__(self) -> None:
        ConnectionOptions.__post_init__(self)  # `super()` does not work in a dataclass with slots
        for option, expression in (("groups", self.groups), ("topics", self.topics)):
            check_expression(option, expression)
        if self.parallelism is not None and not 1 <= self.parallelism <= MAX_PARALLELISM:
            raise InvalidOptionError("parallelism", self.parallelism, f"it must be from 1 to {MAX_PARALLELISM}")

    def has_group(self, group: str) -> bool:
        """Return whether the group is selected."""
        return Selection(self.groups).has_group(group)

    @property
    def shown_cluster(self) -> str:
        """The address, as plans and tables show it."""
        return check_hosts(self.zookeeper)
