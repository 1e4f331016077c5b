"""Groups: create, delete, copy, describe and administer them, with members of all clients."""

from __future__ import annotations

import json
import re
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest

from zkgroups import (
    Consumergroup,
    Dialect,
    GroupState,
    InstanceState,
    MalformedNode,
    Owner,
    Registration,
    Registry,
    TopicPartition,
)
from zkgroups.core.times import to_ms
from zkgroups.exceptions import (
    AlreadyClaimedError,
    ClaimTimeout,
    GroupExistsError,
    GroupInUseError,
    GroupNotFoundError,
    GuardFailedError,
    InterruptedDeleteError,
    InvalidNameError,
    InvalidOptionError,
    NotClaimedError,
    NotConnectedError,
)
from zkgroups.testing import Op, TcpProxy
from zkgroups.zookeeper.admin import force_release
from zkgroups.zookeeper.admin.delete_group import Deletion
from zkgroups.zookeeper.admin.transaction_guards import NobodyRegistered
from zkgroups.zookeeper.requests.transaction import Operation

from .conftest import Connect
from .events import attempt
from .tree import dump, offsets

pytestmark = pytest.mark.zookeeper

P0, P1, P2 = (TopicPartition("orders", number) for number in range(3))
GROUP = "/consumers/billing"
IDS, OWNERS, OFFSETS = f"{GROUP}/ids", f"{GROUP}/owners", f"{GROUP}/offsets"


# Create


def test_create_makes_the_directories_and_may_be_called_again(group: Consumergroup, raw: Any) -> None:
    assert not group.exists()
    group.create()
    group.offsets.set(P0, 5)
    before = dump(raw)
    group.create()
    assert group.exists()
    assert dump(raw) == before
    assert sorted(raw.get_children(GROUP)) == ["ids", "offsets", "owners"]


def test_create_completes_a_group_that_has_offsets_only(group: Consumergroup, raw: Any) -> None:
    raw.create(f"{OFFSETS}/orders/0", b"5", makepath=True)
    group.create()
    assert sorted(raw.get_children(GROUP)) == ["ids", "offsets", "owners"]
    assert offsets(raw, "billing") == {"orders/0": b"5"}


# Delete


def test_delete_removes_all_nodes_in_one_transaction(proxy: TcpProxy, proxied: Registry, raw: Any) -> None:
    group = proxied.group("billing")
    group.create()
    group.offsets.set_many({P0: 1, P1: 2, TopicPartition("refunds", 0): 3})
    raw.create(f"{OWNERS}/orders", makepath=True)
    raw.create(f"{OFFSETS}/orders/0/below", b"x")
    raw.create(f"{GROUP}/stray/a/b", b"x", makepath=True)
    raw.create("/consumers/billing-2/offsets/orders/0", b"5", makepath=True)
    before = proxy.requests_by_type[Op.MULTI]
    group.delete()
    assert proxy.requests_by_type[Op.MULTI] - before == 1
    assert sorted(dump(raw)) == [
        "/consumers",
        *(f"/consumers/billing-2{p}" for p in ("", "/offsets", "/offsets/orders", "/offsets/orders/0")),
    ]
    with pytest.raises(GroupNotFoundError, match="billing") as caught:
        group.delete()
    assert caught.value.group == "billing"


def test_delete_is_refused_while_an_instance_is_registered(group: Consumergroup, raw: Any) -> None:
    group.offsets.set(P0, 5)
    for name in ("d", "b", "a", "c"):
        raw.create(f"{IDS}/{name}", b"", ephemeral=True, makepath=True)
    before = dump(raw)
    with pytest.raises(GroupInUseError, match="a, b, c and 1 more") as caught:
        group.delete()
    assert caught.value.instances == ("a", "b", "c", "d")
    assert dump(raw) == before


def test_delete_is_refused_while_a_live_session_owns_a_partition_without_a_registration(
    group: Consumergroup, raw: Any
) -> None:
    raw.create(f"{OWNERS}/b'orders'/1001-0", b"pykafka", ephemeral=True, makepath=True)
    before = dump(raw)
    with pytest.raises(GroupInUseError, match="pykafka"):
        group.delete()
    assert dump(raw) == before
    raw.delete(f"{OWNERS}/b'orders'/1001-0")
    raw.create(f"{OWNERS}/orders/0", b"of no session", makepath=True)
    group.delete()
    assert not group.exists()


