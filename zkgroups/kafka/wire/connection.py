"""One open connection to a broker: requests in versions that the broker supports, and answers in the same order."""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
import struct
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from ipaddress import ip_address
from typing import Any, Final, Self

from ...exceptions import BrokersTooOldError, CertificateError
from . import codec
from .errors import LAST_PORT, Address, AnswerLostError, DamagedAnswerError, NoListenerError, NotSentError, WireError

# Kafka's error codes that the answers to zkgroups can have.


class Code(IntEnum):
    """An error code in an answer."""

    UNKNOWN_SERVER_ERROR = -1
    NONE = 0
    OFFSET_OUT_OF_RANGE = 1
    CORRUPT_MESSAGE = 2
    UNKNOWN_TOPIC_OR_PARTITION = 3
    INVALID_FETCH_SIZE = 4
    LEADER_NOT_AVAILABLE = 5
    NOT_LEADER_OR_FOLLOWER = 6
    REQUEST_TIMED_OUT = 7
    BROKER_NOT_AVAILABLE = 8
    REPLICA_NOT_AVAILABLE = 9
    OFFSET_METADATA_TOO_LARGE = 12
    NETWORK_EXCEPTION = 13
    COORDINATOR_LOAD_IN_PROGRESS = 14
    COORDINATOR_NOT_AVAILABLE = 15
    NOT_COORDINATOR = 16
    INVALID_TOPIC_EXCEPTION = 17
    ILLEGAL_GENERATION = 22
    INCONSISTENT_GROUP_PROTOCOL = 23
    INVALID_GROUP_ID = 24
    UNKNOWN_MEMBER_ID = 25
    INVALID_SESSION_TIMEOUT = 26
    REBALANCE_IN_PROGRESS = 27
    INVALID_COMMIT_OFFSET_SIZE = 28
    TOPIC_AUTHORIZATION_FAILED = 29
    GROUP_AUTHORIZATION_FAILED = 30
    CLUSTER_AUTHORIZATION_FAILED = 31
    INVALID_TIMESTAMP = 32
    UNSUPPORTED_SASL_MECHANISM = 33
    ILLEGAL_SASL_STATE = 34
    UNSUPPORTED_VERSION = 35
    NOT_CONTROLLER = 41
    INVALID_REQUEST = 42
    UNSUPPORTED_FOR_MESSAGE_FORMAT = 43
    POLICY_VIOLATION = 44
    SECURITY_DISABLED = 54
    KAFKA_STORAGE_ERROR = 56
    SASL_AUTHENTICATION_FAILED = 58
    NON_EMPTY_GROUP = 68
    GROUP_ID_NOT_FOUND = 69
    LISTENER_NOT_FOUND = 72
    FENCED_LEADER_EPOCH = 74
    UNKNOWN_LEADER_EPOCH = 75
    OFFSET_NOT_AVAILABLE = 78
    MEMBER_ID_REQUIRED = 79
    GROUP_MAX_SIZE_REACHED = 81
    FENCED_INSTANCE_ID = 82
    GROUP_SUBSCRIBED_TO_TOPIC = 86
    INVALID_RECORD = 87
    UNSTABLE_OFFSET_COMMIT = 88
    THROTTLING_QUOTA_EXCEEDED = 89
    UNKNOWN_TOPIC_ID = 100
    FENCED_MEMBER_EPOCH = 110
    UNSUPPORTED_ASSIGNOR = 112
    STALE_MEMBER_EPOCH = 113

    @staticmethod
    def words(code: int) -> str:
        """Return the name of a code in lower case, for messages: `not coordinator`.

        >>> Code.words(16), Code.words(999)
        ('not coordinator', 'error 999')
        """
        found = code in Code._value2member_map_
        return Code(code).name.lower().replace("_", " ") if found else f"error {code}"


# One open connection to a broker. It sends requests, and returns the answers in the same order.


_MOST_BYTES: Final = 200_000_000
"""The longest answer. The bytes of another protocol would mostly mean a longer one."""

_SIZE: Final = struct.Struct(">i")
_READ_AHEAD: Final = 1 << 20
_NEXT_ADDRESS_AFTER: Final = 0.25
"""In seconds: if a host has several addresses, the next one is tried after this time, beside the first."""
_TLS_ALERT: Final = b"\x15\x03"
"""The first bytes with which a TLS server answers a client without TLS."""
_READING: Final[set[asyncio.Task[None]]] = set()
"""An event loop refers to its tasks weakly, so a forgotten connection would be deleted before its task is cancelled."""


