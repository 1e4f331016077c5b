"""Groups: create, delete, copy and list their instances, with members of all clients."""

from __future__ import annotations

import socket
import uuid
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from zkgroups import (
    Consumergroup,
    MalformedNode,
    Registry,
    TopicPartition,
)
from zkgroups.core.times import to_ms
from zkgroups.exceptions import (
    ConflictError,
    GroupExistsError,
    GroupInUseError,
    GroupNotFoundError,
    GuardFailedError,
    InterruptedDeleteError,
    InvalidNameError,
    OffsetConflictError,
)
from zkgroups.testing import Op, TcpProxy
from zkgroups.zookeeper.admin import copy_group
from zkgroups.zookeeper.admin.delete_group import Deletion
from zkgroups.zookeeper.admin.delete_unchanged import UnchangedDeletion
from zkgroups.zookeeper.admin.transaction_guards import NobodyRegistered
from zkgroups.zookeeper.requests.transaction import Operation

from .conftest import Connect
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


def test_a_group_is_deleted_only_with_the_offsets_that_were_read(group: Consumergroup, raw: Any) -> None:
    group.offsets.set_many({P0: 5, P1: 6})
    raw.create(f"{OFFSETS}/orders/x", b"")
    for change, error in (
        (lambda: group.offsets.set(P0, 5), OffsetConflictError),
        (lambda: group.offsets.set(TopicPartition("refunds", 0), 1), OffsetConflictError),
        (lambda: raw.set(f"{OFFSETS}/orders/x", b"y"), GuardFailedError),
    ):
        read = list(group.offsets)
        change()
        before = dump(raw)
        with pytest.raises(error):
            group.delete(read)
        assert dump(raw) == before
    group.delete(list(group.offsets))
    assert not group.exists()


class LateCommit(UnchangedDeletion):
    """A deletion during which another client commits, after the offsets were compared."""

    def __init__(self, group: Consumergroup, act: Callable[[], object]) -> None:
        super().__init__(group.paths, group._context, list(group.offsets))
        self._acts = [act]

    def _check_unchanged(self) -> None:
        super()._check_unchanged()
        while self._acts:
            self._acts.pop()()


@pytest.mark.parametrize(
    ("partition", "error"), [(0, OffsetConflictError), (1, GuardFailedError)], ids=["changed", "created"]
)
def test_an_offset_that_is_committed_after_the_comparison_is_not_deleted(
    group: Consumergroup, partition: int, error: type[Exception]
) -> None:
    group.offsets.set(P0, 5)
    at = TopicPartition("orders", partition)
    with pytest.raises(error):
        LateCommit(group, lambda: group.offsets.set(at, 6)).carry_out()
    assert group.offsets.fetch_many([P0, at]).keys() == {P0, at}


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
    large: Consumergroup, proxy: TcpProxy, proxied: Registry, raw: Any, connect: Connect
) -> None:
    member = connect().client
    raw.set(IDS, b"data of ids")

    def register(_event: object) -> None:
        member.create_async(f"{IDS}/late", b"{}", ephemeral=True)

    member.exists(f"{OFFSETS}/{topic(2)}", watch=register)
    proxy.delay(0.2, direction="requests")  # the registration is faster than the deletion of all other topics
    with pytest.raises(InterruptedDeleteError, match="in use by late") as caught:
        proxied.group("billing").delete()
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


def test_a_group_that_fits_into_one_transaction_is_copied_at_once(group: Consumergroup, raw: Any) -> None:
    """A member that joins the new group finds all offsets."""
    group.offsets.set_many({TopicPartition("orders", number): 5 for number in range(50)})
    group.copy("copy")
    paths = ["", "/ids", "/owners", "/offsets/orders", "/offsets/orders/0", "/offsets/orders/49"]
    assert len({raw.exists(f"/consumers/copy{path}").czxid for path in paths}) == 1


def test_an_instance_that_joins_before_all_offsets_are_copied_is_reported(
    group: Consumergroup, registry: Registry, raw: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def one_by_one(_session: Any, units: Sequence[Any], transact: Callable[[list[Any]], object]) -> None:
        for unit in units:
            transact([unit])
            if not registry.group("copy").instances():
                raw.create("/consumers/copy/ids/early", b"{}", ephemeral=True, makepath=True)

    monkeypatch.setattr(copy_group, "in_batches", one_by_one)
    group.offsets.set_many({P0: 5, P1: 6})
    with pytest.raises(ConflictError, match="an instance joined group 'copy' before all offsets were copied"):
        group.copy("copy")


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
