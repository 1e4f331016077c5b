"""Changes of nodes become the right events, also where earlier changes are missing."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import count
from typing import Any

import pytest

from zkgroups import Dialect, MalformedNode
from zkgroups.core.history.changes import ChangeKind, KnownNode, Moment, NodeChange, Period, SessionEnd
from zkgroups.core.history.events import (
    CommitAction,
    GroupAction,
    HistoryEvent,
    MemberAction,
    OwnerAction,
    Rule,
    violations,
)
from zkgroups.core.history.tracker import GroupsTracker
from zkgroups.exceptions import InvalidOptionError

from .groups import SCALA

ANNE, BERT = 0xA, 0xB
"""The sessions of two members."""
OFFSET, OWNER = b"g/offsets/orders/0", b"g/owners/orders/0"


class Log:
    """A tracker, and shorthands for changes in a log. With `claimed`, Anne is registered and owns the partition."""

    def __init__(self, *nodes: KnownNode, complete_from: int = 0, claimed: bool = False) -> None:
        self.tracker = GroupsTracker()
        self.tracker.begin(nodes)
        self.tracker.complete_from(complete_from)
        self._zxids = count(1)
        if claimed:
            self.join(ANNE)
            self.claim(ANNE)

    def changes(
        self, session: int, kind: ChangeKind, path: bytes = b"", *data: object, **more: object
    ) -> Sequence[HistoryEvent]:
        zxid = next(self._zxids)
        return self.tracker.apply([NodeChange(zxid, 1000 * zxid, session, kind, path, *data, **more)])  # type: ignore[arg-type]

    def change(self, session: int, kind: ChangeKind, path: bytes = b"", *data: object, **more: object) -> Any:
        [event] = self.changes(session, kind, path, *data, **more)
        return event

    def join(self, session: int, id: str = "anne", data: bytes = SCALA) -> Any:
        return self.change(session, ChangeKind.CREATED, f"g/ids/{id}".encode(), data, is_ephemeral=True)

    def claim(self, session: int, id: str = "anne-0", path: bytes = OWNER) -> Any:
        return self.change(session, ChangeKind.CREATED, path, id.encode(), is_ephemeral=True)

    def create(self, session: int, offset: int, path: bytes = OFFSET) -> Any:
        return self.change(session, ChangeKind.CREATED, path, b"%d" % offset)

    def commit(self, session: int, offset: int | bytes, version: int, **more: object) -> Any:
        data = offset if isinstance(offset, bytes) else b"%d" % offset
        return self.change(session, ChangeKind.WRITTEN, OFFSET, data, version, **more)

    def delete(self, session: int, path: bytes) -> Any:
        return self.change(session, ChangeKind.DELETED, path)

    def end(self, session: int, end: SessionEnd, *ended: bytes) -> Sequence[Any]:
        return self.changes(session, ChangeKind.SESSION_ENDED, end=end, ended=ended)


def rules(event: HistoryEvent) -> list[Rule]:
    return [violation.rule for violation in violations(event)]


# Commits


def test_a_commit_has_the_offset_before_the_instance_and_the_owner() -> None:
    log = Log(claimed=True)
    first, second = log.create(ANNE, 5), log.commit(ANNE, 7, 1)
    assert (first.action, first.before, first.offset, first.version) == (CommitAction.CREATED, None, 5, 0)
    assert (second.action, second.before, second.offset, second.version) == (CommitAction.COMMITTED, 5, 7, 1)
    assert (second.group, second.topic, second.partition) == ("g", "orders", 0)
    assert (second.instance.id, second.instance.dialect, second.instance.session) == ("anne", Dialect.SCALA, ANNE)
    assert (second.owner.id, second.owner.session, second.owner.claimed_zxid) == ("anne-0", ANNE, 2)
    assert second.is_of_owner
    assert rules(first) == rules(second) == []


def test_an_offset_that_went_back_was_deleted_or_is_malformed_is_a_violation() -> None:
    log = Log(claimed=True)
    log.create(ANNE, 5)
    back = log.commit(ANNE, 4, 1)
    assert (back.went_back, rules(back)) == (True, [Rule.WENT_BACK])
    assert not log.commit(ANNE, 4, 2).went_back
    bad = log.commit(ANNE, b"7 ", 3)
    assert (bad.before, bad.offset, bad.problem) == (4, None, "not a decimal number")
    assert rules(bad) == [Rule.MALFORMED]
    after = log.commit(ANNE, b"+6", 4)
    assert (after.before, after.offset, after.gap) == (None, 6, False)
    gone = log.delete(ANNE, OFFSET)
    assert (gone.action, gone.before, gone.offset, gone.gap) == (CommitAction.DELETED, 6, None, False)
    assert rules(gone) == [Rule.DELETED]
    again = log.create(ANNE, 1)
    assert (again.before, again.gap, again.went_back) == (None, False, False)


def test_what_does_not_follow_the_known_state_is_a_gap() -> None:
    log = Log()
    assert log.commit(ANNE, 5, 3).gap
    assert not log.commit(ANNE, 6, 4).gap
    later = log.commit(ANNE, 2, 6)
    assert (later.gap, later.before, later.went_back) == (True, None, False)
    assert not log.commit(ANNE, 7, 8, writes=2).gap  # written twice in one transaction
    assert log.create(ANNE, 3).gap, "the node was known"
    assert Log().delete(ANNE, OFFSET).gap, "the node was unknown"


def test_nodes_that_are_no_partitions_have_no_events() -> None:
    log = Log()
    for path in ("offsets", "offsets/orders", "offsets/orders/x", "owners/orders/07", "offsets/t/0/deeper"):
        assert log.changes(ANNE, ChangeKind.CREATED, f"g/{path}".encode(), b"5") == []
    assert log.changes(ANNE, ChangeKind.WRITTEN, b"g", b"") == []


def test_a_commit_without_the_claim_or_without_a_registration_is_a_violation() -> None:
    log = Log(claimed=True)
    log.join(BERT, "bert")
    [violation] = violations(log.create(BERT, 5))
    assert violation.rule is Rule.COMMIT_NOT_OWNER
    assert violation.text == "session 0xb committed 5, but 'anne-0' of session 0xa owned the partition"
    assert (violation.by and violation.by.id, violation.dialect) == ("bert", Dialect.SCALA)
    unowned = Log()
    unowned.join(ANNE)
    assert rules(unowned.create(ANNE, 5)) == [Rule.COMMIT_UNOWNED]
    unregistered = Log()
    assert rules(unregistered.claim(ANNE)) == [Rule.CLAIM_UNREGISTERED]
    assert rules(unregistered.create(ANNE, 5)) == [Rule.COMMIT_UNREGISTERED]


def test_nothing_is_a_violation_that_may_be_due_to_missing_transactions() -> None:
    log = Log(complete_from=4)
    assert rules(log.claim(ANNE)) == rules(log.create(ANNE, 5)) == rules(log.delete(ANNE, OWNER)) == []
    assert rules(log.commit(ANNE, 6, 1)) == []
    assert rules(log.commit(ANNE, 7, 2)) == [Rule.COMMIT_UNOWNED]
    known = Log(complete_from=100)
    known.claim(ANNE)
    assert rules(known.create(BERT, 5)) == [Rule.COMMIT_NOT_OWNER], "the owner is known"


# Owners


def test_the_end_of_a_claim_says_how_it_ended() -> None:
    log = Log(claimed=True)
    released = log.delete(ANNE, OWNER)
    log.claim(ANNE)
    taken = log.delete(BERT, OWNER)
    log.claim(ANNE)
    expired, gone = log.end(ANNE, SessionEnd.EXPIRED)
    assert gone.action is MemberAction.EXPIRED
    ends = (released, taken, expired)
    assert [each.action for each in ends] == ["released", "taken", "expired"]
    assert [each.holder.id for each in ends] == ["anne"] * 3
    assert [each.instance and each.instance.id for each in ends] == ["anne", None, "anne"]
    assert [rules(each) for each in ends] == [[], [Rule.CLAIM_TAKEN], []]
    closed = Log(claimed=True)
    assert [event.action for event in closed.end(ANNE, SessionEnd.CLOSED)] == ["closed", "closed"]
    assert closed.end(BERT, SessionEnd.CLOSED) == []


def test_of_nodes_whose_creation_is_missing_only_the_session_and_the_name_are_known() -> None:
    owner, member = Log(complete_from=100).end(ANNE, SessionEnd.EXPIRED, b"g/ids/anne", OWNER)
    assert (owner.owner.id, owner.owner.session) == ("", ANNE)
    assert (member.member.id, member.member.session) == ("anne", ANNE)
    gone, left = Log(complete_from=9).delete(ANNE, OWNER), Log(complete_from=9).delete(ANNE, b"g/ids/anne")
    assert (gone.action, left.action) == (OwnerAction.DELETED, MemberAction.DELETED)
    assert rules(gone) == []


def test_two_owners_in_differently_named_nodes_are_a_violation() -> None:
    log = Log(claimed=True)
    log.join(BERT, "bert", b"orders")
    second = log.claim(BERT, "bert", b"g/owners/b'orders'/1001-0")
    assert [owner.id for owner in second.others] == ["anne-0"]
    [violation] = violations(second)
    assert (violation.rule, violation.dialect) == (Rule.TWO_OWNERS, Dialect.PYKAFKA)
    of_anne, of_bert = log.create(ANNE, 5), log.commit(BERT, 6, 1)
    assert (of_anne.owner.id, of_bert.owner.id) == ("anne-0", "bert")
    assert rules(of_anne) == rules(of_bert) == []
    assert log.commit(0xC, 7, 2).owner == of_anne.owner


def test_a_rewritten_owner_node_keeps_its_session_and_one_without_a_session_is_no_claim() -> None:
    log = Log(claimed=True)
    changed = log.change(BERT, ChangeKind.WRITTEN, OWNER, b"other", 1)
    assert (changed.action, changed.owner.id, changed.owner.session) == (OwnerAction.CHANGED, "other", ANNE)
    assert log.create(ANNE, 5).is_of_owner
    persistent = Log()
    persistent.join(ANNE)
    persistent.change(ANNE, ChangeKind.CREATED, OWNER, b"anne")
    assert rules(persistent.create(ANNE, 5)) == [Rule.COMMIT_NOT_OWNER]


# Registrations


def test_a_registration_has_its_dialect_and_host() -> None:
    event = Log().join(ANNE, "g_app-3-1795255170109-ab12cd34")
    assert (event.action, event.member.dialect, event.member.host) == (MemberAction.REGISTERED, Dialect.SCALA, "app-3")
    assert event.instance == event.member
    of_gateway = {"client": "zkgroups", "gateway": {"client_id": "c", "host": "h"}}
    event = Log().join(ANNE, "m", json.dumps(json.loads(SCALA) | of_gateway).encode())
    assert (event.member.dialect, event.member.host) == (Dialect.GATEWAY, "h")
    log = Log()
    event = log.join(ANNE, "anne", b"{")
    assert isinstance(event.member.read, MalformedNode)
    assert (event.member.registration, event.member.dialect) == (None, None)
    assert log.create(ANNE, 5).instance == event.member


def test_the_end_of_a_registration_says_how_it_ended_and_a_changed_one_counts_from_then_on() -> None:
    log = Log()
    actions = []
    for session in (ANNE, BERT):
        log.join(ANNE)
        actions.append(log.delete(session, b"g/ids/anne").action)
    assert actions == [MemberAction.DEREGISTERED, MemberAction.REMOVED]
    log.join(ANNE)
    changed = log.change(BERT, ChangeKind.WRITTEN, b"g/ids/anne", b"orders", 1)
    assert (changed.action, changed.member.dialect, changed.instance) == (MemberAction.CHANGED, Dialect.PYKAFKA, None)
    assert log.create(ANNE, 5).instance == changed.member
    assert log.create(ANNE, 5, b"h/offsets/orders/0").instance is None, "it is registered in another group"


def test_of_several_instances_of_a_session_the_owner_has_committed() -> None:
    log = Log()
    for id in ("zoe", "anne", "bert"):
        log.join(ANNE, id)
    log.claim(ANNE, "bert-1")
    assert log.create(ANNE, 5).instance.id == "bert"
    assert log.create(ANNE, 5, b"g/offsets/orders/1").instance.id == "anne"  # the first one, by name


# Groups


def test_the_creation_and_the_deletion_of_a_group_are_events_and_other_groups_are_ignored() -> None:
    log = Log()
    made, gone = log.change(ANNE, ChangeKind.CREATED, b"g"), log.delete(ANNE, b"g")
    assert (made.action, gone.action) == (GroupAction.CREATED, GroupAction.DELETED)
    assert log.tracker.groups == {"g"}
    tracker = GroupsTracker({"g"}.__contains__)
    paths = (b"gg/offsets/t/0", b"g/offsets/t/0")
    found = [tracker.apply([NodeChange(1, 0, ANNE, ChangeKind.CREATED, path, b"5")]) for path in paths]
    assert (len(found[0]), len(found[1]), tracker.groups) == (0, 1, {"g"})


def test_a_history_begins_with_known_nodes() -> None:
    log = Log(
        KnownNode(b"g", b"", 0, 0, 1, 1),
        KnownNode(OWNER, b"anne-0", ANNE, 0, 3, 30),
        KnownNode(b"g/ids/anne", SCALA, ANNE, 0, 2, 20),
        KnownNode(OFFSET, b"5", 0, 7, 4, 40),
    )
    commit = log.commit(ANNE, 6, 8)
    assert (commit.before, commit.gap, commit.is_complete, commit.is_of_owner) == (5, False, True, True)
    assert (commit.instance.id, commit.instance.registered_zxid, commit.instance.registered_ms) == ("anne", 2, 20)
    owner, _ = log.end(ANNE, SessionEnd.EXPIRED)
    assert (owner.owner.claimed_zxid, owner.owner.claimed_ms) == (3, 30)
    log.tracker.begin([])
    after = log.commit(ANNE, 9, 9)
    assert (after.gap, after.is_complete, after.instance) == (True, False, None)


def test_nothing_is_remembered_of_nodes_that_are_gone() -> None:
    """Memory is bounded by the nodes that exist: the tracker's own tables are empty."""
    log = Log()
    for ends in ([OFFSET], [OFFSET, OWNER, b"g/ids/anne"], [b"g/ids/anne", OWNER, OFFSET], [OFFSET]):
        log.join(ANNE)
        log.claim(ANNE)
        log.create(ANNE, 5)
        for path in ends:
            log.delete(ANNE, path)
        if len(ends) == 1:
            log.end(ANNE, SessionEnd.CLOSED)
        tables = {name: table for name, table in vars(log.tracker._known).items() if isinstance(table, dict)}
        assert len(tables) == 5
        assert not any(tables.values())


# Periods


def test_a_period_includes_both_of_its_ends() -> None:
    zxids, times = Period(Moment(zxid=5), Moment(zxid=7)), Period(Moment(time_ms=5), Moment(time_ms=7))
    assert [zxid for zxid in range(10) if zxids.has(zxid, 0)] == [5, 6, 7]
    assert [time for time in range(10) if times.has(0, time)] == [5, 6, 7]
    assert Period().has(0, 0)
    for text in ("", "yesterday", "0x", "0x" + "1" * 17, "31", "2026-01"):
        with pytest.raises(InvalidOptionError, match="the moment"):
            Moment.parse(text, "the moment")
