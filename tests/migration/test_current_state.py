"""Reading the state of groups from real servers: many at once, and an unreadable group stops no other."""

from __future__ import annotations

from itertools import chain

import pytest
from kazoo.security import make_acl

from zkgroups import Registry, TopicPartition
from zkgroups.core.kafka_values import NativeOffset
from zkgroups.core.migration.obstacles import Obstacle, ObstacleKind
from zkgroups.core.migration.source_and_target_state import OffsetNode, SourceState, TargetState
from zkgroups.core.znodes.migration_mark import Mark, MarkState
from zkgroups.core.znodes.values import MalformedNode
from zkgroups.kafka import Brokers
from zkgroups.migration.current_state import mark_obstacles, read_sources, read_targets
from zkgroups.migration.source_nodes import NamedGroup, source_chunks

from .conftest import Join, MakeTopic

pytestmark = [pytest.mark.zookeeper, pytest.mark.timeout(1000)]

NOBODY = [make_acl("digest", "nobody:x", all=True)]


def test_the_state_of_a_source_has_its_instances_and_offset_nodes(registry: Registry) -> None:
    client = registry.client
    for name, data in {
        "orders/0": b"7",
        "orders/1": b"text",
        "orders/2": str(2**63 - 1).encode(),
        "a/03": b"1",
    }.items():
        client.create(f"/consumers/plain/offsets/{name}", data, makepath=True)
    client.create("/consumers/live/ids/scala-1", b"{}", ephemeral=True, makepath=True)
    zxids = [client.get(f"/consumers/plain/offsets/orders/{number}")[1].mzxid for number in range(3)]

    found = read_sources(registry, ["plain", "live", "nobody's", "plain"])

    assert found == {
        "plain": SourceState(
            (),
            {
                ("orders", 0): OffsetNode(zxids[0], 7),
                ("orders", 1): OffsetNode(zxids[1], None),
                ("orders", 2): OffsetNode(zxids[2], 2**63 - 1),
            },
        ),
        "live": SourceState(("scala-1",)),
        "nobody's": SourceState(),
    }


def test_forbidden_nodes_are_reported_and_stop_nothing(registry: Registry) -> None:
    client = registry.client
    for name in ("ids", "offsets", "offsets/topic/0"):
        group = name.replace("/", "-")
        client.create(f"/consumers/{group}/offsets/topic/0", b"7", makepath=True)
        client.ensure_path(f"/consumers/{group}/ids")
        client.set_acls(f"/consumers/{group}/{name}", NOBODY)

    found = read_sources(registry, ["ids", "offsets", "offsets-topic-0"])

    assert found["ids"].unreadable == "/consumers/ids/ids: no permission to read it"
    assert found["ids"].offsets[("topic", 0)].offset == 7
    assert found["offsets"].offsets == {(None, None): OffsetNode(None, None)}
    assert found["offsets-topic-0"].offsets == {("topic", 0): OffsetNode(None, None)}


def test_a_forbidden_registration_is_planned_with_its_name_and_a_forbidden_list_of_them_without(
    registry: Registry,
) -> None:
    client = registry.client
    for group, forbidden in (("one", "ids/scala-1"), ("list", "ids")):
        client.create(f"/consumers/{group}/offsets/orders/0", b"7", makepath=True)
        client.create(f"/consumers/{group}/ids/scala-1", b"{}", makepath=True)
        client.set_acls(f"/consumers/{group}/{forbidden}", NOBODY)
    groups = [NamedGroup(group, group) for group in ("list", "one")]
    nodes = [*chain.from_iterable(source_chunks(registry, groups, None))]
    assert [(each.group, each.instance, each.forbidden) for each in nodes if each.member] == [
        ("list", None, True),
        ("one", "scala-1", False),
    ]


@pytest.mark.kafka
@pytest.mark.xdist_group("kafka")
def test_the_state_of_a_target_has_its_members_and_offsets(brokers: Brokers, make_topic: MakeTopic, join: Join) -> None:
    at = TopicPartition(make_topic(), 0)
    live, quiet = f"live-{at.topic}", f"quiet-{at.topic}"
    kept = NativeOffset(quiet, at, 7, "note", 3)
    brokers.commit({quiet: {at: kept}})
    with join(live, at.topic):
        found = read_targets(brokers, [live, quiet, "nobody's", "", "a\0b"])
    assert found[live].members[0].startswith("anna-")
    assert found[quiet] == TargetState((), {at: kept})
    assert found["nobody's"] == TargetState()
    assert found[""].unreadable == "group '' has no characters"
    assert "characters that cannot be sent" in found["a\0b"].unreadable


def test_only_the_mark_of_another_plan_is_an_obstacle() -> None:
    mark = Mark("billing", "plan-1", "accounts", MarkState.MOVING, 0)
    assert mark_obstacles(mark, "plan-1") == []
    assert mark_obstacles(mark, "plan-2") == [
        Obstacle(
            ObstacleKind.OTHER_MARK,
            detail="the group is being moved to Kafka's own offsets as 'accounts', by plan plan-1",
        )
    ]
    assert mark_obstacles(MalformedNode("/m", b"", "no mark"), "plan-1") == [
        Obstacle(ObstacleKind.OTHER_MARK, detail="the migration mark cannot be read, /m: no mark")
    ]
