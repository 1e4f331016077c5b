"""Kafka's clients through a gateway, compared with the same clients directly at the broker.

    python -m benchmarks.gateway [--messages 300000] [--single 2000] [--members 100] [--partitions 1000] [--rounds 7]

- messages of 1 kB: librdkafka reads and writes them in batches
- one message at a time, to a waiting consumer: by turns directly and through the gateway, so that other programs on the
  machine slow down both alike
- rebalance: a member changes its subscription, and all members join again until each has its partitions
- commits: members commit their partitions at the same time, each waits for the answer; with groups in memory, and with
  groups in ZooKeeper

Each gateway is a process of its own. A ratio of 0.9 means that the gateway has 0.9 of the broker's throughput, or
takes 1 / 0.9 of its time. The broker stores groups and offsets on disk, the gateway in memory does not.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import socket
import statistics
import sys
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, OFFSET_END, Consumer, Producer, TopicPartition

from benchmarks import Times, every_round, in_turn, medians, paired_ratios, ratios, result, table
from benchmarks._group_clients import GroupClient, all_are_assigned, everybody_joins, first_generation
from zkgroups import Registry
from zkgroups.testing import ChildProcess, KafkaBroker, ZooKeeperServer, local_server

MESSAGE = os.urandom(1000)
PATIENCE = 60.0
READ, WRITTEN, SHARED, COMMITTED = "to-read", "written", "shared", "committed"
COMMITTERS = 10

Use = Callable[[list[GroupClient]], Coroutine[Any, Any, Times]]


@contextmanager
def running_gateway(*arguments: str) -> Iterator[str]:
    """Run the command, and yield the address of the gateway."""
    with gateway_process(*arguments) as (_process, address):
        yield address


@contextmanager
def gateway_process(*arguments: str) -> Iterator[tuple[ChildProcess, str]]:
    """Run the command, and yield its process and the address of the gateway."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory()))
        listen, broker = local_server.reserve(), local_server.reserve()
        stack.callback(listen.release)
        stack.callback(broker.release)
        address = f"{local_server.HOST}:{listen.number}"
        command = [str(Path(sys.executable).with_name("zkgroups")), "gateway", "--listen", address]
        command += ["--broker-ports", f"{broker.number}-{broker.number}", *arguments]
        process = stack.enter_context(ChildProcess(command, log=folder / "log"))
        deadline = time.monotonic() + PATIENCE
        while not listens(local_server.HOST, listen.number):
            if not process.running or time.monotonic() > deadline:
                raise RuntimeError(f"the gateway did not start:\n{process.tail()}")
            time.sleep(0.1)
        yield process, address


def listens(host: str, port: int) -> bool:
    with socket.socket() as trial:
        return trial.connect_ex((host, port)) == 0


# Messages


def consumer_at(address: str, topic: str, offset: int, partitions: int = 1) -> Consumer:
    consumer = Consumer({"bootstrap.servers": address, "group.id": "unused", "enable.auto.commit": False})
    consumer.assign([TopicPartition(topic, number, offset) for number in range(partitions)])
    return consumer


def consume(address: str, messages: int) -> Times:
    consumer = consumer_at(address, READ, OFFSET_BEGINNING)
    began, left = 0.0, messages
    while left:
        found = consumer.consume(10_000, timeout=PATIENCE)
        assert found
        began = began or time.perf_counter()  # the time to connect does not count
        left -= len(found)
    seconds = time.perf_counter() - began
    consumer.close()
    return {"consume": seconds}


def produce(address: str, messages: int, topic: str = WRITTEN) -> Times:
    producer = Producer({"bootstrap.servers": address, "linger.ms": 5, "queue.buffering.max.messages": 10**6})
    producer.list_topics(topic, timeout=PATIENCE)
    began = time.perf_counter()
    for _ in range(messages):
        while True:
            try:
                producer.produce(topic, MESSAGE)
                break
            except BufferError:
                producer.poll(0.01)
    assert producer.flush(PATIENCE) == 0
    return {"produce": time.perf_counter() - began}


class Pair:
    """A producer, and a consumer that waits for its messages."""

    def __init__(self, address: str, topic: str) -> None:
        self._topic = topic
        self._producer = Producer({"bootstrap.servers": address, "linger.ms": 0, "acks": 1})
        self._consumer = consumer_at(address, topic, OFFSET_END)
        while self._consumer.poll(0.1) is None:  # until both are connected
            self._producer.produce(topic, MESSAGE)
            self._producer.flush(PATIENCE)
        while self._consumer.poll(0.5) is not None:
            pass

    def exchange(self) -> float:
        """Return the time from sending a message to having it."""
        began = time.perf_counter()
        self._producer.produce(self._topic, MESSAGE)
        assert self._consumer.poll(PATIENCE) is not None
        took = time.perf_counter() - began
        self._producer.flush(PATIENCE)
        return took

    def close(self) -> None:
        self._consumer.close()


def one_at_a_time(addresses: Mapping[str, str], messages: int) -> dict[str, list[float]]:
    """Let each contender send a message, and again. Return all times of each."""
    pairs = {name: Pair(address, f"single-{name}") for name, address in addresses.items()}
    found: dict[str, list[float]] = {name: [] for name in pairs}
    for _ in range(messages):
        for name, pair in pairs.items():
            found[name].append(pair.exchange())
    for pair in pairs.values():
        pair.close()
    return found


