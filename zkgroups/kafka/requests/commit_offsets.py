"""Commit offsets for groups on the brokers, without joining the groups.

A request has up to a thousand offsets of one group. The outcome for each partition is None if the offset is committed,
or the error. If an answer is lost, the offset is read back, and sent again only if it is missing. If it cannot be read
back, the outcome is OutcomeUnknownError.
"""

from __future__ import annotations

import struct
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import groupby
from operator import attrgetter
from typing import Any, Final

from ...core.kafka_values import NativeOffset, PlainOffsets
from ...core.znodes.topic_partition import TopicPartition
from ...deadline import Deadline
from ...exceptions import GroupInUseError, NotConnectedError, OutcomeUnknownError
from ...input_errors import ZkgroupsException
from ..errors import error as error_of
from ..errors import is_temporary
from ..wire import codec
from ..wire.cluster import Cluster
from ..wire.connection import Code
from ..wire.errors import WireError
from .fetch_offsets import Before, fetch
from .group_requests import LOOK, Coordinators, send_all, tries
from .native_groups import in_use

# The requests that commit offsets without joining a group, and their answers, without any connection.
#
# Thousands of groups have offsets of the same partitions. So a request is encoded once, and its group and its offsets
# are replaced in the bytes for the next group. An answer that is equal to an earlier one without errors is not
# decoded.


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


Outcomes = dict[str, Mapping[TopicPartition, ZkgroupsException | None]]
_Outcomes = defaultdict[str, dict[TopicPartition, ZkgroupsException | None]]

_MOST_PER_REQUEST: Final = 1_000
_MOST_AT_A_TIME: Final = 100_000

_order = attrgetter("at.topic", "at.partition")
_place = attrgetter("topic", "partition")


async def commit(
    cluster: Cluster,
    coordinators: Coordinators,
    offsets: Iterable[NativeOffset | PlainOffsets],
    timeout: float,
    before: Before | None = None,
) -> Outcomes:
    """Commit these offsets, and return the outcome of each. Every 100,000 offsets have a timeout of their own.

    Without `before`, an offset may be sent again although another client has committed meanwhile.
    """
    outcomes: _Outcomes = defaultdict(dict)
    for requests in _chunks(_requests(offsets)):
        found = await _Commit(cluster, coordinators, requests, Deadline(timeout), before).run()
        for group, those in found.items():
            outcomes[group].update(those)
    refused = {
        group: [at for at, error in those.items() if isinstance(error, GroupInUseError)]
        for group, those in outcomes.items()
        if any(those.values())
    }
    live = [group for group, those in refused.items() if those]
    for group, error in (await in_use(cluster, coordinators, live, Deadline(timeout))).items():
        outcomes[group] |= dict.fromkeys(refused[group], error)
    return dict(outcomes)


def _requests(offsets: Iterable[NativeOffset | PlainOffsets]) -> Iterator[CommitRequest]:
    groups: defaultdict[str, list[NativeOffset]] = defaultdict(list)
    sorting = _Sorting()
    for each in offsets:
        if isinstance(each, NativeOffset):
            groups[each.group].append(each)
        else:
            yield from _parts(sorting.sorted(each))
    for group, those in groups.items():
        those.sort(key=_order)
        for first in range(0, len(those), _MOST_PER_REQUEST):
            yield CommitRequest(group, those[first : first + _MOST_PER_REQUEST])


def _parts(plain: PlainOffsets) -> Iterator[CommitRequest]:
    group, places, offsets = plain
    for first in range(0, len(places), _MOST_PER_REQUEST):
        last = first + _MOST_PER_REQUEST
        yield CommitRequest(group, PlainOffsets(group, places[first:last], offsets[first:last]))


class _Sorting:
    """Sorts the offsets of groups by partition. Most groups have the same partitions as the group before."""

    def __init__(self) -> None:
        self._places: Sequence[TopicPartition] = ()
        self._sorted: Sequence[TopicPartition] = ()
        self._order: list[int] = []

    def sorted(self, plain: PlainOffsets) -> PlainOffsets:
        """Return the offsets of a group, sorted by partition."""
        if plain.places != self._places:
            self._places = plain.places
            self._order = sorted(range(len(plain.places)), key=lambda index: _place(plain.places[index]))
            self._sorted = tuple(plain.places[index] for index in self._order)
        return PlainOffsets(plain.group, self._sorted, [plain.offsets[index] for index in self._order])


def _chunks(requests: Iterable[CommitRequest]) -> Iterator[list[CommitRequest]]:
    chunk: list[CommitRequest] = []
    size = 0
    for request in requests:
        if chunk and size + request.size > _MOST_AT_A_TIME:
            yield chunk
            chunk, size = [], 0
        chunk.append(request)
        size += request.size
    if chunk:
        yield chunk