class Interrupted(Deletion):
    """A deletion during which another client acts, between the read and the first transaction."""

    def __init__(self, group: Consumergroup, act: Callable[[], object]) -> None:
        super().__init__(group.paths, group._context)
        self._acts = [act]

    def _transact(self, operations: Sequence[Operation], guard: NobodyRegistered | None = None) -> bool:
        while self._acts:
            self._acts.pop()()
        return super()._transact(operations, guard)


@pytest.mark.parametrize("ids", [True, False], ids=["ids", "no ids"])
def test_delete_is_refused_when_an_instance_registers_after_the_read(group: Consumergroup, raw: Any, ids: bool) -> None:
    group.offsets.set(P0, 5)
    if ids:
        raw.create(IDS)
    late = Interrupted(group, lambda: raw.create(f"{IDS}/late", b"{}", ephemeral=True, makepath=True))
    assert not late.attempt()
    before = dump(raw)
    assert offsets(raw, "billing") == {"orders/0": b"5"}
    with pytest.raises(GroupInUseError, match="late"):
        late.attempt()
    assert dump(raw) == before


def test_nodes_written_or_deleted_after_the_read_do_not_stop_a_delete(group: Consumergroup, raw: Any) -> None:
    for act in (
        lambda: raw.create(f"{OFFSETS}/orders/1", b"6"),
        lambda: raw.delete(f"{OFFSETS}/orders/0"),
        lambda: raw.create(f"{OWNERS}/new", makepath=True),
    ):
        group.offsets.set(P0, 5)
        late = Interrupted(group, act)
        assert not late.attempt()
        assert late.attempt()
        assert not group.exists()


# Delete a group larger than one request


TOPICS, PARTITIONS, NAME = 24, 60, "t" * 900


def topic(number: int) -> str:
    return f"{NAME}-{number:02}"


@pytest.fixture
def large(group: Consumergroup, raw: Any) -> Consumergroup:
    """A group whose paths alone (1.3 MB) exceed the limit of one request."""
    group.create()
    group.offsets.set_many({TopicPartition(topic(t), p): p for t in range(TOPICS) for p in range(PARTITIONS)})
    raw.create(f"{OWNERS}/{topic(3)}")
    return group


def test_a_group_larger_than_one_request_is_deleted_with_one_transaction_per_topic(
    large: Consumergroup, proxy: TcpProxy, proxied: Registry, raw: Any
) -> None:
    before = proxy.requests_by_type[Op.MULTI]
    proxied.group("billing").delete()
    assert proxy.requests_by_type[Op.MULTI] - before == TOPICS + 1
    assert raw.get_children("/consumers") == []
    assert not large.exists()


def test_an_instance_that_registers_while_a_large_group_is_deleted_stops_it_between_topics(
    large: Consumergroup, raw: Any, connect: Connect
) -> None:
    member = connect().client
    raw.set(IDS, b"data of ids")

    def register(_event: object) -> None:
        member.create_async(f"{IDS}/late", b"{}", ephemeral=True)

    member.exists(f"{OFFSETS}/{topic(2)}", watch=register)
    with pytest.raises(InterruptedDeleteError, match="in use by late") as caught:
        large.delete()
    left = raw.get_children(OFFSETS)
    assert 0 < len(left) < TOPICS - 2
    assert caught.value.left == tuple(sorted(left))
    assert isinstance(caught.value.__cause__, GroupInUseError)
    assert {len(raw.get_children(f"{OFFSETS}/{name}")) for name in left} == {PARTITIONS}
    assert raw.get(IDS)[0] == b"data of ids"
    assert raw.get_children(IDS) == ["late"]
    assert not raw.exists(f"{OWNERS}/{topic(3)}") or topic(3) in left
    member.delete(f"{IDS}/late")
    large.delete()
    assert not raw.exists(GROUP)


def test_a_topic_larger_than_one_request_is_deleted_in_several_transactions(
    group: Consumergroup, registry: Registry
) -> None:
    group.offsets.set_many({TopicPartition("t" * 12_000, number): 1 for number in range(100)})
    group.delete()
    assert registry.groups() == []


# Copy


