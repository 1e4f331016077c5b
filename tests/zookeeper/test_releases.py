"""What docs/operations.md says about the releases of ZooKeeper."""

from __future__ import annotations

import pytest

from zkgroups import Registry, TopicPartition
from zkgroups.exceptions import ZooKeeperTooOldError
from zkgroups.testing import Op

from . import liar
from .liar import Liar

UNKNOWN_REQUEST = -6


def test_a_server_without_transactions_is_read_and_refuses_every_write() -> None:
    """ZooKeeper 3.3, which came with Kafka 0.8.0, answers so, and closes the connection."""
    with (
        Liar({Op.MULTI: liar.with_header(error=UNKNOWN_REQUEST)}, version="3.3.6") as server,
        Registry.connect(server.address, timeout=30.0) as registry,
    ):
        group = registry.group("billing")
        assert group.instances()
        with pytest.raises(ZooKeeperTooOldError, match=r"writing needs ZooKeeper 3\.4 or newer"):
            group.offsets.set(TopicPartition("orders", 0), 8)
