"""The committed offsets of a group on the brokers, as its consumers in ZooKeeper read and write them.

These consumers are no members of the group on the brokers. Brokers accept their commits as long as the group has no
members there. They do not fence such commits, so the caller must.

The timeouts of librdkafka are not used: if an answer comes after one, librdkafka 2.16 ends the whole process with a
failed assertion. Instead, the client is discarded when the time is over. Then it neither sends nor receives anything.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import TimeoutError as FutureTimeoutError
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias

from ..consumer.events import Partitions
from ..consumer.group_plan import few
from ..core.offsets.changes import TwoOffsets
from ..core.znodes.topic_partition import TopicPartition
from ..core.znodes.values import OffsetSides, Side
from ..deadline import Deadline
from ..exceptions import (
    InvalidOptionError,
    NoPermissionError,
    NotClaimedError,
    NotConnectedError,
    OutcomeUnknownError,
    RefusedError,
    ZkgroupsException,
)
from ..zookeeper.session.errors import not_held
from .fetcher import confluent, reason, unserved

# The errors of committed offsets on the brokers, as typed errors.


TAKEN: Final = "was given to another member on the brokers: stop working on it"

_LOG_IN: Final = "log in as a user whom the ACLs of the brokers allow, with settings in `kafka`"


def not_read(error: Any, at: TopicPartition) -> ZkgroupsException:
    """Return the error of a request for committed offsets."""
    if _is_forbidden(error):
        return NoPermissionError(f"the committed offset of {at} on the brokers", cure=_LOG_IN)
    return NotConnectedError(f"the brokers have not returned the committed offset of {at}: {error.str()}")


def refused_to_member(error: Any, partitions: Sequence[TopicPartition]) -> ZkgroupsException:
    """Return the error of a commit that a member of a group on the brokers has sent."""
    first, *others = partitions
    if _is_of_members(error):
        return NotClaimedError(first, TAKEN, also=others)
    return _not_committed(error, first)


def refused_to_simple_consumer(error: Any, group: str, at: TopicPartition) -> ZkgroupsException:
    """Return the error of a commit that came from outside of the group on the brokers."""
    if _is_of_members(error):
        return RefusedError(
            f"group {group!r} has members on the brokers, so these accept no commits of consumers in ZooKeeper: stop "
            "those members, or give one of the two groups another name"
        )
    return _not_committed(error, at)


def _not_committed(error: Any, at: TopicPartition) -> ZkgroupsException:
    if _is_forbidden(error):
        return NoPermissionError(f"the committed offset of {at} on the brokers", cure=_LOG_IN)
    kinds = confluent().KafkaError
    may_be_carried_out = (kinds.REQUEST_TIMED_OUT, kinds._TIMED_OUT, kinds._TRANSPORT, kinds._IN_PROGRESS)
    text = f"{at}: the brokers did not accept a commit: {error.str()}"
    return OutcomeUnknownError(text) if error.code() in may_be_carried_out else NotConnectedError(text)


def _is_forbidden(error: Any) -> bool:
    kinds = confluent().KafkaError
    return error.code() in (kinds.TOPIC_AUTHORIZATION_FAILED, kinds.GROUP_AUTHORIZATION_FAILED)


def _is_of_members(error: Any) -> bool:
    """True if the group has members, or other members than this one. These may have the partitions."""
    kinds = confluent().KafkaError
    return error.code() in (
        kinds.ILLEGAL_GENERATION,
        kinds.UNKNOWN_MEMBER_ID,
        kinds.REBALANCE_IN_PROGRESS,
        kinds.FENCED_INSTANCE_ID,
        kinds._ASSIGNMENT_LOST,
    )


# The options of a consumer that say where its offsets are.


OffsetsIn: TypeAlias = Literal["zookeeper", "kafka", "both"]
SideName: TypeAlias = Literal["zookeeper", "kafka"]

_BOTH: Final = "both"


@dataclass(frozen=True, slots=True)
class OffsetOptions:
    """Where offsets are committed and read. `initial`: begin at those in ZooKeeper where the brokers have none."""

    sides: OffsetSides
    initial: bool


def offset_options(offsets: object, truth: object, initial: object) -> OffsetOptions:
    """Check the options of a user.

    >>> str(offset_options("both", "kafka", None).sides)
    'both, kafka is the truth'
    """
    if offsets not in (*Side, _BOTH):
        raise InvalidOptionError("offsets", offsets, "it must be one of " + ", ".join((*Side, _BOTH)))
    if offsets == _BOTH and truth not in list(Side):
        raise InvalidOptionError("truth", truth, 'with offsets="both" it must be the side to read: zookeeper or kafka')
    if offsets != _BOTH and truth is not None:
        raise InvalidOptionError("truth", truth, 'it is only for offsets="both"')
    sides = OffsetSides(Side(str(truth if offsets == _BOTH else offsets)), both=offsets == _BOTH)
    if initial not in (None, Side.ZOOKEEPER):
        raise InvalidOptionError("initial", initial, "it must be zookeeper, or left out")
    if initial is not None and sides.truth is not Side.KAFKA:
        raise InvalidOptionError("initial", initial, "it is only for offsets that are read from the brokers")
    return OffsetOptions(sides, initial is not None)


# Reports of a consumer that keeps its offsets on two sides.


class SideReports:
    """Reports differences between the sides, and copies that fail. `truth` is the side that is read.

    - `differ`: called with partitions, and with the numbers of both sides as text.
    - `cannot`: called with an error, and with the partitions whose copies could not be written.
    - `can`: called when copies can be written again.
    """

    def __init__(
        self,
        truth: Side,
        *,
        differ: Callable[[Partitions, str], object],
        cannot: Callable[[Exception, Partitions], object],
        can: Callable[[], object],
    ) -> None:
        self.cannot = cannot
        self.can = can
        self._truth = truth
        self._differ = differ
        self._known: dict[TopicPartition, TwoOffsets] = {}

    def compared(self, found: Mapping[TopicPartition, TwoOffsets]) -> None:
        """Report the differences. The same numbers are reported once."""
        different = {at: each for at, each in found.items() if each.is_different}
        new = {at: each for at, each in different.items() if self._known.get(at) != each}
        for at in found:
            self._known.pop(at, None)
        self._known |= different
        if new:
            texts = (f"{at}: {each.shown(self._truth)}" for at, each in new.items())
            self._differ(frozenset(new), f"{few(texts, '; ')}; reading those of {self._truth.shown}")


_NEVER: Final = 3600.0
"""In seconds: the longest timeout that the client accepts."""


class BrokerOffsets:
    """The offsets of one group. Nothing connects before the first call. Any thread may call all methods.

    `timeout`: how long to wait for an answer, in seconds.
    """

    def __init__(self, settings: Mapping[str, Any], group: str, timeout: float) -> None:
        self.group = group
        self.timeout = timeout
        self._settings = unserved(settings)
        self._asking = threading.RLock()  # one request at a time: it discards the client of the others
        self._client: Any = None

    def committed(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int | None]:
        """Return the committed offset of each partition; None without one."""
        found = self._ask("list_consumer_group_offsets", sorted(partitions), self.timeout)
        for each in found:
            if each.error is not None:
                raise not_read(each.error, place_of(each))
        return {place_of(each): each.offset if each.offset >= 0 else None for each in found}

    def commit(self, offsets: Mapping[TopicPartition, int], timeout: float | None = None) -> None:
        """Commit these offsets. A request that cannot be sent before the timeout is not sent at all.

        If an offset is refused, raise its error: the others may be committed. Raise `OutcomeUnknownError` without an
        answer, and `RefusedError` if the group has members on the brokers.
        """
        limit = self.timeout if timeout is None else min(timeout, self.timeout)
        if limit <= 0:
            raise NotConnectedError("the claims are not certain to be held any more, so nothing was committed")
        try:
            done = self._ask("alter_consumer_group_offsets", sorted(offsets), limit, offsets)
        except NotConnectedError as error:
            raise OutcomeUnknownError(f"the brokers have not confirmed a commit: {error}") from error
        for each in done:
            if each.error is not None:
                raise refused_to_simple_consumer(each.error, self.group, place_of(each))

    def close(self) -> None:
        """Close the connections. The next call opens them again. A request under way is not answered any more."""
        self._client = None

    def _ask(
        self,
        method: str,
        partitions: list[TopicPartition],
        timeout: float,
        offsets: Mapping[TopicPartition, int] | None = None,
    ) -> list[Any]:
        """Call a method of the client. Return its answer: positions with offsets, or with errors."""
        if not partitions:
            return []
        kafka, deadline = confluent(), Deadline(timeout)
        positions = [kafka.TopicPartition(*at, *(() if offsets is None else (offsets[at],))) for at in partitions]
        request = kafka.ConsumerGroupTopicPartitions(self.group, positions)
        with not_held(self._asking, f"a request about group {self.group!r}"):
            if deadline.passed:
                raise NotConnectedError(f"an earlier request has taken all of the {timeout:g} s")
            try:
                [answer] = getattr(self._connected(), method)([request], request_timeout=_NEVER).values()
                found: list[Any] = answer.result(deadline.remaining).topic_partitions
            except kafka.KafkaException as error:
                raise not_read(error.args[0], partitions[0]) from error
            except FutureTimeoutError as error:
                self._client = None  # no other reference: this ends its threads
                raise NotConnectedError(f"the brokers have not answered within {timeout:g} s") from error
        return found

    def _connected(self) -> Any:
        client = self._client
        if client is None:
            from confluent_kafka.admin import AdminClient

            kafka = confluent()
            try:
                client = self._client = AdminClient(self._settings)
            except (kafka.KafkaException, TypeError, ValueError) as error:
                text = f"confluent-kafka refuses the settings: {reason(error)}"
                raise InvalidOptionError("kafka", ..., text) from error
        return client


def place_of(each: Any) -> TopicPartition:
    """Return the partition of a position of confluent-kafka."""
    return TopicPartition(each.topic, each.partition)
