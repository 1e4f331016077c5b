"""Dry runs, marks of other plans, stops, and servers that are unavailable."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from typing import Any

import pytest

from zkgroups import Registry, TopicPartition
from zkgroups.core.kafka_values import NativeGroup, NativeOffset
from zkgroups.core.migration.obstacles import Obstacle, ObstacleKind
from zkgroups.core.migration.offset_decision import Reason
from zkgroups.core.znodes.migration_mark import MarkState
from zkgroups.exceptions import GuardFailedError, NotConnectedError
from zkgroups.input_errors import InvalidOptionError, ZkgroupsException
from zkgroups.kafka import Brokers
from zkgroups.kafka.requests.commit_offsets import Outcomes
from zkgroups.kafka.sendable import Offsets
from zkgroups.migration.following.follow import follow
from zkgroups.testing import KafkaBroker, Server, TcpProxy
from zkgroups.zookeeper.admin import migration_marks as marks
from zkgroups.zookeeper.offsets import Offsets as OffsetsInZooKeeper

from ...lasting import lasting_client
from ...releases import needs_multiread
from ..conftest import Join
from ..rows import PLAN, numbers, plan_of, tree
from .following import (
    DONE,
    FOLLOWING,
    LEFT,
    Meddling,
    Run,
    commit,
    foreign,
    mark_as_moved,
    mark_of,
    offsets_of,
    state_of,
)

pytestmark = [pytest.mark.zookeeper, pytest.mark.kafka, pytest.mark.xdist_group("kafka"), pytest.mark.timeout(1000)]


def test_a_dry_run_reads_once_and_changes_nothing(
    registry: Registry, brokers: Brokers, topic: list[TopicPartition], run: Run, join: Join
) -> None:
    at, names = topic[0], [f"{which} {topic[0].topic}" for which in "abc"]
    for name in names:
        registry.group(name).offsets.set_many({at: 5, topic[1]: 7})
    rows = plan_of(registry, brokers, {name: name for name in names})
    with foreign(registry, names[0]), join(names[2], at.topic):
        before = tree(registry.client, "/consumers")
        running = run(rows, execute=False)
        found = running.end()
        assert tree(registry.client, "/consumers") == before
        assert [found[name].detail for name in names[:2]] == [
            "2 offsets would be written",
            "2 offsets would be written, and the group would be cut over",
        ]
        assert found[names[2]].state is LEFT
        assert [(told.behind, told.written) for told in running.passes] == [(24, 4)]
        mark_as_moved(registry, *names)
        before = tree(registry.client, "/consumers")
        back = run(rows, execute=False, to_zookeeper=True).end()
        assert [back[name].state for name in names] == [LEFT, FOLLOWING, FOLLOWING]
        assert tree(registry.client, "/consumers") == before
    assert [numbers(brokers, name) for name in names] == [{}] * 3


def test_a_dry_run_back_tells_how_far_zookeeper_is_behind_and_changes_nothing(
    registry: Registry, brokers: Brokers, topic: list[TopicPartition], run: Run
) -> None:
    at, same, name = topic[0], topic[1], f"of {topic[0].topic}"
    registry.group(name).offsets.set_many({at: 5, same: 8})
    rows = plan_of(registry, brokers, {name: name})
    commit(brokers, name, {at: 8, same: 8})
    mark_as_moved(registry, name)
    running = run(rows, execute=False, to_zookeeper=True)
    assert running.end()[name].behind == 3
    assert [(told.behind, told.written) for told in running.passes] == [(3, 1)]
    assert offsets_of(registry, name) == {at: 5, same: 8}


def test_marks_of_other_plans_and_obstacles_in_the_plan_are_reported(
    registry: Registry, brokers: Brokers, topic: list[TopicPartition], run: Run
) -> None:
    at, names = topic[0], [f"{which} {topic[0].topic}" for which in "abc"]
    for name in names:
        registry.group(name).offsets.set(at, 5)
    rows = plan_of(registry, brokers, {name: name for name in names})
    blocked = [
        each._replace(obstacles=(Obstacle(ObstacleKind.REFUSED_OFFSETS, count=1, reason=Reason.PAST_END),))
        for each in rows
        if each.group == names[2]
    ]
    marks.put(registry._context, {names[0]: "x"}, plan="another", state=MarkState.MOVING)
    marks.put(registry._context, {names[1]: names[1]}, plan=PLAN, state=MarkState.MOVING)  # of a run that was killed
    found = run([*rows[:2], *blocked]).end()
    assert [found[name].state for name in names] == [LEFT, DONE, LEFT]
    assert "another" in found[names[0]].detail
    assert found[names[2]].detail == "1 refused: past the end"
    with pytest.raises(GuardFailedError, match="without brokers"):
        follow([each._replace(brokers=None) for each in rows], brokers, registry, execute=True)
    for wrong in ({"every": 0.0}, {"rate": float("inf")}):
        with pytest.raises(InvalidOptionError):
            follow(rows, brokers, registry, execute=True, **wrong)


def test_a_stop_leaves_no_mark_on_groups_that_are_not_moved(
    registry: Registry,
    brokers: Brokers,
    topic: list[TopicPartition],
    run: Run,
    meddling: type[Meddling],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Stopped during the cutover: members may join again, and the next run continues."""
    at, name = topic[0], f"of {topic[0].topic}"
    registry.group(name).offsets.set(at, 5)
    rows = plan_of(registry, brokers, {name: name})
    marked: list[str | None] = []

    def interrupt() -> None:
        marked.append(mark_of(registry, name))
        raise KeyboardInterrupt

    def arm() -> None:
        registry.group(name).offsets.set(topic[1], 6)
        meddling.before = interrupt

    meddling.before = arm
    with pytest.raises(KeyboardInterrupt):
        run(rows, kind=meddling).end()
    assert marked == ["moving"]
    assert mark_of(registry, name) is None
    assert "could not remove the migration mark" not in caplog.text
    with foreign(registry, name):
        running = run(rows)
        running.until(lambda: running.passes)
        running.stop.set()
        assert running.end()[name].state is FOLLOWING
    assert run(rows).end()[name].state is DONE
    assert numbers(brokers, name) == {at: 5, topic[1]: 6}


