"""`zkgroups release`: releases a partition only if the expected instance owns it."""

from __future__ import annotations

from typing import Any

import pytest
from kazoo.client import KazooClient

from zkgroups import Consumergroup, Owner, Registry, TopicPartition
from zkgroups.exceptions import NotClaimedError

from .conftest import Zkgroups

pytestmark = pytest.mark.zookeeper

AT = TopicPartition("orders", 0)


def owned(group: Consumergroup) -> list[TopicPartition]:
    return [owner.at for owner in group.owners() if isinstance(owner, Owner)]


def test_a_partition_is_released_and_its_former_owner_is_reported(zkgroups: Zkgroups, billing: Consumergroup) -> None:
    owner = billing.owner(AT)
    assert isinstance(owner, Owner)
    done = zkgroups("release", "billing", "orders", "0", "--expect-owner", "anna")
    assert (done.code, done.out) == (0, "")
    assert done.err == f"released orders/0, which was claimed by {owner.holder}\n"
    assert owned(billing) == []
    assert [instance.id for instance in billing.instances()] == ["anna", "ben"]


def test_the_next_commit_of_the_former_owner_is_refused(zkgroups: Zkgroups, registry: Registry) -> None:
    group = registry.group("invoices")
    with group.instance("me") as me:
        me.register(["orders"])
        claim = me.claim(AT)
        zkgroups("release", "invoices", "orders", "0", "--expect-owner", "me")
        with pytest.raises(NotClaimedError):
            claim.commit(5)
    assert group.offsets.fetch(AT) is None


@pytest.mark.parametrize("form", ["{:#x}", "{:x}", "{:X}"])
def test_the_expected_session_may_be_given_too(zkgroups: Zkgroups, billing: Consumergroup, form: str) -> None:
    owner = billing.owner(AT)
    assert isinstance(owner, Owner)
    expected = ("--expect-owner", "anna", "--expect-session", form.format(owner.session))
    assert zkgroups("release", "billing", "orders", "0", *expected).code == 0
    assert owned(billing) == []


@pytest.mark.parametrize(
    ("guards", "said"),
    [
        (("--expect-owner", "ben"), "not by 'ben'"),
        (("--expect-owner", "anna", "--expect-session", "0x1"), "not by session 0x1"),
        (("--expect-owner", "anna", "--expect-session", "0xffffffffffffffff"), "not by session "),
    ],
)
def test_an_unexpected_owner_is_reported_and_keeps_its_partition(
    zkgroups: Zkgroups, billing: Consumergroup, guards: tuple[str, ...], said: str
) -> None:
    done = zkgroups("release", "billing", "orders", "0", *guards)
    assert (done.code, done.out) == (4, "")
    assert said in done.err
    assert owned(billing) == [AT]


def test_a_partition_without_an_owner_is_exit_code_3(zkgroups: Zkgroups, billing: Any) -> None:
    done = zkgroups("release", "billing", "orders", "1", "--expect-owner", "anna")
    assert (done.code, done.out, done.err) == (3, "", "zkgroups: orders/1 is not claimed by any instance\n")
    assert zkgroups("release", "nobody", "orders", "1", "--expect-owner", "anna").code == 3


def test_a_refused_release_does_not_stop_the_others(zkgroups: Zkgroups, billing: Consumergroup) -> None:
    done = zkgroups("release", "billing", "orders", "1", "0", "--expect-owner", "anna")
    assert done.code == 9
    assert [line.split()[0] for line in done.err.splitlines()] == ["zkgroups:", "released"]
    assert owned(billing) == []


@pytest.mark.parametrize(
    "arguments",
    [
        ["billing", "orders", "0"],
        ["billing", "orders", "--expect-owner", "anna"],
        ["billing", "orders", "x", "--expect-owner", "anna"],
        ["billing", "..", "0", "--expect-owner", "anna"],
        ["a/b", "orders", "0", "--expect-owner", "anna"],
        ["billing", "orders", "0", "--expect-owner", "a/b"],
        ["billing", "orders", "0", "--expect-owner", "anna", "--expect-session", "12g"],
        ["billing", "orders", "0", "--expect-owner", "anna", "--expect-session", "-1"],
        ["billing", "orders", "0", "--expect-owner", "anna", "--expect-session", "0x10000000000000000"],
    ],
    ids=" ".join,
)
def test_missing_and_invalid_arguments_are_exit_code_2(zkgroups: Zkgroups, arguments: list[str]) -> None:
    done = zkgroups("release", *arguments, "-z", "127.0.0.1:1")
    assert (done.code, done.out) == (2, "")


def test_an_unreachable_server_is_exit_code_7(zkgroups: Zkgroups) -> None:
    arguments = ("billing", "orders", "0", "--expect-owner", "anna", "-z", "127.0.0.1:1", "--timeout", "0.3")
    assert zkgroups("release", *arguments).code == 7


def test_with_read_only_nothing_is_released(zkgroups: Zkgroups, billing: Consumergroup) -> None:
    assert zkgroups("release", "billing", "orders", "0", "--expect-owner", "anna", "--read-only").code == 4
    assert owned(billing) == [AT]


def test_without_permission_nothing_is_released(zkgroups: Zkgroups, secret: str, kazoo: KazooClient) -> None:
    kazoo.create(f"/consumers/{secret}/owners/orders", acl=kazoo.get_acls(f"/consumers/{secret}/owners")[0])
    kazoo.create(f"/consumers/{secret}/owners/orders/0", b"anna", ephemeral=True)
    done = zkgroups("release", secret, "orders", "0", "--expect-owner", "anna")
    assert (done.code, done.out) == (6, "")
    assert kazoo.exists(f"/consumers/{secret}/owners/orders/0")
