"""Members whose offsets are refused for more partitions than Python allows nested calls."""

from __future__ import annotations

import time
from typing import Any

import pytest

from zkgroups import Consumergroup, Generation, Member, Registry, TopicPartition
from zkgroups.exceptions import OffsetWouldGoBackError

from .conftest import Run, ats, plant_topic

pytestmark = pytest.mark.zookeeper

MANY = 1_100
TOPIC = "orders"
EVERYTHING = ats(TOPIC, *range(MANY))


def work_on_everything(member: Member) -> Generation:
    generation = member.next_generation(40)
    assert generation is not None
    assert generation.partitions.keys() == EVERYTHING
    generation.commit(dict.fromkeys(EVERYTHING, 5))
    for at in EVERYTHING:
        generation.mark(at, 10)
    return generation


def of_each(client: Any, send: Any, directory: str) -> None:
    for answer in [send(f"{directory}/{number}") for number in range(MANY)]:
        answer.get(timeout=30)


def test_a_member_leaves_soon_if_all_its_offsets_were_moved_ahead(registry: Registry, group: Consumergroup) -> None:
    client = registry.client
    plant_topic(client, TOPIC, MANY)
    with Member(group, [TOPIC], id="a") as member:
        work_on_everything(member)
        of_each(client, lambda path: client.set_async(path, b"100"), group.paths.offset_topic(TOPIC))
        began = time.monotonic()
        member.close()
        took = time.monotonic() - began
        with pytest.raises(OffsetWouldGoBackError, match=rf"and {MANY - 1} more") as refused:
            member.next_generation(0)
    assert {refused.value.at, *refused.value.also} == EVERYTHING
    assert member._left.is_set(), f"it has not left within {took:g} s"
    assert not list(group.instances())
    assert not list(group.owners())
    assert {offset.offset for offset in group.offsets.fetch_many(EVERYTHING).values()} == {100}


def test_a_member_continues_if_another_client_has_committed_further(
    run: Run, registry: Registry, group: Consumergroup
) -> None:
    """As a suspended Scala member does when it continues."""
    at = TopicPartition(TOPIC, 0)
    plant_topic(registry.client, TOPIC, 1)
    one = run(auto_commit_every=0.05).until_holding(ats(TOPIC, 0))
    [generation] = one.generations
    generation.commit({at: 5})
    registry.client.set(group.paths.offset(at), b"10")
    generation.mark(at, 7)
    one.until(lambda: any("would go back" in event.detail for event in one.events), "the refused commit")
    generation.mark(at, 12)
    one.until(lambda: registry.client.get(group.paths.offset(at))[0] == b"12", "the commit")
    plant_topic(registry.client, TOPIC, 2)
    one.until_holding(ats(TOPIC, 0, 1))  # errors are raised between two generations
    assert one.errors == []


def test_a_member_continues_if_all_its_owner_nodes_were_deleted(registry: Registry, group: Consumergroup) -> None:
    client = registry.client
    plant_topic(client, TOPIC, MANY)
    with Member(group, [TOPIC], id="a", reconcile_every=60.0, auto_commit_every=0.2) as member:
        generation = work_on_everything(member)
        of_each(client, client.delete_async, group.paths.owned_topic(TOPIC))
        assert generation.wait(30)
        following = member.next_generation(40)
        assert following is not None
        assert following.partitions.keys() == EVERYTHING
