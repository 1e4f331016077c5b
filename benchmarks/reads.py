"""Read every offset of a tree, with decoded values and stats: as columns, as objects, and without zkgroups.

    python -m benchmarks.reads [--rounds 3] [--old] [--releases 3.4.14 3.5.10]

On 200,000 offsets (2,000 groups of 5 topics of 20 partitions):

- columns: Arrow batches, as the Spark source reads them
- objects: `registry.offsets()`
- bare socket: the same columns, read by a minimal client (`_bare.py`)
- kazoo pipelined: `get_async` for all partitions of a topic
- kazoo one by one: `get_children` and `get` for a tenth of the groups, a different one in each round; the time is
  multiplied by ten

On 50,000 offsets, with ZooKeeper 3.4.14 and 3.5.10, which do not support MultiRead: columns, objects, `describe` of all
groups, a snapshot by a warm Spark, single reads pipelined by the minimal client, and kazoo one by one. Each ratio is
the median of the ratios of all rounds. `--releases` chooses other releases; `--old` measures only this part.

Memory: the peak memory of a process that iterates over 1,000,000 offsets, compared with 10,000 offsets.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from itertools import accumulate, islice
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from kazoo.client import KazooClient

from benchmarks import Times, every_round, in_turn, paired_ratios, ratios, result, table
from benchmarks import medians as medians_of
from benchmarks._bare import BareClient
from benchmarks._trees import seed
from zkgroups import CommittedOffset, Registry
from zkgroups.core.selection import Selection
from zkgroups.spark import SourceOptions, take_snapshot
from zkgroups.spark.session import own_session
from zkgroups.tables.arrow import from_array, offset_columns
from zkgroups.tables.table_reader import read_batches
from zkgroups.testing import ZooKeeperServer
from zkgroups.zookeeper.kazoo_compat.safe_decoding import decode_names
from zkgroups.zookeeper.requests.multiread import END, Kind, listings, operations

GROUPS, TENTH, OLD_GROUPS, FEW_GROUPS, MANY_GROUPS = 2_000, 10, 500, 100, 10_000
TOGETHER = 500
ROWS = 10_000
OLD = ("3.4.14", "3.5.10")

ITERATE = """
import re, sys
from pathlib import Path
from zkgroups import Registry
with Registry.connect(sys.argv[1]) as registry:
    count = sum(1 for _ in registry.offsets())
