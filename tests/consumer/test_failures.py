"""The failures that members must survive, on real servers; their numbers are those of `tests/__init__.py`, and what
happens under several of them at once is in `test_nemesis.py`."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from kazoo.client import KazooClient

from zkgroups import Generation, InstanceState, Member, Registry, TopicPartition
from zkgroups.exceptions import MemberClosedError
from zkgroups.testing import TcpProxy, ZooKeeperEnsemble, ZooKeeperServer, fresh_chroot

from ..testing.waiting import eventually
from ..zookeeper.events import expire
from .crew import Crew
from .history import LATE, Kind, clock, judge, shown
from .nemesis import ROOT, Place, Scene, plant_topics

pytestmark = pytest.mark.zookeeper

TOPICS = {"orders": 4}
QUICK = ("--reconcile-every", "1")
BUSY = 10.0
"""In seconds: what a machine may need that has other things to do."""


@pytest.fixture
def crew(tmp_path: Path, zookeeper_hosts: str) -> Iterator[Crew]:
    """Members as threads of this process; judged in the end."""
    with Crew(tmp_path, zookeeper_hosts, TOPICS) as crew:
        yield crew


@pytest.fixture
def raw(zookeeper_hosts: str) -> Iterator[Any]:
    """A plain kazoo client: somebody else."""
    client = KazooClient(zookeeper_hosts, timeout=4.0)
    client.start()
    yield client
    client.stop()
    client.close()


def owners(crew: Crew) -> dict[TopicPartition, tuple[str, int]]:
    """Who holds what: id and session."""
    return {owner.at: (owner.id, owner.session) for owner in crew.group.owners()}  # type: ignore[union-attr]


def _has_lost(crew: Crew, count: int) -> bool:
    return len(crew.events(Kind.LOST)) >= count


# 1: the session expires under an owner


def test_failure_1_a_session_that_is_ended_under_load_is_told_once_and_all_is_registered_and_claimed_anew(
    crew: Crew,
) -> None:
    crew.join("anne", *QUICK)
    crew.join("bert", *QUICK)
    crew.settle()
    for turn in range(1, 6):
        mine = {str(at) for at in crew.workers["anne"].member.assignment}
        crew.expire("anne")
        assert eventually(partial(_has_lost, crew, 2 * turn))
        assert {event.at for event in crew.events(Kind.LOST, member="anne")[-2:]} == mine
        assert eventually(lambda: len(crew.workers["anne"].member.assignment) == 2)
        crew.settle()
    session = crew.registries["anne"].session_id
    assert {owner for owner in owners(crew).values() if owner[0].startswith("anne")} == {("anne-0", session)}
    assert len(crew.events(Kind.LOST, member="bert")) == 0


def test_failure_1_a_member_that_is_cut_off_stops_before_another_has_what_it_had(
    crew: Crew, zookeeper: Any, zookeeper_hosts: str
) -> None:
    with TcpProxy(zookeeper.address) as proxy:
        away = f"{proxy.address}/{zookeeper_hosts.partition('/')[2]}"
        crew.join("anne", *QUICK, hosts=away, session_timeout=4.0)
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


def test_failure_1_what_is_lost_while_it_is_being_given_up_is_told_to_be_lost_and_not_revoked(crew: Crew) -> None:
    told: list[tuple[str, frozenset[TopicPartition]]] = []
    at_work, go_on = threading.Event(), threading.Event()
    registry = crew.connect()
    member = Member(
        registry.group("billing"),
        "orders",
        id="anne",
        on_revoked=lambda partitions: told.append(("revoked", partitions)),
        on_lost=lambda partitions: told.append(("lost", partitions)),
    )

    def work(generation: Generation) -> None:
        at_work.set()
        generation.wait()
        go_on.wait(30)

    with member:
        generation = member.next_generation(timeout=10)
        assert generation is not None
        generation.start(work)
        at_work.wait(30)
        crew.join("bert", *QUICK)
        assert generation.wait(30)
        expire(registry)
        go_on.set()
        assert eventually(lambda: told)
        assert told == [("lost", crew.partitions)]


# 4: a server restarts


def test_failure_4_through_the_loss_of_each_server_in_turn_sessions_and_claims_stay_and_nothing_is_rebalanced(
    tmp_path: Path,
) -> None:
    with ZooKeeperEnsemble(tick_time=0.5) as ensemble, Crew(tmp_path, ensemble.address, TOPICS) as crew:
        for id in ("anne", "bert", "carl"):
            crew.join(id)
        crew.settle(30)
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


# 5: one's own past


def test_failure_5_a_member_that_was_killed_and_started_again_has_its_partitions_when_its_session_has_ended(
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
        ready = _events(scene, Kind.UP, place.id)[-1].time  # on a busy machine a process takes long to start
        assert claimed <= max(killed + timeout, ready) + 1
        assert scene.settle()
        scene.end()
        assert (violations := judge(scene.history())) == [], shown(violations)


def _claimed_since(scene: Scene, past: set[int]) -> list[Any]:
    return [owner for owner in scene.group.owners() if owner.session not in past]


def test_failure_5_a_registration_of_the_same_id_that_is_somebody_elses_is_waited_for_and_never_touched(
    crew: Crew, raw: Any
) -> None:
    raw.ensure_path("/consumers/billing/ids")
    raw.create("/consumers/billing/ids/anne", b'{"version":1,"subscription":{},"pattern":"static"}', ephemeral=True)
    before = raw.get("/consumers/billing/ids/anne")
    worker = crew.join("anne", *QUICK)
    assert not eventually(lambda: worker.member.assignment, timeout=3.0)
    assert raw.get("/consumers/billing/ids/anne") == before
    raw.delete("/consumers/billing/ids/anne")
    crew.settle()


# 6: a pause


def test_failure_6_what_a_member_had_not_committed_before_a_pause_of_three_time_outs_is_refused_afterwards(
    tmp_path: Path,
) -> None:
    with Scene(tmp_path, members=1, topics=TOPICS, options=QUICK) as scene:
        assert scene.settle()
        [anne] = scene.places
        scene.end()
        everything = {str(at) for at in scene.partitions}
        before = len(_events(scene, Kind.PROCESSED, anne.id))
        scene.start(anne, "--commit-every", "1000000")  # so that there is always something to be refused
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
        assert {event.error.partition(":")[0] for event in refused} <= LATE
        scene.end()
        assert (violations := judge(scene.history())) == [], shown(violations)


def _events(scene: Scene, kind: Kind, member: str) -> list[Any]:
    return [event for event in scene.history().of(kind) if event.member == member]


def _held_by(scene: Scene, place: Place) -> list[Any]:
    return [owner for owner in scene.group.owners() if owner.id.startswith(place.id)]  # type: ignore[union-attr]


# 8: a crash in the middle of a rebalance


class Victim:
    """A member in a process of its own, which is killed when it would make its n-th request from now."""

    def __init__(self, stack: ExitStack, directory: Path, server: str, chroot: str) -> None:
        self.proxy = stack.enter_context(TcpProxy(server))
        command = [sys.executable, "-m", "tests.consumer.worker", "--hosts", f"{self.proxy.address}/{chroot}"]
        command += ["--group", "billing", "--topics", "orders", "--id", "victim", "--session-timeout", "1", *QUICK]
        self._command = [*command, "--log", str(directory / "victim.jsonl")]
        self._stack = stack

    def start(self) -> None:
        """Begin; there is one connection and never another, so that nothing happens after the step it dies at."""
        self.process = self._stack.enter_context(subprocess.Popen(self._command, cwd=ROOT, stderr=subprocess.DEVNULL))
        self._stack.callback(self.process.kill)
        assert eventually(lambda: self.proxy.connections, timeout=30)

    def dies_at(self, n: int) -> Callable[[], bool]:
        """Arm it; what is returned waits for its death, and says whether it came that far."""
        fault = self.proxy.cut_before_request(n)
        self.proxy.refuse()

        def wait() -> bool:
            came_that_far = fault.wait(3.0)
            self.process.kill()
            self.process.wait()
            self.proxy.cut()
            return came_that_far

        return wait


def _it_comes(crew: Crew, victim: Victim, n: int) -> bool:
    crew.join("heir", *QUICK)
    crew.settle()
    fault = victim.proxy.cut_before_request(n)
    victim.start()
    victim.proxy.refuse()
    came_that_far = fault.wait(3.0)
    victim.process.kill()
    victim.proxy.cut()
    return came_that_far


def _it_makes_way(crew: Crew, victim: Victim, n: int) -> bool:
    victim.start()
    crew.settle()
    wait = victim.dies_at(n)
    crew.join("heir", *QUICK)
    return wait()


def _it_leaves(crew: Crew, victim: Victim, n: int) -> bool:
    crew.join("heir", *QUICK)
    victim.start()
    assert eventually(lambda: len(crew.workers["heir"].member.assignment) == 2)
    crew.settle()
    wait = victim.dies_at(n)
    victim.process.terminate()
    return wait()


STEPS: dict[Callable[[Crew, Victim, int], bool], range] = {
    _it_comes: range(1, 29, 2),
    _it_makes_way: range(1, 16, 2),
    _it_leaves: range(1, 8),
}
"""About as many requests as each of them takes; which of them is which depends on what is committed meanwhile."""


@pytest.mark.parametrize("scene", STEPS, ids=lambda scene: scene.__name__.strip("_"))
def test_failure_8_a_member_killed_at_any_step_of_a_rebalance_leaves_all_to_those_who_are_left(
    tmp_path: Path, zookeeper: Any, scene: Callable[[Crew, Victim, int], bool]
) -> None:
    def play(n: int) -> bool:
        directory = tmp_path / str(n)
        directory.mkdir()
        with fresh_chroot(zookeeper) as hosts, ExitStack() as stack, Crew(directory, hosts, TOPICS) as crew:
            came_that_far = scene(crew, Victim(stack, directory, *hosts.split("/")), n)
            assert eventually(lambda: len(crew.workers["heir"].member.assignment) == 4), f"step {n}"
            crew.settle()
            assert {owner for owner, _session in owners(crew).values()} == {"heir-0"}
            return came_that_far

    with ThreadPoolExecutor(3) as pool:  # most of the time, a session is waited for
        came_that_far = list(pool.map(play, STEPS[scene]))
    print(came_that_far)
    assert all(came_that_far[: len(came_that_far) // 2])


# 9: a storm

STORM = 200


@pytest.mark.parametrize("assignor", ["range", pytest.param("sticky", marks=pytest.mark.soak)])
def test_failure_9_when_two_hundred_members_join_at_once_each_does_little_and_all_settle_soon(assignor: str) -> None:
    with ExitStack() as stack:
        server = stack.enter_context(ZooKeeperServer(tick_time=1.0))
        proxy = stack.enter_context(TcpProxy(server.address))
        plant_topics(server.address, {"orders": STORM})
        registries = [stack.enter_context(Registry.connect(proxy.address, session_timeout=20.0)) for _ in range(4)]
        members = [
            Member(registries[n % 4].group("billing"), "orders", id=f"m{n:03}", assignors=[assignor])
            for n in range(STORM)
        ]
        requests, began = proxy.requests, time.monotonic()
        for member in members:
            stack.callback(member.close)
        stack.callback(_stop_all, members)
        for member in members:
            member.start()
        assert time.monotonic() - began < 20
        assert eventually(lambda: all(_has_its_share(member) for member in members), timeout=90)
        print(f"{time.monotonic() - began:.1f} s, {(proxy.requests - requests) / STORM:.0f} requests for each")
        assert proxy.requests - requests < 200 * STORM
        stats = [member.stats for member in members]
        assert max(each.looks for each in stats) <= 20
        assert max(each.rebalances for each in stats) <= 8


def _stop_all(members: list[Member]) -> None:
    for member in members:
        member.stop()


def _has_its_share(member: Member) -> bool:
    return len(member.assignment) == 1 and member.state is InstanceState.STABLE


# 10: watches that are missed, paths made anew


def delete_all(client: Any, directory: str, *, made_again: bool) -> None:
    """All of it at once: members are quick to make what is missing."""
    while True:
        paths = [directory]
        for path in paths:
            paths += [f"{path}/{name}" for name in client.get_children(path)]
        deletion = client.transaction()
        for path in reversed(paths):
            deletion.delete(path)
        if made_again:
            deletion.create(directory)
        if not any(isinstance(result, Exception) for result in deletion.commit()):
            return


# Who takes owner nodes away gives partitions to two, until all have heard of it; who deletes offsets lets them go back.
EXCUSED = {"ids": set[str](), "owners": {"two have one claim"}, "": {"two have one claim", "a commit went back"}}


@pytest.mark.parametrize("made_again", [True, False], ids=["and made again", "and left so"])
@pytest.mark.parametrize("part", EXCUSED, ids=["registrations", "owners", "group"])
def test_failure_10_a_group_whose_nodes_are_deleted_is_as_it_was_soon_after(
    crew: Crew, raw: Any, part: str, made_again: bool
) -> None:
    crew.excused = EXCUSED[part]
    crew.join("anne", *QUICK)
    crew.join("bert", *QUICK)
    crew.settle()
    delete_all(raw, f"/consumers/billing/{part}".rstrip("/"), made_again=made_again)
    crew.settle()
    assert {id for id, _session in owners(crew).values()} == {"anne-0", "bert-0"}
    assert {instance.id for instance in crew.group.instances()} == {"anne", "bert"}
    assert sum(len(worker.member.assignment) for worker in crew.workers.values()) == 4


def test_failure_10_a_registration_that_a_commit_finds_missing_is_made_again_and_all_is_kept(
    crew: Crew, zookeeper: Any, zookeeper_hosts: str, raw: Any
) -> None:
    with TcpProxy(zookeeper.address) as proxy:
        crew.join("anne", *QUICK, hosts=f"{proxy.address}/{zookeeper_hosts.partition('/')[2]}")
        crew.settle()
        before = owners(crew)
        proxy.swallow_watch_events()  # so that it is a commit that hears of it first
        raw.delete("/consumers/billing/ids/anne")
        assert eventually(lambda: crew.events(Kind.REFUSED))
        crew.settle()
        assert owners(crew) == before
        crew.leave("anne")


def test_what_an_administrator_takes_away_is_told_to_be_lost_and_taken_again_and_the_member_goes_on(crew: Crew) -> None:
    crew.excused = {"two have one claim"}  # the news takes a moment
    crew.join("anne", *QUICK)
    crew.join("bert", *QUICK)
    crew.settle()
    for turn in range(1, 11):
        at, (owner, _session) = min(owners(crew).items())
        crew.group.release(at, expected_owner=owner)
        assert eventually(partial(_has_lost, crew, turn))
        crew.settle()
    assert {event.at for event in crew.events(Kind.LOST)} == {"orders/0"}


def test_failure_10_a_member_that_hears_of_no_change_makes_way_within_the_time_to_reconcile(
    crew: Crew, zookeeper: Any, zookeeper_hosts: str
) -> None:
    with TcpProxy(zookeeper.address) as proxy:
        deaf = f"{proxy.address}/{zookeeper_hosts.partition('/')[2]}"
        crew.join("anne", "--reconcile-every", "2", hosts=deaf)
        crew.settle()
        proxy.swallow_watch_events()
        crew.join("bert", *QUICK)
        assert eventually(lambda: len(crew.workers["bert"].member.assignment) == 2, timeout=2 + BUSY)
        crew.leave("bert")
        assert eventually(lambda: len(crew.workers["anne"].member.assignment) == 4, timeout=2 + BUSY)
        crew.settle()
        crew.leave("anne")


# 14: garbage

REGISTRATIONS = {
    "empty": b"",
    "half": b'{"version":1,"subscr',
    "pykafka": b"orders",
    "list": b"[1, 2]",
    "no-streams": b'{"version":1,"subscription":{"orders":0},"pattern":"static"}',
    "float": b'{"version":1,"subscription":{"orders":1.5},"pattern":"static"}',
    "expression": b'{"version":1,"subscription":{"(":1},"pattern":"white_list"}',
    "deep": b"[" * 100_000,
    "huge": b'{"version":1,"pattern":"static","subscription":{"x":1},"more":"' + b"x" * 900_000 + b'"}',
    "not-text": b"\xff\xfe\x00",
    "numbers": b'{"version":' + b"9" * 5000 + b"}",
    "nobodys-assignor": b'{"version":1,"subscription":{"other":1},"pattern":"static","assignors":[7,null]}',
    "\N{SNOWMAN} \N{GREEK SMALL LETTER ALPHA}": b"null",
}
OWNERS = {
    "orders/abc": b"x",
    "orders/-1": b"",
    "orders/99": b"\xff",
    "b'orders'/1-x": b"somebody",
    "\N{SNOWMAN}/0": b"anne-0",
    "..orders/0": b"{",
}
OFFSETS = {
    "orders/abc": b"5",
    "orders/-1": b"-1",
    "orders/99": b"9" * 5000,
    "nowhere/0": b"",
    "\N{SNOWMAN}/0": b"x" * 900_000,
}


@pytest.mark.parametrize("assignors", ["range,roundrobin,sticky", "sticky"])
def test_failure_14_whatever_stands_in_the_nodes_of_others_the_group_settles(
    crew: Crew, raw: Any, assignors: str
) -> None:
    """A bare topic name is a member of pykafka: it gets its share of the plan, and takes it nowhere we look."""
    options = (*QUICK, "--assignors", assignors)
    for name, data in REGISTRATIONS.items():
        if name != "pykafka":
            raw.create(f"/consumers/billing/ids/{name}", data, ephemeral=True, makepath=True)
    for part, nodes in (("owners", OWNERS), ("offsets", OFFSETS)):
        for name, data in nodes.items():
            raw.create(f"/consumers/billing/{part}/{name}", data, ephemeral=part == "owners", makepath=True)
    crew.join("anne", *options)
    crew.join("bert", *options)
    _settled_among_garbage(crew)
    raw.create("/consumers/billing/ids/late", b"{", ephemeral=True)
    crew.join("carl", *options)
    assert eventually(lambda: crew.workers["carl"].member.assignment)
    _settled_among_garbage(crew)


def _settled_among_garbage(crew: Crew) -> None:
    """The state of such a group is unknown to those who look at it."""

    def settled() -> bool:
        held = [at for worker in crew.workers.values() for at in worker.member.assignment]
        stable = all(worker.member.state is InstanceState.STABLE for worker in crew.workers.values())
        return stable and sorted(held) == sorted(crew.partitions)

    assert eventually(settled)
    before = len(crew.events(Kind.COMMITTED))
    assert eventually(lambda: len(crew.events(Kind.COMMITTED)) > before + 8)


@pytest.mark.parametrize("data", [b"", b"7 ", b"abc", b"-5", b"1.0", b"9" * 5000, b"x" * 900_000])
def test_failure_14_a_partition_whose_offset_cannot_be_read_is_left_alone_until_it_can(
    crew: Crew, raw: Any, data: bytes
) -> None:
    path = "/consumers/billing/offsets/orders/2"
    raw.create(path, data, makepath=True)
    crew.join("anne", *QUICK)
    assert eventually(lambda: len({event.at for event in crew.events(Kind.COMMITTED)}) == 3)
    assert "orders/2" not in {event.at for event in crew.events(Kind.BEGUN)}
    assert raw.get(path)[0] == data
    raw.set(path, b"0")
    crew.settle()


def test_failure_14_a_partition_held_by_what_cannot_be_read_is_taken_once_it_is_let_go(crew: Crew, raw: Any) -> None:
    path = "/consumers/billing/owners/orders/3"
    raw.create(path, b"\xff\x00", ephemeral=True, makepath=True)
    worker = crew.join("anne", "--reconcile-every", "60")
    assert eventually(lambda: len({event.at for event in crew.events(Kind.COMMITTED)}) == 3)
    assert len(worker.member.assignment) == 3
    raw.delete(path)
    crew.settle()


# 24: no hang

FORKING = """
import os, sys, time, warnings
warnings.simplefilter("ignore")
from zkgroups import Member, Registry
from zkgroups.exceptions import MemberClosedError

