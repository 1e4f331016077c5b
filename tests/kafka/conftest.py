"""Both brokers, and a client that writes to them: messages, deletions, and offsets of groups."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from typing import Self

import pytest
from confluent_kafka import ConsumerGroupTopicPartitions, Producer
from confluent_kafka import TopicPartition as Partition
from confluent_kafka.admin import AdminClient, NewTopic

from zkgroups.kafka import Brokers
from zkgroups.testing import KafkaBroker

PASSWORD = 'the s3cret; \\ of "größe"'
"""The password of both users of `own`. anna may do everything, like all clients at the plain address, and ben
nothing."""

_ACCESS = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:ANONYMOUS;User:anna",
    # Reading must not create topics even on brokers that create them automatically.
    "auto.create.topics.enable": "true",
}

_numbers = itertools.count()


class Writer:
    """The actions of another client at a broker."""

    def __init__(self, address: str) -> None:
        self.config = {"bootstrap.servers": address, "log_level": 0}
        self.admin = AdminClient(self.config)

    def __enter__(self) -> Self:
        self.admin.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self.admin.__exit__(None, None, None)

    def create_topic(self, name: str, replicas: list[list[int]]) -> None:
        """Create a topic, which may not be ready yet. `replicas` are the brokers of each partition."""
        topic = NewTopic(name, len(replicas), replica_assignment=replicas)
        self.admin.create_topics([topic])[name].result()

    def produce(self, topic: str, partition: int, times: list[int]) -> None:
        """Write a message for each time, in milliseconds."""
        with Producer(self.config) as producer:
            for ms in times:
                producer.produce(topic, b"message", partition=partition, timestamp=ms)
            assert producer.flush(30) == 0

    def delete_before(self, topic: str, partition: int, offset: int) -> None:
        for future in self.admin.delete_records([Partition(topic, partition, offset)]).values():
            future.result()

    def commit(self, group: str, offsets: Mapping[tuple[str, int], int], note: str = "") -> None:
        offered = [Partition(topic, number, offset, note) for (topic, number), offset in offsets.items()]
        request = [ConsumerGroupTopicPartitions(group, offered)]
        result = self.admin.alter_consumer_group_offsets(request)[group].result()
        assert all(each.error is None for each in result.topic_partitions)


@pytest.fixture(params=["kafka_broker", "legacy_kafka"])
def broker(request: pytest.FixtureRequest) -> KafkaBroker:
    """Each of both brokers."""
    found: KafkaBroker = request.getfixturevalue(request.param)
    return found


@pytest.fixture(scope="session")
def own() -> Iterator[KafkaBroker]:
    """A broker only for tests that stop it. Group billing has an offset of orders."""
    with KafkaBroker(users={"anna": PASSWORD, "ben": PASSWORD}, config=_ACCESS) as broker:
        broker.create_topic("orders")
        with Writer(broker.address) as writer:
            writer.commit("billing", {("orders", 0): 7})
        yield broker


@pytest.fixture
def brokers(broker: KafkaBroker) -> Iterator[Brokers]:
    with Brokers.connect(broker.address) as found:
        yield found


@pytest.fixture
def writer(broker: KafkaBroker) -> Iterator[Writer]:
    with Writer(broker.address) as writer:
        yield writer


@pytest.fixture
def make_topic(broker: KafkaBroker) -> Callable[..., str]:
    """Create a topic for one test."""

    def make(partitions: int = 1) -> str:
        name = f"topic-{next(_numbers)}"
        broker.create_topic(name, partitions)
        return name

    return make