# ru_maxrss would include the peak of the parent process
print(count, int(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) // 1024)
"""

Level = list[tuple[str, Sequence[str]]]
"""Directories, each with the names of its children."""


def columns(hosts: str) -> int:
    options = SourceOptions(zookeeper=hosts)
    return sum(batch.num_rows for batch in read_batches(options, Selection()))


def objects(registry: Registry) -> int:
    return sum(isinstance(offset, CommittedOffset) for offset in registry.offsets())


def bare(hosts: str) -> int:
    """Read all offsets as columns, with the minimal client."""
    client = BareClient(hosts)
    [(_, groups)] = _below(client, [("", ["consumers"])])
    # Finish each level before the next: replies arrive in the order of all requests, whatever their level.
    topics = list(_below(client, [(f"/consumers/{group}", ["offsets"]) for group in groups]))
    partitions = list(_below(client, topics))
    answers = client.read_many(_requests(Kind.NODE, partitions))
    rows = 0
    while batch := list(islice(answers, ROWS // TOGETHER)):
        asked = [part for parts, _ in batch for part in parts]
        numbers = offset_columns([answer for _, answer in batch])
        rows += len(_names(asked)[0]) if numbers is not None else 0
    client.close()
    return rows


def bare_single(hosts: str) -> int:
    """Read all offsets with the minimal client, each by its own request."""
    client = BareClient(hosts)
    [groups] = client.read_each(Kind.CHILDREN, ["/consumers"])
    paths = [f"/consumers/{group}/offsets" for group in decode_names(groups, 0)]
    for _ in ("topics", "partitions"):
        answers = client.read_each(Kind.CHILDREN, paths)
        paths = [
            f"{path}/{name}" for path, answer in zip(paths, answers, strict=True) for name in decode_names(answer, 0)
        ]
    rows = sum(answer[4 : 4 + answer[3]].isdigit() for answer in client.read_each(Kind.NODE, paths))
    client.close()
    return rows


def _below(client: BareClient, level: Iterable[tuple[str, Sequence[str]]]) -> Iterator[tuple[str, list[str]]]:
    for parts, answer in client.read_many(_requests(Kind.CHILDREN, level)):
        found = listings(answer, sum(len(names) for _, names in parts))
        for directory, names in parts:
            for name in names:
                yield f"{directory}/{name}", sorted(next(found), key=len)  # type: ignore[arg-type]


def _requests(kind: Kind, level: Iterable[tuple[str, Sequence[str]]]) -> Iterator[tuple[Level, bytes]]:
    parts: Level = []
    count = 0
    for part in level:
        parts.append(part)
        count += len(part[1])
        if count >= TOGETHER:
            yield parts, _operations(kind, parts)
            parts, count = [], 0
    if parts:
        yield parts, _operations(kind, parts)


def _operations(kind: Kind, parts: Level) -> bytes:
    asked = (operations(kind, directory.encode(), names) for directory, names in parts)
    return b"".join(asked) + END


def _names(parts: Level) -> list[Any]:
    """Return the columns group, topic and partition."""
    ends = pa.array(accumulate(len(names) for _, names in parts), pa.int32())
    split = [directory.split("/") for directory, _ in parts]
    runs = [pa.array([names[at] for names in split], pa.string()) for at in (2, 4)]
    numbers = from_array(array("i", [int(name) for _, names in parts for name in names]))
    return [*(pc.run_end_decode(pa.RunEndEncodedArray.from_arrays(ends, values)) for values in runs), numbers]


def one_by_one(client: Any, groups: Sequence[str]) -> int:
    found = 0
    for group in groups:
        root = f"/consumers/{group}/offsets"
        for topic in client.get_children(root):
            for partition in client.get_children(f"{root}/{topic}"):
                data, stat = client.get(f"{root}/{topic}/{partition}")
                found += int(data) >= 0 and stat.version >= 0
    return found


def pipelined(client: Any) -> int:
    found = 0
    for group in client.get_children("/consumers"):
        root = f"/consumers/{group}/offsets"
        for topic in client.get_children(root):
            names = client.get_children(f"{root}/{topic}")
            for answer in [client.get_async(f"{root}/{topic}/{name}") for name in names]:
                data, stat = answer.get()
                found += int(data) >= 0 and stat.version >= 0
    return found


def timed(run: Callable[[], int], expected: int) -> Times:
    began = time.perf_counter()
    found = run()
    seconds = time.perf_counter() - began
    if found != expected:
        raise AssertionError(f"{found} offsets instead of {expected}")
    return {"walk": seconds}


def a_tenth(client: Any, expected: int) -> Callable[[int], Times]:
    groups = sorted(client.get_children("/consumers"))

    def walk(number: int) -> Times:
        some = groups[number % TENTH :: TENTH]
        return {"walk": timed(lambda: one_by_one(client, some), expected // TENTH)["walk"] * TENTH}

    return walk


def measure(rounds: int) -> dict[str, Times]:
    with ExitStack() as stack:
        hosts = stack.enter_context(ZooKeeperServer()).address
        expected = seed(hosts, groups=GROUPS)
        registry, client = stack.enter_context(Registry.connect(hosts)), _kazoo(stack, hosts)
        contenders = {
            "columns": lambda _: timed(lambda: columns(hosts), expected),
            "bare socket": lambda _: timed(lambda: bare(hosts), expected),
            "objects": lambda _: timed(lambda: objects(registry), expected),
            "kazoo pipelined": lambda _: timed(lambda: pipelined(client), expected),
            "kazoo one by one": a_tenth(client, expected),
        }
        return in_turn(contenders, rounds=rounds)


def measure_old(release: str, rounds: int) -> dict[str, list[Times]]:
    with ExitStack() as stack:
        hosts = stack.enter_context(ZooKeeperServer(release=release)).address
        expected = seed(hosts, groups=OLD_GROUPS)
        registry, client = stack.enter_context(Registry.connect(hosts)), _kazoo(stack, hosts)
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        spark = stack.enter_context(own_session())
        contenders = {
            "columns": lambda _: timed(lambda: columns(hosts), expected),
            "objects": lambda _: timed(lambda: objects(registry), expected),
            "describe": lambda _: timed(lambda: sum(1 for _ in registry.describe()), OLD_GROUPS),
            "snapshot": lambda _: timed(lambda: take_snapshot(spark, folder, hosts).offsets, expected),
            "bare socket": lambda _: timed(lambda: bare_single(hosts), expected),
            "kazoo one by one": a_tenth(client, expected),
        }
        return every_round(contenders, rounds=rounds)


def _kazoo(stack: ExitStack, hosts: str) -> Any:
    client = KazooClient(hosts)
    client.start()
    stack.callback(client.close)
    stack.callback(client.stop)
    return client


def old_ratios(release: str, rounds: int) -> dict[str, float]:
    """How many times faster each contender is than kazoo one by one."""
    found = measure_old(release, rounds)
    table(f"50,000 offsets, ZooKeeper {release}", medians_of(found))
    slowest = found.pop("kazoo one by one")
    return {name: paired_ratios(times, slowest)["walk"] for name, times in found.items()}


def memory(groups: int) -> tuple[int, int]:
    """Iterate over all offsets in a separate process. Return their number, and its peak memory in megabytes."""
    with ZooKeeperServer(jvm_options=("-Xmx3g",)) as server:
        seed(server.address, groups=groups)
        command = [sys.executable, "-c", ITERATE, server.address]
        offsets, megabytes = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
    print(f"{offsets} offsets: peak memory {megabytes} MB", file=sys.stderr)
    return int(offsets), int(megabytes)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--old", action="store_true")
    parser.add_argument("--releases", nargs="+", default=OLD)
    options = parser.parse_args()
    rounds = options.rounds
    old = {release: old_ratios(release, rounds) for release in options.releases}
    if options.old:
        result("reads", fallback_vs_one_by_one=old)
        return
    medians = measure(rounds)
    table("200,000 offsets", medians)
    (_, large), (_, small) = memory(MANY_GROUPS), memory(FEW_GROUPS)

    def speedup(first: str, second: str) -> float:
        return ratios(medians[first], medians[second])["walk"]

    result(
        "reads",
        columns_vs_one_by_one=speedup("columns", "kazoo one by one"),
        columns_vs_pipelined=speedup("columns", "kazoo pipelined"),
        columns_vs_bare_socket=speedup("columns", "bare socket"),
        objects_vs_one_by_one=speedup("objects", "kazoo one by one"),
        fallback_vs_one_by_one=old,
        memory_of_1000000_vs_10000=round(large / small, 2),
        megabytes_for_1000000=large,
    )


if __name__ == "__main__":
    main()
