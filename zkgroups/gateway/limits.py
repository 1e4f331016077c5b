"""The resources that clients may use, so that slow or hostile clients cannot stall other clients."""

from __future__ import annotations

from dataclasses import dataclass, fields

from ..input_errors import InvalidOptionError


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of a gateway. Sizes are in bytes, times in seconds.

    - `connections`: the largest number of connected clients. Further clients are disconnected at once.
    - `request_size`: the largest request. A client that sends a larger one is disconnected.
    - `group_request_size`: the largest request about groups. These are decoded, so they need more memory.
    - `requests_in_flight`: the largest number of unanswered requests of one client. Further requests are not read.
    - `groups`: the largest number of groups in memory. Further groups are refused.
    - `members`: the largest number of members of a group.
    - `stall_timeout`: the longest pause within a message. Then the connection is closed.
    - `idle_timeout`: the longest time without requests and answers. Then the connection is closed.
    """

    connections: int = 5000
    request_size: int = 100 * 1024 * 1024
    group_request_size: int = 1024 * 1024
    requests_in_flight: int = 100
    groups: int = 10_000
    members: int = 1000
    stall_timeout: float = 60.0
    idle_timeout: float = 600.0

    def __post_init__(self) -> None:
        for each in fields(self):
            if not getattr(self, each.name) > 0:
                raise InvalidOptionError(each.name, getattr(self, each.name), "must be above 0")
