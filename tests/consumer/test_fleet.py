"""200 members in 20 processes with 1,000 partitions: they need no more after minutes than at the start.

Each member commits all its partitions every second. Every 30 s, a member leaves, and another one joins in its session.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest

from tests.waiting import eventually
from zkgroups import Generation, Member, Registry
from zkgroups.exceptions import GenerationEndedError
from zkgroups.testing import ZooKeeperServer

from .nemesis import ROOT, plant_topics

pytestmark = [pytest.mark.zookeeper, pytest.mark.soak, pytest.mark.timeout(0)]

MINUTES = float(os.environ.get("ZKGROUPS_SOAK_MINUTES", "10"))
PROCESSES, MEMBERS, PARTITIONS = 20, 10, 1_000
LEAVE_EVERY, REPORT_EVERY = 30.0, 5.0
JOINING = 600.0
"""In seconds: how long a busy machine may need until all members have joined."""


def work(generation: Generation) -> None:
    offset = int(time.time())
    with suppress(GenerationEndedError):
        while not generation.wait(1.0):
            offset += 1
            generation.commit(dict.fromkeys(generation.partitions, offset))


def main(hosts: str, number: int) -> None:
    """Take part, and print what this process needs, as lines of JSON, until it is killed."""
    lost: list[int] = []
    failed: list[str] = []

    def join(registry: Registry, index: int) -> Member:
        group, id = registry.group("billing"), f"{number:02}-{index}"
        member = Member(group, ["orders"], id=id, on_lost=lambda at: lost.append(len(at)))

        def take_part() -> None:
            with member:
                for generation in member.generations():
                    generation.start(work)
                    generation.wait()

        threading.Thread(target=take_part, daemon=True).start()
        return member

    registries = [Registry.connect(hosts) for _ in range(MEMBERS)]
    members = [join(registry, index) for index, registry in enumerate(registries)]
    threading.excepthook = lambda arguments: failed.append(repr(arguments.exc_value))
    next_leave = time.monotonic() + (number + 1) * LEAVE_EVERY
    while True:
        time.sleep(REPORT_EVERY)
        if time.monotonic() >= next_leave:
            next_leave += PROCESSES * LEAVE_EVERY
            members[0].close()
            members[0] = join(registries[0], 0)
        status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
        report = {
            "held": sum(len(member.assignment) for member in members),
            "failed": failed,
            "lost": lost,
            "sessions": [registry.session_id for registry in registries],
            "threads": threading.active_count(),
            "files": len(list(Path("/proc/self/fd").iterdir())),
            "kilobytes": int(status["VmRSS"].split()[0]),
        }
        print(json.dumps(report), flush=True)


def of_all(runs: Sequence[Sequence[dict[str, Any]]], name: str, part: slice) -> float:
    """The sum over all processes of the median in a part of the reports."""
    return sum(statistics.median(report[name] for report in reports[part]) for reports in runs)


def test_two_hundred_members_need_no_more_after_minutes_and_lose_no_session(tmp_path: Path) -> None:
    logs = [tmp_path / f"{number}.jsonl" for number in range(PROCESSES)]

    def reports(log: Path) -> list[dict[str, Any]]:
        return [json.loads(line) for line in log.read_text().split("\n")[:-1]]

    def held() -> int:
        return sum(found[-1]["held"] if (found := reports(log)) else 0 for log in logs)

    with ExitStack() as stack:
        server = stack.enter_context(ZooKeeperServer(tick_time=2.0))
        plant_topics(server.address, {"orders": PARTITIONS})
        for number, log in enumerate(logs):
            command = [sys.executable, "-W", "ignore", "-m", __name__, server.address, str(number)]
            process = subprocess.Popen(command, cwd=ROOT, stdout=stack.enter_context(log.open("wb")))
            stack.callback(process.wait)
            stack.callback(process.kill)
        assert eventually(lambda: held() == PARTITIONS, timeout=JOINING)
        begun = [len(reports(log)) - 1 for log in logs]
        time.sleep(MINUTES * 60)
        assert eventually(lambda: held() == PARTITIONS, timeout=JOINING)
    runs = [reports(log)[since:] for log, since in zip(logs, begun, strict=True)]
    for found in runs:
        assert {json.dumps([each["sessions"], each["lost"], each["failed"]]) for each in found} == {
            json.dumps([found[0]["sessions"], found[0]["lost"], []])
        }
    third = len(runs[0]) // 3
    for name, growth in (("kilobytes", 1.05), ("threads", 1.02), ("files", 1.02)):
        before, after = of_all(runs, name, slice(third)), of_all(runs, name, slice(-third, None))
        print(f"{name} of all: {before:.0f}, then {after:.0f}")
        assert after <= growth * before, name


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
