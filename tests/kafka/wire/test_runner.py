"""Coroutines run for callers without an event loop: deadlines, Ctrl-C, forks."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Iterator

import pytest

from zkgroups.deadline import Deadline
from zkgroups.exceptions import UnavailableError
from zkgroups.kafka.wire.runner import Runner

LONGEST = 30.0


@pytest.fixture
def runner() -> Iterator[Runner]:
    found = Runner()
    yield found
    found.close()


class Work:
    """Something that never ends by itself."""

    def __init__(self) -> None:
        self.begun = threading.Event()
        self.cancelled = threading.Event()

    async def run(self) -> None:
        self.begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            self.cancelled.set()


async def number(found: int) -> int:
    await asyncio.sleep(0)
    return found


def test_results_and_errors_come_back(runner: Runner) -> None:
    async def fail() -> None:
        raise LookupError("no")

    assert [runner.run(number(n)) for n in range(3)] == [0, 1, 2]
    with pytest.raises(LookupError, match="no"):
        runner.run(fail())
    assert runner.run(number(3), Deadline(LONGEST)) == 3


def test_work_is_cancelled_at_the_deadline(runner: Runner) -> None:
    work = Work()
    with pytest.raises(TimeoutError):
        runner.run(work.run(), Deadline(0.05))
    assert work.cancelled.is_set()
    assert runner.run(number(1)) == 1


def test_ctrl_c_cancels_the_work_and_leaves_the_rest_usable(runner: Runner) -> None:
    work = Work()

    def interrupt() -> None:
        assert work.begun.wait(LONGEST)
        os.kill(os.getpid(), signal.SIGINT)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    thread = threading.Thread(target=interrupt)
    thread.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            runner.run(work.run())
    finally:
        signal.signal(signal.SIGINT, before)
        thread.join()

    assert work.cancelled.is_set()
    assert runner.run(number(1)) == 1


def test_closing_cancels_all_work_and_ends_the_thread() -> None:
    work = Work()
    runner = Runner()

    async def start() -> asyncio.Task[None]:
        return asyncio.create_task(work.run())

    running = runner.run(start())
    assert work.begun.wait(LONGEST)
    runner.close()

    assert work.cancelled.is_set()
    assert running.cancelled()
    assert "zkgroups-kafka" not in {thread.name for thread in threading.enumerate()}
    with pytest.raises(UnavailableError, match="closed"):
        runner.run(number(1))
    runner.close()


def test_a_forked_child_is_refused_and_leaves_the_parent_alone(runner: Runner) -> None:
    assert runner.run(number(1)) == 1
    if (child := os.fork()) == 0:
        status = 1
        try:
            runner.run(number(2))
        except UnavailableError as error:
            runner.close()
            status = 0 if "connect again" in str(error) else 2
        finally:
            os._exit(status)

    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert runner.run(number(3)) == 3
