"""Rules 2 and 4 in the orders of requests in which earlier versions failed, and which random histories seldom have."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest
from kazoo.client import KazooClient
from kazoo.protocol.serialization import GetData

from zkgroups import Claim, Instance, Registration, Registry, TopicPartition
from zkgroups.exceptions import (
    AlreadyRegisteredError,
    NotClaimedError,
    NotRegisteredError,
    OutcomeUnknownError,
)
from zkgroups.zookeeper.requests import bulk_read

from .world import HOSTS, World

P0, P1 = TopicPartition("orders", 0), TopicPartition("orders", 1)
OWNER, ME = "/consumers/billing/owners/orders/0", "/consumers/billing/ids/me"
ORDERS = Registration({"orders": 1})
"""Without a time, so that two registrations have the same bytes."""


class Scene:
    """A registry that gives up soon, others, and a foreign client."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.registry: Registry = world.connect("me", session_timeout=300.0, timeout=5.0)
        self.others: Registry = world.connect("others", session_timeout=300.0)
        self.foreign = KazooClient(HOSTS, timeout=300.0)
        self.foreign.start()
        self.foreign.ensure_path("/consumers/billing/owners/orders")
        self.registry.group("billing").create()

    def member(self) -> Instance:
        me = self.registry.group("billing").instance("me")
        me.register(ORDERS)
        return me

    def unknown(self, call: Callable[[], object]) -> None:
        """Carry out the call, and lose the reply to its first write for longer than the call may take."""
        self.world.lose("me", "reply")
        self.world.lose_then_cut.add("me")
        with pytest.raises(OutcomeUnknownError):
            self._in_process(call)
        self.world.settle("me")
        self.world.machine.until(lambda: self.registry.client.connected)
        self.registry.sync()

    def _in_process(self, call: Callable[[], object]) -> object:
        with self.world.machine.process("me"):
            return call()

    def take_away(self) -> Claim:
        """Release the partition, and give it to a successor whose owner node has the same version."""
        self.others.group("billing").release(P0, expected_owner="me")
        successor = self.others.group("billing").instance("successor")
        successor.register(["orders"])
        claim = successor.claim(P0)
        claim.commit(6)
        return claim

    @property
    def nodes(self) -> dict[str, Any]:
        return self.world.server.nodes


@pytest.fixture
def scene() -> Iterator[Scene]:
    with World(preemption=0.0).running() as world:
        yield Scene(world)


def after_the_next_read(act: Callable[[], object], monkeypatch: pytest.MonkeyPatch) -> None:
    """Act once, after the next read of several nodes, before the caller gets the result."""
    read = bulk_read.nodes

    def nodes(context: Any, paths: Iterable[str]) -> Any:
        found = list(read(context, paths))
        if found:
            monkeypatch.setattr(bulk_read, "nodes", read)
            act()
        return found

    monkeypatch.setattr(bulk_read, "nodes", nodes)


def test_rule_2_deregistering_again_after_an_unknown_outcome_leaves_the_successor_of_the_same_id(scene: Scene) -> None:
    me = scene.member()
    scene.unknown(me.deregister)
    scene.foreign.create(ME, b"{}", ephemeral=True)
    assert not me.registered
    with pytest.raises(NotRegisteredError):
        me.claim(P0)
    me.deregister()
    assert scene.nodes[ME].owner == scene.foreign.client_id[0]


def test_rule_2_deregistering_again_deletes_nothing_of_another_instance_with_the_same_id(scene: Scene) -> None:
    me = scene.member()
    scene.unknown(me.deregister)
    claim = scene.member().claim(P0)
    me.deregister()
    assert claim.verify()
    claim.commit(1)


def test_rule_2_an_instance_with_an_unknown_registration_does_not_delete_that_of_another_with_the_same_id(
    scene: Scene,
) -> None:
    first, second = (scene.registry.group("billing").instance("me") for _ in range(2))
    scene.unknown(lambda: first.register(ORDERS))
    second.register(ORDERS)
    with pytest.raises(AlreadyRegisteredError):
        first.register(ORDERS)
    first.deregister()
    assert ME in scene.nodes
    second.claim(P0).commit(1)


def test_an_instance_deletes_its_unknown_registration_although_another_with_its_id_has_lost_its_session(
    scene: Scene,
) -> None:
    expired = scene.member()
    scene.world.expire(scene.registry)
    me = scene.registry.group("billing").instance("me")
    scene.unknown(lambda: me.register(ORDERS))
    me.register(ORDERS)
    me.deregister()
    assert not expired.registered
    assert ME not in scene.nodes


def test_rule_4_a_rewrite_by_an_administrator_is_not_taken_for_an_own_update_whose_refusal_was_lost(
    scene: Scene,
) -> None:
    """The update is refused as too late. The visible state is the same as if it had been carried out."""
    me = scene.member()
    claim = me.claim(P0)
    claim.commit(5)
    successor = scene.take_away()
    scene.world.lose("me", "reply")
    me.update(ORDERS)
    with pytest.raises(NotClaimedError):
        claim.commit(9)
    assert not claim.held
    assert successor.verify()


@pytest.mark.parametrize("call", [Instance.release_all, Instance.deregister])
def test_rule_2_deleting_a_leftover_node_does_not_touch_a_successor_that_got_the_partition_meanwhile(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, call: Callable[[Instance], object]
) -> None:
    me, successors = scene.member(), list[Claim]()
    scene.unknown(lambda: me.claim(P0))
    after_the_next_read(lambda: successors.append(scene.take_away()), monkeypatch)
    call(me)
    assert successors[0].verify()


def test_rule_4_an_administrative_release_between_two_reads_is_noticed(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a failed check, the owner node is still the own one. It is not adopted under a later registration."""
    claim = scene.member().claim(P0)
    claim.commit(5)
    scene.foreign.set(ME, scene.nodes[ME].data)  # the next check fails
    after_the_next_read(scene.take_away, monkeypatch)
    with pytest.raises(NotClaimedError):
        claim.commit(9)
    assert scene.nodes["/consumers/billing/offsets/orders/0"].data == b"6"


def test_a_late_read_of_an_older_registration_does_not_replace_a_newer_one(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another thread registers again after it was read that the registration is missing."""
    me = scene.member()
    scene.foreign.delete(ME)
    call, late, came = scene.registry.client._call, threading.Event(), threading.Event()

    def hold_back(request: Any, answer: Any) -> Any:
        asked = call(request, answer)
        if isinstance(request, GetData) and not came.is_set():
            answer.wait(30)
            came.set()
            late.wait(30)
        return asked

    monkeypatch.setattr(scene.registry.client, "_call", hold_back)
    with scene.world.machine.process("me"):
        thread = threading.Thread(target=me.update, args=(["refunds"],))
        thread.start()
        came.wait(30)
        me.deregister()
        me.register(["orders"])
        late.set()
        thread.join(30)
    assert me.registered
    assert dict(me.registration().streams) == {"refunds": 1}
    assert me.claim(P0).verify()
    me.deregister()
    assert {ME, OWNER}.isdisjoint(scene.nodes)
