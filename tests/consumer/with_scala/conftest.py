"""Fixtures: members of the Scala consumer and of zkgroups in one group, on a broker of Kafka 1.1."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from zkgroups import Consumergroup, Registry
from zkgroups.testing import KafkaBroker

from ..reader import Reader, ReaderProcess
from ..scala import ScalaConsumer
from .mixed_group import Feed, OffsetLog

Scala = Callable[..., ScalaConsumer]
Ours = Callable[..., Reader]


_numbers = itertools.count()


@pytest.fixture(scope="module")
def registry(legacy_kafka: KafkaBroker) -> Iterator[Registry]:
    """A registry at the ZooKeeper of the old broker."""
    with Registry.connect(legacy_kafka.zookeeper) as registry:
        yield registry


@pytest.fixture
def group(registry: Registry) -> Consumergroup:
    return registry.group(f"mixed-{next(_numbers)}")


@pytest.fixture
def topic(legacy_kafka: KafkaBroker) -> str:
    """A new topic of seven partitions."""
    name = f"mixed-{next(_numbers)}"
    legacy_kafka.create_topic(name, 7)
    return name


@pytest.fixture
def scala(legacy_kafka: KafkaBroker, group: Consumergroup) -> Iterator[Scala]:
    """Start a Scala member of the group: name, topics, options."""
    with ExitStack() as stack:

        def start(name: str, *args: Any, **options: Any) -> ScalaConsumer:
            member = stack.enter_context(ScalaConsumer(legacy_kafka, group.name, name, *args, **options))
            stack.callback(lambda: print(f"{member}:\n{member.log_tail()}"))
            return member

        yield start


@pytest.fixture
def ours(legacy_kafka: KafkaBroker, group: Consumergroup) -> Iterator[Ours]:
    """Start a zkgroups member: id, topics, options."""
    with ExitStack() as stack:

        def start(id: str, *args: Any, **options: Any) -> Reader:
            reader = Reader(legacy_kafka.zookeeper, legacy_kafka.address, group.name, id, *args, **options)
            stack.enter_context(reader)
            stack.callback(lambda: print(f"{reader}: {reader.member.stats}", *reader.events, sep="\n"))
            return reader

        yield start


@pytest.fixture
def process(legacy_kafka: KafkaBroker, group: Consumergroup) -> Iterator[Callable[..., ReaderProcess]]:
    """Start a zkgroups member that can be killed: id, topics."""
    with ExitStack() as stack:

        def start(id: str, topics: dict[str, int]) -> ReaderProcess:
            reader = ReaderProcess(legacy_kafka.zookeeper, legacy_kafka.address, group.name, id, topics)
            stack.enter_context(reader)
            stack.callback(lambda: print(f"{reader}:\n{reader.log_tail()}"))
            return reader

        yield start


@pytest.fixture
def offsets(group: Consumergroup) -> Iterator[OffsetLog]:
    """All offsets committed in the group."""
    with OffsetLog(group) as log:
        yield log


@pytest.fixture
def feed(legacy_kafka: KafkaBroker, topic: str) -> Feed:
    return Feed(legacy_kafka, topic)
