"""Following one group: no offset goes back, and at the end both sides agree. And what stops a live move."""

from __future__ import annotations

from functools import partial

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tests.migration.rows import row
from zkgroups import CommittedOffset, Dialect, MalformedNode, RegisteredInstance, Registration, TopicPartition
from zkgroups.core.kafka_values import NativeOffset, OffsetRange
from zkgroups.core.migration.follow_rules import (
    FollowedOffsets,
    LeadingOffset,
    apply_problem,
    copy_forward,
    offsets_to_return,
    other_members,
    plan_problem,
    return_problem,
    verify_problem,
)
from zkgroups.core.migration.obstacles import Obstacle, ObstacleKind, offset_refused, some_texts
from zkgroups.core.migration.offset_decision import (
    Action,
    Decision,
    NoLog,
    NoOffset,
    Policy,
    Reason,
    Rule,
    Unknown,
    decide,
)
from zkgroups.core.migration.plan_rows import Match, MatchRow, MigrationStep, Outcome, ReportRow
from zkgroups.core.znodes.values import CurrentOffset

ATS = [TopicPartition("orders", number) for number in range(3)]
P0, P1, P2 = ATS
LOG = OffsetRange(0, 100)


def copy(_at: TopicPartition, leading: int | NoOffset, target: int | Unknown | None) -> Decision:
    return decide(leading, LOG, target)


class Following(RuleBasedStateMachine):
    """Consumers commit to the leading side, sometimes lower offsets. Copying is interleaved step by step."""

    def __init__(self) -> None:
        super().__init__()
        self.ahead: dict[TopicPartition, LeadingOffset] = {}
        self.seen: dict[TopicPartition, LeadingOffset] = {}
        self.target: dict[TopicPartition, int] = {}
        self.highest: dict[TopicPartition, int] = {}
        self.stamp = 0
        self.offsets = FollowedOffsets()
        self.had: set[TopicPartition] = set()
        self.decided: dict[TopicPartition, int] = {}

    @rule(at=st.sampled_from(ATS), number=st.integers(0, 100))
    def commit(self, at: TopicPartition, number: int) -> None:
        self.stamp += 1
        self.ahead[at] = LeadingOffset(number, self.stamp)

    @rule(at=st.sampled_from(ATS))
    def spoil(self, at: TopicPartition) -> None:
        self.stamp += 1
        self.ahead[at] = LeadingOffset(NoOffset.UNREADABLE, self.stamp)

    @rule(at=st.sampled_from(ATS))
    def forget(self, at: TopicPartition) -> None:
        self.ahead.pop(at, None)

    @rule(at=st.sampled_from(ATS), number=st.integers(0, 100))
    def meddle(self, at: TopicPartition, number: int) -> None:
        """Another client commits to the target, so that earlier decisions are no longer written."""
        self.target[at] = max(number, self.target.get(at, 0))
        self.decided = {}

    @rule(limit=st.none() | st.integers(0, 2), read=st.booleans())
    def decide(self, limit: int | None, read: bool) -> None:
        if read:
            self.look()
        self.decided = self.offsets.decide(copy, self.target, limit)
        assert limit is None or len(self.decided) <= limit

    def look(self) -> None:
        self.seen = dict(self.ahead)
        self.had |= {at for at, ahead in self.ahead.items() if isinstance(ahead.number, int)}
        self.offsets.update(self.ahead)

    @precondition(lambda self: self.decided)
    @rule(data=st.data())
    def write(self, data: st.DataObject) -> None:
        """The answer for each offset may be lost, before or after the write."""
        for at, number in self.decided.items():
            answer = data.draw(st.sampled_from(["written", "lost before", "lost after"]))
            if answer != "lost before":
                assert number > self.target.get(at, -1)
                self.target[at] = number
            if answer == "written":
                self.offsets.record_write(at, number)
            else:
                self.offsets.record_failure(at, "no answer")
        self.decided = {}

    @invariant()
    def nothing_goes_back(self) -> None:
        for at, number in self.target.items():
            assert number >= self.highest.get(at, 0)
            self.highest[at] = number

    @invariant()
    def nothing_is_forgotten(self) -> None:
        """Every offset that was read is written or due."""
        for at, ahead in self.seen.items():
            if isinstance(ahead.number, int) and at not in self.offsets.due:
                assert self.target.get(at, -1) >= ahead.number

    @rule()
    def finish(self) -> None:
        """All members have left: after the last pass both sides agree, or obstacles name the differences."""
        self.look()
        self.offsets.make_all_due()
        for at, number in self.offsets.decide(copy, self.target).items():
            self.target[at] = number
            self.offsets.record_write(at, number)
        self.decided = {}
        agreement = self.offsets.check_agreement(copy, self.target)
        differ = {at for at, ahead in self.ahead.items() if ahead.number != self.target.get(at)}
        differ |= self.had - self.ahead.keys()
        assert agreement.open == []
        assert {obstacle.names[0] for obstacle in agreement.obstacles} == {str(at) for at in differ}
        assert self.offsets.behind == 0


