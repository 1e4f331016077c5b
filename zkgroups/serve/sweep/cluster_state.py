"""All that the server remembers of a cluster between two sweeps, and how a sweep changes it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from ...core.health.commit_record import Commit, observe
from ...core.kafka_values import OffsetRange
from ...core.offsets.lag import GroupLag, LogRanges, group_lag, partitions_of_group
from ...core.times import to_ms
from ...core.znodes.describe_group import describe
from ...core.znodes.group_description import GroupDescription, PartitionDescription
from ...core.znodes.group_view import GroupView
from ...core.znodes.topic_partition import TopicPartition
from ..picture.build_group import Rules, build_group
from ..picture.findings import Findings
from ..picture.group_history import GroupHistory
from ..picture.log_ends import LogEnds
from ..picture.values import GroupPicture, TopicPicture

CHECK_EVERY_MS: Final = 60_000
"""How often the doctor's checks run on all groups. They take a third of the time of a sweep."""


CONFIRMED_AFTER: Final = 2
"""The number of checks after which all findings are shown: the first sweeps check, too."""


class ReadGroup(NamedTuple):
    """A group as it was read, and its description."""

    view: GroupView
    description: GroupDescription

    @classmethod
    def of(cls, view: GroupView) -> ReadGroup:
        """Describe a group."""
        return cls(view, describe(view))


class ClusterState:
    """The groups, their past, and the logs."""

    def __init__(self, rules: Rules) -> None:
        self.ends = LogEnds()
        self.groups: dict[str, GroupPicture] = {}
        self.topics: dict[str, TopicPicture] = {}
        self.past: dict[str, GroupHistory] = {}
        self._rules = rules
        self._findings = Findings(stale_ms=rules.limits.stale_ms)
        self._checked_ms = 0
        self._sweeps = 0

    def add_past(self, group: str, at: TopicPartition, commit: Commit, seen_ms: int) -> None:
        """Add a commit that was seen before the server started."""
        records = self.past.setdefault(group, GroupHistory()).records
        window_ms = self._rules.limits.window_ms
        records[at] = observe(records.get(at), commit, None, now_ms=seen_ms, window_ms=window_ms)

    def replace_all(self, found: Sequence[ReadGroup], topics: Collection[str] | None, now_ms: int) -> None:
        """Replace all groups after a complete sweep."""
        now_ms = _not_before_commits(found, now_ms)
        checks = self._sweeps < CONFIRMED_AFTER or now_ms - self._checked_ms >= CHECK_EVERY_MS
        self._sweeps += 1
        if checks:
            self._checked_ms = now_ms
        names = {each.view.group for each in found}
        self.past = {name: past for name, past in self.past.items() if name in names}
        self._findings.keep_only(names)
        self.groups = {
            each.view.group: self._built(each, topics, now_ms, checks=checks, is_complete=True)
            for each in found
            if each.view.exists
        }
        self.topics = self._topics(now_ms)

    def replace_some(self, found: Sequence[ReadGroup], now_ms: int) -> None:
        """Replace the groups that have changed. A group that does not exist any more is removed."""
        now_ms = _not_before_commits(found, now_ms)
        groups = dict(self.groups)
        for each in found:
            if each.view.exists:
                groups[each.view.group] = self._built(each, None, now_ms, checks=False, is_complete=False)
            else:
                groups.pop(each.view.group, None)
        self.groups = dict(sorted(groups.items()))

    def _built(
        self, each: ReadGroup, topics: Collection[str] | None, now_ms: int, *, checks: bool, is_complete: bool
    ) -> GroupPicture:
        group = each.description
        lag = self._lag(group)
        past = self.past.setdefault(group.group, GroupHistory())
        last = self._findings.last
        findings = self._findings.check(each.view, lag, topics, now_ms) if checks else last(group.group)
        return build_group(
            group, lag, past, self.ends, self._rules, now_ms=now_ms, findings=findings, is_complete_sweep=is_complete
        )

    def _lag(self, group: GroupDescription) -> GroupLag:
        partitions = partitions_of_group(group, self.ends.partitions)
        return group_lag(group, partitions, self._logs(partitions))

    def _logs(self, partitions: Sequence[PartitionDescription]) -> LogRanges:
        return {
            each.at: self.ends.log(each.at, None if each.offset is None else each.offset.offset) for each in partitions
        }

    def _topics(self, now_ms: int) -> dict[str, TopicPicture]:
        """Return the topics of all groups, sorted by name."""
        readers: dict[str, dict[str, None]] = {}
        for name, group in self.groups.items():
            for topic in dict.fromkeys(each.at.topic for each in group.partitions):
                readers.setdefault(topic, {})[name] = None
        logs: dict[str, dict[int, OffsetRange]] = {topic: {} for topic in readers}
        for at, found in self.ends.ranges.items():
            if at.topic in logs:
                logs[at.topic][at.partition] = found
        return {topic: self._topic(topic, logs[topic], tuple(readers[topic]), now_ms) for topic in sorted(readers)}

    def _topic(
        self, topic: str, logs: Mapping[int, OffsetRange], readers: tuple[str, ...], now_ms: int
    ) -> TopicPicture:
        window_ms = self._rules.limits.window_ms
        histories = (self.ends.history(TopicPartition(topic, number)) for number in logs)
        rates = (each.produced_per_second(now_ms, window_ms=window_ms) for each in histories if each is not None)
        known = [rate for rate in rates if rate is not None]
        return TopicPicture(dict(sorted(logs.items())), sum(known) if known else None, readers)


def _not_before_commits(found: Iterable[ReadGroup], now_ms: int) -> int:
    """Return the time of this machine, or of the last commit if the clock of this machine is behind that."""
    times = (to_ms(offset.committed_at) for each in found for offset in each.view.offsets)
    return max(now_ms, max(times, default=0))
