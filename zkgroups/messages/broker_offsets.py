"""The committed offsets of a group on the brokers, as its consumers in ZooKeeper read and write them.

These consumers are no members of the group on the brokers. Brokers accept their commits as long as the group has no
members there. They do not fence such commits, so the caller must.

The timeouts of librdkafka are not used: if an answer comes after one, librdkafka 2.16 ends the whole process with a
failed assertion. Instead, the client is discarded when the time is over. Then it neither sends nor receives anything.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from concurrent.futures import TimeoutError as FutureTimeoutError
from typing import Any, Final

from ..core.znodes.topic_partition import TopicPartition
from ..deadline import Deadline
from ..exceptions import InvalidOptionError, NotConnectedError, OutcomeUnknownError
from ..zookeeper.session.reentrant_locks import not_held
from .client_log import unserved
from .client_settings import confluent, reason
from .commit_errors import not_read, refused_to_simple_consumer

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
                raise not_read(each.error, _place(each))
        return {_place(each): each.offset if each.offset >= 0 else None for each in found}

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
                raise refused_to_simple_consumer(each.error, self.group, _place(each))

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


def _place(each: Any) -> TopicPartition:
    return TopicPartition(each.topic, each.partition)
