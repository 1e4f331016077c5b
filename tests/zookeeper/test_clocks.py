"""Failure 7: the wall clock is set, or the machine sleeps, while a partition is claimed."""

from __future__ import annotations

import pytest

from tests.clocks import HAS_BOOTTIME, HOURS, set_wall_clock, sleep_of_the_machine
from tests.testing.waiting import eventually
from zkgroups import Claim, Registry, TopicPartition
from zkgroups.deadline import uptime
from zkgroups.testing import TcpProxy

from .conftest import Connect

pytestmark = pytest.mark.zookeeper

P0 = TopicPartition("orders", 0)


@pytest.fixture
def claim(zookeeper_hosts: str, proxy: TcpProxy, connect: Connect) -> Claim:
    away = connect(f"{proxy.address}/{zookeeper_hosts.partition('/')[2]}", session_timeout=8.0)
    me = away.group("billing").instance("me")
    me.register(["orders"])
    return me.claim(P0)


def test_failure_7_a_claim_lasts_and_ends_as_before_while_the_wall_clock_is_set(
    claim: Claim, proxy: TcpProxy, registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    next_one = registry.group("billing").instance("next")
    next_one.register(["orders"])
    for number, hours in enumerate((HOURS, -HOURS, HOURS)):
        with monkeypatch.context() as patched:
            set_wall_clock(patched, hours)
            proofs = proxy.replies
            assert eventually(lambda: claim.held)
            assert eventually(lambda proofs=proofs: proxy.replies > proofs + 3)
            assert eventually(lambda: claim.held)
            claim.commit(number)
        assert eventually(lambda: claim.held)
    set_wall_clock(monkeypatch, -HOURS)
    proxy.drop()
    next_one.claim(P0, timeout=60)
    assert not claim.held


@HAS_BOOTTIME
def test_failure_7_after_the_machine_has_slept_a_claim_is_not_held_until_the_session_is_proved(
    claim: Claim, proxy: TcpProxy, registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server did not notice the sleep here, so the session still lives."""
    assert eventually(lambda: claim.held)
    proxy.hold()
    began = uptime()
    sleep_of_the_machine(monkeypatch, HOURS)
    assert uptime() - began >= HOURS
    assert not claim.held
    proxy.heal()
    assert eventually(lambda: claim.held, timeout=60)
    claim.commit(7)
    assert registry.group("billing").offsets.fetch(P0).offset == 7  # type: ignore[union-attr]
