"""Errors of brokers, and values that are refused before anything is sent to one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, cast

from ..core.kafka_values import NativeOffset, PlainOffsets
from ..core.znodes.topic_partition import TopicPartition, check_at
from ..exceptions import (
    BrokersTooOldError,
    GroupInUseError,
    GroupNotFoundError,
    NoPermissionError,
    NotConnectedError,
    TooLargeError,
    UnknownPartitionError,
)
from ..input_errors import InvalidInputError, InvalidNameError, InvalidOptionError, ZkgroupsException
from .wire.connection import Code

# Errors in the answers of brokers: which of them are temporary, and the errors that users see.


# The group has active members. To brokers, a request from outside the group then comes from an unknown member.
_IN_USE: Final = frozenset(
    {
        Code.FENCED_INSTANCE_ID,
        Code.FENCED_MEMBER_EPOCH,
        Code.GROUP_SUBSCRIBED_TO_TOPIC,
        Code.ILLEGAL_GENERATION,
        Code.NON_EMPTY_GROUP,
        Code.REBALANCE_IN_PROGRESS,
        Code.STALE_MEMBER_EPOCH,
        Code.UNKNOWN_MEMBER_ID,
    }
)
_TOO_LARGE: Final = frozenset({Code.INVALID_COMMIT_OFFSET_SIZE, Code.OFFSET_METADATA_TOO_LARGE})
_NOT_ALLOWED: Final = frozenset(
    {Code.TOPIC_AUTHORIZATION_FAILED, Code.GROUP_AUTHORIZATION_FAILED, Code.CLUSTER_AUTHORIZATION_FAILED}
)
_COORDINATOR: Final = frozenset(
    {Code.COORDINATOR_LOAD_IN_PROGRESS, Code.COORDINATOR_NOT_AVAILABLE, Code.NOT_COORDINATOR}
)
_LEADER: Final = frozenset(
    {
        Code.BROKER_NOT_AVAILABLE,
        Code.FENCED_LEADER_EPOCH,
        Code.KAFKA_STORAGE_ERROR,
        Code.LEADER_NOT_AVAILABLE,
        Code.NOT_LEADER_OR_FOLLOWER,
        Code.OFFSET_NOT_AVAILABLE,
        Code.REPLICA_NOT_AVAILABLE,
        Code.UNKNOWN_LEADER_EPOCH,
        Code.UNKNOWN_TOPIC_ID,
        Code.UNKNOWN_TOPIC_OR_PARTITION,
    }
)
_ANYWHERE: Final = frozenset({Code.NETWORK_EXCEPTION, Code.REQUEST_TIMED_OUT, Code.THROTTLING_QUOTA_EXCEEDED})


_LOG_IN: Final = "log in as a user whom the ACLs of the brokers allow, with --command-config (in Python `properties`)"


def is_temporary(code: int) -> bool:
    """Return whether a request about a group may succeed if it is sent again."""
    return code in _COORDINATOR or code in _ANYWHERE


def is_temporary_of_leader(code: int) -> bool:
    """Return whether a request about a partition may succeed if it is sent again."""
    return code in _LEADER or code in _ANYWHERE


def error(code: int, what: str, *, group: str | None = None, at: TopicPartition | None = None) -> ZkgroupsException:
    """Return the error for a code in an answer. The message names `what` the request was about."""
    if group is not None and code in _IN_USE:
        return GroupInUseError(group, ())
    if group is not None and code == Code.GROUP_ID_NOT_FOUND:
        return GroupNotFoundError(group)
    if at is not None and code == Code.UNKNOWN_TOPIC_OR_PARTITION:
        return UnknownPartitionError(at)
    if code in _TOO_LARGE:
        return TooLargeError(f"the broker refused a request about {what}: {Code.words(code)}")
    if code in _NOT_ALLOWED:
        return NoPermissionError(what, cure=_LOG_IN)
    if code in (Code.UNSUPPORTED_VERSION, Code.UNSUPPORTED_FOR_MESSAGE_FORMAT):
        return BrokersTooOldError(f"the broker is too old for a request about {what}: {Code.words(code)}")
    if is_temporary(code) or is_temporary_of_leader(code):
        return NotConnectedError(f"the brokers could not answer a request about {what} in time: {Code.words(code)}")
    return ZkgroupsException(f"the broker refused a request about {what}: {Code.words(code)}")


# Values that can be sent to brokers. All others are refused before any request.


Offsets = Mapping[str, Mapping[TopicPartition, NativeOffset | int]]

# The protocol stores the length of text in 16 bits.
_MAX_TEXT_BYTES: Final = 32_767
_MAX_OFFSET: Final = 2**63 - 1
_MAX_EPOCH: Final = 2**31 - 1
_LAST_TIME: Final = 2**63 - 1


def check_native_group(name: object) -> str:
    """Return the name of a group on the brokers, or raise InvalidNameError. Nearly any text is valid."""
    if not isinstance(name, str):
        raise InvalidNameError("group", name, "must be text")
    if not name:
        raise InvalidNameError("group", name, "has no characters")
    # Clients in C cut the name at a NUL, and use another group.
    if "\0" in name or not _is_text(name):
        raise InvalidNameError("group", name, "contains characters that cannot be sent")
    if len(name.encode()) > _MAX_TEXT_BYTES:
        raise InvalidNameError("group", name, "is too long to be sent")
    return name


def check_native_groups(names: Iterable[str]) -> list[str]:
    """Return each of these names once, or raise InvalidNameError."""
    return [check_native_group(name) for name in dict.fromkeys(names)]


def check_partitions(partitions: Iterable[TopicPartition]) -> list[TopicPartition]:
    """Return each of these partitions once, or raise an error for a value that is not a partition."""
    return [check_at(at) for at in dict.fromkeys(partitions)]


def check_offsets(offsets: Offsets) -> list[NativeOffset | PlainOffsets]:
    """Return the offsets to commit, or raise an error for values that cannot be sent."""
    found: list[NativeOffset | PlainOffsets] = []
    for group, those in offsets.items():
        check_native_group(group)
        if _are_plain(those):
            found.append(PlainOffsets(group, tuple(those), cast("tuple[int, ...]", tuple(those.values()))))
        else:
            found += [_offset(group, check_at(at), offset) for at, offset in those.items()]
    return found


def check_time(ms: object) -> int:
    """Return a time in milliseconds. Times before 1970 have another meaning in the protocol, so they become 0."""
    if isinstance(ms, bool) or not isinstance(ms, int) or ms > _LAST_TIME:
        raise InvalidOptionError("time", ms, "it must be milliseconds since 1970, as a whole number")
    return max(0, ms)


def _are_plain(offsets: Mapping[TopicPartition, NativeOffset | int]) -> bool:
    """Return True for valid offsets that are all plain numbers. This is faster than checking each by itself."""
    if {*map(type, offsets.values())} != {int} or {*map(type, offsets)} != {TopicPartition}:
        return False
    numbers = cast("Iterable[int]", offsets.values())
    return min(numbers) >= 0 and max(numbers) <= _MAX_OFFSET


def _offset(group: str, at: TopicPartition, offset: NativeOffset | int) -> NativeOffset:
    if not isinstance(offset, NativeOffset):
        offset = NativeOffset(group, at, offset)
    if (offset.group, offset.at) != (group, at):
        raise InvalidInputError(
            f"the offset given for {at} of group {group!r} is for {offset.at} of group {offset.group!r}"
        )
    _check_number("offset", offset.offset, _MAX_OFFSET)
    if offset.leader_epoch is not None:
        _check_number("leader_epoch", offset.leader_epoch, _MAX_EPOCH)
    if offset.metadata is not None:
        _check_metadata(offset.metadata)
    # Brokers return empty metadata as no metadata, so the offset would not compare equal when read back.
    return offset._replace(metadata=None) if offset.metadata == "" else offset


def _check_number(option: str, number: object, most: int) -> None:
    if isinstance(number, bool) or not isinstance(number, int) or not 0 <= number <= most:
        raise InvalidOptionError(option, number, f"it must be a whole number from 0 to {most}")


def _check_metadata(text: object) -> None:
    if not isinstance(text, str) or not _is_text(text):
        raise InvalidOptionError("metadata", text, "it must be text")
    if len(text.encode()) > _MAX_TEXT_BYTES:
        raise InvalidOptionError("metadata", text, f"it must not be longer than {_MAX_TEXT_BYTES} bytes")


def _is_text(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:  # half of a pair of surrogates
        return False
    return True
