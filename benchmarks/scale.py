"""What a large registry costs a server and its clients: bytes per node and per watch, and one read of all offsets.

    python -m benchmarks.scale [--groups 2000] [--rounds 3] [--releases 3.9 3.4.14]

On one server of each release, with 100 offsets in each group:

- memory: bytes of the heap per node, after a full collection (with `jcmd`, which a JDK has), and bytes per node of the
  server's snapshot; processor seconds to load a snapshot of the tree
- watches: bytes of the heap per watch, and the watches and nodes of one member
- sweep: requests, bytes received, and processor seconds of the server and of the client for one million offsets: as
  objects, as columns (also as four tasks of Spark read them), one by one with kazoo, and from the server's files

Everything is measured in bytes, requests and processor seconds, which hardly depend on other programs. The last lines
multiply: what 100,000 groups with 10 million offsets would cost.
"""

from __future__ import annotations

import argparse
import os
import shutil
import socket
import statistics
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from kazoo.client import KazooClient

from benchmarks import result
from benchmarks._trees import seed
from benchmarks.datadir import batches
from benchmarks.reads import columns, objects, one_by_one
from zkgroups import Member, Registry
from zkgroups.core.selection import Selection
from zkgroups.spark import SourceOptions
from zkgroups.tables.table_reader import read_batches
from zkgroups.testing import ZooKeeperServer, zookeeper_server

OFFSETS = 100
CURRENT = "3.9"
"""The release that comes with pyspark."""
ONE_BY_ONE = 20
"""A part of the groups is enough, because each node costs one request."""
MEMBERS, TOPICS, PARTITIONS = 20, 5, 10
MILLION = 1_000_000
TCP_BYTES_RECEIVED = 128
"""The place of `tcpi_bytes_received` in Linux's `struct tcp_info`."""

Numbers = dict[str, float]


