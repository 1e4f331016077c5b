"""Offsets in the logs of partitions: the log start, the log end, and the first offset at or after a time.

The leader of each partition is asked. If there is no answer, the request is repeated with fresh metadata until the
deadline. It is not repeated for a partition that is unknown or has no leader.

Where two questions are needed, the second has the whole time again, and only for partitions with an answer to the
first. One leader without an answer must not take the time for the others.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from typing import Any, Final

from ...core.kafka_values import OffsetRange
from ...core.offsets.lag import MessageTimeSearch
from ...core.znodes.topic_partition import TopicPartition
from ...deadline import Deadline
from ...exceptions import BrokersTooOldError, NotConnectedError
from ..errors import error as error_of
from ..errors import is_temporary_of_leader
from ..wire import codec
from ..wire.cluster import Cluster
from ..wire.connection import Code
from ..wire.errors import WireError
from .group_requests import metadata, parts, send_all, timed_out, tries

_START: Final = -2
_END: Final = -1
_FIRST_TIME: Final = 0
_NO_MESSAGE: Final = -1
"""The answer if no message has this time or a later one."""
_TIMES: Final = 1
"""From this version of ListOffsets on, a time selects a message. Before, it selected a file of the log."""
_AT_A_TIME: Final = 10_000

Offsets = dict[TopicPartition, int | None]


async def log_ranges(
    cluster: Cluster, partitions: Iterable[TopicPartition], deadline: Deadline
) -> dict[TopicPartition, OffsetRange | None]:
    """Return the log start and end of each partition; None if it or its leader is unknown."""
    wanted = list(dict.fromkeys(partitions))
    # The starts come first, so that a start that moves up meanwhile is not past the end.
    starts = await _offsets(cluster, dict.fromkeys(wanted, _START), deadline)
    ends = await _offsets(cluster, dict.fromkeys(_answered(starts), _END), Deadline(deadline.seconds))
    return {at: _range(starts[at], ends.get(at)) for at in wanted}


async def offsets_at(cluster: Cluster, times: Mapping[TopicPartition, int], deadline: Deadline) -> Offsets:
    """Return the first offset at or after a time in milliseconds, 0 or more; the log end if there is none.

    The answer is None if the partition or its leader is unknown. Raise BrokersTooOldError if the brokers store no
    message times, as before 0.10.1.
    """
    # The ends come first, so that a message written between the two answers is not skipped.
    ends = await _offsets(cluster, dict.fromkeys(times, _END), deadline)
    deadline = Deadline(deadline.seconds)
    found = await _offsets(cluster, {at: times[at] for at in _answered(ends)}, deadline)
    if all(offset in (None, _NO_MESSAGE) for offset in found.values()):
        await _check_times(cluster, _answered(found), deadline)
    return {at: end if found.get(at) == _NO_MESSAGE else found.get(at) for at, end in ends.items()}


async def message_times(
    cluster: Cluster, offsets: Mapping[TopicPartition, int], now_ms: int, deadline: Deadline
) -> dict[TopicPartition, int | None]:
    """Return the time of the message at each offset. See `MessageTimeSearch` for how exact it is.

    The answer is None if the partition or its leader is unknown, or its messages have no times.
    """
    searches = {at: MessageTimeSearch(offset, now_ms) for at, offset in offsets.items()}
    while left := {at: search for at, search in searches.items() if not search.ended}:
        question = _Question(cluster, {at: search.question for at, search in left.items()}, deadline)
        for at, offset in (await question.run()).items():
            if offset is None:
                del searches[at]
            else:
                left[at].receive(None if offset == _NO_MESSAGE else offset, question.message_times.get(at, 0))
    return {at: searches[at].found if at in searches else None for at in offsets}


async def _check_times(cluster: Cluster, partitions: Sequence[TopicPartition], deadline: Deadline) -> None:
    """Raise an error if the brokers have no message times, although some of these logs have messages."""
    firsts = await _offsets(cluster, dict.fromkeys(partitions, _FIRST_TIME), deadline)
    if any(offset != _NO_MESSAGE for offset in firsts.values()):
        return
    ranges = await log_ranges(cluster, partitions, deadline)
    if any(found is not None and found.start < found.end for found in ranges.values()):
        raise BrokersTooOldError(
            f"the brokers at {cluster.bootstrap} store no message times (new in release 0.10.1): choose the offsets "
            "in another way"
        )


async def _offsets(cluster: Cluster, times: Mapping[TopicPartition, int], deadline: Deadline) -> Offsets:
    return await _Question(cluster, times, deadline).run() if times else {}


class _Question:
    """A time for each partition, and the offsets found so far."""

    def __init__(self, cluster: Cluster, times: Mapping[TopicPartition, int], deadline: Deadline) -> None:
        self._cluster = cluster
        self._times = times
        self._deadline = deadline
        self._found: Offsets = dict.fromkeys(times)
        self._left: Sequence[TopicPartition] = list(times)
        self.message_times: dict[TopicPartition, int] = {}
        """The times of the found messages, in milliseconds. Brokers that store none report -1."""
        self._reason: tuple[TopicPartition, str] | None = None
        """Why a partition has no answer."""
        self._asked = False

    async def run(self) -> Offsets:
        """Ask until all partitions with a leader have an answer, or the deadline has passed."""
        async for timeout in tries(self._deadline):
            try:
                await self._attempt(timeout)
            except NotConnectedError:
                if not self._asked:
                    raise
                break  # The last attempt may have too little time for its metadata.
            if not self._left:
                return self._found
        if self._reason is not None and all(offset is None for offset in self._found.values()):
            at, reason = self._reason
            raise NotConnectedError(f"no leader of {at} answered within {self._deadline.seconds:g} s: {reason}")
        return self._found

    async def _attempt(self, timeout: float) -> None:
        """Ask the present leaders once."""
        by_leader = await self._by_leader()
        self._asked = True

        async def send(node: int, those: Sequence[TopicPartition]) -> None:
            await self._ask(node, those, timeout)

        batches = {node: parts(those, _AT_A_TIME) for node, those in by_leader.items()}
        for node, failure in (await send_all(batches, send)).items():
            if not isinstance(failure, WireError):
                raise failure
            if self._reason is None or not timed_out(failure):
                self._reason = by_leader[node][0], str(failure)
        self._left = [at for those in by_leader.values() for at in those if self._found[at] is None]

    async def _by_leader(self) -> dict[int, list[TopicPartition]]:
        topics = (await metadata(self._cluster, {at.topic for at in self._left}, self._deadline)).topics
        found: dict[int, list[TopicPartition]] = {}
        for at in self._left:
            leader = topics[at.topic].leaders.get(at.partition, -1) if at.topic in topics else -1
            if leader >= 0:
                found.setdefault(leader, []).append(at)
        return found

    async def _ask(self, node: int, those: Sequence[TopicPartition], timeout: float) -> None:
        def build(version: int, correlation_id: int, client_id: str) -> bytes:
            asked = those if version >= _TIMES else [at for at in those if self._times[at] < 0]
            return codec.encode(_request(asked, self._times), version, correlation_id, client_id)

        version, answer = await self._cluster.exchange(node, codec.LIST_OFFSETS, build, timeout=timeout)
        if version < _TIMES:
            self._found |= {at: _NO_MESSAGE for at in those if self._times[at] >= 0}
        asked = {(at.topic, at.partition): at for at in those}
        for topic in codec.decode(codec.ListOffsetsRequest(), version, answer).topics:
            for each in topic.partitions:
                if (at := asked.get((topic.name, each.partition_index))) is not None:
                    self._answered(at, each)

    def _answered(self, at: TopicPartition, each: Any) -> None:
        if each.error_code == Code.NONE:
            self._found[at] = each.old_style_offsets[0] if each.old_style_offsets else each.offset
            self.message_times[at] = each.timestamp
        elif is_temporary_of_leader(each.error_code):
            self._reason = at, Code.words(each.error_code)
        else:
            raise error_of(each.error_code, f"partition {at}")


def _request(partitions: Iterable[TopicPartition], times: Mapping[TopicPartition, int]) -> Any:
    kind = codec.ListOffsetsRequest.ListOffsetsTopic
    topics = [
        kind(
            name=name,
            partitions=[kind.ListOffsetsPartition(partition_index=at.partition, timestamp=times[at]) for at in those],
        )
        for name, those in groupby(sorted(partitions), key=lambda at: at.topic)
    ]
    return codec.ListOffsetsRequest(topics=topics)


def _answered(found: Offsets) -> list[TopicPartition]:
    return [at for at, offset in found.items() if offset is not None]


def _range(start: int | None, end: int | None) -> OffsetRange | None:
    return None if start is None or end is None else OffsetRange(start, end)
