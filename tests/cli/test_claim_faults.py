"""Faults during `zkgroups claim -- COMMAND`: the command never outlives the claim by more than the grace time."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from kazoo.client import KazooClient

from tests.lasting import lasting_client
from tests.restoring import restorable
from tests.testing.waiting import eventually, is_alive
from zkgroups import Consumergroup, Owner, Registry, TopicPartition
from zkgroups.testing import TcpProxy

from .holding import LONG_GRACE, SESSION, Holder, holding, same_chroot
from .running import COMMAND, TIMEOUT, environment, interrupt, run, started

pytestmark = pytest.mark.zookeeper

AT = TopicPartition("orders", 0)


@pytest.fixture
def invoices(registry: Registry) -> Consumergroup:
    group = registry.group("invoices")
    group.create()
    return group


def expire(hosts: str, session_id: int) -> None:
    """Expire a session at the server by closing it from another connection. The password follows from the id."""
    thief = KazooClient(hosts, client_id=(session_id, password(session_id)), timeout=SESSION)
    thief.start()
    assert thief.client_id[0] == session_id
    thief.stop()
    thief.close()


def password(session_id: int) -> bytes:
    """Compute the password like the server: the first 16 bytes of java.util.Random with this seed."""
    seed = ((session_id ^ 0xB3415C00) ^ 0x5DEECE66D) & (2**48 - 1)
    words = b""
    for _ in range(4):
        seed = (seed * 0x5DEECE66D + 0xB) & (2**48 - 1)
        words += (seed >> 16).to_bytes(4, "little")
    return words


# The holder can still react


def test_when_the_session_expires_the_command_ends_within_the_grace_time(
    zookeeper_hosts: str, kazoo: KazooClient, invoices: Consumergroup, tmp_path: Path
) -> None:
    with holding(kazoo, zookeeper_hosts, tmp_path, grace=LONG_GRACE) as holder:
        expire(zookeeper_hosts, holder.session_id)
        gone = holder.wait_gone()
        done = holder.ended()
        assert done.code == 7
        assert "the command was stopped because the claim may be lost" in done.err
        holder.assert_ended_in_time(gone)
        assert holder.next_claims().code == 0
        assert (invoices.instances(), list(invoices.owners())) == ([], [])


def test_when_the_connection_is_cut_the_command_ends_within_the_grace_time_and_before_the_claim(
    zookeeper: Any, zookeeper_hosts: str, kazoo: KazooClient, invoices: Consumergroup, tmp_path: Path
) -> None:
    with (
        TcpProxy(zookeeper.address) as proxy,
        holding(
            kazoo, zookeeper_hosts, tmp_path, through=same_chroot(proxy, zookeeper_hosts), grace=LONG_GRACE
        ) as holder,
    ):
        cut = time.time()
        proxy.cut()
        done = holder.ended()
        assert time.time() > cut + LONG_GRACE
        assert done.code == 7
        assert "stopping the command: the connection was lost" in done.err
        holder.assert_ended_in_time(cut)
        assert cut < holder.last_beat() < holder.wait_gone()


@pytest.mark.parametrize("fault", ["killed", "restored from a backup"])
def test_when_the_server_is_gone_the_command_ends_within_the_grace_time(tmp_path: Path, fault: str) -> None:
    with restorable(tmp_path) as server, Registry.connect(server.address) as registry:
        registry.group("invoices").create()
        if fault != "killed":
            server.back_up()
        with lasting_client(server.address) as eye, holding(eye, server.address, tmp_path, grace=LONG_GRACE) as holder:
            gone = time.time()
            server.server.kill()
            if fault != "killed":
                server.restore()
            done = holder.ended()
            assert done.code == 7
            holder.assert_ended_in_time(gone)
            assert gone < holder.last_beat()
            if fault == "killed":
                server.server.restart()
            assert holder.next_claims().code == 0


def test_when_the_partition_is_taken_away_the_command_ends_within_the_grace_time(
    zookeeper_hosts: str, kazoo: KazooClient, invoices: Consumergroup, tmp_path: Path
) -> None:
    with holding(kazoo, zookeeper_hosts, tmp_path, grace=LONG_GRACE) as holder:
        owner = invoices.owner(AT)
        assert isinstance(owner, Owner)
        invoices.release(AT, expected_owner=owner.id)
        done = holder.ended()
        assert done.code == 7
        assert "orders/0 was taken away" in done.err
        holder.assert_ended_in_time(holder.wait_gone())
        assert invoices.instances() == []


def test_sigterm_ends_the_command_before_the_claim(
    zookeeper_hosts: str, kazoo: KazooClient, invoices: Consumergroup, tmp_path: Path
) -> None:
    with holding(kazoo, zookeeper_hosts, tmp_path, grace=LONG_GRACE) as holder:
        terminated = time.time()
        holder.process.terminate()
        # Of two concurrent signals, Python may handle the second one first.
        assert eventually(lambda: holder.has_been_asked)
        while holder.process.poll() is None:  # more signals do not interrupt the release
            holder.process.send_signal(signal.SIGINT)
            time.sleep(0.002)
        assert time.time() > terminated + LONG_GRACE
        assert holder.ended().code == 143
        assert holder.last_beat() < holder.wait_gone()
        assert not holder.alive()
        assert (invoices.instances(), list(invoices.owners())) == ([], [])


# The holder cannot react, so its session lasts until the server expires it


Fault = Callable[[Holder, TcpProxy], object]


def kill_holder(holder: Holder, _proxy: TcpProxy) -> None:
    holder.process.kill()


def suspend_holder(holder: Holder, _proxy: TcpProxy) -> None:
    holder.process.send_signal(signal.SIGSTOP)


def suspend_holder_and_supervisor(holder: Holder, _proxy: TcpProxy) -> None:
    os.kill(parent_of(holder.command), signal.SIGSTOP)
    suspend_holder(holder, _proxy)


def silence(_holder: Holder, proxy: TcpProxy) -> None:
    proxy.drop()


@pytest.mark.parametrize("fault", [kill_holder, suspend_holder, suspend_holder_and_supervisor, silence])
def test_the_command_has_ended_before_the_session_and_a_second_claimer_gets_the_partition(
    zookeeper: Any, zookeeper_hosts: str, kazoo: KazooClient, invoices: Consumergroup, tmp_path: Path, fault: Fault
) -> None:
    with (
        TcpProxy(zookeeper.address) as proxy,
        holding(kazoo, zookeeper_hosts, tmp_path, through=same_chroot(proxy, zookeeper_hosts)) as holder,
    ):
        fault(holder, proxy)
        begun = holder.next_claims()
        assert begun.code == 0
        assert holder.last_beat() < min(holder.wait_gone(), float(begun.out))
        assert not holder.alive()
        if fault in {suspend_holder, suspend_holder_and_supervisor}:
            holder.process.send_signal(signal.SIGCONT)
        if fault is not kill_holder:
            done = holder.ended()
            assert done.code == 7


def test_when_the_holder_is_killed_the_command_ends_within_the_grace_time(
    zookeeper_hosts: str, kazoo: KazooClient, invoices: Consumergroup, tmp_path: Path
) -> None:
    with holding(kazoo, zookeeper_hosts, tmp_path, grace=LONG_GRACE) as holder:
        killed = time.time()
        holder.process.kill()
        assert eventually(lambda: not holder.alive())
        holder.assert_ended_in_time(killed)
        assert not holder.gone


def test_when_the_supervisor_is_killed_the_command_is_killed_and_the_partition_released(
    zookeeper_hosts: str, kazoo: KazooClient, invoices: Consumergroup
) -> None:
    """Processes outside of the process group of the command survive."""
    script = "sleep 60 & echo $PPID $$ $!; wait"
    arguments = ("claim", "invoices", "orders", "0", "--", "sh", "-c", script)
    with started(*arguments, env={"ZKGROUPS_ZOOKEEPER": zookeeper_hosts}) as process:
        assert process.stdout is not None
        supervisor, *command = map(int, process.stdout.readline().split())
        os.kill(supervisor, signal.SIGKILL)
        _, err = process.communicate(timeout=TIMEOUT)
        assert process.returncode == 1
        assert "the process that supervises the command was killed" in err
    assert eventually(lambda: not any(map(is_alive, command)))
    assert (invoices.instances(), list(invoices.owners())) == ([], [])


# The holder and the supervisor are killed at the same moment. The command starts seven processes: children, a process
# in its own session, and an orphan. All of them ignore every signal that can be ignored.
SEVEN = """
import os, signal, sys, time
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
    signal.signal(number, signal.SIG_IGN)