def test_a_copy_has_the_offsets_without_members_and_returns_the_malformed_nodes(
    group: Consumergroup, registry: Registry, raw: Any
) -> None:
    group.offsets.set_many({P0: 5, TopicPartition("refunds", 3): 0})
    for path, data in (("orders/1", b"what"), ("orders/x", b"6"), ("orders/2", b"+7"), ("orders/3", b"")):
        raw.create(f"{OFFSETS}/{path}", data)
    raw.create(f"{IDS}/me", b"{}", ephemeral=True, makepath=True)
    raw.create(f"{OWNERS}/orders/0", b"me", ephemeral=True, makepath=True)
    before = dump(raw, GROUP)
    copied = group.copy("copy")
    assert copied.offsets == 3
    assert {node.path for node in copied.left_out} == {f"{OFFSETS}/orders/{name}" for name in ("1", "x", "3")}
    assert offsets(raw, "copy") == {"orders/0": b"5", "refunds/3": b"0", "orders/2": b"7"}
    copy = registry.group("copy")
    assert (copy.instances(), list(copy.owners())) == ([], [])
    assert sorted(raw.get_children("/consumers/copy")) == ["ids", "offsets", "owners"]
    assert dump(raw, GROUP) == before


def test_a_copy_to_an_existing_group_is_refused_even_if_it_is_empty(group: Consumergroup, raw: Any) -> None:
    group.offsets.set(P0, 5)
    raw.create("/consumers/stray")
    before = dump(raw)
    for name in ("stray", "billing"):
        with pytest.raises(GroupExistsError) as caught:
            group.copy(name)
        assert caught.value.group == name
    for bad in ("a/b", ""):
        with pytest.raises(InvalidNameError):
            group.copy(bad)
    assert dump(raw) == before


def test_copying_a_missing_group_is_an_error(group: Consumergroup, raw: Any) -> None:
    with pytest.raises(GroupNotFoundError):
        group.copy("copy")
    assert raw.get_children("/") == []


def test_an_empty_group_and_a_group_larger_than_one_batch_are_copied(group: Consumergroup, registry: Registry) -> None:
    group.create()
    assert group.copy("empty").offsets == 0
    assert registry.group("empty").exists()
    group.offsets.set_many({TopicPartition("orders", number): number for number in range(2_050)})
    assert group.copy("full").offsets == 2_050
    assert sum(1 for _ in registry.group("full").offsets) == 2_050


# Instances


def test_an_instance_without_an_id_gets_a_new_one_of_the_form_host_uuid4(group: Consumergroup) -> None:
    ids = [group.instance().id for _ in range(3)]
    assert len(set(ids)) == 3
    for id in ids:
        host, _, unique = id.rpartition(":")
        assert host == socket.gethostname()
        assert uuid.UUID(unique).version == 4
        assert str(uuid.UUID(unique)) == unique
    assert group.instance("mine").id == "mine"
    for bad in ("a/b", "", ".."):
        with pytest.raises(InvalidNameError, match="instance"):
            group.instance(bad)


def test_instances_are_sorted_by_id_and_carry_session_time_and_registration(
    group: Consumergroup, registry: Registry, raw: Any
) -> None:
    assert group.instances() == []
    raw.create(f"{IDS}/z", b"what is this", ephemeral=True, makepath=True)
    me = group.instance("a")
    registration = me.register({"orders": 2})
    a, z = group.instances()
    assert (a.id, a.session, a.registration) == ("a", registry.session_id, me.registration())
    assert a.registration.streams == registration.streams  # type: ignore[union-attr]
    assert to_ms(a.registered_at) == raw.get(f"{IDS}/a")[1].ctime
    assert (z.id, z.session) == ("z", raw.client_id[0])
    assert isinstance(z.registration, MalformedNode)


# Owners


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


# Wait


@contextmanager
def in_background(call: Callable[[], object]) -> Iterator[list[object]]:
    """Call it in a thread during the block. The list then contains its result or error."""
    outcome: list[object] = []
    thread = threading.Thread(target=lambda: outcome.append(attempt(call)))
    thread.start()
    yield outcome
    thread.join(30)
    assert not thread.is_alive()


def until(condition: Callable[[], object], timeout: float = 30.0) -> None:
    deadline = time.monotonic() + timeout
    tick = threading.Event()
    while not condition():
        assert time.monotonic() < deadline
        tick.wait(0.002)


