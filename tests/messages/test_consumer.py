"""One consumer: what it hands out, what it commits, and how it ends."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import Message

from tests.testing.waiting import eventually
from zkgroups import CommittedOffset, Consumer, Consumergroup, InstanceState, TopicPartition
from zkgroups.exceptions import (
    HandlerFailedError,
    InvalidOptionError,
    MemberClosedError,
    NotClaimedError,
    OffsetWouldGoBackError,
)
from zkgroups.messages.client_settings import fetching_settings
from zkgroups.testing import KafkaBroker

from .conftest import Loops, Topic
from .looping import LONGEST, QUICK, Loop, at_of

MANUAL: dict[str, Any] = {"auto_commit_every": None}


@pytest.fixture
def consumer(legacy_kafka: KafkaBroker, group: Consumergroup, topic: Topic) -> Any:
    """Create a consumer of the topic: options."""
    settings = QUICK | {"bootstrap.servers": legacy_kafka.address}
    return lambda **options: Consumer(group, [topic.name], kafka=settings, **options)


def committed(group: Consumergroup) -> dict[int, int]:
    return {found.at.partition: found.offset for found in group.offsets if isinstance(found, CommittedOffset)}


def receive(consumer: Consumer, count: int, *, at_once: int = 500) -> list[Message]:
    """Receive exactly that many messages."""
    found: list[Message] = []
    while len(found) < count:
        new = consumer.consume(min(at_once, count - len(found)), LONGEST)
        assert new, f"{len(found)} of {count} messages have come: {consumer.stats()}"
        found += new
    return found


def texts(messages: list[Message]) -> set[str]:
    return {(message.value() or b"").decode() for message in messages}


# Reading


def test_a_loop_receives_each_message_once_and_each_partition_in_order(topic: Topic, loop: Loops) -> None:
    topic.write(700)
    mine = loop(topic).until_read(topic.texts)
    assert set(mine.texts.values()) == {1}
    for at in topic.ats:
        assert [offset for place, offset, _text in mine.messages if place == at] == list(range(700))


def test_consume_returns_at_once_what_has_come_and_an_empty_list_after_the_timeout(consumer: Any, topic: Topic) -> None:
    topic.write(2)
    with consumer() as reading:
        assert texts(receive(reading, 6)) == topic.texts
        assert reading.consume(10, timeout=0.1) == []
        assert reading.poll(0) is None
        topic.write(1, 1)
        message = reading.poll(LONGEST)
        assert at_of(message) == topic.ats[1]


@pytest.mark.parametrize("count", [0, -1, True, 1.5])
def test_consume_refuses_a_count_that_is_not_a_positive_number(consumer: Any, count: Any) -> None:
    with consumer() as reading, pytest.raises(InvalidOptionError, match="count is"):
        reading.consume(count)


def test_messages_that_are_given_back_are_not_committed_and_come_again(
    consumer: Any, topic: Topic, group: Consumergroup
) -> None:
    topic.write(5, 0)
    with consumer() as reading:
        found = receive(reading, 5)
        reading.give_back(3)
        assert (reading.position(topic.ats[0]), reading.stats().messages) == (2, 2)
        reading.commit()
        assert committed(group) == {0: 2}
        assert receive(reading, 2) == found[2:4]
        reading.give_back(1)
        assert next(iter(reading)) is found[3]
        reading.give_back(1)
    assert committed(group) == {0: 3}


def test_the_loop_receives_the_message_again_that_it_has_given_back(consumer: Any, topic: Topic) -> None:
    topic.write(4, 0)
    with consumer() as reading:
        seen = []
        for message in reading:
            seen.append(message.offset())
            if seen == [0, 1]:
                reading.give_back(1)
            if message.offset() == 3:
                break
    assert seen == [0, 1, 1, 2, 3]


@pytest.mark.parametrize("count", [2, -1, True, 1.5])
def test_give_back_refuses_what_is_not_a_number_of_messages_in_hand(consumer: Any, topic: Topic, count: Any) -> None:
    topic.write(2, 0)
    with consumer() as reading:
        receive(reading, 1)
        with pytest.raises(InvalidOptionError, match="count is"):
            reading.give_back(count)


# Committing


def test_a_message_is_committed_by_itself_only_after_the_next_one_was_asked_for(
    consumer: Any, topic: Topic, group: Consumergroup
) -> None:
    topic.write(5, 0)
    with consumer(auto_commit_every=0.1) as reading:
        receive(reading, 3)
        generation = reading._reading._current
        assert eventually(lambda: reading.poll(0) is None or True)  # asks: three are finished, the fourth is in hand
        assert eventually(lambda: committed(group) == {0: 3})
        assert generation.marked[topic.ats[0]] == 3
    assert committed(group) == {0: 3}


def test_after_an_error_in_the_body_the_message_is_read_again(
    consumer: Any, topic: Topic, group: Consumergroup
) -> None:
    topic.write(5, 0)
    with pytest.raises(ZeroDivisionError), consumer() as reading:  # noqa: PT012
        for message in reading:
            assert message.offset() < 3
            if message.offset() == 2:
                raise ZeroDivisionError
    assert committed(group) == {0: 2}
    with consumer() as reading:
        assert [message.offset() for message in receive(reading, 3)] == [2, 3, 4]


def test_an_explicit_commit_includes_the_message_in_hand(consumer: Any, topic: Topic, group: Consumergroup) -> None:
    topic.write(4, 0)
    with consumer() as reading:
        for message in reading:
            if message.offset() == 2:
                reading.commit()
                break
        assert committed(group) == {0: 3}
    assert committed(group) == {0: 3}


def test_the_commit_of_a_message_leaves_later_ones_of_its_partition_and_other_partitions(
    consumer: Any, topic: Topic, group: Consumergroup
) -> None:
    topic.write(4)
    with consumer(**MANUAL) as reading:
        found = receive(reading, 12)
        [chosen] = [each for each in found if at_of(each) == topic.ats[1] and each.offset() == 1]
        reading.commit(chosen)
        assert committed(group) == {1: 2}
    assert committed(group) == {1: 2}


def test_without_auto_commit_nothing_is_committed_but_by_commit(
    consumer: Any, topic: Topic, group: Consumergroup
) -> None:
    topic.write(3, 0)
    with consumer(**MANUAL) as reading:
        receive(reading, 2, at_once=1)
        reading.commit()
        receive(reading, 1)
        reading.poll(0)
    assert committed(group) == {0: 2}


def test_without_auto_commit_a_loop_after_run_commits_nothing_by_itself(
    consumer: Any, topic: Topic, group: Consumergroup
) -> None:
    def fail_at_two(message: Message) -> None:
        assert message.offset() != 2

    topic.write(6, 0)
    with consumer(**MANUAL) as reading:
        with pytest.raises(HandlerFailedError):
            reading.run(fail_at_two, attempts=1)
        assert [message.offset() for message in receive(reading, 3, at_once=1)] == [2, 3, 4]
        reading.poll(0)
    assert committed(group) == {0: 2}


def test_a_thread_that_does_not_read_commits_only_what_is_finished(
    consumer: Any, topic: Topic, group: Consumergroup
) -> None:
    topic.write(3, 0)
    with consumer(**MANUAL) as reading:
        receive(reading, 3, at_once=1)
        other = threading.Thread(target=reading.commit)
        other.start()
        other.join(LONGEST)
    assert committed(group) == {0: 2}


def test_the_commit_of_a_message_of_another_partition_is_refused(
    consumer: Any, topic: Topic, make_topic: Callable[..., Topic], group: Consumergroup
) -> None:
    topic.write(1)
    with consumer() as reading:
        receive(reading, 3)
        with pytest.raises(NotClaimedError):
            reading.commit(Message(topic=topic.name, partition=7, offset=0))
    assert committed(group).keys() <= {0, 1, 2}


# Positions


def test_the_position_is_the_next_message_and_lag_counts_from_there(consumer: Any, topic: Topic) -> None:
    topic.write(5, 0)
    at = topic.ats[0]
    with consumer() as reading:
        receive(reading, 2)
        assert (reading.position(at), reading.lag(at)) == (2, 3)
        stats = reading.stats()
        assert (stats.state, stats.messages) == (InstanceState.STABLE, 2)
        assert stats.partitions.keys() == set(topic.ats) == reading.assignment
        assert (stats.partitions[at].position, stats.partitions[at].lag) == (2, 3)
        assert stats.member.generations == 1
        with pytest.raises(NotClaimedError):
            reading.position(TopicPartition("no-topic", 0))
    assert reading.stats().partitions == {}


def test_a_seek_back_reads_again_and_the_committed_offset_does_not_go_back(
    consumer: Any, topic: Topic, group: Consumergroup
) -> None:
    topic.write(10, 0)
    at = topic.ats[0]
    with consumer() as reading:
        receive(reading, 8)
        reading.commit()
        reading.seek(at, 3)
        assert reading.position(at) == 3
        again = receive(reading, 1, at_once=1)
        assert [message.offset() for message in again] == [3]
        reading.commit()
        assert committed(group) == {0: 8}
        assert [message.offset() for message in receive(reading, 6)] == [4, 5, 6, 7, 8, 9]
        reading.commit()
        assert committed(group) == {0: 10}


def test_a_seek_forward_skips_messages(consumer: Any, topic: Topic, group: Consumergroup) -> None:
    topic.write(10, 0)
    with consumer() as reading:
        receive(reading, 2)
        reading.seek(topic.ats[0], 7)
        assert [message.offset() for message in receive(reading, 3)] == [7, 8, 9]
        reading.commit()
    assert committed(group) == {0: 10}


def test_a_paused_partition_stands_still_and_goes_on_without_a_gap(consumer: Any, topic: Topic) -> None:
    topic.write(20)
    paused = topic.ats[1]
    with consumer() as reading:
        found = receive(reading, 1, at_once=1)
        reading.pause(paused)
        assert reading.stats().partitions[paused].paused
        found += receive(reading, 40 - (at_of(found[0]) != paused), at_once=3)
        assert {at_of(message) for message in found[1:]} == set(topic.ats) - {paused}
        assert reading.consume(3, 0.5) == []
        reading.resume(paused)
        found += receive(reading, 60 - len(found))
    assert [message.offset() for message in found if at_of(message) == paused] == list(range(20))
    assert texts(found) == topic.texts


def test_messages_that_were_put_aside_come_when_another_thread_ends_the_pause(topic: Topic, loop: Loops) -> None:
    def body(_message: Message) -> None:
        assert begin.wait(LONGEST)
        if not mine.messages:
            mine.consumer.pause(topic.ats[0])

    begin = threading.Event()
    topic.write(20, 0)
    mine = loop(topic, body=body)
    begin.set()
    mine.until(lambda: mine.consumer._delivery._aside, "the pause")
    mine.consumer.resume(topic.ats[0])
    mine.until_read(topic.texts)
    assert [offset for _at, offset, _text in mine.messages] == list(range(20))


# Where to begin


def test_start_at_latest_is_committed_at_once_so_that_the_next_owner_skips_nothing(
    consumer: Any, topic: Topic, group: Consumergroup
) -> None:
    topic.write(5)
    with consumer(start_at="latest") as reading:
        assert eventually(lambda: reading.poll(0.05) is None and len(_positions(reading)) == 3)
    assert committed(group) == {0: 5, 1: 5, 2: 5}
    topic.write(1)
    with consumer(start_at="latest") as reading:
        assert [message.offset() for message in receive(reading, 3)] == [5, 5, 5]


def _positions(consumer: Consumer) -> list[int]:
    return [found.position for found in consumer.stats().partitions.values() if found.position is not None]


# The end


def test_stop_ends_the_loop_after_the_message_in_hand_and_commits_it(
    consumer: Any, topic: Topic, group: Consumergroup
) -> None:
    topic.write(9, 0)
    with consumer() as reading:
        for message in reading:
            if message.offset() == 4:
                reading.stop()
        assert committed(group) == {0: 5}
        assert group.instances() == []
        with pytest.raises(MemberClosedError):
            reading.poll(1)


def test_the_consumer_does_not_wait_for_itself_when_the_loop_is_left(
    consumer: Any, topic: Topic, group: Consumergroup
) -> None:
    topic.write(3, 0)
    with consumer(release_timeout=LONGEST, rebalance_timeout=2 * LONGEST) as reading:
        for _message in reading:
            break
        reading.close()
        assert group.instances() == []
    assert committed(group) == {}


def test_a_member_that_cannot_join_raises_its_error_in_the_loop(consumer: Any, topic: Topic) -> None:
    def partitions(_topic: str) -> list[int]:
        raise ZeroDivisionError

    with consumer(partitions=partitions) as reading, pytest.raises(ZeroDivisionError):
        next(iter(reading))


@pytest.mark.parametrize(
    ("kafka", "text"),
    [
        ({}, "bootstrap.servers"),
        ({"bootstrap.servers": "kafka1:9092", "auto.offset.reset": "earliest"}, "use start_at and out_of_range"),
        ({"bootstrap.servers": "kafka1:9092", "enable.auto.commit": True}, "use auto_commit_every"),
        (7, "it must be an address"),
    ],
)
def test_settings_that_a_consumer_must_not_have_are_refused(group: Consumergroup, kafka: Any, text: str) -> None:
    with pytest.raises(InvalidOptionError, match=text):
        Consumer(group, ["orders"], kafka=kafka)


@pytest.mark.parametrize("option", ["on_assigned", "on_revoked", "on_lost", "on_event"])
def test_a_callback_that_is_no_function_is_refused(group: Consumergroup, option: str) -> None:
    with pytest.raises(InvalidOptionError, match=f"{option} is 'print', but it must be a function"):
        Consumer(group, ["orders"], kafka="127.0.0.1:1", **{option: "print"})  # type: ignore[arg-type]


def test_the_client_looks_often_whether_a_partition_can_be_fetched_again_and_users_may_choose_how_often() -> None:
    """With its default of a second, `run` stood still for 0.8 s after each pause of a full partition."""
    assert fetching_settings({}, "billing")["fetch.queue.backoff.ms"] == 20
    assert fetching_settings({"fetch.queue.backoff.ms": 500}, "billing")["fetch.queue.backoff.ms"] == 500


def test_settings_that_the_client_does_not_know_are_refused_without_showing_their_values(group: Consumergroup) -> None:
    consumer = Consumer(group, ["orders"], kafka={"bootstrap.servers": "127.0.0.1:1", "sasl.pasword": "geheim"})
    with pytest.raises(InvalidOptionError, match="No such configuration property") as raised:
        consumer.start()
    assert "geheim" not in str(raised.value)
    consumer.close()


def test_a_commit_below_the_committed_offset_is_refused(consumer: Any, topic: Topic, group: Consumergroup) -> None:
    topic.write(5, 0)
    group.offsets.set(topic.ats[0], 3)
    with consumer() as reading:
        receive(reading, 1)
        with pytest.raises(OffsetWouldGoBackError):
            reading.commit(Message(topic=topic.name, partition=0, offset=1))


def test_a_partition_that_was_paused_when_it_was_revoked_is_read_when_it_comes_back(
    consumer: Any, topic: Topic, legacy_kafka: KafkaBroker, group: Consumergroup
) -> None:
    topic.write(1)
    with consumer(id="a") as reading:
        receive(reading, 3)
        reading.poll(0)
        reading.pause(*topic.ats)
        reading.poll(0)
        with Loop(legacy_kafka, group.name, topic.name, id="b"):
            assert eventually(lambda: reading.poll(0.05) is None and len(reading.assignment) == 2, timeout=LONGEST)
        assert eventually(lambda: reading.poll(0.05) is None and len(reading.assignment) == 3, timeout=LONGEST)
        topic.write(1)
        assert at_of(reading.poll(LONGEST)) == topic.ats[2]