TestFollowing = Following.TestCase
TestFollowing.settings = settings(max_examples=150, stateful_step_count=25, deadline=None)


def seen(**numbers: int | None) -> dict[TopicPartition, LeadingOffset]:
    found = {TopicPartition(topic, 0): number for topic, number in numbers.items()}
    return {at: LeadingOffset(NoOffset.UNREADABLE if each is None else each, each or 0) for at, each in found.items()}


A, B, C = (TopicPartition(topic, 0) for topic in "abc")


def following(*planned: TopicPartition, **numbers: int | None) -> FollowedOffsets:
    offsets = FollowedOffsets(planned=list(planned))
    offsets.update(seen(**numbers))
    return offsets


def test_only_changed_offsets_are_due_and_behind_counts_the_missing_messages() -> None:
    offsets = following(a=5, b=7)
    assert offsets.decide(copy, {A: 3, B: 7}) == {A: 5}
    assert (list(offsets.due), offsets.behind) == ([A], 2)
    offsets.record_write(A, 5)
    assert not offsets.update(seen(a=5, b=7))
    assert (list(offsets.due), offsets.behind) == ([], 0)
    assert offsets.update(seen(a=5, b=9))
    assert (list(offsets.due), offsets.behind) == ([B], 2)


def test_offsets_over_the_limit_wait_in_the_order_in_which_they_changed() -> None:
    offsets = following(a=1, b=2, c=3)
    for at in (A, B, C):
        [(found, number)] = offsets.decide(copy, {}, 1).items()
        assert found == at
        offsets.record_write(at, number)
    assert offsets.decide(copy, {}, 1) == {}


def test_a_refused_offset_stays_due_and_a_skipped_one_does_not_count_as_behind() -> None:
    def by_topic(at: TopicPartition, leading: int | NoOffset, target: int | Unknown | None) -> Decision:
        return decide(leading, NoLog.NO_TOPIC if at == B else LOG, target, Rule(on_unreadable=Policy.SKIP))

    offsets, refused = following(a=101, b=50, c=None), [offset_refused(A, Reason.PAST_END)]
    assert offsets.decide(by_topic, {}) == {}
    assert (list(offsets.due), offsets.behind, offsets.failures) == ([A], 101, refused)
    assert str(refused[0]) == "a/0: past the end"
    agreement = offsets.check_agreement(by_topic, {})
    assert (agreement.open, agreement.obstacles) == ([], refused)
    assert agreement.summary == "1 skipped: no offset; 1 skipped: no such topic"
    offsets.update(seen(a=100, b=50, c=None))
    assert offsets.failures == []


def test_a_planned_offset_without_its_log_is_an_obstacle_until_the_group_is_done() -> None:
    def without_log(_at: TopicPartition, ahead: int | NoOffset, there: int | Unknown | None) -> Decision:
        return decide(ahead, gone, there, Rule(Policy.SKIP))

    for gone in (NoLog.NO_TOPIC, NoLog.NO_PARTITION, NoLog.NEWER):
        offsets, refused = following(A, a=5, b=5), [offset_refused(A, Reason(gone))]
        assert offsets.decide(without_log, {}) == {}
        assert (list(offsets.due), offsets.failures) == ([A], refused)
        agreement = offsets.check_agreement(without_log, {})
        assert (agreement.obstacles, agreement.summary) == (refused, f"1 skipped: {gone}")
        offsets.settle()
        assert offsets.check_agreement(without_log, {}).summary == f"2 skipped: {gone}"


def chosen(rule: Rule, _at: TopicPartition, ahead: int | NoOffset, there: int | Unknown | None) -> Decision:
    return decide(ahead, LOG, there, rule)


