"""Kafka's clients at two gateways, beside members of zkgroups, in any order of joins, leaves, stalls, kills and faults.

Only the owner of a partition commits, in its present session and generation. No partition has two members in one
generation. No offset goes back. Soon after the faults, each partition has one owner, who commits.

A gateway is its coordinator and its storage in ZooKeeper, in a process. Each client is a process, too.
"""

from __future__ import annotations

import json
from collections import Counter, deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import count
from typing import Any

import pytest

from tests.seeds import seeds
from zkgroups import Member, Registry, TopicPartition
from zkgroups.coordinator import (
    CommitRequest,
    CommittedValue,
    GroupCoordinator,
    GroupProtocol,
    HeartbeatRequest,
    JoinRequest,
    KafkaError,
    LeaveRequest,
    MemberIdentity,
    RequestReceived,
    SendAnswer,
    Subscription,
    SyncRequest,
    TimePassed,
    decode_assignment,
    encode_subscription,
)
from zkgroups.exceptions import MemberClosedError, ZkgroupsException
from zkgroups.gateway import NodePorts
from zkgroups.gateway.protocol.addresses import GatewayAddress
from zkgroups.gateway.zookeeper_storage import GroupSettings, ZooKeeperStorage, coordinator_config

from .histories import Step, check
from .machine import Machine
from .world import World
from .zookeeper import WRITES

HISTORIES, STEPS = 16, 40
SLOTS = 4
PARTITIONS = 5
HEARTBEAT, SESSION = 2.0, 10.0
SETTLES_WITHIN = 240.0
"""In simulated seconds: session timeouts of gateways, members and clients, `rebalance_timeout`, and retries."""
GROUP, TOPIC, COORDINATOR = "/consumers/billing", "/brokers/topics/orders", "/zkgroups/coordinators/billing"

WEIGHTS = {
    "client_joins": 10,
    "client_leaves": 3,
    "client_dies": 2,
    "client_stalls": 2,
    "client_loses_its_connection": 3,
    "member_joins": 2,
    "member_leaves": 2,
    "gateway_dies": 2,
    "gateway_ends": 1,
    "gateway_starts": 4,
    "gateway_stalls": 2,
    "gateway_is_cut_off": 2,
    "session_expires": 2,
    "all_resume": 4,
    "server_restarts": 1,
    "lose": 4,
    "administrator_evicts": 1,
    "administrator_releases": 1,
    "administrator_deletes_the_coordinator": 1,
    "offset_is_set": 2,
    "add_partition": 1,
    "time_passes": 14,
}


