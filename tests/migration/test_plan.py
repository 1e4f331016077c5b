"""Planning with real brokers: every row of the table in `rules.py`, and every obstacle."""

from __future__ import annotations

from dataclasses import replace

import pytest
from confluent_kafka.admin import AclBinding, AclOperation, AclPermissionType, ResourcePatternType, ResourceType

from tests.testing.waiting import eventually
from zkgroups import Registry
from zkgroups.core.kafka_values import NativeGroup, NativeOffset
from zkgroups.core.migration.obstacles import Obstacle, ObstacleKind
from zkgroups.core.migration.offset_decision import Action, NoOffset, OutOfRange, Reason, Rule
from zkgroups.core.migration.plan_rows import PlanRow
from zkgroups.core.znodes.topic_partition import TopicPartition
from zkgroups.kafka import Brokers
from zkgroups.migration.log_ranges import topic_creation_zxids
from zkgroups.migration.plan import Planner, PlanSettings, SourceNode
from zkgroups.testing import KafkaBroker

from ..kafka.conftest import Writer
from .conftest import Join, MakeTopic

pytestmark = [pytest.mark.kafka, pytest.mark.xdist_group("kafka"), pytest.mark.timeout(1000)]

PLANNED_MS = 1_795_255_543_000
PLANNING = PlanSettings(plan="p", planned_ms=PLANNED_MS)
ACCESS = {"authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer"} | {
    "super.users": "User:ANONYMOUS"
}
ODD = "größe: 日本 b"

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


CLAMPED = {
    OutOfRange.REFUSE: {
        1: (REFUSE, Reason.BEFORE_START, None),
        2: (REFUSE, Reason.PAST_END, None),
        3: (REFUSE, Reason.PAST_END, None),
    },
    OutOfRange.SKIP: {
        1: (SKIP, Reason.BEFORE_START, None),
        2: (SKIP, Reason.PAST_END, None),
        3: (SKIP, Reason.PAST_END, None),
    },
    OutOfRange.EARLIEST: {
        1: (COMMIT, Reason.CLAMPED, 4),
        2: (COMMIT, Reason.CLAMPED, 0),
        3: (COMMIT, Reason.CLAMPED, 0),
    },
    OutOfRange.LATEST: {
        1: (COMMIT, Reason.CLAMPED, 10),
        2: (COMMIT, Reason.CLAMPED, 10),
        3: (COMMIT, Reason.CLAMPED, 10),
    },
}


def test_every_row_of_the_table_is_decided_by_the_answers_of_the_brokers(
    brokers: Brokers, writer: Writer, topic: str
) -> None:
    group = f"{ODD} {topic}"
    writer.commit(group, {(topic, 7): 5, (topic, 8): 6, (topic, 9): 3}, note="before")
    nodes = [
        found(group, topic, 0, 0),
        found(group, topic, 1, 3),
        found(group, topic, 2, 11),
        found(group, topic, 3, 2**63 - 1),
        found(group, topic, 4, "negative"),
        found(group, topic, 5, "not a plain decimal number"),
        found(group, topic, 6, 10, zxid=98),
        found(group, topic, 7, 5),
        found(group, topic, 8, 4, committed_ms=PLANNED_MS - 61_000),
        found(group, topic, 10, 4),
        found(group, "no-such-topic", 0, 1),
    ]
    others = {
        0: (COMMIT, Reason.UNCHANGED, 0),
        4: (SKIP, Reason.NEGATIVE, None),
        5: (SKIP, Reason.NO_OFFSET, None),
        6: (COMMIT, Reason.UNCHANGED, 10),
        7: (SKIP, Reason.ALREADY_THERE, None),
        8: (SKIP, Reason.TARGET_AHEAD, None),
        9: (SKIP, Reason.ONLY_ON_TARGET, None),
        10: (SKIP, Reason.NO_PARTITION, None),
    }

    def plan(**changes: object) -> dict[int, tuple[Action, Reason, int | None]]:
        planning = replace(PLANNING, **changes)  # type: ignore[arg-type]
        rows = Planner(planning, brokers).plan(nodes)
        [gone] = [row for row in rows if row.topic != topic]
        assert (gone.action, gone.reason, gone.log_start) == (SKIP, Reason.NO_TOPIC, None)
        return decisions([row for row in rows if row.topic == topic])

    for policy, clamped in CLAMPED.items():
        assert plan(rule=Rule(policy)) == others | clamped, policy
    lenient = others | CLAMPED[OutOfRange.SKIP]
    assert plan(rule=Rule(OutOfRange.SKIP, backward=True)) == lenient | {8: (COMMIT, Reason.BACKWARD, 4)}
    assert plan(rule=Rule(OutOfRange.SKIP, skip_stale=True), stale_after=60.0) == lenient | {
        8: (SKIP, Reason.STALE, None)
    }
    assert plan(rule=Rule(OutOfRange.SKIP), topics_created={topic: 99}) == lenient | {6: (SKIP, Reason.OLDER, None)}