@pytest.mark.parametrize("form", ["orders/0", "b'orders'/1001-0"])
def test_waiting_ends_when_the_owner_releases(proxy: TcpProxy, proxied: Registry, raw: Any, form: str) -> None:
    group = proxied.group("billing")
    group.wait_free(P0, timeout=0)
    raw.create(f"{OWNERS}/{form}", b"other", ephemeral=True, makepath=True)
    asked = proxy.requests_by_type[Op.EXISTS]
    with in_background(lambda: group.wait_free(P0, timeout=20)) as outcome:
        until(lambda: proxy.requests_by_type[Op.EXISTS] > asked)
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
    with in_background(lambda: group.wait_free(P0, timeout=1.0)) as outcome:
        until(lambda: proxy.requests_by_type[Op.EXISTS] > asked and proxy.replies == proxy.requests)
        transaction = raw.transaction()
        transaction.delete(f"{OWNERS}/orders/0")
        transaction.create(f"{OWNERS}/orders/0", b"a third", ephemeral=True)
        transaction.commit()
    assert 1.0 <= time.monotonic() - start < 10
    [error] = outcome
    assert isinstance(error, ClaimTimeout)
    assert isinstance(error.owner, Owner)
    assert (error.at, error.timeout, error.owner.id) == (P0, 1.0, "a third")
    assert to_ms(error.owner.claimed_at) == raw.get(f"{OWNERS}/orders/0")[1].ctime
    assert re.search(r"within 1 s: claimed by 'a third' of session 0x\w+ since 20\d\d-", str(error))


def test_a_lost_connection_does_not_end_the_wait(proxy: TcpProxy, proxied: Registry, raw: Any) -> None:
    group = proxied.group("billing")
    raw.create(f"{OWNERS}/orders/0", b"other", ephemeral=True, makepath=True)
    with in_background(lambda: group.wait_free(P0, timeout=20)) as outcome:
        for _ in range(3):
            asked = proxy.requests_by_type[Op.EXISTS]
            proxy.cut()
            until(lambda asked=asked: proxy.requests_by_type[Op.EXISTS] > asked)  # type: ignore[misc]
        assert outcome == []
        proxy.refuse()
        proxy.cut()
        raw.delete(f"{OWNERS}/orders/0")  # while nobody hears it
        proxy.heal()
    assert outcome == [None]


def test_closing_the_registry_ends_the_wait_even_for_an_own_node(proxy: TcpProxy, proxied: Registry) -> None:
    group = proxied.group("billing")
    holder = group.instance("holder")
    holder.register([])
    holder.claim(P0)
    asked = proxy.requests_by_type[Op.EXISTS]
    with in_background(lambda: group.wait_free(P0, timeout=3600)) as outcome:
        until(lambda: proxy.requests_by_type[Op.EXISTS] > asked and proxy.replies == proxy.requests)
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


# Describe


def test_a_missing_group_is_dead_and_a_group_with_offsets_only_is_empty(group: Consumergroup, raw: Any) -> None:
    description = group.describe()
    assert (description.state, description.partitions, description.last_commit_at) == (GroupState.DEAD, (), None)
    group.offsets.set(P0, 5)
    description = group.describe()
    assert (description.state, description.members, description.offsets) == (GroupState.EMPTY, 0, 1)
    assert to_ms(description.last_commit_at) == raw.get(f"{OFFSETS}/orders/0")[1].mtime
    assert group.topics() == ["orders"]


