"""Owners: the formats of all clients, waiting for a release, and administrative releases."""

from __future__ import annotations

import re
import time
from typing import Any

import pytest

from tests.testing.waiting import eventually
from zkgroups import (
    Consumergroup,
    MalformedNode,
    Owner,
    Registry,
    TopicPartition,
)
from zkgroups.core.times import to_ms
from zkgroups.exceptions import (
    AlreadyClaimedError,
    ClaimedByOtherError,
    ClaimTimeout,
    GuardFailedError,
    InvalidOptionError,
    NotClaimedError,
    NotConnectedError,
)
from zkgroups.testing import Op, TcpProxy
from zkgroups.zookeeper.admin import force_release

from .conftest import Connect
from .tree import offsets
from .waiting import in_background

pytestmark = pytest.mark.zookeeper


P0, P1, P2 = (TopicPartition("orders", number) for number in range(3))
GROUP = "/consumers/billing"
IDS, OWNERS, OFFSETS = f"{GROUP}/ids", f"{GROUP}/owners", f"{GROUP}/offsets"


# Owners


def test_a_partition_of_another_instance_of_the_same_session_is_claimed_by_another(group: Consumergroup) -> None:
    other, me = group.instance("other"), group.instance("me")
    for instance in (other, me):
        instance.register(["orders"])
    claim = other.claim(P0)
    with pytest.raises(AlreadyClaimedError):
        other.claim(P0)
    with pytest.raises(ClaimedByOtherError, match="other"):
        me.claim(P0)
    assert claim.verify()
    claim.release()
    assert me.claim(P0).verify()


def test_owners_are_read_in_the_formats_of_all_clients(group: Consumergroup, raw: Any) -> None:
    scala = "billing_host-1795255170109-ab12cd34"
    for path, data in (
        ("orders/10", f"{scala}-0"),
        ("orders/9", "host:1b4e28ba-2fa1-41d2-883f-0016d3cca427"),
        ("b'refunds'/1001-3", "pykafka"),
        ("b'refunds'/-1-4", "pykafka without a leader"),
    ):
        raw.create(f"{OWNERS}/{path}", data.encode(), ephemeral=True, makepath=True)
    raw.create(f"{OWNERS}/orders/x", b"who", ephemeral=True)
    raw.create(f"{OWNERS}/orders/1", b"of no session")
    raw.create(f"{OWNERS}/empty")
    found = list(group.owners())
    good = [owner for owner in found if isinstance(owner, Owner)]
    assert [(str(owner.at), owner.id) for owner in good] == [
        ("orders/9", "host:1b4e28ba-2fa1-41d2-883f-0016d3cca427"),
        ("orders/10", f"{scala}-0"),
        ("refunds/4", "pykafka without a leader"),
        ("refunds/3", "pykafka"),
    ]
    assert {owner.session for owner in good} == {raw.client_id[0]}
    assert good[1].instance([scala]) == scala
    assert {owner.path for owner in found if isinstance(owner, MalformedNode)} == {
        f"{OWNERS}/orders/x",
        f"{OWNERS}/orders/1",
    }
    for owner in good:
        assert group.owner(owner.at) == owner
    assert group.owner(P0) is None
    assert group.owner(TopicPartition("unknown", 0)) is None
    assert isinstance(group.owner(P1), MalformedNode)


def test_an_owner_has_its_session_and_the_time_of_the_claim(group: Consumergroup, registry: Registry, raw: Any) -> None:
    with group.instance("me") as me:
        me.register(["orders"])
        me.claim(P0)
        owner = group.owner(P0)
        assert isinstance(owner, Owner)
        stat = raw.get(f"{OWNERS}/orders/0")[1]
        assert (owner.at, owner.id, owner.session) == (P0, "me", registry.session_id)
        assert (to_ms(owner.claimed_at), owner.czxid, owner.version) == (stat.ctime, stat.czxid, 0)
    assert group.owner(P0) is None


@pytest.mark.parametrize("form", ["orders/0", "b'orders'/1001-0"])
def test_waiting_ends_when_the_owner_releases(proxy: TcpProxy, proxied: Registry, raw: Any, form: str) -> None:
    group = proxied.group("billing")
    group.wait_free(P0, timeout=0)
    raw.create(f"{OWNERS}/{form}", b"other", ephemeral=True, makepath=True)
    asked = proxy.requests_by_type[Op.EXISTS]
    with in_background(lambda: group.wait_free(P0, timeout=20)) as outcome:
        assert eventually(lambda: proxy.requests_by_type[Op.EXISTS] > asked)
        assert outcome == []
        raw.delete(f"{OWNERS}/{form}")
    assert outcome == [None]


