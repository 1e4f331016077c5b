"""Three servers: elections, lost servers, and servers that return."""

from __future__ import annotations

import time

import pytest

from tests.waiting import eventually
from zkgroups.testing import ZooKeeperEnsemble

from .conftest import Clients

pytestmark = pytest.mark.zookeeper


def is_whole(ensemble: ZooKeeperEnsemble) -> bool:
    """Whether all serve. A server on a busy machine may not say in time whom it follows."""
    followers = ensemble.followers()
    return len(followers) == 2 and {ensemble.leader(), *followers} == set(ensemble.nodes)


def test_a_follower_that_is_cut_off_serves_until_the_sync_limit_and_rejoins_when_healed() -> None:
    with ZooKeeperEnsemble(sync_limit=1.0, cuttable=True) as ensemble:
        assert eventually(lambda: is_whole(ensemble))
        lone = next(node for node in ensemble.nodes if node is not ensemble.leader())
        began = time.monotonic()
        ensemble.cut_off(lone)
        assert lone.mode() == "follower" or time.monotonic() - began > 0.5, "it must go on for most of a second"
        assert eventually(lambda: lone.mode() is None)
        assert ensemble.leader() is not lone
        assert eventually(lambda: len(ensemble.followers()) == 1)
        ensemble.heal()
        assert eventually(lambda: lone.mode() == "follower")


def test_a_lagging_follower_answers_reads_from_an_old_state_until_it_is_healed(connect: Clients) -> None:
    with ZooKeeperEnsemble(sync_limit=20.0, cuttable=True) as ensemble:
        assert eventually(lambda: is_whole(ensemble))
        follower = next(node for node in ensemble.nodes if node is not ensemble.leader())
        behind, ahead = connect(follower.address), connect(ensemble.leader().address)
        ensemble.lag(follower, 15.0)
        ahead.create("/news")
        assert behind.exists("/news") is None
        ensemble.heal()
        assert eventually(lambda: behind.exists("/news"))