class Measured:
    """A server and its numbers."""

    def __init__(self, release: str, groups: int) -> None:
        self._transactions = max(1_000, groups)
        self.server = ZooKeeperServer(
            release=None if release == CURRENT else release,
            jvm_options=("-Xmx8g",),
            config={"4lw.commands.whitelist": "*", "snapCount": str(self._transactions)},
        )

    def numbers(self) -> Numbers:
        """The numbers of the command `mntr`."""
        host, _, port = self.server.address.partition(":")
        lines = zookeeper_server.ask(host, int(port), "mntr", timeout=60.0).splitlines()
        pairs = (line.split("\t") for line in lines)
        return {pair[0]: float(pair[1]) for pair in pairs if len(pair) == 2 and _is_number(pair[1])}

    @property
    def cpu(self) -> float:
        """The processor seconds so far."""
        fields = Path(f"/proc/{self.server.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def heap(self) -> float:
        """The bytes of all live objects, or 0 without `jcmd`."""
        if shutil.which("jcmd") is None:
            return 0.0
        command = ["jcmd", str(self.server.pid), "GC.class_histogram"]
        [*_, last] = subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip().splitlines()
        return float(last.split()[2])

    def snapshot(self) -> tuple[int, float]:
        """Let the server write a snapshot of the tree, and restart. Return the bytes of the snapshot, and the processor
        seconds of the new process."""
        with connected(self.server.address) as client:
            for answer in [client.set_async("/consumers", b"") for _ in range(self._transactions)]:
                answer.get()
        self.server.kill()
        self.server.start(timeout=600)
        [*_, newest] = sorted(self.server.data_dir.glob("version-2/snapshot.*"), key=lambda file: file.stat().st_size)
        return newest.stat().st_size, self.cpu


def _is_number(text: str) -> bool:
    return text.replace(".", "", 1).isdigit()


@contextmanager
def connected(hosts: str) -> Iterator[Any]:
    client = KazooClient(hosts, timeout=60.0)
    client.start()
    try:
        yield client
    finally:
        client.stop()
        client.close()


# Memory


def memory(measured: Measured, groups: int) -> Numbers:
    """Create the groups, and return the costs of each node."""
    empty, none = measured.heap(), measured.numbers()["zk_znode_count"]
    offsets = seed(measured.server.address, groups=groups, partitions=OFFSETS // 5)
    assert offsets == groups * OFFSETS
    nodes = measured.numbers()["zk_znode_count"] - none
    started = _started(measured)
    size, cpu = measured.snapshot()
    heap = measured.heap()
    return {
        "nodes per offset": nodes / offsets,
        "heap bytes per node": (heap - empty) / nodes,
        "snapshot bytes per node": size / nodes,
        "CPU s to load 1,000,000 nodes": (cpu - started) / nodes * MILLION,
    }


def _started(measured: Measured) -> float:
    """The processor seconds that a server needs to start without data, about."""
    with ZooKeeperServer(release=measured.server.release) as empty:
        fields = Path(f"/proc/{empty.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


# Watches


def watches(measured: Measured, groups: int) -> Numbers:
    """Return the bytes of one watch of a node, and the watches of one member."""
    paths = [f"/consumers/service-{number:05d}/{name}" for number in range(groups) for name in ("ids", "owners")]
    with connected(measured.server.address) as client:
        before = measured.heap(), measured.numbers()["zk_watch_count"]
        for asked in [client.exists_async(path, watch=_ignore) for path in paths]:
            asked.get()
        bytes_each = (measured.heap() - before[0]) / (measured.numbers()["zk_watch_count"] - before[1])
    with ExitStack() as stack:
        client = stack.enter_context(connected(measured.server.address))
        text = ", ".join(f'"{number}": [1]' for number in range(PARTITIONS))
        for topic in range(TOPICS):
            client.create(f"/brokers/topics/t{topic}", f'{{"partitions": {{{text}}}}}'.encode(), makepath=True)
        some, nodes = (measured.numbers()[name] for name in ("zk_watch_count", "zk_znode_count"))
        members = []
        for number in range(MEMBERS):
            registry = stack.enter_context(Registry.connect(measured.server.address))
            topics = [f"t{topic}" for topic in range(TOPICS)]
            members.append(stack.enter_context(Member(registry.group("watched"), topics, id=f"m{number}")))
        while sum(len(member.assignment) for member in members) < TOPICS * PARTITIONS:
            time.sleep(0.5)
        found = measured.numbers()
        return {
            "heap bytes per watch": bytes_each,
            "watches per member": (found["zk_watch_count"] - some) / MEMBERS,
            "nodes of a group with 20 members": found["zk_znode_count"] - nodes,
        }


def _ignore(_event: object) -> None:
    pass


# One read of all offsets


def sweep(measured: Measured, read: Callable[[], int], rounds: int, received: Callable[[], int]) -> Numbers:
    """Return what one million offsets cost. The first round warms up."""
    found = []
    for _ in range(rounds + 1):
        before = measured.numbers()["zk_packets_received"], received(), measured.cpu, time.process_time()
        offsets = read()
        after = measured.numbers()["zk_packets_received"], received(), measured.cpu, time.process_time()
        found.append([(new - old) / offsets * MILLION for old, new in zip(before, after, strict=True)])
    names = ("requests", "megabytes received", "CPU s of the server", "CPU s of the client")
    numbers = dict(zip(names, map(statistics.median, zip(*found[1:], strict=True)), strict=True))
    return numbers | {"megabytes received": numbers["megabytes received"] / MILLION}


def received_by(client: Any) -> Callable[[], int]:
    """The bytes that this client has received over its connection."""

    def received() -> int:
        info = client._connection._socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
        return int(struct.unpack_from("=Q", info, TCP_BYTES_RECEIVED)[0])

    return received


def sweeps(measured: Measured, groups: int, rounds: int) -> dict[str, Numbers]:
    hosts = measured.server.address
    some = [f"service-{number:05d}" for number in range(0, groups, ONE_BY_ONE)]
    with Registry.connect(hosts) as registry, connected(hosts) as client:
        bytes_of = received_by(registry.client)
        found = {
            "objects": sweep(measured, lambda: objects(registry), rounds, bytes_of),
            "columns": sweep(measured, lambda: columns(hosts), rounds, bytes_of),
            "columns, four tasks": sweep(measured, lambda: in_four(hosts), rounds, bytes_of),
            "kazoo one by one": sweep(measured, lambda: one_by_one(client, some), rounds, received_by(client)),
        }
    folder = str(measured.server.data_dir)
    found["data directory"] = sweep(measured, lambda: batches(folder), rounds, lambda: 0)
    for name in ("columns", "columns, four tasks", "data directory"):  # they do not use this connection
        del found[name]["megabytes received"]
    return found


def in_four(hosts: str) -> int:
    """Read all offsets as four tasks of Spark do, each of which lists all groups."""
    options = SourceOptions(zookeeper=hosts)
    shares = [Selection(share=share, shares=4) for share in range(4)]
    return sum(batch.num_rows for share in shares for batch in read_batches(options, share))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--groups", type=int, default=2_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--releases", nargs="+", default=[CURRENT, "3.4.14"])
    given = parser.parse_args()
    for release in given.releases:
        measured = Measured(release, given.groups)
        with measured.server:
            costs = memory(measured, given.groups) | watches(measured, given.groups)
            reads = sweeps(measured, given.groups, given.rounds)
        show(release, given.groups, costs, reads)


def show(release: str, groups: int, costs: Numbers, reads: dict[str, Numbers]) -> None:
    print(f"ZooKeeper {release}, {groups:,} groups, {groups * OFFSETS:,} offsets", file=sys.stderr)
    for name, value in costs.items():
        print(f"  {name:<36}{value:>12.2f}", file=sys.stderr)
    for reader, numbers in reads.items():
        told = ", ".join(f"{value:.1f} {name}" for name, value in numbers.items())
        print(f"  1,000,000 offsets, {reader}: {told}", file=sys.stderr)
    nodes = 10 * MILLION * costs["nodes per offset"]
    gigabytes = {name: nodes * costs[f"{name} bytes per node"] / 1e9 for name in ("heap", "snapshot")}
    print(f"  10,000,000 offsets, computed: {nodes:,.0f} nodes, GB: {gigabytes}", file=sys.stderr)
    once = {
        reader: {name: round(value * 10, 1) for name, value in numbers.items()} for reader, numbers in reads.items()
    }
    rounded = {name: round(value, 2) for name, value in costs.items()}
    result("scale", release=release, groups=groups, **rounded, sweep_of_10_million=once)


if __name__ == "__main__":
    main()
