"""A process with a consumer forks: the child has no consumer, and disturbs that of its parent in nothing."""

from __future__ import annotations

import subprocess
import sys

import pytest

from zkgroups.core.znodes.offset_sides import Side
from zkgroups.migration.live_move import MoveOutcome
from zkgroups.testing import KafkaBroker

from .conftest import Topic
from .looping import LONGEST, ROOT
from .sides import Sides

FORKING = """
import os, signal, sys, warnings
warnings.simplefilter("ignore")
from zkgroups import Consumer, Registry
from zkgroups.exceptions import MemberClosedError

zookeeper, kafka, group, topic = sys.argv[1:]
registry = Registry.connect(zookeeper, session_timeout=20)
consumer = Consumer(registry.group(group), [topic], kafka=kafka, offsets="both", truth="zookeeper").start()
assert consumer.poll(60).offset() == 0
if (child := os.fork()) == 0:
    signal.alarm(30)
    try:
        consumer.poll(1)
    except MemberClosedError:
        consumer.close()
        registry.close()
        sys.exit(0)
    sys.exit(1)
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
    assert (done.stdout, done.returncode) == ("0 1 3\n", 0), done.stderr
    assert sides.offsets(side)[0] == 1
