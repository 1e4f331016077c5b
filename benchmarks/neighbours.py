"""How long another client waits while snapshots are read: its slowest get of a hundred, against an idle server.

    python -m benchmarks.neighbours [--rounds 3] [--gets 3000]

A process reads 200,000 offsets again and again, as the Spark source does with two tasks. Another one gets a node, waits
for the answer, and gets it again; idle and disturbed rounds take turns.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from kazoo.client import KazooClient

from benchmarks import Times, in_turn, ratios, result, table
from benchmarks._trees import seed
from zkgroups.testing import ZooKeeperServer

GROUPS = 2_000

READ = """
import sys
from zkgroups.spark import SourceOptions
from zkgroups.spark.reading import read_batches
from zkgroups.spark.selection import Selection
options, half = SourceOptions(zookeeper=sys.argv[1]), Selection(share=int(sys.argv[2]), shares=2)
while True:
    print(sum(batch.num_rows for batch in read_batches(options, half)), flush=True)
"""


@contextmanager
def readers(hosts: str) -> Iterator[None]:
    """Two processes that read, until the block ends; they have begun when it begins."""
    command = [sys.executable, "-c", READ, hosts]
    running = [subprocess.Popen([*command, str(half)], stdout=subprocess.PIPE) for half in range(2)]
    try:
        for process in running:
            assert process.stdout is not None
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
    parser.add_argument("--gets", type=int, default=3_000)
    options = parser.parse_args()
    with ZooKeeperServer() as server:
        seed(server.address, groups=GROUPS)
        client = KazooClient(server.address)
        client.start()

        def disturbed(_round: int) -> Times:
            with readers(server.address):
                return slowest_of_a_hundred(client, "/consumers", options.gets)

        def idle(_round: int) -> Times:
            return slowest_of_a_hundred(client, "/consumers", options.gets)

        medians = in_turn({"idle": idle, "while reading": disturbed}, rounds=options.rounds)
        client.stop()
        client.close()
    table("a get of another client", medians)
    waits = ratios(medians["idle"], medians["while reading"])
    result("neighbours", p99_while_reading_vs_idle=waits["p99"], median_while_reading_vs_idle=waits["median"])


if __name__ == "__main__":
    main()
