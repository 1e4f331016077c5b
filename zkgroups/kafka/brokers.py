"""Bulk requests to Kafka's brokers: many partitions per request, and many groups at a time."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Self

from confluent_kafka import OFFSET_INVALID, KafkaError, KafkaException
from confluent_kafka import TopicPartition as _Partition
from confluent_kafka.admin import OffsetSpec

from ..core.kafka_values import NativeGroup, NativeOffset, OffsetRange
from ..core.znodes.topic_partition import TopicPartition, check_at
from ..deadline import Deadline
from ..exceptions import BrokersTooOldError, NotConnectedError, UnavailableError, UnknownPartitionError
from ..input_errors import InvalidOptionError, ZkgroupsException
from .broker_configs import retention_minutes
from .client import Client
from .commit_offsets import checked, commit
from .errors import error_of, is_retriable, translate, words
from .fetch_offsets import check_native_group, committed
from .native_groups import delete, described
from .retry import attempts
from .topic_ids import topic_ids
from .worker import Asker

_EARLIEST = OffsetSpec.earliest()
_LATEST = OffsetSpec.latest()
_LAST_TIME = 2**63 - 1


class Brokers:
    """
    The brokers of one cluster. Make it with `Brokers.connect`; leaving the `with` block closes it.

    - `bootstrap`: the addresses, e.g. "kafka1:9092,kafka2:9092".
    - `properties`: settings of a Kafka client, e.g. for TLS and SASL. `read_properties` reads them from a file.
    - `timeout`: each call retries until so many seconds have passed, unless an error is permanent. Then it raises
      `NotConnectedError`, or returns None or the error for the partitions or groups that it could not reach.

    Use it from one thread at a time.
    """

    def __init__(self, bootstrap: str, *, properties: Mapping[str, str] | None = None, timeout: float = 15.0) -> None:
        if not bootstrap.strip():
            raise InvalidOptionError("bootstrap", bootstrap, "it must name a broker, like kafka1:9092")
        Deadline.after("timeout", timeout)
        self._bootstrap = bootstrap
        self._timeout = timeout
        self._client: Client | None = Client(bootstrap, properties or {})

    @classmethod
    def connect(cls, bootstrap: str, *, properties: Mapping[str, str] = {}, timeout: float = 15.0) -> Self:
        """Return the brokers at `bootstrap`, e.g. "kafka1:9092,kafka2:9092". Sends nothing until the first call."""
        return cls(bootstrap, properties=properties, timeout=timeout)

    def partitions(self, topics: Iterable[str] | None = None) -> dict[str, tuple[int, ...]]:
        """Return the partitions of these topics, or of all. Unknown topics are left out."""
        known = self._partitions(self._deadline())
        wanted = sorted(known) if topics is None else dict.fromkeys(topics)
        return {topic: tuple(sorted(known[topic])) for topic in wanted if known.get(topic)}

    def ranges(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, OffsetRange | None]:
        """Return the range of the log of each partition. None if the brokers do not know it, or it has no leader."""
        wanted = _checked(partitions)
        # In this order, because a log start that moves up meanwhile must not be beyond the end.
        starts = self._offsets(dict.fromkeys(wanted, _EARLIEST))
        ends = self._offsets(dict.fromkeys(wanted, _LATEST))
        return {at: _range(starts[at], ends[at]) for at in wanted}

    def offsets_at(self, times: Mapping[TopicPartition, int]) -> dict[TopicPartition, int | None]:
        """Return for each partition the first offset at or after a time, in milliseconds since 1970.

        It is the log end if there is no such message, and None if the brokers do not know the partition, or it has no
        leader. Raise `BrokersTooOldError` if the brokers store no message times, as before 0.10.1.
        """
        specs = {check_at(at): OffsetSpec.for_timestamp(_checked_time(ms)) for at, ms in times.items()}
        # The ends come first, so that a message written between the two answers is not skipped.
        ends = self._offsets(dict.fromkeys(specs, _LATEST))
        found = self._offsets(specs)
        self._check_times([at for at, offset in found.items() if offset is not None])
        return {at: end if found[at] == -1 else found[at] for at, end in ends.items()}

    def _check_times(self, partitions: Sequence[TopicPartition]) -> None:
        """Raise an error if the brokers have no message times, although some of these logs have messages."""
        firsts = self._offsets(dict.fromkeys(partitions, OffsetSpec.for_timestamp(0)))
        if any(offset != -1 for offset in firsts.values()):
            return
        if any(found is not None and found.start < found.end for found in self.ranges(partitions).values()):
            raise BrokersTooOldError(
                f"the brokers at {self._bootstrap} store no message times, as before release 0.10.1: choose the "
                "offsets in another way"
            )

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
        wanted = _checked_groups(groups)
        return committed(self._reached(), wanted, self._timeout) if wanted else {}

    def groups(self, names: Iterable[str]) -> dict[str, NativeGroup | ZkgroupsException]:
        """Return the state and the members of these Kafka-native groups. An unknown group is Dead."""
        wanted = _checked_groups(names)
        return described(self._reached(), wanted, self._timeout) if wanted else {}

    def commit(
        self, offsets: Mapping[str, Mapping[TopicPartition, NativeOffset | int]]
    ) -> dict[str, Mapping[TopicPartition, ZkgroupsException | None]]:
        """Commit offsets for groups without active members. Return None or the error for each partition.

        `offsets` has for each group a mapping from partitions to offsets. The result has the same keys:

            brokers.commit({"billing": {TopicPartition("orders", 0): 100}})

        A group with active members is refused. An offset is a number, or a `NativeOffset` with metadata. All values are
        checked before anything is sent, but neither this method nor the brokers check that an offset is in its log.
        """
        wanted = checked(offsets)
        if not wanted:
            return {group: {} for group in offsets}
        asker, known = self._reached(), self._partitions(self._deadline())
        # Old brokers accept offsets of partitions that do not exist.
        wanted = [each for each in wanted if each.at.partition in known.get(each.at.topic, ())]
        found = commit(asker, wanted, self._timeout)
        return {
            group: {at: found[group][at] if at in found.get(group, ()) else UnknownPartitionError(at) for at in those}
            for group, those in offsets.items()
        }

    def delete_groups(self, names: Iterable[str]) -> dict[str, ZkgroupsException | None]:
        """Delete Kafka-native groups with all their offsets. Return None or the error for each group."""
        wanted = _checked_groups(names)
        return delete(self._reached(), wanted, self._timeout) if wanted else {}

    def cluster_id(self) -> str | None:
        """Return the id of the cluster, or None if it has none."""
        return self._open().metadata(self._deadline()).cluster_id or None

    def offsets_retention(self) -> float | None:
        """Return how many seconds the brokers keep the offsets of an unused group; None if no broker tells."""
        deadline = self._deadline()
        ids = self._open().metadata(deadline).brokers
        found = [minutes for minutes in retention_minutes(self._open().admin, ids, deadline) if minutes is not None]
        return min(found) * 60.0 if found else None

    def topic_ids(self, topics: Iterable[str]) -> dict[str, str]:
        """Return the ids of these topics. Unknown topics are left out; with brokers before 2.8, all are."""
        wanted = list(dict.fromkeys(topics))
        return topic_ids(self._open().admin, wanted, self._deadline()) if wanted else {}

    def close(self) -> None:
        """Close the connections. A second call does nothing."""
        if self._client is not None:
            self._client.close()
        self._client = None

    def _open(self) -> Client:
        if self._client is None:
            raise UnavailableError("the connection to the brokers is closed: connect again")
        return self._client

    def _reached(self) -> Asker:
        """Connect and return the worker process for requests about groups. Raises connection and login errors."""
        client = self._open()
        client.metadata(self._deadline())
        if not client.keeps_groups:
            raise BrokersTooOldError(
                f"the brokers at {self._bootstrap} are older than release 0.9, and cannot return committed offsets: "
                "upgrade the brokers first"
            )
        return client.asker

    def _deadline(self) -> Deadline:
        return Deadline(self._timeout)

    def _partitions(self, deadline: Deadline) -> dict[str, dict[int, int]]:
        """Return for every topic the leader of each partition; negative without a leader."""
        topics = self._open().metadata(deadline).topics
        return {name: {n: found.leader for n, found in topic.partitions.items()} for name, topic in topics.items()}

    def _offsets(self, specs: Mapping[TopicPartition, OffsetSpec]) -> dict[TopicPartition, int | None]:
        """Return the offset for each request; None if no leader answered."""
        found: dict[TopicPartition, int | None] = dict.fromkeys(specs)
        left, failed = dict(specs), _LastError()
        deadline = self._deadline()
        for timeout in attempts(deadline) if specs else ():
            leaders = self._partitions(deadline)
            left = {at: spec for at, spec in left.items() if leaders.get(at.topic, {}).get(at.partition, -1) >= 0}
            answers = self._ask(left, timeout, failed)
            found |= answers
            left = {at: spec for at, spec in left.items() if at not in answers}
            if not left:
                return found
        if all(offset is None for offset in found.values()):
            failed.report(deadline)
        return found

    def _ask(
        self, specs: Mapping[TopicPartition, OffsetSpec], timeout: float, failed: _LastError
    ) -> dict[TopicPartition, int]:
        """Send one request to each leader. Partitions with temporary errors are left out of the result."""
        asked = {_Partition(at.topic, at.partition): at for at in specs}
        questions = {theirs: specs[ours] for theirs, ours in asked.items()}
        futures = self._open().admin.list_offsets(questions, request_timeout=timeout) if asked else {}
        answers = {}
        for theirs, future in futures.items():
            try:
                offset = future.result().offset
            except KafkaException as error:
                failed.note(asked[theirs], error)
                continue
            if offset == OFFSET_INVALID:  # librdkafka reports no error if a leader does not answer
                failed.note(asked[theirs], KafkaException(KafkaError(KafkaError._TIMED_OUT)))
            else:
                answers[asked[theirs]] = offset
        return answers

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Brokers {self._bootstrap}>"


class _LastError:
    """Remembers the last temporary error, which explains a later timeout."""

    def __init__(self) -> None:
        self._last: tuple[TopicPartition, KafkaException] | None = None

    def note(self, at: TopicPartition, error: KafkaException) -> None:
        """Keep a temporary error, or raise a permanent one."""
        if not is_retriable(error_of(error)):
            raise translate(error_of(error), f"partition {at}") from error
        self._last = (at, error)

    def report(self, deadline: Deadline) -> None:
        """Raise the last error, if there was one. Call this if no leader of any partition answered."""
        if self._last is not None:
            at, error = self._last
            raise NotConnectedError(
                f"no leader of {at} answered within {deadline.seconds:g} s: {words(error_of(error))}"
            ) from error


def _checked_groups(names: Iterable[str]) -> list[str]:
    return [check_native_group(name) for name in dict.fromkeys(names)]


def _checked(partitions: Iterable[TopicPartition]) -> list[TopicPartition]:
    return [check_at(at) for at in dict.fromkeys(partitions)]


def _checked_time(ms: object) -> int:
    if isinstance(ms, bool) or not isinstance(ms, int) or ms > _LAST_TIME:
        raise InvalidOptionError("time", ms, "it must be milliseconds since 1970, as a whole number")
    return max(0, ms)  # librdkafka gives negative times another meaning


def _range(start: int | None, end: int | None) -> OffsetRange | None:
    return None if start is None or end is None else OffsetRange(start, end)
