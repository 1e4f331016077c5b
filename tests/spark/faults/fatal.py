"""Spark's Python workers, with a process that kills itself at a chosen step.

    spark.python.daemon.module=tests.spark.faults.fatal

A step is a moment in a request to the brokers (before, sent, answered) or in a write to ZooKeeper (before, answered).
All workers count steps in one file, so "the third answer to a commit" is exact. At the chosen step the worker kills
itself or the driver.
"""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import signal
import struct
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Self

from zkgroups.kafka.wire import codec
from zkgroups.kafka.wire.connection import Connection
from zkgroups.migration import arrow_rows
from zkgroups.testing import Op
from zkgroups.zookeeper.kazoo_compat import requests as request_queue

VARIABLE = "ZKGROUPS_FATAL"

WRITES = (Op.CREATE, Op.DELETE, Op.SET_DATA, Op.MULTI, Op.CREATE2)
_KINDS = {
    codec.DESCRIBE_GROUPS: "describe",
    codec.OFFSET_FETCH: "committed",
    codec.OFFSET_COMMIT: "commit",
    codec.DELETE_GROUPS: "delete",
    codec.OFFSET_DELETE: "delete",
}
_KEY = struct.Struct(">h")
_KEY_AT = 4
"""Where the kind of the request is in a frame: after its size."""
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

    arrow_rows.MAX_GROUPS = GROUPS  # type: ignore[misc]
    _watch_requests(step)
    _watch_writes(step)


def _watch_requests(step: Callable[[str], None]) -> None:
    exchange = Connection.exchange

    async def watched(self: Connection, frame: bytes, correlation_id: int | None) -> bytes:
        (key,) = _KEY.unpack_from(frame, _KEY_AT)
        if (kind := _KINDS.get(key)) is None:
            return await exchange(self, frame, correlation_id)
        step(f"{kind} before")
        sent = asyncio.create_task(exchange(self, frame, correlation_id))
        await asyncio.sleep(0)
        step(f"{kind} sent")
        answer = await sent
        step(f"{kind} answered")
        return answer

    Connection.exchange = watched  # type: ignore[method-assign]


def _watch_writes(step: Callable[[str], None]) -> None:
    enqueue = request_queue.enqueue  # which zkgroups has put in the place of kazoo's own

    def watched(client: Any, requests: Sequence[tuple[Any, Any]]) -> bool:
        for request, answer in requests:
            if getattr(request, "type", None) in WRITES:
                step("zookeeper before")
                answer.rawlink(lambda _: step("zookeeper answered"))
        return enqueue(client, requests)

    request_queue.enqueue = watched


if __name__ == "__main__":
    from pyspark.daemon import manager

    arm(Fate.of_environment())
    manager()
