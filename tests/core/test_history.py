"""Changes of nodes become the right events, also where earlier changes are missing."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import count

import pytest

from zkgroups import Dialect, MalformedNode
from zkgroups.core.history.changes import ChangeKind, KnownNode, NodeChange, SessionEnd
from zkgroups.core.history.events import (
    Commit,
    CommitAction,
    GroupAction,
    GroupChange,
    HistoryEvent,
    MemberAction,
    MemberChange,
    OwnerAction,
    OwnerChange,
)
from zkgroups.core.history.period import Moment, Period
from zkgroups.core.history.tracker import GroupsTracker
from zkgroups.core.history.violations import Rule, violations
from zkgroups.exceptions import InvalidOptionError

ANNE, BERT = 0xA, 0xB
"""The sessions of two members."""
SCALA = b'{"version":1,"subscription":{"orders":1},"pattern":"static","timestamp":"1795255170109"}'
OFFSET, OWNER = b"g/offsets/orders/0", b"g/owners/orders/0"


class Log:
    """A tracker, and shorthands for changes in a log."""

    def __init__(self, *nodes: KnownNode, complete_from: int = 0) -> None:
        self.tracker = GroupsTracker()
        self.tracker.begin(nodes)
        self.tracker.complete_from(complete_from)
        self._zxids = count(1)

    def change(self, session: int, kind: ChangeKind, path: bytes = b"", *data: object, **more: object) -> HistoryEvent:
        [event] = self.changes(session, kind, path, *data, **more)
        return event

    def changes(
        self, session: int, kind: ChangeKind, path: bytes = b"", *data: object, **more: object
    ) -> Sequence[HistoryEvent]:
        zxid = next(self._zxids)
        return self.tracker.apply([NodeChange(zxid, 1000 * zxid, session, kind, path, *data, **more)])  # type: ignore[arg-type]

    def join(self, session: int, id: str = "anne", data: bytes = SCALA) -> HistoryEvent:
        return self.change(session, ChangeKind.CREATED, f"g/ids/{id}".encode(), data, is_ephemeral=True)

    def claim(self, session: int, id: str = "anne-0", path: bytes = OWNER) -> OwnerChange:
        event = self.change(session, ChangeKind.CREATED, path, id.encode(), is_ephemeral=True)
        assert isinstance(event, OwnerChange)
        return event

    def create(self, session: int, offset: int, path: bytes = OFFSET) -> Commit:
        event = self.change(session, ChangeKind.CREATED, path, b"%d" % offset)
        assert isinstance(event, Commit)
        return event

    def commit(self, session: int, offset: int | bytes, version: int, **more: object) -> Commit:
        data = offset if isinstance(offset, bytes) else b"%d" % offset
        event = self.change(session, ChangeKind.WRITTEN, OFFSET, data, version, **more)
        assert isinstance(event, Commit)
        return event

    def delete(self, session: int, path: bytes) -> HistoryEvent:
        return self.change(session, ChangeKind.DELETED, path)

    def end(self, session: int, end: SessionEnd, *ended: bytes) -> Sequence[HistoryEvent]:
        return self.changes(session, ChangeKind.SESSION_ENDED, end=end, ended=ended)


def rules(event: HistoryEvent) -> list[Rule]:
    return [violation.rule for violation in violations(event)]


# Commits


def test_a_commit_has_the_offset_before_the_instance_and_the_owner() -> None:
    log = Log()
    log.join(ANNE)
    log.claim(ANNE)
    first, second = log.create(ANNE, 5), log.commit(ANNE, 7, 1)
    assert (first.action, first.before, first.offset, first.version) == (CommitAction.CREATED, None, 5, 0)
    assert (second.action, second.before, second.offset, second.version) == (CommitAction.COMMITTED, 5, 7, 1)
    assert (second.group, second.topic, second.partition) == ("g", "orders", 0)
    assert second.instance is not None
    assert second.owner is not None
    assert (second.instance.id, second.instance.dialect, second.instance.session) == ("anne", Dialect.SCALA, ANNE)
    assert (second.owner.id, second.owner.session, second.owner.claimed_zxid) == ("anne-0", ANNE, 2)
    assert second.is_of_owner
    assert rules(first) == rules(second) == []


def test_an_offset_that_went_back_is_a_violation() -> None:
    log = Log()
    log.join(ANNE)
    log.claim(ANNE)
    log.create(ANNE, 5)
    back = log.commit(ANNE, 4, 1)
    assert back.went_back
    assert rules(back) == [Rule.WENT_BACK]
    assert not log.commit(ANNE, 4, 2).went_back


def test_a_deleted_offset_is_a_violation_and_the_next_one_begins_anew() -> None:
    log = Log()
    log.join(ANNE)
    log.claim(ANNE)
    log.create(ANNE, 5)
    gone = log.delete(ANNE, OFFSET)
    assert isinstance(gone, Commit)
    assert (gone.action, gone.before, gone.offset, gone.gap) == (CommitAction.DELETED, 5, None, False)
    assert rules(gone) == [Rule.DELETED]
    again = log.create(ANNE, 1)
    assert (again.before, again.gap, again.went_back) == (None, False, False)


def test_a_malformed_offset_has_its_problem() -> None:
    log = Log()
    log.join(ANNE)
    log.claim(ANNE)
    log.create(ANNE, 5)
    bad = log.commit(ANNE, b"7 ", 1)
    assert (bad.before, bad.offset, bad.problem) == (5, None, "not a plain decimal number")
    assert rules(bad) == [Rule.MALFORMED]
    after = log.commit(ANNE, b"+6", 2)
    assert (after.before, after.offset, after.gap) == (None, 6, False)


def test_a_version_that_does_not_follow_is_a_gap() -> None:
    log = Log()
    assert log.commit(ANNE, 5, 3).gap
    assert not log.commit(ANNE, 6, 4).gap
    later = log.commit(ANNE, 2, 6)
    assert (later.gap, later.before, later.went_back) == (True, None, False)
    assert not log.commit(ANNE, 7, 8, writes=2).gap  # written twice in one transaction


def test_a_creation_of_a_node_that_was_known_is_a_gap() -> None:
    log = Log()
    log.create(ANNE, 5)
    assert log.create(ANNE, 3).gap


def test_a_deletion_of_an_unknown_offset_is_a_gap() -> None:
    gone = Log().delete(ANNE, OFFSET)
    assert isinstance(gone, Commit)
    assert gone.gap


def test_nodes_that_are_no_partitions_have_no_events() -> None:
    log = Log()
    for path in (
        b"g/offsets",
        b"g/offsets/orders",
        b"g/offsets/orders/x",
        b"g/owners/orders/07",
        b"g/offsets/t/0/deeper",
    ):
        assert log.changes(ANNE, ChangeKind.CREATED, path, b"5") == []
    assert log.changes(ANNE, ChangeKind.WRITTEN, b"g", b"") == []


# Without a claim


def test_a_commit_of_a_session_that_is_not_the_owner_is_a_violation() -> None:
    log = Log()
    log.join(ANNE)
    log.join(BERT, "bert")
    log.claim(ANNE)
    [violation] = violations(log.create(BERT, 5))
    assert violation.rule is Rule.COMMIT_NOT_OWNER
    assert violation.text == "session 0xb committed 5, but 'anne-0' of session 0xa owned the partition"
    assert (violation.by and violation.by.id, violation.dialect) == ("bert", Dialect.SCALA)


def test_a_commit_of_a_partition_without_an_owner_is_a_violation() -> None:
    log = Log()
    log.join(ANNE)
    assert rules(log.create(ANNE, 5)) == [Rule.COMMIT_UNOWNED]


def test_a_commit_and_a_claim_without_a_registration_are_violations() -> None:
    log = Log()
    assert rules(log.claim(ANNE)) == [Rule.CLAIM_UNREGISTERED]
    assert rules(log.create(ANNE, 5)) == [Rule.COMMIT_UNREGISTERED]


def test_nothing_is_a_violation_that_may_be_due_to_missing_transactions() -> None:
    log = Log(complete_from=4)
    assert rules(log.claim(ANNE)) == rules(log.create(ANNE, 5)) == rules(log.delete(ANNE, OWNER)) == []
    assert rules(log.commit(ANNE, 6, 1)) == []
    assert rules(log.commit(ANNE, 7, 2)) == [Rule.COMMIT_UNOWNED]


def test_a_known_owner_proves_a_violation_also_where_transactions_are_missing() -> None:
    log = Log(complete_from=100)
    log.claim(ANNE)
    assert rules(log.create(BERT, 5)) == [Rule.COMMIT_NOT_OWNER]


# Owners


def test_the_end_of_a_claim_says_how_it_ended() -> None:
    log = Log()
    log.join(ANNE)
    log.claim(ANNE)
    released = log.delete(ANNE, OWNER)
    log.claim(ANNE)
    taken = log.delete(BERT, OWNER)
    log.claim(ANNE)
    [expired, gone] = log.end(ANNE, SessionEnd.EXPIRED)
    assert isinstance(released, OwnerChange)
    assert isinstance(taken, OwnerChange)
    assert isinstance(expired, OwnerChange)
    assert isinstance(gone, MemberChange)
    assert (released.action, taken.action, expired.action) == ("released", "taken", "expired")
    assert gone.action is MemberAction.EXPIRED
    assert [event.holder and event.holder.id for event in (released, taken, expired)] == ["anne"] * 3
    assert [event.instance and event.instance.id for event in (released, taken, expired)] == ["anne", None, "anne"]
    assert rules(released) == rules(expired) == []
    assert rules(taken) == [Rule.CLAIM_TAKEN]


def test_a_session_that_its_client_has_closed_is_not_expired() -> None:
    log = Log()
    log.join(ANNE)
    log.claim(ANNE)
    assert [event.action for event in log.end(ANNE, SessionEnd.CLOSED)] == ["closed", "closed"]  # type: ignore[union-attr]
    assert log.end(BERT, SessionEnd.CLOSED) == []


def test_nodes_that_only_the_server_lists_end_with_their_session() -> None:
    log = Log(complete_from=100)
    owner, member = log.end(ANNE, SessionEnd.EXPIRED, b"g/ids/anne", OWNER)
    assert isinstance(owner, OwnerChange)
    assert isinstance(member, MemberChange)
    assert (owner.owner.id, owner.owner.session) == ("", ANNE)
    assert (member.member.id, member.member.session) == ("anne", ANNE)


def test_it_is_unknown_how_an_unknown_claim_ended() -> None:
    gone, left = Log(complete_from=9).delete(ANNE, OWNER), Log(complete_from=9).delete(ANNE, b"g/ids/anne")
    assert isinstance(gone, OwnerChange)
    assert isinstance(left, MemberChange)
    assert (gone.action, left.action) == (OwnerAction.DELETED, MemberAction.DELETED)
    assert rules(gone) == []


def test_two_owners_in_differently_named_nodes_are_a_violation() -> None:
    log = Log()
    log.join(ANNE)
    log.join(BERT, "bert", b"orders")
    log.claim(ANNE)
    second = log.claim(BERT, "bert", b"g/owners/b'orders'/1001-0")
    assert [owner.id for owner in second.others] == ["anne-0"]
    [violation] = violations(second)
    assert (violation.rule, violation.dialect) == (Rule.TWO_OWNERS, Dialect.PYKAFKA)
    of_anne, of_bert = log.create(ANNE, 5), log.commit(BERT, 6, 1)
    assert (of_anne.owner and of_anne.owner.id, of_bert.owner and of_bert.owner.id) == ("anne-0", "bert")
    assert rules(of_anne) == rules(of_bert) == []
    assert log.commit(0xC, 7, 2).owner == of_anne.owner


def test_a_rewritten_owner_node_keeps_its_session() -> None:
    log = Log()
    log.join(ANNE)
    log.claim(ANNE)
    changed = log.change(BERT, ChangeKind.WRITTEN, OWNER, b"other", 1)
    assert isinstance(changed, OwnerChange)
    assert (changed.action, changed.owner.id, changed.owner.session) == (OwnerAction.CHANGED, "other", ANNE)
    assert log.create(ANNE, 5).is_of_owner


def test_an_owner_node_without_a_session_is_no_claim() -> None:
    log = Log()
    log.join(ANNE)
    log.change(ANNE, ChangeKind.CREATED, OWNER, b"anne")
    assert rules(log.create(ANNE, 5)) == [Rule.COMMIT_NOT_OWNER]


# Registrations


def test_a_registration_has_its_dialect_and_host() -> None:
    event = Log().join(ANNE, "g_app-3-1795255170109-ab12cd34")
    assert isinstance(event, MemberChange)
    assert (event.action, event.member.dialect, event.member.host) == (MemberAction.REGISTERED, Dialect.SCALA, "app-3")
    assert event.instance == event.member


def test_a_client_of_a_gateway_has_the_host_of_the_client() -> None:
    of_gateway = {"client": "zkgroups", "gateway": {"client_id": "c", "host": "h"}}
    event = Log().join(ANNE, "m", json.dumps(json.loads(SCALA) | of_gateway).encode())
    assert isinstance(event, MemberChange)
    assert (event.member.dialect, event.member.host) == (Dialect.GATEWAY, "h")


def test_a_malformed_registration_is_an_instance_without_a_dialect() -> None:
    log = Log()
    event = log.join(ANNE, "anne", b"{")
    assert isinstance(event, MemberChange)
    assert isinstance(event.member.read, MalformedNode)
    assert (event.member.registration, event.member.dialect) == (None, None)
    assert log.create(ANNE, 5).instance == event.member


def test_the_end_of_a_registration_says_how_it_ended() -> None:
    log = Log()
    actions = []
    for session in (ANNE, BERT):
        log.join(ANNE)
        event = log.delete(session, b"g/ids/anne")
        assert isinstance(event, MemberChange)
        actions.append(event.action)
    assert actions == [MemberAction.DEREGISTERED, MemberAction.REMOVED]


def test_a_changed_registration_counts_from_then_on() -> None:
    log = Log()
    log.join(ANNE)
    changed = log.change(BERT, ChangeKind.WRITTEN, b"g/ids/anne", b"orders", 1)
    assert isinstance(changed, MemberChange)
    assert (changed.action, changed.member.dialect, changed.instance) == (MemberAction.CHANGED, Dialect.PYKAFKA, None)
    instance = log.create(ANNE, 5).instance
    assert instance == changed.member


def test_of_several_instances_of_a_session_the_owner_has_committed() -> None:
    log = Log()
    for id in ("zoe", "anne", "bert"):
        log.join(ANNE, id)
    log.claim(ANNE, "bert-1")
    first = log.create(ANNE, 5)
    assert first.instance is not None
    assert first.instance.id == "bert"
    other = log.create(ANNE, 5, b"g/offsets/orders/1")
    assert other.instance is not None
    assert other.instance.id == "anne"  # the first one, by name


def test_a_registration_in_another_group_does_not_count() -> None:
    log = Log()
    log.join(ANNE)
    assert log.create(ANNE, 5, b"h/offsets/orders/0").instance is None


# Groups


def test_the_creation_and_the_deletion_of_a_group_are_events() -> None:
    log = Log()
    made, gone = log.change(ANNE, ChangeKind.CREATED, b"g"), log.delete(ANNE, b"g")
    assert isinstance(made, GroupChange)
    assert isinstance(gone, GroupChange)
    assert (made.action, gone.action) == (GroupAction.CREATED, GroupAction.DELETED)
    assert log.tracker.groups == {"g"}


def test_other_groups_are_ignored() -> None:
    tracker = GroupsTracker({"g"}.__contains__)
    assert tracker.apply([NodeChange(1, 0, ANNE, ChangeKind.CREATED, b"gg/offsets/t/0", b"5")]) == []
    assert tracker.apply([NodeChange(1, 0, ANNE, ChangeKind.CREATED, b"g/offsets/t/0", b"5")]) != []
    assert tracker.groups == {"g"}


# The beginning


def test_a_history_begins_with_known_nodes() -> None:
    nodes = [
        KnownNode(b"g", b"", 0, 0, 1, 1),
        KnownNode(b"g/owners/orders/0", b"anne-0", ANNE, 0, 3, 30),
        KnownNode(b"g/ids/anne", SCALA, ANNE, 0, 2, 20),
        KnownNode(b"g/offsets/orders/0", b"5", 0, 7, 4, 40),
    ]
    log = Log(*nodes)
    commit = log.commit(ANNE, 6, 8)
    assert (commit.before, commit.gap, commit.is_complete, commit.is_of_owner) == (5, False, True, True)
    assert commit.instance is not None
    assert (commit.instance.id, commit.instance.registered_zxid, commit.instance.registered_ms) == ("anne", 2, 20)
    owner, _ = log.end(ANNE, SessionEnd.EXPIRED)
    assert isinstance(owner, OwnerChange)
    assert (owner.owner.claimed_zxid, owner.owner.claimed_ms) == (3, 30)
    log.tracker.begin([])
    after = log.commit(ANNE, 9, 9)
    assert (after.gap, after.is_complete, after.instance) == (True, False, None)


def test_nothing_is_remembered_of_nodes_that_are_gone() -> None:
    """Memory is bounded by the nodes that exist."""
    log = Log()
    for number in range(3):
        log.join(ANNE)
        log.claim(ANNE)
        log.create(ANNE, 5)
        log.delete(ANNE, OFFSET)
        if number % 2:
            log.delete(ANNE, OWNER)
            log.delete(ANNE, b"g/ids/anne")
        else:
            log.end(ANNE, SessionEnd.CLOSED)
    known = log.tracker._known
    tables = {name: table for name, table in vars(known).items() if isinstance(table, dict)}
    assert len(tables) == 5
    assert not any(tables.values())


# Periods


@pytest.mark.parametrize("text", ["", "yesterday", "0x", "0x" + "1" * 17, "31", "2026-01-31"])
def test_other_texts_are_no_moments(text: str) -> None:
    with pytest.raises(InvalidOptionError, match="the moment"):
        Moment.parse(text, "the moment")


def test_a_period_includes_both_of_its_ends() -> None:
    zxids = Period(Moment(zxid=5), Moment(zxid=7))
    assert [zxid for zxid in range(10) if zxids.has(zxid, 0)] == [5, 6, 7]
    times = Period(Moment(time_ms=5), Moment(time_ms=7))
    assert [time for time in range(10) if times.has(0, time)] == [5, 6, 7]
    assert Period().has(0, 0)
