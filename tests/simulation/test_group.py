"""Failure 11 and the rules of claims: a model of one group, its members, administrators and other clients, in any order
of events and faults. After each step, the nodes in ZooKeeper must be those of the model.

What a lost request, a lost reply, a cut connection or a stalled process may change is nothing, or that a session ends.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import NodeExistsError, NoNodeError

from tests.seeds import seeds
from zkgroups import Claim, Instance, Registry, TopicPartition
from zkgroups.core.znodes.own_nodes import MarkState
from zkgroups.exceptions import (
    AlreadyClaimedError,
    AlreadyRegisteredError,
    ClaimedByOtherError,
    GroupInUseError,
    GroupMigratedError,
    GroupNotFoundError,
    GuardFailedError,
    NotClaimedError,
    NotRegisteredError,
    OffsetConflictError,
    OffsetWouldGoBackError,
    SessionLostError,
)
from zkgroups.zookeeper.admin.migration_marks import put, remove

from .histories import Step, check
from .world import HOSTS, World

HISTORIES, STEPS = 60, 80
MEMBERS = ("a", "b")
PARTITIONS = tuple(TopicPartition("t", n) for n in range(2))
SESSION_TIMEOUT = 10.0
GROUP = "/consumers/billing"
FOREIGN = "foreign"

WEIGHTS = {
    "register": 6,
    "deregister": 1,
    "expire": 1,
    "claim": 10,
    "commit": 16,
    "release": 3,
    "administrator_releases": 2,
    "administrator_evicts": 1,
    "administrator_resets": 1,
    "offset_is_set": 2,
    "foreign_claims": 2,
    "foreign_releases": 2,
    "foreign_commits": 2,
    "group_is_marked": 1,
    "mark_is_removed": 3,
    "group_is_deleted": 1,
    "server_lags": 2,
    "connection_is_cut": 1,
    "process_stalls": 1,
    "server_restarts": 1,
    "lose": 6,
}


class GroupModel:
    """What ZooKeeper must contain, and what each call must return."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.done: Counter[str] = Counter()
        self.observer = world.connect("observer", session_timeout=300.0)
        self.group = self.observer.group("billing")
        self.registries: dict[str, Registry] = {
            name: world.connect(name, session_timeout=SESSION_TIMEOUT) for name in MEMBERS
        }
        self.instances: dict[str, Instance] = {
            name: registry.group("billing").instance(name) for name, registry in self.registries.items()
        }
        self.foreign = KazooClient(HOSTS, timeout=300.0)
        self.foreign.start()
        self.registered: set[str] = set()
        self.lost: set[str] = set()  # their session expired since they registered, and they have not registered again
        self.holder: dict[TopicPartition, str] = {}
        self.claims: list[tuple[str, TopicPartition, Claim]] = []
        self.current: dict[TopicPartition, Claim] = {}
        self.offset: dict[TopicPartition, int] = {}
        self.is_marked = False
        self.writes: Counter[TopicPartition] = Counter()
        self.known: dict[Claim, tuple[int | None, int]] = {}
        """The committed offset according to a claim, from its first commit on, and the number of writes until then."""

    # Moves of members

    def register(self, step: Step) -> None:
        name = MEMBERS[step.a % len(MEMBERS)]
        if name in self.registered and not self.instances[name].registered:
            return  # its session is not certain to live: it would prove it, and take over what is there
        is_refused = self.is_marked and name not in self.registered
        self.done["registrations refused by a mark"] += is_refused
        with raising(GroupMigratedError if is_refused else AlreadyRegisteredError if name in self.registered else None):
            self._in(name, lambda: self.instances[name].register(["t"]))
            self.registered.add(name)
            self.lost.discard(name)

    def deregister(self, step: Step) -> None:
        name = MEMBERS[step.a % len(MEMBERS)]
        self._in(name, self.instances[name].deregister)
        self._forget(name)
        self.lost.discard(name)

    def claim(self, step: Step) -> None:
        names = sorted(self.registered) if step.c % 8 else MEMBERS
        name, at = (names or MEMBERS)[step.a % len(names or MEMBERS)], PARTITIONS[step.b % len(PARTITIONS)]
        holder = self.holder.get(at)
        expected: tuple[type[Exception], ...] = ()
        if name in self.lost:
            expected = (SessionLostError,)
        elif name not in self.registered:  # one that was evicted may not know it, and then lose its session
            expected = (NotRegisteredError, SessionLostError)
        elif holder == name:
            expected = (AlreadyClaimedError,)
        elif holder is not None:
            expected = (ClaimedByOtherError,)
        with raising(*expected):
            claim = self._in(name, lambda: self.instances[name].claim(at))
            self.claims.append((name, at, claim))
            self.current[at] = claim
            self.holder[at] = name

    def commit(self, step: Step) -> None:
        if not self.claims:
            return
        # Mostly one of the latest claims.
        index = step.a % len(self.claims) if step.c % 4 == 0 else -1 - step.a % min(2, len(self.claims))
        name, at, claim = self.claims[index]
        offset, backward = max(0, self.offset.get(at, 0) + step.b % 9 - 3), step.c % 5 == 0
        before = self.offset.get(at)

        is_late = self.holder.get(at) != name or self.current[at] is not claim
        believed, writes = (None, 0) if is_late else self.known.setdefault(claim, (before, self.writes[at]))
        is_changed = writes != self.writes[at]
        goes_back = believed is not None and offset < believed and not backward
        expected: set[type[Exception] | None] = {None}
        if is_late:
            expected = {SessionLostError, NotClaimedError, NotRegisteredError, OffsetWouldGoBackError}
        elif goes_back or is_changed:
            # If both hold, it depends on whether the claim has read the offset again.
            expected = {OffsetWouldGoBackError} if goes_back else set()
            expected |= {OffsetConflictError} if is_changed else set()
        outcome: type[Exception] | None = None
        try:
            self._in(name, lambda: claim.commit(offset, backward=backward))
        except tuple(filter(None, expected)) as error:
            outcome = type(error)
        assert outcome in expected, f"{outcome}, and not one of {expected}"
        if outcome is None:
            self._written(at, offset)
            self.known[claim] = (offset, self.writes[at])
            self.done["commits"] += 1
        elif is_late:
            self.done["late commits refused"] += 1
        elif outcome is OffsetConflictError:
            del self.known[claim]
            self.done["conflicts"] += 1
        else:
            self.done["commits refused"] += 1

    def release(self, step: Step) -> None:
        if not self.claims:
            return
        name, at, claim = self.claims[step.a % len(self.claims)]
        self._in(name, claim.release)
        if self.holder.get(at) == name and self.current[at] is claim:
            del self.holder[at]

    # Moves of others

    def administrator_releases(self, step: Step) -> None:
        name, at = MEMBERS[step.a % len(MEMBERS)], PARTITIONS[step.b % len(PARTITIONS)]
        holder = self.holder.get(at)
        is_same = holder is not None and holder.removeprefix(FOREIGN) == name
        expected = NotClaimedError if holder is None else None if is_same else GuardFailedError
        with raising(expected):
            self.group.release(at, expected_owner=name)
            del self.holder[at]

    def administrator_evicts(self, step: Step) -> None:
        """What is deleted belongs to one session. Without a registration, it is whatever has the id."""
        name = MEMBERS[step.a % len(MEMBERS)]
        deleted = name if name in self.registered else FOREIGN + name
        with raising(None if deleted in (*self.registered, *self.holder.values()) else NotRegisteredError):
            self.group.evict(name)
            self._forget(deleted)

    def administrator_resets(self, step: Step) -> None:
        at, offset = PARTITIONS[step.a % len(PARTITIONS)], step.b % 11
        with raising(GroupInUseError if self.registered else None):
            self.group.offsets.reset({at: offset})
            self._written(at, offset)

    def offset_is_set(self, step: Step) -> None:
        at = PARTITIONS[step.a % len(PARTITIONS)]
        self._written(at, self.offset.get(at, 0) + 1 + step.b % 3)
        self.group.offsets.set(at, self.offset[at])

    def foreign_claims(self, step: Step) -> None:
        """Another client owns a partition under the id of a member: equal data, another session."""
        name, at = MEMBERS[step.a % len(MEMBERS)], PARTITIONS[step.b % len(PARTITIONS)]
        self.foreign.ensure_path(f"{GROUP}/owners/t")
        with raising(NodeExistsError if at in self.holder else None):
            self.foreign.create(_owner(at), name.encode(), ephemeral=True)
            self.holder[at] = FOREIGN + name

    def foreign_releases(self, step: Step) -> None:
        at = PARTITIONS[step.b % len(PARTITIONS)]
        if self.holder.get(at, "").startswith(FOREIGN):
            self.foreign.delete(_owner(at))
            del self.holder[at]

    def foreign_commits(self, step: Step) -> None:
        """Scala and Go members write an offset without a condition."""
        at = PARTITIONS[step.b % len(PARTITIONS)]
        self._written(at, step.a % 11)
        self.foreign.ensure_path(f"{GROUP}/offsets/t")
        try:
            self.foreign.set(_offset(at), b"%d" % self.offset[at])
        except NoNodeError:
            self.foreign.create(_offset(at), b"%d" % self.offset[at])

    def group_is_marked(self, _step: Step) -> None:
        """A migration marks the group. Members that are registered go on."""
        exists = GROUP in self.world.server.nodes
        error = put(self.observer._context, {"billing": "billing"}, plan="p", state=MarkState.MOVING)["billing"]
        assert isinstance(error, type(None) if exists else GroupNotFoundError), error
        self.is_marked = exists

    def mark_is_removed(self, _step: Step) -> None:
        assert remove(self.observer._context, ["billing"], plan="p") == {"billing": None}
        self.is_marked = False

    def group_is_deleted(self, _step: Step) -> None:
        """An administrator deletes the group, with its mark if it has one."""
        is_gone = GROUP not in self.world.server.nodes
        with raising(GroupInUseError if self.registered or self.holder else GroupNotFoundError if is_gone else None):
            self.group.delete()
            self.offset.clear()
            self.is_marked = False
            self.done["deletions"] += 1

    # Faults

    def server_lags(self, step: Step) -> None:
        """A member is connected to a server that has nothing newer than now, until it writes or asks for the newest."""
        name = MEMBERS[step.a % len(MEMBERS)]
        self.world.move_to_old_server(name)
        self.world.drop(name)
        self.world.machine.until(lambda: self.registries[name].client.connected, 60)
        self.world.settle(name)

    def expire(self, step: Step) -> None:
        name = MEMBERS[step.a % len(MEMBERS)]
        self.world.expire(self.registries[name])
        self._session_ended(name)

    def connection_is_cut(self, step: Step) -> None:
        self._without(MEMBERS[step.a % len(MEMBERS)], step.b, self.world.cut, self.world.heal)

    def process_stalls(self, step: Step) -> None:
        machine = self.world.machine
        self._without(MEMBERS[step.a % len(MEMBERS)], step.b, machine.stall, machine.resume)

    def _without(self, name: str, quarters: int, begin: Callable[[str], object], end: Callable[[str], object]) -> None:
        """Let a member be silent for up to 25 seconds. No claim may be held that the server has ended."""
        registry, before = self.registries[name], self.registries[name].session_id
        mine = [claim for holder, _, claim in self.claims if holder == name and claim.session_id == before]
        begin(name)
        for _ in range(quarters % 100):
            self.world.machine.sleep(0.25)
            assert before in self.world.server.sessions or not any(claim.held for claim in mine)
        end(name)
        assert before in self.world.server.sessions or not any(claim.held for claim in mine)
        self.world.machine.until(lambda: registry.client.connected, 60)
        self.world.machine.sleep(1)
        if before not in self.world.server.sessions:
            self.done["sessions that expired in silence"] += 1
            self.world.machine.until(lambda: registry.session_id not in (before, None), 60)
            self._session_ended(name)

    def server_restarts(self, step: Step) -> None:
        """The server is away for a time. All sessions continue."""
        self.world.stop()
        self.world.machine.sleep(step.a % 40 / 10)
        self.world.start()
        clients = [self.foreign, self.observer.client, *(registry.client for registry in self.registries.values())]
        self.world.machine.until(lambda: all(client.connected for client in clients))

    def lose(self, step: Step) -> None:
        """The next write of a member loses its reply, or never arrives. The member finds out."""
        name = MEMBERS[step.a % len(MEMBERS)]
        self.world.lose(name, ("request", "reply")[step.c % 2])

    # The model

    def _in(self, process: str, call: Callable[[], Any]) -> Any:
        with self.world.machine.process(process):
            return call()

    def _written(self, at: TopicPartition, offset: int) -> None:
        self.offset[at] = offset
        self.writes[at] += 1

    def _forget(self, name: str) -> None:
        self.registered.discard(name)
        self.holder = {at: holder for at, holder in self.holder.items() if holder != name}

    def _session_ended(self, name: str) -> None:
        if name in self.registered:
            self.lost.add(name)
        self._forget(name)

    def check(self) -> None:
        """Compare the nodes with the model."""
        nodes = self.world.server.nodes
        sessions = {name: registry.session_id for name, registry in self.registries.items()}
        foreign = self.foreign.client_id[0]
        owners = {at: nodes[_owner(at)].owner for at in PARTITIONS if _owner(at) in nodes}
        assert owners == {at: sessions.get(holder, foreign) for at, holder in self.holder.items()}
        offsets = {at: int(nodes[path].data or b"") for at in PARTITIONS if (path := _offset(at)) in nodes}
        assert offsets == self.offset
        ids = nodes.get(f"{GROUP}/ids")
        assert (ids.children if ids else set()) == self.registered
        for name, at, claim in self.claims:
            if claim.held:
                assert nodes.get(f"{GROUP}/ids/{name}") is not None or claim.session_id in self.world.server.sessions
                assert claim.session_id in self.world.server.sessions
            is_mine = self.holder.get(at) == name and self.current[at] is claim
            assert self._in(name, claim.verify) == is_mine


