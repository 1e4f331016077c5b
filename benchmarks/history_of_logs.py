"""The history in transaction logs: transactions per second, compared with a hand-written reader, and with Spark.

    python -m benchmarks.history_of_logs [--rounds 5] [--transactions 1500000]

A server writes 1,500,000 transactions (see `_traffic.py`) to logs of the usual size, and is killed. Then, in one
process:

- the events of all groups, with checksums, and of one group
- the rows of the table of commits, as Arrow batches
- a plain reader of the same logs, record by record, without any checks, which makes a tuple of each commit; it does not
  know who made it
- with Spark, the table of commits with local[2], in another process
- the peak of memory for a fifth of the logs, and for all of them, each in a separate process

Processor time counts, because it does not depend on other programs; for Spark, the time that passes.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from struct import Struct
from typing import Any

from benchmarks import Times, every_round, medians, paired_ratios, ratios, result, table
from benchmarks._traffic import group, plant, write_traffic
from zkgroups.core.table_columns import HistoryTable
from zkgroups.datadir.data_dir import DataDir
from zkgroups.datadir.history import HistoryReader, LogPart, history_files
from zkgroups.tables.history_batches import history_batches
from zkgroups.testing import ZooKeeperServer

TRANSACTIONS = 1_500_000
ONE = group(7).decode().rpartition("/")[2]

PEAK = """
import sys
from pathlib import Path
from benchmarks.history_of_logs import events

def peak():
    return next(line.split()[1] for line in Path("/proc/self/status").read_text().splitlines() if "VmHWM" in line)

before = peak()
events(sys.argv[1], float(sys.argv[2]))
print(peak(), before)
"""


def events(folder: str, share: float = 1.0) -> int:
    """Read the events of all groups, in a share of the logs."""
    logs = history_files(DataDir(folder)).logs
    part = LogPart(logs[0].zxid, logs[max(0, round(share * len(logs)) - 1)].zxid)
    return _count(HistoryReader(DataDir(folder), part=part).items())


def events_of_one_group(folder: str) -> int:
    return _count(HistoryReader(DataDir(folder), group=ONE).items())


def rows(folder: str) -> int:
    """Read the table of commits."""
    items: Any = HistoryReader(DataDir(folder)).items()
    return sum(batch.num_rows for batch in history_batches(HistoryTable.COMMITS, items, "here"))


def by_hand(folder: str) -> int:
    """Read the commits of all logs as tuples."""
    logs = sorted(Path(folder, "version-2").glob("log.*"), key=lambda file: int(file.suffix[1:], 16))
    return _count(commit for log in logs for commit in _commits(log.read_bytes()))


def _count(found: Iterator[object]) -> int:
    return deque(enumerate(found, 1), maxlen=1)[0][0]


INT, FRAME, HEAD = Struct(">i"), Struct(">qi"), Struct(">qiqqi")


def _commits(data: bytes) -> Iterator[tuple[int, int, int, str, str, int, int]]:
    at = 16
    while at + 12 < len(data):
        _, length = FRAME.unpack_from(data, at)
        if not length:
            return
        session, _, zxid, time_ms, kind = HEAD.unpack_from(data, at + 12)
        bodies = [(kind, at + 44)]
        if kind == 14:
            bodies = []
            [number] = INT.unpack_from(data, at + 44)
            start = at + 48
            for _ in range(number):
                kind, size = FRAME_OF_PART.unpack_from(data, start)
                bodies.append((kind, start + 8))
                start += 8 + size
        for kind, start in bodies:
            if kind == 5:
                [length_of_path] = INT.unpack_from(data, start)
                start += 4
                names = data[start : start + length_of_path].decode().split("/")
                start += length_of_path
                if len(names) == 6 and names[1] == "consumers" and names[3] == "offsets":
                    [size] = INT.unpack_from(data, start)
                    offset = int(data[start + 4 : start + 4 + size])
                    yield zxid, time_ms, session, names[2], names[4], int(names[5]), offset
        at += 13 + length


FRAME_OF_PART = Struct(">ii")


def made(folder: Path, transactions: int) -> str:
    """Create the data directory of a killed server."""
    options = ("-Xmx1g", "-Dzookeeper.forceSync=no")
    with ZooKeeperServer(data_dir=folder, jvm_options=options) as server:
        plant(server.address)
        write_traffic(server.address, transactions)
        server.kill()
    return str(folder)


def timed(run: Callable[[str], int], folder: str) -> Callable[[int], Times]:
    def once(_round: int) -> Times:
        processor, passed = time.process_time(), time.perf_counter()
        run(folder)
        return {"processor": time.process_time() - processor, "passed": time.perf_counter() - passed}

    return once


def with_spark(session: Any, folder: str) -> Callable[[int], Times]:
    def once(_round: int) -> Times:
        read = session.read.format("zkgroups").options(table="commits", dataDir=folder, parallelism=2).load()
        passed = time.perf_counter()
        read.write.format("noop").mode("overwrite").save()
        seconds = time.perf_counter() - passed
        return {"processor": seconds, "passed": seconds}

    return once


def peak(folder: str, share: float) -> tuple[int, int]:
    """Return the peak memory of the process in KiB, and the memory before reading."""
    command = [sys.executable, "-c", PEAK, folder, str(share)]
    most, before = map(int, subprocess.run(command, check=True, capture_output=True, text=True).stdout.split())
    return most, before


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--transactions", type=int, default=TRANSACTIONS)
    given = parser.parse_args()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        data = made(folder / "data", given.transactions)
        contenders = {
            "events": timed(events, data),
            "events of one group": timed(events_of_one_group, data),
            "rows": timed(rows, data),
            "by hand": timed(by_hand, data),
            "Spark, local[2]": with_spark(stack.enter_context(_spark()), data),
        }
        found = every_round(contenders, rounds=given.rounds)
        most, before = peak(data, 1.0)
        less, _ = peak(data, 0.2)
        total = _transactions(data)
    times = medians(found)
    table(f"{total:,} transactions", times)
    print(f"peak of memory: {most >> 10} MiB, {before >> 10} of them before anything was read", file=sys.stderr)
    result(
        "history_of_logs",
        transactions_per_second=round(total / times["events"]["processor"]),
        transactions_per_second_of_one_group=round(total / times["events of one group"]["processor"]),
        transactions_per_second_as_rows=round(total / times["rows"]["processor"]),
        time_vs_by_hand=ratios(times["by hand"], times["events"])["processor"],
        spark_vs_one_process=paired_ratios(found["Spark, local[2]"], found["rows"])["passed"],
        memory_of_all_vs_a_fifth=round(most / less, 2),
    )


def _transactions(folder: str) -> int:
    logs = history_files(DataDir(folder)).logs
    last = max(
        int(item.zxid) for item in HistoryReader(DataDir(folder), part=LogPart(logs[-1].zxid, logs[-1].zxid)).items()
    )
    return last - logs[0].zxid + 1


def _spark() -> Any:
    from pyspark.sql import SparkSession

    from zkgroups.spark import register

    session = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    register(session)
    return session


if __name__ == "__main__":
    main()
