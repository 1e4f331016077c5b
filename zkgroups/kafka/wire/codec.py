"""Kafka's messages to bytes and back: the only module that imports kafka-python.

Its message classes are attributes of this module: `codec.MetadataRequest(topics=None)`. They are imported by the first
use, because the import takes a fifth of a second.

Only the message classes are used. Other parts of kafka-python write whole messages, and so passwords, to the debug log.

`APIS` lists the requests that we send. `SERVED` lists the requests that the gateway reads and answers.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from types import new_class
from typing import Any, Final

from ...exceptions import MissingDependencyError
from .errors import DamagedAnswerError, DamagedRequestError


@dataclass(frozen=True, slots=True)
class Api:
    """One kind of request: its module in kafka-python, and the versions that zkgroups uses."""

    name: str
    module: str | None
    first: int
    last: int


LIST_OFFSETS: Final = 2
METADATA: Final = 3
OFFSET_COMMIT: Final = 8
OFFSET_FETCH: Final = 9
FIND_COORDINATOR: Final = 10
JOIN_GROUP: Final = 11
HEARTBEAT: Final = 12
LEAVE_GROUP: Final = 13
SYNC_GROUP: Final = 14
DESCRIBE_GROUPS: Final = 15
LIST_GROUPS: Final = 16
DESCRIBE_CONFIGS: Final = 32
DELETE_GROUPS: Final = 42
OFFSET_DELETE: Final = 47
DESCRIBE_CLUSTER: Final = 60
API_VERSIONS: Final = 18
SASL_HANDSHAKE: Final = 17
SASL_AUTHENTICATE: Final = 36
CONSUMER_GROUP_DESCRIBE: Final = 69

APIS: Final = {
    # Version 0 of commits and fetches is about offsets in ZooKeeper. Version 10 names topics by their ids.
    OFFSET_COMMIT: Api("OffsetCommit", "consumer", 2, 9),
    OFFSET_FETCH: Api("OffsetFetch", "consumer", 1, 9),
    OFFSET_DELETE: Api("OffsetDelete", "consumer", 0, 0),
    # Later versions wait for remote storage.
    LIST_OFFSETS: Api("ListOffsets", "consumer", 0, 9),
    METADATA: Api("Metadata", "metadata", 0, 12),
    FIND_COORDINATOR: Api("FindCoordinator", "metadata", 0, 5),
    # Every release since 0.10 answers version 0. Later versions need two requests if the broker is older.
    API_VERSIONS: Api("ApiVersions", "metadata", 0, 0),
    DESCRIBE_GROUPS: Api("DescribeGroups", "admin", 0, 6),
    LIST_GROUPS: Api("ListGroups", "admin", 0, 5),
    DELETE_GROUPS: Api("DeleteGroups", "admin", 0, 2),
    DESCRIBE_CONFIGS: Api("DescribeConfigs", "admin", 0, 4),
    SASL_HANDSHAKE: Api("SaslHandshake", "sasl", 0, 1),
    SASL_AUTHENTICATE: Api("SaslAuthenticate", "sasl", 0, 2),
    CONSUMER_GROUP_DESCRIBE: Api("ConsumerGroupDescribe", None, 0, 0),
}
"""The kinds of requests, by Kafka's number."""

SERVED: Final = {
    METADATA: Api("Metadata", "metadata", 0, 13),
    FIND_COORDINATOR: APIS[FIND_COORDINATOR],
    API_VERSIONS: Api("ApiVersions", "metadata", 0, 4),
    # Brokers before 4.0 offer the first versions, and some clients use them without asking, such as kaf.
    OFFSET_COMMIT: Api("OffsetCommit", "consumer", 0, 9),
    OFFSET_FETCH: Api("OffsetFetch", "consumer", 0, 9),
    OFFSET_DELETE: APIS[OFFSET_DELETE],
    JOIN_GROUP: Api("JoinGroup", "consumer", 0, 9),
    HEARTBEAT: Api("Heartbeat", "consumer", 0, 4),
    LEAVE_GROUP: Api("LeaveGroup", "consumer", 0, 5),
    SYNC_GROUP: Api("SyncGroup", "consumer", 0, 5),
    DESCRIBE_GROUPS: APIS[DESCRIBE_GROUPS],
    LIST_GROUPS: APIS[LIST_GROUPS],
    DELETE_GROUPS: APIS[DELETE_GROUPS],
    DESCRIBE_CONFIGS: APIS[DESCRIBE_CONFIGS],
    DESCRIBE_CLUSTER: Api("DescribeCluster", "admin", 0, 2),
}
"""By Kafka's number of the request."""

