"""The transaction log of a killed server is read completely, and each change once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from zkgroups import Registry, TopicPartition
from zkgroups.core.history.changes import ChangeKind, NodeChange
from zkgroups.core.history.events import Commit, OwnerChange
from zkgroups.testing import ZooKeeperServer

from ..lasting import through_restarts
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
    return Registry.connect(through_restarts(server.address), session_timeout=40.0)


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
    events = journal.read(server.data_dir, "billing")
    commits = [event for event in events if isinstance(event, Commit)]
    assert [
        (each.partition, each.offset, each.is_of_owner, each.instance and each.instance.id) for each in commits
    ] == [
        (0, 5, True, "me"),
        (1, 7, True, "me"),
        (0, 3, True, "me"),
        (0, 9, True, "me"),
        (1, 8, False, None),
    ]
    assert {commit.session for commit in commits} == {session}
    changes = [event for event in events if isinstance(event, OwnerChange)]
    assert [(each.action, each.partition, each.owner.id) for each in changes] == [
        ("claimed", 0, "me"),
        ("claimed", 1, "me"),
        ("released", 0, "me"),
        ("released", 1, "me"),
    ]


def test_the_partitions_of_an_expired_session_have_no_owner(server: ZooKeeperServer) -> None:
    with connect(server) as registry:
        me = registry.group("billing").instance("me")
        me.register(["orders"])
        me.claim(P0)
        expire(registry)
        registry.group("billing").offsets.set(P0, 1)
    [commit] = (event for event in journal.read(server.data_dir, "billing") if isinstance(event, Commit))
    assert (commit.offset, commit.owner, commit.instance) == (1, None, None)


def test_a_deleted_offset_is_read_without_the_chroot(server: ZooKeeperServer) -> None:
    with connect(server) as registry:
        registry.client.ensure_path("/kafka")
    with Registry.connect(f"{server.address}/kafka") as registry:
        registry.group("billing").offsets.set(P0, 1)
        registry.group("billing").delete()
    events = journal.read(server.data_dir, "billing", chroot="/kafka")
    commits = [event for event in events if isinstance(event, Commit)]
    assert [(commit.partition, commit.offset) for commit in commits] == [(0, 1), (0, None)]
    assert journal.read(server.data_dir, "billing") == []


def test_changes_of_an_ensemble_are_those_that_a_majority_has(monkeypatch: pytest.MonkeyPatch) -> None:
    def made(zxid: int, session: int = 7) -> tuple[int, list[NodeChange]]:
        return zxid, [NodeChange(zxid, 0, session, ChangeKind.CREATED, b"billing/ids/%d" % zxid, is_ephemeral=True)]

    one, two, lost, three, other = made(1), made(2), made(3), made(4), made(3, session=8)
    logs = {"a": [one, two, lost, three], "b": [one, other, three], "c": [one, two, other]}
    monkeypatch.setattr(journal, "transactions", lambda data_dir: iter(logs[data_dir.name]))
    events = journal.accepted(map(Path, logs), "billing")
    assert [(event.zxid, event.session) for event in events] == [(1, 7), (2, 7), (3, 8), (4, 7)]
