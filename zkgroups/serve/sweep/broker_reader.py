"""Ask the brokers in bulk: log starts and log ends, and the times of old unread messages.

If the brokers do not answer, the last known logs stay, and are marked as old. Only complete sweeps ask them again, so
that changes of members and owners are not delayed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from ...core.offsets.lag import partitions_of_group, subscribes_by_pattern
from ...core.znodes.group_description import GroupDescription
from ...core.znodes.topic_partition import TopicPartition
from ...exceptions import ZkgroupsException
from ...kafka import Brokers
from ..picture.log_ends import LogEnds
from ..picture.values import SourceState

log = logging.getLogger("zkgroups.serve")

TIMES_AT_ONCE: Final = 2000
"""How many messages to search by time in one sweep. It takes about ten requests to each broker."""


class BrokerReader:
    """Reads the logs of the partitions of groups into a `LogEnds`."""

    def __init__(self, brokers: Brokers, ends: LogEnds) -> None:
        self._brokers = brokers
        self._ends = ends
        self.state = SourceState()

    def read(self, groups: Sequence[GroupDescription], *, is_complete: bool, clock: Callable[[], int]) -> None:
        """Read the logs of all partitions of these groups, which were read before."""
        self._ends.is_fresh = False
        if self.state.problem and not is_complete:
            return
        try:
            self._read(groups, is_complete=is_complete, clock=clock)
        except ZkgroupsException as error:
            if not self.state.problem:
                log.warning("the brokers do not answer: %s", error)
            self.state = SourceState(self.state.read_ms, str(error), self.state.since_ms or clock())
        else:
            if self.state.problem:
                log.warning("the brokers answer again")
            self.state = SourceState(clock())

    def _read(self, groups: Sequence[GroupDescription], *, is_complete: bool, clock: Callable[[], int]) -> None:
        named = {topic for group in groups for topic in group.subscribed}
        known = self._brokers.partitions(None if subscribes_by_pattern(groups) else named)
        self._ends.partitions = known if is_complete else {**self._ends.partitions, **known}
        wanted = {each.at for group in groups for each in partitions_of_group(group, known)}
        self._ends.update(self._brokers.ranges(wanted), clock())
        if is_complete:
            self._ends.keep_only(wanted)
            self._read_times(_unread(groups, self._ends), clock())

    def _read_times(self, unread: Iterable[tuple[TopicPartition, int]], now_ms: int) -> None:
        """Ask for the times of unread messages that are older than this server. Old brokers do not know them."""
        wanted = self._ends.to_ask(unread, TIMES_AT_ONCE)
        try:
            found = self._brokers.message_times(wanted, now_ms=now_ms) if wanted else {}
        except ZkgroupsException as error:
            log.info("the times of unread messages are unknown: %s", error)
            self._ends.forget_asked(wanted)
            return
        for at, ms in found.items():
            self._ends.add_message(at, ms, wanted[at])


def _unread(groups: Iterable[GroupDescription], ends: LogEnds) -> Iterable[tuple[TopicPartition, int]]:
    """Yield the first unread message of each partition that has one."""
    for group in groups:
        for each in group.partitions:
            found = ends.ranges.get(each.at)
            if each.offset is not None and found is not None and each.offset.offset < found.end:
                yield each.at, max(each.offset.offset, found.start)
