"""A member of a group, written with pykafka. It prints its partitions and messages, and leaves on SIGTERM.

Arguments: the address of a broker, the hosts of ZooKeeper, the group and the topic.
"""

from __future__ import annotations

import signal
import sys
import time
from typing import Any

from pykafka import KafkaClient  # type: ignore[import-not-found]
from pykafka.common import OffsetType  # type: ignore[import-not-found]

bootstrap, zookeeper, group, topic = sys.argv[1:]
asked: list[float] = []
signal.signal(signal.SIGTERM, lambda *_: asked.append(time.monotonic()))


def show(_consumer: Any, before: dict[int, int], now: dict[int, int]) -> None:
    for what, numbers in (("revoked", before.keys() - now.keys()), ("assigned", now.keys() - before.keys())):
        if numbers:
            print(what, "[" + " ".join(f"{topic}-{number}" for number in sorted(numbers)) + "]")


client = KafkaClient(hosts=bootstrap, broker_version="1.0.0")  # its topics keep only a weak reference to it
consumer = client.topics[topic.encode()].get_balanced_consumer(
    consumer_group=group.encode(),
    zookeeper_connect=zookeeper,
    auto_offset_reset=OffsetType.EARLIEST,
    auto_commit_enable=True,
    auto_commit_interval_ms=200,
    rebalance_backoff_ms=300,
    rebalance_max_retries=20,
    consumer_timeout_ms=100,
    zookeeper_connection_timeout_ms=20000,
    post_rebalance_callback=show,
)
while not asked:
    if (message := consumer.consume()) is not None:
        print(f"read {topic}-{message.partition_id}@{message.offset}")
consumer.stop()
print("left", round((time.monotonic() - asked[0]) * 1000))
