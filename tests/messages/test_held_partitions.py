"""Where partitions go on after rebalances, errors and seeks. Without threads and brokers."""

from __future__ import annotations

import pytest
from confluent_kafka import Message

from zkgroups import TopicPartition
from zkgroups.messages.held_partitions import HeldPartitions
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


def test_another_deliverer_begins_where_the_first_one_has_finished(held: Held) -> None:
    held.receive(P0, 10)
    held.seek(P1, 25)
    held.deliver_to(LoopDelivery(frozenset), automatic=True)
    assert held.seeks == {P0: 11, P1: 25}
    assert held.finished() == {}
