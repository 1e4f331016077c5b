"""The rule of a migration: every row of its table, for any numbers."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from zkgroups.core.kafka_values import OffsetRange
from zkgroups.core.migration import rules
from zkgroups.core.migration.rules import (
    MAX_GROUP_BYTES,
    Action,
    Decision,
    GroupFacts,
    Log,
    OutOfRange,
    Reason,
    Renaming,
    Rule,
    Standing,
    Unknown,
    bad_target,
    conflicts,
    decide,
    obstacles,
    standing,
)
from zkgroups.core.znodes.offset_codec import MAX_OFFSET, decode_offset
from zkgroups.core.znodes.values import MalformedNode
from zkgroups.exceptions import InvalidOptionError

OFFSETS = st.integers(0, MAX_OFFSET) | st.sampled_from([0, 1, MAX_OFFSET])
RANGES = st.tuples(OFFSETS, OFFSETS).map(lambda pair: OffsetRange(min(pair), max(pair)))
TARGETS = st.none() | st.sampled_from(list(Unknown)) | OFFSETS
RULES = st.builds(Rule, st.sampled_from(OutOfRange), st.booleans())


@given(st.text("0123456789-+ .abc", max_size=25).map(str.encode), RANGES, TARGETS, RULES)
def test_what_is_no_offset_is_skipped_and_said(
    data: bytes, log: OffsetRange, target: int | Unknown | None, rule: Rule
) -> None:
    source = decode_offset("/o", data)
    assume(isinstance(source, MalformedNode))
    found = decide(source, log, target, rule)
    assert found.action is Action.SKIP
    assert found.offset is None
    assert (found.reason is Reason.NEGATIVE) == bool(re.fullmatch(rb"-[0-9]+", data))


@given(OFFSETS, TARGETS, RULES)
def test_a_topic_or_a_partition_that_is_not_there_is_skipped_and_one_that_cannot_be_asked_is_refused(
    source: int, target: int | Unknown | None, rule: Rule
) -> None:
    assert decide(source, Log.NO_TOPIC, target, rule) == Decision(Action.SKIP, Reason.NO_TOPIC)
    assert decide(source, Log.NO_PARTITION, target, rule) == Decision(Action.SKIP, Reason.NO_PARTITION)
    assert decide(source, Log.UNKNOWN, target, rule) == Decision(Action.REFUSE, Reason.LOG_UNKNOWN)


@given(OFFSETS, TARGETS, RULES)
def test_an_offset_of_messages_that_went_with_an_earlier_topic_of_that_name_is_skipped(
    source: int, target: int | Unknown | None, rule: Rule
) -> None:
    assert decide(source, Log.YOUNGER, target, rule) == Decision(Action.SKIP, Reason.OLDER)
    assert decide(source, Log.MADE_ANEW, target, rule) == Decision(Action.REFUSE, Reason.MADE_ANEW)


@given(OFFSETS, TARGETS, RULES)
def test_where_nobody_was_asked_every_offset_is_copied_and_the_reason_says_that_it_is_not_known_to_be_good(
    source: int, target: int | Unknown | None, rule: Rule
) -> None:
    assert decide(source, Log.NOT_ASKED, target, rule) == Decision(Action.COMMIT, Reason.NOT_ASKED, source)


@given(RANGES | st.sampled_from(Log), TARGETS, RULES, st.booleans())
def test_what_only_the_target_has_is_let_alone(
    log: OffsetRange | Log, target: int | Unknown | None, rule: Rule, stale: bool
) -> None:
    assert decide(None, log, target, rule, stale=stale) == Decision(Action.SKIP, Reason.ONLY_ON_TARGET)


@given(OFFSETS, RANGES | st.sampled_from(Log), TARGETS, RULES, st.booleans())
def test_a_stale_offset_is_skipped_only_when_told_and_then_whatever_the_log_is(
    source: int, log: OffsetRange | Log, target: int | Unknown | None, rule: Rule, stale: bool
) -> None:
    found = decide(source, log, target, replace(rule, skip_stale=True), stale=stale)
    if stale:
        assert found == Decision(Action.SKIP, Reason.STALE)
    else:
        assert found == decide(source, log, target, rule, stale=True)


@given(OFFSETS, RANGES, TARGETS, RULES)
def test_an_offset_outside_the_log_is_what_the_operator_says(
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
            assert found.reason is not Reason.AS_IT_IS


@given(RANGES.flatmap(lambda log: st.tuples(st.just(log), st.integers(log.start, log.end))), TARGETS, RULES)
def test_an_offset_in_the_log_is_copied_as_it_is_unless_the_target_is_there_or_further(
    log_and_source: tuple[OffsetRange, int], target: int | Unknown | None, rule: Rule
) -> None:
    log, source = log_and_source
    found = decide(source, log, target, rule)
    if isinstance(target, Unknown):
        assert found == Decision(Action.REFUSE, Reason.TARGET_UNKNOWN)
    elif target is None or target < source:
        assert found == Decision(Action.COMMIT, Reason.AS_IT_IS, source)
    elif target == source:
        assert found == Decision(Action.SKIP, Reason.ALREADY_THERE)
    elif rule.backward:
        assert found == Decision(Action.COMMIT, Reason.BACKWARD, source)
    else:
        assert found == Decision(Action.SKIP, Reason.TARGET_AHEAD)


@given(OFFSETS, RANGES | st.sampled_from(Log), TARGETS, RULES)
def test_what_is_written_is_in_the_log_and_goes_back_only_when_told(
    source: int, log: OffsetRange | Log, target: int | Unknown | None, rule: Rule
) -> None:
    found = decide(source, log, target, rule)
    assert (found.offset is not None) == (found.action is Action.COMMIT)
    if found.offset is not None and log is not Log.NOT_ASKED:
        assert isinstance(log, OffsetRange)
        assert found.offset in log
        assert target is None or isinstance(target, int)
        assert target is None or rule.backward or found.offset > target


def test_the_table_has_every_reason_there_is() -> None:
    table = rules.__doc__ or ""
    for reason in Reason:
        assert reason.value in table, reason


# Names


def test_groups_are_renamed_by_name_then_by_expression_else_not_at_all() -> None:
    renaming = Renaming({"billing": "accounts"}, r"team-(?P<name>.+)", r"\g<name>.v2")
    assert [renaming.target(name) for name in ("billing", "team-a b", "team-", "other")] == [
        "accounts",
        "a b.v2",
        "team-",
        "other",
    ]


@pytest.mark.parametrize("pattern", ["(", "*"])
def test_an_expression_that_is_none_is_refused(pattern: str) -> None:
    with pytest.raises(InvalidOptionError):
        Renaming({}, pattern, "x")


@pytest.mark.parametrize("replacement", [r"\2", "\udcff"])
def test_a_replacement_that_names_no_part_of_the_expression_or_is_no_text_is_refused(replacement: str) -> None:
    with pytest.raises(InvalidOptionError):
        Renaming({}, "a(.*)", replacement)


@pytest.mark.parametrize("name", ["", "a/b", "x" * (MAX_GROUP_BYTES + 1)])
def test_a_new_name_that_can_be_no_group_is_refused_or_is_an_obstacle_of_that_group_alone(name: str) -> None:
    with pytest.raises(InvalidOptionError):
        Renaming({"billing": name})
    renaming = Renaming({}, "b", name)
    reason = bad_target(renaming.target("b"))
    assert reason is not None
    assert obstacles(GroupFacts(bad_target=reason), []) == [f"cannot have its new name: {reason}"]
    assert bad_target(renaming.target("a: é")) is None


def test_two_groups_with_one_target_are_a_conflict() -> None:
    renaming = Renaming({"a": "c"}, "b", "c")
    assert conflicts({group: renaming.target(group) for group in ("b", "a", "d")}) == {"c": ["a", "b"]}


# Groups


def test_a_group_is_moved_when_nothing_stands_in_its_way() -> None:
    skipped = [Decision(Action.SKIP, Reason.NO_TOPIC), Decision(Action.COMMIT, Reason.AS_IT_IS, 5)]
    assert obstacles(GroupFacts(), skipped) == []


@pytest.mark.parametrize(
    ("facts", "said"),
    [
        (GroupFacts(legacy=("a", "b", "c", "d")), "legacy instances are registered: a, b, c and 1 more"),
        (GroupFacts(native=("x",)), "members of the native group are alive: x"),
        (GroupFacts(rivals=("other",)), "the same name is asked for by other"),
        (GroupFacts(unreadable="no permission"), "cannot be looked at: no permission"),
    ],
)
def test_each_obstacle_is_said(facts: GroupFacts, said: str) -> None:
    assert obstacles(facts, []) == [said]


def test_refused_offsets_stop_the_group_and_are_counted_by_reason() -> None:
    refused = [Decision(Action.REFUSE, Reason.PAST_END)] * 2 + [Decision(Action.REFUSE, Reason.LOG_UNKNOWN)]
    assert obstacles(GroupFacts(), refused) == ["1 refused: log unknown", "2 refused: past the end"]


# Carrying it out


@given(TARGETS.filter(lambda target: not isinstance(target, Unknown)), st.none() | OFFSETS, OFFSETS)
def test_who_begins_again_writes_only_over_what_was_there_when_it_was_planned(
    now: int | None, before: int | None, planned: int
) -> None:
    found = standing(now, before, planned)
    assert (found is Standing.DONE) == (now == planned)
    if found is Standing.TO_WRITE:
        assert now == before
