"""Kafka's messages to bytes and back: the only module that imports kafka-python.

Its message classes are attributes of this module: `codec.MetadataRequest(topics=None)`. They are imported by the first
use, because the import takes a fifth of a second.

Only the message classes are used. Other parts of kafka-python write whole messages, and so passwords, to the debug log.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from types import new_class
from typing import Any, Final

from ...exceptions import MissingDependencyError
from .errors import DamagedAnswerError


@dataclass(frozen=True, slots=True)
class Api:
    """One kind of request: the home of its classes in kafka-python, and the range of versions that we use."""

    name: str
    module: str | None
    first: int
    last: int


LIST_OFFSETS: Final = 2
METADATA: Final = 3
OFFSET_COMMIT: Final = 8
OFFSET_FETCH: Final = 9
FIND_COORDINATOR: Final = 10
DESCRIBE_GROUPS: Final = 15
LIST_GROUPS: Final = 16
DESCRIBE_CONFIGS: Final = 32
DELETE_GROUPS: Final = 42
OFFSET_DELETE: Final = 47
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
"""By Kafka's number of the request."""

_HOMES: Final = {f"{api.name}{suffix}": api.module for api in APIS.values() for suffix in ("Request", "Response")}
_DEFINITIONS: Final = f"{__package__}.schemas"
_ID: Final = struct.Struct(">i")


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return _message(name)


@cache
def _message(name: str) -> Any:
    home = _HOMES[name]
    if home is None:  # kafka-python makes the class of our own definition
        return new_class(name, (_home("api_message").ApiMessage,), {"load_json": _DEFINITIONS})
    return getattr(_home(home), name)


def check_installed() -> None:
    """Raise MissingDependencyError unless kafka-python is there. Its message classes are imported."""
    for home in sorted(filter(None, set(_HOMES.values()))):
        _home(home)


def _home(name: str) -> Any:
    try:
        return import_module(f"kafka.protocol.{name}")
    # Other packages are named `kafka`, too: an old one has the syntax of an old Python.
    except (ImportError, SyntaxError) as error:
        raise MissingDependencyError(
            "this needs kafka-python 3.0.5 or newer, and no other package with a module named kafka: "
            "pip install 'zkgroups[kafka]'"
        ) from error


def encode(request: Any, version: int, correlation_id: int, client_id: str) -> bytes:
    """Return the frame of a request, with its length and header."""
    request.API_VERSION = version
    request.with_header(correlation_id, client_id)
    return bytes(request.encode(header=True, framed=True))


def decode(request: Any, version: int, frame: bytes) -> Any:
    """Return the response in a frame without its length. Raise DamagedAnswerError unless it can be read to its end."""
    response = _message(f"{APIS[request.API_KEY].name}Response")
    try:
        answer, end = _decoder(response, version)(memoryview(frame), _header_size(response, version, frame))
    except (ValueError, IndexError, TypeError, OverflowError, struct.error) as error:
        raise DamagedAnswerError(f"an answer to {_of(request, version)} cannot be read") from error
    if end != len(frame):
        raise DamagedAnswerError(f"an answer to {_of(request, version)} has the wrong length")
    return answer


def correlation_id(frame: bytes) -> int:
    """Return the number of the request that a frame answers."""
    (found,) = _ID.unpack_from(frame)
    return int(found)


@cache
def _decoder(response: Any, version: int) -> Any:
    """Unlike the public `decode`, this function also returns where the message ends."""
    flexible = response.flexible_version_q(version)
    return response._struct.compiled_decode_from(version, compact=flexible, tagged=flexible, data_class=response)


def _header_size(response: Any, version: int, frame: bytes) -> int:
    """Return the size of the header: the correlation id and, in newer versions, optional fields."""
    if response.API_KEY == API_VERSIONS or not response.flexible_version_q(version):
        return _ID.size
    if frame[_ID.size] != 0:
        raise ValueError("no release of Kafka sends optional fields in the header")
    return _ID.size + 1


def _of(request: Any, version: int) -> str:
    return f"{APIS[request.API_KEY].name} (version {version})"