_HOMES: Final = {
    f"{api.name}{suffix}": api.module
    for api in (*APIS.values(), *SERVED.values())
    for suffix in ("Request", "Response")
}
_DEFINITIONS: Final = f"{__package__}.schemas"
_ID: Final = struct.Struct(">i")
_SIZE: Final = struct.Struct(">i")
_KIND: Final = struct.Struct(">hhi")
_ERROR: Final = struct.Struct(">h")
_TEXT_SIZE: Final = struct.Struct(">h")
_UNREADABLE: Final = (ValueError, IndexError, TypeError, OverflowError, struct.error)


@dataclass(frozen=True, slots=True)
class RequestKind:
    """The first fields of a request, which are alike in all versions of all requests."""

    key: int
    version: int
    correlation_id: int

    @classmethod
    def read(cls, frame: bytes) -> RequestKind:
        """Read the first 8 bytes of a frame without its length."""
        try:
            return cls(*_KIND.unpack_from(frame))
        except struct.error as error:
            raise DamagedRequestError("a request is too short") from error


@dataclass(frozen=True, slots=True)
class ReceivedRequest:
    """A request of a client. `client_id` is the name that the client gives itself."""

    kind: RequestKind
    client_id: str | None
    message: Any


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return _message(name)


@cache
def _message(name: str) -> Any:
    home = _HOMES[name]
    if home is None:  # kafka-python builds the class from a definition in `schemas`
        return new_class(name, (_home("api_message").ApiMessage,), {"load_json": _DEFINITIONS})
    return getattr(_home(home), name)


def check_installed() -> None:
    """Import the message classes. Raise MissingDependencyError if kafka-python is missing or too old."""
    for home in sorted(filter(None, set(_HOMES.values()))):
        _home(home)


def _home(name: str) -> Any:
    try:
        return import_module(f"kafka.protocol.{name}")
    # Other packages have a module `kafka`, too. An old one has a syntax error.
    except (ImportError, SyntaxError) as error:
        raise MissingDependencyError(
            "this needs kafka-python 3.0.5 or newer, and no other package with a module named kafka; "
            "from the checkout: pip install '.[kafka]'"
        ) from error


def encode(request: Any, version: int, correlation_id: int, client_id: str) -> bytes:
    """Return the frame of a request, with its length and header."""
    if version != request.API_VERSION:  # on a decoded message, setting it fails
        request.API_VERSION = version
    request.with_header(correlation_id, client_id)
    return bytes(request.encode(header=True, framed=True))


def decode(request: Any, version: int, frame: bytes) -> Any:
    """Return the response in a frame without its length. Raise DamagedAnswerError unless it can be read to its end."""
    return decode_answer(request.API_KEY, version, frame)


def decode_answer(key: int, version: int, frame: bytes) -> Any:
    """Return the response to a request of this kind. Raise DamagedAnswerError unless it can be read to its end."""
    response = _message(f"{_name(key)}Response")
    try:
        start = _header_size(response, version, frame)
        if key == API_VERSIONS and _ERROR.unpack_from(frame, start) != (0,):
            version = 0  # a broker answers an unknown version so that every client can read it
        answer, end = _decoder(response, version)(memoryview(frame), start)
    except _UNREADABLE as error:
        raise DamagedAnswerError(f"an answer to {_of(key, version)} cannot be read") from error
    if end != len(frame):
        raise DamagedAnswerError(f"an answer to {_of(key, version)} has the wrong length")
    if _lacks_value(answer, _required(response, version)):
        raise DamagedAnswerError(f"an answer to {_of(key, version)} lacks a value")
    return answer