class Mailbox:
    """A queue without locks, so that a process that ends or stalls holds none."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._items: deque[Any] = deque()
        self._waiting: list[Any] = []

    def put(self, item: Any) -> None:
        self._items.append(item)
        self._machine.wake(self._waiting)

    def get(self, timeout: float | None) -> Any:
        """Return the next item; None if there is none in time."""
        end = None if timeout is None else self._machine.now + timeout
        while not self._items:
            if not self._machine.wait(self._waiting, end):
                return None
        return self._items.popleft()


class Gateway:
    """One process of a gateway."""

    def __init__(self, model: GatewaysModel, host: str, name: str) -> None:
        self.host, self.name, self.is_dead = host, name, False
        self._machine = machine = model.world.machine
        self._inbox, self._ids = Mailbox(machine), count(1)
        self._answers: dict[int, Mailbox] = {}
        self.registry: Registry = model.world.connect(name, session_timeout=SESSION)
        settings = GroupSettings(reconcile_every=10.0)
        with machine.process(name):
            self.storage = ZooKeeperStorage(
                self.registry, self._inbox.put, settings=settings, address=GatewayAddress(host, NodePorts(1, 9))
            )
            config = replace(coordinator_config(), initial_rebalance_delay=0)
            self._coordinator = GroupCoordinator(self.storage, config)
            model.threads.Thread(target=self._run, name=name).start()

    def _run(self) -> None:
        while True:
            due = self._coordinator.next_deadline
            event = self._inbox.get(None if due is None else max(due - self._machine.now, 0.0)) or TimePassed()
            for outcome in self._coordinator.receive(event, self._machine.now):
                if isinstance(outcome, SendAnswer):
                    self._answers.pop(outcome.request_id).put(outcome.answer)

    def send(self, request: Any) -> Mailbox:
        """Send a request. Its answer comes in the mailbox."""
        id, answer = next(self._ids), Mailbox(self._machine)
        self._answers[id] = answer
        self._inbox.put(RequestReceived(id, request))
        return answer


class Client:
    """A client of Kafka's group protocol. It commits after each heartbeat."""

    def __init__(self, model: GatewaysModel, name: str, *, cooperative: bool) -> None:
        self.model, self.name = model, name
        self.member_id, self.generation = "", -1
        self.assigned: frozenset[TopicPartition] = frozenset()
        self.is_stopped = self.has_lost_connection = False
        self._gateway = int(name[1:])
        self._strategy = "cooperative-sticky" if cooperative else "range"
        with model.world.machine.process(name):
            self._thread = model.threads.Thread(target=self._run, name=name)
            self._thread.start()

    def _run(self) -> None:
        while not self.is_stopped:
            error = self._join() or self._sync() or self._work()
            if error in (KafkaError.UNKNOWN_MEMBER_ID, KafkaError.FENCED_INSTANCE_ID):
                self.member_id = ""
                self.assigned = frozenset()
            elif error is KafkaError.ILLEGAL_GENERATION or self._strategy == "range":
                self.assigned = frozenset()
            self.model.world.machine.sleep(0.5)

    def ask(self, request: Any) -> Any:
        """Ask the coordinator. None if there is no answer: it is gone, another one, or the connection is lost."""
        gateway = self.model.at(self._gateway)
        if gateway is None:
            self._gateway += 1
            return None
        answer, self.has_lost_connection = gateway.send(request), False
        while not (gateway.is_dead or self.is_stopped or self.has_lost_connection):
            if (found := answer.get(0.5)) is not None:
                if getattr(found, "error", None) is KafkaError.NOT_COORDINATOR:
                    self._gateway += 1
                return found
        self._gateway += 1
        return None

    def _join(self) -> KafkaError:
        metadata = encode_subscription(Subscription(frozenset({"orders"}), self.assigned))
        protocol = GroupProtocol(self._strategy, metadata)
        answer = self.ask(JoinRequest("billing", self.member_id, (protocol,), SESSION, 20.0, client_id=self.name))
        if answer is None:
            return KafkaError.REBALANCE_IN_PROGRESS
        if answer.error in (KafkaError.NONE, KafkaError.MEMBER_ID_REQUIRED):
            self.member_id, self.generation = answer.member_id, answer.generation
        return KafkaError(answer.error)

    def _sync(self) -> KafkaError:
        answer = self.ask(SyncRequest("billing", self.member_id, self.generation, {}))
        if answer is None or answer.error:
            return KafkaError.REBALANCE_IN_PROGRESS if answer is None else KafkaError(answer.error)
        before, self.assigned = self.assigned, decode_assignment(answer.assignment) or frozenset()
        self.model.note_assigned(self)
        return KafkaError.REBALANCE_IN_PROGRESS if before - self.assigned else KafkaError.NONE

    def _work(self) -> KafkaError:
        while not self.is_stopped:
            self.model.world.machine.sleep(HEARTBEAT)
            answer = self.ask(HeartbeatRequest("billing", self.member_id, self.generation))
            self._commit()
            if answer is not None and answer.error:
                return KafkaError(answer.error)
        return KafkaError.NONE

    def _commit(self) -> None:
        offset = next(self.model.offsets)
        self.model.sent[offset] = self.member_id
        offsets = dict.fromkeys(sorted(self.assigned), CommittedValue(offset))
        answer = self.ask(CommitRequest("billing", offsets, self.member_id, self.generation)) if offsets else None
        if answer is not None:
            for error in answer.errors.values():
                self.model.done[f"commits: {error.name}"] += 1

    def leave(self) -> None:
        """Leave the group, without waiting for the answer: the gateway may be stalled."""
        self.is_stopped = True
        self._thread.join()
        if self.member_id and (gateway := self.model.at(self._gateway)):
            gateway.send(LeaveRequest("billing", (MemberIdentity(self.member_id),)))