def beat():
    with open(os.path.join(sys.argv[1], str(os.getpid())), "w") as file:
        file.write(" ")
    while True:
        time.sleep(60)
for kind in ("child", "child", "session", "orphan", "orphan session", "group"):
    if not os.fork():
        if "orphan" in kind and os.fork():
            os._exit(0)
        if "session" in kind:
            os.setsid()
        if kind == "group":
            os.setpgid(0, 0)
        beat()
beat()
"""


@pytest.fixture
def seven(zookeeper_hosts: str, invoices: Consumergroup, tmp_path: Path) -> Iterator[tuple[int, list[int]]]:
    """A claim whose command is these seven processes: the pid of the holder, and theirs."""
    folder = tmp_path / "pids"
    folder.mkdir()
    arguments = ("claim", "invoices", "orders", "0", "--", sys.executable, "-I", "-S", "-c", SEVEN, str(folder))
    with started(*arguments, env={"ZKGROUPS_ZOOKEEPER": zookeeper_hosts}) as process:
        try:
            assert eventually(lambda: len(list(folder.iterdir())) == 7)
            pids = [int(file.name) for file in folder.iterdir()]
            assert eventually(lambda: len(parents_of(pids)) == 1)  # the orphans are orphans now
            yield process.pid, pids
        finally:
            for file in folder.iterdir():
                with suppress(ProcessLookupError):
                    os.kill(int(file.name), signal.SIGKILL)


def kill_together(*pids: int) -> None:
    """None of the processes can act between the first signal and its end."""
    for number in (signal.SIGSTOP, signal.SIGKILL):
        for pid in pids:
            os.kill(pid, number)


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def parents_of(pids: list[int]) -> set[int]:
    """Return the parents that do not belong to the command."""
    return {parent_of(pid) for pid in pids} - set(pids)


def supervisor_of(pids: list[int]) -> int:
    """Return the parent of the orphans."""
    [supervisor] = parents_of(pids)
    return supervisor


def test_when_the_holder_and_the_supervisor_are_killed_together_nothing_of_the_command_is_left(
    seven: tuple[int, list[int]],
) -> None:
    holder, command = seven
    kill_together(holder, supervisor_of(command))
    assert eventually(lambda: not any(map(is_alive, command)))


def test_when_the_guardian_and_the_supervisor_are_killed_together_nothing_of_the_command_is_left(
    seven: tuple[int, list[int]],
) -> None:
    _holder, command = seven
    supervisor = supervisor_of(command)
    kill_together(parent_of(supervisor), supervisor)
    assert eventually(lambda: not any(map(is_alive, command)))


def test_when_the_guardian_and_the_holder_are_killed_together_nothing_of_the_command_is_left(
    seven: tuple[int, list[int]],
) -> None:
    holder, command = seven
    kill_together(parent_of(supervisor_of(command)), holder)
    assert eventually(lambda: not any(map(is_alive, command)))


def test_a_kill_of_all_processes_with_our_name_leaves_nothing_of_the_command(seven: tuple[int, list[int]]) -> None:
    """As `pkill -9 -f supervisor.py` does it, and here only for the processes of this test."""
    holder, command = seven
    supervisor = supervisor_of(command)
    ours = {holder, supervisor, parent_of(supervisor)}

    def has_our_name(pid: int) -> bool:
        return b"supervisor.py" in Path(f"/proc/{pid}/cmdline").read_bytes()

    assert eventually(lambda: not has_our_name(parent_of(supervisor)))  # it has had time to rename itself
    named = [pid for pid in ours if has_our_name(pid)]
    kill_together(holder, *(pid for pid in named if pid != holder))
    assert eventually(lambda: not any(map(is_alive, command)))


# Nobody reads what it prints


@contextmanager
def claiming_into_a_full_pipe(hosts: str, *command: str) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """Start a claim whose stderr is a full pipe. Yield the process and the end from which to read."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    with suppress(BlockingIOError):
        while True:
            os.write(writer, b"x" * 4096)
    os.set_blocking(writer, True)
    arguments = [COMMAND, "-z", hosts, "--session-timeout", "30", "claim", "invoices", "orders", "0", *command]
    with subprocess.Popen(
        arguments, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=writer, env=environment()
    ) as process:
        os.close(writer)
        try:
            yield process, reader
        finally:
            os.close(reader)
            process.kill()


