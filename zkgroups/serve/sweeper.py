"""The thread that sweeps: it reads everything every few seconds, and in between the groups that have changed.

Nothing it reads is changed, and no error ends it. While ZooKeeper does not answer, the last picture stays, and only its
age and the reason change.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Final, NamedTuple, Self

from ..core.commit_record import Commit, observe
from ..core.kafka_values import OffsetRange
from ..core.offsets.lag import GroupLag, LogRanges, group_lag, partitions_of_group, subscribes_by_pattern
from ..core.znodes.group_description import GroupDescription, GroupView, PartitionDescription, describe
from ..core.znodes.topic_partition import TopicPartition
from ..deadline import Deadline, uptime
from ..exceptions import AccessError, MissingDependencyError, NotConnectedError, UnavailableError, ZkgroupsException
from ..kafka import Brokers
from ..rare_collections import rare_collections
from ..zookeeper.reading import group_reader
from ..zookeeper.registry import Registry
from ..zookeeper.session.session import RegistryContext, context_of
from ..zookeeper.watch import GroupChanges
from .picture.build_group import Findings, Rules, build_group
from .picture.past import GroupHistory, LogEnds
from .picture.values import GroupPicture, Picture, SourceState, SweepStats, TopicPicture
from .settings import SweepSettings

# The last picture, for any number of readers in any thread.


Listener = Callable[[], object]


class Publisher:
    """Holds the last picture, and calls listeners after each new one."""

    def __init__(self, first: Picture) -> None:
        self._picture = first
        self._lock = threading.Lock()
        self._listeners: list[Listener] = []

    @property
    def picture(self) -> Picture:
        """The last picture."""
        return self._picture

    def publish(self, picture: Picture) -> None:
        """Replace the picture. Listeners are called in this thread, and must return at once."""
        self._picture = picture
        with self._lock:
            listeners = list(self._listeners)
        for listener in listeners:
            listener()

    def add(self, listener: Listener) -> None:
        """Call the listener after each new picture."""
        with self._lock:
            self._listeners.append(listener)

    def remove(self, listener: Listener) -> None:
        """Do not call the listener any more."""
        with self._lock:
            self._listeners.remove(listener)


# Ask the brokers in bulk: log starts and log ends, and the times of old unread messages.
#
# If the brokers do not answer, the last known logs stay, and are marked as old. Only complete sweeps ask them again,
# so that changes of members and owners are not delayed.


log = logging.getLogger("zkgroups.serve")

TIMES_AT_ONCE: Final = 2000
"""How many messages to search by time in one sweep. It takes about ten requests to each broker."""


class BrokerReader:
    """Reads the logs of the partitions of groups into a `LogEnds`, and with `all_topics`, those of all others."""

    def __init__(self, brokers: Brokers, ends: LogEnds, *, all_topics: bool = False) -> None:
        self._brokers = brokers
        self._all_topics = all_topics
        self._ends = ends
        self.state = SourceState()

    def read(self, groups: Sequence[GroupDescription], *, is_complete: bool, clock: Callable[[], int]) -> None:
        """Read the logs of all partitions of these groups, which were read before."""
        self._ends.is_fresh = False
        if self.state.problem and not is_complete:
            return
        try:
            self.read_or_raise(groups, is_complete=is_complete, clock=clock)
        except ZkgroupsException as error:
            if not self.state.problem:
                log.warning("the brokers do not answer: %s", error)
            self.state = SourceState(self.state.read_ms, str(error), self.state.since_ms or clock())
        else:
            if self.state.problem:
                log.warning("the brokers answer again")
            self.state = SourceState(clock())

    def read_or_raise(
        self, groups: Sequence[GroupDescription], *, is_complete: bool = True, clock: Callable[[], int]
    ) -> Mapping[TopicPartition, OffsetRange | None]:
        """Read the logs like `read`, but raise errors. Return the answers of the brokers."""
        named = {topic for group in groups for topic in group.subscribed}
        everything = is_complete and self._all_topics
        known = self._brokers.partitions(None if everything or subscribes_by_pattern(groups) else named)
        self._ends.partitions = known if is_complete else {**self._ends.partitions, **known}
        wanted = {each.at for group in groups for each in partitions_of_group(group, known)}
        others = {TopicPartition(topic, each) for topic in known for each in known[topic]} if everything else set()
        logs = self._brokers.ranges(wanted | others)
        self._ends.update(logs, clock(), without_past=others - wanted)
        if is_complete:
            self._ends.keep_only(wanted, others)
            self._read_times(_unread(groups, self._ends), clock())
        return logs

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


# All that the server remembers of a cluster between two sweeps, and how a sweep changes it.


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
        period_ms = self._rules.limits.period_ms
        records[at] = observe(records.get(at), commit, None, now_ms=seen_ms, period_ms=period_ms)

    def replace_all(self, found: Sequence[ReadGroup], topics: Collection[str] | None, now_ms: int) -> None:
        """Replace all groups after a complete sweep."""
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
        """Return the topics whose logs were read, and those of all groups, sorted by name."""
        readers: dict[str, dict[str, None]] = {}
        for name, group in self.groups.items():
            for topic in dict.fromkeys(each.at.topic for each in group.partitions):
                readers.setdefault(topic, {})[name] = None
        logs: dict[str, dict[int, OffsetRange]] = {topic: {} for topic in readers}
        for at, found in self.ends.ranges.items():
            logs.setdefault(at.topic, {})[at.partition] = found
        return {topic: self._topic(topic, logs[topic], tuple(readers.get(topic, ())), now_ms) for topic in sorted(logs)}

    def _topic(
        self, topic: str, logs: Mapping[int, OffsetRange], readers: tuple[str, ...], now_ms: int
    ) -> TopicPicture:
        period_ms = self._rules.limits.period_ms
        histories = (self.ends.history(TopicPartition(topic, number)) for number in logs)
        rates = (each.produced_per_second(now_ms, period_ms=period_ms) for each in histories if each is not None)
        known = [rate for rate in rates if rate is not None]
        return TopicPicture(dict(sorted(logs.items())), sum(known) if known else None, readers)


# Tell the server what happened before its start, from snapshots or from an audit.


def prime(state: ClusterState, destination: str) -> int:
    """Add the last commits in a folder to the past of all groups. Return their number."""
    try:
        from ..audit.recorded_commits import recent_commits
    except ModuleNotFoundError as error:
        raise MissingDependencyError(
            "--history needs pyarrow; from the checkout: pip install '.[snapshots]'"
        ) from error
    count = 0
    for sweep in recent_commits(destination):
        for commit in sweep.commits:
            state.add_past(commit.group, commit.at, commit.as_read(), sweep.ms)
            count += 1
    return count


PAUSE: Final = 0.2
"""In seconds: how long to collect changes before the changed groups are read."""
MANY: Final = 0.25
"""If more than this part of all groups has changed, everything is read."""
CHECK_EVERY: Final = 1.0
"""In seconds: how often to look whether there is a connection, and whether the watch must be set again."""
LOOK_EVERY: Final = 0.2
"""In seconds: the same without a connection."""
CONNECT_EVERY: Final = 5.0
"""In seconds: the longest pause between two attempts to connect."""


class Sweeper:
    """Sweeps in a thread of its own, from `start` to `stop`."""

    def __init__(
        self,
        connect: Callable[[], Registry],
        brokers: Brokers | None,
        settings: SweepSettings,
    ) -> None:
        self._connect = connect
        self._settings = settings
        self.state = ClusterState(Rules(settings.limits, asks_brokers=brokers is not None))
        """All that is remembered between two sweeps. Change it only before `start`."""
        self._brokers = (
            None if brokers is None else BrokerReader(brokers, self.state.ends, all_topics=settings.all_topics)
        )
        self._zookeeper = SourceState()
        self._stats = SweepStats()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="zkgroups-serve-sweeps", daemon=True)
        self._is_lost = False  # True if the connection was lost after the last sweep
        self._registry: Registry | None = None
        self._changes: GroupChanges | None = None
        self.publisher = Publisher(self._picture(0))

    def start(self) -> Self:
        """Connect, and begin to sweep.

        If ZooKeeper does not answer, the thread goes on trying: that passes. Raises all other errors of the first
        connection, e.g. of a wrong password or chroot, because they need a change of the settings.
        """
        try:
            self._open()
        except UnavailableError as error:
            self._note_failure(str(error))
        self._thread.start()
        return self

    def stop(self, timeout: float = 5.0) -> None:
        """Stop, and close the connection. A request in progress is waited for, at most until the timeout."""
        self._ended.set()
        if self._changes is not None:
            self._changes.close()
        if self._thread.is_alive():
            self._thread.join(timeout)
        self._close()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _open(self) -> None:
        self._registry = self._connect()
        self._changes = self._registry.group_changes()

    def _close(self) -> None:
        if self._changes is not None:
            self._changes.close()
        if self._registry is not None:
            self._registry.close()
        self._registry, self._changes = None, None

    def _run(self) -> None:
        while not self._ended.is_set():
            due = uptime() + self._settings.every
            self._guarded(self._sweep)
            if self._registry is None:
                due = min(due, uptime() + CONNECT_EVERY)
            while (left := due - uptime()) > 0 and not self._ended.is_set():
                if self._wait_for_changes(min(left, CHECK_EVERY)):
                    self._ended.wait(self._stats.last_seconds)  # however much changes, half of the time is free
                    break
        self._close()  # a connection that was opened after `stop` had given up waiting

    # One sweep

    def _guarded(self, step: Callable[[], None]) -> None:
        """Run one step, and note its failure."""
        try:
            step()
        except ZkgroupsException as error:
            self._note_failure(str(error))
            if isinstance(error, AccessError) or _is_closed(self._registry):
                self._close()
        except Exception as error:
            log.exception("unexpected error in a sweep")
            self._note_failure(f"unexpected error: {error!r}")

    def _note_failure(self, problem: str) -> None:
        if self._ended.is_set():
            return
        if not self._zookeeper.problem:
            log.warning("ZooKeeper does not answer: %s", problem)
        since_ms = self._zookeeper.since_ms or now_ms()
        self._zookeeper = replace(self._zookeeper, problem=problem, since_ms=since_ms)
        self._stats = replace(self._stats, failures=self._stats.failures + 1)
        self._publish()

    @rare_collections()
    def _sweep(self) -> None:
        """Read everything."""
        if self._registry is None:
            self._open()
        registry, started = self._required(), uptime()
        context = context_of(registry)
        if not context.session.wait_connected(Deadline(CHECK_EVERY)):
            raise NotConnectedError("the connection is lost")
        self._is_lost = False
        before = context.session.requests_sent
        if self._settings.live and self._changes is not None and self._changes.begin():
            self._changes.wait(0.0)  # all changes until now are read now
        names = self._wanted(registry.groups())
        read_ms = sweep(registry, names, self.state, partial(self._read_brokers, is_complete=True))
        requests = _sent_since(before, context.session.requests_sent)
        self._note_success(registry, read_ms)
        self._stats = replace(
            self._stats,
            sweeps=self._stats.sweeps + 1,
            requests=self._stats.requests + requests,
            last_seconds=uptime() - started,
            last_requests=requests,
        )
        self._publish()

    def _wait_for_changes(self, timeout: float) -> bool:
        """Wait, and read the groups that change meanwhile. Return True if everything must be read now."""
        changes, registry = self._changes, self._registry
        if changes is None or registry is None:
            self._ended.wait(timeout)
            return False
        if not context_of(registry).session.connected:
            if not self._is_lost:
                self._note_failure("the connection is lost")
            self._is_lost = True
            self._ended.wait(LOOK_EVERY)
            return False
        if self._is_lost:
            return True
        if self._settings.live and not changes.is_live:
            changes.begin()
        changed = changes.wait(timeout, pause=PAUSE)
        if not self._settings.live or not changed or self._ended.is_set():
            return False
        groups = self._wanted(sorted(changed.groups))
        if changed.everything or len(groups) > max(10.0, MANY * len(self.state.groups)):
            return True
        if groups:
            self._guarded(lambda: self._sweep_some(registry, groups))
        return False

    def _sweep_some(self, registry: Registry, names: Sequence[str]) -> None:
        """Read the groups that have changed."""
        context = context_of(registry)
        before = context.session.requests_sent
        found = _read(context, names)
        self._read_brokers([each.description for each in found], is_complete=False)
        self.state.replace_some(found, now_ms())
        requests = _sent_since(before, context.session.requests_sent)
        self._stats = replace(self._stats, requests=self._stats.requests + requests)
        self._publish()

    def _wanted(self, names: Sequence[str]) -> Sequence[str]:
        """Return the groups to show."""
        matching = self._settings.matching
        return names if matching is None else list(filter(matching.fullmatch, names))

    def _read_brokers(self, groups: Sequence[GroupDescription], *, is_complete: bool) -> None:
        if self._brokers is not None:
            self._brokers.read(groups, is_complete=is_complete, clock=now_ms)

    def _note_success(self, registry: Registry, read_ms: int) -> None:
        if self._zookeeper.problem:
            log.warning("ZooKeeper answers again")
        self._zookeeper = SourceState(read_ms, is_read_only=registry.server_is_read_only)

    def _required(self) -> Registry:
        if self._registry is None:
            raise NotConnectedError("there is no connection to ZooKeeper")
        return self._registry

    # The picture

    def _publish(self) -> None:
        self.publisher.publish(self._picture(self.publisher.picture.number + 1))

    def _picture(self, number: int) -> Picture:
        return Picture(
            number=number,
            cluster=self._settings.cluster,
            zookeeper=self._zookeeper,
            brokers=None if self._brokers is None else self._brokers.state,
            live=self._settings.live and self._changes is not None and self._changes.is_live,
            groups=self.state.groups,
            topics=self.state.topics,
            stats=self._stats,
        )


def now_ms() -> int:
    """Return the time in milliseconds since 1970."""
    return time.time_ns() // 1_000_000


def sweep(
    registry: Registry,
    names: Iterable[str],
    state: ClusterState,
    read_logs: Callable[[Sequence[GroupDescription]], object],
) -> int:
    """Read these groups, then their logs, and replace all groups of the state. Return when the groups were read."""
    topics = _topics(registry)
    found = _read(context_of(registry), names)
    read_ms = now_ms()
    read_logs([each.description for each in found])
    state.replace_all(found, topics, now_ms())
    return read_ms


def _read(context: RegistryContext, names: Iterable[str]) -> list[ReadGroup]:
    return [ReadGroup.of(view) for view in group_reader.read_groups(context, names)]


def _topics(registry: Registry) -> frozenset[str] | None:
    """Return all topics, or None if they are forbidden, or not in this ZooKeeper."""
    try:
        return frozenset(registry.topics()) or None
    except AccessError:
        return None


def _sent_since(before: int, now: int) -> int:
    """Return the number of requests in between. The count begins anew with each connection."""
    return now - before if now >= before else now


def _is_closed(registry: Registry | None) -> bool:
    """Return True if the client has given up, and will not connect again by itself."""
    return registry is not None and registry.client.client_state in {"CLOSED", "AUTH_FAILED"}
