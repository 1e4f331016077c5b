"""Members whose offsets are refused for more partitions than Python allows nested calls."""

from __future__ import annotations

import contextlib
import threading
import time
from typing import Any

import pytest
from kazoo.exceptions import NoNodeError

from zkgroups import Consumergroup, EventKind, Generation, Member, Registry, TopicPartition
from zkgroups.exceptions import OffsetWouldGoBackError
from zkgroups.zookeeper.requests.transaction import Set
from zkgroups.zookeeper.session.session import Session

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


def test_an_offset_that_is_always_overwritten_is_reported_and_blocks_no_other_commit(
    run: Run, registry: Registry, group: Consumergroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A member tries twice. Here another client writes just before each transaction."""
    plant_topic(registry.client, TOPIC, 2)
    contested, free = TopicPartition(TOPIC, 0), TopicPartition(TOPIC, 1)
    one = run(auto_commit_every=3600.0).until_holding(ats(TOPIC, 0, 1))
    [generation] = one.generations
    generation.commit({contested: 5, free: 5})
    path, transact, offsets = group.paths.offset(contested), Session.transact, iter(range(6, 100))

    def transact_late(self: Session, operations: Any, **options: Any) -> Any:
        if any(isinstance(each, Set) and each.path == path for each in operations):
            registry.client.set(path, b"%d" % next(offsets))
        return transact(self, operations, **options)

    monkeypatch.setattr(Session, "transact", transact_late)
    generation.mark(contested, 50)
    generation.mark(free, 50)
    one.member.close()
    [failed] = [event.detail for event in one.events if event.kind is EventKind.FAILED]
    assert f"offset of {contested} was changed by another client and is now 7" in failed
    assert [group.offsets.fetch(at).offset for at in (contested, free)] == [7, 50]  # type: ignore[union-attr]


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


def test_a_commit_after_the_registration_was_deleted_is_refused_like_one_without_a_claim(
    run: Run, registry: Registry
) -> None:
    """The worker deletes it until a commit comes before the member has registered again."""
    plant_topic(registry.client, TOPIC, 2)
    worked = threading.Event()

    def work(generation: Generation) -> None:
        for offset in range(0 if worked.is_set() else 1_000):
            worked.set()
            with contextlib.suppress(NoNodeError):
                registry.client.delete("/consumers/billing/ids/a")
            generation.commit(dict.fromkeys(generation.partitions, offset))
        generation.wait()

    a = run(id="a", work=work)
    a.until(lambda: len(a.generations) > 1, "another generation")
    a.until_holding(ats(TOPIC, 0, 1))
    assert a.errors == []