def test_waiting_continues_when_another_instance_claims_at_once_and_the_timeout_names_it(
    proxy: TcpProxy, proxied: Registry, raw: Any
) -> None:
    group = proxied.group("billing")
    raw.create(f"{OWNERS}/orders/0", b"other", ephemeral=True, makepath=True)
    asked = proxy.requests_by_type[Op.EXISTS]
    start = time.monotonic()
    with in_background(lambda: group.wait_free(P0, timeout=8.0)) as outcome:
        assert eventually(lambda: proxy.requests_by_type[Op.EXISTS] > asked and proxy.replies == proxy.requests)
        transaction = raw.transaction()
        transaction.delete(f"{OWNERS}/orders/0")
        transaction.create(f"{OWNERS}/orders/0", b"a third", ephemeral=True)
        transaction.commit()
    assert time.monotonic() - start >= 8.0
    [error] = outcome
    assert isinstance(error, ClaimTimeout)
    assert isinstance(error.owner, Owner)
    assert (error.at, error.timeout, error.owner.id) == (P0, 8.0, "a third")
    assert to_ms(error.owner.claimed_at) == raw.get(f"{OWNERS}/orders/0")[1].ctime
    assert re.search(r"within 8 s: claimed by 'a third' of session 0x\w+ since 20\d\d-", str(error))


def test_a_lost_connection_does_not_end_the_wait(proxy: TcpProxy, proxied: Registry, raw: Any) -> None:
    group = proxied.group("billing")
    raw.create(f"{OWNERS}/orders/0", b"other", ephemeral=True, makepath=True)
    with in_background(lambda: group.wait_free(P0, timeout=20)) as outcome:
        for _ in range(3):
            asked = proxy.requests_by_type[Op.EXISTS]
            proxy.cut()
            assert eventually(lambda asked=asked: proxy.requests_by_type[Op.EXISTS] > asked)  # type: ignore[misc]
        assert outcome == []
        proxy.refuse()
        proxy.cut()
        raw.delete(f"{OWNERS}/orders/0")  # while no client can notice it
        proxy.heal()
    assert outcome == [None]


def test_closing_the_registry_ends_the_wait_even_for_an_own_node(proxy: TcpProxy, proxied: Registry) -> None:
    group = proxied.group("billing")
    holder = group.instance("holder")
    holder.register([])
    holder.claim(P0)
    asked = proxy.requests_by_type[Op.EXISTS]
    with in_background(lambda: group.wait_free(P0, timeout=3600)) as outcome:
        assert eventually(lambda: proxy.requests_by_type[Op.EXISTS] > asked and proxy.replies == proxy.requests)
        proxied.close()
    assert isinstance(outcome[0], NotConnectedError)


@pytest.mark.parametrize("timeout", [-1, float("nan"), "5", None])
def test_an_invalid_timeout_is_refused(group: Consumergroup, timeout: Any) -> None:
    with pytest.raises(InvalidOptionError, match="timeout"):
        group.wait_free(P0, timeout=timeout)


# The administrative release


def test_an_administrative_release_returns_the_owner_and_frees_only_that_partition(
    group: Consumergroup, connect: Connect, raw: Any
) -> None:
    me = connect().group("billing").instance("me")
    me.register(["orders"])
    claims = me.claim_many([P0, P1])
    before = group.owner(P0)
    assert group.release(P0, expected_owner="me", expected_session=me.session_id) == before
    assert group.owner(P0) is None
    with pytest.raises(NotClaimedError):
        claims[P0].commit(5)
    claims[P1].commit(5)
    assert offsets(raw, "billing") == {"orders/1": b"5"}
    me.claim(P0).commit(7)
    with pytest.raises(AlreadyClaimedError):
        me.claim(P0)


def test_an_administrative_release_deletes_pykafkas_node_too(group: Consumergroup, raw: Any) -> None:
    path = f"{OWNERS}/b'orders'/1001-0"
    raw.create(path, b"pykafka", ephemeral=True, makepath=True)
    raw.create(f"{IDS}/pykafka", b"orders", ephemeral=True, makepath=True)
    assert group.release(P0, expected_owner="pykafka").path == path
    assert not raw.exists(path)
    assert raw.get(f"{IDS}/pykafka")[1].version == 1


def test_an_administrative_release_of_a_malformed_owner_is_refused(group: Consumergroup, raw: Any) -> None:
    raw.create(f"{OWNERS}/orders/0", b"", ephemeral=True, makepath=True)
    with pytest.raises(GuardFailedError, match="malformed node"):
        group.release(P0, expected_owner="")
    assert raw.exists(f"{OWNERS}/orders/0")


def test_an_administrative_release_changes_nothing_if_the_owner_has_changed_since_the_read(
    group: Consumergroup, raw: Any
) -> None:
    raw.create(f"{OWNERS}/orders/0", b"other", ephemeral=True, makepath=True)
    raw.create(f"{IDS}/other", b"orders", ephemeral=True, makepath=True)
    owner = group.owner(P0)
    assert isinstance(owner, Owner)
    [holder] = group.instances()

    def release() -> None:
        force_release._delete_owner(group.paths, group._context, owner, holder)

    raw.set(f"{OWNERS}/orders/0", b"other")
    with pytest.raises(GuardFailedError, match="has changed since it was read"):
        release()
    raw.delete(f"{OWNERS}/orders/0")
    with pytest.raises(GuardFailedError, match="has changed since it was read"):
        release()
    assert raw.get(f"{IDS}/other")[1].version == 0
    raw.delete(f"{IDS}/other")
    with pytest.raises(GuardFailedError, match="just left"):
        release()
