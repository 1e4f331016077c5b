"""The server for an hour, while members come and go: its memory and its open files stay the same."""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import pytest

from tests import seeds
from tests.waiting import eventually
from zkgroups import Registry, TopicPartition
from zkgroups.testing import ZooKeeperServer

from .test_command import body, served

pytestmark = [pytest.mark.zookeeper, pytest.mark.soak]

MINUTES: Final = float(os.environ.get("ZKGROUPS_SOAK_SERVE_MINUTES", "60"))
GROUPS: Final = 200
PARTITIONS: Final = 20
MORE_MEMORY: Final = 1.15
"""Once all groups have as many events and points as are kept, the memory may still vary as the garbage is collected."""
MORE_FILES: Final = 8


def measured(pid: int) -> tuple[int, int]:
    """The memory of a process in kilobytes, and the number of its open files."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    memory = next(int(line.split()[1]) for line in lines if line.startswith("VmRSS"))
    return memory, len(list(Path(f"/proc/{pid}/fd").iterdir()))


def work(registry: Registry, ended: threading.Event, generator: random.Random) -> Iterator[int]:
    """Instances join a random group, claim, commit and leave, and groups are created and deleted."""
    rounds = 0
    while not ended.is_set():
        group = registry.group(f"group-{generator.randrange(GROUPS)}")
        with group.instance() as one, group.instance() as two:
            for instance, numbers in ((one, range(0, PARTITIONS, 2)), (two, range(1, PARTITIONS, 2))):
                instance.register(["orders"])
                claims = instance.claim_many([TopicPartition("orders", number) for number in numbers], timeout=30)
                claims.commit(dict.fromkeys(claims, rounds + 1000000), backward=True)
        passing = registry.group(f"passing-{rounds}")
        passing.offsets.set(TopicPartition("orders", 0), 1)
        passing.delete()
        rounds += 1
        yield rounds


@pytest.mark.timeout(int(MINUTES * 60) + 600)
def test_memory_and_open_files_stay_the_same() -> None:
    ended = threading.Event()
    with ExitStack() as stack:
        server = stack.enter_context(ZooKeeperServer())
        registry = stack.enter_context(Registry.connect(server.address))
        for number in range(GROUPS):
            offsets = {TopicPartition("orders", partition): 1 for partition in range(PARTITIONS)}
            registry.group(f"group-{number}").offsets.set_many(offsets)
        url, process = stack.enter_context(served(server.address, "--every", "1"))
        assert eventually(lambda: "group-0" in body(f"{url}/api/v1/groups"))
        seen: list[tuple[int, int]] = []
        deadline, next_look = time.monotonic() + MINUTES * 60, 0.0
        for rounds in work(registry, ended, random.Random(seeds.seed())):
            body(f"{url}/metrics")
            body(f"{url}/")
            body(f"{url}/groups/group-{rounds % GROUPS}")
            if time.monotonic() >= next_look:
                next_look = time.monotonic() + MINUTES * 60 / 30
                seen.append(measured(process.pid))
                print(f"{rounds} rounds: {seen[-1][0] >> 10} MB, {seen[-1][1]} open files", flush=True)
            if time.monotonic() > deadline:
                ended.set()
        assert "zkgroups_sweep_failures_total 0" in body(f"{url}/metrics")
    third = len(seen) // 3
    memory_before = max(memory for memory, _ in seen[third : 2 * third])
    memory_after = max(memory for memory, _ in seen[2 * third :])
    assert memory_after < MORE_MEMORY * memory_before, seen
    assert max(files for _, files in seen[third:]) <= min(files for _, files in seen[:third]) + MORE_FILES, seen
