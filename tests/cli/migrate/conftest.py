"""Fixtures: `zkgroups migrate` beside real servers. All runs that need Spark share one session: see `kept_spark.py`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import pytest

from zkgroups import Registry, TopicPartition
from zkgroups.kafka import Brokers
from zkgroups.testing import KafkaBroker

from ..kept_spark import Kept
from ..running import Ended
from .moving import MESSAGES, Migrate, make_topic


@pytest.fixture(scope="package")
def kept() -> Iterator[Kept]:
    with Kept() as kept:
        yield kept


@pytest.fixture
def migrate(kept: Kept, zookeeper_hosts: str, kafka: str) -> Migrate:
    """Run `zkgroups migrate`, with both sides named in the environment. Small plans run without Spark."""
    both = {"ZKGROUPS_ZOOKEEPER": zookeeper_hosts, "ZKGROUPS_BOOTSTRAP_SERVER": kafka}

    def migrate(*arguments: Any, **env: str) -> Ended:
        ended = kept.run("migrate", *arguments, env=both | env)
        assert "Traceback" not in ended.err
        return ended

    return migrate


@pytest.fixture(params=["local", "spark"])
def migrate_by(migrate: Migrate, request: pytest.FixtureRequest) -> Migrate:
    """Run it with each engine."""
    return lambda *arguments, **env: migrate(*arguments, "--engine", request.param, **env)


@pytest.fixture
def brokers(kafka: str) -> Iterator[Brokers]:
    with Brokers.connect(kafka) as found:
        yield found


@pytest.fixture(scope="package")
def topic(kafka_broker: KafkaBroker) -> str:
    return make_topic(kafka_broker)


@pytest.fixture
def group(registry: Registry, topic: str) -> str:
    """A new group with two offsets, and without members."""
    name = f"a b:ü {uuid4().hex[:8]}"
    registry.group(name).create()
    registry.group(name).offsets.set_many({TopicPartition(topic, 0): 5, TopicPartition(topic, 1): MESSAGES})
    return name
