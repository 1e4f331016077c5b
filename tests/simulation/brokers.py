"""The offsets of Kafka-native groups on simulated brokers, with the methods of `zkgroups.kafka.Brokers`.

    cluster = Cluster(world, [TopicPartition("orders", 0)])
    cluster.before_call = lambda process, what: ...     # a test may do anything here, also kill the process
    apply_groups(rows, cluster.brokers(), registry, execute=True)

A call takes some time. Afterwards it may fail, and the caller does not know whether it was carried out.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from zkgroups import TopicPartition
from zkgroups.core.kafka_values import NativeGroup, NativeMember, NativeOffset, NativeState, OffsetRange, PlainOffsets
from zkgroups.exceptions import GroupInUseError, GroupNotFoundError, OutcomeUnknownError, ZkgroupsException

from .world import World

Answers = dict[TopicPartition, ZkgroupsException | None]
LATENCY = 0.005
"""In seconds: how long a call takes."""


class Write(NamedTuple):
    """A change of one offset. None stands for no offset."""

    process: str
    group: str
    at: TopicPartition
    before: int | None
    after: int | None


class Cluster:
    """What the brokers know. It outlives the processes that use it."""

    def __init__(self, world: World, partitions: Iterable[TopicPartition]) -> None:
        self.machine = world.machine
        self.partitions = sorted(partitions)
        self.offsets: defaultdict[str, dict[TopicPartition, NativeOffset]] = defaultdict(dict)
        self.members: defaultdict[str, set[str]] = defaultdict(set)
        self.before_call: Callable[[str, str], object] = lambda _process, _what: None
        self.on_write: Callable[[Write], object] = lambda _write: None
        self.lost_answers = 0
        """How many of the next writes have no answer."""

    def brokers(self) -> Any:
        """Return the brokers as a process uses them."""
        return SimulatedBrokers(self)

    def number(self, group: str, at: TopicPartition) -> int | None:
        """Return a committed offset."""
        found = self.offsets[group].get(at)
        return None if found is None else found.offset

    def write(self, group: str, at: TopicPartition, offset: NativeOffset | None) -> None:
        """Commit or delete an offset."""
        after = None if offset is None else offset.offset
        self.on_write(Write(self.machine.current_process, group, at, self.number(group, at), after))
        if offset is None:
            self.offsets[group].pop(at, None)
        else:
            self.offsets[group][at] = offset


class SimulatedBrokers:
    """Stands for `zkgroups.kafka.Brokers`, as far as a migration uses it."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    def _call(self, what: str) -> Cluster:
        cluster = self._cluster
        cluster.machine.sleep(LATENCY)
        cluster.before_call(cluster.machine.current_process, what)
        return cluster

    def cluster_id(self) -> str:
        return "simulated"

    def offsets_retention(self) -> float:
        return 604_800.0

    def can_delete_offsets(self) -> bool:
        return True

    def partitions(self, topics: Iterable[str] | None = None) -> dict[str, tuple[int, ...]]:
        wanted = None if topics is None else set(topics)
        found: dict[str, tuple[int, ...]] = {}
        for topic, number in self._cluster.partitions:
            if wanted is None or topic in wanted:
                found[topic] = (*found.get(topic, ()), number)
        return found

    def hidden_topics(self, _topics: Iterable[str]) -> set[str]:
        return set()

    def topic_ids(self, _topics: Iterable[str]) -> dict[str, str]:
        return {}

    def ranges(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, OffsetRange | None]:
        return dict.fromkeys(partitions, OffsetRange(0, 1 << 40))

    def groups(self, names: Iterable[str]) -> dict[str, NativeGroup]:
        cluster = self._call("groups")
        return {name: self._group(cluster, name) for name in names}

    @staticmethod
    def _group(cluster: Cluster, name: str) -> NativeGroup:
        members = tuple(NativeMember(id, id, "/10.0.0.3") for id in sorted(cluster.members[name]))
        empty = NativeState.EMPTY if cluster.offsets[name] else NativeState.DEAD
        return NativeGroup(name, NativeState.STABLE if members else empty, members)

    def committed(self, groups: Iterable[str]) -> dict[str, Mapping[TopicPartition, NativeOffset]]:
        cluster = self._call("committed")
        return {group: dict(cluster.offsets[group]) for group in groups}

    committed_or_error = committed

    def commit(self, offsets: Mapping[str, Any], *, before: Any = None) -> dict[str, Answers]:  # noqa: ARG002
        wanted = {group: list(_offsets(group, those)) for group, those in offsets.items()}

        def carry_out(cluster: Cluster, group: str) -> None:
            for each in wanted[group]:
                cluster.write(group, each.at, each)

        return self._write("commit", {group: [each.at for each in those] for group, those in wanted.items()}, carry_out)

    def delete_offsets(
        self,
        offsets: Mapping[str, Iterable[TopicPartition]],
        *,
        before: Any = None,  # noqa: ARG002
    ) -> dict[str, Answers]:
        wanted = {group: list(those) for group, those in offsets.items()}

        def carry_out(cluster: Cluster, group: str) -> None:
            for at in wanted[group]:
                cluster.write(group, at, None)

        return self._write("delete offsets", wanted, carry_out)

    def delete_groups(
        self,
        names: Iterable[str],
        *,
        before: Any = None,  # noqa: ARG002
    ) -> dict[str, ZkgroupsException | None]:
        cluster = self._cluster
        found: dict[str, ZkgroupsException | None] = {}
        for name in names:
            had = list(cluster.offsets[name])
            if not had:
                found[name] = GroupNotFoundError(name)
                continue

            def carry_out(cluster: Cluster, group: str) -> None:
                for at in list(cluster.offsets[group]):
                    cluster.write(group, at, None)

            [found[name], *_] = self._write("delete groups", {name: had}, carry_out)[name].values()
        return found

    def _write(
        self, what: str, wanted: Mapping[str, list[TopicPartition]], carry_out: Callable[[Cluster, str], None]
    ) -> dict[str, Answers]:
        """Carry out a write for each group. One whose answer is lost has an unknown outcome, as after a failed look."""
        found: dict[str, Answers] = {}
        for group, places in wanted.items():
            cluster = self._call(what)
            error: ZkgroupsException | None = None
            if cluster.members[group]:
                error = GroupInUseError(group, sorted(cluster.members[group]))
            elif cluster.lost_answers:
                cluster.lost_answers -= 1
                if cluster.machine.random.random() < 0.5:
                    carry_out(cluster, group)
                error = OutcomeUnknownError("the brokers have not answered")
            else:
                carry_out(cluster, group)
            found[group] = dict.fromkeys(places, error)
        return found


def _offsets(group: str, given: Any) -> Iterable[NativeOffset]:
    if isinstance(given, PlainOffsets):
        return given.rows()
    return [
        each if isinstance(each, NativeOffset) else NativeOffset(group, at, int(each)) for at, each in given.items()
    ]
