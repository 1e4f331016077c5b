"""After a release with an unknown outcome, the session moves to a server that does not know of the release yet.

The leader carries the release out, but its answers to the followers are late. Another client claims the partition.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import pytest

from tests.cutting import whole
from tests.testing.waiting import eventually
from zkgroups import Claim, Instance, Registry
from zkgroups.exceptions import NotConnectedError, OutcomeUnknownError, ZkgroupsException
from zkgroups.testing import TcpProxy, ZooKeeperEnsemble
from zkgroups.zookeeper.member_instance import MemberInstance
from zkgroups.zookeeper.ownership.claim_partitions import _leave_behind

from .events import attempt
from .rules import OWNER, P0, member

pytestmark = pytest.mark.zookeeper

LATE = 1.5
SESSION = 40.0
"""A proof is due only after a tenth of that: until then, nothing makes a server catch up."""
ATTEMPTS = 5
"""A loaded machine may be too slow to see the old state."""


@pytest.fixture(scope="module")
def ensemble() -> Iterator[ZooKeeperEnsemble]:
    with ZooKeeperEnsemble(tick_time=2.0, sync_limit=20.0, cuttable=True) as ensemble:
        yield ensemble


@dataclass
class Scene:
    """A claim whose release has an unknown outcome, and the instance that waits for the partition."""

    ensemble: ZooKeeperEnsemble
    registry: Registry
    me: MemberInstance
    claim: Claim
    next: Instance
    waiting: threading.Thread

    @property
    def is_stale(self) -> bool:
        """True if the server of this session still has the released node."""
        found = self.registry.client.exists(OWNER)
        return found is not None and found.ephemeralOwner == self.claim.session_id

    def repeat(self, call: Callable[[], object]) -> None:
        """Call it now, and if it fails, until it succeeds without delays. Then the next instance has the partition."""
        first = attempt(call)
        self.waiting.join(60)
        self.ensemble.heal()
        if isinstance(first, ZkgroupsException):
            assert eventually(lambda: not isinstance(attempt(call), ZkgroupsException), timeout=60)


def in_the_end(call: Callable[[], object]) -> None:
    """Call it until it succeeds: its timeout is shorter than a machine stands still."""
    assert eventually(lambda: not isinstance(attempt(call), ZkgroupsException), timeout=60)


@contextmanager
def released_elsewhere(ensemble: ZooKeeperEnsemble) -> Iterator[Scene]:
    assert eventually(lambda: whole(ensemble), timeout=60)
    leader, follower = ensemble.leader(), ensemble.followers()[0]
    with ExitStack() as stack:
        first, second = (stack.enter_context(TcpProxy(node.address)) for node in (leader, follower))
        second.refuse()
        hosts = f"{first.address},{second.address}"
        registry = stack.enter_context(Registry.connect(hosts, session_timeout=SESSION, timeout=20.0))
        other = stack.enter_context(Registry.connect(leader.address, session_timeout=SESSION, timeout=20.0))
        me = MemberInstance(registry.group("billing").paths, registry._context._replace(timeout=0.3), "me")
        in_the_end(lambda: me.register(["orders"]))
        in_the_end(lambda: me.claim(P0))
        claim = me.claims[P0]
        successor = member(other, "next")
        in_the_end(lambda: claim.commit(1))
        stack.callback(ensemble.heal)
        for peers, _elections in (way for (_, to), way in ensemble._ways.items() if ensemble.nodes[to - 1] is leader):
            peers.delay(LATE, direction="replies")
        while isinstance(outcome := attempt(claim.release), NotConnectedError):
            pass  # the machine stood still for so long that the request was not even sent
        assert isinstance(outcome, OutcomeUnknownError)
        waiting = threading.Thread(target=successor.claim, args=[P0], kwargs={"timeout": 60})
        waiting.start()
        first.refuse()
        second.accept()
        first.cut()
        assert eventually(lambda: _is_connected(registry, second), timeout=60)
        yield Scene(ensemble, registry, me, claim, successor, waiting)
        waiting.join(60)


def _is_connected(registry: Registry, proxy: TcpProxy) -> bool:
    peer = registry._context.session.server_address
    return peer is not None and f"{peer[0]}:{peer[1]}" == proxy.address and registry._context.session.connected


def shown(ensemble: ZooKeeperEnsemble, check: Callable[[Scene], None]) -> bool:
    """Set the scene until the server really had the old state, and check each."""
    for _ in range(ATTEMPTS):
        with released_elsewhere(ensemble) as scene:
            stale = scene.is_stale
            check(scene)
        if stale:
            return True
        time.sleep(LATE)
    return False


def test_a_claim_that_was_released_is_not_held_again_because_a_server_does_not_know_it(
    ensemble: ZooKeeperEnsemble,
) -> None:
    def check(scene: Scene) -> None:
        scene.repeat(lambda: scene.me.find_owners([P0], ["me", "next"]))
        assert scene.next.claims[P0].verify()
        assert not scene.claim.held

    assert shown(ensemble, check)


def test_rule_2_releasing_again_does_not_delete_the_node_of_the_next_owner(ensemble: ZooKeeperEnsemble) -> None:
    def check(scene: Scene) -> None:
        assert attempt(scene.claim.verify) is not True
        scene.repeat(scene.claim.release)
        assert scene.next.claims[P0].verify()

    assert shown(ensemble, check)


def test_rule_2_deleting_a_leftover_again_does_not_delete_the_node_of_the_next_owner(
    ensemble: ZooKeeperEnsemble,
) -> None:
    """As after a `claim_many` whose undoing has an unknown outcome."""

    def check(scene: Scene) -> None:
        ownership = scene.me._ownership
        _leave_behind(ownership, list(ownership.nodes().values()))
        scene.repeat(scene.me.release_all)
        assert scene.next.claims[P0].verify()

    assert shown(ensemble, check)


def test_the_next_member_with_the_same_id_does_not_take_over_a_claim_that_was_released(
    ensemble: ZooKeeperEnsemble,
) -> None:
    def check(scene: Scene) -> None:
        scene.me.free_id()
        again = MemberInstance(scene.registry.group("billing").paths, scene.me._context, "me")
        scene.repeat(again.resume)
        assert scene.next.claims[P0].verify()
        assert not [claim for claim in again.claims.values() if claim.held]

    assert shown(ensemble, check)
