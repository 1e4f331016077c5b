"""Members on a real server: the fixtures of the folder above, without a simulated world."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from zkgroups import Consumergroup, Registry

from ..conftest import Running


@pytest.fixture
def connect(zookeeper_hosts: str) -> Iterator[Callable[..., Registry]]:
    """Connect more registries in the chroot of this test. The options are those of `Registry.connect`."""
    with ExitStack() as stack:
        yield lambda hosts=zookeeper_hosts, **options: stack.enter_context(Registry.connect(hosts, **options))


@pytest.fixture
def registry(zkgroups_registry: Registry) -> Registry:
    return zkgroups_registry


@pytest.fixture
def run(group: Consumergroup) -> Iterator[Callable[..., Running]]:
    """Start members of the group, or `on` another one. The options are those of `Member`."""
    with ExitStack() as stack:
        yield lambda *args, on=group, **options: stack.enter_context(Running(on, *args, **options))
