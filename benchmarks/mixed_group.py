"""How soon a group of Scala members and of clients of a gateway has its new shares after each change.

    python -m benchmarks.mixed_group [--rounds 3]

One round: a librdkafka client joins alone, a Scala member joins, a second client joins, the Scala member is killed, it
joins again, both clients leave one after the other, a client joins after everybody has left, and the gateway is killed.
The time of a step ends when all owner nodes and all clients have the shares that Scala computes. The time in which the
Java process of a Scala member starts does not count.

Clients send a heartbeat each 300 ms. Scala members wait 500 ms before they try again. After a kill, nothing moves
before the session has expired: these two steps also have their ratio to the session timeout. The first generation of an
empty group begins 3 s after the first client has joined, as with a broker: `joining` and `joining-again` contain that.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any

from benchmarks import Stopwatch, Times, result, table
from benchmarks.gateway import gateway_process
from tests.consumer.scala import ScalaConsumer
from tests.gateway.peers import Member
from zkgroups import Consumergroup, Owner, Registry
from zkgroups.testing import KafkaBroker, ZooKeeperServer

TOPIC, PARTITIONS, MESSAGES = "mixed", 6, 300
PATIENCE = 60.0
GATEWAY_SESSION, SCALA_SESSION = 10.0, 6.0
INITIAL_DELAY = 3.0
CLIENT = {
    "heartbeat.interval.ms": 300,
    "enable.auto.commit": True,
    "auto.commit.interval.ms": 200,
}
SCALA = {
    "rebalance.backoff.ms": "500",
    "zookeeper.session.timeout.ms": str(round(SCALA_SESSION * 1000)),
}


class MixedGroup:
    """One group, and its members by name."""

    def __init__(self, broker: KafkaBroker, registry: Registry, name: str, gateway: str, stack: ExitStack) -> None:
        self.group: Consumergroup = registry.group(name)
        self._broker, self._gateway, self._stack = broker, gateway, stack
        self.clients: dict[str, Member] = {}

    def client(self, name: str) -> Member:
        settings: dict[str, Any] = CLIENT | {"client.id": name}
        member = self.clients[name] = Member(self._gateway, self.group.name, TOPIC, **settings)
        self._stack.callback(self.leave, name)
        return member

    def leave(self, name: str) -> None:
        """Let a client leave the group. Further calls do nothing."""
        if (member := self.clients.pop(name, None)) is not None:
            member.consumer.close()

    def scala(self, name: str) -> ScalaConsumer:
        member = ScalaConsumer(self._broker, self.group.name, name, {TOPIC: 1}, config=SCALA)
        return self._stack.enter_context(member)

    def settle(self, *shares: int) -> None:
        """Wait until the partitions are shared by owners with these numbers of partitions, and the clients know it."""
        self.wait(lambda: self._is_settled(shares), f"shares {shares}")

    def wait(self, done: Callable[[], object], what: str) -> None:
        deadline = time.monotonic() + PATIENCE
        while not done():
            if time.monotonic() > deadline:
                raise RuntimeError(f"no {what} after {PATIENCE:g} s: {self.owners()}")

    def _is_settled(self, shares: Sequence[int]) -> bool:
        for member in self.clients.values():
            member.poll()
        owners = self.owners()
        found = {owner: {n for n, each in owners.items() if each == owner} for owner in owners.values()}
        theirs = [partitions for owner, partitions in found.items() if owner.split("-")[0] in self.clients]
        return sorted(map(len, found.values())) == sorted(shares) and sorted(map(sorted, theirs)) == sorted(
            sorted(member.partitions) for member in self.clients.values()
        )

    def owners(self) -> dict[int, str]:
        return {owner.at.partition: owner.id for owner in self.group.owners() if isinstance(owner, Owner)}


def play(number: int, broker: KafkaBroker, registry: Registry) -> tuple[Times, dict[str, int]]:
    """Play one round in a new group. Return the time of each step, the number of messages that the last client read
    again, and of Scala members that gave up.
    """
    watch, members = Stopwatch(), []
    with ExitStack() as stack, ExitStack() as killed:
        where = ("-b", broker.address, "-z", broker.zookeeper, "--session-timeout", f"{GATEWAY_SESSION:g}")
        process, gateway = killed.enter_context(gateway_process(*where))
        group = MixedGroup(broker, registry, f"mixed-{number}", gateway, stack)
        with watch.step("joining"):
            members.append(group.client("m1"))
            group.settle(6)
        scalas = [group.scala("sc")]
        group.wait(lambda: len(group.group.instances()) == 2, "registered Scala member")
        with watch.step("scala-joins"):
            group.settle(3, 3)
        with watch.step("second-joins"):
            members.append(group.client("m2"))
            group.settle(2, 2, 2)
        with watch.step("scala-killed"):
            scalas[0].kill()
            group.settle(3, 3)
        scalas.append(group.scala("sc-again"))
        group.settle(2, 2, 2)
        with watch.step("first-leaves"):
            group.leave("m1")
            group.settle(3, 3)
        with watch.step("second-leaves"):
            group.leave("m2")
            group.settle(6)
        scalas[1].stop()
        with watch.step("joining-again"):
            last = group.client("m3")
            group.settle(6)
        for _ in range(20):
            last.poll()
        read = {message for member in members for message in member.read}
        read |= {(each.at.partition, each.offset) for scala in scalas for each in scala.messages}
        with watch.step("gateway-killed"):
            process.kill()
            group.wait(lambda: not group.owners(), "partitions without an owner")
        gave_up = sum("can't rebalance after" in scala.log_tail(10**6) for scala in scalas)
    return watch.seconds, {"read_again": len(read.intersection(last.read)), "gave_up": gave_up}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    rounds = parser.parse_args().rounds
    with ZooKeeperServer() as zookeeper, ExitStack() as stack:
        broker = stack.enter_context(KafkaBroker(release="1.1.1", zookeeper=f"{zookeeper.address}/kafka"))
        registry = stack.enter_context(Registry.connect(broker.zookeeper))
        broker.create_topic(TOPIC, PARTITIONS)
        for partition in range(PARTITIONS):
            broker.write(TOPIC, partition, MESSAGES)
        played = list(map(partial(play, broker=broker, registry=registry), range(rounds)))
    seconds = {step: statistics.median(times[step] for times, _ in played) for step in played[0][0]}
    table("a mixed group", {"settled after": seconds})
    result(
        "mixed_group",
        seconds={step: round(time, 2) for step, time in seconds.items()},
        without_initial_delay={step: round(seconds[step] - INITIAL_DELAY, 2) for step in ("joining", "joining-again")},
        of_the_session_timeout={
            "scala-killed": round(seconds["scala-killed"] / SCALA_SESSION, 2),
            "gateway-killed": round(seconds["gateway-killed"] / GATEWAY_SESSION, 2),
        },
        **{name: max(numbers[name] for _, numbers in played) for name in played[0][1]},
    )


if __name__ == "__main__":
    main()
