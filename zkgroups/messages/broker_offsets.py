"""The committed offsets of a group on the brokers, as its consumers in ZooKeeper read and write them.

These consumers are no members of the group on the brokers. Brokers accept their commits as long as the group has no
members there. They do not fence such commits, so the caller must.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from concurrent.futures import TimeoutError as FutureTimeoutError
from typing import Any, Final

from ..core.znodes.topic_partition import TopicPartition
from ..exceptions import InvalidOptionError, NotConnectedError, OutcomeUnknownError
from .client_log import unserved
from .client_settings import confluent, reason
from .commit_errors import not_read, refused_to_simple_consumer

_SPARE: Final = 1.0
"""In seconds: how much longer to wait for the client than the client waits for an answer."""


class BrokerOffsets:
    """The offsets of one group. Nothing connects before the first call. Any thread may call all methods.

    `timeout`: how long to wait for an answer, in seconds.
    """

    def __init__(self, settings: Mapping[str, Any], group: str, timeout: float) -> None:
        self.group = group
        self.timeout = timeout
        self._settings = unserved(settings)
        self._lock = threading.Lock()
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
        """Close the connections. The next call opens them again."""
        with self._lock:
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
        kafka = confluent()
        positions = [kafka.TopicPartition(*at, *(() if offsets is None else (offsets[at],))) for at in partitions]
        request = kafka.ConsumerGroupTopicPartitions(self.group, positions)
        try:
            [answer] = getattr(self._connected(), method)([request], request_timeout=timeout).values()
            found: list[Any] = answer.result(timeout + _SPARE).topic_partitions
        except kafka.KafkaException as error:
            raise not_read(error.args[0], partitions[0]) from error
        except FutureTimeoutError as error:
            raise NotConnectedError(f"the brokers have not answered within {timeout:g} s") from error
        return found

    def _connected(self) -> Any:
        with self._lock:
            if self._client is None:
                from confluent_kafka.admin import AdminClient

                kafka = confluent()
                try:
                    self._client = AdminClient(self._settings)
                except (kafka.KafkaException, TypeError, ValueError) as error:
                    text = f"confluent-kafka refuses the settings: {reason(error)}"
                    raise InvalidOptionError("kafka", ..., text) from error
            return self._client


def _place(each: Any) -> TopicPartition:
    return TopicPartition(each.topic, each.partition)
