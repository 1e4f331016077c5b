"""Failure 18: two of three servers are down, so the third one only answers reads of read-only clients."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from kazoo.client import KazooClient
from kazoo.retry import KazooRetry

from tests.waiting import eventually
from zkgroups import CommittedOffset, GroupState, Registry
from zkgroups.exceptions import NotConnectedError, ReadOnlyError, UnavailableError
from zkgroups.testing import ZooKeeperEnsemble

from ..releases import REFUSED_SESSIONS, has
from .helpers import P0, P1, no_thread_stays

pytestmark = pytest.mark.zookeeper


@pytest.fixture(scope="module")
def ensemble() -> Iterator[ZooKeeperEnsemble]:
    with ZooKeeperEnsemble(read_only=True) as ensemble:
        yield ensemble


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    """A group per test, because the servers are shared."""
    return str(request.node.name)


@contextmanager
def minority(ensemble: ZooKeeperEnsemble) -> Iterator[None]:
    """Stop two servers, and wait until the third one is read-only."""
    for node in ensemble.nodes[1:]:
        node.kill()
    assert eventually(lambda: ensemble.nodes[0].mode() == "read-only")
    try:
        yield
    finally:
        for node in ensemble.nodes[1:]:
            node.launch()
        for node in ensemble.nodes:
            assert eventually(lambda node=node: node.mode() in ("leader", "follower"))  # type: ignore[misc]


@contextmanager
def reading_client(ensemble: ZooKeeperEnsemble) -> Iterator[Any]:
    """A plain client that accepts a read-only server."""
    retry = KazooRetry(max_tries=-1, delay=0.05, backoff=1)
    client = KazooClient(ensemble.address, timeout=12.0, read_only=True, connection_retry=retry)
    client.start(timeout=30.0)
    yield client
    client.stop()
    client.close()


@pytest.fixture
def client(ensemble: ZooKeeperEnsemble) -> Iterator[Any]:
    with reading_client(ensemble) as client:
        yield client


def test_failure_18_a_read_only_registry_reads_from_a_minority_and_refuses_to_write(
    ensemble: ZooKeeperEnsemble, name: str
) -> None:
    """A registry opened before gets a new session, because a server without a quorum does not know the old one."""
    with Registry.connect(ensemble.address, timeout=30.0) as writer:
        writer.group(name).offsets.set(P0, 5)
    with Registry.connect(ensemble.address, timeout=30.0, read_only=True) as registry:
        group = registry.group(name)
        assert eventually(lambda: group.offsets.fetch(P0) is not None)
        assert not registry.server_is_read_only
        with minority(ensemble):
            assert [o.offset for o in group.offsets if isinstance(o, CommittedOffset)] == [5]
            assert registry.server_is_read_only
            _reads_and_refuses(ensemble, name)
        assert eventually(lambda: group.exists() and not registry.server_is_read_only)


def _reads_and_refuses(ensemble: ZooKeeperEnsemble, name: str) -> None:
    with Registry.connect(ensemble.address, timeout=30.0, read_only=True) as registry:
        assert registry.server_is_read_only
        group = registry.group(name)
        assert name in registry
        assert [o.offset for o in group.offsets if isinstance(o, CommittedOffset)] == [5]
        assert group.describe().state is GroupState.EMPTY
        calls: list[Callable[[], object]] = [
            group.create,
            group.delete,
            lambda: group.offsets.set(P0, 6),
            lambda: group.offsets.reset({P0: 1}),
            lambda: group.instance("me").register(["orders"]),
            lambda: group.copy("copy"),
        ]
        for call in calls:
            with pytest.raises(ReadOnlyError):
                call()
        assert "copy" not in registry
    with reading_client(ensemble) as client:
        registry = Registry(client, timeout=20.0)
        group = registry.group(name)
        assert registry.server_is_read_only
        calls = [
            lambda: group.offsets.set(P0, 6),
            lambda: group.instance("me").register(["orders"]),
            registry.group("new").create,
        ]
        for call in calls:
            with pytest.raises(ReadOnlyError, match="lost its quorum"):
                call()
        assert group.instances() == []
    with no_thread_stays(), pytest.raises(NotConnectedError, match=r"quorum|answer|refused"):
        Registry.connect(ensemble.address, timeout=1.5)


def test_failure_18_an_earlier_claim_is_not_trusted_while_only_a_read_only_server_answers(
    ensemble: ZooKeeperEnsemble, client: Any, name: str
) -> None:
    """The server refuses the claim's session, but still shows its owner node, which another instance may hold next."""
    registry = Registry(client, timeout=2.0)
    group = registry.group(name)
    me = group.instance("me")
    me.register(["orders"])
    claim = me.claim(P0)
    claim.commit(5)
    assert claim.held
    with minority(ensemble):
        assert eventually(lambda: not claim.held)
        assert not me.registered
        with Registry.connect(ensemble.address, timeout=30.0, read_only=True) as reader:
            owner = reader.group(name).owner(P0)
            assert owner is not None
            assert owner.session == claim.session_id
            calls: list[Callable[[], object]] = [
                lambda: claim.commit(6),
                lambda: group.offsets.set(P1, 6),
                lambda: me.claim(P1),
                *([registry.groups] if has(REFUSED_SESSIONS) else []),
            ]
            for call in calls:
                with pytest.raises(UnavailableError):
                    call()
            assert not claim.held
            assert [o.offset for o in reader.group(name).offsets if isinstance(o, CommittedOffset)] == [5]
    assert eventually(lambda: client.connected)
    assert not claim.held or claim.verify()
    with Registry.connect(ensemble.address, timeout=30.0) as reader:  # and no late effect
        assert [o.offset for o in reader.group(name).offsets if isinstance(o, CommittedOffset)] == [5]
