"""Failures 1, 4, 5 and 6: expired sessions, lost servers, restarted and suspended members."""

from __future__ import annotations

import signal
import threading
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from zkgroups import Generation, Member, TopicPartition
from zkgroups.testing import TcpProxy, ZooKeeperEnsemble

from ...testing.waiting import eventually
from ...zookeeper.events import expire
from ..crew import Crew
from ..history import LATE, UNCERTAIN, Kind, clock, judge, shown
from ..nemesis import Place, Scene
from .crews import BUSY, QUICK, TOPICS, has_lost, owners

pytestmark = pytest.mark.zookeeper


# 1: the session of an owner expires


def test_failure_1_an_expired_session_is_reported_once_and_the_member_registers_and_claims_again(
    crew: Crew,
) -> None:
    crew.join("anne", *QUICK)
    crew.join("bert", *QUICK)
    crew.settle()
    for turn in range(1, 6):
        mine = {str(at) for at in crew.workers["anne"].member.assignment}
        crew.expire("anne")
        assert eventually(partial(has_lost, crew, 2 * turn))
        assert {event.at for event in crew.events(Kind.LOST, member="anne")[-2:]} == mine
        assert eventually(lambda: len(crew.workers["anne"].member.assignment) == 2)
        crew.settle()
    session = crew.registries["anne"].session_id
    assert {owner for owner in owners(crew).values() if owner[0].startswith("anne")} == {("anne-0", session)}
    assert len(crew.events(Kind.LOST, member="bert")) == 0


def test_failure_1_a_member_that_is_cut_off_stops_before_another_owns_its_partitions(
    crew: Crew, zookeeper: Any, zookeeper_hosts: str
) -> None:
    with TcpProxy(zookeeper.address) as proxy:
        away = f"{proxy.address}/{zookeeper_hosts.partition('/')[2]}"
        crew.join("anne", *QUICK, hosts=away, session_timeout=10.0)
        crew.join("bert", *QUICK)
        crew.settle()
        proxy.drop()
        assert eventually(lambda: len(crew.workers["bert"].member.assignment) == 4)
        assert eventually(lambda: len(crew.events(Kind.LOST, member="anne")) == 2)
        assert crew.workers["anne"].member.assignment == frozenset()
        proxy.heal()
        assert eventually(lambda: len(crew.workers["anne"].member.assignment) == 2)
        crew.settle()
        crew.leave("anne")


def test_failure_1_partitions_lost_during_a_release_are_reported_as_lost_and_not_as_revoked(crew: Crew) -> None:
    told: list[tuple[str, frozenset[TopicPartition]]] = []
    at_work, go_on = threading.Event(), threading.Event()
    registry = crew.connect()
    member = Member(
        registry.group("billing"),
        "orders",
        id="anne",
        release_timeout=60.0,
        rebalance_timeout=100.0,
        on_revoked=lambda partitions: told.append(("revoked", partitions)),
        on_lost=lambda partitions: told.append(("lost", partitions)),
    )

    def work(generation: Generation) -> None:
        at_work.set()
        generation.wait()
        go_on.wait(30)

    with member:
        generation = member.next_generation(timeout=40)
        assert generation is not None
        generation.start(work)
        at_work.wait(30)
        crew.join("bert", *QUICK)
        assert generation.wait(30)
        expire(registry)
        go_on.set()
        assert eventually(lambda: told)
        assert told == [("lost", crew.partitions)]


# 4: servers restart


def test_failure_4_sessions_and_claims_survive_the_loss_of_each_server_without_a_rebalance(
    tmp_path: Path,
) -> None:
    with ZooKeeperEnsemble(tick_time=0.5) as ensemble, Crew(tmp_path, ensemble.address, TOPICS) as crew:
        for id in ("anne", "bert", "carl"):
            crew.join(id, session_timeout=40.0)
        crew.settle()
        sessions = {id: crew.registries[id].session_id for id in crew.workers}
        held, stats = owners(crew), {id: worker.member.stats for id, worker in crew.workers.items()}
        leader = ensemble.leader()
        for node in sorted(ensemble.nodes, key=lambda node: node is leader):
            node.kill()
            crew.settle()
            node.start()
            crew.settle()
        assert {id: crew.registries[id].session_id for id in crew.workers} == sessions
        assert owners(crew) == held
        for id, before in stats.items():
            after = crew.workers[id].member.stats
            counted = ("rebalances", "generations", "interruptions", "gained", "lost", "conflicts", "waits")
            assert [getattr(after, name) for name in counted] == [getattr(before, name) for name in counted]
            assert after.commits > before.commits


