"""Planning with real servers: the state of both sides, and every obstacle.

tests/core/migration/test_offset_decision.py has the rules, and test_next_consumer.py every reason with its result.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import chain

import pytest
from confluent_kafka.admin import AclBinding, AclOperation, AclPermissionType, ResourcePatternType, ResourceType
from kazoo.security import make_acl

from tests.kafka.conftest import Writer
from tests.migration.conftest import Join, MakeTopic
from tests.migration.rows import row as plan_row
from tests.waiting import eventually
from zkgroups import Registry, TopicPartition
from zkgroups.core.kafka_values import NativeGroup, NativeOffset
from zkgroups.core.migration.changes_since_plan import OffsetNode, SourceState, TargetState
from zkgroups.core.migration.obstacles import Obstacle, ObstacleKind
from zkgroups.core.migration.offset_decision import Action, Decision, NoOffset, Reason
from zkgroups.core.migration.plan_rows import PlanRow
from zkgroups.core.znodes.own_nodes import Mark, MarkState
from zkgroups.core.znodes.values import MalformedNode
from zkgroups.kafka import Brokers
from zkgroups.migration.current_state import mark_obstacles, read_sources, read_targets, topic_creation_zxids
from zkgroups.migration.plan import Planner, PlanSettings, SourceNode
from zkgroups.migration.source_nodes import NamedGroup, source_chunks
from zkgroups.testing import KafkaBroker

pytestmark = [pytest.mark.zookeeper, pytest.mark.kafka, pytest.mark.xdist_group("kafka"), pytest.mark.timeout(1000)]
PLANNED_MS = 1_795_255_543_000
PLANNING = PlanSettings(plan="p", planned_ms=PLANNED_MS)

ACCESS = {"authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer"} | {
    "super.users": "User:ANONYMOUS"
}

COMMIT, SKIP, REFUSE = Action.COMMIT, Action.SKIP, Action.REFUSE
LOG_UNKNOWN = Obstacle(ObstacleKind.REFUSED_OFFSETS, count=1, reason=Reason.LOG_UNKNOWN)


def found(group: str, topic: str | None, partition: int | None, offset: int | str | None, **more: object) -> SourceNode:
    """Return a node with an offset, or with a problem."""
    problem = f"/consumers/{group}/offsets/{topic}/{partition}: {offset}" if isinstance(offset, str) else None
    number = offset if isinstance(offset, int) else None
    no_offset = None if problem is None else NoOffset.NEGATIVE if offset == "negative" else NoOffset.UNREADABLE
    given = {"target": group, "zxid": 100, "committed_ms": PLANNED_MS - 5_000, "offset": number}
    given |= {"problem": problem, "no_offset": no_offset}
    return SourceNode(group=group, member=False, topic=topic, partition=partition, **(given | more))  # type: ignore[arg-type]


def committed(rows: Sequence[PlanRow]) -> list[PlanRow]:
    """Leave out the partitions that neither side has an offset of."""
    return [row for row in rows if row.reason is not Reason.NEVER_COMMITTED]


def member(group: str, instance: str | None, **more: object) -> SourceNode:
    given = {"target": group, "instance": instance} | more
    return SourceNode(group=group, member=True, **given)  # type: ignore[arg-type]


def decisions(rows: list[PlanRow]) -> dict[int, tuple[Action, Reason, int | None]]:
    """Return the decisions by partition."""
    return {row.partition or 0: (row.action, row.reason, row.planned) for row in rows}


@pytest.fixture
def writer(broker: KafkaBroker) -> Writer:
    return Writer(broker.address)


@pytest.fixture
def topic(make_topic: MakeTopic, writer: Writer) -> str:
    """Ten partitions with ten messages each; the first four of partition 1 are deleted."""
    name = make_topic(10)
    for partition in range(10):
        writer.produce(name, partition, [PLANNED_MS] * 10)
    writer.delete_before(name, 1, 4)
    return name


def test_a_row_has_the_state_of_both_sides(brokers: Brokers, writer: Writer, topic: str) -> None:
    group = f"target of {topic}"
    writer.commit(group, {(topic, 1): 5, (topic, 2): 7}, note="before")
    planning = replace(
        PLANNING, source="zk1:2181/kafka", brokers="kafka1:9092", retention_seconds=60.0, stale_after=4.0
    )

    first, second = committed(Planner(planning, brokers).plan([found("source", topic, 1, 6, target=group)]))

    before = NativeOffset(group, TopicPartition(topic, 1), 5, "before\0")
    assert first == plan_row(
        *("source", group, before.at, Decision(COMMIT, Reason.UNCHANGED, 6), before, 6, 100),
        **{"plan": "p", "planned_ms": PLANNED_MS, "committed_ms": PLANNED_MS - 5_000, "retention_seconds": 60.0},
        **{"stale": True, "log_start": 4, "log_end": 10, "topic_id": brokers.topic_ids([topic])[topic]},
        rule="on-out-of-range=block, on-unreadable=block",
    )
    assert first.prior == before
    assert (second.at, second.offset, second.zxid, second.before) == (TopicPartition(topic, 2), None, None, 7)
    assert (second.group, second.target, second.log_end, second.stale) == ("source", group, 10, False)


def test_each_row_has_the_obstacles_of_its_group_and_no_other_group_is_stopped(
    brokers: Brokers, topic: str, join: Join
) -> None:
    live, free = f"live {topic}", f"free {topic}"
    with join(live, topic):
        rows = Planner(PLANNING, brokers).plan(
            [
                found(live, topic, 0, 5),
                member("alive", "alive_host-1"),
                found("alive", topic, 0, 5),
                found("alive", topic, 1, 5),
                found("one", topic, 0, 5, target="same"),
                found("two", topic, 0, 5, target="same"),
                found("nameless", topic, 0, 5, target=""),
                member("hidden", None, problem="/consumers/hidden/ids: no permission to read it", forbidden=True),
                found("hidden", topic, 0, 5),
                found("unlisted", None, None, "no permission to read it", forbidden=True),
                found("past", topic, 0, 11),
                found("past", topic, 1, 10),
                member("idle", "idle_host-1", target=free),  # it has no offsets, so it does not compete for the target
                found(free, topic, 0, 5),
            ]
        )
    obstacles = {row.group: row.obstacles for row in rows}
    assert all(row.obstacles == obstacles[row.group] for row in rows)
    [native] = obstacles.pop(live)
    assert str(native).startswith("the group has active members on the brokers: anna-")
    assert {group: tuple(map(str, those)) for group, those in obstacles.items()} == {
        "alive": ("legacy instances are registered: alive_host-1",),
        "one": ("other groups have the same target: two",),
        "two": ("other groups have the same target: one",),
        "nameless": ("'' cannot be a group name: it has no characters",),
        "hidden": ("the state of the group could not be read: /consumers/hidden/ids: no permission to read it",),
        "unlisted": (
            "the state of the group could not be read: /consumers/unlisted/offsets/None/None: no permission to read it",
            "1 refused: no offset",
        ),
        "past": ("1 refused: past the end",),
        free: (),
    }


def test_each_log_range_is_read_once(brokers: Brokers, writer: Writer, topic: str) -> None:
    planner = Planner(PLANNING, brokers)
    [first] = committed(planner.plan([found("a", topic, 0, 5)]))
    writer.produce(topic, 0, [PLANNED_MS])

    again, other = committed(planner.plan([found("b", topic, 0, 5), found("b", topic, 1, 5)]))

    assert (first.log_end, again.log_end, other.log_end) == (10, 10, 10)
    assert Planner(PLANNING, brokers).plan([found("a", topic, 0, 5)])[0].log_end == 11


def test_without_brokers_all_offsets_are_copied_unless_older_than_their_topic() -> None:
    planning = replace(PLANNING, topics_created={"made-anew": 101})
    nodes = [found("g", "orders", 0, 5), found("g", "made-anew", 1, 6), found("g", "orders", 2, "negative")]

    rows = Planner(planning, None).plan(nodes)

    assert decisions(rows) == {
        0: (COMMIT, Reason.LOG_NOT_CHECKED, 5),
        1: (REFUSE, Reason.OLDER, None),
        2: (REFUSE, Reason.NEGATIVE, None),
    }
    assert {row.log_end for row in rows} == {None}


def test_a_log_without_a_leader_is_unknown_and_old_offsets_of_a_recreated_topic_are_skipped(
    legacy_kafka: KafkaBroker,
) -> None:
    """Failure 13: a topic is deleted and recreated with fewer partitions."""
    admin, name = Writer(legacy_kafka.address), "made-anew"
    with Registry.connect(legacy_kafka.zookeeper) as registry, Brokers.connect(legacy_kafka.address) as brokers:
        legacy_kafka.create_topic(name, 3)
        before = topic_creation_zxids(registry)[name]
        admin.admin.delete_topics([name])[name].result()
        assert eventually(lambda: name not in registry.topics() and not brokers.partitions([name]))
        with KafkaBroker(release="1.1.1", zookeeper=legacy_kafka.zookeeper, config={"broker.id": "3"}) as other:
            admin.create_topic(name, [[1], [3]])
            assert eventually(lambda: None not in brokers.ranges([TopicPartition(name, 1)]).values())
            other.kill()
        with Brokers.connect(legacy_kafka.address, timeout=10) as hasty:  # it is still reported as the leader
            [row] = committed(Planner(PLANNING, hasty).plan([found("new", name, 1, 0)]))
        assert row.obstacles == (LOG_UNKNOWN,)
        assert eventually(lambda: brokers.ranges([TopicPartition(name, 1)]) == {TopicPartition(name, 1): None})
        made = topic_creation_zxids(registry)
        assert made[name] > before

        rows = Planner(replace(PLANNING, topics_created=made), brokers).plan(
            [
                found("old", name, 0, 0, zxid=before + 1),
                found("old", name, 1, 0, zxid=before + 1),
                found("old", name, 2, 0, zxid=before + 1),
                found("new", name, 0, 0, zxid=made[name] + 1),
                found("new", name, 1, 0, zxid=made[name] + 1),
            ]
        )

    assert decisions([row for row in rows if row.group == "old"]) == {
        0: (REFUSE, Reason.OLDER, None),
        1: (REFUSE, Reason.OLDER, None),
        2: (SKIP, Reason.NO_PARTITION, None),
    }
    assert decisions([row for row in rows if row.group == "new"]) == {
        0: (COMMIT, Reason.UNCHANGED, 0),
        1: (REFUSE, Reason.LOG_UNKNOWN, None),
    }
    older = Obstacle(ObstacleKind.REFUSED_OFFSETS, count=2, reason=Reason.OLDER)
    assert {row.obstacles for row in rows} == {(older,), (LOG_UNKNOWN,)}


def test_a_forbidden_target_is_refused_and_stops_no_other() -> None:
    with KafkaBroker(users={"ben": "secret"}, config=ACCESS) as broker:
        broker.create_topic("orders", 2)
        every, operations = ResourcePatternType.LITERAL, (AclOperation.READ, AclOperation.DESCRIBE)
        places = ((ResourceType.TOPIC, "orders"), (ResourceType.GROUP, "mine"))
        acls = [
            AclBinding(kind, name, every, "User:ben", "*", operation, AclPermissionType.ALLOW)
            for kind, name in places
            for operation in operations
        ]
        others = Writer(broker.address)
        for made in others.admin.create_acls(acls).values():
            made.result()
        login = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN"}
        module = "org.apache.kafka.common.security.plain.PlainLoginModule"
        login |= {"sasl.jaas.config": f'{module} required username="ben" password="secret";'}
        with Brokers.connect(broker.sasl_address, properties=login) as brokers:
            assert eventually(lambda: isinstance(brokers.groups(["mine"])["mine"], NativeGroup))
            mine, uncommitted, theirs = Planner(PLANNING, brokers).plan(
                [found("mine", "orders", 0, 0), found("theirs", "orders", 0, 0)]
            )

    assert (mine.action, mine.obstacles) == (COMMIT, ())
    assert (uncommitted.group, uncommitted.reason) == ("mine", Reason.NEVER_COMMITTED)
    assert (theirs.action, theirs.reason, theirs.before) == (REFUSE, Reason.TARGET_UNKNOWN, None)
    first, second = theirs.obstacles
    assert first.kind is ObstacleKind.UNREADABLE
    assert str(second) == "1 refused: target unknown"


# The state of a group


NOBODY = [make_acl("digest", "nobody:x", all=True)]


def test_the_state_of_a_source_has_its_instances_and_offset_nodes_and_forbidden_nodes_stop_nothing(
    registry: Registry,
) -> None:
    client, orders = registry.client, {"orders/0": b"7", "orders/1": b"text", "orders/2": str(2**63 - 1).encode()}
    for name, data in (orders | {"a/03": b"1"}).items():
        client.create(f"/consumers/plain/offsets/{name}", data, makepath=True)
    client.create("/consumers/live/ids/scala-1", b"{}", ephemeral=True, makepath=True)
    zxids = [client.get(f"/consumers/plain/offsets/{name}")[1].mzxid for name in orders]
    for name in ("ids", "offsets", "offsets/topic/0"):
        group = name.replace("/", "-")
        client.create(f"/consumers/{group}/offsets/topic/0", b"7", makepath=True)
        client.ensure_path(f"/consumers/{group}/ids")
        client.set_acls(f"/consumers/{group}/{name}", NOBODY)

    found = read_sources(registry, ["plain", "live", "nobody's", "plain", "ids", "offsets", "offsets-topic-0"])

    offsets = zip(zxids, (7, None, 2**63 - 1), strict=True)
    assert found["plain"] == SourceState(
        (), {("orders", number): OffsetNode(*each) for number, each in enumerate(offsets)}
    )
    assert (found["live"], found["nobody's"]) == (SourceState(("scala-1",)), SourceState())
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
    assert found[""].unreadable == "'' cannot be a group name: it has no characters"
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