class Away(Brokers):
    """Brokers that do not answer the first request of each kind."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._asked: set[str] = set()

    def _first(self, kind: str) -> None:
        if kind not in self._asked:
            self._asked.add(kind)
            raise NotConnectedError(f"no answer to {kind}")

    def partitions(self, topics: Iterable[str] | None = None) -> dict[str, tuple[int, ...]]:
        self._first("partitions")
        return super().partitions(topics)

    def committed_or_error(
        self, groups: Iterable[str]
    ) -> dict[str, dict[TopicPartition, NativeOffset] | ZkgroupsException]:
        self._first("committed")
        return super().committed_or_error(groups)

    def groups(self, names: Iterable[str]) -> dict[str, NativeGroup | ZkgroupsException]:
        self._first("groups")
        return super().groups(names)

    def commit(self, offsets: Offsets, **options: Any) -> Outcomes:
        self._first("commit")
        return super().commit(offsets, **options)


@pytest.mark.parametrize("to_zookeeper", [False, True])
def test_unavailable_servers_are_reported_and_retried(
    registry: Registry,
    zookeeper: Any,
    zookeeper_hosts: str,
    brokers: Brokers,
    topic: list[TopicPartition],
    run: Run,
    to_zookeeper: bool,
) -> None:
    at, name = topic[0], f"of {topic[0].topic}"
    registry.group(name).offsets.set(at, 5)
    commit(brokers, name, {topic[1]: 6})
    rows = plan_of(registry, brokers, {name: name})
    commit(brokers, name, {topic[1]: 7})
    if to_zookeeper:
        mark_as_moved(registry, name)
    with (
        TcpProxy(zookeeper.address) as proxy,
        lasting_client(f"{proxy.address}/{zookeeper_hosts.partition('/')[2]}") as client,
    ):
        far = Registry(client, timeout=3.0)
        proxy.refuse()
        proxy.cut()
        running = run(rows, on=far, kind=Away, to_zookeeper=to_zookeeper)
        running.until(lambda: any(told.trouble for told in running.passes))
        proxy.accept()
        [done] = running.end().values()
    assert done.state is DONE
    troubles = {told.trouble for told in running.passes}
    assert {"", "no answer to groups", "no answer to committed"} <= troubles
    assert numbers(brokers, name) == ({topic[1]: 7} if to_zookeeper else {at: 5, topic[1]: 7})
    assert offsets_of(registry, name) == ({at: 5, topic[1]: 7} if to_zookeeper else {at: 5})


@needs_multiread
def test_a_pass_without_changes_asks_no_broker_and_reads_zookeeper_in_bulk(
    registry: Registry,
    zookeeper: Any,
    zookeeper_hosts: str,
    brokers: Brokers,
    topic: list[TopicPartition],
    run: Run,
) -> None:
    names = [f"{number} {topic[0].topic}" for number in range(40)]
    for name in names:
        registry.group(name).offsets.set_many(dict.fromkeys(topic, 5))
        registry.client.create(f"/consumers/{name}/ids/scala", b"{}", ephemeral=True, makepath=True)
    rows = plan_of(registry, brokers, {name: name for name in names})
    with (
        TcpProxy(zookeeper.address) as proxy,
        Registry.connect(f"{proxy.address}/{zookeeper_hosts.partition('/')[2]}") as far,
    ):
        running = run(rows, on=far, kind=Counted, rate=300.0)
        running.until(lambda: sum(told.written for told in running.passes) == 120)
        assert max(told.written for told in running.passes) <= 30
        running.more_passes(1)
        # The passes are counted before the first requests and after the last ones: others go on between two lines.
        passes, asked, requests = len(running.passes), Counted.asked, proxy.requests
        running.more_passes(5)
        requests = proxy.requests - requests
        made = len(running.passes) - passes
        assert Counted.asked == asked
        assert requests <= 12 * (made + 1)
        registry.group(names[20]).offsets.set(topic[0], 6)
        running.until(lambda: running.passes[-1].behind == 0 and sum(told.written for told in running.passes) == 121)
        assert Counted.asked - asked <= 2


class Counted(Brokers):
    """Counts the requests about groups."""

    asked = 0

    def committed_or_error(
        self, groups: Iterable[str]
    ) -> dict[str, dict[TopicPartition, NativeOffset] | ZkgroupsException]:
        Counted.asked += 1
        return super().committed_or_error(groups)

    def commit(self, offsets: Offsets, **options: Any) -> Outcomes:
        Counted.asked += 1
        return super().commit(offsets, **options)


def test_a_run_that_ends_keeps_the_mark_of_a_group_that_another_run_has_moved(
    registry: Registry, broker: KafkaBroker, topic: list[TopicPartition]
) -> None:
    name, stop = f"of {topic[0].topic}", threading.Event()
    registry.group(name).offsets.set(topic[0], 5)

    class Overtaken(Brokers):
        def committed_or_error(self, groups: Iterable[str]) -> Any:
            if mark_of(registry, name) is None:
                return super().committed_or_error(groups)
            marks.put(registry._context, {name: name}, plan=PLAN, state=MarkState.MOVED)
            stop.set()
            raise NotConnectedError("no answer")

    with Overtaken.connect(broker.address) as brokers:
        rows = plan_of(registry, brokers, {name: name})
        [found] = follow(rows, brokers, registry, execute=True, every=0.1, stop=stop)
    assert (found.state, stop.is_set()) == (FOLLOWING, True)
    assert mark_of(registry, name) == MarkState.MOVED


def test_following_back_continues_after_an_outage_between_a_look_and_its_write(
    zookeeper: Server,
    zookeeper_hosts: str,
    registry: Registry,
    brokers: Brokers,
    topic: list[TopicPartition],
    run: Run,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    at, name = topic[0], f"of {topic[0].topic}"
    registry.group(name).offsets.set(at, 5)
    rows = plan_of(registry, brokers, {name: name})
    commit(brokers, name, {at: 8})
    mark_as_moved(registry, name)
    replace, broken = OffsetsInZooKeeper.replace, threading.Event()
    with (
        TcpProxy(zookeeper.address) as proxy,
        lasting_client(f"{proxy.address}/{zookeeper_hosts.partition('/')[2]}") as client,
    ):
        own = Registry(client, timeout=1.0)

        def replace_late(offsets: OffsetsInZooKeeper, *given: Any, **options: Any) -> Any:
            monkeypatch.undo()
            proxy.refuse()
            proxy.cut()
            broken.set()
            return replace(offsets, *given, **options)

        monkeypatch.setattr(OffsetsInZooKeeper, "replace", replace_late)
        running = run(rows, on=own, to_zookeeper=True)
        running.until(broken.is_set)
        passes = len(running.passes)
        running.until(lambda: any(told.trouble for told in running.passes[passes:]))
        assert state_of(running, name) is FOLLOWING
        proxy.accept()
        assert running.end()[name].state is DONE
    assert offsets_of(registry, name) == {at: 8}


def test_groups_with_older_offsets_than_in_the_plan_are_left_also_if_they_are_marked_as_moved(
    registry: Registry, brokers: Brokers, topic: list[TopicPartition], run: Run
) -> None:
    """As in another ZooKeeper. The zxids of one ensemble only grow."""
    at, names = topic[0], [f"{which} {topic[0].topic}" for which in "abc"]
    for name in names:
        registry.group(name).offsets.set_many({at: 5, topic[1]: 7})
    same, moved, alive = names
    rows = [
        row._replace(zxid=None if row.zxid is None else row.zxid + (row.at == at and row.group != same))
        for row in plan_of(registry, brokers, {name: name for name in names})
    ]
    commit(brokers, moved, {at: 5, topic[1]: 7})
    mark_as_moved(registry, moved)
    with foreign(registry, alive):
        found = run(rows).end()
    assert {name: each.state for name, each in found.items()} == {same: DONE, moved: LEFT, alive: LEFT}
    assert all("is older than in the plan" in found[name].detail for name in (moved, alive))
    assert numbers(brokers, alive) == {}
    assert mark_of(registry, alive) is None


def test_a_mark_is_removed_if_a_later_one_could_not_be_written(
    registry: Registry, brokers: Brokers, topic: list[TopicPartition], run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Marks are written in several transactions, and the connection may be lost between them."""
    names, stop = [f"{which} {topic[0].topic}" for which in "ab"], threading.Event()
    for name in names:
        registry.group(name).offsets.set(topic[0], 5)
    put = marks.put

    def put_one(context: Any, targets: Mapping[str, str], **options: Any) -> marks.Outcomes:
        put(context, dict([*targets.items()][:1]), **options)
        assert mark_of(registry, names[0]) == MarkState.MOVING
        stop.set()
        raise NotConnectedError("no answer")

    monkeypatch.setattr(marks, "put", put_one)
    found = run(plan_of(registry, brokers, {name: name for name in names}), stop=stop).end()
    assert [found[name].state for name in names] == [FOLLOWING, FOLLOWING]
    assert [mark_of(registry, name) for name in names] == [None, None]


def test_a_group_is_done_only_when_its_mark_is_written(
    registry: Registry, brokers: Brokers, topic: list[TopicPartition], run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the mark, legacy clients could come back although the group was reported as moved."""
    name, failures, put = f"of {topic[0].topic}", iter([True]), marks.put
    registry.group(name).offsets.set(topic[0], 5)

    def put_late(context: Any, targets: Mapping[str, str], *, state: MarkState, **options: Any) -> marks.Outcomes:
        if state is MarkState.MOVED and next(failures, False):
            raise NotConnectedError("no answer")
        return put(context, targets, state=state, **options)

    monkeypatch.setattr(marks, "put", put_late)
    assert run(plan_of(registry, brokers, {name: name})).end()[name].state is DONE
    assert next(failures, None) is None
    assert mark_of(registry, name) == MarkState.MOVED
