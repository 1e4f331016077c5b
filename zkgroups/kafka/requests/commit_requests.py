"""The requests that commit offsets without joining a group, and their answers, without any connection.

Thousands of groups have offsets of the same partitions. So a request is encoded once, and its group and its offsets are
replaced in the bytes for the next group. An answer that is equal to an earlier one without errors is not decoded.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import groupby
from operator import attrgetter
from typing import Any, Final

from ...core.kafka_values import NativeOffset, PlainOffsets
from ...core.znodes.topic_partition import TopicPartition
from ..wire import codec

_MARKER: Final = 0x5A6B_1F93_C2D4_E807
_OFFSET: Final = struct.Struct(">q")
_ID: Final = struct.Struct(">i")
_ID_AT: Final = 8
"""The position of the correlation id in a frame: after the size, the API key and the version."""
_FLEXIBLE: Final = 8
"""Since this version, lengths are varints."""
_NO_MEMBER: Final = -1
_PLAIN: Final = frozenset({(None, None)})

_at = attrgetter("at")
_offset = attrgetter("offset")
_extras = attrgetter("metadata", "leader_epoch")


class CommitRequest:
    """Offsets of one group that are sent together, sorted by partition."""

    __slots__ = ("_plain", "_rows", "group", "size")

    def __init__(self, group: str, offsets: Sequence[NativeOffset] | PlainOffsets) -> None:
        self.group = group
        self._plain = offsets if isinstance(offsets, PlainOffsets) else _plain(group, offsets)
        self._rows = None if isinstance(offsets, PlainOffsets) else offsets
        self.size = len(offsets.places) if isinstance(offsets, PlainOffsets) else len(offsets)

    @property
    def offsets(self) -> Sequence[NativeOffset]:
        """The offsets as objects. They are created on first use, because that takes longer than sending them."""
        if self._rows is None and self._plain is not None:
            self._rows = self._plain.rows()
        return self._rows or ()

    @property
    def plain(self) -> PlainOffsets | None:
        """The offsets as columns; None if any has metadata or a leader epoch."""
        return self._plain


class Template:
    """The frame of a request for one version and shape, in which the group and the offsets can be replaced."""

    def __init__(self, frame: bytes, group: bytes, shape: tuple[TopicPartition, ...]) -> None:
        head, _, body = frame.partition(group)
        self._head = head[_ID_AT + _ID.size : len(head)]
        self._start = head[_ID.size : _ID_AT]
        constants = body.split(_OFFSET.pack(_MARKER))
        self._body = struct.Struct(">" + "q".join(f"{len(each)}s" for each in constants))
        self._values: list[bytes | int] = [0] * (2 * len(constants) - 1)
        self._values[::2] = constants
        self.shape = shape
        self.done: Mapping[TopicPartition, None] = dict.fromkeys(shape)
        """The outcome if all offsets are committed. Copying it is faster than building it again."""
        self.usable = len(constants) == len(shape) + 1
        self.good: bytes | None = None
        """The bytes of an answer without errors, from after its correlation id."""

    def frame(self, correlation_id: int, group: bytes, offsets: Sequence[int]) -> bytes:
        """Return the frame for another group with other offsets."""
        values = self._values.copy()  # several threads may use a template
        values[1::2] = offsets
        body = self._body.pack(*values)
        size = len(self._start) + _ID.size + len(self._head) + len(group) + len(body)
        return b"".join((_ID.pack(size), self._start, _ID.pack(correlation_id), self._head, group, body))


def encode(request: CommitRequest, version: int, correlation_id: int, client_id: str) -> tuple[bytes, Template | None]:
    """Return the frame of a request, and the template that encoded it, if any."""
    plain = request.plain
    template = None if plain is None else _template(tuple(plain.places), version, client_id)
    if plain is None or template is None or not template.usable:
        return codec.encode(_message(request.group, request.offsets), version, correlation_id, client_id), None
    return template.frame(correlation_id, _text(request.group, version), plain.offsets), template


def read(version: int, answer: bytes, template: Template | None) -> Mapping[tuple[str, int], int] | None:
    """Return the error code of each partition; None if all were committed."""
    if template is not None and template.good == answer[_ID.size :]:
        return None
    decoded = codec.decode(codec.OffsetCommitRequest(), version, answer)
    codes = {
        (topic.name, each.partition_index): each.error_code for topic in decoded.topics for each in topic.partitions
    }
    asked = set() if template is None or any(codes.values()) else {(at.topic, at.partition) for at in template.shape}
    if template is not None and codes.keys() == asked:
        template.good = answer[_ID.size :]
    return codes


def _plain(group: str, offsets: Sequence[NativeOffset]) -> PlainOffsets | None:
    if not _PLAIN.issuperset(map(_extras, offsets)):
        return None
    return PlainOffsets(group, [*map(_at, offsets)], [*map(_offset, offsets)])


def _template(shape: tuple[TopicPartition, ...], version: int, client_id: str) -> Template:
    # Equal shapes mostly hold the same objects, so comparing them is faster than hashing them.
    kept = _kept(len(shape), shape[0], shape[-1], version, client_id)
    template = next(iter(kept), None)
    if template is None or template.shape != shape:
        group = "\0a group in a template\0"
        offsets = [NativeOffset(group, at, _MARKER) for at in shape]
        frame = codec.encode(_message(group, offsets), version, 0, client_id)
        template = Template(frame, _text(group, version), shape)
        kept[:] = [template]
    return template


@lru_cache(maxsize=256)
def _kept(_size: int, _first: TopicPartition, _last: TopicPartition, _version: int, _client_id: str) -> list[Template]:
    """Return a list that holds the last template for such shapes. It is empty until a template is stored."""
    return []


def _message(group: str, offsets: Sequence[NativeOffset]) -> Any:
    kind = codec.OffsetCommitRequest
    topics = [
        kind.OffsetCommitRequestTopic(name=name, partitions=[_partition(each) for each in those])
        for name, those in groupby(offsets, key=attrgetter("at.topic"))
    ]
    return kind(
        group_id=group,
        generation_id_or_member_epoch=_NO_MEMBER,
        member_id="",
        group_instance_id=None,
        retention_time_ms=-1,
        topics=topics,
    )


def _partition(each: NativeOffset) -> Any:
    return codec.OffsetCommitRequest.OffsetCommitRequestTopic.OffsetCommitRequestPartition(
        partition_index=each.at.partition,
        committed_offset=each.offset,
        committed_leader_epoch=-1 if each.leader_epoch is None else each.leader_epoch,
        committed_metadata=each.metadata or "",
    )


def _text(text: str, version: int) -> bytes:
    """Encode text with its length, in the form of this version."""
    data = text.encode()
    if version < _FLEXIBLE:
        return struct.pack(">h", len(data)) + data
    size, length = len(data) + 1, bytearray()
    while size > 0x7F:
        length.append(size & 0x7F | 0x80)
        size >>= 7
    length.append(size)
    return bytes(length) + data
