"""List many groups at the shell: 5,000 groups with 100,000 offsets, compared with the bulk read alone.

    python -m benchmarks.fleet [--rounds 5]

- bulk read: `registry.offsets()`, in a process that is already connected
- jsonl, wide: `zkgroups groups list -o jsonl` and `-o wide`, from the start of the process to its end; `first` is the
  time until the first line

The ratios are the time of a listing to that of the bulk read, and the time until the first line of JSON to the time of
the whole listing.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from pathlib import Path

from benchmarks import Times, in_turn, ratios, result, table
from benchmarks._trees import seed
from zkgroups import CommittedOffset, Registry
from zkgroups.testing import ZooKeeperServer

GROUPS, TOPICS, PARTITIONS = 5_000, 2, 10
COMMAND = str(Path(sys.executable).with_name("zkgroups"))


def bulk_read(registry: Registry, expected: int) -> Times:
    began = time.perf_counter()
    found = sum(isinstance(offset, CommittedOffset) for offset in registry.offsets())
    seconds = time.perf_counter() - began
    if found != expected:
        raise AssertionError(f"{found} offsets instead of {expected}")
    return {"first": seconds, "all": seconds}


def listing(hosts: str, output: str) -> Times:
    began = time.perf_counter()
    command = [COMMAND, "-z", hosts, "groups", "list", "--no-headers", "-o", output]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        process.stdout.readline()
        first = time.perf_counter() - began
        lines = 1 + sum(1 for _ in process.stdout)
    if (process.returncode, lines) != (0, GROUPS):
        raise AssertionError(f"{lines} groups instead of {GROUPS}, exit code {process.returncode}")
    return {"first": first, "all": time.perf_counter() - began}


def measure(rounds: int) -> dict[str, Times]:
    with ZooKeeperServer() as server:
        hosts = server.address
        expected = seed(hosts, groups=GROUPS, topics=TOPICS, partitions=PARTITIONS)
        with Registry.connect(hosts) as registry:
            contenders = {
                "bulk read": lambda _: bulk_read(registry, expected),
                "jsonl": lambda _: listing(hosts, "jsonl"),
                "wide": lambda _: listing(hosts, "wide"),
            }
            return in_turn(contenders, rounds=rounds)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    medians = measure(parser.parse_args().rounds)
    table(f"{GROUPS:,} groups, {GROUPS * TOPICS * PARTITIONS:,} offsets", medians)
    result(
        "fleet",
        jsonl_vs_bulk_read=ratios(medians["bulk read"], medians["jsonl"])["all"],
        wide_vs_bulk_read=ratios(medians["bulk read"], medians["wide"])["all"],
        first_line_of_jsonl=round(medians["jsonl"]["first"] / medians["jsonl"]["all"], 2),
    )


if __name__ == "__main__":
    main()
