"""Fixtures: the command, in a chroot that no other test uses."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from kazoo.client import KazooClient
from kazoo.security import ACL, Id, Permissions, make_digest_acl_credential
from zkgroups_cli.shared.engine_options import SparkOptions

from tests.lasting import lasting_client
from zkgroups import Registry, TopicPartition

from .running import Argument, Ended, run

Zkgroups = Callable[..., Ended]


@pytest.fixture(autouse=True)
def no_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    """No command starts Spark in the process of the tests. Installed commands start their own."""

    @contextmanager
    def session(*_: object) -> Iterator[Any]:
        raise AssertionError("it starts Spark")
        yield

    monkeypatch.setattr(SparkOptions, "session", session)


@pytest.fixture
def zkgroups(zookeeper_hosts: str) -> Zkgroups:
    """Run the command, with ZooKeeper named in the environment."""

    def zkgroups(*arguments: Argument, **env: str) -> Ended:
        return run(*arguments, env={"ZKGROUPS_ZOOKEEPER": zookeeper_hosts} | env)

    return zkgroups


@pytest.fixture
def kazoo(zookeeper_hosts: str) -> Iterator[KazooClient]:
    """A kazoo client, for nodes that zkgroups would not write."""
    with lasting_client(zookeeper_hosts) as client:
        yield client


@pytest.fixture
def cluster(kazoo: KazooClient) -> None:
    """A Kafka cluster that has no groups yet."""
    kazoo.ensure_path("/brokers/ids")


@pytest.fixture
def billing(registry: Registry, kazoo: KazooClient) -> Iterator[Any]:
    """A group of two live instances: `anna` owns orders/0 with offset 100, and orders/1 has no owner."""
    kazoo.create("/brokers/topics/orders", b'{"version":1,"partitions":{"0":[0],"1":[0]}}', makepath=True)
    group = registry.group("billing")
    with group.instance("anna") as anna, group.instance("ben") as ben:
        anna.register(["orders"])
        ben.register({"orders": 2})
        anna.claim(TopicPartition("orders", 0)).commit(100)
        yield group


@pytest.fixture
def secret(kazoo: KazooClient) -> str:
    """A group with one offset. All clients see the group, but only `alice` (password `sesame`) may read its nodes."""
    alice = ACL(Permissions.ALL, Id("digest", make_digest_acl_credential("alice", "sesame")))
    kazoo.add_auth("digest", "alice:sesame")
    kazoo.ensure_path("/consumers")
    kazoo.create("/consumers/secret", acl=[alice, ACL(Permissions.READ, Id("world", "anyone"))])
    for path in ("ids", "owners", "offsets", "offsets/orders"):
        kazoo.create(f"/consumers/secret/{path}", acl=[alice])
    kazoo.create("/consumers/secret/offsets/orders/0", b"7", acl=[alice])
    return "secret"
