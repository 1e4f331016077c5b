"""How long a claim counts as held, and how long calls wait, when a server is silent or slow, in simulated time."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import NamedTuple

import pytest
from kazoo.exceptions import ConnectionLoss

from zkgroups import Claim, Registry, SessionCredentials, TopicPartition
from zkgroups.exceptions import AlreadyRegisteredError, NotConnectedError, OutcomeUnknownError, SessionLostError
from zkgroups.zookeeper.instance import MemberInstance
from zkgroups.zookeeper.kazoo_compat.requests import LONGEST_QUEUE
from zkgroups.zookeeper.ownership.claims import _leave_behind

from .world import World
from .zookeeper import MULTI

P0 = TopicPartition("orders", 0)
OWNER, ME = "/consumers/billing/owners/orders/0", "/consumers/billing/ids/me"
HOURS = 6 * 3600.0

pytestmark = pytest.mark.filterwarnings("ignore::zkgroups.zookeeper.session.connection.ShortSessionWarning")


def claimed(world: World, name: str, session_timeout: float, *, timeout: float = 60.0) -> tuple[Registry, Claim]:
    registry = world.connect(name, session_timeout=session_timeout, timeout=timeout)
    me = registry.group("billing").instance(name)
    me.register(["orders"])
    return registry, me.claim(P0)


@pytest.mark.parametrize("is_stalled", [False, True], ids=["cut off", "cut off and suspended"])
@pytest.mark.parametrize("session_timeout", [4.0, 6.0, 10.0])
def test_failure_1_a_claim_is_over_before_the_server_gives_its_partition_away(
    session_timeout: float, is_stalled: bool
) -> None:
    for seed in range(10):
        with World(seed).running() as world:
            observer = world.connect("observer", session_timeout=300.0).group("billing")
            _registry, claim = claimed(world, "silent", session_timeout)
            world.machine.sleep(world.random.uniform(0, 2 * session_timeout))
            assert claim.held
            world.cut("silent")
            if is_stalled:
                world.machine.stall("silent")
            while observer.owner(P0) is not None:
                world.machine.sleep(0.05)
            assert not claim.held


def test_servers_whose_answers_are_later_than_those_of_proofs_should_be_still_answer_commits() -> None:
    """If the connection were closed each time, no commit would ever be answered."""
    for seed in range(10):
        with World(seed).running() as world:
            registry, claim = claimed(world, "a", 6.0)
            claim.commit(0)
            session = registry.session_id
            world.reply_delay = 2.7
            with world.machine.process("a"):
                for offset in range(1, 4):
                    claim.commit(offset)
            assert registry.session_id == session
            assert world.server.nodes["/consumers/billing/offsets/orders/0"].data == b"3"


def test_a_commit_on_a_cut_network_waits_little_longer_than_its_claim_lasts() -> None:
    for seed in range(10):
        with World(seed).running() as world:
            _registry, claim = claimed(world, "a", 6.0, timeout=600.0)
            claim.commit(0)
            world.cut("a")
            began = world.machine.now
            with world.machine.process("a"), pytest.raises((OutcomeUnknownError, NotConnectedError)):
                claim.commit(1)
            assert not claim.held
            assert world.machine.now - began < 1.5 * 6.0


# Expiry


def test_failure_1_an_expired_claim_is_void_and_the_instance_can_register_and_claim_again() -> None:
    with World().running() as world:
        registry, old = claimed(world, "a", 10.0)
        me = old._ownership
        world.expire(registry)
        assert not old.held
        assert me.current() == {}
        with pytest.raises(SessionLostError):
            old.commit(1)
        again = registry.group("billing").instance("a")
        again.register(["orders"])
        assert (again.claim(P0).held, old.held) == (True, False)


def test_an_expiry_is_detected_when_the_server_answers_again() -> None:
    with World().running() as world:
        registry, claim = claimed(world, "a", 10.0)
        session = registry.session_id
        world.cut("a")
        world.machine.sleep(20)
        world.heal("a")
        world.machine.until(lambda: registry.client.connected and registry.session_id != session)
        with pytest.raises(SessionLostError):
            claim.commit(1)


def test_failure_5_a_restarted_instance_waits_for_its_earlier_session_no_longer_than_its_timeout() -> None:
    with World().running() as world:
        claimed(world, "me", 30.0)
        world.kill("me")
        killed = world.machine.now
        again = world.connect("again").group("billing").instance("me")
        with pytest.raises(AlreadyRegisteredError):
            again.register(["orders"])
        again.register(["orders"], timeout=60)
        again.claim(P0, timeout=60)
        assert 15 < world.machine.now - killed < 30 + 2


def test_failure_5_a_restarted_instance_ends_its_earlier_session_at_once_but_no_other_one() -> None:
    with World().running() as world:
        before, claim = claimed(world, "me", 120.0)
        past = before.credentials()
        bystander = world.connect("bystander")
        bystander.group("billing").instance("bystander").register(["orders"])
        again = world.connect("again").group("billing").instance("me")
        began = world.machine.now
        wrong = SessionCredentials(past.session_id, b"0123456789abcdef")
        for credentials in (bystander.credentials(), wrong):
            with pytest.raises(AlreadyRegisteredError):
                again.register(["orders"], past_session=credentials)
        assert {each.id for each in bystander.group("billing").instances()} == {"me", "bystander"}
        again.register(["orders"], past_session=past)
        assert again.claim(P0).held
        assert world.machine.now - began < 10
        world.machine.until(lambda: not claim.held)


# Clocks


def test_failure_7_a_claim_lasts_and_ends_as_before_while_the_wall_clock_is_set() -> None:
    with World().running() as world:
        _registry, claim = claimed(world, "a", 10.0)
        with world.machine.process("a"):
            for number, hours in enumerate((HOURS, -2 * HOURS, HOURS)):
                world.machine.wall += hours
                for _ in range(100):
                    assert claim.held
                    world.machine.sleep(0.2)
                claim.commit(number)
        world.machine.wall -= HOURS
        world.cut("a")
        world.machine.sleep(10)
        assert not claim.held


def test_failure_7_after_the_machine_has_slept_a_claim_is_not_held_until_the_session_is_proved() -> None:
    """The server did not notice the sleep here, so the session still lives."""
    with World().running() as world:
        _registry, claim = claimed(world, "a", 10.0)
        assert claim.held
        world.machine.slept += HOURS
        world.machine.wall += HOURS
        assert not claim.held
        world.machine.until(lambda: claim.held, 10)
        claim.commit(7)


# Proofs


def test_many_instances_share_the_proofs_of_their_session_and_none_is_sent_before_or_after() -> None:
    with World().running() as world:
        registry = world.connect("a", session_timeout=12.0)
        group = registry.group("billing")
        group.create()
        sent = world.requests_by_kind
        before = sent[MULTI, "a"]
        world.machine.sleep(60)
        assert sent[MULTI, "a"] == before
        instances = [group.instance(f"i{number}") for number in range(20)]
        for instance in instances:
            instance.register(["orders"])
        world.machine.sleep(12)
        before = sent[MULTI, "a"]
        world.machine.sleep(60)
        assert 15 < sent[MULTI, "a"] - before < 60, "a proof takes a tenth of the timeout or more"
        assert all(instance.registered for instance in instances)
        for instance in instances:
            instance.deregister()
        before = sent[MULTI, "a"]
        world.machine.sleep(60)
        assert sent[MULTI, "a"] == before


def test_registering_after_a_pause_sends_few_proofs() -> None:
    """The leader may know only of requests before the pause. After a quarter of the timeout it must know later ones."""
    with World().running() as world:
        registry = world.connect("a", session_timeout=24.0)
        registry.group("billing").create()
        world.machine.sleep(23)
        before = world.requests_by_kind[MULTI, "a"]
        registry.group("billing").instance("me").register(["orders"])
        assert world.requests_by_kind[MULTI, "a"] - before < 50


# Outages


def test_calls_in_a_long_outage_take_their_timeout_and_few_requests_are_sent_afterwards() -> None:
    """Without corrections, kazoo blocks the caller of the 279th request until the outage is over."""
    with World().running() as world:
        registry, claim = claimed(world, "a", 300.0, timeout=6.0)
        claim.commit(0)
        world.stop()
        world.machine.until(lambda: not registry.client.connected)
        asked = [registry.client.exists_async("/") for _ in range(1000)]
        assert sum(not each.ready() for each in asked) == LONGEST_QUEUE
        assert all(isinstance(each.exception, ConnectionLoss) for each in asked if each.ready())
        calls: list[Callable[[], object]] = [lambda: claim.commit(1), registry.sync, lambda: list(registry.offsets())]
        for call in calls:
            began = world.machine.now
            with pytest.raises(NotConnectedError, match="within 6 s"):
                call()
            assert 5.9 < world.machine.now - began < 6.5
        world.start()
        world.machine.until(lambda: all(each.ready() for each in asked))
        claim.commit(2)
        assert world.server.nodes["/consumers/billing/offsets/orders/0"].version == 2  # the first created and wrote it


def test_closing_without_a_connection_takes_seconds_and_ends_all_claims_at_once() -> None:
    with World().running() as world:
        registry, claim = claimed(world, "a", 300.0)
        world.cut("a")
        with world.machine.process("a"):
            closing = threading.Thread(target=registry.close)
            closing.start()
        world.machine.sleep(0.1)
        assert (claim.held, closing.is_alive()) == (False, True)
        world.machine.until(lambda: not closing.is_alive(), 10)
        with pytest.raises(NotConnectedError, match="closed"):
            registry.groups()


@pytest.mark.parametrize("is_wiped", [True, False], ids=["wiped", "restored"])
def test_failure_19_no_claim_from_before_commits_to_a_restored_server(
    is_wiped: bool, caplog: pytest.LogCaptureFixture
) -> None:
    with World().running() as world:
        empty = world.server.copy()
        registry, claim = claimed(world, "a", 10.0)
        claim.commit(10)
        backup = empty if is_wiped else world.server.copy()
        claim.commit(100)
        seen = registry.client.last_zxid
        world.stop()
        world.start(backup)
        world.machine.until(lambda: "restored from a backup or wiped, restart this process" in caplog.text, 120)
        world.machine.until(lambda: not claim.held)
        with pytest.raises((NotConnectedError, OutcomeUnknownError)):
            claim.commit(101)
        world.server.zxid = seen + 1  # it has done as many transactions again
        world.machine.until(lambda: registry.client.connected, 120)
        with pytest.raises(SessionLostError):
            claim.commit(102)
        found = registry.group("billing").offsets.fetch(P0)
        assert (None if found is None else found.offset) == (None if is_wiped else 10)


# A server that lags behind


class Scene(NamedTuple):
    """A claim that was released with an unknown outcome, and two objects of its instance."""

    me: MemberInstance
    claim: Claim
    again: MemberInstance


STALE: dict[str, Callable[[Scene], object]] = {
    "hold": lambda scene: scene.me.find_owners([P0], ["me", "next"]),
    "release": lambda scene: scene.claim.release(),
    "delete a leftover": lambda scene: (
        _leave_behind(scene.me._ownership, list(scene.me._ownership.nodes().values())),
        scene.me.release_all(),
    ),
    "resume": lambda scene: (scene.me.free_id(), scene.again.resume()),
}


@pytest.mark.parametrize("act", STALE.values(), ids=STALE)
def test_rule_2_a_claim_that_was_released_is_not_touched_again_because_a_server_does_not_know_it(
    act: Callable[[Scene], object],
) -> None:
    """The leader has carried the release out, and the next instance has the partition. The client moves to a server
    that does not know of either."""
    for seed in range(5):
        with World(seed).running() as world:
            registry = world.connect("me", session_timeout=300.0, timeout=3.0)
            me, again = (MemberInstance(registry.group("billing").paths, registry._context, "me") for _ in range(2))
            me.register(["orders"])
            claim = me.claim(P0)
            claim.commit(1)
            successor = world.connect("next").group("billing").instance("next")
            successor.register(["orders"])
            world.move_to_old_server("me")
            world.late_replies["me"] = 10.0
            with world.machine.process("me"), pytest.raises(OutcomeUnknownError):
                claim.release()
            del world.late_replies["me"]
            taken = successor.claim(P0)
            world.drop("me")
            world.machine.sleep(5)
            assert registry.client.exists(OWNER).ephemeralOwner == claim.session_id, "the server lags behind"
            with world.machine.process("me"):
                act(Scene(me, claim, again))
            assert taken.verify()
            assert not claim.held
            assert not [each for each in again.claims.values() if each.held]
