"""Moving groups to Kafka's committed offsets, compared with a simple loop, on a real broker.

    python -m benchmarks.migration [--groups 2000] [--partitions 50] [--loop 40] [--huge 20000]

- moved: plan, apply and verify with Spark (local[2]), like `zkgroups migrate`, in a warm session. First with a tenth of
  the groups, and then with as many other groups as requested. The share of each step is printed
- local: the same in this process, with `--engine local`; with `--huge`, also for so many groups
- shell: ten groups, each step as a command with `--engine local`: the time of the whole process
- loop: `KazooClient.get` and `AdminClient.alter_consumer_group_offsets` for one partition after the other, without any
  check
- bare: only the requests of a plan, an apply and a verify, all in flight at once, without Spark, marks, checks or
  reports. This is the lower bound for this client

Memory: the peak of Spark's JVM, its workers and this process together, sampled, in megabytes. Processor time: of the
same processes, for 100,000 offsets. Unlike all other numbers, it hardly depends on other programs on the machine.
"""

from __future__ import annotations

import argparse
import logging
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from confluent_kafka import ConsumerGroupTopicPartitions, Producer
from confluent_kafka import TopicPartition as Partition
from confluent_kafka.admin import AdminClient
from kazoo.client import KazooClient

from benchmarks import Stopwatch, Times, result, table
from benchmarks._trees import commit_all
from zkgroups import Registry
from zkgroups.core.znodes.paths import Part
from zkgroups.kafka import BrokerOptions
from zkgroups.migration.local_engine import LocalEngine
from zkgroups.migration.planning import plan
from zkgroups.migration.steps import apply, verify
from zkgroups.migration.tasks import Engine
from zkgroups.spark.migration.engine import SparkEngine
from zkgroups.spark.session import own_session
from zkgroups.testing import KafkaBroker, ZooKeeperServer
from zkgroups.zookeeper.reading.tree_walk import leaves
from zkgroups.zookeeper.session.session import context_of
from zkgroups.zookeeper.zookeeper_source import ZooKeeperSource

TOPICS = 5
MESSAGES = 100
WARM = 100
SHELL_GROUPS, SHELL_ROUNDS = 10, 3
SETTINGS = {"spark.driver.memory": "1g"}
"""Spark's default, so that the heap does not depend on the size of the machine."""


