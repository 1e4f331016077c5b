"""What is read of groups: instances, owners and descriptions, with members of all clients; and waits for owners."""

from __future__ import annotations

import socket
import uuid
from typing import Any

import pytest

from tests.waiting import LONGEST, eventually
from zkgroups import (
    Consumergroup,
    GroupState,
    MalformedNode,
    Owner,
    Registry,
    TopicPartition,
)
from zkgroups.core.times import to_ms
from zkgroups.exceptions import ClaimTimeout, GuardFailedError, InvalidNameError
from zkgroups.testing import Op, TcpProxy
from zkgroups.zookeeper.admin import evict

from .helpers import IDS, OFFSETS, OWNER, OWNERS, P0, P1, in_background

pytestmark = pytest.mark.zookeeper

SCALA = "billing_host-1795255170109-ab12cd34"


# Instances and owners


def test_an_instance_without_an_id_gets_a_new_one_of_the_form_host_uuid4(group: Consumergroup) -> None:
    ids = {group.instance().id for _ in range(3)}
    assert len(ids) == 3
    for id in ids:
        host, _, unique = id.rpartition(":")
        assert host == socket.gethostname()
        assert (uuid.UUID(unique).version, str(uuid.UUID(unique))) == (4, unique)
    for bad in ("a/b", "", ".."):
        with pytest.raises(InvalidNameError, match="instance"):
            group.instance(bad)


def test_instances_are_sorted_by_id_and_carry_session_time_and_registration(
    group: Consumergroup, registry: Registry, raw: Any
) -> None:
    assert group.instances() == []
    raw.create(f"{IDS}/z", b"what is this", ephemeral=True, makepath=True)
    me = group.instance("a")
    me.register({"orders": 2})
    me.claim(P0)
    a, z = group.instances()
    assert (a.id, a.session, a.registration) == ("a", registry.session_id, me.registration())
    assert to_ms(a.registered_at) == raw.get(f"{IDS}/a")[1].ctime
    assert (z.id, z.session) == ("z", raw.client_id[0])
    assert isinstance(z.registration, MalformedNode)
    owner, stat = group.owner(P0), raw.get(OWNER)[1]
    assert isinstance(owner, Owner)
    assert (owner.at, owner.id, owner.session) == (P0, "a", registry.session_id)
    assert (to_ms(owner.claimed_at), owner.czxid, owner.version) == (stat.ctime, stat.czxid, 0)


def test_owners_are_read_in_the_formats_of_all_clients(group: Consumergroup, raw: Any) -> None:
    go = "host:1b4e28ba-2fa1-41d2-883f-0016d3cca427"
    for path, data in (
        ("orders/10", f"{SCALA}-0"),
        ("orders/9", go),
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
        ("orders/9", go),
        ("orders/10", f"{SCALA}-0"),
        ("refunds/4", "pykafka without a leader"),
        ("refunds/3", "pykafka"),
    ]
    assert {owner.session for owner in good} == {raw.client_id[0]}
    assert good[1].instance([SCALA]) == SCALA
    bad = {owner.path for owner in found if isinstance(owner, MalformedNode)}
    assert bad == {f"{OWNERS}/orders/x", f"{OWNERS}/orders/1"}
    assert [group.owner(owner.at) for owner in good] == good
    assert (group.owner(P0), group.owner(TopicPartition("unknown", 0))) == (None, None)
    assert isinstance(group.owner(P1), MalformedNode)


# Waits


@pytest.mark.parametrize("form", ["orders/0", "b'orders'/1001-0"])
def test_waiting_ends_when_the_owner_releases_also_after_lost_connections(
    proxy: TcpProxy, proxied: Registry, raw: Any, form: str
) -> None:
    group = proxied.group("billing")
    group.wait_free(P0, timeout=0)
    raw.create(f"{OWNERS}/{form}", b"other", ephemeral=True, makepath=True)
    with in_background(lambda: group.wait_free(P0, timeout=LONGEST)) as outcome:
        for _ in range(2):
            asked = proxy.requests_by_type[Op.EXISTS]
            proxy.cut()
            assert eventually(lambda asked=asked: proxy.requests_by_type[Op.EXISTS] > asked)  # type: ignore[misc]
        assert outcome == []
        proxy.refuse()
        proxy.cut()
        raw.delete(f"{OWNERS}/{form}")  # while no client can notice it
        proxy.heal()
    assert outcome == [None]


def test_waiting_continues_when_another_instance_claims_at_once_and_the_timeout_names_it(
    proxy: TcpProxy, proxied: Registry, raw: Any
) -> None:
    group = proxied.group("billing")
    raw.create(OWNER, b"other", ephemeral=True, makepath=True)
    asked = proxy.requests_by_type[Op.EXISTS]
    with in_background(lambda: group.wait_free(P0, timeout=3.0)) as outcome:
        assert eventually(lambda: proxy.requests_by_type[Op.EXISTS] > asked or outcome)
        raw.delete(OWNER)
        raw.create(OWNER, b"a third", ephemeral=True)
    [error] = outcome
    if error is not None:  # None if it looked between the two
        assert isinstance(error, ClaimTimeout)
        assert isinstance(error.owner, Owner)
        assert (error.at, error.timeout, error.owner.id) == (P0, 3.0, "a third")
        assert "within 3 s: claimed by 'a third' of session 0x" in str(error)


# The administrative release


def test_an_administrative_release_deletes_pykafkas_node_too(group: Consumergroup, raw: Any) -> None:
    path = f"{OWNERS}/b'orders'/1001-0"
    raw.create(path, b"pykafka", ephemeral=True, makepath=True)
    raw.create(f"{IDS}/pykafka", b"orders", ephemeral=True, makepath=True)
    assert group.release(P0, expected_owner="pykafka").path == path
    assert not raw.exists(path)
    assert raw.get(f"{IDS}/pykafka")[1].version == 1


def test_an_administrative_release_of_a_malformed_owner_is_refused(group: Consumergroup, raw: Any) -> None:
    raw.create(OWNER, b"", ephemeral=True, makepath=True)
    with pytest.raises(GuardFailedError, match="malformed node"):
        group.release(P0, expected_owner="")
    assert raw.exists(OWNER)


def test_an_administrative_release_changes_nothing_if_the_owner_has_changed_since_the_read(
    group: Consumergroup, raw: Any
) -> None:
    """Two steps of `release`, with changes between them."""
    raw.create(OWNER, b"other", ephemeral=True, makepath=True)
    raw.create(f"{IDS}/other", b"orders", ephemeral=True, makepath=True)
    owner = group.owner(P0)
    assert isinstance(owner, Owner)
    [holder] = group.instances()
    for change, reason in (
        (lambda: raw.set(OWNER, b"other"), "has changed since it was read"),
        (lambda: raw.delete(OWNER), "has changed since it was read"),
        (lambda: raw.delete(f"{IDS}/other"), "just left"),
    ):
        change()
        with pytest.raises(GuardFailedError, match=reason):
            evict._delete_owner(group.paths, group._context, owner, holder)


# Descriptions


def test_a_missing_group_is_dead_and_a_group_with_offsets_only_is_empty(group: Consumergroup, raw: Any) -> None:
    description = group.describe()
    assert (description.state, description.partitions, description.last_commit_at) == (GroupState.DEAD, (), None)
    group.offsets.set(P0, 5)
    description = group.describe()
    assert (description.state, description.members, description.offsets) == (GroupState.EMPTY, 0, 1)
    assert to_ms(description.last_commit_at) == raw.get(f"{OFFSETS}/orders/0")[1].mtime
    assert group.topics() == ["orders"]
