"""A process with a consumer forks, and its child has none. Or it gets SIGTERM, commits and leaves."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.waiting import eventually
from zkgroups import Consumergroup
from zkgroups.core.znodes.values import Side
from zkgroups.migration.live_move import MoveOutcome
from zkgroups.testing import KafkaBroker

from ..conftest import offsets
from ..looping import LASTING, LONGEST, ROOT, LoopProcess, Topic
from .conftest import Loops
from .sides import Sides

FORKING = """
import os, signal, sys, warnings
warnings.simplefilter("ignore")
from zkgroups import Consumer, Registry, TopicPartition
from zkgroups.exceptions import MemberClosedError

zookeeper, kafka, group, topic = sys.argv[1:]
registry = Registry.connect(zookeeper, session_timeout=20)
consumer = Consumer(registry.group(group), [topic], kafka=kafka, offsets="both", truth="zookeeper").start()
assert consumer.poll(60).offset() == 0
if (child := os.fork()) == 0:
    signal.alarm(15)
    refused = 0
    at = next(iter(consumer.assignment), None) or TopicPartition(topic, 0)
    for call in (
        lambda: consumer.poll(1), lambda: next(iter(consumer)), lambda: consumer.run(print), consumer.commit,
        lambda: consumer.give_back(1), lambda: consumer.seek(at, 0), lambda: consumer.pause(at), consumer.stats,
    ):
        try:
            call()
        except MemberClosedError:
            refused += 1
    consumer.close()
    registry.close()
    sys.exit(refused)
status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
print(status, consumer.poll(60).offset(), len(consumer.assignment), flush=True)
consumer.close()
"""


@pytest.mark.parametrize("side", list(Side))
def test_a_fork_closes_only_its_copy_of_a_consumer_and_does_not_hang(
    topic: Topic, sides: Sides, legacy_kafka: KafkaBroker, side: Side
) -> None:
    topic.write(3, 0)
    sides.group.create()
    if side is Side.KAFKA:
        assert sides.move(side) is MoveOutcome.MOVED
    where = [legacy_kafka.zookeeper, legacy_kafka.address, sides.group.name, topic.name]
    command = [sys.executable, "-c", FORKING, *where]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=3 * LONGEST)
    assert (done.stdout, done.returncode) == ("8 1 3\n", 0), done.stderr
    assert sides.offsets(side)[0] == 1


FORKING_IN_A_LOOP = """
import asyncio, os, signal, sys, warnings
warnings.simplefilter("ignore")
from zkgroups import Registry, aio
from zkgroups.exceptions import MemberClosedError

zookeeper, kafka, group, topic = sys.argv[1:]
registry = Registry.connect(zookeeper, session_timeout=20)

async def in_a_fork(consumer, member, generation):
    refused = 0
    for call in (consumer.poll, consumer.commit, consumer.start, member.start, generation.commit):
        try:
            await call()
        except MemberClosedError:
            refused += 1
    await consumer.close()
    await member.close()
    os._exit(refused)  # the loop of the parent is still on the stack

async def main():
    consumer = await aio.Consumer(registry.group(group), [topic], kafka=kafka).start()
    member = await aio.Member(registry.group(group + "-2"), [topic]).start()
    assert (await consumer.poll(60)).offset() == 0
    generation = await member.next_generation(60)
    if (child := os.fork()) == 0:
        signal.alarm(15)
        asyncio.events._set_running_loop(None)
        asyncio.run(in_a_fork(consumer, member, generation))
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), (await consumer.poll(60)).offset(), flush=True)
    await consumer.close()
    await member.close()

asyncio.run(main())
"""


def test_in_a_fork_members_and_consumers_of_asyncio_refuse_calls_at_once(
    topic: Topic, group: Consumergroup, legacy_kafka: KafkaBroker
) -> None:
    topic.write(3, 0)
    where = [legacy_kafka.zookeeper, legacy_kafka.address, group.name, topic.name]
    command = [sys.executable, "-c", FORKING_IN_A_LOOP, *where]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=3 * LONGEST)
    assert (done.stdout, done.returncode) == ("5 1\n", 0), done.stderr


def test_a_terminated_process_commits_everything_and_leaves(
    topic: Topic, loop: Loops, group: Consumergroup, legacy_kafka: KafkaBroker
) -> None:
    topic.write(100)
    with LoopProcess(legacy_kafka, group.name, topic.name, "a", every=1000.0, session=LASTING) as terminated:
        assert eventually(lambda: len(terminated.texts) > 150)
        terminated.stop()
        read = terminated.texts
    assert sum(offsets(group).values()) == sum(read.values())
    assert (group.instances(), list(group.owners())) == ([], [])
    rest = loop(topic).until_read(topic.texts - read.keys())
    assert set((read + rest.texts).values()) == {1}
