"""Rules 1 to 5 while several threads use one instance, or two instances have one id, in any order of faults.

A ledger follows each change in the order of the server. It knows which call committed which number, because each call
commits another one.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Sequence
from random import Random

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError

from tests.seeds import seeds
from zkgroups import Claim, Instance, Registry, TopicPartition
from zkgroups.exceptions import OutcomeUnknownError, ZkgroupsException

from .histories import Step, check
from .world import HOSTS, World
from .zookeeper import CHANGED, CREATED, Applied

HISTORIES, STEPS = 80, 12
PARTITIONS = tuple(TopicPartition("t", n) for n in range(2))
GROUP = "/consumers/billing"
INSTANCES = {"me": ("p", "me"), "twin": ("p", "me"), "beside": ("p", "beside"), "other": ("q", "other")}
"""The process and the id of each instance. Those of one process have one session."""

WEIGHTS = {"together": 10, "in_an_outage": 5, "with_a_lost_message": 8, "with_old_reads": 4, "with_an_expiry": 2}


class Ledger:
    """Checks each change when the server makes it."""

    def __init__(self, world: World) -> None:
        self.nodes = world.server.nodes
        self.others: set[int] = set()
        """Sessions of administrators and foreign clients."""
        self.offset: dict[str, int] = {}
        self.committing: dict[int, tuple[str, bool]] = {}
        """The id of the instance that commits a number, and whether the offset may go back."""
        self.committed: dict[int, int] = {}
        """The transaction that committed a number."""
        self.refused: set[int] = set()
        self.error: AssertionError | None = None
        world.server.on_change = self.on_change

    def on_change(self, applied: Applied) -> None:
        """Check one change. The thread that runs is any one, so the error is raised later."""
        try:
            self._check(applied)
        except AssertionError as error:
            self.error = self.error or error

    def _check(self, applied: Applied) -> None:
        event, is_member = applied.event, applied.by and applied.by not in self.others
        if is_member and "/offsets/" not in event.path and event.path.count("/") > 3 - ("/ids/" not in event.path):
            is_owner = event.path.count("/") == 5 or "/ids/" in event.path
            assert not is_owner or event.owner == applied.by, f"rule 2: {applied}"
        if not event.path.startswith(f"{GROUP}/offsets/t/") or event.kind not in (CREATED, CHANGED):
            return
        number = int(event.data or b"-1")
        if is_member and number >= 0:
            self._check_commit(applied, number)
        self.offset[event.path] = number

    def _check_commit(self, applied: Applied, number: int) -> None:
        id, backward = self.committing[number]
        owner = self.nodes.get(applied.event.path.replace("offsets", "owners"))
        assert owner is not None, f"rule 4: {applied}"
        assert (owner.owner, owner.data) == (applied.by, id.encode()), f"rule 1: {applied} by {id}, owned by {owner}"
        registration = self.nodes.get(f"{GROUP}/ids/{id}")
        assert registration is not None, f"rule 4: {applied}"
        assert registration.owner == applied.by, f"rule 4: {applied}"
        assert self.committed.setdefault(number, applied.zxid) == applied.zxid, f"rule 3: {number} was committed twice"
        assert number not in self.refused, f"rule 3: {number} was committed after its call had failed"
        assert backward or number >= self.offset.get(applied.event.path, -1), f"rule 5: {applied}"


class ThreadsModel:
    """The instances, and the calls that they make at the same time."""

    def __init__(self, world: World, seed: int) -> None:
        self.world, self.ledger, self.done = world, Ledger(world), Counter[str]()
        self.registries: dict[str, Registry] = {
            name: world.connect(name, session_timeout=(10.0, 300.0)[seed % 2], timeout=6.0) for name in "pq"
        }
        self.instances: dict[str, Instance] = {
            name: self.registries[process].group("billing").instance(id) for name, (process, id) in INSTANCES.items()
        }
        self.administrator = world.connect("administrator", session_timeout=300.0)
        self.foreign = KazooClient(HOSTS, timeout=300.0)
        self.foreign.start()
        for path in ("owners/t", "offsets/t"):
            self.foreign.ensure_path(f"{GROUP}/{path}")
        self.ledger.others |= {self.administrator.session_id or 0, self.foreign.client_id[0]}
        self.claims: list[tuple[str, Claim]]
        self.released: set[int] = set()  # claims that are over, by the identity of the object
        self.numbers = 0
        self.is_meddled = seed % 3 > 0
        """Whether others take claims away. If not, no claim is lost while its session lives."""
        with world.machine.process("p"):
            self.instances["me"].register(["t"])
            self.claims = [("me", self.instances["me"].claim(at)) for at in PARTITIONS[: seed % 3]]

    # Moves

    def together(self, step: Step) -> None:
        self._play(step, lambda _random: None)

    def with_a_lost_message(self, step: Step) -> None:
        """The calls find out, because the connection comes back soon. Meanwhile, others may act."""

        def trouble(random: Random) -> None:
            self.world.lose("p", random.choice(("request", "reply", "reply")))
            if random.random() < 0.6:
                self.world.lose_then_cut.add("p")
                self.world.machine.after(random.uniform(0.1, 4), lambda: self.world.settle("p"))

        self._play(step, trouble)

    def in_an_outage(self, step: Step) -> None:
        """Some outcomes stay unknown: the connection is lost for longer than a call may take."""

        def trouble(random: Random) -> None:
            self.world.lose("p", random.choice(("request", "reply")))
            self.world.lose_then_cut.add("p")
            self.world.machine.after(random.uniform(1, 25), lambda: self.world.heal("p"))

        self._play(step, trouble)

    def with_old_reads(self, step: Step) -> None:
        """The next connection leads to a server that does not know the latest changes."""

        def trouble(random: Random) -> None:
            self.world.move_to_old_server("p")
            self.world.lose("p", "reply")
            self.world.machine.after(random.uniform(1, 25), lambda: self.world.heal("p"))

        self._play(step, trouble)

    def with_an_expiry(self, step: Step) -> None:
        def trouble(random: Random) -> None:
            session = self.registries["p"].session_id
            if session in self.world.server.sessions:
                expire = self.world.server.sessions[session]
                self.world.machine.after(random.uniform(0, 0.02), lambda: self.world.server.expire(expire))

        self._play(step, trouble)

    # Calls

    def _play(self, step: Step, trouble: Callable[[Random], object]) -> None:
        random = Random(str(step))
        trouble(random)
        calls = [self._call(random) for _ in range(random.choice((1, 2, 3, 4)))]
        calls += [("administrator", self._meddle(random))] * (self.is_meddled and random.random() < 0.6)
        threads = []
        for process, call in calls:
            pause = random.choice((0.0, random.uniform(0, 0.02), random.uniform(0, 8)))
            with self.world.machine.process(process):
                thread = threading.Thread(target=self._attempt, args=(call, pause))
                thread.start()
            threads.append(thread)
        self.world.machine.until(lambda: not any(thread.is_alive() for thread in threads), 400, step=0.5)
        self.world.settle("p")
        self.world.machine.until(lambda: all(each.client.connected for each in self.registries.values()))
        self.check()

    def _attempt(self, call: Callable[[], object], pause: float) -> None:
        self.world.machine.sleep(pause)
        try:
            call()
        except (ZkgroupsException, NoNodeError) as error:
            self.done[type(error).__name__] += 1

    def _call(self, random: Random) -> tuple[str, Callable[[], object]]:
        name = random.choices(list(INSTANCES), (8, 4, 2, 2))[0]
        me, process = self.instances[name], INSTANCES[name][0]
        mine = [claim for holder, claim in self.claims if holder == name]
        at = random.choice(PARTITIONS)
        calls: list[Callable[[], object]] = [
            *[lambda: me.register(["t"])] * (1 if me.registered else 30),
            lambda: me.update(["t", "u"]),
            lambda: self._end(me.deregister, mine),
            lambda: self._end(me.release_all, mine),
            *[lambda: self.claims.append((name, me.claim(at)))] * 7,
            lambda: self._claim_both(name),
        ]
        if mine:
            claim = random.choice((*mine[-3:], mine[-1], mine[-1]))
            calls += [lambda: self._commit(me.id, claim, random)] * 12 + [lambda: self._end(claim.release, [claim])] * 2
        return process, random.choice(calls)

    def _claim_both(self, name: str) -> None:
        claims = self.instances[name].claim_many(PARTITIONS)
        self.claims += [(name, claims[at]) for at in claims]

    def _end(self, call: Callable[[], object], claims: list[Claim]) -> None:
        call()
        self.released |= {id(claim) for claim in claims}

    def _commit(self, name: str, claim: Claim, random: Random) -> None:
        backward, was_over = random.random() < 0.2, id(claim) in self.released
        self.numbers += 2
        number = self.numbers if random.random() < 0.8 else max(1, self.numbers // 2) | 1
        if number in self.ledger.committing:
            return
        self.ledger.committing[number] = name, backward
        try:
            claim.commit(number, backward=backward)
        except OutcomeUnknownError:
            self.done["unknown commits"] += 1
            raise
        except ZkgroupsException:
            self.ledger.refused.add(number)
            assert number not in self.ledger.committed, f"rule 3: {number} was committed, and its call failed"
            raise
        assert number in self.ledger.committed, f"rule 3: {number} was not committed"
        assert not was_over, f"rule 4: {claim} was over"
        self.done["commits"] += 1

    def _meddle(self, random: Random) -> Callable[[], object]:
        """An administrator or a foreign client acts at the same time."""
        at = random.choice(PARTITIONS)
        owner, offset = f"{GROUP}/owners/t/{at.partition}", f"{GROUP}/offsets/t/{at.partition}"

        def claim_as_me() -> None:
            if not self.foreign.exists(owner):
                self.foreign.create(owner, b"me", ephemeral=True)

        def leave() -> None:
            node = self.foreign.exists(owner)
            if node is not None and node.ephemeralOwner == self.foreign.client_id[0]:
                self.foreign.delete(owner)

        def release(name: str = "me") -> None:
            self.administrator.group("billing").release(at, expected_owner=name)

        def take_away() -> None:
            release()
            if random.random() < 0.3:
                claim_as_me()
            else:
                self._attempt(lambda: self.instances["other"].register(["t"]), 0.0)
                self.instances["other"].claim(at)

        def take_over() -> None:
            self._attempt(lambda: self.instances["other"].register(["t"]), 0.0)
            self.instances["other"].claim(at, timeout=5.0)

        def give_back() -> None:
            leave()
            self.instances["other"].release_all()

        return random.choice(
            [*[take_away] * 4, *[take_over] * 4, release, give_back, give_back, lambda: self.foreign.set(offset, b"0")]
        )

    # Checks

    def check(self) -> None:
        """Compare what each instance believes with the nodes, while nothing goes on."""
        if self.ledger.error is not None:
            raise self.ledger.error
        nodes = self.world.server.nodes
        for name, claim in self.claims:
            assert not claim.held or claim.session_id == self.registries[INSTANCES[name][0]].session_id
        for name, me in self.instances.items():
            process, id = INSTANCES[name]
            session = self.registries[process].session_id
            registration = nodes.get(f"{GROUP}/ids/{id}")
            assert not me.registered or (registration is not None and registration.owner == session), name
            with self.world.machine.process(process):
                for at, claim in me.claims.items():
                    owner = nodes.get(f"{GROUP}/owners/t/{at.partition}")
                    is_mine = owner is not None and (owner.owner, owner.data) == (session, id.encode())
                    was_held = claim.held
                    assert claim.verify() == is_mine or not was_held, f"rule 1: {name} {claim}"
                    assert is_mine or not was_held or self.is_meddled, f"rule 2: {name} {claim}"

    def leave(self) -> None:
        """All instances leave. Nothing of them may stay."""
        for name in reversed(INSTANCES):
            with self.world.machine.process(INSTANCES[name][0]):
                self.instances[name].deregister()
        ours = {registry.session_id for registry in self.registries.values()}
        assert [path for path, node in self.world.server.nodes.items() if node.owner in ours] == []


def play(seed: int, history: Sequence[Step]) -> Counter[str]:
    """Play a history, and let all leave."""
    with World(seed, preemption=0.3).running() as world:
        model = ThreadsModel(world, seed)
        for step in history:
            getattr(model, step.move)(step)
        model.leave()
        return model.done


def test_rules_1_to_5_hold_in_any_order_of_threads_and_faults() -> None:
    done = check(play, WEIGHTS, seeds=range(HISTORIES), length=STEPS)
    print(done)
    assert done["commits"] > HISTORIES
    assert done["unknown commits"] > HISTORIES / 10


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_rules_1_to_5_hold_in_any_histories() -> None:
    """The same with fresh histories, twenty times as many."""
    print(check(play, WEIGHTS, seeds=seeds(20 * HISTORIES), length=STEPS))