def test_an_offset_without_a_number_or_past_the_end_is_treated_as_the_operator_chose() -> None:
    for policy, number, writes, reason, summary in (
        (Policy.BLOCK, None, {}, Reason.NO_OFFSET, ""),
        (Policy.SKIP, None, {}, None, "1 skipped: no offset"),
        (Policy.EARLIEST, None, {C: 0}, None, ""),
        (Policy.LATEST, None, {C: 100}, None, ""),
        (Policy.LATEST, 500, {C: 100}, None, ""),
    ):
        decided = partial(chosen, Rule(policy, policy))
        offsets = following(c=number)
        assert offsets.decide(decided, {}) == writes
        for at, written in writes.items():
            offsets.record_write(at, written)
        agreement = offsets.check_agreement(decided, writes)
        blocked = [offset_refused(C, reason)] if reason else []
        assert (agreement.open, agreement.obstacles, agreement.summary) == ([], blocked, summary)
        assert offsets.failures == blocked


def test_a_target_that_is_ahead_is_an_obstacle_unless_it_was_when_the_plan_was_made() -> None:
    offsets = FollowedOffsets({A: 9})
    offsets.update(seen(a=5, b=5))
    assert offsets.decide(copy, {A: 9, B: 9}) == {}
    agreement = offsets.check_agreement(copy, {A: 9, B: 9})
    assert list(map(str, agreement.obstacles)) == ["b/0: expected 5, found 9"]
    assert agreement.summary == "1 skipped: target ahead"
    assert "a/0" in str(offsets.check_agreement(copy, {A: 8, B: 5}).obstacles)


def test_a_deleted_offset_is_an_obstacle_until_both_sides_agree_and_again_after_a_new_write() -> None:
    offsets = FollowedOffsets(planned=[A])
    assert offsets.failures == []
    offsets.update(seen(b=5, c=None))
    deleted = [Obstacle(ObstacleKind.OFFSET_DELETED, (str(at),), 1) for at in (A, B)]
    assert (offsets.failures, offsets.due) == (deleted[:1], [B, C])
    offsets.update({})
    assert offsets.check_agreement(copy, {A: 5, B: 5}).obstacles == deleted
    offsets.update(seen(a=1, b=2))
    offsets.settle()
    offsets.update(seen(a=1, b=3))
    offsets.update({})
    assert offsets.check_agreement(copy, {}).obstacles == deleted[1:]


def test_after_an_incomplete_read_missing_offsets_count_as_unchanged() -> None:
    offsets = FollowedOffsets(planned=[C])
    offsets.update(seen(a=5, b=7))
    assert offsets.update(seen(b=9), complete=False)
    assert (offsets.failures, offsets.decide(copy, {})) == ([], {A: 5, B: 9})
    assert not offsets.update({}, complete=False)
    assert offsets.update(seen(b=9))
    assert Obstacle(ObstacleKind.OFFSET_DELETED, ("a/0",), 1) in offsets.failures


def test_an_offset_with_an_unknown_log_stays_open_and_is_not_an_obstacle() -> None:
    offsets = FollowedOffsets()
    offsets.update(seen(a=5))
    found = offsets.check_agreement(lambda _, ahead, there: decide(ahead, NoLog.UNKNOWN, there), {A: 5})
    assert (found.open, found.obstacles) == ([A], [])


def test_on_the_way_back_offsets_are_copied_forward_only() -> None:
    found = [copy_forward(A, 5, there) for there in (None, 4, 5, 6, Unknown.TARGET)]
    others = [Reason.ALREADY_THERE, Reason.TARGET_AHEAD, Reason.TARGET_UNKNOWN]
    assert [each.reason for each in found] == [Reason.UNCHANGED, Reason.UNCHANGED, *others]
    assert [each.offset for each in found] == [5, 5, None, None, None]


def test_a_message_names_three_of_many_obstacles() -> None:
    found = [Obstacle(ObstacleKind.OTHER_MARK, detail=letter) for letter in "abcde"]
    assert some_texts(found[:3]) == "a; b; c"
    assert some_texts(found[:4]) == "a; b; c; and 1 more"
    assert some_texts(found) == "a; b; c; and 2 more"


def test_the_following_side_has_a_copy_if_no_offset_is_lower_there() -> None:
    offsets = FollowedOffsets()
    assert not offsets.are_copied_to({})
    offsets.update(seen(a=5, b=7))
    assert offsets.are_copied_to({A: 5, B: 8})
    assert not offsets.are_copied_to({A: 5, B: 6})
    assert not offsets.are_copied_to({A: 5})
    assert not offsets.are_copied_to({A: 5, B: None})
    offsets.update(seen(a=5, b=None))
    assert offsets.are_copied_to({A: 5})


# Live moves

