"""What is carried of a group that somebody works on: nothing ever goes back, and in the end both sides are equal."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from zkgroups import TopicPartition
from zkgroups.core.kafka_values import OffsetRange
from zkgroups.core.migration.follow_rules import Ahead, Carried, forward, some
from zkgroups.core.migration.rules import Decision, Log, OutOfRange, Reason, Rule, Unknown, decide

ATS = [TopicPartition("orders", number) for number in range(3)]
P0, P1, P2 = ATS
LOG = OffsetRange(0, 100)


def judge(_at: TopicPartition, ahead: int, there: int | Unknown | None) -> Decision:
    return decide(ahead, LOG, there)


class Following(RuleBasedStateMachine):
    """Consumers commit on the side ahead, and now and then one goes back; what is carried comes in steps between."""

    def __init__(self) -> None:
        super().__init__()
        self.ahead: dict[TopicPartition, Ahead] = {}
        self.seen: dict[TopicPartition, Ahead] = {}
        self.target: dict[TopicPartition, int] = {}
        self.highest: dict[TopicPartition, int] = {}
        self.sign = 0
        self.carried = Carried()
        self.had: set[TopicPartition] = set()
        self.decided: dict[TopicPartition, int] = {}

    @rule(at=st.sampled_from(ATS), number=st.integers(0, 100))
    def commit(self, at: TopicPartition, number: int) -> None:
        self.sign += 1
        self.ahead[at] = Ahead(number, self.sign)

    @rule(at=st.sampled_from(ATS))
    def spoil(self, at: TopicPartition) -> None:
        self.sign += 1
        self.ahead[at] = Ahead(None, self.sign)

    @rule(at=st.sampled_from(ATS))
    def forget(self, at: TopicPartition) -> None:
        self.ahead.pop(at, None)

    @rule(at=st.sampled_from(ATS), number=st.integers(0, 100))
    def meddle(self, at: TopicPartition, number: int) -> None:
        """Somebody else goes on there; what was decided by what was there before is not written any more."""
        self.target[at] = max(number, self.target.get(at, 0))
        self.decided = {}

    @rule(limit=st.none() | st.integers(0, 2), look=st.booleans())
    def decide(self, limit: int | None, look: bool) -> None:
        if look:
            self.see()
        self.decided = self.carried.decide(judge, self.target, limit)
        assert limit is None or len(self.decided) <= limit

    def see(self) -> None:
        self.seen = dict(self.ahead)
        self.had |= {at for at, ahead in self.ahead.items() if ahead.number is not None}
        self.carried.see(self.ahead)

    @precondition(lambda self: self.decided)
    @rule(data=st.data())
    def write(self, data: st.DataObject) -> None:
        """Of each the answer may be lost, before it was written or after."""
        for at, number in self.decided.items():
            fate = data.draw(st.sampled_from(["written", "lost before", "lost after"]))
            if fate != "lost before":
                assert number > self.target.get(at, -1)
                self.target[at] = number
            if fate == "written":
                self.carried.wrote(at, number)
            else:
                self.carried.failed(at, "no answer")
        self.decided = {}

    @invariant()
    def nothing_goes_back(self) -> None:
        for at, number in self.target.items():
            assert number >= self.highest.get(at, 0)
            self.highest[at] = number

    @invariant()
    def nothing_is_forgotten(self) -> None:
        """What was seen was written, or is due."""
        for at, ahead in self.seen.items():
            if ahead.number is not None and at not in self.carried.due:
                assert self.target.get(at, -1) >= ahead.number

    @rule()
    def finish(self) -> None:
        """Nobody works there any more: after the last pass both are equal, or it is said where they are not."""
        self.see()
        self.carried.again()
        for at, number in self.carried.decide(judge, self.target).items():
            self.target[at] = number
            self.carried.wrote(at, number)
        self.decided = {}
        verdict = self.carried.verdict(judge, self.target)
        differ = {at for at, ahead in self.ahead.items() if ahead.number not in (None, self.target.get(at))}
        differ |= self.had - self.ahead.keys()
        assert verdict.open == []
        assert {reason.partition(":")[0] for reason in verdict.obstacles} == {str(at) for at in differ}
        assert self.carried.behind == 0


TestFollowing = Following.TestCase
TestFollowing.settings = settings(max_examples=150, stateful_step_count=25, deadline=None)


def seen(**numbers: int | None) -> dict[TopicPartition, Ahead]:
    return {TopicPartition(topic, 0): Ahead(number, number or 0) for topic, number in numbers.items()}


A, B, C = (TopicPartition(topic, 0) for topic in "abc")


def test_only_what_has_changed_is_due_and_the_distance_is_what_the_target_has_less() -> None:
    carried = Carried()
    assert carried.see(seen(a=5, b=7))
    assert carried.decide(judge, {A: 3, B: 7}) == {A: 5}
    assert (list(carried.due), carried.behind) == ([A], 2)
    carried.wrote(A, 5)
    assert not carried.see(seen(a=5, b=7))
    assert (list(carried.due), carried.behind) == ([], 0)
    assert carried.see(seen(a=5, b=9))
    assert (list(carried.due), carried.behind) == ([B], 2)


def test_what_is_more_than_the_limit_waits_for_the_next_time_and_the_first_comes_first() -> None:
    carried = Carried()
    carried.see(seen(a=1, b=2, c=3))
    for at in (A, B, C):
        [(found, number)] = carried.decide(judge, {}, 1).items()
        assert found == at
        carried.wrote(at, number)
    assert carried.decide(judge, {}, 1) == {}


def test_what_is_refused_stays_due_and_is_told_and_what_is_skipped_is_no_distance() -> None:
    def by_topic(at: TopicPartition, ahead: int, there: int | Unknown | None) -> Decision:
        return decide(ahead, Log.NO_TOPIC if at == B else LOG, there)

    carried = Carried()
    carried.see(seen(a=101, b=50, c=None))
    assert carried.decide(by_topic, {}) == {}
    assert (list(carried.due), carried.behind, carried.failures) == ([A], 101, "a/0: past the end")
    verdict = carried.verdict(by_topic, {})
    assert (verdict.open, verdict.obstacles) == ([], ["a/0: past the end"])
    assert verdict.detail == "1 skipped: no offset; 1 skipped: no such topic"
    carried.see(seen(a=100, b=50, c=None))
    assert carried.failures == ""


def test_a_planned_offset_is_in_the_way_when_its_log_is_gone_until_the_group_was_done() -> None:
    def without_log(_at: TopicPartition, ahead: int, there: int | Unknown | None) -> Decision:
        return decide(ahead, gone, there)

    for gone in (Log.NO_TOPIC, Log.NO_PARTITION, Log.YOUNGER):
        carried = Carried(planned=[A])
        carried.see(seen(a=5, b=5))
        assert carried.decide(without_log, {}) == {}
        assert (list(carried.due), carried.failures) == ([A], f"a/0: {gone}")
        verdict = carried.verdict(without_log, {})
        assert (verdict.obstacles, verdict.detail) == ([f"a/0: {gone}"], f"1 skipped: {gone}")
        carried.settle()
        assert carried.verdict(without_log, {}).detail == f"2 skipped: {gone}"


def test_what_is_clamped_is_done_when_the_target_has_it() -> None:
    def clamped(_at: TopicPartition, ahead: int, there: int | Unknown | None) -> Decision:
        return decide(ahead, LOG, there, Rule(OutOfRange.LATEST))

    carried = Carried()
    carried.see(seen(a=500))
    assert carried.decide(clamped, {}) == {A: 100}
    carried.wrote(A, 100)
    verdict = carried.verdict(clamped, {A: 100})
    assert (verdict.open, verdict.obstacles) == ([], [])


def test_a_target_that_is_further_is_an_obstacle_unless_it_was_so_when_it_was_planned() -> None:
    carried = Carried({A: 9})
    carried.see(seen(a=5, b=5))
    assert carried.decide(judge, {A: 9, B: 9}) == {}
    verdict = carried.verdict(judge, {A: 9, B: 9})
    assert verdict.obstacles == ["b/0: 9, and it was 5 that was to be there"]
    assert verdict.detail == "1 skipped: target ahead"
    assert "a/0" in str(carried.verdict(judge, {A: 8, B: 5}).obstacles)


def test_what_is_gone_is_an_obstacle_until_both_sides_were_at_one_and_again_when_it_was_written_since() -> None:
    carried = Carried(planned=[A])
    assert carried.failures == ""
    carried.see(seen(b=5, c=None))
    assert (carried.failures, carried.due) == ("a/0: there was an offset, and it is gone", [B])
    carried.see({})
    gone = [f"{at}: there was an offset, and it is gone" for at in (A, B)]
    assert carried.verdict(judge, {A: 5, B: 5}).obstacles == gone
    carried.see(seen(a=1, b=2))
    carried.settle()
    carried.see(seen(a=1, b=3))
    carried.see({})
    assert carried.verdict(judge, {}).obstacles == gone[1:]


def test_where_not_all_could_be_looked_at_what_is_not_found_is_as_it_was() -> None:
    carried = Carried(planned=[C])
    carried.see(seen(a=5, b=7))
    assert carried.see(seen(b=9), whole=False)
    assert (carried.failures, carried.decide(judge, {})) == ("", {A: 5, B: 9})
    assert not carried.see({}, whole=False)
    assert carried.see(seen(b=9))
    assert "a/0" in carried.failures


def test_what_could_not_be_asked_is_open_and_no_obstacle() -> None:
    carried = Carried()
    carried.see(seen(a=5))
    found = carried.verdict(lambda _, ahead, there: decide(ahead, Log.UNKNOWN, there), {A: 5})
    assert (found.open, found.obstacles) == ([A], [])


def test_on_the_way_back_numbers_are_copied_and_never_go_back() -> None:
    reasons = [forward(A, 5, there).reason for there in (None, 4, 5, 6, Unknown.TARGET)]
    assert reasons == [
        Reason.AS_IT_IS,
        Reason.AS_IT_IS,
        Reason.ALREADY_THERE,
        Reason.TARGET_AHEAD,
        Reason.TARGET_UNKNOWN,
    ]
    assert forward(A, 5, None).offset == 5


def test_a_message_has_three_of_many() -> None:
    assert some("abc") == "a; b; c"
    assert some("abcde") == "a; b; c; and 2 more"
