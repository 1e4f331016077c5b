"""ZooKeeper's frames, as far as a proxy reads them: a length of four bytes, then the content.

The first frame of a connection is the connect request, or its answer. Every later one starts with an xid, and a
request continues with its type. A negative xid marks a special request: see `Xid`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from enum import IntEnum

# Above any jute.maxbuffer in use. A larger "length" is a TLS handshake or a four-letter word.
_LONGEST = 1 << 28
_CHUNK = 1 << 16


class Xid(IntEnum):
    """The special xids. All others count the requests of a client."""

    WATCH_EVENT = -1
    PING = -2
    AUTH = -4
    SET_WATCHES = -8


class Op(IntEnum):
    """The types of requests, with ZooKeeper's names."""

    CREATE = 1
    DELETE = 2
    EXISTS = 3
    GET_DATA = 4
    SET_DATA = 5
    GET_ACL = 6
    SET_ACL = 7
    GET_CHILDREN = 8
    SYNC = 9
    GET_CHILDREN2 = 12
    CHECK = 13
    MULTI = 14
    CREATE2 = 15
    RECONFIG = 16
    CREATE_CONTAINER = 19
    CREATE_TTL = 21
    MULTI_READ = 22
    GET_EPHEMERALS = 103
    GET_ALL_CHILDREN_NUMBER = 104
    SASL = 102
    CLOSE_SESSION = -11


@dataclass(frozen=True, slots=True)
class Frame:
    """One frame with its length. `xid` and `op` (the type of a request) are None if it has none."""

    data: bytes
    xid: int | None = None
    op: int | None = None

    @property
    def ordinary(self) -> bool:
        """True for a request that a client counts, and for its reply."""
        return self.xid is not None and self.xid > 0


async def read_frames(reader: asyncio.StreamReader) -> AsyncIterator[Frame]:
    """Yield all frames until the connection ends. Other bytes are passed on unread, without an xid."""
    parse: Callable[[bytes], Frame] = Frame
    while head := await _exactly(reader, 4):
        length = int.from_bytes(head)
        if length > _LONGEST:
            yield Frame(head)
            break
        if (body := await _exactly(reader, length)) is None:
            return
        yield parse(head + body)
        parse = _parse
    async for chunk in read_chunks(reader):
        yield chunk


async def read_chunks(reader: asyncio.StreamReader) -> AsyncIterator[Frame]:
    """Yield the bytes of another protocol as they arrive."""
    while chunk := await _some(reader):
        yield Frame(chunk)


def _parse(data: bytes) -> Frame:
    xid = int.from_bytes(data[4:8], signed=True) if len(data) >= 8 else None
    op = int.from_bytes(data[8:12], signed=True) if len(data) >= 12 else None
    return Frame(data, xid, op)


async def _exactly(reader: asyncio.StreamReader, count: int) -> bytes | None:
    try:
        return await reader.readexactly(count)
    except (asyncio.IncompleteReadError, ConnectionError):
        return None


async def _some(reader: asyncio.StreamReader) -> bytes:
    try:
        return await reader.read(_CHUNK)
    except ConnectionError:
        return b""
