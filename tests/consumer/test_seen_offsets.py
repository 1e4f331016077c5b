"""Committed offsets that went back, as one member sees them. No server."""

from __future__ import annotations

from zkgroups import CommittedOffset, MalformedNode, TopicPartition
from zkgroups.consumer.seen_offsets import SeenOffsets

P0, P1 = TopicPartition("orders", 0), TopicPartition("orders", 1)


def found(at: TopicPartition, offset: int) -> CommittedOffset:
    return CommittedOffset("billing", at, offset)


def test_a_lower_or_missing_offset_is_reported_once() -> None:
    seen = SeenOffsets(lambda _topic: 5)
    assert seen.read({P0: found(P0, 10), P1: None}) == (frozenset(), "")
    seen.committed({P0: 20, P1: 3})
    assert seen.read({P0: found(P0, 19), P1: None}) == ({P0, P1}, "orders/0 from 20 to 19, orders/1 from 3 to nothing")
    assert seen.read({P0: found(P0, 19), P1: None}) == (frozenset(), "")


def test_offsets_of_other_members_and_own_commits_are_not_reported() -> None:
    seen = SeenOffsets(lambda _topic: 5)
    seen.read({P0: found(P0, 10)})
    assert seen.read({P0: found(P0, 30)}) == (frozenset(), "")
    seen.committed({P0: 7})  # `start_offset` allows a member to go back
    assert seen.read({P0: found(P0, 7)}) == (frozenset(), "")


def test_a_recreated_topic_has_no_earlier_offsets_and_an_unreadable_offset_says_nothing() -> None:
    zxids = {"orders": 5}
    seen = SeenOffsets(zxids.get)
    seen.read({P0: found(P0, 10), P1: found(P1, 10)})
    assert seen.read({P1: MalformedNode("/x", b"", "not a number")}) == (frozenset(), "")
    zxids["orders"] = 9
    assert seen.read({P0: None}) == (frozenset(), "")
