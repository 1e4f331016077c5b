"""A BalancedConsumer of pykafka, in an environment of its own. It prints the seconds, and the CPU seconds.

Arguments: the address of a broker, the hosts of ZooKeeper, the group, the topic, and how many messages to read.
"""

from __future__ import annotations

import sys
import time

from pykafka import KafkaClient  # type: ignore[import-not-found]
from pykafka.common import OffsetType  # type: ignore[import-not-found]

bootstrap, zookeeper, group, topic, count = sys.argv[1:]
client = KafkaClient(hosts=bootstrap, broker_version="1.0.0")
consumer = client.topics[topic.encode()].get_balanced_consumer(
    consumer_group=group.encode(),
    zookeeper_connect=zookeeper,
    auto_offset_reset=OffsetType.EARLIEST,
    auto_commit_enable=True,
)
size = len(consumer.consume().value)
began = time.perf_counter(), time.process_time()
for seen, message in enumerate(consumer, 2):
    size += len(message.value)
    if seen == int(count):
        break
print(time.perf_counter() - began[0], time.process_time() - began[1])
consumer.stop()
