"""Fixtures: a coordinator with its groups in ZooKeeper, and a client that writes nodes as old clients do."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from zkgroups import Consumergroup, Registry

from .served import Served

Serve = Callable[..., Served]


@pytest.fixture
def group(registry: Registry) -> Consumergroup:
    return registry.group("billing")


@pytest.fixture
def serve(registry: Registry) -> Iterator[Serve]:
    """Start a coordinator: a registry of its own, and the options of the storage."""
    with ExitStack() as stack:

        def start(own: Registry | None = None, **options: Any) -> Served:
            return stack.enter_context(Served(registry if own is None else own, **options))

        yield start
