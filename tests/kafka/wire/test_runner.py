"""Coroutines run for callers without an event loop: deadlines, Ctrl-C, forks."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from zkgroups.deadline import Deadline
from zkgroups.exceptions import UnavailableError
from zkgroups.kafka.wire.cluster import Runner
from zkgroups.kafka.wire.connection import Connection
from zkgroups.kafka.wire.errors import Address

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
        runner.run(work.run(), Deadline(0.5))
    assert work.cancelled.is_set() == work.begun.is_set()  # a slow machine may not even begin it
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
    work, before = Work(), set(threading.enumerate())
    runner = Runner()

    async def start() -> asyncio.Task[None]:
        return asyncio.create_task(work.run())

    running = runner.run(start())
    assert work.begun.wait(LONGEST)
    runner.close()

    assert work.cancelled.is_set()
    assert running.cancelled()
    assert "zkgroups-kafka" not in {thread.name for thread in set(threading.enumerate()) - before}
    with pytest.raises(UnavailableError, match="closed"):
        runner.run(number(1))
    runner.close()


def test_closing_from_another_thread_ends_a_call_with_our_error() -> None:
    work, runner = Work(), Runner()
    closing = threading.Thread(target=lambda: work.begun.wait(LONGEST) and runner.close())
    closing.start()
    with pytest.raises(UnavailableError, match="closed during the call"):
        runner.run(work.run())
    closing.join(LONGEST)


def test_threads_that_call_for_the_first_time_together_start_one_loop() -> None:
    before = set(threading.enumerate())
    with ThreadPoolExecutor(8) as callers:
        for _ in range(20):
            runner, begin = Runner(), threading.Barrier(8)

            def call(value: int, runner: Runner, begin: threading.Barrier) -> int:
                begin.wait(LONGEST)
                return runner.run(number(value))

            calls = [callers.submit(call, value, runner, begin) for value in range(8)]
            assert [each.result() for each in calls] == [*range(8)]
            runner.close()
            assert [each.name for each in {*threading.enumerate()} - before if each.name == "zkgroups-kafka"] == []


def test_a_forgotten_connection_stays_open_until_the_loop_ends(caplog: pytest.LogCaptureFixture) -> None:
    """The garbage collector must not delete a task that waits: that is an error, and leaves the socket open."""
    gc.collect()  # what the tests before have left
    caplog.clear()
    with socket.create_server(("127.0.0.1", 0)) as server:
        runner = Runner()
        runner.run(Connection.open(Address(*server.getsockname()), None))
        accepted, _ = server.accept()
        with accepted:
            gc.collect()
            accepted.setblocking(False)
            with pytest.raises(BlockingIOError):
                accepted.recv(1)
            accepted.settimeout(30)
            runner.close()
            assert accepted.recv(1) == b""
    assert caplog.messages == []


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


@pytest.mark.parametrize("again", [False, True])
def test_ctrl_c_while_the_thread_starts_leaves_no_thread(
    runner: Runner, monkeypatch: pytest.MonkeyPatch, again: bool
) -> None:
    start = threading.Thread.start
    threads: list[threading.Thread] = []

    def interrupted(thread: threading.Thread) -> None:
        start(thread)
        threads.append(thread)
        monkeypatch.undo()
        raise KeyboardInterrupt

    monkeypatch.setattr(threading.Thread, "start", interrupted)
    with pytest.raises(KeyboardInterrupt):
        runner.run(asyncio.sleep(0))
    if again:
        assert runner.run(asyncio.sleep(0, 7)) == 7
    runner.close()
    [thread] = threads
    thread.join(30)
    assert not thread.is_alive()
