"""Dry runs, marks of other plans, stops, and servers that are unavailable."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from zkgroups import Registry
from zkgroups.core.migration.obstacles import Obstacle, ObstacleKind
from zkgroups.core.migration.offset_decision import Reason
from zkgroups.core.znodes.own_nodes import MarkState
from zkgroups.exceptions import GuardFailedError, NotConnectedError
from zkgroups.input_errors import InvalidOptionError
from zkgroups.kafka import Brokers
from zkgroups.migration.follow import follow
from zkgroups.testing import Server, TcpProxy
from zkgroups.zookeeper.admin import migration_marks as marks
from zkgroups.zookeeper.offsets import Offsets

from ...lasting import lasting_client
from ...releases import needs_multiread
from ..conftest import Join
from ..rows import tree
from .conftest import DONE, FOLLOWING, LEFT, Meddling, Scene, last, state_of

pytestmark = [pytest.mark.zookeeper, pytest.mark.kafka, pytest.mark.xdist_group("kafka"), pytest.mark.timeout(1000)]


@contextmanager
def through_proxy(zookeeper: Server, hosts: str, timeout: float) -> Iterator[tuple[TcpProxy, Registry]]:
    """Another registry, whose connections can be cut."""
    with (
        TcpProxy(zookeeper.address) as proxy,
        lasting_client(f"{proxy.address}/{hosts.partition('/')[2]}") as client,
    ):
        yield proxy, Registry(client, timeout=timeout)


class Watched(Brokers):
    """Counts the requests about groups."""

    asked = 0

    def committed_or_error(self, groups: Any) -> Any:
        Watched.asked += 1
        return super().committed_or_error(groups)

    def commit(self, offsets: Any, **options: Any) -> Any:
        Watched.asked += 1
        return super().commit(offsets, **options)


class Away(Brokers):
    """Brokers that do not answer the first request of each kind."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        for kind in ("partitions", "committed_or_error", "groups", "commit"):
            setattr(self, kind, self._late(kind, getattr(self, kind)))

    @staticmethod
    def _late(kind: str, usual: Any) -> Any:
        first = iter([True])

        def request(*args: Any, **options: Any) -> Any:
            if next(first, False):
                raise NotConnectedError(f"no answer to {kind}")
            return usual(*args, **options)

        return request


def test_a_dry_run_reads_once_and_changes_nothing(scene: Scene, join: Join) -> None:
    (at, other, _), names = scene.ats, scene.names("abc")
    rows = scene.plan(*names, offsets={at: 5, other: 7})
    with scene.foreign(names[0]), join(names[2], at.topic):
        before = tree(scene.registry.client, "/consumers")
        running = scene.run(rows, execute=False)
        found = running.end()
        assert [found[name].detail for name in names[:2]] == [
            "2 offsets would be written",
            "2 offsets would be written, and the group would be cut over",
        ]
        assert found[names[2]].state is LEFT
        assert [(told.behind, told.written) for told in running.passes] == [(24, 4)]
        assert tree(scene.registry.client, "/consumers") == before

        scene.mark(*names)
        scene.commit(names[1], {at: 8, other: 7})
        before = tree(scene.registry.client, "/consumers")
        running = scene.run(rows, execute=False, to_zookeeper=True)
        back = running.end()
        assert [back[name].state for name in names] == [LEFT, FOLLOWING, FOLLOWING]
        assert back[names[1]].behind == 3
        assert [(told.behind, told.written) for told in running.passes] == [(3, 1)]
        assert tree(scene.registry.client, "/consumers") == before
    assert [scene.numbers(name) for name in names] == [{}, {at: 8, other: 7}, {}]