def drain(reader: int) -> None:
    os.set_blocking(reader, False)
    with suppress(BlockingIOError):
        while os.read(reader, 65536):
            pass


@pytest.mark.parametrize("log", [(), ("-v",)], ids=["", "with a log"])
def test_a_claim_is_held_and_released_although_nobody_reads_what_its_command_says(
    zookeeper: Any, zookeeper_hosts: str, invoices: Consumergroup, tmp_path: Path, log: tuple[str, ...]
) -> None:
    begun = tmp_path / "begun"
    command = ("--grace", "0.7", *log, "--", "sh", "-c", f"echo > {begun}; sleep 100")
    with (
        TcpProxy(zookeeper.address) as proxy,
        claiming_into_a_full_pipe(same_chroot(proxy, zookeeper_hosts), *command) as (process, reader),
    ):
        assert eventually(begun.exists)
        proxy.cut()
        assert eventually(lambda: not list(invoices.owners()))
        drain(reader)
        assert process.wait(30) == 7


def test_in_the_foreground_a_signal_ends_a_claim_although_nobody_reads_that_it_is_claimed(
    zookeeper_hosts: str, invoices: Consumergroup
) -> None:
    with claiming_into_a_full_pipe(zookeeper_hosts) as (process, reader):
        assert process.stdout is not None
        assert [process.stdout.readline()[:5], process.stdout.readline()[:8]] == [b"GROUP", b"invoices"]
        process.terminate()
        assert eventually(lambda: not list(invoices.owners()))
        drain(reader)
        assert process.wait(30) == 143


