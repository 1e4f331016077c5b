"""Where partitions go on after rebalances, errors and seeks. Without threads and brokers."""

from __future__ import annotations

import pytest
from confluent_kafka import Message

from zkgroups import TopicPartition
from zkgroups.messages.fetched_partitions import HeldPartitions
from zkgroups.messages.loop_delivery import LoopDelivery

P0, P1 = TopicPartition("orders", 0), TopicPartition("orders", 1)
BOTH = frozenset({P0, P1})


class Held(HeldPartitions):
    """Two partitions, which begin at the offsets 10 and 20."""

    def __init__(self, *, automatic: bool = True) -> None:
        self.loop = LoopDelivery(frozenset)
        super().__init__(self.loop, automatic=automatic)
        self.replace(BOTH)
        self.begin({P0: 10, P1: 20})

    def receive(self, at: TopicPartition, *offsets: int) -> None:
        """Let the loop receive and finish these messages."""
        self.loop.put([Message(topic=at.topic, partition=at.partition, offset=offset) for offset in offsets])
        batch = self.loop.next_batch()
        assert batch is not None
        list(batch.give(len(offsets)) or ())
        self.loop.finish()


@pytest.fixture
def held() -> Held:
    return Held()


def test_a_partition_without_a_finished_message_is_not_committed(held: Held) -> None:
    assert held.finished() == {}
    held.receive(P0, 10, 11)
    assert held.finished() == {P0: 12}
    assert held.positions() == {P0: 12, P1: 20}


def test_only_after_the_last_message_a_position_goes_past_the_control_records_at_the_end(held: Held) -> None:
    held.receive(P0, 10)
    held.end({P0: 14, P1: 22})
    assert (held.finished(), held.positions()) == ({P0: 14, P1: 22}, {P0: 14, P1: 22})
    assert [held.has_received_all(P0, position) for position in (10, 11, 14)] == [False, True, True]
    held.go_on([P0])
    held.receive(P0, 14)
    assert held.positions() == {P0: 15, P1: 22}
    held.loop.put([Message(topic=P0.topic, partition=0, offset=15)])
    held.end({P0: 17})
    assert held.positions()[P0] == 15


def test_a_log_end_does_not_count_for_messages_that_were_dropped(held: Held) -> None:
    held.receive(P0, 10)
    held.loop.put([Message(topic=P0.topic, partition=0, offset=11)])
    held.end({P0: 13})
    held.loop.revoke([P0])  # a rebalance drops the message
    assert held.loop.next_batch() is None
    assert held.finished() == {P0: 11}
    held.seek(P1, 30)
    held.end({P1: 29})
    assert held.positions()[P1] == 20
    held.revoke(frozenset({P0}))
    held.end({P0: 13})
    assert held.finished() == {P0: 11}


def test_what_is_not_automatic_finishes_nothing_by_itself() -> None:
    held = Held(automatic=False)
    held.receive(P0, 10)
    assert (held.finished(), held.positions()[P0]) == ({}, 11)


def test_a_revoked_partition_is_committed_until_the_next_generation(held: Held) -> None:
    held.receive(P0, 10)
    held.revoke(frozenset({P0}))
    assert (held.kept, held.finished()) == ({P1}, {P0: 11})
    held.replace(frozenset({P1}))
    assert held.finished() == {}


def test_a_lost_partition_is_not_committed(held: Held) -> None:
    held.receive(P0, 10)
    held.lose(frozenset({P0}))
    assert (held.kept, held.finished()) == ({P1}, {})


def test_a_partition_that_comes_back_is_gone_until_the_client_has_stopped_fetching_it(held: Held) -> None:
    held.revoke(frozenset({P0}))
    held.replace(BOTH)
    assert (held.of_generation, held.kept) == (BOTH, {P1})
    held.settle([P0])
    assert held.kept == BOTH


def test_after_an_error_a_partition_goes_on_after_the_last_message_that_was_received(held: Held) -> None:
    held.receive(P0, 10, 11)
    held.stop_at_error(P0)
    assert held.resume_at == {P0: 12}
    held.settle([P0])
    assert held.resume_at == {}


def test_a_seek_in_a_partition_that_stands_still_takes_effect_when_it_goes_on(held: Held) -> None:
    held.stop_at_error(P0)
    held.seek(P0, 15)
    held.seek(P1, 25)
    assert held.take_seeks(frozenset({P1})) == {P0: 15, P1: 25}
    assert (held.resume_at, held.seeks) == ({P0: 15}, {})
    assert held.positions()[P0] == 15


def test_a_seek_keeps_what_is_finished_before_it_and_makes_later_messages_unfinished(held: Held) -> None:
    held.receive(P0, 10, 11, 12)
    held.receive(P1, 20, 21)
    for offset, finished in ((50, 13), (11, 11), (10, None), (3, None)):
        held.seek(P0, offset)
        assert held.finished() == {P0: finished, P1: 22} if finished else {P1: 22}
    held.take_seeks(frozenset())
    assert held.finished() == {P1: 22}


def test_a_partition_that_begins_again_where_it_stands_has_finished_what_is_before(held: Held) -> None:
    held.receive(P0, 10, 11)
    held.begin(held.positions())  # as after an exception in the middle of a fetch
    assert held.finished() == {P0: 12}


def test_another_deliverer_begins_where_the_first_one_has_finished(held: Held) -> None:
    held.receive(P0, 10)
    held.seek(P1, 25)
    held.deliver_to(LoopDelivery(frozenset), automatic=True)
    assert held.seeks == {P0: 11, P1: 25}
    assert held.finished() == {}
