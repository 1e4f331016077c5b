"""Fixtures: a tree, and a client that writes it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from kazoo.client import KazooClient

from ..model import Model, plant


@pytest.fixture
def kazoo(zookeeper_hosts: str) -> Iterator[Any]:
    client = KazooClient(zookeeper_hosts)
    client.start()
    yield client
    client.stop()
    client.close()


@pytest.fixture
def model(kazoo: Any) -> Model:
    return plant(kazoo, ["billing", "shipping"])
