"""The health of groups: every rule of the table, at the first observation and over time."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zkgroups.core.doctor.findings import Severity
from zkgroups.core.health import burrow
from zkgroups.core.health.burrow import BurrowStatus
from zkgroups.core.health.commit_record import Commit, CommitRecord, observe
from zkgroups.core.health.group_health import FORBIDDEN, NO_PARTITIONS, judge_group
from zkgroups.core.health.log_history import MOST_POINTS, RECENT_POINTS, LogHistory, catch_up_seconds
from zkgroups.core.health.partition_health import Hold, Limits, PartitionFacts, judge, patience
from zkgroups.core.health.verdicts import Status, Verdict, rank
from zkgroups.core.offsets.lag import LagNote
from zkgroups.core.znodes.states import GroupState

SECOND, MINUTE, HOUR, DAY = 1000, 60_000, 3_600_000, 86_400_000
NOW = 1_000 * DAY
LIMITS = Limits()
WINDOW = LIMITS.window_ms


def commit(offset: int = 100, *, version: int = 1000, ago: int = 0, every: int = 10 * SECOND) -> Commit:
    """A commit some time ago, of a consumer that commits every ten seconds."""
    return Commit(offset, version, NOW - ago, NOW - ago - version * every)


def record(lag: int | None = 5, *, began: int = 0, **more: Any) -> CommitRecord:
    """The record of a partition that is observed for the first time, or has been for `began`."""
    return observe(None, commit(**more), lag, now_ms=NOW - began, window_ms=WINDOW)


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


AT_FIRST_SIGHT = {
    "caught up long ago": (Status.OK, None, lambda: status(0, rec=record(0, ago=2 * DAY))),
    "behind, but committed a moment ago": (Status.OK, None, lambda: status(rec=record(ago=5 * SECOND))),
    "behind, and silent for longer than its patience": (
        Status.STOP,
        Severity.ERROR,
        lambda: status(rec=record(ago=151_000)),
    ),
    "behind, and silent for just its patience": (Status.OK, None, lambda: status(rec=record(ago=150_000))),
    "silent for long, but the message is new": (
        Status.OK,
        None,
        lambda: status(rec=record(ago=2 * HOUR), unread_since_ms=NOW - SECOND),
    ),
    "silent for long, and the message is old": (
        Status.STOP,
        Severity.ERROR,
        lambda: status(rec=record(ago=2 * HOUR), unread_since_ms=NOW - HOUR),
    ),
    "silent for just its patience, and the message is old": (
        Status.OK,
        None,
        lambda: status(rec=record(ago=150_000), unread_since_ms=NOW - HOUR),
    ),
    "silent for just 90 days": (
        Status.STOP,
        Severity.ERROR,
        lambda: status(members=0, rec=record(ago=90 * DAY)),
    ),
    "no brokers, and silent for just its patience": (
        Status.OK,
        None,
        lambda: status(None, LagNote.LOG_UNKNOWN, rec=record(None, ago=150_000), asks_brokers=False),
    ),
    "unused": (Status.STALE, Severity.INFO, lambda: status(members=0, rec=record(ago=91 * DAY))),
    "silent for months, but a member is there": (Status.STOP, Severity.ERROR, lambda: status(rec=record(ago=91 * DAY))),
    "no member, and silent for hours": (
        Status.STOP,
        Severity.ERROR,
        lambda: status(members=0, rec=record(ago=2 * HOUR)),
    ),
    "past the end": (Status.PAST_END, Severity.ERROR, lambda: status(None, LagNote.PAST_END, rec=record(None))),
    "never committed": (Status.UNKNOWN, Severity.INFO, lambda: status(None, LagNote.NEVER_COMMITTED, rec=None)),
    "an unreadable offset": (Status.UNKNOWN, Severity.WARNING, lambda: status(None, LagNote.CANNOT_BE_READ, rec=None)),
    "an unknown log": (Status.UNKNOWN, Severity.WARNING, lambda: status(None, LagNote.LOG_UNKNOWN, rec=record(None))),
    "no brokers, a recent commit": (
        Status.OK,
        None,
        lambda: status(None, LagNote.LOG_UNKNOWN, rec=record(None, ago=MINUTE), asks_brokers=False),
    ),
    "no brokers, no recent commit": (
        Status.UNKNOWN,
        Severity.INFO,
        lambda: status(None, LagNote.LOG_UNKNOWN, rec=record(None, ago=HOUR), asks_brokers=False),
    ),
    "deleted messages": (Status.WARN, Severity.WARNING, lambda: status(5, LagNote.BEFORE_START, rec=record())),
    "blocked": (Status.BLOCKED, Severity.ERROR, lambda: status(0, hold=Hold.BLOCKED, holder="anna", rec=record(0))),
    "orphaned": (Status.ORPHANED, Severity.ERROR, lambda: status(0, hold=Hold.ORPHANED, holder="anna", rec=record(0))),
    "unowned during a rebalance": (
        Status.UNOWNED,
        Severity.WARNING,
        lambda: status(0, hold=Hold.UNOWNED, hold_since_ms=NOW - 59 * SECOND, rec=record(0)),
    ),
    "unowned for a minute": (
        Status.UNOWNED,
        Severity.ERROR,
        lambda: status(0, hold=Hold.UNOWNED, hold_since_ms=NOW - MINUTE, rec=record(0)),
    ),
    "free": (Status.OK, None, lambda: status(0, hold=Hold.FREE, members=0, rec=record(0))),
    "moved, whatever else": (
        Status.MOVED,
        Severity.INFO,
        lambda: status(None, LagNote.PAST_END, hold=Hold.ORPHANED, rec=record(None), moved="was moved"),
    ),
}


@pytest.mark.parametrize("name", AT_FIRST_SIGHT)
def test_the_first_observation_gives_the_right_status(name: str) -> None:
    wanted, severity, judged = AT_FIRST_SIGHT[name]
    found = judged()
    assert (found.status, found.severity) == (wanted, severity), found.reason
    assert found.reason


def observed(*seen: tuple[int, int, int, int], every: int = 15 * SECOND) -> Verdict:
    """Judge after observations of (seconds ago, offset, version, lag). Each version was committed when it was seen."""
    rec: CommitRecord | None = None
    created = NOW - seen[0][0] * SECOND - 100 * 10 * SECOND
    committed, last_version = created, -1
    for ago, offset, version, lag in seen:
        now = NOW - ago * SECOND
        committed, last_version = (now, version) if version != last_version else (committed, last_version)
        rec = observe(rec, Commit(offset, version, committed, created), lag, now_ms=now, window_ms=WINDOW)
    return status(seen[-1][3], rec=rec)


def test_an_offset_that_went_back_is_a_rewind_until_it_has_recovered() -> None:
    went_back = [(60, 100, 1, 0), (30, 100, 1, 5), (15, 40, 2, 65)]
    assert observed(*went_back).status is Status.REWIND
    assert "60 messages are read again" in observed(*went_back).reason
    assert observed(*went_back, (10, 30, 3, 75), (5, 99, 4, 6)).status is Status.REWIND
    assert observed(*went_back, (10, 30, 3, 75), (5, 100, 4, 5)).status is Status.OK


def test_a_rewind_is_forgotten_after_the_window() -> None:
    assert observed((300, 100, 1, 0), (226, 40, 2, 65), (10, 90, 3, 15)).status is Status.OK


def test_commits_without_progress_for_a_whole_window_are_a_stall() -> None:
    standing = [(WINDOW // SECOND - 15 * n, 100, 1 + n, 5 + n) for n in range(16)]
    assert observed(*standing).status is Status.STALL
    assert observed(*standing[1:]).status is Status.OK


def test_a_partition_whose_lag_was_zero_within_the_window_does_not_stall() -> None:
    standing = [(WINDOW // SECOND - 15 * n, 100, 1 + n, 5 if n else 0) for n in range(16)]
    assert observed(*standing).status is Status.OK


def test_a_lag_that_never_falls_for_a_whole_window_is_a_warning() -> None:
    falling_behind = [(WINDOW // SECOND - 15 * n, 100 + n, 1 + n, 5 + n) for n in range(16)]
    assert observed(*falling_behind).status is Status.WARN
    assert observed(*falling_behind[1:]).status is Status.OK
    fell_once = [
        (ago, offset, version, 4 if n == 8 else lag) for n, (ago, offset, version, lag) in enumerate(falling_behind)
    ]
    assert observed(*fell_once).status is Status.OK


def test_a_lag_at_most_the_allowed_one_is_ok() -> None:
    facts = PartitionFacts(Hold.OWNED, 1, 5, None, record(5, ago=2 * HOUR))
    assert judge(facts, NOW, Limits(allowed_lag=5)).status is Status.OK
    assert judge(facts, NOW, Limits(allowed_lag=4)).status is Status.STOP


@pytest.mark.parametrize(
    ("every", "wanted"), [(SECOND, MINUTE), (10 * SECOND, 150 * SECOND), (HOUR, HOUR), (5 * MINUTE, HOUR)]
)
def test_the_patience_follows_the_pace_of_the_consumer_within_limits(every: int, wanted: int) -> None:
    assert patience(record(every=every), LIMITS) == wanted


def test_a_consumer_with_a_single_commit_gets_the_patience_of_the_window() -> None:
    assert patience(record(version=0), LIMITS) == WINDOW


def test_a_past_without_lags_does_not_delay_the_first_verdict() -> None:
    """As snapshots tell it."""
    stopped = commit(ago=2 * HOUR)
    past = observe(None, stopped, None, now_ms=NOW - HOUR, window_ms=WINDOW)
    now = observe(past, stopped, 5, now_ms=NOW, window_ms=WINDOW)
    assert status(rec=now).status is Status.STOP
    moving = observe(past, commit(offset=101, version=1001), 5, now_ms=NOW, window_ms=WINDOW)
    assert status(rec=moving).status is Status.OK, "whether the lag has risen since is unknown"


@pytest.mark.parametrize("anew", [Commit(3, 0, NOW, NOW), Commit(3, 2000, NOW, NOW), commit(offset=3, version=0)])
def test_a_recreated_node_begins_a_new_record(anew: Commit) -> None:
    assert observe(record(), anew, 5, now_ms=NOW, window_ms=WINDOW).rewound_ms == 0


def test_a_node_of_an_audit_whose_creation_is_unknown_is_not_recreated() -> None:
    known = observe(None, Commit(100, 5, NOW - MINUTE, 0), None, now_ms=NOW - MINUTE, window_ms=WINDOW)
    assert observe(known, commit(offset=40), 5, now_ms=NOW, window_ms=WINDOW).rewound_ms == NOW


def test_the_consumption_rate_is_that_of_the_last_window() -> None:
    rec, rates = None, []
    for number in range(61):  # a minute of ten messages a second, then nothing
        now, offset = NOW + number * 5 * SECOND, min(number, 12) * 50
        rec = observe(rec, Commit(offset, min(number, 12), NOW, NOW - DAY), 1, now_ms=now, window_ms=MINUTE)
        rates.append(rec.consumed_per_second(now))
    assert rates[0] is None
    assert rates[1:13] == [10.0] * 12
    assert rates[15] == pytest.approx(300 / 45)
    assert set(rates[18:]) == {0.0}
    assert rec is not None
    assert rec.consumed_per_second(rec.early[0] + 999) is None
    assert rec.consumed_per_second(rec.early[0] + 1000) == 0.0


def test_a_lag_of_one_is_behind_by_default() -> None:
    assert record(1).behind_ms
    assert not record(0).behind_ms


def test_without_commits_a_standing_offset_is_no_stall() -> None:
    """A consumer that seldom commits, and whose lag does not fall."""
    created = NOW - 1000 * HOUR
    rec = None
    for ago in (300, 240, 0):
        seldom = Commit(100, 1000, NOW - 10 * MINUTE, created)
        rec = observe(rec, seldom, 5, now_ms=NOW - ago * SECOND, window_ms=WINDOW)
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
        rec = observe(rec, Commit(offset, version, now, NOW - DAY), lag, now_ms=now, window_ms=WINDOW)
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
    steps: list[tuple[int, int]], messages: list[tuple[int, int]], window: int
) -> None:
    history, now, end = LogHistory(), NOW, 500
    for seconds, more in steps:
        now, end = now + seconds, max(0, end + more)
        history.add(now, end)
        for ago, offset in messages:
            history.add_message(NOW - ago, offset)
        rate = history.produced_per_second(now, window_ms=window)
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


def test_a_pause_takes_two_points() -> None:
    history = LogHistory()
    for second in range(5):
        history.add(NOW + second * SECOND, 7)
    assert list(history._times) == [NOW, NOW + 4 * SECOND]
    assert history.produced_per_second(NOW + 999, window_ms=MINUTE) is None
    assert history.produced_per_second(NOW + SECOND, window_ms=MINUTE) == 0.0


def test_a_log_end_that_goes_back_begins_a_new_history() -> None:
    history = LogHistory()
    history.add(NOW, 100)
    history.add(NOW + SECOND, 200)
    history.add(NOW + 2 * SECOND, 10)
    assert history.written_ms(150) is None
    assert history.first_end == 10


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


def test_the_production_rate_counts_only_the_window() -> None:
    history = LogHistory()
    for minute in range(10):
        history.add(NOW + minute * MINUTE, 600 * min(minute, 5))
    assert history.produced_per_second(NOW + 5 * MINUTE, window_ms=2 * MINUTE) == 10
    assert history.produced_per_second(NOW + 9 * MINUTE, window_ms=2 * MINUTE) == 0
    assert history.produced_per_second(NOW + 6 * MINUTE, window_ms=90 * SECOND) == pytest.approx(300 / 90)
    primed = LogHistory()
    primed.add(NOW, 20)
    primed.add_message(NOW - 2 * SECOND, 10)
    assert primed.produced_per_second(NOW, window_ms=MINUTE) == 5
    two = LogHistory()
    two.add(NOW, 0)
    two.add(NOW + 10 * MINUTE, 6000)
    assert two.produced_per_second(NOW + 10 * MINUTE, window_ms=MINUTE) == 10
    assert LogHistory().produced_per_second(NOW, window_ms=MINUTE) is None


def test_a_group_has_the_verdict_of_its_worst_partition() -> None:
    ok, info, warning, error = (
        Verdict(Status.OK, None, "a"),
        Verdict(Status.STALE, Severity.INFO, "b"),
        Verdict(Status.WARN, Severity.WARNING, "c"),
        Verdict(Status.STALL, Severity.ERROR, "d"),
    )
    assert judge_group(GroupState.STABLE, [ok, info, warning, error, error]).reason == "d (2 of 5 partitions)"
    assert judge_group(GroupState.STABLE, [ok, ok]) is ok
    assert judge_group(GroupState.STABLE, [ok, ok], 7).reason == "7 messages wait"
    assert judge_group(GroupState.STABLE, [info], 7) is info
    assert judge_group(GroupState.STABLE, []) is NO_PARTITIONS
    assert judge_group(GroupState.UNKNOWN, [warning]) is FORBIDDEN
    assert judge_group(GroupState.UNKNOWN, [error]) == error
    assert sorted([ok, error, info, warning], key=rank) == [error, warning, info, ok]


def test_every_status_has_one_in_burrow() -> None:
    for wanted in (Status.OK, Status.WARN, Status.STOP, Status.STALL, Status.REWIND):
        severity = {Status.OK: None, Status.WARN: Severity.WARNING}.get(wanted, Severity.ERROR)
        assert burrow.of_partition(Verdict(wanted, severity, "")).value == wanted.value
    assert burrow.of_partition(Verdict(Status.PAST_END, Severity.ERROR, "")) is BurrowStatus.ERR
    assert burrow.of_group(Verdict(Status.STOP, Severity.ERROR, "")) is BurrowStatus.ERR
    assert burrow.of_group(Verdict(Status.MOVED, Severity.INFO, "")) is BurrowStatus.OK
    assert [each.code for each in BurrowStatus] == [0, 1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize(
    ("lag", "consumed", "produced"), [(1, 0.0, 0.0), (1, None, 1.0), (1, 1.0, None), (9, 1.0, 2.0)]
)
def test_a_group_that_is_not_faster_than_its_producers_never_catches_up(
    lag: int, consumed: float | None, produced: float | None
) -> None:
    assert catch_up_seconds(lag, consumed, produced) is None