class _Commit:
    """Some requests, and the outcome of each of their offsets."""

    def __init__(
        self,
        cluster: Cluster,
        coordinators: Coordinators,
        requests: Sequence[CommitRequest],
        deadline: Deadline,
        before: Before | None,
    ) -> None:
        self._cluster = cluster
        self._coordinators = coordinators
        self._left = list(requests)
        self._deadline = deadline
        self._before = before
        self._outcomes: _Outcomes = defaultdict(dict)
        self._next: list[CommitRequest] = []
        """Requests with offsets that have no outcome after this attempt."""
        self._sent: set[tuple[str, TopicPartition]] = set()
        """Offsets that were sent and have no answer."""
        self._unread: set[str] = set()
        """Groups with such offsets that could not be read back. Nothing is sent again until they are."""
        self._reason = Code.words(Code.COORDINATOR_NOT_AVAILABLE)

    async def run(self) -> _Outcomes:
        """Send the requests until all offsets have an outcome, or the deadline has passed."""
        async for timeout in tries(self._deadline, lambda: sum(map(len, self._outcomes.values()))):
            await self._send(timeout)
            await self._read_back(max(LOOK, timeout))
            if not self._left:
                break
        for request in self._left:
            self._outcomes[request.group].update({each.at: self._unanswered(each) for each in request.offsets})
        return self._outcomes

    async def _send(self, timeout: float) -> None:
        """Send the remaining requests once."""
        try:
            groups = list(dict.fromkeys(each.group for each in self._left if each.group not in self._unread))
            where = await self._coordinators.find(groups, timeout)
        except WireError as error:
            self._reason = str(error)
            return
        self._reason = where.reason
        self._next = []
        done: set[int] = set()

        async def send(node: int, request: CommitRequest) -> None:
            codes, template = await self._exchange(node, request, timeout)
            if codes is not None:
                self._answered(request, codes)
            elif template is not None:
                self._outcomes[request.group].update(template.done)
            done.add(id(request))

        batches: dict[int, list[CommitRequest]] = {}
        for request in self._left:
            if request.group in where.nodes:
                batches.setdefault(where.nodes[request.group], []).append(request)
            elif request.group in where.errors:
                self._finish(request.group, request.offsets, where.errors[request.group])
                done.add(id(request))
        for node, failure in (await send_all(batches, send)).items():
            self._failed([request for request in batches[node] if id(request) not in done], failure, done)
        self._left = self._next + [request for request in self._left if id(request) not in done]

    def _failed(
        self, requests: Sequence[CommitRequest], failure: WireError | ZkgroupsException, done: set[int]
    ) -> None:
        """Note why a broker did not answer these requests."""
        if isinstance(failure, WireError):
            self._reason = str(failure)
            self._coordinators.forget(request.group for request in requests)
            return
        for request in requests:
            if not any((each.group, each.at) in self._sent for each in request.offsets):
                self._finish(request.group, request.offsets, failure)
                done.add(id(request))

    async def _exchange(
        self, node: int, request: CommitRequest, timeout: float
    ) -> tuple[Mapping[tuple[str, int], int] | None, Template | None]:
        """Send a request. Return its error codes (None if there are none), and the template that encoded it."""
        used: list[Template | None] = []

        def build(version: int, correlation_id: int, client_id: str) -> bytes:
            frame, template = encode(request, version, correlation_id, client_id)
            used.append(template)
            return frame

        try:
            version, answer = await self._cluster.exchange(node, codec.OFFSET_COMMIT, build, timeout=timeout)
        except WireError as error:
            if error.sent:
                self._sent.update((each.group, each.at) for each in request.offsets)
            raise
        return read(version, answer, used[-1]), used[-1]

    def _answered(self, request: CommitRequest, codes: Mapping[tuple[str, int], int]) -> None:
        left = []
        for each in request.offsets:
            code = codes.get((each.at.topic, each.at.partition))
            if code is None or is_temporary(code):
                # An error does not prove that nothing was written: a broker may write and then lose its role.
                left.append(each)
                self._sent.add((each.group, each.at))
                self._reason = "no answer for this partition" if code is None else Code.words(code)
                if code is not None and code != Code.COORDINATOR_LOAD_IN_PROGRESS:
                    self._coordinators.forget([each.group])
            else:
                what = f"{each.at} of group {each.group!r}"
                error = None if code == Code.NONE else error_of(code, what, group=each.group, at=each.at)
                self._outcomes[each.group][each.at] = error
        if left:
            self._next.append(CommitRequest(request.group, left))

    def _finish(self, group: str, offsets: Iterable[NativeOffset], outcome: ZkgroupsException | None) -> None:
        self._outcomes[group].update(dict.fromkeys((each.at for each in offsets), outcome))

    async def _read_back(self, timeout: float) -> None:
        """Find out which offsets without an answer were committed."""
        unsure = {
            each.group for request in self._left for each in request.offsets if (each.group, each.at) in self._sent
        }
        if not unsure:
            return
        found = await fetch(self._cluster, self._coordinators, sorted(unsure), Deadline(timeout))
        self._unread = {group for group, there in found.items() if isinstance(there, ZkgroupsException)}
        left = []
        for request in self._left:
            there = found.get(request.group, {})
            rest = list(request.offsets)
            if not isinstance(there, ZkgroupsException):
                rest = [each for each in rest if not self._resolved(each, there.get(each.at))]
            if rest:
                left.append(CommitRequest(request.group, rest))
        self._left = left

    def _resolved(self, each: NativeOffset, now: NativeOffset | None) -> bool:
        """Note the outcome of an offset without an answer, unless it must be sent again."""
        if (each.group, each.at) not in self._sent:
            return False
        if now == each:
            self._finish(each.group, [each], None)
            return True
        if self._before is None or now == self._before.get(each.group, {}).get(each.at):
            return False
        there = "the group has none now" if now is None else f"the group has {now.offset} now"
        error = OutcomeUnknownError(
            f"{_shown(each)} may or may not have been committed: {there}, so another client commits, too: stop it"
        )
        self._finish(each.group, [each], error)
        return True

    def _unanswered(self, each: NativeOffset) -> ZkgroupsException:
        what = _shown(each)
        text = f"within {self._deadline.seconds:g} s: {self._reason}"
        if (each.group, each.at) in self._sent:
            return OutcomeUnknownError(f"{what} may or may not have been committed {text}")
        return NotConnectedError(f"no broker accepted {what} {text}")


def _shown(each: NativeOffset) -> str:
    return f"offset {each.offset} for {each.at} of group {each.group!r}"
