"""Following one group: no offset goes back, and at the end both sides agree."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from zkgroups import TopicPartition
from zkgroups.core.kafka_values import OffsetRange
from zkgroups.core.migration.follow_rules import FollowedOffsets, LeadingOffset, copy_forward
from zkgroups.core.migration.obstacles import Obstacle, ObstacleKind, offset_refused, some_texts
from zkgroups.core.migration.offset_decision import Decision, NoLog, OutOfRange, Reason, Rule, Unknown, decide

ATS = [TopicPartition("orders", number) for number in range(3)]
P0, P1, P2 = ATS
LOG = OffsetRange(0, 100)


def copy(_at: TopicPartition, leading: int, target: int | Unknown | None) -> Decision:
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
        self.ahead[at] = LeadingOffset(None, self.stamp)

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
        self.had |= {at for at, ahead in self.ahead.items() if ahead.number is not None}
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
            if ahead.number is not None and at not in self.offsets.due:
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
        differ = {at for at, ahead in self.ahead.items() if ahead.number not in (None, self.target.get(at))}
        differ |= self.had - self.ahead.keys()
        assert agreement.open == []
        assert {obstacle.names[0] for obstacle in agreement.obstacles} == {str(at) for at in differ}
        assert self.offsets.behind == 0


TestFollowing = Following.TestCase
TestFollowing.settings = settings(max_examples=150, stateful_step_count=25, deadline=None)


def seen(**numbers: int | None) -> dict[TopicPartition, LeadingOffset]:
    return {TopicPartition(topic, 0): LeadingOffset(number, number or 0) for topic, number in numbers.items()}


A, B, C = (TopicPartition(topic, 0) for topic in "abc")


def test_only_changed_offsets_are_due_and_behind_counts_the_missing_messages() -> None:
    offsets = FollowedOffsets()
    assert offsets.update(seen(a=5, b=7))
    assert offsets.decide(copy, {A: 3, B: 7}) == {A: 5}
    assert (list(offsets.due), offsets.behind) == ([A], 2)
    offsets.record_write(A, 5)
    assert not offsets.update(seen(a=5, b=7))
    assert (list(offsets.due), offsets.behind) == ([], 0)
    assert offsets.update(seen(a=5, b=9))
    assert (list(offsets.due), offsets.behind) == ([B], 2)


def test_offsets_over_the_limit_wait_in_the_order_in_which_they_changed() -> None:
    offsets = FollowedOffsets()
    offsets.update(seen(a=1, b=2, c=3))
    for at in (A, B, C):
        [(found, number)] = offsets.decide(copy, {}, 1).items()
        assert found == at
        offsets.record_write(at, number)
    assert offsets.decide(copy, {}, 1) == {}


def test_a_refused_offset_stays_due_and_a_skipped_one_does_not_count_as_behind() -> None:
    def by_topic(at: TopicPartition, leading: int, target: int | Unknown | None) -> Decision:
        return decide(leading, NoLog.NO_TOPIC if at == B else LOG, target)

    offsets = FollowedOffsets()
    offsets.update(seen(a=101, b=50, c=None))
    assert offsets.decide(by_topic, {}) == {}
    assert (list(offsets.due), offsets.behind, offsets.failures) == ([A], 101, [offset_refused(A, Reason.PAST_END)])
    agreement = offsets.check_agreement(by_topic, {})
    assert (agreement.open, agreement.obstacles) == ([], [offset_refused(A, Reason.PAST_END)])
    assert agreement.summary == "1 skipped: no offset; 1 skipped: no such topic"
    offsets.update(seen(a=100, b=50, c=None))
    assert offsets.failures == []


def test_a_planned_offset_without_its_log_is_an_obstacle_until_the_group_is_done() -> None:
    def without_log(_at: TopicPartition, ahead: int, there: int | Unknown | None) -> Decision:
        return decide(ahead, gone, there)

    for gone in (NoLog.NO_TOPIC, NoLog.NO_PARTITION, NoLog.NEWER):
        offsets = FollowedOffsets(planned=[A])
        offsets.update(seen(a=5, b=5))
        assert offsets.decide(without_log, {}) == {}
        assert (list(offsets.due), offsets.failures) == ([A], [offset_refused(A, Reason(gone))])
        agreement = offsets.check_agreement(without_log, {})
        assert (agreement.obstacles, agreement.summary) == ([offset_refused(A, Reason(gone))], f"1 skipped: {gone}")
        offsets.settle()
        assert offsets.check_agreement(without_log, {}).summary == f"2 skipped: {gone}"


def test_a_clamped_offset_is_done_when_the_target_has_it() -> None:
    def clamped(_at: TopicPartition, ahead: int, there: int | Unknown | None) -> Decision:
        return decide(ahead, LOG, there, Rule(OutOfRange.LATEST))

    offsets = FollowedOffsets()
    offsets.update(seen(a=500))
    assert offsets.decide(clamped, {}) == {A: 100}
    offsets.record_write(A, 100)
    agreement = offsets.check_agreement(clamped, {A: 100})
    assert (agreement.open, agreement.obstacles) == ([], [])


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
    assert (offsets.failures, offsets.due) == (deleted[:1], [B])
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
    reasons = [copy_forward(A, 5, there).reason for there in (None, 4, 5, 6, Unknown.TARGET)]
    assert reasons == [
        Reason.UNCHANGED,
        Reason.UNCHANGED,
        Reason.ALREADY_THERE,
        Reason.TARGET_AHEAD,
        Reason.TARGET_UNKNOWN,
    ]
    assert copy_forward(A, 5, None).offset == 5


def test_a_message_names_three_of_many_obstacles() -> None:
    found = [Obstacle(ObstacleKind.OTHER_MARK, detail=letter) for letter in "abcde"]
    assert some_texts(found[:3]) == "a; b; c"
    assert some_texts(found[:4]) == "a; b; c; and 1 more"
    assert some_texts(found) == "a; b; c; and 2 more"


def test_the_message_about_a_refused_offset_names_it_and_the_reason() -> None:
    assert str(offset_refused(P0, Reason.PAST_END)) == "orders/0: past the end"


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
