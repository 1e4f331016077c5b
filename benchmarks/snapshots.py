"""Snapshots, compared with the time that Spark alone needs to write the same rows, and to start.

    python -m benchmarks.snapshots [--rounds 3]

- warm: `take_snapshot` of 1,000,000 offsets in a warm session, local[2], against Spark's own time to write an equal
  table from its cache with the same settings; and against 200,000 offsets
- cold: the command `zkgroups snapshot` of 200,000 offsets as a process, against a PySpark script that writes one row
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from pyspark.sql import SparkSession

from benchmarks import Times, in_turn, ratios, result, table
from benchmarks._trees import seed
from zkgroups.spark import read_snapshot, take_snapshot
from zkgroups.testing import ZooKeeperServer

LARGE, SMALL = 10_000, 2_000  # groups of 100 offsets each

ONE_ROW = """
import sys
from pyspark.sql import SparkSession
spark = SparkSession.builder.master("local[2]").getOrCreate()
spark.range(1).write.mode("overwrite").parquet(sys.argv[1])
"""


def timed(step: str, run: Callable[[], object]) -> Times:
    began = time.perf_counter()
    run()
    return {step: time.perf_counter() - began}


def warm(large: str, small: str, folder: Path, rounds: int) -> dict[str, Times]:
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.memory", "4g")
        .config("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    take_snapshot(spark, str(folder / "first"), large)
    same = read_snapshot(spark, str(folder / "first")).repartition(2).cache()
    rows = same.count()
    print(f"{rows} rows cached", file=sys.stderr)

    def write(_round: int) -> Times:
        return timed("warm", lambda: same.write.mode("overwrite").parquet(str(folder / "cached")))

    def take(hosts: str) -> Callable[[int], Times]:
        return lambda _round: timed("warm", lambda: take_snapshot(spark, str(folder / "taken"), hosts))

    contenders = {"snapshot of 1,000,000": take(large), "cached table": write, "snapshot of 200,000": take(small)}
    try:
        return in_turn(contenders, rounds=rounds)
    finally:
        spark.stop()


def cold(small: str, folder: Path, rounds: int) -> dict[str, Times]:
    def run(*command: str) -> Callable[[int], Times]:
        return lambda _round: timed("cold", lambda: subprocess.run(command, check=True, capture_output=True))

    script = folder / "one_row.py"
    script.write_text(ONE_ROW)
    command = str(Path(sys.executable).with_name("zkgroups"))
    contenders = {
        "zkgroups snapshot": run(command, "-z", small, "snapshot", "--master", "local[2]", str(folder / "cold")),
        "one row": run(sys.executable, str(script), str(folder / "row")),
    }
    return in_turn(contenders, rounds=rounds)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=3)
    rounds = parser.parse_args().rounds
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        large, small = (stack.enter_context(ZooKeeperServer(jvm_options=("-Xmx3g",))).address for _ in range(2))
        seed(large, groups=LARGE)
        seed(small, groups=SMALL)
        warmed = warm(large, small, folder, rounds)
        started = cold(small, folder, rounds)
    table("warm, local[2]", warmed)
    table("cold, 200,000 offsets, local[2]", started)
    result(
        "snapshots",
        snapshot_time_vs_cached_write=ratios(warmed["cached table"], warmed["snapshot of 1,000,000"])["warm"],
        time_of_1000000_vs_200000=ratios(warmed["snapshot of 200,000"], warmed["snapshot of 1,000,000"])["warm"],
        cold_time_vs_one_row=ratios(started["one row"], started["zkgroups snapshot"])["cold"],
    )


if __name__ == "__main__":
    main()
