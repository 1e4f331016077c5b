"""Measure the CPU seconds of the commands that cron runs every minute.

    python -m benchmarks.cron [--large] [--owned] [--rounds 3]

Each contender is a whole process, with its imports and its Java, if any. There are 1,000 offsets, or 200,000 with
--large. With --owned, each partition has an owner, too.

- snapshot, with both engines, against a script with kazoo and pyarrow that writes the offsets, and against a PySpark
  script that writes one row
- `audit --once`, with both engines, after the commits of one group, against the same
- `snapshots list` and `migrate show`, against a Python that only imports click, kazoo and pyarrow
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from kazoo.client import KazooClient

from benchmarks import Times, in_turn, result, table
from benchmarks._processes import process
from benchmarks._trees import commit_all, seed
from benchmarks.snapshots import ONE_ROW
from zkgroups.testing import ZooKeeperServer

SMALL, LARGE = 10, 2_000  # groups of 100 offsets each
CPU = "CPU seconds"

BY_HAND = """
import sys
import pyarrow as pa
import pyarrow.parquet as pq
from kazoo.client import KazooClient
client = KazooClient(sys.argv[1])
client.start()
def children(paths):
    asked = [(path, client.get_children_async(path)) for path in paths]
    return [f"{path}/{name}" for path, answer in asked for name in answer.get()]
groups = [f"{path}/offsets" for path in children(["/consumers"])]
paths = children(children(groups))
rows = []
for path, answer in [(path, client.get_async(path)) for path in paths]:
    data, stat = answer.get()
    _, _, group, _, topic, partition = path.split("/")
    rows.append({"group": group, "topic": topic, "partition": int(partition), "offset": int(data), "at": stat.mtime})
pq.write_table(pa.Table.from_pylist(rows), sys.argv[2])
client.stop()
client.close()
"""
WAIT = """
java = spark.sparkContext._gateway
spark.stop()
java.shutdown()
java.proc.stdin.close()
java.proc.wait()  # otherwise its CPU seconds would not count
"""
IMPORTS = "import click, kazoo.client, pyarrow.parquet"


def after_commits(hosts: str, run: Callable[[int], Times]) -> Callable[[int], Times]:
    """Commit the offsets of one group before each run."""

    def commit_and_run(number: int) -> Times:
        client = KazooClient(hosts)
        client.start()
        root = "/consumers/service-00000/offsets"
        for topic in client.get_children(root):
            for partition in client.get_children(f"{root}/{topic}"):
                client.set(f"{root}/{topic}/{partition}", b"%d" % (10**12 + number))
        client.stop()
        client.close()
        return run(number)

    return commit_and_run


def own(hosts: str, groups: int) -> KazooClient:
    """Let one client own all partitions."""
    client = KazooClient(hosts)
    client.start()
    commit_all(_owners(client, number) for number in range(groups))
    return client


def _owners(client: KazooClient, number: int) -> object:
    made = client.transaction()
    root = f"/consumers/service-{number:05d}/owners"
    for topic in range(5):
        directory = f"{root}/events.{(number * 7 + topic) % 997:03d}"
        made.create(directory)
        for partition in range(20):
            made.create(f"{directory}/{partition}", b"service_host-1700000000000-abcdef01-0", ephemeral=True)
    return made


def contenders(hosts: str, folder: Path) -> dict[str, Callable[[int], Times]]:
    zkgroups = (str(Path(sys.executable).with_name("zkgroups")), "-z", hosts)
    snapshots, plan = str(folder / "snapshots"), str(folder / "plan")
    process(*zkgroups, "snapshot", snapshots, "--engine", "local")(0)
    process(*zkgroups, "migrate", "plan", plan, "--all", "--without-brokers", "--engine", "local")(0)
    script = folder / "one_row.py"
    script.write_text(ONE_ROW + WAIT)

    def audit(engine: str, *spark: str) -> Callable[[int], Times]:
        command = process(*zkgroups, "audit", str(folder / f"audit-{engine}"), "--once", "--engine", engine, *spark)
        return after_commits(hosts, command)

    return {
        "imports": process(sys.executable, "-c", IMPORTS),
        "kazoo and pyarrow": process(sys.executable, "-c", BY_HAND, hosts, str(folder / "by-hand.parquet")),
        "snapshot, local": process(*zkgroups, "snapshot", snapshots, "--engine", "local"),
        "audit, local": audit("local"),
        "snapshots list": process(*zkgroups, "snapshots", "list", snapshots),
        "migrate show": process(*zkgroups, "migrate", "show", plan),
        "PySpark, one row": process(sys.executable, str(script), str(folder / "row")),
        "snapshot, spark": process(*zkgroups, "snapshot", snapshots, "--engine", "spark", "--master", "local[2]"),
        "audit, spark": audit("spark", "--master", "local[2]"),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--large", action="store_true", help="200,000 offsets instead of 1,000")
    parser.add_argument("--owned", action="store_true", help="each partition has an owner")
    options = parser.parse_args()
    groups = LARGE if options.large else SMALL
    with ZooKeeperServer(jvm_options=("-Xmx3g",)) as server, tempfile.TemporaryDirectory() as folder:
        offsets = seed(server.address, groups=groups)
        owner = own(server.address, groups) if options.owned else None
        measured = in_turn(contenders(server.address, Path(folder)), rounds=options.rounds)
        if owner is not None:
            owner.stop()
            owner.close()
    table(f"{offsets:,} offsets", measured)
    cpu = {name: times[CPU] for name, times in measured.items()}
    result(
        "cron",
        offsets=offsets,
        owned=options.owned,
        cpu_seconds={name: round(seconds, 2) for name, seconds in cpu.items()},
        local_vs_by_hand=round(cpu["snapshot, local"] / cpu["kazoo and pyarrow"], 2),
        audit_local_vs_by_hand=round(cpu["audit, local"] / cpu["kazoo and pyarrow"], 2),
        spark_vs_one_row=round(cpu["snapshot, spark"] / cpu["PySpark, one row"], 2),
        audit_spark_vs_one_row=round(cpu["audit, spark"] / cpu["PySpark, one row"], 2),
        spark_vs_local=round(cpu["snapshot, spark"] / cpu["snapshot, local"], 2),
        list_vs_imports=round(cpu["snapshots list"] / cpu["imports"], 2),
        show_vs_imports=round(cpu["migrate show"] / cpu["imports"], 2),
    )


if __name__ == "__main__":
    main()
