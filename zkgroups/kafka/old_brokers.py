"""Detects brokers of releases before 0.10, which a client of today cannot talk to without extra settings.

Every client first asks which versions of requests a broker supports (ApiVersions). A broker of 0.8 then closes the
connection, and a broker of 0.9 never answers. librdkafka retries until its timeout. With two settings it skips that
request and uses the requests of an old release. These settings must not be used with any other broker.

So after a first failed connection, this module sends the same request over a plain socket:

    | ApiVersions | ListGroups | Metadata | ApiVersions, again | the broker            |
    |-------------|------------|----------|--------------------|-----------------------|
    | answer      |            |          |                    | 0.10 or newer         |
    | none        | answer     |          | none               | 0.9                   |
    | none        | none       | answer   | none               | 0.8                   |
    | none        | none       | none     |                    | unreachable, or not a broker |

No request here makes a broker create a topic.
"""

from __future__ import annotations

import re
import socket
import struct
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Final

from ..deadline import Deadline

_API_VERSIONS: Final = (18, b"")
_LIST_GROUPS: Final = (16, b"")
_METADATA: Final = (3, struct.pack(">i", 0))  # of all topics
_ANSWER_TIMEOUT: Final = 1.0
"""In seconds."""

_ID: Final = 1
_CLIENT: Final = b"zkgroups"
_ANSWER: Final = struct.Struct(">ii")
_ADDRESS: Final = re.compile(r"(?:\w+://)?(?:\[(?P<v6>[^\]]+)\]|(?P<host>[^:,\s]+))(?::(?P<port>\d+))?\s*")
_PORT: Final = 9092


def settings_for_old(bootstrap: str, config: Mapping[str, str], deadline: Deadline) -> dict[str, str]:
    """Return the settings that these brokers need to answer; none for newer brokers, or if that is unknown."""
    if config.get("security.protocol", "plaintext").lower() != "plaintext" or "api.version.request" in config:
        return {}
    with suppress(_NoTime):
        for address in _addresses(bootstrap):
            if (release := _release(address, deadline)) is not None:
                return {"api.version.request": "false", "broker.version.fallback": release}
    return {}


def keeps_groups(config: Mapping[str, str]) -> bool:
    """Return whether brokers with these settings support requests about groups. Release 0.8 lacks most of them."""
    asks = config.get("api.version.request", "true").lower() not in ("false", "0", "f")
    return asks or not config.get("broker.version.fallback", "").startswith("0.8")


def _addresses(bootstrap: str) -> Iterator[tuple[str, int]]:
    for text in bootstrap.split(","):
        if found := _ADDRESS.fullmatch(text.strip()):
            yield found["v6"] or found["host"], int(found["port"] or _PORT)


class _NoTime(Exception):
    """The deadline has passed before it is certain that the broker does not answer."""


def _release(address: tuple[str, int], deadline: Deadline) -> str | None:
    """The old release of the broker at this address, as librdkafka's settings name it."""

    def answers(request: tuple[int, bytes]) -> bool:
        return _answers(address, request, deadline)

    if answers(_API_VERSIONS):
        return None
    found = "0.9.0" if answers(_LIST_GROUPS) else "0.8.2" if answers(_METADATA) else None
    # Ask again, because the broker may only have been slow, or about to stop.
    return None if found is None or answers(_API_VERSIONS) else found


def _answers(address: tuple[str, int], request: tuple[int, bytes], deadline: Deadline) -> bool:
    """Return whether a broker answers the first version of this request."""
    key, fields = request
    body = struct.pack(">hhih", key, 0, _ID, len(_CLIENT)) + _CLIENT + fields
    if deadline.remaining < _ANSWER_TIMEOUT:
        raise _NoTime
    try:
        with socket.create_connection(address, timeout=_ANSWER_TIMEOUT) as connection:
            connection.sendall(struct.pack(">i", len(body)) + body)
            answer = connection.recv(_ANSWER.size, socket.MSG_WAITALL)
    except OSError:
        return False
    return len(answer) == _ANSWER.size and _ANSWER.unpack(answer)[1] == _ID
