"""Partitions that pass between processes, which are killed or end, and a Scala member: nothing is left out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest

from tests.consumer.scala import ScalaConsumer
from tests.waiting import eventually
from zkgroups import CommittedOffset, Consumergroup
from zkgroups.testing import KafkaBroker

from .conftest import Loops, Topic
from .looping import LASTING, LONGEST, LoopProcess


def committed(group: Consumergroup) -> int:
    """The sum of all committed offsets."""
    return sum(found.offset for found in group.offsets if isinstance(found, CommittedOffset))


def test_after_a_kill_only_messages_since_the_last_commit_are_read_again(
    topic: Topic, loop: Loops, group: Consumergroup, legacy_kafka: KafkaBroker
) -> None:
    with LoopProcess(legacy_kafka, group.name, topic.name, "a", every=0.1, session=LASTING / 2) as victim:
        topic.write(200)
        assert eventually(lambda: victim.texts.keys() == topic.texts)
        assert eventually(lambda: committed(group) == 600)
        survivor = loop(topic, id="b")
        survivor.until(lambda: len(survivor.consumer.assignment) == 1, "a share")
        topic.write(200)
        victim.kill()
        last = {found.at: found.offset for found in group.offsets if isinstance(found, CommittedOffset)}
        topic.write(200)
        survivor.until(lambda: topic.texts <= (survivor.texts + victim.texts).keys(), "all messages")
        before = victim.texts
        again = [(at, offset) for at, offset, text in survivor.messages if text in before]
        assert [(at, offset) for at, offset in again if offset < last[at]] == []
        assert set(survivor.texts.values()) == set(before.values()) == {1}
    survivor.stop()
    assert committed(group) == len(topic.texts)


def test_a_terminated_process_commits_everything_and_leaves(
    topic: Topic, loop: Loops, group: Consumergroup, legacy_kafka: KafkaBroker
) -> None:
    topic.write(100)
    with LoopProcess(legacy_kafka, group.name, topic.name, "a", every=1000.0, session=LASTING) as terminated:
        assert eventually(lambda: len(terminated.texts) > 150)
        terminated.terminate()
        read = terminated.texts
    assert committed(group) == sum(read.values())
    assert (group.instances(), list(group.owners())) == ([], [])
    rest = loop(topic).until_read(topic.texts - read.keys())
    assert set((read + rest.texts).values()) == {1}


def test_partitions_pass_between_a_scala_member_and_a_consumer(
    topic: Topic, loop: Loops, group: Consumergroup, legacy_kafka: KafkaBroker
) -> None:
    ours = loop(topic, id="ours:1").until_holding(*topic.ats)
    topic.write(100)
    ours.until_read(topic.texts)
    config = {"zookeeper.session.timeout.ms": str(round(LASTING * 1000))}
    with ScalaConsumer(legacy_kafka, group.name, "s", {topic.name: 1}, config=config) as theirs:
        ours.until(lambda: len(ours.consumer.assignment) < 3 and len(set(group.owners())) == 3, "a share of theirs")
        topic.write(100)
        ours.until(lambda: topic.texts <= (ours.texts.keys() | {each.text for each in theirs.messages}), "everything")
        theirs.stop()
        read_by_them = Counter(each.text for each in theirs.messages)
    ours.until_holding(*topic.ats)
    topic.write(100)
    ours.until(lambda: topic.texts <= (read_by_them + ours.texts).keys(), "everything")
    assert set((read_by_them + ours.texts).values()) == {1}
    ours.stop()
    assert committed(group) == len(topic.texts)


@pytest.mark.soak
@pytest.mark.timeout(1200)
def test_consumers_that_are_killed_and_started_again_leave_no_message_out(
    make_topic: Callable[..., Topic], group: Consumergroup, legacy_kafka: KafkaBroker
) -> None:
    topic, everything, gone = make_topic(6), Counter[str](), 0
    running = [LoopProcess(legacy_kafka, group.name, topic.name, f"r{n}").__enter__() for n in range(3)]
    for number in range(20):
        topic.write(500)
        victim = running.pop(0)
        assert eventually(lambda: victim.texts), "it must have begun"  # noqa: B023
        if number % 2:
            victim.kill()
            gone += 1
        else:
            victim.terminate()
        everything += victim.texts
        victim.__exit__()
        running.append(LoopProcess(legacy_kafka, group.name, topic.name, f"s{number}").__enter__())
    found = [*running]
    assert eventually(
        lambda: topic.texts <= sum((each.texts for each in found), everything).keys(), timeout=4 * LONGEST
    )
    for each in running:
        each.terminate()
        everything += each.texts
        each.__exit__()
    assert committed(group) == len(topic.texts)
    twice = sum(everything.values()) - len(topic.texts)
    print(f"{len(topic.texts)} messages, {gone} kills, {twice} read twice")