class Connection:
    """An open connection. A broker answers requests in their order; answers to cancelled requests are skipped."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, address: Address) -> None:
        self._reader = reader
        self._writer = writer
        self._address = address
        self._waiting: deque[tuple[int | None, asyncio.Future[bytes]]] = deque()
        self._since = 0.0
        self._answers = 0
        self._reason: WireError | CertificateError | None = None
        self._reading = asyncio.create_task(self._read())
        # Otherwise asyncio prints an error at the end of a process that has not closed its connections.
        self._reading._log_destroy_pending = False  # type: ignore[attr-defined]
        _READING.add(self._reading)
        self._reading.add_done_callback(_READING.discard)

    @classmethod
    async def open(cls, address: Address, tls: ssl.SSLContext | None) -> Self:
        """Connect to one of the addresses of the host."""
        if not 0 < address.port <= LAST_PORT:  # asyncio would fail with an IndexError
            raise NotSentError(f"no connection to {address}: the broker reported an impossible port")
        try:
            reader, writer = await asyncio.open_connection(
                address.host,
                address.port,
                ssl=tls,
                limit=_READ_AHEAD,
                happy_eyeballs_delay=_next_after(address.host),
            )
        except ssl.SSLError as error:
            raise _tls_failed(address, error) from error
        except ValueError as error:  # for the name of a host
            raise NotSentError(f"no connection to {address}: {error}") from error
        except OSError as error:
            kind = NoListenerError if isinstance(error, ConnectionRefusedError | socket.gaierror) else NotSentError
            raise kind(f"no connection to {address}: {_reason(error)}") from error
        return cls(reader, writer, address)

    @property
    def closed(self) -> bool:
        """True once the connection is closed, by either side."""
        return self._reason is not None

    @property
    def unanswered(self) -> int:
        """The number of requests without an answer, including cancelled ones."""
        return len(self._waiting)

    @property
    def waited(self) -> float:
        """How long the next answer has been awaited, in seconds."""
        return asyncio.get_running_loop().time() - self._since if self._waiting else 0.0

    async def exchange(self, frame: bytes, correlation_id: int | None) -> bytes:
        """Send a frame and return the answer. Without a correlation id, the answer has none either."""
        if self._reason is not None:
            raise NotSentError(f"the connection to {self._address} is closed")
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[bytes] = loop.create_future()
        if not self._waiting:
            self._since = loop.time()
        self._waiting.append((correlation_id, answer))
        self._writer.write(frame)
        return await answer

    def close(self, reason: str = "it was closed") -> None:
        """Close the connection. Requests without an answer fail."""
        self._fail(AnswerLostError(f"the connection to {self._address} ended: {reason}"))

    async def _read(self) -> None:
        try:
            while True:
                (size,) = _SIZE.unpack(await self._reader.readexactly(_SIZE.size))
                self._answered(await self._reader.readexactly(self._checked(size)))
        except asyncio.IncompleteReadError:
            self._fail(AnswerLostError(f"{self._address} closed the connection"))
        except ssl.SSLError as error:
            failed = _tls_failed(self._address, error)
            # A broker checks the client's certificate only after the handshake.
            self._fail(AnswerLostError(str(failed)) if self._answers else failed)
        except OSError as error:
            self._fail(AnswerLostError(f"the connection to {self._address} broke: {error.strerror or error}"))
        except DamagedAnswerError as error:
            self._fail(error)
        except asyncio.CancelledError:  # with all other tasks: the event loop ends
            self.close()
            raise

    def _checked(self, size: int) -> int:
        if 0 <= size <= _MOST_BYTES:
            return size
        if _SIZE.pack(size).startswith(_TLS_ALERT):
            raise DamagedAnswerError(f"{self._address} expects TLS: set security.protocol=SSL or SASL_SSL")
        raise DamagedAnswerError(
            f"{self._address} did not answer like a Kafka broker (a frame of {size} bytes): check the address"
        )

    def _answered(self, frame: bytes) -> None:
        if not self._waiting:
            raise DamagedAnswerError(f"{self._address} answered without a request")
        expected, answer = self._waiting.popleft()
        if expected is not None and (len(frame) < _SIZE.size or codec.correlation_id(frame) != expected):
            self._waiting.appendleft((expected, answer))
            raise DamagedAnswerError(f"{self._address} did not answer in the order of the requests")
        self._answers += 1
        self._since = asyncio.get_running_loop().time()
        if not answer.done():
            answer.set_result(frame)

    def _fail(self, reason: WireError | CertificateError) -> None:
        if self._reason is not None:
            return
        self._reason = reason
        self._reading.cancel()
        self._writer.transport.abort()  # closing TLS would wait for the broker
        for _, answer in self._waiting:
            if not answer.done():
                answer.set_exception(reason)
        self._waiting.clear()


def _next_after(host: str) -> float | None:
    """Return the delay for a host that may have several addresses.

    A race between addresses leaves a socket open if it is cancelled at the moment when it has a winner.
    """
    try:
        ip_address(host)
    except ValueError:
        return _NEXT_ADDRESS_AFTER
    return None


def _reason(error: OSError) -> str:
    if error.errno is not None and error.errno > 0:  # asyncio replaces the message of the system
        return os.strerror(error.errno)
    return error.strerror or str(error) or "it closed the connection: perhaps it expects no TLS"


def _tls_failed(address: Address, error: ssl.SSLError) -> WireError | CertificateError:
    """Return a permanent error, unless the connection was only closed."""
    if isinstance(error, ssl.SSLEOFError | ssl.SSLZeroReturnError):
        return NotSentError(f"{address} closed the connection: perhaps it expects no TLS")
    if isinstance(error, ssl.SSLCertVerificationError):
        reason = (
            f"its certificate is not accepted: {error.verify_message}; check the address and ssl.truststore.location"
        )
    else:
        reason = f"TLS failed: {(error.reason or str(error)).lower().replace('_', ' ')}"
    return CertificateError(f"no connection to {address}: {reason}")


# The versions of requests that a broker supports, also of releases that do not report them.
#
# Every client first sends ApiVersions. A broker of 0.8 then closes the connection, and a broker of 0.9 never answers.
# So after a second without an answer, the first versions of two other requests are sent on connections of their own:
#
#     | ApiVersions | ListGroups | Metadata | ApiVersions, again | the broker            |
#     |-------------|------------|----------|--------------------|-----------------------|
#     | answer      |            |          |                    | 0.10 or newer         |
#     | none        | answer     |          | none               | 0.9                   |
#     | none        | none       | answer   | none               | 0.8                   |
#     | none        | none       | none     |                    | unreachable, or not a broker |
#
# ApiVersions is sent again, in turn with the request that was answered, for a broker that was only slow, or about to
# stop, and for connections that broke. A newer broker would answer the OffsetFetch request of release 0.9 without any
# offsets. No request here makes a broker create a topic.


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
