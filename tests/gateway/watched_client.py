"""A librdkafka consumer on a thread of its own, which remembers when it had each partition."""

from __future__ import annotations

import threading
import time
from typing import Any, Self

from confluent_kafka import Consumer
from confluent_kafka import TopicPartition as Partition

from .owner_history import Belief
from .running import LONGEST
from .test_librdkafka import Member


class WatchedClient(Member):
    """It commits automatically, as most consumers do, and finds another coordinator soon."""

    def __init__(self, bootstrap: str, group: str, topic: str) -> None:
        self.beliefs: list[Belief] = []
        self.member_id = ""
        self._since: dict[Partition, float] = {}
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watched-client")
        settings: dict[str, Any] = {"topic.metadata.refresh.interval.ms": 300, "reconnect.backoff.max.ms": 500}
        settings |= {"coordinator.query.interval.ms": 500, "enable.auto.commit": True, "auto.commit.interval.ms": 200}
        super().__init__(bootstrap, group, topic, **settings)

    def _assign(self, consumer: Consumer, partitions: list[Partition]) -> None:
        now = time.time()
        super()._assign(consumer, partitions)
        self.member_id = str(consumer.memberid())
        self._since |= dict.fromkeys(partitions, now)

    def _revoke(self, consumer: Consumer, partitions: list[Partition]) -> None:
        now = time.time()
        for each in partitions:
            at = f"{each.topic}/{each.partition}"
            self.beliefs.append(Belief(at, self.member_id, self._since.pop(each), now))
        super()._revoke(consumer, partitions)

    def _run(self) -> None:
        while not self._ended.is_set():
            self.poll()

    def leave(self) -> None:
        """Leave the group. Further calls do nothing."""
        if not self._ended.is_set():
            self._ended.set()
            self._thread.join(LONGEST)
            self.consumer.close()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.leave()