def test_a_row_has_the_state_of_both_sides(brokers: Brokers, writer: Writer, topic: str) -> None:
    group = f"target of {topic}"
    writer.commit(group, {(topic, 1): 5, (topic, 2): 7}, note="before")
    planning = replace(
        PLANNING, source="zk1:2181/kafka", brokers="kafka1:9092", retention_seconds=60.0, stale_after=4.0
    )

    first, second = Planner(planning, brokers).plan([found("source", topic, 1, 6, target=group)])

    assert first == PlanRow(
        plan="p",
        planned_ms=PLANNED_MS,
        source="zk1:2181/kafka",
        brokers="kafka1:9092",
        retention_seconds=60.0,
        group="source",
        topic=topic,
        partition=1,
        offset=6,
        zxid=100,
        committed_ms=PLANNED_MS - 5_000,
        stale=True,
        problem=None,
        target=group,
        log_start=4,
        log_end=10,
        before=5,
        before_metadata="before\0",
        before_epoch=None,
        action=COMMIT,
        reason=Reason.UNCHANGED,
        planned=6,
        obstacles=(),
        rule="on-out-of-range=refuse",
        topic_id=brokers.topic_ids([topic])[topic],
    )
    assert first.prior == NativeOffset(group, TopicPartition(topic, 1), 5, "before\0")
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
        "nameless": ("not a valid group name: group '' has no characters",),
        "hidden": ("the state of the group could not be read: /consumers/hidden/ids: no permission to read it",),
        "unlisted": (
            "the state of the group could not be read: /consumers/unlisted/offsets/None/None: no permission to read it",
        ),
        "past": ("1 refused: past the end",),
        free: (),
    }


def test_each_log_range_is_read_once(brokers: Brokers, writer: Writer, topic: str) -> None:
    planner = Planner(PLANNING, brokers)
    [first] = planner.plan([found("a", topic, 0, 5)])
    writer.produce(topic, 0, [PLANNED_MS])

    again, other = planner.plan([found("b", topic, 0, 5), found("b", topic, 1, 5)])

    assert (first.log_end, again.log_end, other.log_end) == (10, 10, 10)
    assert Planner(PLANNING, brokers).plan([found("a", topic, 0, 5)])[0].log_end == 11


def test_without_brokers_all_offsets_are_copied_unless_older_than_their_topic() -> None:
    planning = replace(PLANNING, topics_created={"made-anew": 101})
    nodes = [found("g", "orders", 0, 5), found("g", "made-anew", 1, 6), found("g", "orders", 2, "negative")]

    rows = Planner(planning, None).plan(nodes)

    assert decisions(rows) == {
        0: (COMMIT, Reason.LOG_NOT_CHECKED, 5),
        1: (SKIP, Reason.OLDER, None),
        2: (SKIP, Reason.NEGATIVE, None),
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
        assert eventually(lambda: name not in registry.topics() and not brokers.partitions([name]), timeout=60)
        with KafkaBroker(release="1.1.1", zookeeper=legacy_kafka.zookeeper, config={"broker.id": "3"}) as other:
            admin.create_topic(name, [[1], [3]])
            assert eventually(lambda: None not in brokers.ranges([TopicPartition(name, 1)]).values(), timeout=60)
            other.kill()
        with Brokers.connect(legacy_kafka.address, timeout=10) as hasty:  # it is still reported as the leader
            [row] = Planner(PLANNING, hasty).plan([found("new", name, 1, 0)])
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
        0: (SKIP, Reason.OLDER, None),
        1: (SKIP, Reason.OLDER, None),
        2: (SKIP, Reason.NO_PARTITION, None),
    }
    assert decisions([row for row in rows if row.group == "new"]) == {
        0: (COMMIT, Reason.UNCHANGED, 0),
        1: (REFUSE, Reason.LOG_UNKNOWN, None),
    }
    assert {row.obstacles for row in rows} == {(), (LOG_UNKNOWN,)}


def test_a_forbidden_target_is_refused_and_stops_no_other() -> None:
    with KafkaBroker(users={"ben": "secret"}, config=ACCESS) as broker:
        broker.create_topic("orders")
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
            mine, theirs = Planner(PLANNING, brokers).plan(
                [found("mine", "orders", 0, 0), found("theirs", "orders", 0, 0)]
            )

    assert (mine.action, mine.obstacles) == (COMMIT, ())
    assert (theirs.action, theirs.reason, theirs.before) == (REFUSE, Reason.TARGET_UNKNOWN, None)
    first, second = theirs.obstacles
    assert first.kind is ObstacleKind.UNREADABLE
    assert str(second) == "1 refused: target unknown"
