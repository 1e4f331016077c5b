"""Kafka's brokers, asked in bulk: as many partitions in a request as go together, many groups at a time."""

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
from .commit_offsets import Offsets, Outcomes, checked, commit
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
    The brokers of one cluster; a context manager, and one thread's at a time.

    What may be answered later is asked again until `timeout` seconds have passed, in each call.
    """

    def __init__(self, bootstrap: str, *, properties: Mapping[str, str] | None = None, timeout: float = 15.0) -> None:
        if not bootstrap.strip():
            raise InvalidOptionError("bootstrap", bootstrap, "it must name a broker, as kafka1:9092")
        Deadline.after("timeout", timeout)
        self._bootstrap = bootstrap
        self._timeout = timeout
        self._client: Client | None = Client(bootstrap, properties or {})

    @classmethod
    def connect(cls, bootstrap: str, *, properties: Mapping[str, str] = {}, timeout: float = 15.0) -> Self:
        """The brokers at `bootstrap`, `host:port,...`, with a Kafka client's properties; nothing is sent yet."""
        return cls(bootstrap, properties=properties, timeout=timeout)

    def partitions(self, topics: Iterable[str] | None = None) -> dict[str, tuple[int, ...]]:
        """The partitions of these topics, or of all; topics that the brokers do not know are left out."""
        known = self._partitions(self._deadline())
        wanted = sorted(known) if topics is None else dict.fromkeys(topics)
        return {topic: tuple(sorted(known[topic])) for topic in wanted if known.get(topic)}

    def ranges(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, OffsetRange | None]:
        """Where the log of each partition starts and ends; None where it, or its leader, is not known."""
        wanted = _checked(partitions)
        # In this order: a start moves up while we ask, and must not be seen beyond the end.
        starts = self._offsets(dict.fromkeys(wanted, _EARLIEST))
        ends = self._offsets(dict.fromkeys(wanted, _LATEST))
        return {at: _range(starts[at], ends[at]) for at in wanted}

    def offsets_at(self, times: Mapping[TopicPartition, int]) -> dict[TopicPartition, int | None]:
        """The first offset at or after a time in milliseconds; the log end if there is none, None if unknown.

        Brokers before 0.10.1 keep no times of messages, and misunderstand the request.
        """
        specs = {check_at(at): OffsetSpec.for_timestamp(_checked_time(ms)) for at, ms in times.items()}
        # The ends come first: a message that is written between the two answers is then not passed over.
        ends = self._offsets(dict.fromkeys(specs, _LATEST))
        found = self._offsets(specs)
        self._check_times([at for at, offset in found.items() if offset is not None])
        return {at: end if found[at] == -1 else found[at] for at, end in ends.items()}

    def _check_times(self, partitions: Sequence[TopicPartition]) -> None:
        """Raise an error if the brokers know no time in any of these logs, although some have messages."""
        firsts = self._offsets(dict.fromkeys(partitions, OffsetSpec.for_timestamp(0)))
        if any(offset != -1 for offset in firsts.values()):
            return
        if any(found is not None and found.start < found.end for found in self.ranges(partitions).values()):
            raise BrokersTooOldError(
                f"the brokers at {self._bootstrap} keep no times of messages, as before release 0.10.1: choose the "
                "offsets in another way"
            )

    def committed(self, groups: Iterable[str]) -> dict[str, Mapping[TopicPartition, NativeOffset]]:
        """What each of these groups of Kafka's own has committed: nothing, for one that is not known."""
        found = {}
        for group, answer in self.committed_or_error(groups).items():
            if isinstance(answer, ZkgroupsException):
                raise answer
            found[group] = answer
        return found

    def committed_or_error(
        self, groups: Iterable[str]
    ) -> dict[str, Mapping[TopicPartition, NativeOffset] | ZkgroupsException]:
        """The same where one group that cannot be read must not hide the others: an error in its place."""
        wanted = _checked_groups(groups)
        return committed(self._reached(), wanted, self._timeout) if wanted else {}

    def groups(self, names: Iterable[str]) -> dict[str, NativeGroup | ZkgroupsException]:
        """The state of each of these groups of Kafka's own, and who takes part; one that is not known is Dead."""
        wanted = _checked_groups(names)
        return described(self._reached(), wanted, self._timeout) if wanted else {}

    def commit(self, offsets: Offsets) -> Outcomes:
        """Commit offsets for groups that nobody takes part in: for each None where it is there now, or the error.

        A group that somebody takes part in is refused. A number alone goes without metadata. Everything
        is checked before anything is sent, but for the offset's being in the log: that no broker asks.
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
        """Delete groups of Kafka's own, with all their offsets: for each None where it is gone now, or the error."""
        wanted = _checked_groups(names)
        return delete(self._reached(), wanted, self._timeout) if wanted else {}

    def cluster_id(self) -> str | None:
        """What the cluster calls itself, by whichever address it is reached; None where it has no name."""
        return self._open().metadata(self._deadline()).cluster_id or None

    def offsets_retention(self) -> float | None:
        """Seconds that the brokers keep offsets that nobody uses or renews, at least; None where none of them tells."""
        deadline = self._deadline()
        ids = self._open().metadata(deadline).brokers
        found = [minutes for minutes in retention_minutes(self._open().admin, ids, deadline) if minutes is not None]
        return min(found) * 60.0 if found else None

    def topic_ids(self, topics: Iterable[str]) -> dict[str, str]:
        """The id of each of these topics, which must exist. Brokers before 2.8 have no topic ids."""
        wanted = list(dict.fromkeys(topics))
        return topic_ids(self._open().admin, wanted, self._deadline()) if wanted else {}

    def close(self) -> None:
        """Let the connections go."""
        if self._client is not None:
            self._client.close()
        self._client = None

    def _open(self) -> Client:
        if self._client is None:
            raise UnavailableError("the connection to the brokers is closed")
        return self._client

    def _reached(self) -> Asker:
        """The process that asks; who cannot be reached, or does not let us in, is found out here."""
        client = self._open()
        client.metadata(self._deadline())
        if not client.keeps_groups:
            raise BrokersTooOldError(
                f"the brokers at {self._bootstrap} are of a release before 0.9, where offsets of Kafka's own groups "
                "cannot be read back: upgrade the brokers first"
            )
        return client.asker

    def _deadline(self) -> Deadline:
        return Deadline(self._timeout)

    def _partitions(self, deadline: Deadline) -> dict[str, dict[int, int]]:
        """For every topic its partitions, and the leader of each, which is negative where there is none."""
        topics = self._open().metadata(deadline).topics
        return {name: {n: found.leader for n, found in topic.partitions.items()} for name, topic in topics.items()}

    def _offsets(self, specs: Mapping[TopicPartition, OffsetSpec]) -> dict[TopicPartition, int | None]:
        """The offset that each partition has for its question; None where nobody could tell."""
        found: dict[TopicPartition, int | None] = dict.fromkeys(specs)
        left, failed = dict(specs), _Failed()
        deadline = self._deadline()
        for patience in attempts(deadline) if specs else ():
            leaders = self._partitions(deadline)
            left = {at: spec for at, spec in left.items() if leaders.get(at.topic, {}).get(at.partition, -1) >= 0}
            answers = self._ask(left, patience, failed)
            found |= answers
            left = {at: spec for at, spec in left.items() if at not in answers}
            if not left:
                return found
        if all(offset is None for offset in found.values()):
            failed.report(deadline)
        return found

    def _ask(
        self, specs: Mapping[TopicPartition, OffsetSpec], patience: float, failed: _Failed
    ) -> dict[TopicPartition, int]:
        """One request to each leader; partitions that can be asked for again have no answer."""
        asked = {_Partition(at.topic, at.partition): at for at in specs}
        questions = {theirs: specs[ours] for theirs, ours in asked.items()}
        futures = self._open().admin.list_offsets(questions, request_timeout=patience) if asked else {}
        answers = {}
        for theirs, future in futures.items():
            try:
                offset = future.result().offset
            except KafkaException as error:
                failed.note(asked[theirs], error)
                continue
            if offset == OFFSET_INVALID:  # no error where a leader does not answer in time, or not at all
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


class _Failed:
    """What went wrong last where it may still go well, with one partition for all."""

    def __init__(self) -> None:
        self._last: tuple[TopicPartition, KafkaException] | None = None

    def note(self, at: TopicPartition, error: KafkaException) -> None:
        """Keep it, or raise what no further attempt would change."""
        if not is_retriable(error_of(error)):
            raise translate(error_of(error), f"partition {at}") from error
        self._last = (at, error)

    def report(self, deadline: Deadline) -> None:
        """Raise it: of those who were known to lead a partition, nobody answered."""
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
    return max(0, ms)  # below are librdkafka's signs for something else


def _range(start: int | None, end: int | None) -> OffsetRange | None:
    return None if start is None or end is None else OffsetRange(start, end)