def test_marks_of_other_plans_and_obstacles_in_the_plan_are_reported(scene: Scene) -> None:
    names = scene.names("abc")
    rows = scene.plan(*names)
    refused = Obstacle(ObstacleKind.REFUSED_OFFSETS, count=1, reason=Reason.PAST_END)
    rows[2] = rows[2]._replace(obstacles=(refused,))
    scene.mark(names[0], plan="another", state=MarkState.MOVING)
    scene.mark(names[1], state=MarkState.MOVING)  # of a run that was killed
    found = scene.run(rows).end()
    assert [found[name].state for name in names] == [LEFT, DONE, LEFT]
    assert "another" in found[names[0]].detail
    assert found[names[2]].detail == "1 refused: past the end"
    with pytest.raises(GuardFailedError, match="without brokers"):
        follow([each._replace(brokers=None) for each in rows], scene.brokers, scene.registry, execute=True)
    for wrong in ({"every": 0.0}, {"rate": float("inf")}):
        with pytest.raises(InvalidOptionError):
            follow(rows, scene.brokers, scene.registry, execute=True, **wrong)


def test_a_stop_leaves_no_mark_on_groups_that_are_not_moved(scene: Scene, caplog: pytest.LogCaptureFixture) -> None:
    """Stopped during the cutover: members may join again, and the next run continues."""
    (at, other, _), [name] = scene.ats, scene.names()
    rows = scene.plan(name)
    marked: list[str | None] = []

    def interrupt() -> None:
        marked.append(scene.mark_of(name))
        raise KeyboardInterrupt

    def arm() -> None:
        scene.set(name, {other: 6})
        Meddling.before = interrupt

    Meddling.before = arm
    with pytest.raises(KeyboardInterrupt):
        scene.run(rows, kind=Meddling).end()
    assert (marked, scene.mark_of(name)) == (["moving"], None)
    assert "could not remove the migration mark" not in caplog.text
    with scene.foreign(name):
        running = scene.run(rows)
        running.until(lambda: running.passes)
        running.stop.set()
        assert running.end()[name].state is FOLLOWING
    assert scene.run(rows).end()[name].state is DONE
    assert scene.numbers(name) == {at: 5, other: 6}


@pytest.mark.parametrize("to_zookeeper", [False, True])
def test_unavailable_servers_are_reported_and_retried(
    scene: Scene, zookeeper: Server, zookeeper_hosts: str, to_zookeeper: bool
) -> None:
    (at, other, _), [name] = scene.ats, scene.names()
    scene.commit(name, {other: 6})
    rows = scene.plan(name)
    scene.commit(name, {other: 7})
    if to_zookeeper:
        scene.mark(name)
    with through_proxy(zookeeper, zookeeper_hosts, timeout=3.0) as (proxy, far):
        proxy.refuse()
        proxy.cut()
        running = scene.run(rows, on=far, kind=Away, to_zookeeper=to_zookeeper)
        running.until(lambda: any(told.trouble for told in running.passes))
        proxy.accept()
        [done] = running.end().values()
    assert done.state is DONE
    troubles = {told.trouble for told in running.passes}
    assert {"", "no answer to groups", "no answer to committed_or_error"} <= troubles
    assert scene.numbers(name) == ({other: 7} if to_zookeeper else {at: 5, other: 7})
    assert scene.offsets(name) == ({at: 5, other: 7} if to_zookeeper else {at: 5})