def messages_through(address: str, messages: int) -> Callable[[int], Times]:
    return lambda _round: consume(address, messages) | produce(address, messages // 3)


def compare_messages(addresses: Mapping[str, str], given: argparse.Namespace) -> dict[str, float]:
    """Return the ratios of throughput and of the time of single messages, and print tables."""
    batches = every_round(
        {name: messages_through(address, given.messages) for name, address in addresses.items()}, rounds=given.rounds
    )
    table(f"{given.messages} messages of 1 kB", medians(batches))
    single = one_at_a_time(addresses, given.single)
    quantiles = {name: statistics.quantiles(times, n=10) for name, times in single.items()}
    table("one message at a time", {name: {"p10": tens[0], "p50": tens[4]} for name, tens in quantiles.items()})
    direct, gateway = quantiles["direct"], quantiles["gateway"]
    latency = {"p10": gateway[0] / direct[0], "p50": gateway[4] / direct[4]}
    return paired_ratios(batches["gateway"], batches["direct"]) | {
        f"latency_{name}": round(ratio, 2) for name, ratio in latency.items()
    }


# Groups


def plant(hosts: str, topic: str, partitions: int) -> None:
    """Store the topic in ZooKeeper as a broker does that uses ZooKeeper."""
    data = json.dumps({"version": 1, "partitions": {str(number): [1] for number in range(partitions)}}).encode()
    with Registry.connect(hosts) as registry:
        registry.client.create(f"/brokers/topics/{topic}", data, makepath=True)


def group_at(address: str, topic: str, members: int, partitions: int, use: Use) -> Callable[[int], Times]:
    """Start a group with so many members for each round."""

    async def run(number: int) -> Times:
        clients = [await GroupClient(f"{topic}-{number}", topic).connect(address) for _ in range(members)]
        try:
            await first_generation(clients, topic, partitions)
            assert all_are_assigned(clients, partitions)
            return await use(clients)
        finally:
            for each in clients:
                await each.close()

    return lambda number: asyncio.run(run(number))


def rebalance(topic: str, partitions: int) -> Use:
    async def use(clients: list[GroupClient]) -> Times:
        took = []
        for _ in range(5):
            began = time.perf_counter()
            await everybody_joins(clients, topic, partitions)
            took.append(time.perf_counter() - began)
            assert all_are_assigned(clients, partitions)
        return {"rebalance": statistics.median(took)}

    return use


def commit(count: int) -> Use:
    async def use(clients: list[GroupClient]) -> Times:
        async def some(client: GroupClient) -> None:
            for offset in range(count):
                await client.commit(offset)

        began = time.perf_counter()
        await asyncio.gather(*map(some, clients))
        return {"commit": (time.perf_counter() - began) / (count * len(clients))}

    return use


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--messages", type=int, default=300_000)
    parser.add_argument("--single", type=int, default=2000)
    parser.add_argument("--members", type=int, default=100)
    parser.add_argument("--partitions", type=int, default=1000)
    parser.add_argument("--commits", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=7)
    given = parser.parse_args()
    with ExitStack() as stack:
        broker = stack.enter_context(KafkaBroker())
        zookeeper = stack.enter_context(ZooKeeperServer())
        plant(zookeeper.address, COMMITTED, COMMITTERS**2)
        for topic in (READ, WRITTEN, "single-direct", "single-gateway"):
            broker.create_topic(topic)
        broker.create_topic(SHARED, given.partitions)
        broker.create_topic(COMMITTED, COMMITTERS * COMMITTERS)
        produce(broker.address, given.messages, READ)
        memory = stack.enter_context(running_gateway("-b", broker.address, "--memory"))
        found = compare_messages({"direct": broker.address, "gateway": memory}, given)
        again = rebalance(SHARED, given.partitions)
        rebalanced = in_turn(
            {
                "direct": group_at(broker.address, SHARED, given.members, given.partitions, again),
                "gateway": group_at(memory, SHARED, given.members, given.partitions, again),
            },
            rounds=given.rounds,
        )
        table(f"{given.members} members, {given.partitions} partitions", rebalanced)
        kept = stack.enter_context(running_gateway("-b", broker.address, "-z", zookeeper.address))
        commits = commit(given.commits)
        committed = in_turn(
            {
                name: group_at(address, COMMITTED, COMMITTERS, COMMITTERS**2, commits)
                for name, address in {"direct": broker.address, "memory": memory, "zookeeper": kept}.items()
            },
            rounds=given.rounds,
        )
        table(f"{COMMITTERS} members, each commits {COMMITTERS} offsets", committed)
    result(
        "gateway",
        messages_vs_direct=found,
        rebalance_vs_broker=ratios(rebalanced["gateway"], rebalanced["direct"]),
        commits_per_second={name: round(1 / times["commit"]) for name, times in committed.items()},
        commits_vs_broker={
            name: ratios(committed[name], committed["direct"])["commit"] for name in ("memory", "zookeeper")
        },
    )


if __name__ == "__main__":
    main()
