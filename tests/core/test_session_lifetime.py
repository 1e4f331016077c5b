"""How long a session is certain to live: never longer than the leader keeps it, and long enough to be useful.

And whether a server may be a later state of the ensemble that was seen before.
"""

from __future__ import annotations

import math
import random

import pytest

from zkgroups.core.ensemble_position import EnsemblePosition
from zkgroups.core.session_lifetime import (
    PROOF_LIFETIME,
    PROOF_PERIOD,
    PROOF_TIMEOUT,
    REPORT_DELAY,
    SAFETY_MARGIN,
    SessionLifetime,
)

T = 30.0


def connected(timeout: float = T) -> SessionLifetime:
    """A session that was accepted at 0."""
    lifetime = SessionLifetime(timeout)
    lifetime.connected(0.0)
    return lifetime


def steady(until: float) -> SessionLifetime:
    """A session that was accepted at 0 and proved in every period, with immediate answers."""
    lifetime = connected()
    for n in range(math.floor(until / (PROOF_PERIOD * T)) + 1):
        lifetime.answered(n * PROOF_PERIOD * T, n * PROOF_PERIOD * T)
        lifetime.proved(n * PROOF_PERIOD * T)
    return lifetime


def test_the_fractions_of_the_session_timeout_add_up() -> None:
    assert pytest.approx(1.0) == PROOF_LIFETIME + REPORT_DELAY + PROOF_PERIOD + SAFETY_MARGIN
    assert pytest.approx(0.6) == PROOF_LIFETIME
    assert PROOF_LIFETIME - PROOF_PERIOD - PROOF_TIMEOUT >= 0.2, "there is time left to go to another server"


def test_each_regular_proof_lasts_as_long_as_promised() -> None:
    lifetime = steady(10 * T)
    last = lifetime.sent
    assert last + PROOF_LIFETIME * T <= lifetime.until <= last + (PROOF_LIFETIME + PROOF_PERIOD) * T
    assert lifetime.due(last) == last + PROOF_PERIOD * T


def test_a_session_is_certain_without_interruption_if_each_proof_is_answered_in_time() -> None:
    delay, gaps = PROOF_TIMEOUT * T, []
    lifetime = connected()
    for sent in (n * PROOF_PERIOD * T for n in range(100)):
        answered, until = sent + delay, lifetime.until
        lifetime.answered(sent, answered)
        lifetime.proved(sent)
        gaps.append(answered - until)
    assert max(gaps[1:]) < 1e-6


def test_other_answers_than_proofs_do_not_extend_the_certainty() -> None:
    lifetime = connected()
    lifetime.answered(1.0, 1.1)
    assert lifetime.until == -math.inf


def test_a_proof_counts_from_the_time_it_was_sent() -> None:
    lifetime = connected()
    lifetime.answered(0.1, 20.0)
    lifetime.proved(0.1)
    assert lifetime.until == (1 - SAFETY_MARGIN) * T


def test_a_proof_after_a_pause_counts_only_for_requests_known_to_the_leader() -> None:
    """The leader may know only of requests from before the pause."""
    lifetime = steady(T)
    before, until = lifetime.sent, lifetime.until
    resumed = before + 0.5 * T
    lifetime.answered(resumed, resumed)
    lifetime.proved(resumed)
    assert until < lifetime.until <= before + (1 - SAFETY_MARGIN) * T
    assert lifetime.due(resumed) < resumed + (REPORT_DELAY + 0.02) * T, "the next one can make up for it"


def test_a_new_connection_is_known_to_the_leader_at_once() -> None:
    lifetime = steady(T)
    back = lifetime.sent + 0.5 * T
    lifetime.connected(back)
    lifetime.proved(back + 0.01)
    assert lifetime.until == back + (1 - SAFETY_MARGIN) * T


def test_memory_is_bounded_however_many_requests_are_answered() -> None:
    lifetime = connected(1.0)
    for n in range(100_000):
        lifetime.answered(n / 100, n / 100)
    assert len(lifetime._answered) <= 200


def test_the_session_is_never_considered_alive_after_the_leader_expired_it() -> None:
    """A model of a follower that is cut off at some moment. At each ping before that, it reports what it has heard."""
    luck = random.Random(1)
    for _ in range(3_000):
        half_tick, phase = luck.choice([T / 4, luck.uniform(T / 100, T / 4)]), luck.random()
        delay = luck.choice([0.0, T / 10])
        cut, now, last_ping, touched, heard = luck.uniform(0, 2 * T), 0.0, phase * half_tick - half_tick, 0.0, 0.0
        lifetime = connected()
        while now <= cut:
            sent, now = now, now + luck.uniform(0, delay)
            while (ping := last_ping + half_tick) <= min(now, cut):
                touched = ping if heard > last_ping else touched
                last_ping = ping
            if now > cut:
                break
            heard = now
            now += luck.uniform(0, delay)
            lifetime.answered(sent, now)
            if luck.random() < 0.7:
                lifetime.proved(sent)
            now += luck.choice([luck.uniform(0, T / 10), luck.uniform(0, T / 2)])
        assert lifetime.until <= touched + T


def test_requests_of_an_earlier_connection_do_not_count_after_a_reconnect() -> None:
    """The server that has answered them may have been cut off before it reported them."""
    lifetime = connected(4.0)
    lifetime.answered(2.0, 2.0)
    lifetime.connected(1.0)
    lifetime.proved(4.0)
    assert lifetime.until == pytest.approx(1.0 + 0.95 * 4.0)


# Ensembles

BEFORE = EnsemblePosition(zxid=100, created_zxid=7, created_ms=1_000)


@pytest.mark.parametrize(
    ("now", "possible"),
    [
        (EnsemblePosition(100, 7, 1_000), True),
        (EnsemblePosition(99, 7, 1_000), False),
        (EnsemblePosition(101, 7, 1_000), True),
        (EnsemblePosition(101, 7, 1_001), False),
        (EnsemblePosition(101, 8, 1_000), False),
        (EnsemblePosition(200, 100, 5_000), False),
        (EnsemblePosition(200, 101, 5_000), True),
        (EnsemblePosition(200, 0, 0), True),
        (EnsemblePosition(99, 0, 0), False),
    ],
)
def test_an_ensemble_may_be_at_a_later_position(now: EnsemblePosition, possible: bool) -> None:
    assert BEFORE.may_precede(now) is possible


def test_an_ensemble_without_groups_may_have_some_later() -> None:
    assert EnsemblePosition(100, 0, 0).may_precede(EnsemblePosition(200, 150, 5_000))
    assert not EnsemblePosition(100, 0, 0).may_precede(EnsemblePosition(200, 50, 5_000))
