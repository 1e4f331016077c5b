"""Which messages count as finished, when a loop has received some of them. Without threads and brokers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import pytest
from confluent_kafka import Message

from zkgroups import TopicPartition
from zkgroups.messages.loop_delivery import Batch, Ends, LoopDelivery

P0, P1 = TopicPartition("orders", 0), TopicPartition("orders", 1)
BOTH = frozenset({P0, P1})


def messages(at: TopicPartition, offsets: Iterable[int]) -> list[Message]:
    return [Message(topic=at.topic, partition=at.partition, offset=offset) for offset in offsets]


@dataclass
class At:
    """A position of the client."""

    offset: int


class Loop(LoopDelivery):
    """Hands out like the loop of a consumer."""

    def __init__(self, client: Mapping[TopicPartition, int] | None = None) -> None:
        self.paused: set[TopicPartition] = set()
        self.client = client
        """The positions of the client, if known."""
        super().__init__(lambda: frozenset(self.paused), self._ends)
        self.has_paused = True
        self.assign(P0, 10)
        self.assign(P1, 20)

    def _ends(self) -> Ends | None:
        return None if self.client is None else (list(self.client), [*map(At, self.client.values())])

    def receive(self, count: int = 1) -> list[tuple[int, int]]:
        """Ask for the next messages: partition and offset of each."""
        self.finish()
        batch = self.next_batch()
        if batch is None:
            return []
        found = list(batch.give(count) or ())
        batch.in_hand = len(found)
        return [(message.partition() or 0, message.offset() or 0) for message in found]


@pytest.fixture
def loop() -> Loop:
    loop = Loop()
    loop.put(messages(P0, (10, 11, 14)) + messages(P1, (20, 21)) + messages(P0, (15,)))
    return loop


def test_a_fetched_message_is_not_finished(loop: Loop) -> None:
    assert loop.positions(BOTH) == {P0: 10, P1: 20}


def test_a_message_is_finished_when_the_next_one_is_asked_for(loop: Loop) -> None:
    assert loop.receive() == [(0, 10)]
    assert (loop.positions(BOTH), loop.handed_out(BOTH)) == ({P0: 10, P1: 20}, {P0: 11, P1: 20})
    loop.receive()
    assert loop.positions(BOTH) == {P0: 11, P1: 20}
    loop.finish()
    assert loop.positions(BOTH) == {P0: 12, P1: 20}


def test_messages_received_together_are_finished_together(loop: Loop) -> None:
    assert loop.receive(5) == [(0, 10), (0, 11), (0, 14), (1, 20), (1, 21)]
    assert loop.positions(BOTH) == {P0: 10, P1: 20}
    assert loop.receive(5) == [(0, 15)]
    assert loop.positions(BOTH) == {P0: 15, P1: 22}


def test_a_finished_batch_counts_after_the_next_one_has_come(loop: Loop) -> None:
    loop.receive(6)
    assert loop.receive() == []
    loop.put(messages(P1, (22, 23)))
    assert loop.receive() == [(1, 22)]
    assert loop.positions(BOTH) == {P0: 16, P1: 22}
    assert loop.count == 7


def test_an_abandoned_message_is_not_finished_and_not_busy(loop: Loop) -> None:
    loop.receive(2)
    loop.receive(1)
    assert loop.is_busy(frozenset({P0}))
    loop.abandon()
    assert loop.positions(BOTH) == {P0: 12, P1: 20}
    assert not loop.is_busy(BOTH)


def test_messages_that_were_given_back_are_not_finished_and_come_again_first(loop: Loop) -> None:
    loop.receive(4)
    assert loop.give_back(2)
    assert (loop.positions(BOTH), loop.handed_out(BOTH)) == ({P0: 10, P1: 20}, {P0: 12, P1: 20})
    assert (loop.count, loop.is_busy(frozenset({P0})), loop.is_busy(frozenset({P1}))) == (2, True, False)
    assert loop.receive(2) == [(0, 14), (1, 20)]
    assert loop.positions(BOTH) == {P0: 12, P1: 20}
    assert loop.give_back(2)
    assert not loop.is_busy(BOTH)
    assert loop.receive(9) == [(0, 14), (1, 20), (1, 21), (0, 15)]
    loop.finish()
    assert loop.positions(BOTH) == {P0: 16, P1: 22}


def test_no_more_messages_can_be_given_back_than_are_in_hand(loop: Loop) -> None:
    assert not loop.give_back(1)
    loop.receive(2)
    assert (loop.give_back(3), loop.handed_out(BOTH)) == (False, {P0: 12, P1: 20})
    loop.finish()
    assert not loop.give_back(1)


def test_messages_that_were_given_back_are_dropped_if_their_partition_is_revoked_or_begins_again(loop: Loop) -> None:
    loop.receive(4)
    loop.revoke({P0})
    loop.give_back(3)
    assert loop.receive(9) == [(1, 20), (1, 21)]
    assert loop.positions(BOTH) == {P0: 11, P1: 20}
    loop.forget({P1})
    loop.assign(P1, 30)
    loop.give_back(2)
    assert loop.receive(9) == []
    assert loop.positions(BOTH) == {P0: 11, P1: 30}


def test_the_positions_of_the_client_count_only_after_what_was_given_back_has_come_again() -> None:
    loop = Loop({P0: 12, P1: 20})
    loop.put(messages(P0, (10, 11)))
    loop.receive(2)
    loop.give_back(1)
    loop.cut(withdraw=True)
    loop.finish()
    loop.next_batch()
    assert loop.positions(BOTH) == {P0: 11, P1: 20}
    assert loop.receive(9) == [(0, 11)]
    loop.client = {P0: 13, P1: 20}
    assert loop.receive() == []
    loop.put(messages(P0, (12,)))
    assert loop.receive() == [(0, 12)]
    assert loop.positions(BOTH) == {P0: 12, P1: 20}


def test_a_partition_is_busy_while_one_of_its_messages_is_in_hand(loop: Loop) -> None:
    loop.receive(3)
    assert (loop.is_busy(frozenset({P0})), loop.is_busy(frozenset({P1}))) == (True, False)
    loop.receive(1)
    assert (loop.is_busy(frozenset({P0})), loop.is_busy(frozenset({P1}))) == (False, True)


def test_no_message_of_a_revoked_partition_is_handed_out_and_its_finished_ones_count(loop: Loop) -> None:
    loop.receive(2)
    loop.revoke({P0})
    assert loop.receive(5) == [(1, 20), (1, 21)]
    assert loop.positions(BOTH) == {P0: 12, P1: 20}
    loop.forget({P0})
    assert loop.positions(BOTH) == {P1: 20}
    assert loop.receive() == []


def test_a_revocation_cuts_the_batch_that_the_loop_iterates_over(loop: Loop) -> None:
    loop.receive()
    batch: Batch = loop._batch
    loop.revoke({P1})
    assert batch.cut


def test_a_message_in_hand_does_not_count_after_its_partition_was_lost(loop: Loop) -> None:
    loop.receive(1)
    loop.forget({P0})
    assert not loop.is_busy(BOTH)
    loop.assign(P0, 5)
    assert loop.receive(9) == [(1, 20), (1, 21)]
    assert loop.positions(BOTH) == {P0: 5, P1: 20}


def test_after_a_seek_only_later_messages_count(loop: Loop) -> None:
    loop.receive(2)
    loop.revoke([P0])
    loop.finish()
    loop.assign(P0, 100)
    assert loop.positions(BOTH) == {P0: 100, P1: 20}
    loop.put(messages(P0, (100,)))
    assert loop.receive(9) == [(1, 20), (1, 21), (0, 100)]
    loop.finish()
    assert loop.positions(BOTH) == {P0: 101, P1: 22}


def test_messages_of_a_paused_partition_come_after_the_pause_in_order(loop: Loop) -> None:
    loop.receive(1)
    loop.paused.add(P0)
    loop.cut(withdraw=True)
    assert loop.receive(9) == [(1, 20), (1, 21)]
    loop.put(messages(P0, (16,)) + messages(P1, (22,)))
    assert loop.receive(9) == [(1, 22)]
    assert loop.positions(BOTH) == {P0: 11, P1: 22}
    loop.paused.clear()
    loop.cut(withdraw=True)
    assert loop.receive(9) == [(0, 11), (0, 14), (0, 15), (0, 16)]


def test_messages_put_aside_are_dropped_when_the_partition_begins_elsewhere(loop: Loop) -> None:
    loop.paused.add(P0)
    loop.cut(withdraw=True)
    assert loop.receive(9) == [(1, 20), (1, 21)]
    loop.assign(P0, 12)
    loop.paused.clear()
    loop.cut(withdraw=True)
    assert loop.receive() == []
    assert loop.positions(BOTH) == {P0: 12, P1: 22}


def test_messages_put_aside_are_dropped_when_their_partition_is_revoked_or_about_to_move(loop: Loop) -> None:
    loop.paused.add(P0)
    loop.cut(withdraw=True)
    assert loop.receive(9) == [(1, 20), (1, 21)]
    loop.revoke([P0])
    loop.paused.clear()
    assert loop.receive() == []


def test_only_the_received_messages_of_a_part_count_and_all_of_them_are_under_way(loop: Loop) -> None:
    batch = loop.next_batch()
    assert batch is not None
    part = batch.give(5)
    assert part is not None
    next(part)
    assert (loop.positions(BOTH), loop.handed_out(BOTH), loop.count) == ({P0: 10, P1: 20}, {P0: 11, P1: 20}, 1)
    next(part)
    assert loop.positions(BOTH) == {P0: 11, P1: 20}
    assert loop.is_busy(frozenset({P1}))
    loop.finish()
    assert list(part) == []
    assert loop.positions(BOTH) == {P0: 12, P1: 20}
    assert loop.receive(9) == [(0, 14), (1, 20), (1, 21), (0, 15)]


def test_a_cut_in_the_thread_of_the_loop_takes_the_rest_of_the_part_back(loop: Loop) -> None:
    batch = loop.next_batch()
    assert batch is not None
    part = batch.give(5)
    assert part is not None
    next(part)
    loop.cut(withdraw=True)
    assert list(part) == []
    assert loop.receive(9) == [(0, 11), (0, 14), (1, 20), (1, 21), (0, 15)]


def test_a_batch_that_was_cut_gives_nothing(loop: Loop) -> None:
    batch = loop.next_batch()
    assert batch is not None
    loop.revoke({P0})
    assert batch.give(5) is None
    assert loop.positions(BOTH) == {P0: 10, P1: 20}
    assert not loop.is_busy(BOTH)


@pytest.mark.parametrize(
    ("ends", "counts"),
    [({P0: 13, P1: 21}, True), ({P0: 14, P1: 21}, False), ({P0: 13}, False), ({P0: 15, P1: 19}, False)],
)
def test_the_positions_of_the_client_count_only_if_they_explain_each_message(
    ends: dict[TopicPartition, int], counts: bool
) -> None:
    loop = Loop(ends)
    loop.put(messages(P0, (10, 11, 12)) + messages(P1, (20,)))
    assert (loop._batch.ends is not None) is counts
    loop.receive(9)
    loop.receive()
    loop.put([])
    assert loop.positions(BOTH) == {P0: 13, P1: 21}


def test_the_positions_of_the_client_do_not_count_while_messages_are_put_aside(loop: Loop) -> None:
    loop = Loop({P0: 12, P1: 21})
    loop.paused.add(P0)
    loop.put(messages(P0, (10, 11)) + messages(P1, (20,)))
    loop.receive(9)
    loop.receive()
    loop.put([])
    assert loop.positions(BOTH) == {P0: 10, P1: 21}


def test_after_positions_that_agree_later_ones_count_if_each_step_is_a_message() -> None:
    loop = Loop({P0: 12, P1: 20})
    loop.put(messages(P0, (10, 11)))
    assert loop.receive(9) == [(0, 10), (0, 11)]
    for steps, offsets, counts in (({P0: 14}, (12, 13), True), ({P0: 17}, (15, 16), True), ({P0: 99}, (17,), False)):
        loop.client = {P0: 12, P1: 20} | steps
        loop.put(messages(P0, offsets))
        assert (loop._batch.ends is not None) is counts
        loop.receive(9)
        loop.finish()
        assert loop.positions(BOTH) == {P0: offsets[-1] + 1, P1: 20}


def test_positions_after_dropped_messages_never_count_until_the_partition_begins_again() -> None:
    """The client has gone on by messages that nobody received."""
    loop = Loop({P0: 12, P1: 20})
    loop.put(messages(P0, (10, 11)))
    loop.receive(9)
    loop.revoke({P1})
    loop.client = {P0: 12, P1: 25}  # five messages were dropped
    for count in (1, 2):
        loop.client = {P0: 12 + count, P1: 25}
        loop.put(messages(P0, (11 + count,)))
        loop.receive(9)
        loop.finish()
        assert loop.positions(BOTH) == {P0: 12 + count, P1: 20}
    loop.assign(P1, 25)
    loop.put(messages(P0, (14,)))
    loop.client = {P0: 15, P1: 25}
    loop.receive(9)
    loop.finish()
    assert loop.positions(BOTH) == {P0: 15, P1: 25}


def test_a_partition_that_begins_again_does_not_count_the_positions_of_its_earlier_messages() -> None:
    loop = Loop({P0: 12, P1: 20})
    loop.put(messages(P0, (10, 11)))
    loop.receive(9)
    loop.assign(P0, 5)
    loop.put([])
    assert loop.positions(BOTH) == {P0: 5, P1: 20}
