"""A consumer of aiokafka, in Kafka's own group. It prints the seconds, and the CPU seconds.

Arguments: the address of a broker, the hosts of ZooKeeper (unused), the group, the topic, and the number of messages.
"""

from __future__ import annotations

import asyncio
import sys
import time

from aiokafka import AIOKafkaConsumer


async def main(bootstrap: str, _zookeeper: str, group: str, topic: str, count: str) -> None:
    consumer = AIOKafkaConsumer(topic, bootstrap_servers=bootstrap, group_id=group, auto_offset_reset="earliest")
    async with consumer:
        size, seen = len((await anext(consumer)).value or b""), 1
        began = time.perf_counter(), time.process_time()
        async for message in consumer:
            size += len(message.value or b"")
            seen += 1
            if seen == int(count):
                break
        print(time.perf_counter() - began[0], time.process_time() - began[1])


asyncio.run(main(*sys.argv[1:]))
