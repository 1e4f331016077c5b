"""Which messages a loop receives, and which count as finished: random histories against a simple model.

Without threads and brokers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from random import Random

import pytest
from confluent_kafka import Message

from tests.seeds import seeds
from zkgroups import TopicPartition
from zkgroups.messages.loop_delivery import Ends, LoopDelivery

HISTORIES, STEPS = 200, 60
ATS = [TopicPartition("orders", number) for number in range(3)]
ALL = frozenset(ATS)


@dataclass
class At:
    """A position of the client."""

    offset: int


class Loop:
    """A loop that receives messages in any way, the client that fetches them, and what must be true of them.

    The logs have gaps, as after aborted transactions. `cursor` is the offset from which on a message must come next.
    """

    def __init__(self, random: Random) -> None:
        self.random = random
        self.logs = {at: sorted(random.sample(range(300), 150)) for at in ATS}
        self.paused: set[TopicPartition] = set()
        self.revoked: set[TopicPartition] = set()
        self.client = dict.fromkeys(ATS, 0)
        self.knows_positions = random.random() < 0.7
        self.delivery = LoopDelivery(lambda: frozenset(self.paused), self._ends)
        self.hand: list[tuple[TopicPartition | None, int]] = []  # None: its partition has begun again since
        self.committed = dict.fromkeys(ATS, 0)
        self.finished, self.cursor = dict.fromkeys(ATS, 0), dict.fromkeys(ATS, 0)
        for at in ATS:
            self.delivery.assign(at, 0)

    def _ends(self) -> Ends | None:
        return ([*self.client], [At(offset) for offset in self.client.values()]) if self.knows_positions else None

    def fetch(self) -> None:
        """The client does not fetch paused and revoked partitions."""
        found = []
        for at in self.random.sample(ATS, 3):
            if at not in self.paused | self.revoked:
                offsets = [each for each in self.logs[at] if each >= self.client[at]][: self.random.randrange(5)]
                found += [Message(topic=at.topic, partition=at.partition, offset=each) for each in offsets]
                self.client[at] = offsets[-1] + 1 if offsets else self.client[at]
        self.delivery.put(found)
        self._forget_stale()

    def _forget_stale(self) -> None:
        self.hand = [each for each in self.hand if each[0]]

    def receive(self) -> None:
        """Ask for messages, with or without having finished those in hand."""
        if self.random.random() < 0.7:
            self.delivery.finish()
            for at, offset in self.hand:
                if at:
                    self.finished[at] = offset + 1
            self.hand = []
        else:
            self.delivery.keep()
        batch = self.delivery.next_batch()
        self._forget_stale()
        if batch is None or (part := batch.give(self.random.randint(1, 6))) is None:
            return
        for message in part:
            at, offset = TopicPartition(message.topic() or "", message.partition() or 0), message.offset() or 0
            assert at not in self.revoked | self.paused
            assert offset == next(each for each in self.logs[at] if each >= self.cursor[at])
            self.hand.append((at, offset))
            self.cursor[at] = offset + 1
            if self.random.random() < 0.1:
                break  # the rest of the part was not received
        self.delivery.keep()
        batch.in_hand = len(self.hand)

    def _hold(self, hand: list[tuple[TopicPartition | None, int]]) -> None:
        """Have only these in hand: the others come again."""
        self.hand = hand
        self.cursor = self.finished | {at: offset + 1 for at, offset in hand if at}

    def give_back(self) -> None:
        count = self.random.randint(1, 4)
        assert self.delivery.give_back(count) is (count <= len(self.hand))
        if count <= len(self.hand):
            self._hold(self.hand[:-count])

    def put_back(self) -> None:
        self.delivery.put_back()
        for at, offset in self.hand:
            if at and offset < self.committed[at]:
                self.finished[at] = max(self.finished[at], offset + 1)
        self._hold([])

    def commit(self) -> None:
        at = self.random.choice(ATS)
        self.delivery.committed({at: self.cursor[at]})
        self.committed[at] = self.cursor[at]

    def pause(self) -> None:
        at = self.random.choice(ATS)
        self.paused ^= {at}
        self.delivery.has_paused = True
        self.delivery.cut(withdraw=True)

    def revoke(self) -> None:
        at = self.random.choice(ATS)
        self.delivery.revoke({at})
        self.revoked.add(at)

    def assign(self, at: TopicPartition | None = None) -> None:
        """Begin a partition where it has finished, or elsewhere after a seek."""
        at = at or self.random.choice(ATS)
        offset = self.finished[at] if self.random.random() < 0.7 else self.random.randrange(250)
        self.delivery.assign(at, offset)
        self.finished[at] = self.cursor[at] = self.client[at] = offset
        self.committed[at] = 0
        self._hold([(None if each == at else each, offset) for each, offset in self.hand])
        self.revoked.discard(at)

    def check(self) -> None:
        assert self.delivery.positions(ALL) == self.finished
        assert self.delivery.handed_out(ALL) == self.cursor
        assert self.delivery.count >= 0
        busy = {at for at, _offset in self.hand if at}
        assert {at for at in ATS if self.delivery.is_busy(frozenset({at}))} == busy


MOVES: Mapping[str, int] = {
    "fetch": 10,
    "receive": 14,
    "give_back": 3,
    "put_back": 2,
    "commit": 1,
    "pause": 2,
    "revoke": 1,
    "assign": 1,
}


def play(seed: int) -> None:
    random = Random(seed)
    loop, steps = Loop(random), list[str]()
    try:
        for move in random.choices([*MOVES], [*MOVES.values()], k=STEPS):
            steps.append(move)
            getattr(loop, move)()
            loop.check()
    except AssertionError as error:
        raise AssertionError(f"seed {seed}, after {steps}") from error


def test_messages_come_in_order_and_count_as_finished_once_the_loop_has_asked_again() -> None:
    for seed in seeds(HISTORIES):
        play(seed)


# What other threads and the client do


def delivery(client: Mapping[TopicPartition, int] | None = None) -> LoopDelivery:
    """Three messages of the first partition, from offset 10 on, and one of the second."""
    ends = None if client is None else ([*client], [*map(At, client.values())])
    found = LoopDelivery(frozenset, lambda: ends)
    found.assign(ATS[0], 10)
    found.assign(ATS[1], 20)
    offsets = [(0, 10), (0, 11), (0, 12), (1, 20)]
    found.put([Message(topic="orders", partition=number, offset=offset) for number, offset in offsets])
    return found


def test_a_batch_that_another_thread_has_cut_gives_nothing() -> None:
    found = delivery()
    batch = found.next_batch()
    assert batch is not None
    found.revoke({ATS[0]})
    assert batch.give(5) is None
    assert found.positions(ALL) == {ATS[0]: 10, ATS[1]: 20}
    assert not found.is_busy(ALL)


def test_while_a_part_is_received_only_its_received_messages_count_and_all_of_them_are_under_way() -> None:
    found = delivery()
    batch = found.next_batch()
    assert batch is not None
    part = batch.give(4)
    assert part is not None
    for _ in range(2):
        next(part)
    assert (found.positions(ALL)[ATS[0]], found.handed_out(ALL)[ATS[0]], found.count) == (11, 12, 2)
    assert found.is_busy(frozenset({ATS[1]}))


@pytest.mark.parametrize(
    ("client", "counts"),
    [
        ({ATS[0]: 13, ATS[1]: 21}, True),
        ({ATS[0]: 14, ATS[1]: 21}, False),
        ({ATS[0]: 13}, False),
        ({ATS[0]: 15, ATS[1]: 19}, False),
    ],
)
def test_the_positions_of_the_client_count_only_if_they_explain_each_message(
    client: dict[TopicPartition, int], counts: bool
) -> None:
    """They save looking at each message, which nothing else shows."""
    found = delivery(client)
    assert (found._batch.ends is not None) is counts
