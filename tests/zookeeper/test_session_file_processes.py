"""Session files and several processes: kills, copies, locks and forks."""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest

from zkgroups import Registry
from zkgroups.exceptions import (
    ConflictError,
    SessionInUseError,
)

from .conftest import Connect
from .session_files import HOLDER, WAIT, holder, line, process
from .waiting import AT_ONCE, in_time

pytestmark = pytest.mark.zookeeper


def test_failure_27_a_copy_of_the_file_starts_a_new_session_while_the_first_process_is_alive(
    zookeeper_hosts: str, connect: Connect, file: Path, raw: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """A cloned volume, or a backup that was restored to another path, or to the same one."""
    with process(HOLDER + WAIT, zookeeper_hosts, file) as first:
        session = int(line(first))
        copy = file.with_name("copy")
        shutil.copy2(file, copy)
        second = connect(session_file=copy)
        assert not second.resumed
        assert second.session_id != session
        assert "is a copy" in caplog.text
        copy.unlink()
        shutil.copy2(file, copy)
        copy.rename(file)
        third = connect(session_file=file)
        assert (third.resumed, third.session_id != session) == (False, True)
        assert first.poll() is None
        assert holder(raw) == session


def test_the_next_process_holds_the_claims_of_a_killed_process(
    zookeeper_hosts: str, connect: Connect, file: Path, raw: Any
) -> None:
    with process(HOLDER + WAIT, zookeeper_hosts, file) as first:
        session = int(line(first))
        first.send_signal(signal.SIGKILL)
    registry = connect(session_file=file)
    assert (registry.resumed, registry.session_id, holder(raw)) == (True, session, session)


@pytest.mark.parametrize("stopped", [False, True], ids=["running", "stopped"])
def test_a_second_process_with_the_same_file_is_refused_at_once_and_the_first_is_named(
    zookeeper_hosts: str, file: Path, raw: Any, stopped: bool
) -> None:
    with process(HOLDER + WAIT, zookeeper_hosts, file) as first:
        session = int(line(first))
        if stopped:
            first.send_signal(signal.SIGSTOP)
        with (
            in_time(AT_ONCE),
            pytest.raises(
                SessionInUseError,
                match=f"{file} is in use by process {first.pid}: give each process a file of its own$",
            ) as caught,
        ):
            Registry.connect(zookeeper_hosts, session_file=file)
        assert (caught.value.pid, caught.value.path) == (first.pid, str(file))
        assert isinstance(caught.value, ConflictError)
        assert holder(raw) == session


FORKING = (
    HOLDER
    + """
import time
started = time.monotonic()
pid = os.fork()
if not pid:
    assert not claim.held
    assert registry.session_id is None
    for call in (registry.groups, me.deregister, lambda: claim.commit(1)):
        try:
            call()
        except Exception as error:
            print(type(error).__name__, error, flush=True)
    {child}
    sys.exit()
print("the fork ended with", os.waitpid(pid, 0)[1], time.monotonic() - started < 15, flush=True)
claim.commit(7)
print("committed in", registry.session_id, flush=True)
sys.stdin.read()
"""
)


@pytest.mark.parametrize("child", ["registry.close()", "registry.close(leave=False)", "registry.client.stop()", "pass"])
def test_a_fork_cannot_end_the_session(zookeeper_hosts: str, file: Path, raw: Any, child: str) -> None:
    code = FORKING.replace("{child}", child)
    with process(code, zookeeper_hosts, file) as parent:
        session = line(parent)
        said = [line(parent)]
        while said[-1] and not said[-1].startswith("the fork"):
            said.append(line(parent))
        assert said[-1] == "the fork ended with 0 True"
        assert said[0] == "NotConnectedError the connection to ZooKeeper is closed: connect again"
        assert line(parent) == f"committed in {session}"
        assert str(holder(raw)) == session
        with pytest.raises(SessionInUseError):
            Registry.connect(zookeeper_hosts, session_file=file)


SURVIVED = (
    HOLDER
    + """
if not os.fork():
    print("forked", os.getpid(), flush=True)
    sys.stdin.read()
    os._exit(0)
sys.stdin.read()
"""
)


def test_the_lock_ends_with_its_process_even_if_a_fork_is_alive(
    zookeeper_hosts: str, connect: Connect, file: Path
) -> None:
    with process(SURVIVED, zookeeper_hosts, file) as parent:
        session = int(line(parent))
        fork = int(line(parent).split()[1])
        parent.send_signal(signal.SIGKILL)
        parent.wait(30)
        assert connect(session_file=file).session_id == session
        os.kill(fork, 0)  # the fork is still alive
