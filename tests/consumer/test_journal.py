"""The transaction log of a killed server is read completely, and each change once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from zkgroups import Registry, TopicPartition
from zkgroups.testing import ZooKeeperServer

from ..zookeeper.events import expire
from . import journal

pytestmark = pytest.mark.zookeeper

P0, P1 = TopicPartition("orders", 0), TopicPartition("orders", 1)


@pytest.fixture
def server() -> Iterator[ZooKeeperServer]:
    """A server whose log contains nothing of other tests."""
    with ZooKeeperServer() as server:
        yield server


def connect(server: ZooKeeperServer) -> Registry:
    return Registry.connect(",".join([server.address] * 5), session_timeout=4.0)


def test_every_write_is_read_with_the_owner_of_the_partition_even_after_a_kill_of_the_server(
    server: ZooKeeperServer,
) -> None:
    with connect(server) as registry:
        group, session = registry.group("billing"), registry.session_id
        with group.instance("me") as me:
            me.register(["orders"])
            with me.claim_many([P0, P1]) as claims:
                claims.commit({P0: 5, P1: 7})
                claims[P0].commit(3, backward=True)
                server.kill()
                server.start()
                claims[P0].commit(9)
        group.offsets.set(P1, 8)
        registry.group("another").offsets.set(P1, 1)
    writes, grants = journal.read(server.data_dir, "billing")
    assert [(write.at, write.offset, write.owner, write.registered) for write in writes] == [
        ("orders/0", 5, session, True),
        ("orders/1", 7, session, True),
        ("orders/0", 3, session, True),
        ("orders/0", 9, session, True),
        ("orders/1", 8, None, False),
    ]
    assert {write.session for write in writes} == {session}
    assert [(grant.at, grant.name, grant.registered) for grant in grants] == [
        ("orders/0", "me", True),
        ("orders/1", "me", True),
    ]


def test_the_partitions_of_an_expired_session_have_no_owner(server: ZooKeeperServer) -> None:
    with connect(server) as registry:
        me = registry.group("billing").instance("me")
        me.register(["orders"])
        me.claim(P0)
        expire(registry)
        registry.group("billing").offsets.set(P0, 1)
    [write], _ = journal.read(server.data_dir, "billing")
    assert (write.offset, write.owner, write.registered) == (1, None, False)


def test_a_deleted_offset_is_read_without_the_chroot(server: ZooKeeperServer) -> None:
    with connect(server) as registry:
        registry.client.ensure_path("/kafka")
    with Registry.connect(f"{server.address}/kafka") as registry:
        registry.group("billing").offsets.set(P0, 1)
        registry.group("billing").delete()
    writes, _ = journal.read(server.data_dir, "billing", chroot="/kafka")
    assert [(write.at, write.offset) for write in writes] == [("orders/0", 1), ("orders/0", None)]
    assert journal.read(server.data_dir, "billing") == ([], [])


def test_changes_of_an_ensemble_are_those_that_a_majority_has(monkeypatch: pytest.MonkeyPatch) -> None:
    one, two, lost, three = (journal.Change(zxid, 7, journal.SET, "/node", b"1") for zxid in (1, 2, 3, 4))
    other = journal.Change(3, 8, journal.SET, "/node", b"2")
    logs = {"a": [one, two, lost, three], "b": [one, other, three], "c": [one, two, other]}
    monkeypatch.setattr(journal, "changes", lambda data_dir: iter(logs[data_dir.name]))
    assert list(journal.accepted(map(Path, logs))) == [one, two, other, three]
