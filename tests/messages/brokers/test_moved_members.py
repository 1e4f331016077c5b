"""Members without messages stop a move, or hear of it and leave."""

from __future__ import annotations

from typing import Any

import pytest

from tests.cli.running import run
from tests.waiting import eventually
from zkgroups import EventKind, Member, MemberEvent, Registry
from zkgroups.exceptions import GroupMovedError, RefusedError
from zkgroups.migration.live_move import MoveOutcome, Side
from zkgroups.testing import KafkaBroker

from ..looping import LONGEST, Topic, places
from .conftest import Loops
from .sides import Sides


def test_a_member_that_cannot_follow_its_group_stops_the_move(
    topic: Topic, sides: Sides, loop: Loops, registry: Registry
) -> None:
    consumer = loop(topic)
    with Member(registry.group(sides.group.name), [topic.name], id="plain") as member:
        assert member.next_generation(LONGEST) is not None
        with pytest.raises(RefusedError, match=r"members that cannot move with it are registered: plain \(zkgroups\)"):
            sides.move(Side.KAFKA)
        assert sides.state is None
    consumer.until_holding(*topic.ats)
    assert places(consumer) == []


def test_a_member_that_leaves_on_a_move_hears_of_it_and_continues_when_the_group_is_back(
    topic: Topic, sides: Sides, registry: Registry
) -> None:
    topic.write(10, 0)
    events: list[MemberEvent] = []
    options: dict[str, Any] = {"leaves_on_move": True, "on_event": events.append, "id": "plain"}
    with Member(registry.group(sides.group.name), [topic.name], **options) as member:
        generation = member.next_generation(LONGEST)
        assert generation is not None
        generation.mark(topic.ats[0], 5)
        assert sides.move(Side.KAFKA) is MoveOutcome.MOVED
        assert not generation.active
        assert sides.kafka == {0: 5}
        if hear_of_move(member):  # it may receive only the error of the end
            assert hear_of_move(member) is False
        assert member.next_generation(0.2) is None
        assert sides.group.instances() == []
        moved = [event.detail for event in events if event.kind is EventKind.MOVED]
        assert [text for text in moved if "is being moved" in text] == moved[:-1]
        assert "was moved to the brokers" in moved[-1]
        sides.brokers.commit({sides.group.name: {topic.ats[0]: 7}})
        assert sides.move(Side.ZOOKEEPER) is MoveOutcome.MOVED
        back = member.next_generation(LONGEST)
        assert back is not None
        assert back.partitions[topic.ats[0]] == 7


def hear_of_move(member: Member) -> bool:
    """Wait for the error. Return whether the move was not finished."""
    with pytest.raises(GroupMovedError) as caught:
        member.next_generation(LONGEST)
    return caught.value.moving


def test_a_member_of_a_group_on_the_brokers_hears_that_it_was_moved_and_how_it_comes_back(
    topic: Topic, sides: Sides, registry: Registry
) -> None:
    sides.group.create()
    assert sides.move(Side.KAFKA) is MoveOutcome.MOVED
    events: list[MemberEvent] = []
    with Member(registry.group(sides.group.name), [topic.name], on_event=events.append, join_backoff=0.1) as member:
        for _ in range(2):
            with pytest.raises(GroupMovedError, match=f"`zkgroups migrate switch {sides.group.name} --to zookeeper`"):
                member.next_generation(LONGEST)
        assert [event.kind for event in events].count(EventKind.MOVED) == 1
        sides.move(Side.ZOOKEEPER)
        assert eventually(lambda: [*sides.group.instances()])


def test_the_command_names_the_members_that_do_not_continue_on_the_brokers(
    topic: Topic, sides: Sides, registry: Registry, legacy_kafka: KafkaBroker
) -> None:
    with Member(registry.group(sides.group.name), [topic.name], id="plain", leaves_on_move=True) as member:
        assert member.next_generation(LONGEST) is not None
        where = ("-z", legacy_kafka.zookeeper, "-b", legacy_kafka.address)
        shown = run("migrate", "switch", sides.group.name, "--to", "kafka", *where)
    assert (shown.code, "do not continue on the brokers: plain." in shown.err) == (0, True)
