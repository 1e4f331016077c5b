"""Sweepers of the tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from zkgroups import Registry
from zkgroups.serve.settings import SweepSettings
from zkgroups.serve.sweeper import Sweeper

Sweep = Callable[..., Sweeper]


@pytest.fixture
def sweeping(zookeeper_hosts: str) -> Iterator[Sweep]:
    """Start a sweeper on the ZooKeeper of the test. By default, only the first sweep and live changes happen."""
    with ExitStack() as stack:

        def sweeping(hosts: str = zookeeper_hosts, brokers: Any = None, **settings: Any) -> Sweeper:
            chosen = SweepSettings(**{"cluster": "prod", "every": 3600.0} | settings)
            return stack.enter_context(Sweeper(lambda: Registry.connect(hosts, timeout=20.0), brokers, chosen))

        yield sweeping