def test_following_back_continues_after_an_outage_between_a_look_and_its_write(
    scene: Scene, zookeeper: Server, zookeeper_hosts: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    at, [name] = scene.ats[0], scene.names()
    rows = scene.plan(name)
    scene.commit(name, {at: 8})
    scene.mark(name)
    replace, broken = Offsets.replace, threading.Event()
    with through_proxy(zookeeper, zookeeper_hosts, timeout=1.0) as (proxy, far):

        def replace_late(offsets: Offsets, *given: Any, **options: Any) -> Any:
            monkeypatch.undo()
            proxy.refuse()
            proxy.cut()
            broken.set()
            return replace(offsets, *given, **options)

        monkeypatch.setattr(Offsets, "replace", replace_late)
        running = scene.run(rows, on=far, to_zookeeper=True)
        running.until(broken.is_set)
        passes = len(running.passes)
        running.until(lambda: any(told.trouble for told in running.passes[passes:]))
        assert state_of(running, name) is FOLLOWING
        proxy.accept()
        assert running.end()[name].state is DONE
    assert scene.offsets(name) == {at: 8}


@needs_multiread
def test_a_pass_without_changes_asks_no_broker_and_reads_zookeeper_in_bulk(
    scene: Scene, zookeeper: Server, zookeeper_hosts: str
) -> None:
    names = [f"{number} {scene.topic}" for number in range(40)]
    rows = scene.plan(*names, offsets=dict.fromkeys(scene.ats, 5))
    for name in names:
        scene.registry.client.create(f"/consumers/{name}/ids/scala", b"{}", ephemeral=True, makepath=True)
    with through_proxy(zookeeper, zookeeper_hosts, timeout=10.0) as (proxy, far):
        running = scene.run(rows, on=far, kind=Watched, rate=300.0)
        running.until(lambda: sum(told.written for told in running.passes) == 120)
        assert max(told.written for told in running.passes) <= 30
        running.more_passes(1)
        # The passes are counted before the first requests and after the last ones: others go on between two lines.
        passes, asked, requests = len(running.passes), Watched.asked, proxy.requests
        running.more_passes(5)
        requests = proxy.requests - requests
        made = len(running.passes) - passes
        assert Watched.asked == asked
        assert requests <= 12 * (made + 1)
        scene.set(names[20], {scene.ats[0]: 6})
        running.until(lambda: running.passes[-1].behind == 0 and sum(told.written for told in running.passes) == 121)
        assert Watched.asked - asked <= 2


def test_a_run_that_ends_keeps_the_mark_of_a_group_that_another_run_has_moved(scene: Scene) -> None:
    [name], stop = scene.names(), threading.Event()

    class Overtaken(Brokers):
        def committed_or_error(self, groups: Any) -> Any:
            if scene.mark_of(name) is None:
                return super().committed_or_error(groups)
            scene.mark(name)
            stop.set()
            raise NotConnectedError("no answer")

    found = scene.run(scene.plan(name), kind=Overtaken, stop=stop).end()[name]
    assert (found.state, stop.is_set(), scene.mark_of(name)) == (FOLLOWING, True, MarkState.MOVED)


def test_groups_with_older_offsets_than_in_the_plan_are_left_also_if_they_are_marked_as_moved(scene: Scene) -> None:
    """As in another ZooKeeper. The zxids of one ensemble only grow."""
    names = moved, alive = scene.names("ab")
    rows = [row._replace(zxid=(row.zxid or 0) + 1) for row in scene.plan(*names)]
    scene.commit(moved, {scene.ats[0]: 5})
    scene.mark(moved)
    with scene.foreign(alive):
        found = scene.run(rows).end()
    assert all(found[name].state is LEFT and "is older than in the plan" in found[name].detail for name in names)
    assert (scene.numbers(alive), scene.mark_of(alive)) == ({}, None)


@pytest.mark.parametrize("state", [MarkState.MOVING, MarkState.MOVED])
def test_a_group_is_done_only_when_its_mark_is_written_and_no_other_mark_is_left(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, state: MarkState
) -> None:
    """Marks are written in several transactions, and the connection may be lost between them. Without the mark, legacy
    clients could come back although the group was reported as moved."""
    names, stop, put, failures = scene.names("ab"), threading.Event(), marks.put, iter([True])

    def put_one(context: Any, targets: dict[str, str], **options: Any) -> marks.Outcomes:
        if options["state"] is state and next(failures, False):
            put(context, dict([*targets.items()][:1]), **options)
            if state is MarkState.MOVING:
                stop.set()
            raise NotConnectedError("no answer")
        return put(context, targets, **options)

    monkeypatch.setattr(marks, "put", put_one)
    running = scene.run(scene.plan(*names), stop=stop)
    found = running.end()
    assert next(failures, None) is None
    expected = (FOLLOWING, None) if state is MarkState.MOVING else (DONE, "moved")
    assert [(found[name].state, scene.mark_of(name)) for name in names] == [expected] * 2
    assert last(running, names[0]) is not None