class Bench:
    """A ZooKeeper, a broker, topics with messages, and groups."""

    def __init__(self, stack: ExitStack, partitions: int) -> None:
        self.server = stack.enter_context(ZooKeeperServer(jvm_options=("-Xmx1g",)))
        self.zookeeper = self.server.address
        self.broker = stack.enter_context(KafkaBroker())
        self.client = KazooClient(self.zookeeper)
        self.client.start()
        stack.callback(self.client.stop)
        self.client.ensure_path("/consumers")
        self.topics = {f"events-{number}": partitions // TOPICS for number in range(TOPICS)}
        producer = Producer({"bootstrap.servers": self.broker.address})
        for topic, count in self.topics.items():
            self.broker.create_topic(topic, count)
            for message in range(MESSAGES * count):
                producer.produce(topic, b"message", partition=message % count)
            producer.flush()

    def plant(self, prefix: str, groups: int) -> None:
        """Create groups with an offset for every partition."""
        commit_all(self._group(f"{prefix}-{number:05d}", number) for number in range(groups))

    def _group(self, name: str, number: int) -> Any:
        made = self.client.transaction()
        root = f"/consumers/{name}"
        for directory in (root, f"{root}/ids", f"{root}/owners", f"{root}/offsets"):
            made.create(directory)
        for topic, count in self.topics.items():
            made.create(f"{root}/offsets/{topic}")
            for partition in range(count):
                made.create(f"{root}/offsets/{topic}/{partition}", b"%d" % ((number + partition) % MESSAGES))
        return made

    def move(self, engine: Engine, folder: Path, prefix: str, usage: Usage) -> Times:
        """Plan, apply and verify, and check that every offset was moved."""
        watch = Stopwatch()
        before = usage.cpu_seconds()
        source = ZooKeeperSource(zookeeper=self.zookeeper, groups=f"{prefix}-.*")
        options = BrokerOptions(self.broker.address)
        destination = str(folder / prefix)
        with watch.step("plan"):
            planned = plan(engine, destination, source, options)
        with watch.step("apply"):
            applied = apply(engine, destination, options, source, execute=True)
        with watch.step("verify"):
            verified = verify(engine, destination, options, source)
        assert planned.counts["commit"] == applied.counts["written"] == verified.counts["equal"]
        usage.per_100_000[prefix] = (usage.cpu_seconds() - before) * 100_000 / verified.counts["equal"]
        return watch.seconds | {"all": sum(watch.seconds.values())}

    def shell(self, folder: Path, prefix: str) -> Times:
        """Run the commands, and return the time of each process."""
        watch, command = Stopwatch(), str(Path(sys.executable).with_name("zkgroups"))
        both = ["-z", self.zookeeper, "-b", self.broker.address]
        steps = {"plan": ["--groups", f"{prefix}-.*"], "apply": ["--execute"], "verify": []}
        for step, options in steps.items():
            arguments = [command, *both, "migrate", step, str(folder / prefix), "--engine", "local", *options]
            with watch.step(step):
                subprocess.run(arguments, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        return watch.seconds | {"all": sum(watch.seconds.values())}

    def loop(self, groups: int, prefix: str) -> float:
        """Return the seconds per offset of a loop that reads from ZooKeeper and writes to Kafka."""
        self.plant(prefix, groups)
        admin = AdminClient({"bootstrap.servers": self.broker.address})
        ats = [(topic, number) for topic, count in self.topics.items() for number in range(count)]
        began = time.perf_counter()
        for number in range(groups):
            group = f"{prefix}-{number:05d}"
            for topic, partition in ats:
                data, _ = self.client.get(f"/consumers/{group}/offsets/{topic}/{partition}")
                request = [ConsumerGroupTopicPartitions(group, [Partition(topic, partition, int(data))])]
                [answer] = admin.alter_consumer_group_offsets(request)[group].result().topic_partitions
                assert answer.error is None
        return (time.perf_counter() - began) / (groups * len(ats))

    def bare(self, groups: int, prefix: str) -> float:
        """Return the seconds per offset of the bare requests: read for a plan, read and write, and read to verify."""
        self.plant(prefix, groups)
        admin = AdminClient({"bootstrap.servers": self.broker.address})
        names = [f"{prefix}-{number:05d}" for number in range(groups)]
        offsets = [Partition(topic, number, 1) for topic, count in self.topics.items() for number in range(count)]

        def look(registry: Registry) -> None:
            assert sum(block.count for block in leaves(context_of(registry), names, Part.OFFSETS)) == groups * len(
                offsets
            )
            admin.list_consumer_groups().result()
            asked = [admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(name)])[name] for name in names]
            for answer in asked:
                answer.result()

        with Registry.connect(self.zookeeper) as registry:
            began = time.perf_counter()
            look(registry)
            look(registry)
            requests = [ConsumerGroupTopicPartitions(name, offsets) for name in names]
            for answer in [admin.alter_consumer_group_offsets([each])[each.group_id] for each in requests]:
                answer.result()
            look(registry)
            return (time.perf_counter() - began) / (groups * len(offsets))


