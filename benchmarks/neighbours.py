"""The latency of another client while snapshots are taken: its 99th percentile, against an idle server.

    python -m benchmarks.neighbours [--rounds 3] [--gets 6000]

A Spark with two cores takes snapshots of 200,000 offsets in a loop. Another client gets one node repeatedly. Idle and
disturbed rounds alternate.

If servers, Spark and client share a few cores, the client mostly waits for a core. So a third kind of round runs as
many computing processes as Spark has tasks, without any use of ZooKeeper.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from kazoo.client import KazooClient

from benchmarks import Times, in_turn, ratios, result, table
from benchmarks._trees import seed
from zkgroups.testing import ZooKeeperServer

GROUPS = 2_000

SNAPSHOTS = """
import sys
from shutil import rmtree
from zkgroups.spark import take_snapshot
from zkgroups.spark.session import own_session
hosts, folder = sys.argv[1:]
with own_session(master="local[2]") as spark:
    while True:
        print(take_snapshot(spark, folder, hosts).offsets, flush=True)
        rmtree(folder)
"""
WARM = 4
"""The number of snapshots to warm up."""

COMPUTE = """
print("begun", flush=True)
while True:
    pass
"""


@contextmanager
def beside(program: str, *arguments: str, processes: int = 1, lines: int = 1) -> Iterator[None]:
    """Run processes during the block, which starts when each has printed `lines` lines."""
    command = [sys.executable, "-c", program, *arguments]
    running = [subprocess.Popen(command, stdout=subprocess.PIPE) for _ in range(processes)]
    try:
        for process in running:
            assert process.stdout is not None
            for _ in range(lines):
                process.stdout.readline()
        yield
    finally:
        for process in running:
            process.kill()
            process.communicate()


def slowest_of_a_hundred(client: Any, path: str, gets: int) -> Times:
    times: list[float] = []
    for _ in range(gets):
        began = time.perf_counter()
        client.get(path)
        times.append(time.perf_counter() - began)
    times.sort()
    return {"median": times[gets // 2], "p99": times[gets * 99 // 100]}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--gets", type=int, default=6_000)
    options = parser.parse_args()
    with ExitStack() as stack:
        server = stack.enter_context(ZooKeeperServer())
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        seed(server.address, groups=GROUPS)
        client = KazooClient(server.address)
        client.start()
        stack.callback(client.close)
        stack.callback(client.stop)

        def idle(_round: int) -> Times:
            return slowest_of_a_hundred(client, "/consumers", options.gets)

        def snapshots(number: int) -> Times:
            with beside(SNAPSHOTS, server.address, f"{folder}/{number}", lines=WARM):
                return idle(number)

        def computing(number: int) -> Times:
            with beside(COMPUTE, processes=2):
                return idle(number)

        contenders = {"idle": idle, "beside snapshots": snapshots, "beside other work": computing}
        medians = in_turn(contenders, rounds=options.rounds)
    table("a get of another client", medians)
    beside_snapshots = ratios(medians["idle"], medians["beside snapshots"])
    beside_other_work = ratios(medians["idle"], medians["beside other work"])
    result(
        "neighbours",
        p99_beside_snapshots_vs_idle=beside_snapshots["p99"],
        median_beside_snapshots_vs_idle=beside_snapshots["median"],
        p99_beside_other_work_vs_idle=beside_other_work["p99"],
    )


if __name__ == "__main__":
    main()
