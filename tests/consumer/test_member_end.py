"""How a member ends: by `close`, from within, and by a signal."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from zkgroups import Consumergroup, Generation, Member, TopicPartition
from zkgroups.exceptions import (
    MemberClosedError,
)

from .conftest import LONGEST

pytestmark = pytest.mark.zookeeper


P0, P1, P5 = (TopicPartition("orders", number) for number in (0, 1, 5))
Partitions = frozenset[TopicPartition]


def test_a_member_may_be_closed_twice_and_iterating_afterwards_is_an_error(
    group: Consumergroup, orders: Partitions
) -> None:
    member = Member(group, ["orders"]).start()
    assert member.next_generation(LONGEST) is not None
    member.close()
    member.close()
    with pytest.raises(MemberClosedError, match="of group 'billing' is closed"):
        next(member.generations())
    with pytest.raises(MemberClosedError):
        member.next_generation()
    with pytest.raises(MemberClosedError):
        member.start()
    assert group.instances() == []
    assert list(group.owners()) == []


@pytest.mark.parametrize("where", ["worker", "body", "callback"])
def test_a_worker_and_a_callback_that_close_the_member_do_not_wait_for_themselves(
    group: Consumergroup, orders: Partitions, where: str
) -> None:
    member = Member(group, ["orders"], release_timeout=10, on_assigned=lambda _: where == "callback" and member.close())

    def work(generation: Generation) -> None:
        if where == "worker":
            member.close()

    with member:
        for generation in member.generations():
            if where == "body":
                member.close()
            generation.start(work)
            generation.wait(LONGEST)
    assert member.stats.interruptions <= 1
    assert group.instances() == []


PROGRAM = """
import signal, sys
from zkgroups import Member, Registry

with Registry.connect(sys.argv[1]) as registry, Member(registry.group("billing"), ["orders"]) as member:
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
    command = [sys.executable, "-c", PROGRAM, zookeeper_hosts]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "working\n"
        process.send_signal(number)
        rest = process.stdout.read()
    assert group.instances() == []
    assert list(group.owners()) == []
    assert group.offsets.fetch(P0).offset == 7  # type: ignore[union-attr]
    assert rest == ("left\n" if number is signal.SIGTERM else "")


def test_a_member_stopped_before_the_first_iteration_has_no_generations(group: Consumergroup) -> None:
    with Member(group, ["orders"]) as member:
        member.stop()
        assert list(member.generations()) == []
