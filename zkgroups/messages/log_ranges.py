"""Ask the brokers in the background where logs begin and end.

A leader that does not answer would otherwise stop all other partitions meanwhile. The requests have connections of
their own, because on the connection that fetches they wait behind fetches for a long time.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Final

from ..core.kafka_values import OffsetRange
from ..core.znodes.topic_partition import TopicPartition
from ..exceptions import FetchFailedError
from .client_log import unserved
from .client_settings import confluent, reason

_THREADS: Final = 8

_TIMEOUT: Final = 5.0
"""In seconds: how long to wait for the range of one log."""


class LogRanges:
    """The requests that are under way, and their answers. Nothing connects before the first request."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self._settings = unserved(settings)
        self._client: Any = None
        self._connecting = threading.Lock()
        self._asked: dict[TopicPartition, Future[OffsetRange]] = {}
        self._threads = ThreadPoolExecutor(_THREADS, "zkgroups-log-range")

    def ask(self, at: TopicPartition) -> None:
        """Ask for one partition. An earlier answer that is still awaited is ignored."""
        self.forget([at])
        self._asked[at] = self._threads.submit(self._range, at)

    def forget(self, partitions: Iterable[TopicPartition]) -> None:
        """Ignore the answers for these partitions."""
        for at in partitions:
            if (future := self._asked.pop(at, None)) is not None:
                future.cancel()

    def take_answers(self) -> dict[TopicPartition, Future[OffsetRange]]:
        """Return the answers that have arrived. Each is returned once. A failed request has a `FetchFailedError`."""
        done = {at: future for at, future in self._asked.items() if future.done()}
        for at in done:
            del self._asked[at]
        return done

    @property
    def awaited(self) -> frozenset[TopicPartition]:
        """The partitions whose answers have not arrived, or were not taken."""
        return frozenset(self._asked)

    def close(self) -> None:
        """Wait for the requests under way, and close the connections."""
        self._threads.shutdown(wait=True, cancel_futures=True)
        if self._client is not None:
            self._client.close()
            self._client = None

    # Its own threads

    def _range(self, at: TopicPartition) -> OffsetRange:
        kafka = confluent()
        with self._connecting:
            if self._client is None:
                self._client = kafka.Consumer(self._settings)
        try:
            found = self._client.get_watermark_offsets(kafka.TopicPartition(*at), timeout=_TIMEOUT)
        except kafka.KafkaException as error:
            raise FetchFailedError(at, reason(error)) from error
        if found is None:
            raise FetchFailedError(at, f"no broker has answered within {_TIMEOUT:g} s")
        return OffsetRange(*found)