def test_a_group_with_members_of_all_clients_is_described(group: Consumergroup, connect: Connect, raw: Any) -> None:
    scala, go, pykafka = (connect().client for _ in range(3))
    scala_id, go_id, pykafka_id = "billing_host-1795255170109-ab12cd34", f"host:{uuid.uuid4()}", f"host:{uuid.uuid4()}"
    raw.create("/brokers/topics/orders", b'{"version":1,"partitions":{"0":[1],"1":[1],"2":[1],"7":[1]}}', makepath=True)
    raw.create("/brokers/topics/refunds", b'{"version":1,"partitions":{"0":[1],"1":[1]}}')
    raw.create("/brokers/topics/__consumer_offsets", b'{"version":1,"partitions":{"0":[1]}}')
    raw.ensure_path(IDS)
    fields: dict[str, Any] = {
        "version": 1,
        "subscription": {"ord.*": 2},
        "pattern": "white_list",
        "timestamp": "1795255170109",
    }
    scala.create(f"{IDS}/{scala_id}", json.dumps(fields).encode(), ephemeral=True)
    fields = {"pattern": "static", "subscription": {"orders": 1}, "timestamp": 1795255543, "version": 1}
    go.create(f"{IDS}/{go_id}", json.dumps(fields).encode(), ephemeral=True)
    pykafka.create(f"{IDS}/{pykafka_id}", b"refunds", ephemeral=True)
    description = group.describe()
    assert description.state is GroupState.PREPARING_REBALANCE
    assert {instance.state for instance in description.instances} == {InstanceState.JOINING}

    scala.create(f"{OWNERS}/orders/0", f"{scala_id}-0".encode(), ephemeral=True, makepath=True)
    scala.create(f"{OWNERS}/orders/1", f"{scala_id}-1".encode(), ephemeral=True)
    go.create(f"{OWNERS}/orders/2", go_id.encode(), ephemeral=True)
    for number in (0, 1):
        pykafka.create(f"{OWNERS}/b'refunds'/1-{number}", pykafka_id.encode(), ephemeral=True, makepath=True)
    group.offsets.set_many({P0: 5, TopicPartition("refunds", 1): 6})
    description = group.describe()
    instances = {instance.id: instance for instance in description.instances}
    assert description.state is GroupState.COMPLETING_REBALANCE
    assert description.unowned == (TopicPartition("orders", 7),)
    assert {id: instance.state for id, instance in instances.items()} == {
        scala_id: InstanceState.AWAITING_SYNC,
        go_id: InstanceState.AWAITING_SYNC,
        pykafka_id: InstanceState.STABLE,
    }
    assert instances[scala_id].owned == (P0, P1)
    assert {id: i.registration.dialect for id, i in instances.items() if isinstance(i.registration, Registration)} == {
        scala_id: Dialect.SCALA,
        go_id: Dialect.KAZOO_GO,
        pykafka_id: Dialect.PYKAFKA,
    }
    assert description.topics == ("orders", "refunds")
    assert (description.members, description.owned, description.offsets) == (3, 5, 2)

    go.create(f"{OWNERS}/orders/7", go_id.encode(), ephemeral=True)
    assert group.describe().state is GroupState.STABLE
    scala.delete(f"{IDS}/{scala_id}")
    description = group.describe()
    assert description.state is GroupState.COMPLETING_REBALANCE
    assert {(owner.id, owner.at) for owner in description.orphans} == {(f"{scala_id}-0", P0), (f"{scala_id}-1", P1)}
    assert description.unowned == (P0, P1)
    assert [i.state for i in description.instances].count(InstanceState.LEAVING) == 2


def test_malformed_nodes_are_listed_by_path_beside_the_others(group: Consumergroup, raw: Any) -> None:
    raw.create(
        f"{IDS}/me", b'{"version":1,"subscription":{"orders":1},"pattern":"static"}', ephemeral=True, makepath=True
    )
    bad = {
        f"{IDS}/bad": b"what is this",
        f"{OWNERS}/orders/x": b"me",
        f"{OWNERS}/orders/1": b"\xff",
        f"{OFFSETS}/orders/1": b"",
        f"{OFFSETS}/orders/01": b"5",
        "/brokers/topics/orders": b"[]",
    }
    for path, data in bad.items():
        raw.create(path, data, ephemeral=path.startswith((IDS, OWNERS)), makepath=True)
    raw.create(f"{OWNERS}/orders/0", b"me", ephemeral=True)
    raw.create(f"{OFFSETS}/orders/0", b"5")
    description = group.describe()
    assert {node.path: node.data for node in description.unreadable} == bad
    assert all(node.reason for node in description.unreadable)
    assert (description.state, description.members, description.owned, description.offsets) == (
        GroupState.STABLE,
        2,
        1,
        1,
    )


def test_an_owner_of_another_session_with_the_name_of_an_instance_is_an_orphan(
    group: Consumergroup, connect: Connect, raw: Any
) -> None:
    raw.create(f"{IDS}/me", b"orders", ephemeral=True, makepath=True)
    connect().client.create(f"{OWNERS}/orders/0", b"me", ephemeral=True, makepath=True)
    description = group.describe()
    assert [owner.id for owner in description.orphans] == ["me"]
    assert description.owned == 0
    assert sorted(instance.state for instance in description.instances) == [
        InstanceState.JOINING,
        InstanceState.LEAVING,
    ]
