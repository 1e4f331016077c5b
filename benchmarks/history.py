"""Comparing two snapshots, against reading both with Spark.

    python -m benchmarks.history [--rounds 5]

`zkgroups.spark.diff_snapshots` of two snapshots with 1,000,000 offsets each, a fifth of which has moved, warm,
local[2]: by group, the default, and by partition. Against reading all columns of both with Spark.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from kazoo.client import KazooClient
from pyspark.sql import DataFrame, SparkSession

from benchmarks import Times, in_turn, ratios, result, table
from benchmarks._trees import commit_all, seed
from zkgroups.spark import diff_snapshots, read_snapshot, take_snapshot
from zkgroups.testing import ZooKeeperServer

GROUPS = 10_000  # of 100 offsets each
STEP = "1,000,000 twice"
QUICK = {"spark.sql.adaptive.enabled": "false", "spark.sql.shuffle.partitions": "4"}
"""The settings of `zkgroups snapshots diff`. With Spark's defaults a diff by group takes a fifth longer."""


def commit(hosts: str, *, groups: int, partitions: int = 20) -> None:
    """Commit a new offset for each partition of each group's first topic."""
    client = KazooClient(hosts)
    client.start()

    def of_group(number: int) -> Any:
        transaction = client.transaction()
        for partition in range(partitions):
            path = f"/consumers/service-{number:05d}/offsets/events.{number * 7 % 997:03d}/{partition}"
            transaction.set_data(path, b"%d" % (2 * 10**11 + number))
        return transaction

    commit_all(map(of_group, range(groups)))
    client.stop()
    client.close()


def nowhere(rows: DataFrame) -> None:
    """Compute all rows, and discard them."""
    rows.write.format("noop").mode("overwrite").save()


def timed(run: Callable[[], None]) -> Callable[[int], Times]:
    """Return a contender that runs once in each round."""

    def contender(_round: int) -> Times:
        began = time.perf_counter()
        run()
        return {STEP: time.perf_counter() - began}

    return contender


def measure(hosts: str, destination: str, rounds: int) -> dict[str, Times]:
    """Take two snapshots, and measure all contenders."""
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.memory", "4g")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    try:
        for setting, value in QUICK.items():
            spark.conf.set(setting, value)
        first = take_snapshot(spark, destination, hosts)
        commit(hosts, groups=GROUPS)
        names = first.name, take_snapshot(spark, destination, hosts).name

        def read() -> None:
            for name in names:
                nowhere(read_snapshot(spark, destination, name))

        contenders = {
            "Spark reads both": timed(read),
            "diff by group": timed(lambda: nowhere(diff_snapshots(spark, destination, *names))),
            "diff by partition": timed(lambda: nowhere(diff_snapshots(spark, destination, *names, by="partition"))),
        }
        return in_turn(contenders, rounds=rounds)
    finally:
        spark.stop()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        hosts = stack.enter_context(ZooKeeperServer(jvm_options=("-Xmx3g",))).address
        seed(hosts, groups=GROUPS)
        measured = measure(hosts, str(folder), rounds)
    table("warm, local[2]", measured)
    read = measured["Spark reads both"]
    result(
        "history",
        diff_by_group_time_vs_reading_both=ratios(read, measured["diff by group"])[STEP],
        diff_by_partition_time_vs_reading_both=ratios(read, measured["diff by partition"])[STEP],
    )


if __name__ == "__main__":
    main()
