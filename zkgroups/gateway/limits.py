"""The resources that clients may use, so that slow and hostile ones cannot stall others."""

from __future__ import annotations

from dataclasses import dataclass, fields

from ..input_errors import InvalidOptionError


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of a gateway. Sizes are in bytes, times in seconds.

    - `connections`: more clients at a time are disconnected at once.
    - `request_size`: a client that sends a longer request is disconnected.
    - `group_request_size`: the same for requests about groups, which are decoded.
    - `requests_in_flight`: no more requests of one client are read before it has read answers.
    - `groups`: no more groups are created.
    - `members`: the largest number of members of a group.
    - `stall_timeout`: a connection within a message that does not advance for this time is closed.
    - `idle_timeout`: a connection without requests and answers for this time is closed.
    """

    connections: int = 5000
    request_size: int = 100 * 1024 * 1024
    group_request_size: int = 4 * 1024 * 1024
    requests_in_flight: int = 100
    groups: int = 10_000
    members: int = 1000
    stall_timeout: float = 60.0
    idle_timeout: float = 600.0

    def __post_init__(self) -> None:
        for each in fields(self):
            if not getattr(self, each.name) > 0:
                raise InvalidOptionError(each.name, getattr(self, each.name), "must be above 0")
