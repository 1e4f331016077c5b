"""Checks of committed offsets against the logs of the brokers, for each topic of a group."""

from __future__ import annotations

from collections.abc import Iterator

from ..offsets.lag import GroupLag, LagNote
from ..znodes.paths import GroupPaths
from .advice import command, some_partitions, topic_value
from .findings import Problem


def past_end_offsets(lag: GroupLag) -> Iterator[Problem]:
    """Find offsets past the log end, where no client can read."""
    for topic, numbers in _partitions_with(lag, LagNote.PAST_END).items():
        what = f"the offsets of {some_partitions(numbers)} are past the log end: {topic!r} may have been recreated"
        yield Problem(GroupPaths(lag.group).offset_topic(topic), what, _reset(lag.group, topic))


def before_start_offsets(lag: GroupLag) -> Iterator[Problem]:
    """Find offsets before the log start: the brokers have deleted messages that the group had not read."""
    for topic, numbers in _partitions_with(lag, LagNote.BEFORE_START).items():
        what = f"the offsets of {some_partitions(numbers)} are before the log start: unread messages were deleted"
        yield Problem(GroupPaths(lag.group).offset_topic(topic), what, _reset(lag.group, topic))


def _partitions_with(lag: GroupLag, note: LagNote) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for each in lag.partitions:
        if each.note is note:
            at = each.partition.at
            found.setdefault(at.topic, []).append(at.partition)
    return found


def _reset(group: str, topic: str) -> str:
    reset = command("offsets", "reset", group, topic=topic_value(topic), to_earliest=True, execute=True)
    return f"clients start where auto.offset.reset says; to set it now: stop them, and run {reset}"
