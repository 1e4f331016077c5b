"""Bulk requests to Kafka's brokers: many partitions per request, and many groups at a time."""

from __future__ import annotations

from collections.abc import Callable, Container, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Self, TypeVar

from ..core.kafka_values import NativeGroup, NativeOffset, OffsetRange, PlainOffsets
from ..core.znodes.topic_partition import TopicPartition, check_at
from ..deadline import Deadline
from ..exceptions import BrokersTooOldError, UnknownPartitionError
from ..input_errors import ZkgroupsException
from .client_settings import client_settings
from .errors import check_native_groups, check_offsets, check_partitions, check_time
from .properties import read_properties
from .requests.commit_offsets import Outcomes, commit
from .requests.fetch_offsets import Before, fetch
from .requests.group_requests import Coordinators, hidden_topics, metadata, topic_ids, versions
from .requests.log_offsets import log_ranges, message_times, offsets_at
from .requests.native_groups import can_delete_offsets, delete, delete_offsets, describe, offsets_retention
from .wire import codec
from .wire.cluster import Cluster, Runner

T = TypeVar("T")
W = TypeVar("W")
_AskAboutGroups = Callable[[Cluster, Coordinators, W, Deadline], Coroutine[Any, Any, T]]


class Brokers:
    """
    The brokers of one cluster. Make it with `Brokers.connect`; leaving the `with` block closes it.

    - `bootstrap`: the addresses, e.g. "kafka1:9092,kafka2:9092".
    - `properties`: settings of a Kafka client, e.g. for TLS and SASL. `read_properties` reads them from a file.
    - `timeout`: in seconds. Each call retries temporary errors until no answer has arrived for this long. Then it
      raises `NotConnectedError`, or returns None or the error for each partition or group that it could not reach.
    - `unreachable_timeout`: a shorter time, after which a call raises `UnreachableError` if every host is unknown or
      refuses connections.

    Use it from one thread at a time.
    """

    def __init__(
        self,
        bootstrap: str,
        *,
        properties: Mapping[str, str] | None = None,
        timeout: float = 15.0,
        unreachable_timeout: float | None = None,
    ) -> None:
        Deadline.after("timeout", timeout)
        if unreachable_timeout is not None:
            Deadline.after("unreachable_timeout", unreachable_timeout)
        codec.check_installed()
        self._timeout = timeout
        self._cluster = _cluster(bootstrap, properties or {}, unreachable_timeout)
        self._coordinators = Coordinators(self._cluster)
        self._runner = Runner()

    @classmethod
    def connect(
        cls,
        bootstrap: str,
        *,
        properties: Mapping[str, str] = {},
        timeout: float = 15.0,
        unreachable_timeout: float | None = None,
    ) -> Self:
        """Return the brokers at `bootstrap`, e.g. "kafka1:9092,kafka2:9092". Sends nothing until the first call."""
        return cls(bootstrap, properties=properties, timeout=timeout, unreachable_timeout=unreachable_timeout)

    def partitions(self, topics: Iterable[str] | None = None) -> dict[str, tuple[int, ...]]:
        """Return the partitions of these topics, or of all. Unknown topics are left out."""
        wanted = None if topics is None else list(dict.fromkeys(topics))
        if wanted == []:
            return {}
        known = self._run(lambda deadline: metadata(self._cluster, wanted, deadline)).topics
        names = sorted(known) if wanted is None else [name for name in wanted if name in known]
        return {name: tuple(sorted(known[name].leaders)) for name in names if known[name].leaders}

    def hidden_topics(self, topics: Iterable[str]) -> set[str]:
        """Return the topics that may exist, but that brokers do not describe for lack of permission.

        Brokers before 0.11 answer as if such topics did not exist. Then they are left out.
        """
        wanted = list(dict.fromkeys(topics))
        return self._run(lambda deadline: hidden_topics(self._cluster, wanted, deadline)) if wanted else set()

    def ranges(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, OffsetRange | None]:
        """Return the log start and log end of each partition; None if it is unknown or has no leader."""
        wanted = check_partitions(partitions)
        return self._run(lambda deadline: log_ranges(self._cluster, wanted, deadline)) if wanted else {}

    def offsets_at(self, times: Mapping[TopicPartition, int]) -> dict[TopicPartition, int | None]:
        """Return for each partition the first offset at or after a time, in milliseconds since 1970.

        The result is the log end if there is no such message, and None if the partition is unknown or has no leader.
        Raise `BrokersTooOldError` if the brokers store no message times, as before 0.10.1.
        """
        wanted = {check_at(at): check_time(ms) for at, ms in times.items()}
        return self._run(lambda deadline: offsets_at(self._cluster, wanted, deadline)) if wanted else {}

    def message_times(self, offsets: Mapping[TopicPartition, int], *, now_ms: int) -> dict[TopicPartition, int | None]:
        """Return the time of the message at each offset, in milliseconds since 1970, within a second or 1 % of its age.

        Brokers search by the newest time so far, so for messages that are not in the order of their times the result
        is the newest time up to the offset. It is at most `now_ms`. It is None if the partition is unknown or has no
        leader, or if its messages have no times, as before 0.10.

        It takes about ten requests to each leader, more for old messages. No messages are read.
        """
        wanted = {check_at(at): offset for at, offset in offsets.items()}
        return self._run(lambda deadline: message_times(self._cluster, wanted, now_ms, deadline)) if wanted else {}

    def committed(self, groups: Iterable[str]) -> dict[str, Mapping[TopicPartition, NativeOffset]]:
        """Return the committed offsets of these Kafka-native groups; empty for an unknown group."""
        found = {}
        for group, answer in self.committed_or_error(groups).items():
            if isinstance(answer, ZkgroupsException):
                raise answer
            found[group] = answer
        return found

    def committed_or_error(
        self, groups: Iterable[str]
    ) -> dict[str, Mapping[TopicPartition, NativeOffset] | ZkgroupsException]:
        """Return the committed offsets of these Kafka-native groups; for a group that cannot be read, the error."""
        wanted = check_native_groups(groups)
        return self._about_groups(fetch, wanted) if wanted else {}

    def groups(self, names: Iterable[str]) -> dict[str, NativeGroup | ZkgroupsException]:
        """Return the state and the members of these Kafka-native groups. An unknown group is Dead."""
        wanted = check_native_groups(names)
        return self._about_groups(describe, wanted) if wanted else {}

    def commit(
        self, offsets: Mapping[str, Mapping[TopicPartition, NativeOffset | int]], *, before: Before | None = None
    ) -> dict[str, Mapping[TopicPartition, ZkgroupsException | None]]:
        """Commit offsets for groups without active members. Return None or the error for each partition.

        `offsets` has for each group a mapping from partitions to offsets. The result has the same keys:

            brokers.commit({"billing": {TopicPartition("orders", 0): 100}})

        A group with active members is refused. An offset is a number, or a `NativeOffset` with metadata. All values are
        checked before anything is sent, but neither this method nor the brokers check that an offset is in its log.

        `before` has the offsets that the groups had just now. If an answer is lost and a group has others by then, they
        are not overwritten, and the outcome is an `OutcomeUnknownError`.
        """
        wanted = check_offsets(offsets)
        found = self._about_groups(partial(_commit, before=before), wanted) if wanted else {}
        return {group: _outcomes(those, found.get(group, {})) for group, those in offsets.items()}

    def delete_groups(
        self, names: Iterable[str], *, before: Before | None = None
    ) -> dict[str, ZkgroupsException | None]:
        """Delete Kafka-native groups with all their offsets. Return None or the error for each group.

        `before` has the same meaning as for `commit`.
        """
        wanted = check_native_groups(names)
        return self._about_groups(partial(delete, before=before), wanted) if wanted else {}

    def can_delete_offsets(self) -> bool:
        """Return whether the brokers can delete single offsets of a group, as they can since release 2.4."""
        return self._run(lambda deadline: can_delete_offsets(self._cluster, deadline))

    def delete_offsets(
        self, offsets: Mapping[str, Iterable[TopicPartition]], *, before: Before | None = None
    ) -> dict[str, Mapping[TopicPartition, ZkgroupsException | None]]:
        """Delete offsets of Kafka-native groups. Return None or the error for each partition.

        An offset that does not exist counts as deleted. Offsets of topics that an active member reads are not deleted.
        """
        names = check_native_groups(offsets)
        wanted = {name: check_partitions(offsets[name]) for name in names}
        return self._about_groups(partial(delete_offsets, before=before), wanted) if wanted else {}

    def cluster_id(self) -> str | None:
        """Return the id of the cluster, or None if it has none."""
        return self._run(lambda deadline: metadata(self._cluster, [], deadline)).cluster_id

    def offsets_retention(self) -> float | None:
        """Return how many seconds the brokers keep the offsets of an unused group; None if no broker reports it."""
        return self._run(lambda deadline: offsets_retention(self._cluster, deadline))

    def topic_ids(self, topics: Iterable[str]) -> dict[str, str]:
        """Return the ids of these topics, without unknown topics. Empty with brokers before 2.8, which have no ids."""
        wanted = list(dict.fromkeys(topics))
        return self._run(lambda deadline: topic_ids(self._cluster, wanted, deadline)) if wanted else {}

    def close(self) -> None:
        """Close the connections. A second call does nothing."""
        self._runner.close()

    def _run(self, work: Callable[[Deadline], Coroutine[Any, Any, T]]) -> T:
        return self._runner.run(work(self._deadline()))

    def _about_groups(self, ask: _AskAboutGroups[W, T], wanted: W) -> T:
        return self._runner.run(self._ask_about_groups(ask, wanted))

    async def _ask_about_groups(self, ask: _AskAboutGroups[W, T], wanted: W) -> T:
        """Connect, then ask. Raises connection and login errors."""
        await metadata(self._cluster, [], self._deadline())
        if (await versions(self._cluster, self._deadline())).best(codec.OFFSET_FETCH) is None:
            raise BrokersTooOldError(
                f"the brokers at {self._cluster.bootstrap} are older than release 0.9, and cannot return committed "
                "offsets: upgrade the brokers first"
            )
        return await ask(self._cluster, self._coordinators, wanted, self._deadline())

    def _deadline(self) -> Deadline:
        return Deadline(self._timeout)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Brokers {self._cluster.bootstrap}>"


