"""Access control lists and missing permissions. Failure 16 for a single registry."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from kazoo.security import make_digest_acl

from zkgroups import (
    Acl,
    AclPolicy,
    CommittedOffset,
    Digest,
    ForbiddenNode,
    GroupState,
    Registry,
    TopicPartition,
)
from zkgroups.exceptions import (
    AccessError,
    InvalidOptionError,
    NoPermissionError,
)
from zkgroups.zookeeper.admin.transaction_guards import NobodyRegistered

from .conftest import Connect
from .helpers import (
    ALICE,
    GROUP,
    IDS,
    OFFSETS,
    OWNERS,
    P0,
    P1,
    P2,
    SECRET,
    may_world,
    only_alice,
)
from .tree import dump

pytestmark = pytest.mark.zookeeper


# The policy


def test_each_kind_of_node_carries_its_own_list_and_the_parents_the_list_of_directories(
    connect: Connect, alice: Any
) -> None:
    directories = (ALICE, Acl("world", "anyone", "rc"))
    ephemerals = (ALICE, Acl("world", "anyone", "rw"))
    offsets = (ALICE, Acl("world", "anyone", "r"))
    registry = connect(acl=AclPolicy(directories, ephemerals, offsets), auth=[Digest("alice", SECRET)])
    group = registry.group("billing")
    me = group.instance("me")
    me.register(["orders"])
    me.update(["orders", "refunds"])
    claims = me.claim_many([P0, P1])
    claims[P0].commit(5)
    group.offsets.set_many({P2: 1, TopicPartition("refunds", 0): 2})
    group.copy("billing-2")
    registry.group("made").create()
    NobodyRegistered(registry.group("made").paths, registry._context)
    registry.group("made").offsets.reset({P0: 3})
    registry.group("made").offsets.delete([P0])
    expected = {"directory": directories, "ephemeral": ephemerals, "offset": offsets}
    seen = set()
    for path, (_data, ephemeral, _version) in dump(alice).items():
        kind = (
            "ephemeral"
            if ephemeral
            else "offset"
            if path.split("/")[3:4] == ["offsets"] and path.count("/") == 5
            else "directory"
        )
        acls = alice.get_acls(path)[0]
        assert {(a.id.scheme, a.id.id, a.perms) for a in acls} == {
            (a.scheme, a.id, {"cdrwa": 31, "rc": 5, "rw": 3, "r": 1}[a.permissions]) for a in expected[kind]
        }, path
        seen.add(kind)
    assert seen == set(expected)
    assert alice.exists(f"{IDS}/me")
    assert alice.exists(f"{OWNERS}/orders/1")


@pytest.mark.parametrize("acl", [Acl("digest", "no-colon"), Acl("no-such-scheme", "x"), Acl("ip", "not an address")])
def test_an_acl_that_the_server_rejects_is_named_and_nothing_is_created(connect: Connect, raw: Any, acl: Acl) -> None:
    registry = connect(acl=AclPolicy(directories=[acl]))
    with pytest.raises(InvalidOptionError, match="acl"):
        registry.group("billing").offsets.set(P0, 1)
    assert raw.get_children("/") == []


# No permission


def three_offsets(alice: Any) -> None:
    """Three offsets. All clients may read all of them, but write only the first."""
    alice.create(f"{OFFSETS}/orders/0", b"1", makepath=True)
    alice.create(f"{OFFSETS}/orders/1", b"1", acl=may_world(read=True))
    alice.create(f"{OFFSETS}/orders/2", b"1", acl=may_world(read=True, write=True))


def test_failure_16_a_fenced_commit_of_many_offsets_with_a_forbidden_one_changes_nothing(
    registry: Registry, alice: Any
) -> None:
    three_offsets(alice)
    me = registry.group("billing").instance("me")
    me.register(["orders"])
    claims = me.claim_many([P0, P1, P2])
    with pytest.raises(NoPermissionError) as caught:
        claims.commit({P0: 5, P1: 5, P2: 5})
    assert caught.value.path == f"{OFFSETS}/orders/1"
    assert [alice.get(f"{OFFSETS}/orders/{number}")[0] for number in range(3)] == [b"1"] * 3
    claims.commit({P0: 5, P2: 5})
    assert claims.held


def test_failure_16_a_copy_a_claim_and_a_registration_without_permission_are_all_or_nothing(
    registry: Registry, alice: Any
) -> None:
    group = registry.group("billing")
    three_offsets(alice)
    alice.create(OWNERS)
    alice.create(f"{OWNERS}/orders")
    alice.create(f"{OWNERS}/refunds", acl=may_world(read=True))
    alice.create(IDS)
    me = group.instance("me")
    me.register(["orders"])
    before = dump(alice)
    with pytest.raises(NoPermissionError) as caught:
        me.claim_many([P0, P1, TopicPartition("refunds", 0)])
    assert caught.value.path == f"{OWNERS}/refunds/0"
    assert (me.claims, dump(alice)) == ({}, before)
    alice.set_acls(IDS, may_world(read=True))
    with pytest.raises(NoPermissionError) as caught:
        group.instance("you").register(["orders"])
    assert caught.value.path == f"{IDS}/you"
    alice.set_acls("/consumers", may_world(read=True))
    with pytest.raises(NoPermissionError) as caught:
        group.copy("copy")
    assert caught.value.path == "/consumers/copy"
    assert alice.get_children("/consumers") == ["billing"]


@pytest.mark.parametrize(
    ("denied", "call"),
    [
        ("/consumers", lambda r: r.groups()),
        ("/brokers/topics", lambda r: r.topics()),
        ("/brokers/topics/orders", lambda r: r.topic("orders")),
        ("/brokers/ids", lambda r: r.brokers()),
        (IDS, lambda r: r.group("billing").instances()),
        (f"{IDS}/you", lambda r: r.group("billing").instance("you").registration()),
        (f"{OWNERS}/orders/0", lambda r: r.group("billing").owner(P0)),
        (f"{OFFSETS}/orders/0", lambda r: r.group("billing").offsets.fetch(P0)),
        (f"{OFFSETS}/orders/0", lambda r: r.group("billing").offsets.set(P0, 9)),
        (f"{OFFSETS}/orders/0", lambda r: r.group("billing").offsets.set(P0, 9, expected=None)),
        (f"{OFFSETS}/orders/0", lambda r: r.group("billing").offsets.reset({P0: 0}, force=True)),
        (f"{OFFSETS}/orders/0", lambda r: r.group("billing").offsets.delete([P0], force=True)),
        (IDS, lambda r: r.group("billing").offsets.reset({P0: 0})),
        (IDS, lambda r: r.group("billing").delete()),
        (IDS, lambda r: r.group("billing").release(P0, expected_owner="you")),
        (f"{IDS}/you", lambda r: r.group("billing").release(P0, expected_owner="you")),
    ],
)
def test_a_forbidden_read_raises_an_error_with_the_path_and_changes_nothing(
    registry: Registry, alice: Any, denied: str, call: Callable[[Registry], object]
) -> None:
    alice.create("/brokers/topics/orders", b'{"partitions":{"0":[1]}}', makepath=True)
    alice.ensure_path("/brokers/ids")
    alice.create(f"{OFFSETS}/orders/0", b"7", makepath=True)
    alice.create(f"{OWNERS}/orders/0", b"you", ephemeral=True, makepath=True)
    alice.create(f"{IDS}/you", b"orders", ephemeral=True, makepath=True)
    before = dump(alice, "/")
    alice.set_acls(denied, only_alice())
    with pytest.raises(NoPermissionError) as caught:
        call(registry)
    assert caught.value.path == denied
    assert denied in str(caught.value)
    assert isinstance(caught.value, AccessError)
    assert dump(alice, "/") == before


@pytest.mark.parametrize(
    ("denied", "call"),
    [
        (GROUP, lambda r: r.group("billing").delete()),
        (OFFSETS, lambda r: r.group("billing").offsets.set(TopicPartition("new", 0), 1)),
        (f"{OFFSETS}/orders", lambda r: r.group("billing").offsets.delete([P0, P1])),
        (f"{OFFSETS}/orders", lambda r: r.group("billing").delete()),
        (OWNERS, lambda r: r.group("billing").delete()),
        ("/consumers", lambda r: r.group("other").create()),
    ],
)
def test_a_forbidden_write_or_delete_raises_an_error_with_the_path_and_changes_nothing(
    registry: Registry, alice: Any, denied: str, call: Callable[[Registry], object]
) -> None:
    alice.create(f"{OFFSETS}/orders/0", b"7", makepath=True)
    alice.create(f"{OFFSETS}/orders/1", b"8")
    alice.create(f"{OWNERS}/orders", makepath=True)
    alice.create(IDS)
    alice.set_acls(denied, may_world(read=True))
    before = dump(alice, "/")
    with pytest.raises(NoPermissionError) as caught:
        call(registry)
    assert caught.value.path.startswith(denied)
    assert dump(alice, "/") == before


def test_failure_16_forbidden_nodes_are_marked_and_all_others_are_read(registry: Registry, alice: Any) -> None:
    group = registry.group("billing")
    alice.create("/brokers/topics/orders", b'{"partitions":{"0":[],"1":[],"2":[]}}', makepath=True)
    alice.create("/brokers/topics/refunds", b'{"partitions":{"0":[]}}', acl=only_alice())
    alice.create(
        f"{IDS}/me", b'{"version":1,"subscription":{"orders":1},"pattern":"static"}', ephemeral=True, makepath=True
    )
    alice.create(f"{IDS}/other", b"x", ephemeral=True, acl=only_alice())
    for number in range(3):
        alice.create(f"{OFFSETS}/orders/{number}", b"%d" % number, makepath=True)
        alice.create(f"{OWNERS}/orders/{number}", b"me", ephemeral=True, makepath=True)
    alice.create(f"{OFFSETS}/refunds/0", b"5", makepath=True)
    alice.create(f"{OFFSETS}/secret/0", b"5", makepath=True)
    alice.set_acls(f"{OFFSETS}/secret", only_alice())
    alice.set_acls(f"{OFFSETS}/orders/1", only_alice())
    alice.set_acls(f"{OWNERS}/orders/2", only_alice())

    denied = {f"{OFFSETS}/orders/1", f"{OFFSETS}/secret"}
    found = list(group.offsets)
    assert {node.path for node in found if isinstance(node, ForbiddenNode)} == denied
    assert {offset.at for offset in found if isinstance(offset, CommittedOffset)} == {
        P0,
        P2,
        TopicPartition("refunds", 0),
    }
    assert [type(offset) for offset in group.offsets.fetch_many([P0, P1]).values()] == [CommittedOffset, ForbiddenNode]
    assert [str(type(owner).__name__) for owner in group.owners()] == ["Owner", "Owner", "ForbiddenNode"]
    assert [instance.id for instance in group.instances()] == ["me", "other"]

    description = group.describe()
    assert {node.path for node in description.unreadable} == denied | {
        "/brokers/topics/refunds",
        f"{IDS}/other",
        f"{OWNERS}/orders/2",
    }
    assert all("permission" in node.reason for node in description.unreadable)
    assert (description.state, description.members, description.offsets) == (GroupState.UNKNOWN, 2, 3)
    assert description.unowned == (P2,)


def test_asserting_that_nobody_is_registered_leaves_the_list_of_ids_as_it_was(
    connect: Connect, alice: Any, registry: Registry
) -> None:
    """A server shows hashes only to administrators. An ACL written back without them would lock out all users."""
    registry.group("billing").offsets.set(P0, 5)
    acl = [
        make_digest_acl("alice", SECRET, all=True),
        make_digest_acl("bob", "b", read=True, write=True, create=True, delete=True),
    ]
    alice.create(IDS, b"kept", acl=acl)
    bob = connect(auth=[Digest("bob", "b")]).group("billing")
    for call in (lambda: bob.offsets.reset({P0: 3}), lambda: bob.offsets.delete([P0]), bob.delete):
        with pytest.raises(NoPermissionError) as caught:
            call()
        assert caught.value.path == IDS
    assert alice.get_acls(IDS)[0] == acl
    connect(auth=[Digest("alice", SECRET)]).group("billing").offsets.reset({P0: 3})
    assert alice.get_acls(IDS)[0] == acl
    assert alice.get(IDS)[0] == b"kept"
    assert alice.get(f"{OFFSETS}/orders/0")[0] == b"3"


def test_a_forbidden_node_counts_as_existing(connect: Connect, registry: Registry, alice: Any) -> None:
    """ZooKeeper 3.9 answers NoAuth if such a node exists."""
    alice.create(f"{OFFSETS}/orders/0", b"5", makepath=True)
    alice.set_acls("/", only_alice())
    alice.set_acls("/consumers", may_world(create=True))
    alice.set_acls(GROUP, may_world(create=True))
    group = connect().group("billing")
    assert group.exists()
    assert "billing" in registry
    assert group.describe().offsets == 1
    group.create()
    registry.group("other").create()
    assert sorted(alice.get_children(GROUP)) == ["ids", "offsets", "owners"]
    assert sorted(alice.get_children("/consumers")) == ["billing", "other"]