class Usage:
    """Memory and processor time of this process and its descendants, without servers."""

    def __init__(self, *aside: int) -> None:
        self._aside = aside
        self.megabytes = 0.0
        """The peak of the last measurement."""
        self.per_100_000: dict[str, float] = {}
        """Seconds of processor time for 100,000 offsets of each migration."""

    @contextmanager
    def measured(self) -> Iterator[None]:
        """Measure during the block."""
        self.megabytes, over = 0.0, threading.Event()

        def look() -> None:
            while not over.wait(0.25):
                self.megabytes = max(self.megabytes, self._held())

        thread = threading.Thread(target=look, daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()

    def cpu_seconds(self) -> float:
        """Return the processor time so far."""
        ticks = sum(int(ticks) for stat in self._stats().values() for ticks in stat[11:15])
        return ticks / os.sysconf("SC_CLK_TCK")

    def _held(self) -> float:
        held = 0
        for pid in self._stats():
            with suppress(OSError, IndexError):
                held += int(Path(f"/proc/{pid}/smaps_rollup").read_text().split("\nPss:")[1].split()[0])
        return held / 1024

    def _stats(self) -> dict[int, list[str]]:
        """Return the fields after the name in `/proc/PID/stat` of each process."""
        stats: dict[int, list[str]] = {}
        for entry in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                stats[int(entry.name)] = (entry / "stat").read_text().rpartition(")")[2].split()
        ours = [os.getpid()]
        for above in ours:
            ours += [pid for pid, stat in stats.items() if int(stat[1]) == above and pid not in self._aside]
        return {pid: stats[pid] for pid in ours if pid in stats}


class Rounds:
    """The migrations of one run, each beside a loop, so that a busy machine is busy for both."""

    def __init__(self, stack: ExitStack, partitions: int, loop: int) -> None:
        self._folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        self._bench = Bench(stack, partitions)
        self._loop = loop
        self.usage = Usage(self._bench.broker.pid, self._bench.server.pid)
        self.loops: list[float] = []
        self.moved: dict[str, Times] = {}
        self.held: dict[str, float] = {}

    def move(self, name: str, engine: Engine, prefix: str, groups: int) -> None:
        """Move so many groups."""
        self._bench.plant(prefix, groups)
        with self.usage.measured():
            self.moved[name] = self._bench.move(engine, self._folder, prefix, self.usage)
        self.held[prefix] = self.usage.megabytes
        self.loops.append(self._bench.loop(self._loop, f"loop-{prefix}"))

    def bare(self, groups: int) -> float:
        """Return the seconds per offset of the bare requests."""
        return self._bench.bare(groups, f"bare-{groups}")

    def shell(self) -> None:
        """Move a few groups by commands, several times."""
        for number in range(SHELL_ROUNDS):
            self._bench.plant(f"shell{number}", SHELL_GROUPS)
        found = [self._bench.shell(self._folder, f"shell{number}") for number in range(SHELL_ROUNDS)]
        self.moved["shell"] = {step: statistics.median(each[step] for each in found) for step in found[0]}

    def show(self, partitions: int, bare: float) -> None:
        """Print the times of all migrations."""
        table(f"{partitions} partitions each", self.moved)
        for name, steps in self.moved.items():
            shares = (f"{step} {seconds / steps['all']:.0%}" for step, seconds in steps.items() if step != "all")
            print(f"{name}: {', '.join(shares)}", file=sys.stderr)
        print(f"offsets/s: loop {1 / self.each:.0f}, bare {1 / bare:.0f}; peak MB: {self.held}", file=sys.stderr)
        print(f"processor seconds per 100,000 offsets: {self.usage.per_100_000}", file=sys.stderr)

    @property
    def each(self) -> float:
        """The seconds per offset of the loop."""
        return statistics.median(self.loops)

    def vs_loop(self, name: str, offsets: int, step: str = "all") -> float:
        """Return how many times as fast as the loop a migration was."""
        return round(self.each * offsets / self.moved[name][step], 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--groups", type=int, default=2_000)
    parser.add_argument("--partitions", type=int, default=50)
    parser.add_argument("--loop", type=int, default=40, help="groups moved by each of the loops")
    parser.add_argument("--huge", type=int, default=0, help="move so many groups, too, in this process")
    given = parser.parse_args()
    small, offsets, huge = given.groups // 10, given.groups * given.partitions, given.huge * given.partitions
    logging.getLogger("kazoo").setLevel(logging.ERROR)
    with ExitStack() as stack:
        rounds = Rounds(stack, given.partitions, given.loop)
        engine = SparkEngine(stack.enter_context(own_session(SETTINGS, master="local[2,4]")))
        for name, groups in (("warm", min(WARM, small)), ("small", small), ("large", given.groups)):
            rounds.move(name, engine, name, groups)
        bare = rounds.bare(given.groups)
        rounds.move("local", LocalEngine(), "local", given.groups)
        if huge:
            rounds.move("huge, local", LocalEngine(), "huge", given.huge)
        rounds.shell()
    rounds.show(given.partitions, bare)
    result("migration", **_ratios(rounds, offsets, bare), **(_huge_ratios(rounds, huge) if huge else {}))


def _ratios(rounds: Rounds, offsets: int, bare: float) -> dict[str, float]:
    moved, held = rounds.moved, rounds.held
    return {
        "offsets_per_second": round(offsets / moved["large"]["all"]),
        "loop_offsets_per_second": round(1 / rounds.each),
        "vs_loop": rounds.vs_loop("large", offsets),
        "local_vs_loop": rounds.vs_loop("local", offsets),
        "local_cpu_seconds_per_100_000": round(rounds.usage.per_100_000["local"], 2),
        "shell_seconds": round(max(seconds for step, seconds in moved["shell"].items() if step != "all"), 2),
        "apply_vs_loop": rounds.vs_loop("large", offsets, "apply"),
        "bare_vs_loop": round(rounds.each / bare, 1),
        "time_of_10_times_the_groups": round(moved["large"]["all"] / moved["small"]["all"], 2),
        "peak_megabytes": round(held["large"]),
        "memory_of_10_times_the_groups": round(held["large"] / held["small"], 2),
    }


def _huge_ratios(rounds: Rounds, offsets: int) -> dict[str, float]:
    return {
        "huge_vs_loop": rounds.vs_loop("huge, local", offsets),
        "huge_cpu_seconds_per_100_000": round(rounds.usage.per_100_000["huge"], 2),
        "huge_peak_megabytes": round(rounds.held["huge"]),
    }


if __name__ == "__main__":
    main()
