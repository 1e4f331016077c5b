"""Bulk requests about committed offsets on a real broker, compared with confluent-kafka.

    python -m benchmarks.brokers [--groups 2000] [--partitions 50] [--rounds 3]

- zkgroups: `zkgroups.kafka.Brokers`
- confluent-kafka: `AdminClient` with one request per group, all in flight at once
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from contextlib import ExitStack

from confluent_kafka import ConsumerGroupTopicPartitions
from confluent_kafka import TopicPartition as Partition
from confluent_kafka.admin import AdminClient

from benchmarks import Stopwatch, Times, in_turn, ratios, result, table
from zkgroups.core.kafka_values import NativeGroup, NativeState
from zkgroups.core.znodes.topic_partition import TopicPartition
from zkgroups.kafka import Brokers
from zkgroups.testing import KafkaBroker

TOPICS = 5
TIMEOUT = 120.0


class Ours:
    """The requests of zkgroups."""

    def __init__(self, brokers: Brokers, groups: int, ats: Iterable[tuple[str, int]]) -> None:
        self._brokers = brokers
        self._names = [f"zkgroups-{number:05d}" for number in range(groups)]
        self._places = [TopicPartition(*at) for at in ats]

    def round(self, number: int) -> Times:
        """Commit, fetch and describe."""
        watch = Stopwatch()
        wanted = {name: dict.fromkeys(self._places, number) for name in self._names}
        with watch.step("commit"):
            done = self._brokers.commit(wanted)
        assert {error for those in done.values() for error in those.values()} == {None}
        with watch.step("fetch"):
            found = self._brokers.committed(self._names)
        assert all(each[at].offset == number for each in found.values() for at in self._places)
        with watch.step("describe"):
            states = self._brokers.groups(self._names)
        assert set(states.values()) == {NativeGroup(name, NativeState.EMPTY) for name in self._names}
        return watch.seconds


class Theirs:
    """The requests of confluent-kafka."""

    def __init__(self, address: str, groups: int, ats: Iterable[tuple[str, int]]) -> None:
        self._admin = AdminClient({"bootstrap.servers": address})
        self._names = [f"confluent-{number:05d}" for number in range(groups)]
        self._places = list(ats)

    def round(self, number: int) -> Times:
        """Commit, fetch and describe."""
        watch = Stopwatch()
        wanted = [
            ConsumerGroupTopicPartitions(name, [Partition(*at, number) for at in self._places]) for name in self._names
        ]
        with watch.step("commit"):
            futures = [self._admin.alter_consumer_group_offsets([each])[each.group_id] for each in wanted]
            done = [future.result() for future in futures]
        assert all(each.error is None for those in done for each in those.topic_partitions)
        with watch.step("fetch"):
            futures = [
                self._admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(name)])[name]
                for name in self._names
            ]
            found = [future.result().topic_partitions for future in futures]
        assert all(each.offset == number for those in found for each in those)
        with watch.step("describe"):
            states = [future.result() for future in self._admin.describe_consumer_groups(self._names).values()]
        assert len(states) == len(self._names)
        return watch.seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--groups", type=int, default=2_000)
    parser.add_argument("--partitions", type=int, default=50)
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    ats = [(f"events-{number}", part) for number in range(TOPICS) for part in range(given.partitions // TOPICS)]
    with ExitStack() as stack:
        broker = stack.enter_context(KafkaBroker())
        for number in range(TOPICS):
            broker.create_topic(f"events-{number}", given.partitions // TOPICS)
        brokers = stack.enter_context(Brokers.connect(broker.address, timeout=TIMEOUT))
        ours, theirs = Ours(brokers, given.groups, ats), Theirs(broker.address, given.groups, ats)
        medians = in_turn({"zkgroups": ours.round, "confluent-kafka": theirs.round}, rounds=given.rounds)
    table(f"{given.groups} groups of {len(ats)} offsets", medians)
    result("brokers", **{f"{step}_vs_confluent": each for step, each in ratios(*medians.values()).items()})


if __name__ == "__main__":
    main()
