"""The decision for one offset: every row of the table in `rules.py`, for any numbers."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from zkgroups.core.kafka_values import OffsetRange
from zkgroups.core.migration import offset_decision
from zkgroups.core.migration.apply_rules import WriteState, write_state
from zkgroups.core.migration.obstacles import GroupFacts, Obstacle, ObstacleKind, obstacles
from zkgroups.core.migration.offset_decision import (
    Action,
    Decision,
    NoLog,
    NoOffset,
    OutOfRange,
    Reason,
    Rule,
    Unknown,
    decide,
)
from zkgroups.core.migration.target_names import MAX_GROUP_BYTES, Renaming, conflicts, name_error
from zkgroups.core.znodes.offset_codec import MAX_OFFSET, decode_offset
from zkgroups.core.znodes.values import MalformedNode
from zkgroups.input_errors import InvalidOptionError

OFFSETS = st.integers(0, MAX_OFFSET) | st.sampled_from([0, 1, MAX_OFFSET])
RANGES = st.tuples(OFFSETS, OFFSETS).map(lambda pair: OffsetRange(min(pair), max(pair)))
TARGETS = st.none() | st.sampled_from(list(Unknown)) | OFFSETS
RULES = st.builds(Rule, st.sampled_from(OutOfRange), st.booleans())


@given(st.text("0123456789-+ .abc", max_size=25).map(str.encode), RANGES, TARGETS, RULES)
def test_a_node_without_an_offset_is_skipped(
    data: bytes, log: OffsetRange, target: int | Unknown | None, rule: Rule
) -> None:
    source = decode_offset("/o", data)
    assume(isinstance(source, MalformedNode))
    found = decide(NoOffset.of(source), log, target, rule)
    assert found.action is Action.SKIP
    assert found.offset is None
    assert (found.reason is Reason.NEGATIVE) == bool(re.fullmatch(rb"-[0-9]+", data))


@given(OFFSETS, TARGETS, RULES)
def test_a_missing_topic_or_partition_is_skipped_and_an_unknown_log_is_refused(
    source: int, target: int | Unknown | None, rule: Rule
) -> None:
    assert decide(source, NoLog.NO_TOPIC, target, rule) == Decision(Action.SKIP, Reason.NO_TOPIC)
    assert decide(source, NoLog.NO_PARTITION, target, rule) == Decision(Action.SKIP, Reason.NO_PARTITION)
    assert decide(source, NoLog.UNKNOWN, target, rule) == Decision(Action.REFUSE, Reason.LOG_UNKNOWN)


@given(OFFSETS, TARGETS, RULES)
def test_an_offset_of_an_earlier_topic_is_skipped_and_of_a_topic_recreated_since_the_plan_refused(
    source: int, target: int | Unknown | None, rule: Rule
) -> None:
    assert decide(source, NoLog.NEWER, target, rule) == Decision(Action.SKIP, Reason.OLDER)
    assert decide(source, NoLog.RECREATED, target, rule) == Decision(Action.REFUSE, Reason.RECREATED)


@given(OFFSETS, TARGETS, RULES)
def test_without_brokers_every_offset_is_copied_with_a_reason_that_shows_it_was_not_checked(
    source: int, target: int | Unknown | None, rule: Rule
) -> None:
    assert decide(source, NoLog.NOT_CHECKED, target, rule) == Decision(Action.COMMIT, Reason.LOG_NOT_CHECKED, source)


@given(RANGES | st.sampled_from(NoLog), TARGETS, RULES, st.booleans())
def test_an_offset_that_only_the_target_has_is_skipped(
    log: OffsetRange | NoLog, target: int | Unknown | None, rule: Rule, stale: bool
) -> None:
    assert decide(None, log, target, rule, stale=stale) == Decision(Action.SKIP, Reason.ONLY_ON_TARGET)


@given(OFFSETS, RANGES | st.sampled_from(NoLog), TARGETS, RULES, st.booleans())
def test_a_stale_offset_is_skipped_only_with_skip_stale_and_then_for_any_log(
    source: int, log: OffsetRange | NoLog, target: int | Unknown | None, rule: Rule, stale: bool
) -> None:
    found = decide(source, log, target, replace(rule, skip_stale=True), stale=stale)
    if stale:
        assert found == Decision(Action.SKIP, Reason.STALE)
    else:
        assert found == decide(source, log, target, rule, stale=True)


@given(OFFSETS, RANGES, TARGETS, RULES)
def test_an_offset_outside_the_log_is_treated_as_the_operator_chose(
    source: int, log: OffsetRange, target: int | Unknown | None, rule: Rule
) -> None:
    assume(source not in log)
    found = decide(source, log, target, rule)
    outside = Reason.BEFORE_START if source < log.start else Reason.PAST_END
    match rule.on_out_of_range:
        case OutOfRange.REFUSE:
            assert found == Decision(Action.REFUSE, outside)
        case OutOfRange.SKIP:
            assert found == Decision(Action.SKIP, outside)
        case OutOfRange.EARLIEST | OutOfRange.LATEST:
            chosen = log.start if rule.on_out_of_range is OutOfRange.EARLIEST else log.end
            inside = decide(chosen, log, target, rule)
            assert (found.action, found.offset) == (inside.action, inside.offset)
            assert found.reason is not Reason.UNCHANGED


@given(RANGES.flatmap(lambda log: st.tuples(st.just(log), st.integers(log.start, log.end))), TARGETS, RULES)
def test_an_offset_in_the_log_is_copied_unless_the_target_has_as_much(
    log_and_source: tuple[OffsetRange, int], target: int | Unknown | None, rule: Rule
) -> None:
    log, source = log_and_source
    found = decide(source, log, target, rule)
    if isinstance(target, Unknown):
        assert found == Decision(Action.REFUSE, Reason.TARGET_UNKNOWN)
    elif target is None or target < source:
        assert found == Decision(Action.COMMIT, Reason.UNCHANGED, source)
    elif target == source:
        assert found == Decision(Action.SKIP, Reason.ALREADY_THERE)
    elif rule.backward:
        assert found == Decision(Action.COMMIT, Reason.BACKWARD, source)
    else:
        assert found == Decision(Action.SKIP, Reason.TARGET_AHEAD)


@given(OFFSETS, RANGES | st.sampled_from(NoLog), TARGETS, RULES)
def test_a_written_offset_is_in_the_log_and_goes_back_only_with_backward(
    source: int, log: OffsetRange | NoLog, target: int | Unknown | None, rule: Rule
) -> None:
    found = decide(source, log, target, rule)
    assert (found.offset is not None) == (found.action is Action.COMMIT)
    if found.offset is not None and log is not NoLog.NOT_CHECKED:
        assert isinstance(log, OffsetRange)
        assert found.offset in log
        assert target is None or isinstance(target, int)
        assert target is None or rule.backward or found.offset > target


def test_the_table_has_every_reason() -> None:
    table = offset_decision.__doc__ or ""
    for reason in Reason:
        assert reason.value in table, reason


# Names


def test_groups_are_renamed_by_name_then_by_expression_otherwise_not() -> None:
    renaming = Renaming({"billing": "accounts"}, r"team-(?P<name>.+)", r"\g<name>.v2")
    assert [renaming.target(name) for name in ("billing", "team-a b", "team-", "other")] == [
        "accounts",
        "a b.v2",
        "team-",
        "other",
    ]


@pytest.mark.parametrize("pattern", ["(", "*"])
def test_an_invalid_expression_is_refused(pattern: str) -> None:
    with pytest.raises(InvalidOptionError):
        Renaming({}, pattern, "x")


@pytest.mark.parametrize("replacement", [r"\2", "\udcff"])
def test_an_invalid_replacement_is_refused(replacement: str) -> None:
    with pytest.raises(InvalidOptionError):
        Renaming({}, "a(.*)", replacement)


@pytest.mark.parametrize("name", ["", "a/b", "x" * (MAX_GROUP_BYTES + 1)])
def test_an_invalid_new_name_is_refused_or_an_obstacle_for_that_group_alone(name: str) -> None:
    with pytest.raises(InvalidOptionError):
        Renaming({"billing": name})
    renaming = Renaming({}, "b", name)
    reason = name_error(renaming.target("b"))
    assert reason is not None
    assert obstacles(GroupFacts(name_error=reason)) == [Obstacle(ObstacleKind.INVALID_NAME, detail=reason)]
    assert name_error(renaming.target("a: é")) is None
    assert name_error("x" * MAX_GROUP_BYTES) is None


def test_two_groups_with_one_target_are_a_conflict() -> None:
    renaming = Renaming({"a": "c"}, "b", "c")
    assert conflicts({group: renaming.target(group) for group in ("b", "a", "d")}) == {"c": ["a", "b"]}


# Groups


def test_skipped_offsets_are_not_obstacles() -> None:
    skipped = [Decision(Action.SKIP, Reason.NO_TOPIC), Decision(Action.COMMIT, Reason.UNCHANGED, 5)]
    assert obstacles(GroupFacts(), skipped) == []


@pytest.mark.parametrize(
    ("facts", "said"),
    [
        (GroupFacts(legacy=("a", "b", "c", "d")), "legacy instances are registered: a, b, c and 1 more"),
        (GroupFacts(native=("x",)), "the group has active members on the brokers: x"),
        (GroupFacts(rivals=("other",)), "other groups have the same target: other"),
        (GroupFacts(unreadable="no permission"), "the state of the group could not be read: no permission"),
    ],
)
def test_each_fact_is_an_obstacle_with_a_sentence(facts: GroupFacts, said: str) -> None:
    assert list(map(str, obstacles(facts))) == [said]


def test_refused_offsets_are_obstacles_counted_by_reason() -> None:
    refused = [Decision(Action.REFUSE, Reason.PAST_END)] * 2 + [Decision(Action.REFUSE, Reason.LOG_UNKNOWN)]
    assert obstacles(GroupFacts(), refused) == [
        Obstacle(ObstacleKind.REFUSED_OFFSETS, count=1, reason=Reason.LOG_UNKNOWN),
        Obstacle(ObstacleKind.REFUSED_OFFSETS, count=2, reason=Reason.PAST_END),
    ]


# Carrying it out


@given(TARGETS.filter(lambda target: not isinstance(target, Unknown)), st.none() | OFFSETS, OFFSETS)
def test_a_repeated_run_only_overwrites_the_offset_from_before_the_plan(
    now: int | None, before: int | None, planned: int
) -> None:
    found = write_state(now, before, planned)
    assert (found is WriteState.DONE) == (now == planned)
    if found is WriteState.TO_WRITE:
        assert now == before
