"""The consumer to be migrated: a program with Kafka's Scala high-level consumer, which commits to ZooKeeper.

    with LegacyReader(legacy_kafka, "billing", "orders", count=40) as legacy:
        done = legacy.finish()

`ScalaConsumer` reads while it lives, so its progress at the last commit is unknown. This program processes one
message after the other. It commits after the requested number of messages, or when asked to end, and then leaves.
"""

from __future__ import annotations

from pathlib import Path

from tests.consumer.scala import Message, ScalaConsumer
from tests.testing.unique import unique_numbers
from tests.testing.waiting import eventually
from zkgroups.testing import KafkaBroker

_numbers = unique_numbers()

# It alternates between partitions, so that all of them are partly read, and often checks whether it should end.
_CONFIG = {"fetch.message.max.bytes": "400", "consumer.timeout.ms": "50", "queued.max.message.chunks": "1"}
_LONGEST = 60.0


class LegacyReader(ScalaConsumer):
    """Reads `count` messages of the topic and leaves. Without a count, it reads until `finish`."""

    program = Path(__file__).with_name("LegacyReader.java")

    def __init__(self, broker: KafkaBroker, group: str, topic: str, *, count: int = 0) -> None:
        super().__init__(broker, group, f"legacy-{next(_numbers)}", {}, config=_CONFIG)
        self._chosen = ["count", str(count), topic]
        self._count = count

    def until_done(self, count: int) -> None:
        """Wait until it has processed that many messages."""
        eventually(lambda: len(self.messages) >= count or not self.running, timeout=_LONGEST)
        assert len(self.messages) >= count, self.log_tail()

    def finish(self) -> list[Message]:
        """Return its messages, once it has committed all of them and left."""
        if self._count:
            assert self._started.wait(_LONGEST) == 0, self.log_tail()
            assert "left" in self._lines(), self.log_tail()
            assert len(self.messages) == self._count, self.log_tail()
        else:
            self.stop()
        return self.messages