# 5: an old registration of the same id


def test_failure_5_a_restarted_member_gets_its_partitions_once_its_old_session_has_expired(
    tmp_path: Path,
) -> None:
    timeout = 2.0
    with Scene(tmp_path, members=1, topics=TOPICS, session_timeout=timeout, options=QUICK) as scene:
        assert scene.settle()
        [place] = scene.places
        past = {owner.session for owner in scene.group.owners()}
        scene.signal(place, signal.SIGKILL)
        killed = clock()
        scene.start(place, new=False)
        assert eventually(lambda: len(_claimed_since(scene, past)) == 4)
        claimed = clock()
        ready = _events(scene, Kind.UP, place.id)[-1].time  # a busy machine takes long to start a process
        assert claimed <= max(killed + timeout, ready) + BUSY
        assert scene.settle()
        scene.end()
        assert (violations := judge(scene.history())) == [], shown(violations)


def _claimed_since(scene: Scene, past: set[int]) -> list[Any]:
    return [owner for owner in scene.group.owners() if owner.session not in past]


def test_failure_5_a_member_waits_for_a_foreign_registration_of_its_id_and_never_touches_it(
    crew: Crew, raw: Any
) -> None:
    raw.ensure_path("/consumers/billing/ids")
    raw.create("/consumers/billing/ids/anne", b'{"version":1,"subscription":{},"pattern":"static"}', ephemeral=True)
    before = raw.get("/consumers/billing/ids/anne")
    worker = crew.join("anne", *QUICK)
    assert not eventually(lambda: worker.member.assignment, timeout=3.0)  # it never may
    assert raw.get("/consumers/billing/ids/anne") == before
    raw.delete("/consumers/billing/ids/anne")
    crew.settle()


# 6: a suspended process


def test_failure_6_late_commits_after_a_pause_of_three_session_timeouts_are_refused(
    tmp_path: Path,
) -> None:
    with Scene(tmp_path, members=1, topics=TOPICS, options=QUICK) as scene:
        assert scene.settle()
        [anne] = scene.places
        scene.end()
        everything = {str(at) for at in scene.partitions}
        before = len(_events(scene, Kind.PROCESSED, anne.id))
        scene.start(anne, "--commit-every", "1000000")  # so that a commit is refused
        assert eventually(lambda: {e.at for e in _events(scene, Kind.PROCESSED, anne.id)[before:]} == everything)
        scene.signal(anne, signal.SIGSTOP)
        stopped = time.monotonic()
        bert = Place(1, anne.proxy)
        scene.places.append(bert)
        scene.start(bert)
        assert eventually(lambda: len(_held_by(scene, bert)) == 4)
        assert scene.settle()
        threading.Event().wait(max(0.0, stopped + 3 * scene.timeout - time.monotonic()))
        scene.signal(anne, signal.SIGCONT)
        assert eventually(lambda: len(_held_by(scene, anne)) == 2)
        assert eventually(lambda: {event.at for event in _events(scene, Kind.REFUSED, anne.id)} == everything)
        refused = _events(scene, Kind.REFUSED, anne.id)
        # A busy machine may connect again only after the commit has given up. The judge looks into the server's log.
        assert {event.error.partition(":")[0] for event in refused} <= LATE | UNCERTAIN
        scene.end()
        assert (violations := judge(scene.history())) == [], shown(violations)


def _events(scene: Scene, kind: Kind, member: str) -> list[Any]:
    return [event for event in scene.history().of(kind) if event.member == member]


def _held_by(scene: Scene, place: Place) -> list[Any]:
    return [owner for owner in scene.group.owners() if owner.id.startswith(place.id)]  # type: ignore[union-attr]
