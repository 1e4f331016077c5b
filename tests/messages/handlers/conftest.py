"""Fixtures of the tests of `Consumer.run` with a broker."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from zkgroups import Registry
from zkgroups.testing import KafkaBroker

from .topics import Topic


@pytest.fixture
def registry(legacy_kafka: KafkaBroker) -> Iterator[Registry]:
    with Registry.connect(legacy_kafka.zookeeper) as found:
        yield found


@pytest.fixture
def make_topic(legacy_kafka: KafkaBroker, registry: Registry) -> Iterator[Callable[[int], Topic]]:
    made: list[Topic] = []

    def make(partitions: int = 1) -> Topic:
        made.append(Topic(legacy_kafka, registry, partitions))
        return made[-1]

    yield make
    for topic in made:
        if topic.group.exists():
            topic.group.delete()
