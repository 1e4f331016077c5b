"""Partitions that pass between consumers: nothing is left out, and what is read twice is bounded."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable

from confluent_kafka import Message

from zkgroups import Consumergroup
from zkgroups.exceptions import NotClaimedError, ZkgroupsException

from .conftest import LONGEST, Loops, Topic, offsets


class Gate:
    """A body that holds one message until it is opened."""

    def __init__(self, holds: Callable[[Message], bool]) -> None:
        self._holds = holds
        self.held: Message | None = None
        self.reached, self.opened = threading.Event(), threading.Event()

    def __call__(self, message: Message) -> None:
        if not self.reached.is_set() and self._holds(message):
            self.held = message
            self.reached.set()
            assert self.opened.wait(LONGEST)


def in_partition(number: int) -> Callable[[Message], bool]:
    return lambda message: message.partition() == number


def test_consumers_that_come_and_go_read_each_message_once(topic: Topic, loop: Loops, group: Consumergroup) -> None:
    first = loop(topic, id="a").until_holding(*topic.ats)
    topic.write(300)
    second = loop(topic, id="b").until_holding(topic.ats[2])
    topic.write(300)
    third = loop(topic, id="c").until_holding(topic.ats[2])
    topic.write(300)
    first.stop()
    topic.write(300)
    third.until_holding(topic.ats[2])
    second.stop()
    topic.write(300)
    third.until_holding(*topic.ats)

    everyone = (first, second, third)
    third.until(lambda: topic.texts <= sum((each.texts for each in everyone), Counter()).keys(), "all messages")
    assert set(sum((each.texts for each in everyone), Counter()).values()) == {1}
    third.stop()
    assert sum(offsets(group).values()) == len(topic.texts)


def test_a_revoked_partition_is_released_when_the_body_has_finished_its_message(
    topic: Topic, loop: Loops, group: Consumergroup
) -> None:
    gate = Gate(in_partition(2))
    topic.write(50, 2)
    slow = loop(topic, id="a", body=gate, release_timeout=LONGEST, rebalance_timeout=2 * LONGEST)
    assert gate.reached.wait(LONGEST)
    quick = loop(topic, id="b")
    slow.until(lambda: slow.consumer._reading._held.gone == {topic.ats[2]}, "the revocation")
    assert quick.messages == []
    assert {owner.instance({"a", "b"}) for owner in group.owners() if owner.at == topic.ats[2]} == {"a"}
    gate.opened.set()
    slow.until(lambda: slow.messages, "the message in hand")
    quick.until_read(topic.texts - slow.texts.keys())
    slow.until_holding(*topic.ats[:2])
    assert len(slow.messages) == 1  # the rest was fetched, and not handed out
    assert set((slow.texts + quick.texts).values()) == {1}


def test_a_body_that_takes_too_long_loses_its_partition_and_its_commit_is_refused(
    topic: Topic, loop: Loops, group: Consumergroup
) -> None:
    refused: list[type[Exception]] = []

    def body(message: Message) -> None:
        gate(message)
        if message is gate.held:
            try:
                slow.consumer.commit(message)
            except NotClaimedError as error:
                refused.append(type(error))

    gate = Gate(in_partition(2))
    topic.write(10, 2)
    slow = loop(topic, id="a", body=body, release_timeout=0.3)
    assert gate.reached.wait(LONGEST)
    quick = loop(topic, id="b").until_read(topic.texts)
    quick.until(lambda: sum(offsets(group).values()) == 10, "the commit")
    gate.opened.set()
    slow.until(lambda: refused, "the refusal")
    slow.until_holding(*topic.ats[:2])
    topic.write(5)
    quick.until(lambda: topic.texts <= (slow.texts + quick.texts).keys(), "everything")
    assert (slow.texts + quick.texts).most_common(2)[0][1] == 2  # the message that took too long
    assert sum((slow.texts + quick.texts).values()) == len(topic.texts) + 1


def test_a_commit_after_all_partitions_were_taken_away_does_not_wait_for_others(
    make_topic: Callable[..., Topic], loop: Loops
) -> None:
    outcomes: list[type[Exception] | None] = []

    def commit(*message: Message) -> None:
        try:
            slow.consumer.commit(*message)
            outcomes.append(None)
        except ZkgroupsException as error:
            outcomes.append(type(error))

    def body(message: Message) -> None:
        gate(message)
        if message is gate.held:
            commit()
            commit(message)

    gate = Gate(in_partition(0))
    topic = make_topic("orders", 1)
    topic.write(1)
    slow = loop(topic, id="b", body=body, release_timeout=0.3, rebalance_timeout=3.0)
    assert gate.reached.wait(LONGEST)
    loop(topic, id="a").until_read(topic.texts)
    gate.opened.set()
    slow.until(lambda: len(outcomes) == 2, "two commits")
    assert outcomes == [None, NotClaimedError]


def test_an_explicit_commit_during_a_rebalance_waits_for_the_next_generation(
    topic: Topic, loop: Loops, group: Consumergroup
) -> None:
    def body(message: Message) -> None:
        gate(message)
        if message is gate.held:
            slow.consumer.commit(message)

    gate = Gate(in_partition(0))
    topic.write(1, 0)
    slow = loop(topic, id="a", body=body, auto_commit_every=None)
    assert gate.reached.wait(LONGEST)
    first = slow.consumer._reading._current
    loop(topic, id="b").until_holding(topic.ats[2])
    slow.until(lambda: slow.consumer._reading._current is not first, "another generation")
    gate.opened.set()
    slow.until(lambda: sum(offsets(group).values()) == 1, "the commit")


def test_on_revoked_can_commit_what_the_loop_has_finished(topic: Topic, loop: Loops, group: Consumergroup) -> None:
    topic.write(10)
    mine = loop(topic, id="a", auto_commit_every=None, on_revoked=lambda _partitions: mine.consumer.commit())
    mine.until_read(topic.texts)
    mine.stop()
    assert sum(offsets(group).values()) == 30
