"""A plugin of pytest that collects the tests once, and runs those that can detect a change in a fork for each change.

`mutate.py` starts it, and sends changes as lines of JSON. Servers that many tests share start once, before the forks.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence, Set
from contextlib import nullcontext, suppress
from itertools import accumulate
from pathlib import Path
from typing import Any, Final

import pytest
from mutate_changes import Change
from mutate_coverage import Coverage
from mutate_in_function import change_functions
from trial import written

from zkgroups.testing import ChildProcess, child_process

SERVERS: Final = ("zookeeper", "kafka_broker", "legacy_kafka")
"""Fixtures of the servers that all tests share."""
VARIABLE: Final = "ZKGROUPS_MUTATE_PIPES"
MEMORY: Final = 3 * 1024**3
"""In bytes. An endless loop may collect more."""
LONGEST: Final = 20.0
"""In seconds. Slower tests are not used."""
TIMEOUT: Final = 30.0
"""In seconds, for each test."""
MOST: Final = 120.0
"""In seconds, for the tests of one change: hundreds may run a place that all of them need."""


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> bool:
    """Answer requests until `mutate.py` closes the pipe."""
    requests, answers, folder = os.environ[VARIABLE].split(maxsplit=2)
    with os.fdopen(int(requests)) as lines, os.fdopen(int(answers), "w", buffering=1) as out:
        worker = Worker(session, folder)
        print(json.dumps(worker.measure()), file=out)
        for line in lines:
            print(json.dumps(worker.answer(Change(**json.loads(line)))), file=out)
    return True


class Worker:
    """The collected tests, and what is known of them."""

    def __init__(self, session: pytest.Session, folder: str) -> None:
        self._session = session
        self._folder = folder
        self._root = Path.cwd()
        self._tests_of: dict[tuple[str, int], set[pytest.Item]] = defaultdict(set)
        self._seconds: dict[pytest.Item, float] = {}

    def measure(self) -> dict[str, Any]:
        """Start the shared servers, and run all tests once."""
        self._start_servers()
        items = {item.nodeid: item for item in self._session.items}
        measured = list(self._measured(list(items.values()), tracing=True))
        failed = [items[each["test"]] for each in measured if not each["passed"] and each["seconds"] < LONGEST]
        again = list(self._measured(failed, tracing=False))  # tracing takes time
        passed = {each["test"] for each in [*measured, *again] if each["passed"]}
        for each in measured:
            if each["test"] in passed and each["seconds"] < LONGEST:
                self._seconds[items[each["test"]]] = each["seconds"]
                for line in each["lines"]:
                    self._tests_of[tuple(line)].add(items[each["test"]])
        return {
            "tests": len(items),
            "seconds": sum(each["seconds"] for each in measured),
            "failed": sorted(items.keys() - passed),
            "slow": sorted(each["test"] for each in measured if each["seconds"] >= LONGEST),
        }

    def _start_servers(self) -> None:
        """Run one test for each server. Its fixtures stay until the session ends."""
        for name in SERVERS:
            users = (item for item in self._session.items if name in getattr(item, "fixturenames", ()))
            if (user := next(users, None)) is not None:
                self._session._setupstate.teardown_exact(user)
                others = [item for item in self._session.items if item is not user]
                user.config.hook.pytest_runtest_protocol(item=user, nextitem=others[0])

    def _measured(self, items: Sequence[pytest.Item], *, tracing: bool) -> Iterator[dict[str, Any]]:
        """Run the tests in one fork, or in more if it dies, and yield one result for each."""
        left = list(items)
        while left:
            results = self._root / "measured.jsonl"
            results.write_text("")
            self._fork(lambda items=tuple(left), to=results: self._run_measured(items, to, tracing), 3600.0)
            found = [json.loads(line) for line in results.read_text().splitlines()]
            yield from found
            left = left[len(found) :]
            if left:  # the fork has died in this test
                yield {"test": left[0].nodeid, "passed": False, "seconds": 0.0, "lines": []}
                left = left[1:]

    def _run_measured(self, items: Sequence[pytest.Item], to: Path, tracing: bool) -> bool:
        with to.open("a", buffering=1) as out:
            for item, following in self._with_next(items):
                coverage = Coverage(self._folder)
                failures, begin = self._session.testsfailed, time.monotonic()
                with coverage.active() if tracing else nullcontext():
                    item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
                seconds, passed = time.monotonic() - begin, self._session.testsfailed == failures
                found = {"test": item.nodeid, "passed": passed, "seconds": seconds, "lines": sorted(coverage.lines)}
                print(json.dumps(found), file=out)
        return True

    def _with_next(self, items: Sequence[pytest.Item]) -> Iterator[tuple[pytest.Item, pytest.Item | None]]:
        if items:
            self._session._setupstate.teardown_exact(items[0])
        yield from zip(items, [*items[1:], None], strict=True)

    def answer(self, change: Change) -> dict[str, Any]:
        """Make the change, run the tests that can detect it, the quickest first, and return which one did."""
        path = self._root / change.file
        chosen = self._chosen(change)
        if not chosen:
            return {"outcome": "not run by any test", "tests": 0, "seconds": 0.0}
        source, begin = path.read_bytes(), time.monotonic()
        limit = 30 + 3 * sum(self._seconds[item] for item in chosen)
        with written(path, changed := change.made_in(source)):
            failed = self._root / "failed"
            failed.write_text("")
            outcome = None
            if change.in_function:
                outcome = self._fork(lambda: self._run_changed(change, changed, source, chosen, failed), limit)
            if outcome is None:
                outcome = self._run_imported(chosen, limit + 30, failed)
        return {
            "outcome": outcome,
            "tests": len(chosen),
            "seconds": time.monotonic() - begin,
            "by": failed.read_text(),
        }

    def _chosen(self, change: Change) -> list[pytest.Item]:
        path, (first, last) = str(self._root / change.file), change.lines
        if change.in_function:
            found = set().union(*(self._tests_of[path, line] for line in range(first, last + 1)))
        else:
            found = set().union(*(tests for (file, _), tests in self._tests_of.items() if file == path))
        quickest = sorted(found, key=lambda item: (self._seconds[item], item.nodeid))
        used = accumulate(self._seconds[item] for item in quickest)
        return [item for item, seconds in zip(quickest, used, strict=True) if seconds < MOST]

    def _run_changed(
        self, change: Change, changed: bytes, source: bytes, chosen: Sequence[pytest.Item], failed: Path
    ) -> bool | None:
        """Run in a fork: return True if all tests pass, and None if the change needs an import."""
        if not change_functions(str(self._root / change.file), source, changed):
            return None
        for item, following in self._with_next(chosen):
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            if self._session.testsfailed:
                failed.write_text(item.nodeid)
                with suppress(BaseException):
                    self._session._setupstate.teardown_exact(None)
                return False
        return True

    def _fork(self, run: Callable[[], bool | None], limit: float) -> str | None:
        """Run in a fork, and return the outcome; None if it must be run with a new import."""
        servers = set(child_process._alive)
        if (child := os.fork()) == 0:
            os.setsid()
            sys.dont_write_bytecode = True
            os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
            self._session.testsfailed = 0
            _run_on(servers)
            status = 1
            try:
                status = {True: 0, False: 1, None: 2}[run()]
            finally:
                os._exit(status)
        outcome = _waited(child, limit)
        with suppress(ProcessLookupError):
            os.killpg(child, signal.SIGKILL)
        return outcome

    def _run_imported(self, chosen: Sequence[pytest.Item], limit: float, failed: Path) -> str:
        """Run the tests in a new process, which imports the changed file."""
        names = self._root / "chosen"
        names.write_text("\n".join(item.nodeid for item in chosen))
        report = self._root / "report"
        report.write_text("")
        command = [sys.executable, "-m", "pytest", "-x", "-q", "-n", "0", "-p", "no:cacheprovider"]
        command += [f"--timeout={TIMEOUT}", f"@{names}"]
        with report.open("w") as out:
            process = subprocess.Popen(
                command,
                stdout=out,
                stderr=out,
                start_new_session=True,
                env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
            )
        outcome = _waited(process.pid, limit)
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.returncode = 0
        lines = [line for line in report.read_text().splitlines() if line.startswith(("FAILED", "ERROR"))]
        failed.write_text(lines[0] if lines else "import")
        return outcome or "detected"


def _run_on(inherited: Set[ChildProcess]) -> None:
    """Let servers that were started before the fork count as running: only their parent can wait for them."""
    wait = ChildProcess.wait

    def wait_for_own(process: ChildProcess, timeout: float) -> int | None:
        if process not in inherited:
            return wait(process, timeout)
        time.sleep(timeout)
        return None

    ChildProcess.wait = wait_for_own  # type: ignore[method-assign]


def _waited(child: int, limit: float) -> str | None:
    """Wait for a child, and end it if it takes too long or too much memory."""
    deadline = time.monotonic() + limit
    while True:
        found, status = os.waitpid(child, os.WNOHANG)
        if found:
            code = os.waitstatus_to_exitcode(status)
            return None if code == 2 else "survived" if code == 0 else "detected"
        if time.monotonic() > deadline or _memory(child) > MEMORY:
            with suppress(ProcessLookupError):
                os.killpg(child, signal.SIGKILL)
            os.waitpid(child, 0)
            return "hangs"
        time.sleep(0.01)


def _memory(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * resource.getpagesize()
    except (OSError, IndexError):
        return 0
