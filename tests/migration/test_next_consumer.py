"""Where the next consumer starts, for each reason of a plan: no message is skipped in silence."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError

from tests.kafka.conftest import Writer
from tests.testing.unique import unique_numbers
from zkgroups import Registry, TopicPartition
from zkgroups.core.migration.offset_decision import Policy, Reason, Rule
from zkgroups.core.migration.plan_rows import Match, Outcome
from zkgroups.kafka import BrokerOptions, Brokers
from zkgroups.migration import local
from zkgroups.migration.local import ZooKeeperSource
from zkgroups.testing import KafkaBroker

from .rows import numbers

pytestmark = [pytest.mark.kafka, pytest.mark.zookeeper, pytest.mark.xdist_group("kafka")]

_numbers = unique_numbers()
MESSAGES, LOG_START = 10, 4
BY_RESET = None
"""The next consumer starts where its `auto.offset.reset` says."""

Row = dict[Policy, tuple[Reason, int | None, Match]]


def always(reason: Reason, start: int | None, match: Match = Match.EQUAL) -> Row:
    return dict.fromkeys(Policy, (reason, start, match))


def chosen(reason: Reason, start: int = 0, clamped: Reason = Reason.CLAMPED) -> Row:
    """The policy decides: write the start or the end of the log, or let the next consumer decide."""
    return {
        Policy.BLOCK: (reason, BY_RESET, Match.BLOCKED),
        Policy.SKIP: (reason, BY_RESET, Match.NO_OFFSET),
        Policy.EARLIEST: (clamped, start, Match.EQUAL),
        Policy.LATEST: (clamped, MESSAGES, Match.EQUAL),
    }


BACKWARD = {Policy.EARLIEST: (Reason.BACKWARD, 7, Match.EQUAL)}
TABLE: list[tuple[str, bytes | None, int | None, Row]] = [
    ("lost/0", b"7", None, always(Reason.UNCHANGED, 7)),
    ("lost/1", b"7", 7, always(Reason.ALREADY_THERE, 7)),
    ("lost/2", b"7", 9, always(Reason.TARGET_AHEAD, 9, Match.AHEAD) | BACKWARD),
    ("lost/3", None, 4, always(Reason.ONLY_ON_TARGET, 4)),
    ("lost/4", None, None, always(Reason.NEVER_COMMITTED, BY_RESET, Match.NO_OFFSET)),
    ("lost/5", b"abc", None, chosen(Reason.NO_OFFSET)),
    ("lost/6", b"-1", None, chosen(Reason.NEGATIVE)),
    ("lost/7", b"2", None, chosen(Reason.BEFORE_START, LOG_START)),
    ("lost/8", b"11", None, chosen(Reason.PAST_END)),
    ("anew/0", b"5", None, chosen(Reason.OLDER, clamped=Reason.CLAMPED_ANEW)),
    ("lost/9", b"5", None, always(Reason.NO_PARTITION, BY_RESET)),
    ("lost/x", b"5", None, always(Reason.NOT_A_PARTITION, BY_RESET)),
    ("gone/0", b"5", None, always(Reason.NO_TOPIC, BY_RESET)),
]
"""The place of an offset, its node, the offset of the target before; and for each policy the reason, the start of the
next consumer, and the result of a comparison. Only the policy earliest is combined with `backward`."""

ALONE = {"elsewhere/0": Reason.MISSING, "anew/0": Reason.STALE}
"""One offset in a group of its own. The first blocks its group for any policy."""

NOT_OF_A_PLAN = {Reason.LOG_NOT_CHECKED, Reason.LOG_UNKNOWN, Reason.TARGET_UNKNOWN, Reason.RECREATED}
"""Without brokers, nothing is applied. The others block a group for any policy."""


@pytest.mark.parametrize("reset", ["latest", "earliest"])
def test_where_the_next_consumer_starts_for_each_reason_of_a_plan(
    broker: KafkaBroker, brokers: Brokers, registry: Registry, zookeeper_hosts: str, tmp_path: Path, reset: str
) -> None:
    unique = {name: f"{name}-{next(_numbers)}" for name in ("lost", "anew", "gone", "elsewhere")}
    ats = {each: TopicPartition(unique[each[:4]], int(each[5:])) for each, *_ in TABLE[:10]}
    group = {policy: f"{policy}-{unique['lost']}" for policy in Policy}
    create, writer = registry.client.create, Writer(broker.address)
    broker.create_topic(unique["lost"], 9)
    broker.create_topic(unique["anew"])
    for at in ats.values():
        broker.write(at.topic, at.partition, MESSAGES)
    writer.delete_before(unique["lost"], 7, LOG_START)
    for name in group.values():
        for place, data, _, _ in TABLE:
            if data is not None:
                topic, partition = place.split("/")
                create(f"/consumers/{name}/offsets/{unique[topic]}/{partition}", data, makepath=True)
        writer.commit(
            name, {(ats[place].topic, ats[place].partition): it for place, _, it, _ in TABLE if it is not None}
        )
    create(f"/brokers/topics/{unique['elsewhere']}", b"{}", makepath=True)
    for place, reason in ALONE.items():
        create(f"/consumers/{reason}-{unique['lost']}/offsets/{unique[place[:-2]]}/0", b"5", makepath=True)
    create(f"/brokers/topics/{unique['anew']}", b"{}", makepath=True)

    rules: dict[str, Rule] = {policy: Rule(policy, policy, backward=policy is Policy.EARLIEST) for policy in Policy}
    rules |= {reason: Rule(Policy.SKIP, Policy.SKIP, skip_stale=reason is Reason.STALE) for reason in ALONE.values()}
    places, told = {topic: name for name, topic in unique.items()}, set[Reason]()
    for choice, rule in rules.items():
        name, folder, options = f"{choice}-{unique['lost']}", str(tmp_path / choice), BrokerOptions(broker.address)
        source, before = ZooKeeperSource(zookeeper=zookeeper_hosts, groups=name), numbers(brokers, name)
        blocked = choice in (Policy.BLOCK, Reason.MISSING)
        planned = local.plan(folder, source, options, rule=rule, stale_after=0.0 if rule.skip_stale else None)
        reasons = {
            f"{places[row.topic or '']}/{'x' if row.partition is None else row.partition}": row.reason
            for row in local.plan_rows(folder)
        }
        done = local.apply(folder, options, source, execute=True)
        verified = local.verify(folder, options, source).counts
        assert (planned.blocked, done.left, Outcome.LEFT in done.counts) == (blocked, blocked, blocked), choice
        assert (Match.BLOCKED in verified, numbers(brokers, name) == before) == (
            blocked,
            blocked or choice in ALONE.values(),
        )
        if isinstance(choice, Policy):
            assert reasons == {place: row[choice][0] for place, *_, row in TABLE}
            assert blocked or verified == Counter(row[choice][2] for *_, row in TABLE), choice
        else:
            assert [*reasons.values()] == [choice]
            assert blocked or verified == {Match.NO_OFFSET: 1}
        told |= set(reasons.values())
    assert told == set(Reason) - NOT_OF_A_PLAN

    starts = {at: MESSAGES if reset == "latest" else LOG_START if place == "lost/7" else 0 for place, at in ats.items()}
    read = first_offsets(
        broker, [group[policy] for policy in Policy if policy is not Policy.BLOCK], reset, {*ats.values()}
    )
    for policy in (Policy.SKIP, Policy.EARLIEST, Policy.LATEST):
        planned_starts = {ats[place]: row[policy][1] for place, *_, row in TABLE if place in ats}
        wanted = {at: starts[at] if start is BY_RESET else start for at, start in planned_starts.items()}
        assert read[group[policy]] == wanted, policy


def first_offsets(
    broker: KafkaBroker, groups: Sequence[str], reset: str, ats: set[TopicPartition]
) -> dict[str, dict[TopicPartition, int]]:
    """Return the first message that a new consumer of each group reads of each partition.

    One more message is written once all consumers have reached the ends.
    """
    config = {"bootstrap.servers": broker.address, "auto.offset.reset": reset, "log_level": 0}
    config |= {"enable.auto.commit": False, "enable.partition.eof": True}
    consumers = {group: Consumer({**config, "group.id": group}) for group in groups}
    first: dict[str, dict[TopicPartition, int]] = {group: {} for group in groups}
    ended: dict[str, set[TopicPartition]] = {group: set() for group in groups}

    def read(is_done: Callable[[str], bool]) -> None:
        deadline = time.monotonic() + 120
        while waiting := [group for group in groups if not is_done(group)]:
            assert time.monotonic() < deadline, (first, ended)
            for group in waiting:
                if (found := consumers[group].poll(0.05)) is None:
                    continue
                at = TopicPartition(found.topic(), found.partition())
                if found.error() is None:
                    first[group].setdefault(at, found.offset())
                else:
                    assert found.error().code() == KafkaError._PARTITION_EOF, found.error()
                    ended[group].add(at)

    try:
        for consumer in consumers.values():
            consumer.subscribe([*{at.topic for at in ats}])
        read(lambda group: ended[group] == ats)
        for at in ats:
            broker.write(at.topic, at.partition, 1)
        read(lambda group: first[group].keys() == ats)
    finally:
        for consumer in consumers.values():
            consumer.close()
    return first
