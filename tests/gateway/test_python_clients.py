"""Members written with aiokafka and kafka-python, in one group at a gateway."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import aiokafka
import pytest
from kafka import KafkaConsumer

from tests.testing.waiting import eventually

from .conftest import Front
from .running import LONGEST
from .test_librdkafka import offsets

pytestmark = [pytest.mark.kafka, pytest.mark.xdist_group("gateway"), pytest.mark.timeout(1000)]


@contextmanager
def kafka_python(bootstrap: str, group: str, topic: str) -> Iterator[Any]:
    consumer = KafkaConsumer(
        topic,
        bootstrap_servers=bootstrap,
        group_id=group,
        auto_offset_reset="earliest",
        heartbeat_interval_ms=200,
        session_timeout_ms=10_000,
    )
    try:
        yield consumer
    finally:
        consumer.close()


def test_aiokafka_and_kafka_python_share_a_group(front: Front, make_topic: Callable[..., str]) -> None:
    topic, bootstrap = make_topic(4, messages=2), front.gateway.bootstrap
    group = f"here-{topic}"

    async def use() -> None:
        consumer = aiokafka.AIOKafkaConsumer(
            topic,
            bootstrap_servers=bootstrap,
            group_id=group,
            auto_offset_reset="earliest",
            heartbeat_interval_ms=200,
            enable_auto_commit=False,
        )
        await consumer.start()
        try:
            read = 0
            while read < 8:
                read += sum(map(len, (await consumer.getmany(timeout_ms=100)).values()))
            await consumer.commit()
            assert await asyncio.to_thread(shared, consumer)
        finally:
            await consumer.stop()

    def shared(consumer: Any) -> bool:
        with kafka_python(bootstrap, group, topic) as other:
            return eventually(
                lambda: other.poll(50) or len(other.assignment()) == len(consumer.assignment()) == 2, timeout=LONGEST
            )

    asyncio.run(asyncio.wait_for(use(), 2 * LONGEST))
    assert offsets(bootstrap, group, topic) == dict.fromkeys(range(4), 2)