def decode_request(frame: bytes) -> ReceivedRequest:
    """Return the request in a frame without its length. Its kind and version must be in `SERVED`.

    Raise DamagedRequestError unless it can be read to its end.
    """
    kind = RequestKind.read(frame)
    request = _message(f"{_name(kind.key)}Request")
    of = _of(kind.key, kind.version)
    try:
        start = _KIND.size
        (length,) = _TEXT_SIZE.unpack_from(frame, start)
        start += _TEXT_SIZE.size
        client_id = None if length < 0 else frame[start : start + length].decode()
        start += max(length, 0)
        if request.flexible_version_q(kind.version):
            start = skip_tagged_fields(frame, start)
        message, end = _decoder(request, kind.version)(memoryview(frame), start)
    except _UNREADABLE as error:
        raise DamagedRequestError(f"{of} cannot be read") from error
    if end != len(frame):
        raise DamagedRequestError(f"{of} has the wrong length")
    return ReceivedRequest(kind, client_id, message)


def encode_answer(answer: Any, version: int, correlation_id: int) -> bytes:
    """Return the frame of an answer, with its length and header."""
    if version != answer.API_VERSION:
        answer.API_VERSION = version
    flexible = answer.flexible_version_q(version) and answer.API_KEY != API_VERSIONS
    body = bytes(answer.encode())
    header = _ID.pack(correlation_id) + bytes(flexible)
    return _SIZE.pack(len(header) + len(body)) + header + body


def skip_tagged_fields(frame: bytes, at: int) -> int:
    """Return where the optional fields of a header end."""
    count, at = unsigned_varint(frame, at)
    for _ in range(count):
        _tag, at = unsigned_varint(frame, at)
        size, at = unsigned_varint(frame, at)
        at += size
    return at


def unsigned_varint(frame: bytes, at: int) -> tuple[int, int]:
    """Return a number of up to five bytes, and where it ends."""
    number = 0
    for shift in range(0, 35, 7):
        byte = frame[at]
        at += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number, at
    raise ValueError("a number has more than five bytes")


def correlation_id(frame: bytes) -> int:
    """Return the number of the request that a frame answers."""
    (found,) = _ID.unpack_from(frame)
    return int(found)


@cache
def _decoder(response: Any, version: int) -> Any:
    """Unlike the public `decode`, this function also returns where the message ends."""
    flexible = response.flexible_version_q(version)
    return response._struct.compiled_decode_from(version, compact=flexible, tagged=flexible, data_class=response)


Required = tuple[tuple[str, bool, Any], ...]
"""Fields that can be null in bytes: the name, whether that is an error, and the same for the elements of an array."""


@cache
def _required(response: Any, version: int) -> Required:
    return _required_of(response._struct, version)


def _required_of(struct: Any, version: int) -> Required:
    found = []
    for field in struct.fields.values():
        if field.for_version_q(version) and (field.is_array() or field.type_str in ("string", "bytes")):
            inner = _required_of(field, version) if field.is_struct_array() else ()
            found.append((field.name, not field.nullable_for_version_q(version), inner))
    return tuple(found)


def _lacks_value(message: Any, required: Required) -> bool:
    """Return whether a value is null that must not be. The decoder of kafka-python accepts it."""
    for name, is_needed, inner in required:
        value = getattr(message, name)
        if value is None:
            if is_needed:
                return True
        elif inner and any(_lacks_value(each, inner) for each in value):
            return True
    return False


def _header_size(response: Any, version: int, frame: bytes) -> int:
    """Return the size of the header: the correlation id and, in newer versions, optional fields."""
    if response.API_KEY == API_VERSIONS or not response.flexible_version_q(version):
        return _ID.size
    if frame[_ID.size] != 0:
        raise ValueError("no release of Kafka sends optional fields in the header")
    return _ID.size + 1


def _name(key: int) -> str:
    return (APIS.get(key) or SERVED[key]).name


def _of(key: int, version: int) -> str:
    return f"{_name(key)} (version {version})"
