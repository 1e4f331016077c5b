"""Fixtures: a tree, a client that writes it, and both engines that take snapshots."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.lasting import lasting_client
from zkgroups.snapshots.local_snapshot import take_snapshot as take_local_snapshot
from zkgroups.spark import Snapshot, take_snapshot

from ..model import Model, plant


@dataclass(frozen=True)
class Engine:
    """An engine. `options` chooses it on the command line."""

    name: str
    take: Callable[..., Snapshot]

    @property
    def options(self) -> tuple[str, ...]:
        return ("--engine", self.name)


@pytest.fixture(params=["spark", "local"])
def engine(request: pytest.FixtureRequest, spark: SparkSession) -> Engine:
    takes = {"spark": partial(take_snapshot, spark), "local": take_local_snapshot}
    return Engine(request.param, takes[request.param])


Take = Callable[..., Snapshot]


@pytest.fixture
def take(engine: Engine) -> Take:
    """Take a snapshot with each engine. Spark reads both."""
    return engine.take


@pytest.fixture
def kazoo(zookeeper_hosts: str) -> Iterator[Any]:
    with lasting_client(zookeeper_hosts) as client:
        yield client


@pytest.fixture
def model(kazoo: Any) -> Model:
    return plant(kazoo, ["billing", "shipping"])
