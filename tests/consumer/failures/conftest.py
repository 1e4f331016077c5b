"""Fixtures: a crew of members, and a plain client."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.lasting import lasting_client

from ..crew import Crew
from .crews import TOPICS


@pytest.fixture
def crew(tmp_path: Path, zookeeper_hosts: str) -> Iterator[Crew]:
    """Members in threads of this process, judged at the end."""
    with Crew(tmp_path, zookeeper_hosts, TOPICS) as crew:
        yield crew


@pytest.fixture
def raw(zookeeper_hosts: str) -> Iterator[Any]:
    """A plain kazoo client."""
    with lasting_client(zookeeper_hosts) as client:
        yield client