class Ours:
    """A member of zkgroups that holds its partitions."""

    def __init__(self, model: GatewaysModel, name: str) -> None:
        self.name = self.member_id = name
        registry = model.world.connect(name, session_timeout=SESSION)
        self._machine, self._process = model.world.machine, model.world.machine.process
        with self._process(name):
            self._member = Member(registry.group("billing"), ["orders"], id=name, on_event=lambda _event: None)
            model.threads.Thread(target=self._run, name=name).start()

    def _run(self) -> None:
        while True:
            try:
                for generation in self._member.generations():
                    generation.wait()
                return
            except MemberClosedError:
                return
            except ZkgroupsException:
                self._machine.sleep(0.5)

    def leave(self) -> None:
        with self._process(self.name):
            self._member.close()


class GatewaysModel:
    """The processes, the faults that last, and what ZooKeeper has accepted."""

    def __init__(self, world: World) -> None:
        import threading

        self.threads = threading
        self.world = world
        self.done: Counter[str] = Counter()
        self.problems: list[str] = []
        self.offsets = count(1)
        self.sent: dict[int, str] = {}
        """The member that has sent each offset. Each offset is sent once, and is higher than all before."""
        self.partitions = PARTITIONS
        self.admin = world.connect("administrator", session_timeout=300.0)
        self.admin.client.create(TOPIC, self._topic(), makepath=True)
        self.clients: dict[str, Client] = {}
        self.members: dict[str, Ours] = {}
        self._numbers = count(1)
        self._committed: dict[str, int] = {}
        self._generations: dict[tuple[str, int], dict[TopicPartition, str]] = {}
        self._listen_to_writes()
        self.gateways: list[Gateway | None] = [Gateway(self, host, f"{host}-0") for host in ("g1", "g2")]

    def _topic(self) -> bytes:
        return json.dumps({"version": 1, "partitions": {str(n): [1] for n in range(self.partitions)}}).encode()

    def at(self, number: int) -> Gateway | None:
        """The gateway at this place, if it runs."""
        return self.gateways[number % len(self.gateways)]

    # What must hold at any time

    def _listen_to_writes(self) -> None:
        handle = self.world.server.handle

        def handled(connection: Any, request: bytes, *clocks: float) -> None:
            handle(connection, request, *clocks)
            if int.from_bytes(request[4:8], "big", signed=True) in WRITES and connection.session is not None:
                self._look(connection.session.id)

        self.world.server.handle = handled  # type: ignore[method-assign]

    def _look(self, session: int) -> None:
        """Judge the offsets that a session has written."""
        nodes = self.world.server.nodes
        for number in range(self.partitions):
            path = f"{GROUP}/offsets/orders/{number}"
            if (node := nodes.get(path)) is None or self._committed.get(path) == (offset := int(node.data or b"0")):
                continue
            if offset < self._committed.get(path, 0):
                self.problems.append(f"{path} went back from {self._committed[path]} to {offset}")
            self._committed[path] = offset
            if (member := self.sent.get(offset)) is None:
                continue
            owner = nodes.get(f"{GROUP}/owners/orders/{number}")
            if owner is None or owner.data != f"{member}-0".encode() or owner.owner != session:
                self.problems.append(f"{member} has committed {path}, which belongs to {owner and owner.data}")

    def note_assigned(self, client: Client) -> None:
        """A client has got its partitions from a coordinator."""
        gateway = self.at(client._gateway)
        holders = self._generations.setdefault((gateway.name if gateway else "", client.generation), {})
        for at in client.assigned:
            if (other := holders.setdefault(at, client.member_id)) != client.member_id:
                self.problems.append(f"{client.member_id} and {other} have {at} in generation {client.generation}")

    def check(self) -> None:
        assert not self.problems, self.problems[0]

    # Moves

    def _chosen(self, step: Step, among: Sequence[Any]) -> Any:
        return among[step.a % len(among)] if among else None

    def _live(self) -> list[Gateway]:
        return [each for each in self.gateways if each is not None]

    def client_joins(self, _step: Step) -> None:
        """All clients of a group have the same strategy: otherwise, the coordinator refuses some of them."""
        if len(self.clients) < SLOTS:
            name = f"c{next(self._numbers)}"
            self.clients[name] = Client(self, name, cooperative=self.world.seed % 3 == 0)

    def client_leaves(self, step: Step) -> None:
        if client := self._chosen(step, [each for each in self.clients.values() if not self._is_stalled(each.name)]):
            client.leave()
            del self.clients[client.name]

    def client_dies(self, step: Step) -> None:
        if client := self._chosen(step, [*self.clients.values()]):
            self.world.machine.stall(client.name)
            del self.clients[client.name]
            self.done["clients died"] += 1

    def client_stalls(self, step: Step) -> None:
        if client := self._chosen(step, [*self.clients.values()]):
            self.world.machine.stall(client.name)

    def client_loses_its_connection(self, step: Step) -> None:
        if client := self._chosen(step, [*self.clients.values()]):
            client.has_lost_connection = True

    def member_joins(self, _step: Step) -> None:
        if len(self.members) < 2 and self.world.is_up:
            name = f"m{next(self._numbers)}"
            self.members[name] = Ours(self, name)

    def member_leaves(self, step: Step) -> None:
        if member := self._chosen(step, [*self.members.values()]):
            member.leave()
            del self.members[member.name]

    def gateway_dies(self, step: Step) -> None:
        if gateway := self._chosen(step, self._live()):
            gateway.is_dead = True
            self.world.kill(gateway.name)
            self.gateways[self.gateways.index(gateway)] = None
            self.done["gateways died"] += 1

    def gateway_ends(self, step: Step) -> None:
        gateway = self._chosen(step, self._live())
        if gateway and not self._is_stalled(gateway.name) and not self.world.is_cut(gateway.name):
            with self.world.machine.process(gateway.name):
                gateway.storage.close()
                gateway.registry.close()
            gateway.is_dead = True
            self.gateways[self.gateways.index(gateway)] = None

    def gateway_starts(self, _step: Step) -> None:
        for place, host in enumerate(("g1", "g2")):
            if self.gateways[place] is None:
                self.gateways[place] = Gateway(self, host, f"{host}-{next(self._numbers)}")
                return

    def gateway_stalls(self, step: Step) -> None:
        if gateway := self._chosen(step, self._live()):
            self.world.machine.stall(gateway.name)

    def gateway_is_cut_off(self, step: Step) -> None:
        if gateway := self._chosen(step, self._live()):
            self.world.cut(gateway.name)

    def session_expires(self, step: Step) -> None:
        if gateway := self._chosen(step, self._live()):
            session = self.world.server.sessions.get(gateway.registry.session_id or 0)
            if session is not None:  # by force: the clock of the gateway does not count
                self.world.server.expire(session)
                self.done["sessions expired"] += 1

    def all_resume(self, _step: Step) -> None:
        for name in [*self.clients, *(each.name for each in self._live())]:
            self.world.heal(name)
            self.world.machine.resume(name)

    def _is_stalled(self, name: str) -> bool:
        return name in self.world.machine._stalled

    def server_restarts(self, step: Step) -> None:
        self.world.stop()
        self.world.machine.sleep(step.b % 80 / 10)
        self.world.start()

    def lose(self, step: Step) -> None:
        if gateway := self._chosen(step, self._live()):
            self.world.lose(gateway.name, ("request", "reply")[step.b % 2])

    def administrator_evicts(self, step: Step) -> None:
        with suppress(ZkgroupsException):
            instances = self.admin.group("billing").instances()
            if found := self._chosen(step, sorted(each.id for each in instances)):
                self.admin.group("billing").evict(found)
                self.done["evicted"] += 1

    def administrator_releases(self, step: Step) -> None:
        path = f"{GROUP}/owners/orders/{step.a % self.partitions}"
        if path in self.world.server.nodes:
            with suppress(Exception):  # its owner was quicker
                self.admin.client.delete(path)

    def administrator_deletes_the_coordinator(self, _step: Step) -> None:
        if COORDINATOR in self.world.server.nodes:
            with suppress(Exception):
                self.admin.client.delete(COORDINATOR)

    def offset_is_set(self, step: Step) -> None:
        """Another client commits further, without a fence."""
        path = f"{GROUP}/offsets/orders/{step.a % self.partitions}"
        self.admin.client.ensure_path(path)
        self.admin.client.set(path, str(next(self.offsets)).encode())

    def add_partition(self, _step: Step) -> None:
        if self.partitions < 2 * PARTITIONS:
            self.partitions += 1
            self.admin.client.set(TOPIC, self._topic())

    def time_passes(self, step: Step) -> None:
        self.world.machine.sleep(step.a % 150 / 10)

    # The end

    def settle(self) -> None:
        """End all faults. Soon, each partition has one owner, and all clients say so and commit."""
        self.all_resume(Step("all_resume", 0, 0, 0))
        if not self._live():
            self.gateway_starts(Step("gateway_starts", 0, 0, 0))
        if not self.clients and not self.members:
            return

        def is_settled() -> bool:
            owners = self._owners()
            ids = {each.member_id for each in (*self.clients.values(), *self.members.values())}
            return (
                set(owners) == set(range(self.partitions))
                and set(owners.values()) <= ids
                and all(
                    {at.partition for at in client.assigned}
                    == {at for at, id in owners.items() if id == client.member_id}
                    for client in self.clients.values()
                )
            )

        began = self.world.machine.now
        self.world.machine.sleep(2 * SESSION)  # sessions of gateways that died may still hold partitions
        self.world.machine.until(is_settled, SETTLES_WITHIN, 0.5)
        self.done["seconds until settled"] += int(self.world.machine.now - began)
        before = self.done["commits: NONE"]
        self.world.machine.sleep(10)
        self.check()
        assert self.done["commits: NONE"] > before or not any(each.assigned for each in self.clients.values())
        self.done["settled"] += 1

    def _owners(self) -> dict[int, str]:
        prefix = f"{GROUP}/owners/orders/"
        return {
            int(path.removeprefix(prefix)): (node.data or b"").decode().rpartition("-")[0]
            for path, node in self.world.server.nodes.items()
            if path.startswith(prefix)
        }


def play(seed: int, history: Sequence[Step]) -> Counter[str]:
    """Play a history, and let the group settle at its end."""
    with World(seed).running() as world:
        model = GatewaysModel(world)
        for step in history:
            getattr(model, step.move)(step)
            model.check()
        model.settle()
        return model.done


def test_only_owners_commit_and_the_group_settles_after_any_faults() -> None:
    done: Any = check(play, WEIGHTS, seeds=range(HISTORIES), length=STEPS)
    print(done)
    assert done["settled"] > HISTORIES / 2
    assert done["commits: NONE"] > 20 * HISTORIES
    assert done["commits: ILLEGAL_GENERATION"] + done["commits: UNKNOWN_MEMBER_ID"] > HISTORIES
    assert done["gateways died"] > HISTORIES / 2
    assert done["sessions expired"] > HISTORIES / 2


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_any_histories() -> None:
    """The same with fresh histories, twenty times as many."""
    print(check(play, WEIGHTS, seeds=seeds(20 * HISTORIES), length=STEPS))