P3 = TopicPartition("orders", 3)
COMMIT = Decision(Action.COMMIT, Reason.UNCHANGED, 7)
AHEAD = Decision(Action.SKIP, Reason.TARGET_AHEAD)


def committed(offset: int, at: TopicPartition = P0) -> NativeOffset:
    return NativeOffset("billing", at, offset)


def found(offset: int, at: TopicPartition = P0) -> CommittedOffset:
    return CommittedOffset("billing", at, offset)


def test_members_that_cannot_move_with_their_group_are_named_with_their_clients() -> None:
    instances = [
        RegisteredInstance("through-gateway", 1, Registration({"orders": 1}, dialect=Dialect.GATEWAY)),
        RegisteredInstance("consumer", 2, Registration({"orders": 1}, moves=True)),
        RegisteredInstance("member", 2, Registration({"orders": 1})),
        RegisteredInstance("scala", 2, Registration({"orders": 1}, dialect=Dialect.SCALA)),
        RegisteredInstance("odd", 3, MalformedNode("/consumers/billing/ids/odd", b"?", "not JSON")),
    ]
    assert other_members(instances) == [
        f"member ({Dialect.ZKGROUPS})",
        f"scala ({Dialect.SCALA})",
        "odd (unknown client)",
    ]


def test_a_move_to_the_brokers_stops_if_they_have_higher_offsets() -> None:
    moving = row("billing", "billing", P0, COMMIT, None, 7)
    ahead = row("billing", "billing", P1, AHEAD, committed(9, P1), 7)
    assert plan_problem([], members_leave=False) == plan_problem([moving], members_leave=False) == ""
    problem = "the brokers have higher offsets: orders/1 (9 > 7); delete the group on the brokers first"
    assert plan_problem([moving, ahead], members_leave=True) == problem


def test_registered_members_do_not_stop_a_move_before_they_have_left() -> None:
    legacy = Obstacle(ObstacleKind.LEGACY_INSTANCES, ("old",), 1)
    [moving] = [row("billing", "billing", P0, COMMIT, None, 7)._replace(obstacles=(legacy,))]
    assert plan_problem([moving], members_leave=True) == ""
    assert plan_problem([moving], members_leave=False) == str(legacy)
    other = moving._replace(obstacles=(legacy, Obstacle(ObstacleKind.OTHER_MARK, detail="of another plan")))
    assert "of another plan" in plan_problem([other], members_leave=True)


def reported(outcome: Outcome, detail: str = "") -> ReportRow:
    return ReportRow("plan", MigrationStep.APPLY, 0, "billing", "orders", 0, "billing", None, None, outcome, detail)


def test_offsets_that_did_not_arrive_are_a_problem() -> None:
    arrived = [reported(outcome) for outcome in (Outcome.WRITTEN, Outcome.THERE, Outcome.SKIPPED)]
    assert apply_problem(arrived) == ""
    failed = [reported(Outcome.FAILED, "no permission"), reported(Outcome.FAILED, "no permission")]
    assert apply_problem([*arrived, *failed, reported(Outcome.LEFT)]) == "no permission; left"


def compared(match: Match, partition: int = 0) -> MatchRow:
    return MatchRow("plan", "billing", "orders", partition, "billing", 7, 7, 7, match, "either", "")


def test_offsets_that_differ_after_the_copy_are_a_problem() -> None:
    assert verify_problem([]) == verify_problem([compared(Match.EQUAL)]) == ""
    problem = "both sides differ: orders-1 (target behind)"
    assert verify_problem([compared(Match.EQUAL), compared(Match.BEHIND, 1)]) == problem


def test_a_move_to_zookeeper_stops_if_it_has_higher_offsets() -> None:
    there = {P0: committed(7), P1: committed(7, P1)}
    assert return_problem(there, {P0: found(7), P1: found(6, P1)}) == ""
    problem = "ZooKeeper has higher offsets: orders/0 (8 > 7); delete these in ZooKeeper first"
    assert return_problem(there, {P0: found(8), P1: found(7, P1)}) == problem


def test_only_offsets_that_zookeeper_does_not_have_are_returned() -> None:
    there = {at: committed(7, at) for at in (P0, P1, P2, P3)}
    malformed = MalformedNode("/consumers/billing/offsets/orders/3", b"x", "not a decimal number")
    current: dict[TopicPartition, CurrentOffset] = {P0: found(7), P1: found(6, P1), P2: None, P3: malformed}
    assert offsets_to_return(there, current) == {P1: 7, P2: 7, P3: 7}
