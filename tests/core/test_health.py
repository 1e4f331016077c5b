"""The health of groups: every rule of the table, at the first observation and over time."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zkgroups.core import health
from zkgroups.core.commit_record import (
    MOST_POINTS,
    RECENT_POINTS,
    Commit,
    CommitRecord,
    LogHistory,
    catch_up_seconds,
    observe,
)
from zkgroups.core.doctor.findings import Severity
from zkgroups.core.health import (
    FORBIDDEN,
    NO_PARTITIONS,
    BurrowStatus,
    Hold,
    Limits,
    PartitionFacts,
    Status,
    Verdict,
    judge,
    judge_group,
    next_step,
    patience,
    rank,
)
from zkgroups.core.offsets.lag import LagNote
from zkgroups.core.znodes.states import GroupState

SECOND, MINUTE, HOUR, DAY = 1000, 60_000, 3_600_000, 86_400_000
NOW = 1_000 * DAY
LIMITS = Limits()
PERIOD = LIMITS.period_ms


def commit(offset: int = 100, *, version: int = 1000, ago: int = 0, every: int = 10 * SECOND) -> Commit:
    """A commit some time ago, of a consumer that commits every ten seconds."""
    return Commit(offset, version, NOW - ago, NOW - ago - version * every)


def record(lag: int | None = 5, *, began: int = 0, **more: Any) -> CommitRecord:
    """The record of a partition that is observed for the first time, or has been for `began`."""
    return observe(None, commit(**more), lag, now_ms=NOW - began, period_ms=PERIOD)


def status(
    lag: int | None = 5,
    note: LagNote | None = None,
    *,
    hold: Hold = Hold.OWNED,
    members: int = 1,
    rec: CommitRecord | None,
    **more: Any,
) -> Verdict:
    return judge(PartitionFacts(hold, members, lag, note, rec, **more), NOW, LIMITS)


def first(
    lag: int | None = 5, note: LagNote | None = None, *, ago: int = 0, committed: bool = True, **more: Any
) -> str:
    """The status and the severity at the first observation, of a partition that was committed some time ago."""
    found = status(lag, note, rec=record(lag, ago=ago) if committed else None, **more)
    assert found.reason
    return f"{found.status} {found.severity}"


OK, STOP = "OK None", "STOP error"
AT_FIRST_SIGHT = {
    "caught up long ago": (first(0, ago=2 * DAY), OK),
    "behind, but committed a moment ago": (first(ago=5 * SECOND), OK),
    "behind, and silent for longer than its patience": (first(ago=151_000), STOP),
    "behind, and silent for just its patience": (first(ago=150_000), OK),
    "silent for long, but the message is new": (first(ago=2 * HOUR, unread_since_ms=NOW - SECOND), OK),
    "silent for long, and the message is old": (first(ago=2 * HOUR, unread_since_ms=NOW - HOUR), STOP),
    "silent for just its patience, and the message is old": (first(ago=150_000, unread_since_ms=NOW - HOUR), OK),
    "silent for just 90 days": (first(members=0, ago=90 * DAY), STOP),
    "not in use": (first(members=0, ago=2 * DAY, in_use=False), "ABANDONED warning"),
    "not in use, and unused for months": (first(members=0, ago=91 * DAY, in_use=False), "STALE info"),
    "not in use, and up to date": (first(0, ago=2 * DAY, in_use=False), OK),
    "not in use, and past the end": (first(None, LagNote.PAST_END, in_use=False), "PAST_END warning"),
    "unused": (first(members=0, ago=91 * DAY), "STALE info"),
    "silent for months, but a member is there": (first(ago=91 * DAY), STOP),
    "no member, and silent for hours": (first(members=0, ago=2 * HOUR), STOP),
    "past the end": (first(None, LagNote.PAST_END), "PAST_END error"),
    "never committed": (first(None, LagNote.NEVER_COMMITTED, committed=False), "UNKNOWN info"),
    "an unreadable offset": (first(None, LagNote.CANNOT_BE_READ, committed=False), "UNKNOWN warning"),
    "an unknown log": (first(None, LagNote.LOG_UNKNOWN), "UNKNOWN warning"),
    "no brokers, just its patience": (first(None, LagNote.LOG_UNKNOWN, ago=150_000, asks_brokers=False), OK),
    "no brokers, no recent commit": (first(None, LagNote.LOG_UNKNOWN, ago=HOUR, asks_brokers=False), "UNKNOWN info"),
    "deleted messages": (first(5, LagNote.BEFORE_START), "WARN warning"),
    "blocked": (first(0, hold=Hold.BLOCKED, holder="anna"), "BLOCKED error"),
    "orphaned": (first(0, hold=Hold.ORPHANED, holder="anna"), "ORPHANED error"),
    "unowned during a rebalance": (first(0, hold=Hold.UNOWNED, hold_since_ms=NOW - 59 * SECOND), "UNOWNED warning"),
    "unowned for a minute": (first(0, hold=Hold.UNOWNED, hold_since_ms=NOW - MINUTE), "UNOWNED error"),
    "free": (first(0, hold=Hold.FREE, members=0), OK),
    "moved, whatever else": (first(None, LagNote.PAST_END, hold=Hold.ORPHANED, moved="was moved"), "MOVED info"),
}


def test_the_first_observation_gives_the_right_status() -> None:
    assert {name: found for name, (found, _) in AT_FIRST_SIGHT.items()} == {
        name: wanted for name, (_, wanted) in AT_FIRST_SIGHT.items()
    }


def observed(*seen: tuple[int, int, int, int], every: int = 15 * SECOND) -> Verdict:
    """Judge after observations of (seconds ago, offset, version, lag). Each version was committed when it was seen."""
    rec: CommitRecord | None = None
    created = NOW - seen[0][0] * SECOND - 100 * 10 * SECOND
    committed, last_version = created, -1
    for ago, offset, version, lag in seen:
        now = NOW - ago * SECOND
        committed, last_version = (now, version) if version != last_version else (committed, last_version)
        rec = observe(rec, Commit(offset, version, committed, created), lag, now_ms=now, period_ms=PERIOD)
    return status(seen[-1][3], rec=rec)


def test_an_offset_that_went_back_is_a_rewind_until_it_has_recovered_or_the_period_is_over() -> None:
    went_back = [(60, 100, 1, 0), (30, 100, 1, 5), (15, 40, 2, 65)]
    assert observed(*went_back).status is Status.REWIND
    assert "60 messages are read again" in observed(*went_back).reason
    assert observed(*went_back, (10, 30, 3, 75), (5, 99, 4, 6)).status is Status.REWIND
    assert observed(*went_back, (10, 30, 3, 75), (5, 100, 4, 5)).status is Status.OK
    assert observed((300, 100, 1, 0), (226, 40, 2, 65), (10, 90, 3, 15)).status is Status.OK, "after the period"


def test_commits_without_progress_for_a_whole_period_are_a_stall() -> None:
    standing = [(PERIOD // SECOND - 15 * n, 100, 1 + n, 5 + n) for n in range(16)]
    assert observed(*standing).status is Status.STALL
    assert observed(*standing[1:]).status is Status.OK
    caught_up = [(ago, offset, version, lag if n else 0) for n, (ago, offset, version, lag) in enumerate(standing)]
    assert observed(*caught_up).status is Status.OK


def test_a_lag_that_never_falls_for_a_whole_period_is_a_warning() -> None:
    falling_behind = [(PERIOD // SECOND - 15 * n, 100 + n, 1 + n, 5 + n) for n in range(16)]
    assert observed(*falling_behind).status is Status.WARN
    assert observed(*falling_behind[1:]).status is Status.OK
    fell_once = [
        (ago, offset, version, 4 if n == 8 else lag) for n, (ago, offset, version, lag) in enumerate(falling_behind)
    ]
    assert observed(*fell_once).status is Status.OK


def test_a_lag_at_most_the_allowed_one_is_ok() -> None:
    assert (bool(record(1).behind_ms), bool(record(0).behind_ms)) == (True, False)
    facts = PartitionFacts(Hold.OWNED, 1, 5, None, record(5, ago=2 * HOUR))
    assert judge(facts, NOW, Limits(allowed_lag=5)).status is Status.OK
    assert judge(facts, NOW, Limits(allowed_lag=4)).status is Status.STOP


def test_the_patience_follows_the_pace_of_the_consumer_within_limits() -> None:
    paces = {SECOND: MINUTE, 10 * SECOND: 150 * SECOND, 5 * MINUTE: HOUR, HOUR: HOUR}
    assert {every: patience(record(every=every), LIMITS) for every in paces} == paces
    assert patience(record(version=0), LIMITS) == PERIOD, "of a single commit"


def test_a_past_without_lags_does_not_delay_the_first_verdict() -> None:
    """As snapshots tell it."""
    stopped = commit(ago=2 * HOUR)
    past = observe(None, stopped, None, now_ms=NOW - HOUR, period_ms=PERIOD)
    now = observe(past, stopped, 5, now_ms=NOW, period_ms=PERIOD)
    assert status(rec=now).status is Status.STOP
    moving = observe(past, commit(offset=101, version=1001), 5, now_ms=NOW, period_ms=PERIOD)
    assert status(rec=moving).status is Status.OK, "whether the lag has risen since is unknown"


def test_a_recreated_node_begins_a_new_record_unless_its_creation_is_unknown_as_in_an_audit() -> None:
    for anew in (Commit(3, 0, NOW, NOW), Commit(3, 2000, NOW, NOW), commit(offset=3, version=0)):
        assert observe(record(), anew, 5, now_ms=NOW, period_ms=PERIOD).rewound_ms == 0
    known = observe(None, Commit(100, 5, NOW - MINUTE, 0), None, now_ms=NOW - MINUTE, period_ms=PERIOD)
    assert observe(known, commit(offset=40), 5, now_ms=NOW, period_ms=PERIOD).rewound_ms == NOW


def test_the_consumption_rate_is_that_of_the_last_period() -> None:
    rec, rates = None, []
    for number in range(61):  # a minute of ten messages a second, then nothing
        now, offset = NOW + number * 5 * SECOND, min(number, 12) * 50
        rec = observe(rec, Commit(offset, min(number, 12), NOW, NOW - DAY), 1, now_ms=now, period_ms=MINUTE)
        rates.append(rec.consumed_per_second(now))
    assert rates[0] is None
    assert rates[1:13] == [10.0] * 12
    assert rates[15] == pytest.approx(300 / 45)
    assert set(rates[18:]) == {0.0}
    assert rec is not None
    assert rec.consumed_per_second(rec.early[0] + 999) is None
    assert rec.consumed_per_second(rec.early[0] + 1000) == 0.0


def test_without_commits_a_standing_offset_is_no_stall() -> None:
    """A consumer that seldom commits, and whose lag does not fall."""
    created = NOW - 1000 * HOUR
    rec = None
    for ago in (300, 240, 0):
        seldom = Commit(100, 1000, NOW - 10 * MINUTE, created)
        rec = observe(rec, seldom, 5, now_ms=NOW - ago * SECOND, period_ms=PERIOD)
    assert status(rec=rec).status is Status.WARN


COMMITS = st.lists(st.tuples(st.integers(0, 50), st.integers(0, 30), st.none() | st.integers(0, 20)), max_size=30)


@given(COMMITS)
def test_the_record_agrees_with_the_whole_history(steps: list[tuple[int, int, int | None]]) -> None:
    """The few numbers say the same as all observations together."""
    now, version, rec = NOW, 0, None
    seen: list[tuple[int, int, int | None]] = []
    for seconds, offset, lag in steps:
        now += seconds * SECOND
        version += not seen or seen[-1][1] != offset
        rec = observe(rec, Commit(offset, version, now, NOW - DAY), lag, now_ms=now, period_ms=PERIOD)
        seen.append((now, offset, lag))
    if rec is None:
        return
    offsets = [offset for _, offset, _ in seen]
    back = [ms for (_, before, _), (ms, after, _) in pairwise(seen) if after < before]
    assert rec.commit.offset == offsets[-1]
    assert rec.highest >= offsets[-1]
    assert not rec.rewound_ms or rec.rewound_ms == back[-1]
    assert (rec.highest > offsets[-1]) == bool(rec.rewound_ms)
    known = [(ms, lag) for ms, _, lag in seen if lag is not None]
    fell = [ms for (_, before), (ms, after) in pairwise(known) if after < before]
    if known:
        assert rec.rising_ms == (fell[-1] if fell else known[0][0])
    if known and known[-1][1] == 0:
        assert rec.behind_ms == 0


@given(st.lists(st.tuples(st.integers(1, 100_000), st.integers(0, 1000)), min_size=2, max_size=300))
def test_times_of_messages_are_monotonic_and_within_what_was_seen(steps: list[tuple[int, int]]) -> None:
    history, now, end = LogHistory(), NOW, 0
    history.add(now, end)
    for seconds, more in steps:
        now, end = now + seconds, end + more
        history.add(now, end)
    times = [history.written_ms(offset) for offset in range(0, end, max(1, end // 50))]
    known = [ms for ms in times if ms is not None]
    assert known == sorted(known)
    assert all(NOW <= ms <= now for ms in known)
    assert end == 0 or len(known) == len(times)
    assert history.written_ms(end) is None
    assert len(history._ends) <= MOST_POINTS


@given(
    st.lists(st.tuples(st.integers(0, 60_000), st.integers(-10, 1000)), max_size=80),
    st.lists(st.tuples(st.integers(0, 100_000), st.integers(0, 1000)), max_size=3),
    st.integers(1, 200_000),
)
def test_rates_and_times_are_possible_whatever_was_seen(
    steps: list[tuple[int, int]], messages: list[tuple[int, int]], period: int
) -> None:
    history, now, end = LogHistory(), NOW, 500
    for seconds, more in steps:
        now, end = now + seconds, max(0, end + more)
        history.add(now, end)
        for ago, offset in messages:
            history.add_message(NOW - ago, offset)
        rate = history.produced_per_second(now, period_ms=period)
        assert rate is None or rate >= 0
        times = [history.written_ms(offset) for offset in range(0, end + 5, 7)]
        assert [ms for ms in times if ms is not None] == sorted(ms for ms in times if ms is not None)


def test_a_long_history_is_thinned_out_and_stays_nearly_exact() -> None:
    history = LogHistory()
    for minute in range(1000):
        history.add(NOW + minute * MINUTE, 60 * minute)
        assert len(history._ends) == minute + 1 or minute >= MOST_POINTS
    assert RECENT_POINTS < len(history._ends) == len(history._times) <= MOST_POINTS
    assert history.written_ms(60 * 999 - 1) == NOW + 999 * MINUTE
    assert history.written_ms(59) == NOW + MINUTE, "an even pace is exact, however few points are left"
    assert history.first_end == 0


def test_a_pause_takes_two_points_and_a_log_end_that_goes_back_begins_a_new_history() -> None:
    history = LogHistory()
    for second in range(5):
        history.add(NOW + second * SECOND, 7)
    assert list(history._times) == [NOW, NOW + 4 * SECOND]
    assert history.produced_per_second(NOW + 999, period_ms=MINUTE) is None
    assert history.produced_per_second(NOW + SECOND, period_ms=MINUTE) == 0.0
    history.add(NOW + 5 * SECOND, 200)
    history.add(NOW + 6 * SECOND, 3)
    assert (history.written_ms(5), history.first_end) == (None, 3)


def test_a_message_older_than_all_observations_gets_the_time_that_a_broker_reports() -> None:
    history = LogHistory()
    history.add(NOW, 100)
    history.add(NOW + 10 * SECOND, 110)
    history.add_message(NOW - 100 * SECOND, 50)
    for newer in (50, 60):
        history.add_message(NOW - 200 * SECOND, newer)  # no older message than the oldest point
    assert history.written_ms(49) is None
    assert history.written_ms(50) == NOW - 100 * SECOND
    assert history.written_ms(75) == NOW - 100 * SECOND + 25 * 100 * SECOND // 49
    assert history.first_end == 50


def test_the_production_rate_counts_only_the_period() -> None:
    history = LogHistory()
    for minute in range(10):
        history.add(NOW + minute * MINUTE, 600 * min(minute, 5))
    assert history.produced_per_second(NOW + 5 * MINUTE, period_ms=2 * MINUTE) == 10
    assert history.produced_per_second(NOW + 9 * MINUTE, period_ms=2 * MINUTE) == 0
    assert history.produced_per_second(NOW + 6 * MINUTE, period_ms=90 * SECOND) == pytest.approx(300 / 90)
    primed = LogHistory()
    primed.add(NOW, 20)
    primed.add_message(NOW - 2 * SECOND, 10)
    assert primed.produced_per_second(NOW, period_ms=MINUTE) == 5
    two = LogHistory()
    two.add(NOW, 0)
    two.add(NOW + 10 * MINUTE, 6000)
    assert two.produced_per_second(NOW + 10 * MINUTE, period_ms=MINUTE) == 10
    assert LogHistory().produced_per_second(NOW, period_ms=MINUTE) is None


def test_a_group_has_the_verdict_of_its_worst_partition() -> None:
    ok, info = Verdict(Status.OK, None, "a"), Verdict(Status.STALE, Severity.INFO, "b")
    warning, error = Verdict(Status.WARN, Severity.WARNING, "c"), Verdict(Status.STALL, Severity.ERROR, "d")
    assert judge_group(GroupState.STABLE, [ok, info, warning, error, error]).reason == "d (2 of 5 partitions)"
    assert judge_group(GroupState.STABLE, [ok, ok]) is ok
    assert judge_group(GroupState.STABLE, [ok, ok], 7).reason == "7 messages wait"
    assert judge_group(GroupState.STABLE, [info], 7) == info
    assert judge_group(GroupState.STABLE, []) is NO_PARTITIONS
    assert judge_group(GroupState.UNKNOWN, [warning]) is FORBIDDEN
    assert judge_group(GroupState.UNKNOWN, [error]) == error
    assert sorted([ok, error, info, warning], key=rank) == [error, warning, info, ok]


def test_every_status_has_one_in_burrow() -> None:
    for wanted in (Status.OK, Status.WARN, Status.STOP, Status.STALL, Status.REWIND):
        severity = {Status.OK: None, Status.WARN: Severity.WARNING}.get(wanted, Severity.ERROR)
        assert health.of_partition(Verdict(wanted, severity, "")).value == wanted.value
    assert health.of_partition(Verdict(Status.PAST_END, Severity.ERROR, "")) is BurrowStatus.ERR
    assert health.of_group(Verdict(Status.STOP, Severity.ERROR, "")) is BurrowStatus.ERR
    assert health.of_group(Verdict(Status.MOVED, Severity.INFO, "")) is BurrowStatus.OK
    assert [each.code for each in BurrowStatus] == [0, 1, 2, 3, 4, 5, 6]


def test_a_group_that_is_not_faster_than_its_producers_never_catches_up() -> None:
    for rates in ((1, 0.0, 0.0), (1, None, 1.0), (1, 1.0, None), (9, 1.0, 2.0), (9, 1.0, 1.0)):
        assert catch_up_seconds(*rates) is None
    assert catch_up_seconds(9, 2.0, 0.5) == 6.0


def test_every_status_but_ok_and_moved_has_a_next_step() -> None:
    steps = {each: next_step("a b", Verdict(each, Severity.WARNING, ""), topic="orders", members=1) for each in Status}
    assert {each for each, step in steps.items() if not step} == {Status.OK, Status.MOVED}
    assert steps[Status.UNOWNED] == "zkgroups groups explain 'a b'"
    stop = Verdict(Status.STOP, Severity.ERROR, "")
    assert next_step("a", stop, topic="orders", members=0) == "start its consumers"