def _owner(at: TopicPartition) -> str:
    return f"{GROUP}/owners/{at.topic}/{at.partition}"


def _offset(at: TopicPartition) -> str:
    return f"{GROUP}/offsets/{at.topic}/{at.partition}"


@contextlib.contextmanager
def raising(*errors: type[Exception] | None) -> Iterator[None]:
    """Expect one of these errors, if there are any."""
    expected = tuple(error for error in errors if error is not None)
    try:
        yield
    except expected:
        return
    assert not expected, f"it raised none of {expected}"


def play(seed: int, history: Sequence[Step]) -> Counter[str]:
    """Play a history, and compare after each step."""
    with World(seed).running() as world:
        model = GroupModel(world)
        for step in history:
            getattr(model, step.move)(step)
            model.check()
        return model.done


def test_failure_11_a_late_commit_is_refused_in_every_order_of_events() -> None:
    done = check(play, WEIGHTS, seeds=range(HISTORIES), length=STEPS)
    # What the histories must have reached to prove anything.
    assert done["commits"] > 2 * HISTORIES
    assert done["late commits refused"] > HISTORIES
    assert done["conflicts"] > HISTORIES / 20
    assert done["registrations refused by a mark"] > HISTORIES / 3
    assert done["deletions"] > HISTORIES / 20
    assert done["sessions that expired in silence"] > HISTORIES / 2


FOUND = {
    "an instance that does not know that it was evicted registers again": [
        Step("register", 0, 0, 0),
        Step("administrator_evicts", 0, 0, 0),
        Step("register", 0, 0, 0),
    ],
    "a process that stood still loses the connection in its next commit": [
        Step("register", 1, 0, 0),
        Step("claim", 0, 0, 1),
        Step("process_stalls", 1, 35, 0),
        Step("lose", 1, 0, 0),
        Step("commit", 0, 3, 0),
    ],
    "after the end of its session, an instance commits and claims": [
        Step("register", 0, 0, 0),
        Step("claim", 0, 0, 1),
        Step("expire", 0, 0, 0),
        Step("commit", 0, 4, 0),
        Step("claim", 0, 1, 0),
    ],
}
"""Short histories that have failed, or that random ones may miss."""


@pytest.mark.parametrize("history", FOUND.values(), ids=FOUND)
def test_failure_11_histories_that_were_found(history: Sequence[Step]) -> None:
    for seed in range(5):
        play(seed, history)


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_any_histories() -> None:
    """The same with fresh histories, twenty times as many."""
    print(check(play, WEIGHTS, seeds=seeds(20 * HISTORIES), length=STEPS))
