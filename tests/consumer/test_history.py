"""The judge finds no violation in a good history, and finds each planted violation."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from zkgroups.core.history.events import Commit, CommitAction, OwnerAction, OwnerChange, PastInstance, PastOwner

from .history import Event, History, Kind, judge, leases, read

AT = "orders/0"
ANNE, BERT = 0xA, 0xB
"""The sessions of the members."""


def begun(run: str, time: float, generation: int = 1, offset: int = 0, **more: Any) -> Event:
    session = {"anne": ANNE, "bert": BERT}[run]
    more = {"session": session, "number": int(time), "offset": offset, "generation": generation, **more}
    return Event(Kind.BEGUN, time, run, run, AT, **more)


def processed(run: str, time: float, offset: int, generation: int = 1, *, since: float | None = None) -> Event:
    """A message that took a tenth of a second, unless the process was suspended during it."""
    since = time - 0.1 if since is None else since
    return Event(Kind.PROCESSED, time, run, run, AT, generation, offset=offset, since=since, sure=since + 0.01)


def told(kind: Kind, run: str, time: float, *, offset: int | None = None, error: str = "") -> Event:
    return Event(kind, time, run, run, AT, offset=offset, error=error)


def commit(run: str, time: float, offset: int) -> list[Event]:
    return [told(Kind.COMMITTING, run, time, offset=offset), told(Kind.COMMITTED, run, time + 0.05, offset=offset)]


def write(zxid: int, session: int, offset: int | None, owner: int | None, *, registered: bool = True) -> Commit:
    """A commit, or the deletion of an offset. `history` adds the offset before."""
    instance = PastInstance("g", "someone", session) if registered else None
    held = None if owner is None else PastOwner("someone", owner)
    action = CommitAction.DELETED if offset is None else CommitAction.COMMITTED
    return Commit(zxid, 0, session, "g", "orders", 0, action, None, offset, zxid, instance, held, False, True, None)


def claim(session: int, *, registered: bool) -> OwnerChange:
    instance = PastInstance("g", "anne", session) if registered else None
    owner = PastOwner("anne-0", session)
    return OwnerChange(0, 0, session, "g", "orders", 0, OwnerAction.CLAIMED, owner, instance, (), instance, True)


GOOD = [
    begun("anne", 1.0),
    processed("anne", 1.2, 0),
    processed("anne", 1.4, 1),
    *commit("anne", 1.5, 2),
    told(Kind.REVOKED, "anne", 1.6),
    begun("bert", 2.0, offset=2),
    processed("bert", 2.2, 2),
    *commit("bert", 2.3, 3),
    Event(Kind.CALM, 2.4),
    processed("bert", 2.7, 3),
]
WRITTEN = [write(1, ANNE, 2, ANNE), write(2, BERT, 3, BERT)]


def history(
    *more: Event,
    without: tuple[Event, ...] = (),
    writes: list[Commit] = WRITTEN,
    claims: tuple[OwnerChange, ...] = (claim(ANNE, registered=True),),
    **others: Any,
) -> History:
    events = sorted([*(event for event in GOOD if event not in without), *more], key=lambda event: event.time)
    before = [None, *(write.offset for write in writes)]
    log = [*claims, *(write._replace(before=offset) for write, offset in zip(writes, before, strict=False))]
    return History(**{"events": events, "log": log, "partitions": frozenset({AT}), **others})


def rules(history: History, **options: Any) -> list[str]:
    return [violation.rule for violation in judge(history, **{"bound": 1.0, "once": True, **options})]


def test_a_good_history_has_no_violations() -> None:
    assert rules(history()) == []


# Leases

RESUMED = processed("anne", 9.0, 2, since=1.45)
"""Suspended during a message, the process continued much later."""


def test_two_concurrent_generations_are_found() -> None:
    late = processed("anne", 2.9, 2, since=2.3)
    assert "two have one claim" in rules(history(late, without=(told(Kind.REVOKED, "anne", 1.6),)))


def test_a_message_of_a_zombie_that_considered_itself_active_is_found() -> None:
    lost = told(Kind.LOST, "anne", 9.5)
    seen_active = processed("anne", 9.0, 2, since=8.9)
    revoked = told(Kind.REVOKED, "anne", 1.6)
    later = processed("bert", 9.5, 4)
    assert "two have one claim" in rules(history(seen_active, lost, later, without=(revoked,)))


def test_the_current_message_of_a_suspended_process_is_not_a_violation() -> None:
    lost = told(Kind.LOST, "anne", 9.5)
    assert "two have one claim" not in rules(history(RESUMED, lost, without=(told(Kind.REVOKED, "anne", 1.6),)))


def test_the_current_message_of_a_killed_process_is_not_a_violation() -> None:
    assert "two have one claim" not in rules(history(RESUMED, without=(told(Kind.REVOKED, "anne", 1.6),)))


def test_the_current_message_of_a_process_that_released_in_order_is_found() -> None:
    assert "two have one claim" in rules(history(RESUMED))


def test_the_current_message_of_a_process_that_lost_its_partition_during_the_release_is_not_a_violation() -> None:
    assert "two have one claim" not in rules(history(RESUMED, told(Kind.LOST, "anne", 1.7)))


ENDING = Event(Kind.ENDING, 2.05, "nemesis", session=ANNE)
UNAWARE = [processed("anne", 2.6, 2), told(Kind.LOST, "anne", 2.7)]


def test_a_process_whose_session_was_expired_by_another_client_has_a_moment_to_notice() -> None:
    revoked = told(Kind.REVOKED, "anne", 1.6)
    assert "two have one claim" in rules(history(*UNAWARE, without=(revoked,)))
    assert "two have one claim" not in rules(history(*UNAWARE, ENDING, without=(revoked,)))
    assert "two have one claim" in rules(history(*UNAWARE, ENDING, without=(revoked,), session_timeout=0.4))


def test_two_generations_of_one_process_that_overlap_are_found() -> None:
    again = [begun("bert", 2.3, 2, 3), processed("bert", 2.5, 3, 2), processed("bert", 2.8, 4, 1)]
    assert "two have one claim" in rules(history(*again))


def test_a_lease_spans_a_pause_without_messages() -> None:
    """A generation is one period: if it was active before and after, it was active in between."""
    events = [begun("anne", 1.0), processed("anne", 1.2, 0), processed("anne", 5.0, 1)]
    [lease] = leases(History([*events, begun("bert", 2.0, offset=1), processed("bert", 2.2, 1)]))[AT][:1]
    assert (lease.start, lease.end) == pytest.approx((1.11, 4.9))


# Commits


def test_a_commit_without_the_claim_is_found() -> None:
    assert rules(history(writes=[*WRITTEN, write(3, ANNE, 4, BERT)]))[0] == "commit-not-owner"
    assert rules(history(writes=[WRITTEN[0], write(2, BERT, 3, None)])) == ["commit-unowned"]


def test_a_commit_without_the_registration_is_found() -> None:
    writes = [WRITTEN[0], write(2, BERT, 3, BERT, registered=False)]
    assert rules(history(writes=writes)) == ["commit-unregistered"]


def test_a_claim_without_the_registration_is_found() -> None:
    assert rules(history(claims=(claim(ANNE, registered=False),))) == ["claim-unregistered"]


@pytest.mark.parametrize(("offset", "rule"), [(1, "went-back"), (None, "deleted")])
def test_an_offset_that_went_back_or_was_deleted_is_found(offset: int | None, rule: str) -> None:
    events = [processed("bert", 2.75, 0)]
    found = rules(history(*events, writes=[*WRITTEN, write(3, BERT, offset, BERT)]), once=False)
    assert found == [rule]


def test_an_administrator_may_let_an_offset_go_back() -> None:
    writes = [*WRITTEN, write(3, 0xC, 1, None)]
    assert rules(history(writes=writes, administrators=frozenset({0xC}))) == []


def test_a_commit_of_messages_that_another_process_processed_is_found() -> None:
    writes = [write(1, ANNE, 2, ANNE), write(2, BERT, 3, BERT)]
    by_anne = replace(processed("bert", 2.2, 2), run="carl")
    found = rules(history(by_anne, without=(processed("bert", 2.2, 2),), writes=writes))
    assert found == ["a commit beyond the processed messages"]


def test_a_commit_of_the_starting_offset_is_not_a_violation() -> None:
    assert rules(history(writes=[WRITTEN[0], write(2, BERT, 2, BERT), write(3, BERT, 3, BERT)])) == []


def test_a_commit_of_an_unknown_session_is_found() -> None:
    assert rules(history(writes=[*WRITTEN, write(3, 0xD, 4, 0xD)]))[0] == "a commit of nobody"


def test_a_message_that_was_skipped_is_found() -> None:
    assert rules(history(without=(processed("anne", 1.2, 0),))) == ["a message was skipped"]


def test_a_commit_that_returned_and_was_never_written_is_found() -> None:
    assert rules(history(*commit("bert", 2.8, 4))) == ["a commit was lost"]


def test_a_commit_lower_than_a_completed_commit_is_found() -> None:
    """Also if the offset has risen again since, so that a watch would have missed it."""
    late = commit("anne", 2.5, 2)
    assert rules(history(*late)) == ["a commit went back"]


def test_a_commit_in_progress_when_a_higher_one_returned_is_not_a_violation() -> None:
    slow = [told(Kind.COMMITTING, "anne", 1.55, offset=2), told(Kind.COMMITTED, "anne", 2.5, offset=2)]
    assert rules(history(*slow)) == []


@pytest.mark.parametrize("error", ["GenerationEndedError", "SessionLostError: gone", "OutcomeUnknownError"])
def test_a_commit_refused_as_too_late_is_not_a_violation(error: str) -> None:
    assert rules(history(told(Kind.REFUSED, "anne", 1.7, offset=2, error=error))) == []


@pytest.mark.parametrize("error", ["OffsetConflictError", "OffsetWouldGoBackError: x", "ConnectionLoss", "KeyError: 3"])
def test_a_commit_refused_for_another_reason_is_found(error: str) -> None:
    assert rules(history(told(Kind.REFUSED, "anne", 1.7, offset=2, error=error))) == ["refused for a wrong reason"]


def test_a_failure_is_found() -> None:
    assert rules(history(told(Kind.FAILED, "anne", 1.7, error="KeyError: 3"))) == ["it failed"]


# Events that members receive, and the end


def test_a_partition_lost_twice_is_found() -> None:
    losses = [told(Kind.LOST, "bert", 2.8), told(Kind.LOST, "bert", 2.9)]
    assert rules(history(*losses)) == ["lost without having it"]


def test_a_partition_lost_during_its_revocation_is_not_a_violation() -> None:
    assert rules(history(told(Kind.LOST, "anne", 1.7))) == []


def test_a_partition_revoked_after_it_was_lost_is_found() -> None:
    losses = [told(Kind.LOST, "bert", 2.8), told(Kind.REVOKED, "bert", 2.9)]
    assert rules(history(*losses)) == ["revoked without having it"]


def test_a_plan_number_that_decreased_is_found() -> None:
    assert rules(history(begun("bert", 2.9, 2, 4, number=1))) == ["a plan grew older"]


def test_a_partition_without_a_worker_at_the_end_is_found() -> None:
    assert rules(history(without=(GOOD[-1],))) == ["not settled"]
    assert rules(history(partitions=frozenset({AT, "orders/1"}))) == ["not settled"]
    assert rules(history(without=(Event(Kind.CALM, 2.4),))) == ["not settled"]


def test_a_message_processed_twice_without_faults_is_found() -> None:
    twice = history(processed("bert", 2.75, 2))
    assert rules(twice) == ["processed twice"]
    assert rules(twice, once=False) == []


# The files


def test_events_are_read_unchanged_and_an_incomplete_line_is_ignored(tmp_path: Path) -> None:
    anne, bert = GOOD[:5], GOOD[5:]
    (tmp_path / "anne.jsonl").write_text("".join(event.line() + "\n" for event in anne) + '{"kind": "comm')
    (tmp_path / "bert.jsonl").write_text("".join(event.line() + "\n" for event in bert))
    assert read(tmp_path) == GOOD
