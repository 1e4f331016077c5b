"""The versions of requests that a broker supports, also of releases that do not report them.

Every client first sends ApiVersions. A broker of 0.8 then closes the connection, and a broker of 0.9 never answers. So
after a second without an answer, the first versions of two other requests are sent on connections of their own:

    | ApiVersions | ListGroups | Metadata | ApiVersions, again | the broker            |
    |-------------|------------|----------|--------------------|-----------------------|
    | answer      |            |          |                    | 0.10 or newer         |
    | none        | answer     |          | none               | 0.9                   |
    | none        | none       | answer   | none               | 0.8                   |
    | none        | none       | none     |                    | unreachable, or not a broker |

ApiVersions is sent again, in turn with the request that was answered, for a broker that was only slow, or about to
stop, and for connections that broke. A newer broker would answer the OffsetFetch request of release 0.9 without any
offsets. No request here makes a broker create a topic.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from ...exceptions import BrokersTooOldError
from . import codec
from .address import Address
from .connection import Connection
from .errors import DamagedAnswerError, WireError

_PATIENCE: Final = 1.0
"""In seconds: how long to wait for an answer from a broker that may be too old to give one."""
_CONFIRMATIONS: Final = 3
"""How many more times a broker must be silent, and answer the other request, before it counts as an old one."""
_CLIENT: Final = "zkgroups"

Connect = Callable[[], Awaitable[Connection]]


@dataclass(frozen=True, slots=True)
class Versions:
    """The first and last version of each request that a broker supports, by Kafka's number of the request."""

    ranges: Mapping[int, tuple[int, int]]
    release: str | None = None
    """The release, if it is too old to report its versions."""

    def best(self, key: int) -> int | None:
        """Return the last version that both sides support; None if there is none."""
        ours = codec.APIS[key]
        first, last = self.ranges.get(key, (0, -1))
        return found if (found := min(last, ours.last)) >= max(first, ours.first) else None

    def needed(self, key: int, address: Address) -> int:
        """Return the version to use. Raise BrokersTooOldError if there is none."""
        if (found := self.best(key)) is None:
            raise BrokersTooOldError(
                f"the broker at {address} and zkgroups have no common version of {codec.APIS[key].name} requests: "
                "upgrade the older of the two"
            )
        return found


_OLD_0_8: Final = Versions({2: (0, 0), 3: (0, 0)}, "0.8")
"""Release 0.8 has some requests about groups, but cannot list or describe them."""
_OLD_0_9: Final = Versions({2: (0, 0), 3: (0, 0), 8: (0, 2), 9: (0, 1), 10: (0, 0), 15: (0, 0), 16: (0, 0)}, "0.9")


async def ask_versions(connection: Connection) -> Versions:
    """Return the versions that a broker reports. A broker before 0.10 does not answer."""
    found = await _ask(connection, codec.ApiVersionsRequest())
    return Versions({each.api_key: (each.min_version, each.max_version) for each in found.api_keys})


async def old_versions(connect: Connect) -> Versions | None:
    """Return the versions of a broker that did not report them; None unless it is certainly an old one."""
    found, known = _OLD_0_9, codec.ListGroupsRequest()
    if not await _answers(connect, known):
        found, known = _OLD_0_8, codec.MetadataRequest(topics=[])
        if not await _answers(connect, known):
            return None
    for _ in range(_CONFIRMATIONS):
        if not await _is_silent(connect, codec.ApiVersionsRequest()) or not await _answers(connect, known):
            return None
    return found


async def reported(connection: Connection, connect: Connect) -> Versions:
    """Return the versions of a broker of any release. An old broker needs a new connection afterwards."""
    asked = asyncio.ensure_future(ask_versions(connection))
    asked.add_done_callback(_seen)
    try:
        await asyncio.wait({asked}, timeout=_PATIENCE)
        if asked.done() and not _is_silence(asked.exception()):
            return asked.result()
        found = await old_versions(connect)
        return await asked if found is None or (asked.done() and not _is_silence(asked.exception())) else found
    finally:
        asked.cancel()


def _is_silence(error: BaseException | None) -> bool:
    return isinstance(error, WireError) and not isinstance(error, DamagedAnswerError)


def _seen(asked: asyncio.Future[Versions]) -> None:
    """Keep asyncio from logging an error that does not matter anymore."""
    if not asked.cancelled():
        asked.exception()


async def _answers(connect: Connect, request: Any) -> bool:
    try:
        async with asyncio.timeout(_PATIENCE):
            connection = await connect()
            try:
                await _ask(connection, request)
            finally:
                connection.close()
    except (WireError, TimeoutError):
        return False
    return True


async def _is_silent(connect: Connect, request: Any) -> bool:
    """Return whether a broker that can be connected does not answer. A damaged answer counts as an answer."""
    try:
        async with asyncio.timeout(_PATIENCE):
            connection = await connect()
    except (WireError, TimeoutError):
        return False
    try:
        async with asyncio.timeout(_PATIENCE):
            await _ask(connection, request)
    except TimeoutError:
        return True
    except WireError as error:
        return _is_silence(error)
    finally:
        connection.close()
    return False


async def _ask(connection: Connection, request: Any) -> Any:
    """Send the first version of a request."""
    frame = await connection.exchange(codec.encode(request, 0, 1, _CLIENT), 1)
    return codec.decode(request, 0, frame)
