"""A child process ends with its parent, however the parent ends."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.waiting import eventually, is_alive
from zkgroups.testing import ChildProcess

SLEEP = ["sleep", "1000"]
# Starts the process and other children, prints its pid, and ends or waits to be killed.
PARENT = """
import os, subprocess, sys, time
from pathlib import Path
from zkgroups.testing import ChildProcess

scratch = Path(sys.argv[1]).parent / "scratch"
scratch.joinpath("data").mkdir(parents=True)
process = ChildProcess(["sleep", "1000"], log=Path(sys.argv[1]), scratch=scratch)
{beside}
print(process.pid, flush=True)
{then}
"""
FORKED_CHILD = """
if os.fork() == 0:
    os.close(1)
    time.sleep(1000)
    os._exit(0)
"""
ANOTHER_PROGRAM = "other = subprocess.Popen(['sleep', '1000'], stdout=subprocess.DEVNULL, close_fds=False)"


@pytest.fixture
def sleeper(tmp_path: Path) -> Iterator[ChildProcess]:
    with ChildProcess(SLEEP, log=tmp_path / "log") as process:
        yield process


@pytest.mark.parametrize("beside", ["", FORKED_CHILD, ANOTHER_PROGRAM], ids=["alone", "fork", "program"])
def test_a_process_dies_with_a_killed_parent_even_if_other_children_live_on(tmp_path: Path, beside: str) -> None:
    code = PARENT.format(beside=beside, then="time.sleep(1000)")
    with subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path / "log")], stdout=subprocess.PIPE, start_new_session=True
    ) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        assert is_alive(pid)

        parent.kill()
        parent.wait()

        assert eventually(lambda: not is_alive(pid))
        assert eventually(lambda: not (tmp_path / "scratch").exists())
        # This test must end the processes that the parent left behind.
        end_session(parent.pid)


def test_a_process_outlives_the_thread_that_started_it(tmp_path: Path) -> None:
    started: list[ChildProcess] = []
    thread = threading.Thread(target=lambda: started.append(ChildProcess(SLEEP, log=tmp_path / "log")))
    thread.start()
    thread.join()

    with started[0] as process:
        assert process.wait(0.1) is None
        assert is_alive(process.pid)


def test_a_process_outlives_a_forked_child_of_its_parent(sleeper: ChildProcess) -> None:
    child = multiprocessing.get_context("fork").Process(target=int)
    child.start()
    child.join()

    assert sleeper.wait(0.1) is None


def test_the_status_of_a_killed_process_is_the_signal(sleeper: ChildProcess) -> None:
    sleeper.kill()

    assert sleeper.wait(0) == 128 + signal.SIGKILL
    assert not is_alive(sleeper.pid)


def test_a_process_that_ignores_sigterm_is_killed(tmp_path: Path) -> None:
    process = ChildProcess(["sh", "-c", "trap '' TERM; echo ready; while :; do sleep 1; done"], log=tmp_path / "log")
    assert eventually(lambda: process.tail() == "ready")

    process.stop(timeout=0.1)

    assert process.wait(0) == 128 + signal.SIGKILL


def test_a_suspended_process_can_be_terminated(sleeper: ChildProcess) -> None:
    sleeper.suspend()
    assert sleeper.running

    sleeper.stop(timeout=30)

    assert sleeper.wait(0) == 128 + signal.SIGTERM


def test_signals_to_an_ended_process_reach_no_other(tmp_path: Path) -> None:
    process = ChildProcess(["true"], log=tmp_path / "log")
    assert process.wait(30) == 0

    process.suspend()
    process.resume()
    process.stop()
    process.kill()


def test_a_missing_program_is_reported_in_the_log(tmp_path: Path) -> None:
    process = ChildProcess(["/no/such/program"], log=tmp_path / "log")

    assert process.wait(30) == 127
    assert "/no/such/program" in process.tail()


def end_session(leader: int) -> None:
    for path in Path("/proc").glob("[0-9]*"):
        pid = int(path.name)
        try:
            if os.getsid(pid) == leader:
                os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
