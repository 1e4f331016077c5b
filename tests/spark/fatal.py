"""Spark's Python workers, with a process that kills itself at a chosen step.

    spark.python.daemon.module=tests.spark.fatal

A step is a moment in a request to the brokers (before, sent, answered) or in a write to ZooKeeper (before, answered).
All workers count steps in one file, so "the third answer to a commit" is exact. At the chosen step the worker kills
itself or the driver.
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Self

from kazoo.client import KazooClient

from zkgroups.kafka import worker
from zkgroups.migration import chunks
from zkgroups.testing import Op

VARIABLE = "ZKGROUPS_FATAL"

WRITES = (Op.CREATE, Op.DELETE, Op.SET_DATA, Op.MULTI, Op.CREATE2)
GROUPS = 2
"""The groups per chunk. It is small, so that a process may die between two chunks."""


@dataclass(frozen=True)
class Fate:
    """The process to kill, and the step: the `nth` one with this name; 0 is never. The file lists all steps."""

    victim: str
    step: str
    nth: int
    file: str
    driver: int = 0

    @classmethod
    def of_environment(cls) -> Self:
        return cls(**json.loads(os.environ[VARIABLE]))

    def driven_by(self, driver: int) -> Self:
        return replace(self, driver=driver)

    def environment(self) -> dict[str, str]:
        return {VARIABLE: json.dumps(asdict(self))}

    def steps(self) -> list[str]:
        """Return the steps so far, in order."""
        path = Path(self.file)
        return path.read_text().splitlines() if path.exists() else []

    def came(self) -> bool:
        """Return whether the chosen step was reached."""
        return self.steps().count(self.step) >= self.nth > 0


def arm(fate: Fate) -> None:
    """Count the steps of this process and its forks from now on."""

    def step(name: str) -> None:
        with Path(fate.file).open("a+") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            file.seek(0)
            before = file.read().splitlines().count(name)
            file.write(f"{name}\n")
        if name == fate.step and before + 1 == fate.nth:
            os.kill(fate.driver if fate.victim == "driver" else os.getpid(), signal.SIGKILL)

    chunks.MAX_GROUPS = GROUPS  # type: ignore[misc]
    _watch_questions(step)
    _watch_writes(step)


def _watch_questions(step: Callable[[str], None]) -> None:
    exchange, rest = worker._exchange, worker._rest
    kinds: list[str] = []

    def asked(process: Any, question: str, *more: Any) -> int | None:
        kinds[:] = [json.loads(question)["kind"]]
        step(f"{kinds[0]} before")
        status = exchange(process, question, *more)
        step(f"{kinds[0]} answered")
        return status

    def sent(pipe: int, question: memoryview) -> memoryview:
        left = rest(pipe, question)
        if not left:
            step(f"{kinds[0]} sent")
        return left

    worker._exchange, worker._rest = asked, sent


def _watch_writes(step: Callable[[str], None]) -> None:
    call = KazooClient._call

    def watched(self: Any, request: Any, answer: Any) -> Any:
        if getattr(request, "type", None) not in WRITES:
            return call(self, request, answer)
        step("zookeeper before")
        answer.rawlink(lambda _: step("zookeeper answered"))
        return call(self, request, answer)

    KazooClient._call = watched


if __name__ == "__main__":
    from pyspark.daemon import manager

    arm(Fate.of_environment())
    manager()
