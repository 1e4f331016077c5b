"""An ensemble in which one server is cut off from the others."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tests.waiting import eventually
from zkgroups.testing import ZooKeeperEnsemble, ZooKeeperServer


def whole(ensemble: ZooKeeperEnsemble) -> bool:
    return sorted(str(node.mode()) for node in ensemble.nodes) == ["follower", "follower", "leader"]


@contextmanager
def cut_off(ensemble: ZooKeeperEnsemble, node: ZooKeeperServer) -> Iterator[None]:
    ensemble.cut_off(node)
    try:
        yield
    finally:
        ensemble.heal()
        assert eventually(lambda: whole(ensemble))


FOLLOWER, LEADER, FORGOTTEN = "follower", "leader", "leader whose followers are restarted"
ROLES = [FOLLOWER, LEADER, FORGOTTEN]
"""The servers that start last elect a leader at once, and do not wait for the first one."""


def victim(ensemble: ZooKeeperEnsemble, role: str) -> ZooKeeperServer:
    assert eventually(lambda: whole(ensemble))
    leader = ensemble.leader()  # a server that stands still for a moment does not say that it follows
    return next(node for node in ensemble.nodes if node is not leader) if role == FOLLOWER else leader


def restart(nodes: list[ZooKeeperServer]) -> None:
    for node in nodes:
        node.kill()
    for node in nodes:
        node.launch()
