"""200 members in 20 processes with 1,000 partitions: they need no more after minutes than at the start."""

from __future__ import annotations

import json
import os
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.waiting import eventually
from zkgroups.testing import ZooKeeperServer, zookeeper_server

from .nemesis import ROOT, plant_topics

pytestmark = [pytest.mark.zookeeper, pytest.mark.soak, pytest.mark.timeout(0)]

MINUTES = float(os.environ.get("ZKGROUPS_SOAK_MINUTES", "10"))
PROCESSES, MEMBERS, PARTITIONS = 20, 10, 1_000
LEAVE_EVERY = 30.0
"""In seconds: how often a member leaves and joins again, in one process after the other."""
JOINING = 600.0
"""In seconds: how long a busy machine may need until all members have joined."""


class Process:
    """One process and its reports."""

    def __init__(self, hosts: str, number: int) -> None:
        command = [sys.executable, "-m", "tests.consumer.fleet_worker", "--hosts", hosts, "--group", "billing"]
        command += ["--topic", "orders", "--name", chr(ord("a") + number), "--members", str(MEMBERS)]
        command += ["--leave", str((number + 1) * LEAVE_EVERY), str(PROCESSES * LEAVE_EVERY)]
        self.process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
        self.reports: list[dict[str, Any]] = []
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as lines:
            for line in lines:
                self.reports.append(json.loads(line))

    @property
    def held(self) -> int:
        return self.reports[-1]["held"] if self.reports else 0

    def end(self) -> int:
        """Let the members leave. Return the exit code."""
        self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(120)
        self._reader.join()
        return code


@contextmanager
def processes(hosts: str) -> Iterator[list[Process]]:
    started: list[Process] = []
    with ExitStack() as stack:
        for number in range(PROCESSES):
            each = Process(hosts, number)
            stack.callback(each.process.wait)
            stack.callback(each.process.kill)
            started.append(each)
        yield started


def received(server: ZooKeeperServer) -> int:
    """The number of requests that the server has received so far, with pings."""
    host, _, port = server.address.partition(":")
    answer = zookeeper_server.ask(host, int(port), timeout=30.0)
    return int(next(line.split()[1] for line in answer.splitlines() if line.startswith("Received:")))


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def percentile(values: Sequence[float], share: float) -> float:
    return sorted(values)[int(len(values) * share)]


def of_all(runs: Sequence[Sequence[dict[str, Any]]], name: str, part: slice) -> float:
    """The sum over all processes of the median in a part of the reports."""
    return sum(statistics.median(report[name] for report in reports[part]) for reports in runs)


def test_two_hundred_members_need_no_more_after_minutes_and_lose_no_session() -> None:
    with ZooKeeperServer(tick_time=2.0) as server:
        plant_topics(server.address, {"orders": PARTITIONS})
        began = time.monotonic()
        with processes(server.address) as started:
            assert eventually(lambda: sum(each.held for each in started) == PARTITIONS, timeout=JOINING)
            print(f"\nall partitions have an owner after {time.monotonic() - began:.0f} s", flush=True)
            first = [len(each.reports) - 1 for each in started]
            requests, cpu, began = received(server), cpu_seconds(server.pid), time.monotonic()
            threading.Event().wait(MINUTES * 60)
            seconds = time.monotonic() - began
            requests, cpu = received(server) - requests, cpu_seconds(server.pid) - cpu
            assert eventually(lambda: sum(each.held for each in started) == PARTITIONS, timeout=JOINING)
            runs = [each.reports[since:] for each, since in zip(started, first, strict=True)]
            show(runs, requests / seconds, cpu / seconds, seconds)
            assert_flat(runs)
            assert [each.end() for each in started] == [0] * PROCESSES


def show(runs: Sequence[Sequence[dict[str, Any]]], requests: float, cpu: float, seconds: float) -> None:
    commits = [each for reports in runs for report in reports for each in report["commits"]]
    clients = sum(reports[-1]["cpu"] - reports[0]["cpu"] for reports in runs)
    print(f"{requests:.0f} requests/s, {cpu:.2f} CPU s/s of the server, {clients / seconds:.2f} of all members")
    tail = ", ".join(f"p{share:.0%} {percentile(commits, share):.0f} ms".replace("%", "") for share in (0.5, 0.99))
    print(f"{len(commits)} commits of five partitions: {tail}, longest {max(commits):.0f} ms")
    for name in ("kilobytes", "threads", "files"):
        third = len(runs[0]) // 3
        print(
            f"{name} of all: {of_all(runs, name, slice(third)):.0f}, then {of_all(runs, name, slice(-third, None)):.0f}"
        )


def assert_flat(runs: Sequence[Sequence[dict[str, Any]]]) -> None:
    third = len(runs[0]) // 3
    before, after = slice(third), slice(-third, None)
    for reports in runs:
        assert [report["refused"] for report in reports if report["refused"]] == []
        assert {tuple(report["sessions"]) for report in reports} == {tuple(reports[0]["sessions"])}
        assert reports[-1]["lost"] == reports[0]["lost"]
    for name, growth in (("kilobytes", 1.05), ("threads", 1.02), ("files", 1.02)):
        assert of_all(runs, name, after) <= growth * of_all(runs, name, before), name
