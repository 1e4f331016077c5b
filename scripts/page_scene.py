"""A cluster to look at: groups that are healthy, stopped, unowned, blocked, rewound or moved, on real servers.

    python scripts/page_scene.py

It prints the command that serves the page, and runs until Ctrl-C. `scripts/page_pictures.py` takes pictures of it.
"""

from __future__ import annotations

import json
import random
import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from confluent_kafka import Producer
from kazoo.client import KazooClient

from zkgroups import Registry, TopicPartition
from zkgroups.testing import KafkaBroker, ZooKeeperServer

TOPICS = {"orders": 12, "payments": 6, "clicks": 24, "audit.log": 3}
IDS = {
    "app-1": "app-1:7d4f0d2a-5f6e-4b53-9c53-7f6d2f1c9a10",
    "app-2": "app-2:0c1e7b54-9d1b-4a35-8a3e-2d8d51f0a1b2",
    "app-3": "app-3:5b9d3c2e-1f40-4d6c-b7f7-64e02c9f3a77",
}
WRITTEN = 4000
PER_SECOND = 20


@dataclass(frozen=True)
class Scene:
    """The addresses of the servers."""

    zookeeper: str
    brokers: str


@contextmanager
def scene() -> Iterator[Scene]:
    """Start the servers and the groups. Some groups work until the end."""
    with ExitStack() as stack:
        server = stack.enter_context(ZooKeeperServer())
        broker = stack.enter_context(KafkaBroker())
        kazoo = KazooClient(server.address)
        kazoo.start()
        stack.callback(kazoo.stop)
        for topic, partitions in TOPICS.items():
            listed = {str(number): [1] for number in range(partitions)}
            node = json.dumps({"version": 1, "partitions": listed}).encode()
            kazoo.create(f"/brokers/topics/{topic}", node, makepath=True)
            broker.create_topic(topic, partitions)
            for number in range(partitions):
                broker.write(topic, number, WRITTEN)
        registry = stack.enter_context(Registry.connect(server.address))
        _quiet_groups(registry, kazoo)
        stack.enter_context(_at_work(registry, broker))
        yield Scene(server.address, broker.address)


def _offsets(topic: str, offset: int, *, step: int = 0) -> Mapping[TopicPartition, int]:
    return {TopicPartition(topic, number): offset + step * number for number in range(TOPICS[topic])}


def _quiet_groups(registry: Registry, kazoo: KazooClient) -> None:
    """Groups without members, and nodes with problems."""
    generator = random.Random(7)
    registry.group("click-archive").offsets.set_many(_offsets("clicks", WRITTEN))
    registry.group("refunds").offsets.set_many(_offsets("payments", WRITTEN + 500))
    registry.group("nightly-report").offsets.set_many(_offsets("audit.log", WRITTEN))
    kazoo.create("/consumers/audit/offsets/audit.log/0", b"12 ", makepath=True)
    for number in range(60):
        name = f"service-{number:03d}"
        registry.group(name).offsets.set_many(_offsets("audit.log", WRITTEN - generator.choice([0, 0, 0, 0, 0, 2])))


@contextmanager
def _at_work(registry: Registry, broker: KafkaBroker) -> Iterator[None]:
    """Groups with members: one keeps up, one falls behind, and one has lost a member."""
    ended = threading.Event()
    with ExitStack() as stack:
        claims = []
        for index, id in enumerate(IDS.values()):
            member = stack.enter_context(registry.group("billing").instance(id))
            member.register(["orders"])
            claims.append(member.claim_many([TopicPartition("orders", 4 * index + n) for n in range(4)]))
        slow = stack.enter_context(registry.group("search-index").instance("indexer-1:" + IDS["app-1"][6:]))
        slow.register(["clicks"])
        claims.append(slow.claim_many(_offsets("clicks", 0)))
        lost = stack.enter_context(registry.group("payments-export").instance("worker-9"))
        lost.register(["payments"])
        held = lost.claim_many([TopicPartition("payments", number) for number in range(4)])
        held.commit(dict.fromkeys(held, 500))
        registry.client.create(
            "/consumers/payments-export/owners/payments/4", b"ghost-7", makepath=True, ephemeral=True
        )

        producer = Producer({"bootstrap.servers": broker.address})

        def work() -> None:
            seconds = 0
            while not ended.wait(1.0):
                seconds += 1
                for topic in ("orders", "clicks"):
                    for number in range(TOPICS[topic]):
                        for _ in range(PER_SECOND):
                            producer.produce(topic, b"-", partition=number)
                producer.flush()
                for some in claims[:3]:
                    some.commit({at: WRITTEN - 30 - 7 * at.partition + PER_SECOND * seconds for at in some})
                claims[3].commit(dict.fromkeys(claims[3], WRITTEN - 900 + PER_SECOND * seconds // 4))

        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()


if __name__ == "__main__":
    with scene() as found:
        print(f"zkgroups serve -z {found.zookeeper} -b {found.brokers}", flush=True)
        threading.Event().wait()
