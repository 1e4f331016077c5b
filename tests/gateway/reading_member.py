"""A member of a gateway that reads the messages of its partitions from a broker, and commits what it has read."""

from __future__ import annotations

from typing import Any

from confluent_kafka import OFFSET_BEGINNING, Consumer
from confluent_kafka import TopicPartition as Partition

from zkgroups import TopicPartition
from zkgroups.coordinator import CommitRequest, CommittedValue

from .kafka_member import KafkaMember
from .served import PATIENCE, Served


class ReadingMember(KafkaMember):
    """Starts at the committed offsets, and commits with each heartbeat and before it joins again."""

    def __init__(self, served: Served, broker: str, group: str, *topics: str, **options: Any) -> None:
        super().__init__(served, group, *topics, **options)
        self.texts: list[str] = []
        self._read: dict[TopicPartition, int] = {}
        self._consumer = Consumer(
            {"bootstrap.servers": broker, "group.id": "unused", "enable.auto.commit": False, "log_level": 0}
        )

    def __exit__(self, *error: object) -> None:
        super().__exit__(*error)
        self._consumer.close()

    def on_assigned(self) -> None:
        self._read.clear()
        found = self._served.fetch(self._group, *sorted(self.assigned)) if self.assigned else {}
        starts = {at: found[at].offset if at in found else OFFSET_BEGINNING for at in self.assigned}
        self._consumer.assign([Partition(at.topic, at.partition, start) for at, start in starts.items()])

    def on_beat(self) -> None:
        for message in self._consumer.consume(1000, timeout=0.01):
            assert message.error() is None
            topic, partition, text = str(message.topic()), int(message.partition() or 0), bytes(message.value() or b"")
            self.texts.append(text.decode())
            self._read[TopicPartition(topic, partition)] = int(message.offset() or 0) + 1
        self.on_revoked()

    def on_revoked(self) -> None:
        if self._read:
            offsets = {at: CommittedValue(offset) for at, offset in self._read.items()}
            request = CommitRequest(self._group, offsets, self.member_id, self.generation)
            answer = self._served.send(request).result(PATIENCE)
            self._read = {at: offset for at, offset in self._read.items() if answer.errors[at]}