def _outcomes(
    wanted: Iterable[TopicPartition], found: Mapping[TopicPartition, ZkgroupsException | None]
) -> dict[TopicPartition, ZkgroupsException | None]:
    """Return the outcomes in the order of the request. Partitions without an outcome do not exist."""
    wanted = dict.fromkeys(wanted)
    if len(found) == len(wanted) and not any(found.values()):
        return wanted
    return {at: found[at] if at in found else UnknownPartitionError(at) for at in wanted}


def _cluster(bootstrap: str, properties: Mapping[str, str], unreachable_timeout: float | None) -> Cluster:
    settings = client_settings(properties)
    return Cluster(
        bootstrap,
        settings.security,
        client_id=settings.client_id,
        connect_timeout=settings.connect_timeout,
        request_timeout=settings.request_timeout,
        unreachable_timeout=unreachable_timeout,
    )


async def _commit(
    cluster: Cluster,
    coordinators: Coordinators,
    wanted: Sequence[NativeOffset | PlainOffsets],
    deadline: Deadline,
    before: Before | None,
) -> Outcomes:
    """Commit the offsets of partitions that exist. Old brokers would accept missing partitions, too."""
    places = _places(wanted)
    topics = (await metadata(cluster, {at.topic for at in places}, deadline)).topics
    unknown = {at for at in places if at.topic not in topics or at.partition not in topics[at.topic].leaders}
    known = [row for each in wanted for row in _without(each, unknown)] if unknown else wanted
    return await commit(cluster, coordinators, known, deadline.seconds, before)