def test_a_second_signal_ends_a_command_whose_last_message_nobody_reads(
    zookeeper_hosts: str, invoices: Consumergroup
) -> None:
    with claiming_into_a_full_pipe(zookeeper_hosts) as (process, _reader):
        assert process.stdout is not None
        assert process.stdout.readline()[:5] == b"GROUP"
        process.terminate()
        assert eventually(lambda: not list(invoices.owners()) and not invoices.instances())
        assert eventually(lambda: process.terminate() or process.poll() is not None)
        assert process.returncode == -signal.SIGTERM


# No fault, or no command


def test_a_command_may_run_for_longer_than_the_session_timeout(zookeeper_hosts: str, invoices: Consumergroup) -> None:
    options = ("--session-timeout", "10", "--grace", "0.3", "-q")  # outlives a machine that stands still
    command = ("--", "sh", "-c", "sleep 11; echo done")
    done = run("claim", "invoices", "orders", "0", *options, *command, env={"ZKGROUPS_ZOOKEEPER": zookeeper_hosts})
    assert (done.code, done.out, done.err) == (0, "done\n", "")


@contextmanager
def in_the_foreground(proxy: TcpProxy, hosts: str) -> Iterator[subprocess.Popen[str]]:
    arguments = ("claim", "invoices", "orders", "0", "--session-timeout", "30", "--timeout", "60")
    with started(*arguments, env={"ZKGROUPS_ZOOKEEPER": same_chroot(proxy, hosts)}) as process:
        assert process.stderr is not None
        assert process.stderr.readline() == "Claimed. Ctrl-C releases.\n"
        yield process


def test_in_the_foreground_a_claim_survives_a_short_loss_of_the_connection(
    zookeeper: Any, zookeeper_hosts: str, invoices: Consumergroup
) -> None:
    with TcpProxy(zookeeper.address) as proxy, in_the_foreground(proxy, zookeeper_hosts) as process:
        assert process.stderr is not None
        proxy.refuse()
        proxy.cut()
        assert process.stderr.readline() == "Connection lost; claimed until the session expires.\n"
        proxy.accept()
        assert process.stderr.readline() == "Reconnected; still claimed.\n"
        assert isinstance(invoices.owner(AT), Owner)
        interrupt(process)
    assert process.returncode == 130
    assert list(invoices.owners()) == []


def test_in_the_foreground_a_claim_ends_by_the_local_clock_if_no_server_answers(
    zookeeper: Any, zookeeper_hosts: str, invoices: Consumergroup
) -> None:
    arguments = ("claim", "invoices", "orders", "0", "--session-timeout", str(SESSION), "--timeout", "10", "-q")
    with TcpProxy(zookeeper.address) as proxy:
        env = {"ZKGROUPS_ZOOKEEPER": same_chroot(proxy, zookeeper_hosts)}
        with started(*arguments, env=env) as process:
            assert process.stdout is not None
            assert process.stdout.readline().startswith("GROUP")
            proxy.refuse()
            proxy.cut()
            _, err = process.communicate(timeout=TIMEOUT)
    assert process.returncode == 7
    assert "the claim is lost: no server answered before the claim ended" in err
