"""Offsets from a server's files: the rate per second, compared with a hand-written reader.

    python -m benchmarks.datadir [--rounds 5]

A server creates 1,000,000 offsets, writes a snapshot of its tree and stops; another one 200,000. Then, in one process:

- the snapshot file to Arrow batches, as in the data source, with checksums and the digest of the tree verified
- a plain reader of such a file, record by record, without any checks, which makes a tuple of each offset
- the peak of memory, each in a separate process
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from struct import Struct

from benchmarks import Times, in_turn, ratios, result, table
from benchmarks._trees import seed
from zkgroups.core.selection import Selection
from zkgroups.spark import SourceOptions
from zkgroups.tables.data_dir_reader import find_state, read_batches
from zkgroups.testing import ZooKeeperServer

LARGE, SMALL = 10_000, 2_000  # groups of 100 offsets each
OFFSETS = 100

PEAK = """
import sys
from pathlib import Path
from benchmarks.datadir import batches

def peak():
    return next(line.split()[1] for line in Path("/proc/self/status").read_text().splitlines() if "VmHWM" in line)

before = peak()
batches(sys.argv[1])
print(peak(), before)
"""


def batches(folder: str) -> int:
    """Read all offsets as Arrow batches."""
    options = SourceOptions(data_dir=folder)
    assert options.files is not None
    return sum(batch.num_rows for batch in read_batches(options, Selection(), find_state(options.files, None)))


def by_hand(folder: str) -> int:
    """Read the offsets of the newest snapshot as tuples."""
    [*_, newest] = sorted(Path(folder, "version-2").glob("snapshot.*"), key=lambda file: int(file.suffix[1:], 16))
    with newest.open("rb") as stream:
        return sum(1 for _ in _offsets(stream.read()))


INT, LONG, STAT = Struct(">i"), Struct(">q"), Struct(">qqqqiiiqq")


def _offsets(data: bytes) -> Iterator[tuple[str, str, int, int, int, int, int, int]]:
    at = 16
    [sessions] = INT.unpack_from(data, at)
    at += 4 + 12 * sessions
    [acls] = INT.unpack_from(data, at)
    at += 4
    for _ in range(acls):
        [entries] = INT.unpack_from(data, at + 8)
        at += 12
        for _ in range(entries):
            at += 4
            for _ in range(2):
                [length] = INT.unpack_from(data, at)
                at += 4 + length
    while True:
        [length] = INT.unpack_from(data, at)
        path = data[at + 4 : at + 4 + length].decode()
        if path == "/":
            return
        at += 4 + length
        [length] = INT.unpack_from(data, at)
        value = data[at + 4 : at + 4 + max(0, length)]
        at += 4 + max(0, length) + 8
        _, mzxid, created, modified, version, *_ = STAT.unpack_from(data, at)
        at += STAT.size
        names = path.split("/")
        if len(names) == 6 and names[1] == "consumers" and names[3] == "offsets":
            yield names[2], names[4], int(names[5]), int(value), version, modified, created, mzxid


def timed(run: Callable[[str], int], folder: str, offsets: int) -> Callable[[int], Times]:
    def once(_round: int) -> Times:
        began = time.perf_counter()
        assert run(folder) == offsets
        return {"seconds": time.perf_counter() - began}

    return once


def peak(folder: str) -> tuple[int, int]:
    """Return the peak memory of the process in KiB, and the memory before reading."""
    ended = subprocess.run([sys.executable, "-c", PEAK, folder], check=True, capture_output=True, text=True)
    most, before = map(int, ended.stdout.split())
    return most, before


def made(folder: Path, groups: int) -> str:
    """Create the data directory of a stopped server."""
    with ZooKeeperServer(data_dir=folder, jvm_options=("-Xmx3g",)) as server:
        seed(server.address, groups=groups)
        server.kill()
        server.start(timeout=300)  # which writes a snapshot of the tree
        server.kill()
    return str(folder)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        large, small = made(folder / "large", LARGE), made(folder / "small", SMALL)
        contenders = {
            "batches of 1,000,000": timed(batches, large, LARGE * OFFSETS),
            "by hand": timed(by_hand, large, LARGE * OFFSETS),
            "batches of 200,000": timed(batches, small, SMALL * OFFSETS),
        }
        times = in_turn(contenders, rounds=rounds)
        most, before = peak(large)
        less, _ = peak(small)
    table("from a data directory", times)
    print(f"peak of memory: {most >> 10} MiB, {before >> 10} of them before anything was read", file=sys.stderr)
    result(
        "datadir",
        time_vs_by_hand=ratios(times["by hand"], times["batches of 1,000,000"])["seconds"],
        time_of_1000000_vs_200000=ratios(times["batches of 200,000"], times["batches of 1,000,000"])["seconds"],
        memory_of_1000000_vs_200000=round(most / less, 2),
        offsets_per_second=round(LARGE * OFFSETS / times["batches of 1,000,000"]["seconds"]),
    )


if __name__ == "__main__":
    main()
