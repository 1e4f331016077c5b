"""Members on real servers: signals, forks, many members at once, and topics of a real broker."""

from __future__ import annotations

import itertools
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient, NewPartitions

from tests.releases import needs_multiread
from tests.waiting import LONGEST, eventually
from zkgroups import Consumergroup, Generation, InstanceState, Member, Registry, TopicPartition
from zkgroups.testing import KafkaBroker, TcpProxy, ZooKeeperServer

from ..conftest import Partitions, Run, ats, committed, plant_topic

pytestmark = pytest.mark.zookeeper

ROOT = Path(__file__).parents[3]
P0 = TopicPartition("orders", 0)

PREPARED = """
import faulthandler, os, signal, sys, threading, time, warnings
warnings.simplefilter("ignore")
from zkgroups import Member, Registry
from zkgroups.exceptions import GenerationEndedError, MemberClosedError
registry = Registry.connect(sys.argv[1], session_timeout=20)
"""

ENDED_BY_A_SIGNAL = """
with registry, Member(registry.group("billing"), ["orders"]) as member:
    signal.signal(signal.SIGTERM, lambda *_: member.stop())
    for generation in member.generations():
        generation.mark(next(iter(generation.partitions)), 7)
        print("working", flush=True)
        generation.wait()
print("left", flush=True)
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=["TERM to stop()", "Ctrl-C"])
def test_a_signal_makes_a_member_commit_and_leave(
    group: Consumergroup, zookeeper_hosts: str, orders: Partitions, number: signal.Signals
) -> None:
    command = [sys.executable, "-c", PREPARED + ENDED_BY_A_SIGNAL, zookeeper_hosts]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "working\n"
        process.send_signal(number)
        rest = process.stdout.read()
    assert (group.instances(), list(group.owners())) == ([], [])
    assert list(committed(group).values()) == [7]
    assert rest == ("left\n" if number is signal.SIGTERM else "")


def output(hosts: str, program: str) -> str:
    """Run a program that must not hang."""
    command = [sys.executable, "-c", PREPARED + program, hosts]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=2 * LONGEST)
    assert done.returncode == 0, done.stderr
    return done.stdout


FORKING_WHILE_WORKING = """
member = Member(registry.group("billing"), "orders", id="parent")
generation = member.next_generation()
at = next(iter(generation.partitions))

def work():
    for offset in range(10**9):
        generation.mark(at, offset)
        if offset % 100 == 0:
            generation.commit()

for _ in range(2):
    threading.Thread(target=work, daemon=True).start()

def refused(call):
    try:
        call()
    except GenerationEndedError:
        return True

statuses = set()
for _ in range(20):
    child = os.fork()
    if child == 0:
        faulthandler.dump_traceback_later(60, exit=True)
        assert refused(lambda: generation.mark(at, 1)) and refused(generation.commit) and generation.wait()
        os._exit(0)
    statuses.add(os.waitpid(child, 0)[1])
print(statuses, generation.active, flush=True)
os._exit(0)
"""


def test_failure_24_a_fork_cannot_use_the_generations_of_its_parent_and_does_not_hang(
    zookeeper_hosts: str, orders: Partitions
) -> None:
    assert output(zookeeper_hosts, FORKING_WHILE_WORKING) == "{0} True\n"


# Failure 9: many members at once

STORM = 200


@needs_multiread
@pytest.mark.parametrize("assignor", ["range", pytest.param("sticky", marks=pytest.mark.soak)])
def test_failure_9_two_hundred_members_that_join_at_once_send_few_requests_and_settle(assignor: str) -> None:
    with ExitStack() as stack:
        server = stack.enter_context(ZooKeeperServer())
        proxy = stack.enter_context(TcpProxy(server.address))
        registries = [stack.enter_context(Registry.connect(proxy.address)) for _ in range(4)]
        plant_topic(registries[0].client, "orders", STORM)
        options: dict[str, Any] = {"assignors": [assignor], "reconcile_every": 3600.0}  # no looks on a slow machine
        members = [Member(registries[n % 4].group("billing"), "orders", id=f"m{n:03}", **options) for n in range(STORM)]
        before = proxy.requests
        for member in members:
            stack.callback(member.close)
        stack.callback(lambda: [member.stop() for member in members])
        for member in members:
            member.start()
        assert eventually(lambda: all(len(each.assignment) == 1 and is_stable(each) for each in members))
        assert proxy.requests - before < 80 * STORM
        stats = [member.stats for member in members]
        assert max(each.looks for each in stats) <= 10
        assert max(each.rebalances for each in stats) <= 5


def is_stable(member: Member) -> bool:
    return member.state is InstanceState.STABLE


# Topics of a real broker: failures 12 and 13

_numbers = itertools.count()


def test_topics_of_a_real_broker_are_followed_when_they_are_created_extended_deleted_and_recreated(
    legacy_kafka: KafkaBroker, connect: Callable[..., Registry], run: Run
) -> None:
    def work(generation: Generation) -> None:
        for at in generation.partitions:
            generation.mark(at, 1000)
        generation.wait()

    topic, group = f"followed-{next(_numbers)}", connect(legacy_kafka.zookeeper).group(f"followers-{next(_numbers)}")
    admin = AdminClient({"bootstrap.servers": legacy_kafka.address, "log_level": 0})
    options: dict[str, Any] = {"on": group, "reconcile_every": 3600.0}
    a = run([topic], id="a", **options).until_holding()
    legacy_kafka.create_topic(topic, 2)
    a.until_holding(ats(topic, 0, 1))
    b = run((), pattern=f"{topic}.*", id="b", **options).until_holding(ats(topic, 1))
    [added] = admin.create_partitions([NewPartitions(topic, 6)]).values()
    added.result()
    a.until_holding(ats(topic, 0, 1, 2))
    b.until_holding(ats(topic, 3, 4, 5)).close()
    a.until_holding(ats(topic, *range(6))).generation.start(work)
    [deleted] = admin.delete_topics([topic]).values()
    deleted.result()
    a.until_holding()
    assert (list(group.offsets), list(group.owners())) == ([], [])
    legacy_kafka.create_topic(topic, 1)
    a.until_holding(ats(topic, 0))
    assert list(group.offsets) == []
