"""Commits through a gateway are fenced, and change nothing that another client has committed further."""

from __future__ import annotations

import time
from typing import Any

import pytest

from zkgroups import CommittedOffset, Consumergroup, Registry, TopicPartition
from zkgroups.coordinator import (
    CommitRequest,
    CommittedValue,
    DeleteGroupsRequest,
    DeleteOffsetsRequest,
)
from zkgroups.core.znodes.own_nodes import MarkState
from zkgroups.gateway.zookeeper_storage import offsets as commits
from zkgroups.zookeeper import offsets
from zkgroups.zookeeper.admin import groups
from zkgroups.zookeeper.admin import migration_marks as marks
from zkgroups.zookeeper.admin.transaction_guards import NobodyRegistered
from zkgroups.zookeeper.session.session import context_of

from .conftest import Connect, Join
from .old_members import ALL, commit, register
from .served import Served

AT = TopicPartition("orders", 0)
REFUSED = {AT: "ILLEGAL_GENERATION"}
DONE = {AT: "NONE"}


def offset(group: Consumergroup, at: TopicPartition = AT) -> int | None:
    found = group.offsets.fetch(at)
    return None if found is None else found.offset


def commit_alone(served: Served, offset: int, metadata: str = "") -> str:
    """Commit as a simple consumer, or as an administrator."""
    answer = served.ask(CommitRequest("billing", {AT: CommittedValue(offset, metadata)}))
    return str(answer.errors[AT].name)


def test_a_member_that_seeks_back_commits_there(group: Consumergroup, alone: Join) -> None:
    group.offsets.set(AT, 100)
    member = alone()
    for number in (40, 90, 60):
        assert member.commit(number, AT) == DONE
        assert offset(group) == number


def test_an_offset_that_another_client_has_committed_further_does_not_go_back(
    registry: Registry, group: Consumergroup, alone: Join
) -> None:
    """Old clients commit without a fence. The member joins again, and continues at their offset."""
    member = alone()
    for own in (None, 10):
        if own is not None:
            assert member.commit(own + 500, AT) == DONE
        ahead = (offset(group) or 0) + 100
        commit(registry.client, "billing", "orders", 0, str(ahead).encode())
        for _ in range(3):
            assert member.commit(ahead - 1, AT) == REFUSED
            assert offset(group) == ahead
        assert member.commit(ahead + 1, AT) == DONE


def test_one_refused_offset_does_not_hold_up_the_others(registry: Registry, group: Consumergroup, alone: Join) -> None:
    member = alone()
    commit(registry.client, "billing", "orders", 3, b"100")
    commit(registry.client, "billing", "orders", 4, b"100")
    errors = member.commit(7)
    assert {at.partition: error for at, error in errors.items() if error != "NONE"} == {
        3: "ILLEGAL_GENERATION",
        4: "ILLEGAL_GENERATION",
    }
    assert {at.partition: offset(group, at) for at in ALL} == {0: 7, 1: 7, 2: 7, 3: 100, 4: 100, 5: 7}


def test_an_offset_that_would_stop_old_clients_is_refused(group: Consumergroup, alone: Join, served: Served) -> None:
    assert commit_alone(served, 2**63) == "UNKNOWN_SERVER_ERROR"
    member = alone()
    assert member.commit(2**63, AT) == {AT: "UNKNOWN_SERVER_ERROR"}
    assert offset(group) is None


def test_a_negative_offset_deletes_the_committed_one(
    registry: Registry, group: Consumergroup, alone: Join, served: Served
) -> None:
    """kafkajs resets offsets with -2, as a member. Clients take a negative offset for none."""
    for _ in range(2):
        assert commit_alone(served, -1) == "NONE"
        assert served.fetch("billing", AT) == {}
        assert commit_alone(served, 50) == "NONE"
    member = alone()
    for number in (-2, -2, 7, -2, 9):
        assert member.commit(number, AT) == DONE
        assert offset(group) == (None if number < 0 else number)
    commit(registry.client, "billing", "orders", 0, b"100")
    assert member.commit(-2, AT) == REFUSED
    assert offset(group) == 100


def test_details_of_a_commit_do_not_outlive_the_offset(registry: Registry, alone: Join, served: Served) -> None:
    member = alone()
    assert member.commit(17, AT, metadata="a", leader_epoch=3) == DONE
    assert member.commit(17, AT, metadata="b") == DONE
    assert (served.fetch("billing", AT)[AT].metadata, served.fetch("billing", AT)[AT].leader_epoch) == ("b", -1)
    commit(registry.client, "billing", "orders", 0, b"17")
    assert served.fetch("billing", AT)[AT].metadata == ""


