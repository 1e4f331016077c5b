"""Values that can be sent to brokers. All others are refused before any request."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, cast

from ..core.kafka_values import NativeOffset, PlainOffsets
from ..core.znodes.topic_partition import TopicPartition, check_at
from ..input_errors import InvalidInputError, InvalidNameError, InvalidOptionError

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