registry = Registry.connect(sys.argv[1], session_timeout=4)
member = Member(registry.group("billing"), "orders", id="parent")
generation = member.next_generation()
child = os.fork()
if child == 0:
    began = time.monotonic()
    member.close()
    try:
        member.start()
    except MemberClosedError:
        os._exit(0 if time.monotonic() - began < 10 else 1)
    os._exit(2)
_, status = os.waitpid(child, 0)
assert not generation.wait(1.0) and generation.active
generation.commit({at: 7 for at in generation.partitions})
print(os.waitstatus_to_exitcode(status), member.stats.generations, flush=True)
member.close()
"""


def test_failure_24_a_fork_of_a_member_closes_nothing_but_itself(crew: Crew) -> None:
    command = [sys.executable, "-c", FORKING, crew.hosts]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.returncode) == ("0 1\n", 0), done.stderr
    assert {offset.offset for offset in crew.group.offsets} == {7}  # type: ignore[union-attr]
    assert list(crew.group.owners()) == []


SEED = int(os.environ.get("ZKGROUPS_CLOSING_SEED", "24"))


def test_failure_24_members_that_close_at_any_moment_of_a_rebalance_are_gone_in_time(crew: Crew) -> None:
    print(f"ZKGROUPS_CLOSING_SEED={SEED}")
    rng = random.Random(SEED)
    crew.join("always", *QUICK)
    crew.settle()
    for round in range(15):
        ids = [f"w{round}.{number}" for number in range(rng.randint(1, 4))]
        for id in ids:
            crew.join(id)
            threading.Event().wait(rng.choice([0.0, rng.random() * 0.3]))
        for id in rng.sample(ids, len(ids)):
            began = time.monotonic()
            crew.leave(id)
            assert time.monotonic() - began < 15
    crew.settle()
    assert {owner for owner, _session in owners(crew).values()} == {"always-0"}
    assert [instance.id for instance in crew.group.instances()] == ["always"]


def closes_in_time(close: Callable[[], object], seconds: float = 15.0) -> None:
    """It does, and raises nothing."""
    raised: list[BaseException] = []

    def act() -> None:
        try:
            close()
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=act, daemon=True)
    thread.start()
    thread.join(seconds)
    assert not thread.is_alive(), "it hangs"
    assert raised == []


@pytest.fixture
def registry(zookeeper_hosts: str) -> Iterator[Registry]:
    plant_topics(zookeeper_hosts, TOPICS)
    with Registry.connect(zookeeper_hosts, session_timeout=4.0) as registry:
        yield registry


def test_failure_24_closing_twice_and_by_many_at_once_is_closing_once(registry: Registry) -> None:
    member = Member(registry.group("billing"), "orders")
    member.next_generation()
    threads = [threading.Thread(target=member.close) for _ in range(8)]
    for thread in threads:
        thread.start()
    closes_in_time(member.close)
    for thread in threads:
        thread.join(30)
    assert not any(thread.is_alive() for thread in threads)
    closes_in_time(member.close)
    member.stop()
    assert list(registry.group("billing").owners()) == []


def test_failure_24_a_member_that_never_started_closes_twice(registry: Registry) -> None:
    member = Member(registry.group("billing"), "orders")
    closes_in_time(member.close)
    closes_in_time(member.close)
    with pytest.raises(MemberClosedError):
        member.next_generation(timeout=5)


def test_failure_24_a_worker_and_a_callback_may_close_their_member(
    registry: Registry, caplog: pytest.LogCaptureFixture
) -> None:
    group = registry.group("billing")
    member = Member(group, "orders")

    def live() -> None:
        for generation in member.generations():
            generation.start(lambda _generation: member.close())
            generation.wait()

    closes_in_time(live, 3)
    other = Member(group, "orders", on_assigned=lambda _partitions: other.close())
    closes_in_time(lambda: list(other.generations()), 3)
    assert list(group.owners()) == []
    assert [record for record in caplog.records if record.name.startswith("zkgroups")] == []


def test_failure_24_closing_does_not_wait_for_the_pause_after_a_failure(registry: Registry) -> None:
    failed = threading.Event()

    def partitions(_topic: str) -> list[int]:
        failed.set()
        raise LookupError("planted")

    member = Member(registry.group("billing"), "orders", partitions=partitions, join_backoff=60.0).start()
    assert failed.wait(30)
    closes_in_time(member.close, 3)
    assert registry.group("billing").instances() == []


def test_failure_24_closing_while_no_server_answers_ends_in_time(zookeeper: Any, zookeeper_hosts: str) -> None:
    plant_topics(zookeeper_hosts, TOPICS)
    with TcpProxy(zookeeper.address) as proxy:
        hosts = f"{proxy.address}/{zookeeper_hosts.partition('/')[2]}"
        registry = Registry.connect(hosts, session_timeout=4.0, timeout=4.0)
        try:
            member = Member(registry.group("billing"), "orders", release_timeout=1.0)
            member.next_generation()
            proxy.drop()
            closes_in_time(member.close, 2 * 1.0 + 3 * 4.0 + BUSY)
        finally:
            proxy.heal()
            registry.close()