# Without a member


def test_a_simple_consumer_commits_while_nobody_is_registered(
    group: Consumergroup, connect: Connect, served: Served, alone: Join
) -> None:
    assert commit_alone(served, 50, metadata="by hand") == "NONE"
    assert served.fetch("billing", AT)[AT].metadata == "by hand"
    assert commit_alone(served, 20) == "NONE"
    assert (offset(group), served.fetch("billing", AT)[AT].metadata) == (20, "")
    other = connect()
    register(other.client, "billing", "billing_a", {"orders": 1})
    assert commit_alone(served, 30) == "UNKNOWN_MEMBER_ID"
    other.close()
    alone()
    assert commit_alone(served, 30) == "UNKNOWN_MEMBER_ID"
    assert offset(group) == 20


def test_a_simple_consumer_is_refused_while_the_group_has_a_mark(
    registry: Registry, group: Consumergroup, served: Served
) -> None:
    """The gateway has the group in memory, and does not know of the mark."""
    assert commit_alone(served, 5) == "NONE"
    context = context_of(registry)
    assert marks.put(context, {"billing": "billing"}, plan="p", state=MarkState.MOVING) == {"billing": None}
    assert commit_alone(served, 30) == "COORDINATOR_NOT_AVAILABLE"
    assert offset(group) == 5
    marks.remove(context, ["billing"], plan="p")
    assert commit_alone(served, 30) == "NONE"


def test_offsets_and_groups_are_deleted_while_nobody_is_registered(
    group: Consumergroup, connect: Connect, served: Served
) -> None:
    assert commit_alone(served, 20, metadata="by hand") == "NONE"
    other = connect()
    register(other.client, "billing", "billing_a", {"orders": 1})
    elsewhere = TopicPartition("payments", 0)
    deleted = served.ask(DeleteOffsetsRequest("billing", (AT, elsewhere)))
    assert {at: error.name for at, error in deleted.errors.items()} == {
        AT: "GROUP_SUBSCRIBED_TO_TOPIC",
        elsewhere: "NON_EMPTY_GROUP",
    }
    assert served.ask(DeleteGroupsRequest(("billing",))).errors["billing"].name == "NON_EMPTY_GROUP"
    assert offset(group) == 20
    other.close()
    assert [error.name for error in served.ask(DeleteOffsetsRequest("billing", (AT,))).errors.values()] == ["NONE"]
    assert (offset(group), group.exists()) == (None, True)
    assert served.ask(DeleteGroupsRequest(("billing",))).errors["billing"].name == "NONE"
    assert not group.exists()


def test_nothing_is_written_if_an_instance_registers_at_the_same_moment(
    registry: Registry, group: Consumergroup, served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Late(NobodyRegistered):
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options)
            if not group.instances():
                register(registry.client, "billing", "billing_a", {"orders": 1})

    def delete_offset() -> str:
        [error] = served.ask(DeleteOffsetsRequest("billing", (AT,))).errors.values()
        return str(error.name)

    def delete_group() -> str:
        return str(served.ask(DeleteGroupsRequest(("billing",))).errors["billing"].name)

    assert commit_alone(served, 5) == "NONE"
    for module, write, refusal in (
        (commits, lambda: commit_alone(served, 30), "UNKNOWN_MEMBER_ID"),
        (groups, delete_group, "NON_EMPTY_GROUP"),
        (offsets, delete_offset, "GROUP_SUBSCRIBED_TO_TOPIC"),
    ):
        with monkeypatch.context() as patched:
            patched.setattr(module, "NobodyRegistered", Late)
            assert write() == refusal
        registry.client.delete("/consumers/billing/ids/billing_a")
    assert offset(group) == 5


def test_a_group_is_pruned_with_the_details_of_its_commits(group: Consumergroup, served: Served) -> None:
    assert commit_alone(served, 20, metadata="by hand") == "NONE"
    group.prune([found for found in group.offsets if isinstance(found, CommittedOffset)])
    assert not group.exists()


@pytest.mark.parametrize("now", [0.0, 5_000_000_000.0])
def test_a_member_commits_although_the_clock_of_the_gateway_is_wrong(
    now: float, group: Consumergroup, alone: Join, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a machine that has just started, and does not know the time yet."""
    monkeypatch.setattr(time, "time", lambda: now)
    member = alone()
    assert 0 < member.generation < 2**31
    assert member.commit(5, AT) == DONE
    assert offset(group) == 5