def _places(wanted: Iterable[NativeOffset | PlainOffsets]) -> set[TopicPartition]:
    found: set[TopicPartition] = set()
    last: Sequence[TopicPartition] = ()
    for each in wanted:
        if isinstance(each, NativeOffset):
            found.add(each.at)
        elif each.places != last:  # most groups have the same partitions
            last = each.places
            found.update(last)
    return found


def _without(each: NativeOffset | PlainOffsets, unknown: Container[TopicPartition]) -> Iterable[NativeOffset]:
    rows = each.rows() if isinstance(each, PlainOffsets) else [each]
    return (row for row in rows if row.at not in unknown)


# How to connect to brokers, as a value without secrets that can be sent to Spark workers.


@dataclass(frozen=True, slots=True)
class BrokerOptions:
    """
    How to connect to brokers, as a value that can be sent to Spark workers.

    - `bootstrap`: the addresses, e.g. "kafka1:9092,kafka2:9092".
    - `properties`: the path of a Kafka client's properties file, for example with TLS and SASL settings. The file is
      read by `connect`, on the machine that connects. So its secrets are never in this value.
    - `timeout`: how long each call may take, in seconds.
    - `unreachable_timeout`: a shorter time for brokers that refuse connections: see `Brokers`.
    """

    bootstrap: str
    properties: str | None = None
    timeout: float = 15.0
    unreachable_timeout: float | None = None

    def connect(self) -> Brokers:
        """Return the brokers. Sends nothing yet."""
        settings = {} if self.properties is None else read_properties(self.properties)
        return Brokers.connect(
            self.bootstrap,
            properties=settings,
            timeout=self.timeout,
            unreachable_timeout=self.unreachable_timeout,
        )
