"""A client that writes nodes as other programs do."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.lasting import lasting_client


@pytest.fixture
def raw(zookeeper_hosts: str) -> Iterator[Any]:
    with lasting_client(zookeeper_hosts) as client:
        yield client
