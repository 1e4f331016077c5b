"""`zkgroups claim -- COMMAND`: several of them wait for one partition in turn, and each runs its command for a moment.

The command records that it works, like a member, and ignores SIGTERM. Its fencing token is the `number` of its records.
"""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, Self

from tests.cli.running import COMMAND, environment
from tests.consumer.history import Event, History, Kind, Violation, clock, doubled, leases, read, unsettled
from zkgroups import Registry
from zkgroups.testing import ZooKeeperEnsemble

from .faults import Route

GROUP, AT = "jobs", "orders/0"
ENDINGS: Final = {0, 7}
"""Exit codes: the command has ended by itself, or the claim may be lost, or no server has answered."""

WORK = """
import json, os, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
file = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
run, token = f"command#{os.getpid()}", int(os.environ["ZKGROUPS_TOKEN"])
begun = now = time.clock_gettime(time.CLOCK_BOOTTIME)
offset = 0
while now < begun + float(sys.argv[2]):
    now = time.clock_gettime(time.CLOCK_BOOTTIME)
    event = {"kind": "processed", "run": run, "member": run, "at": "orders/0", "number": token, "offset": offset}
    os.write(file, (json.dumps(event | {"time": now, "since": now, "sure": now}) + "\\n").encode())
    offset += 1
    time.sleep(0.02)
"""
LASTS: Final = 3.0
"""In session timeouts: how long a command works if nothing stops it."""


class Commands:
    """Commands that are started again and again, half of them on each route, until the end of the `with` block."""

    def __init__(
        self,
        directory: Path,
        ensemble: ZooKeeperEnsemble,
        routes: Sequence[Route],
        number: int,
        *,
        session_timeout: float,
    ) -> None:
        self._directory, self._ensemble, self._timeout = directory, ensemble, session_timeout
        self._places = [routes[each % len(routes)] for each in range(number)]
        self._stop = threading.Event()
        self._running: dict[int, subprocess.Popen[Any]] = {}
        self._threads = [threading.Thread(target=self._repeat, args=(each,)) for each in range(number)]
        self._failures: list[str] = []
        self.endings: list[int] = []

    def __enter__(self) -> Self:
        with Registry.connect(self._ensemble.address) as registry:
            registry.group(GROUP).create()
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def end(self) -> None:
        """Kill what still runs. The helpers of the command stop it in time."""
        self._stop.set()
        for process in list(self._running.values()):
            process.kill()
        for thread in self._threads:
            thread.join(60)

    def note(self, kind: Kind, text: str = "") -> None:
        """Record an action of the nemesis."""
        with (self._directory / "nemesis.jsonl").open("a") as file:
            file.write(Event(kind, clock(), "nemesis", error=text).line() + "\n")

    def settle(self, bound: float = 40.0) -> bool:
        """Wait until a command works that has begun since this call."""
        before, end = self._runs(), time.monotonic() + bound
        while time.monotonic() < end:
            if self._runs() - before:
                return True
            time.sleep(0.3)
        return False

    def _runs(self) -> set[str]:
        return {event.run for event in self._history().of(Kind.PROCESSED)}

    def calm(self, bound: float) -> None:
        """Note that all faults are over, and wait until another command works."""
        self.note(Kind.CALM)
        self.settle(bound)

    def violations(self, bound: float) -> list[Violation]:
        """Return what is wrong, after the end."""
        history = self._history()
        found = [*doubled(history), *_tokens(history), *unsettled(history, bound)]
        return found + [Violation("a command failed", text) for text in self._failures]

    def summary(self) -> str:
        """Numbers of the run."""
        ended = {code: self.endings.count(code) for code in sorted(set(self.endings))}
        return f"{GROUP}: {len(self._runs())} commands, exit codes {ended}"

    def _history(self) -> History:
        return History(read(self._directory), frozenset({AT}), session_timeout=self._timeout)

    def _repeat(self, number: int) -> None:
        options = ("--session-timeout", f"{self._timeout}", "--grace", f"{self._timeout / 10}", "--timeout", "10")
        command = (
            sys.executable,
            "-I",
            "-S",
            "-c",
            WORK,
            str(self._directory / f"{number}.jsonl"),
            str(LASTS * self._timeout),
        )
        arguments = [COMMAND, "claim", GROUP, "orders", "0", "--wait", "600", *options, "--", *command]
        while not self._stop.is_set():
            with self._started(number, arguments) as process:
                _, errors = process.communicate()
            if self._stop.is_set():
                return
            self.endings.append(process.returncode)
            if process.returncode not in ENDINGS:
                self._failures.append(f"exit code {process.returncode}: {errors}")
            self._stop.wait(0.05)

    def _started(self, number: int, arguments: Sequence[str]) -> subprocess.Popen[str]:
        env = environment({"ZKGROUPS_ZOOKEEPER": self._places[number].address})
        process = subprocess.Popen(
            arguments, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        )
        self._running[number] = process
        if self._stop.is_set():
            process.kill()
        return process


def _tokens(history: History) -> Iterator[Violation]:
    """Commands whose fencing token is not greater than that of the command before."""
    tokens = {event.run: event.number for event in history.of(Kind.PROCESSED)}
    for those in leases(history).values():
        for before, after in pairwise(those):
            if tokens[after.run] <= tokens[before.run]:
                yield Violation(
                    "a token did not grow", f"{tokens[before.run]} of {before}, {tokens[after.run]} of {after}"
                )
