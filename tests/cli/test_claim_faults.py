"""Faults during `zkgroups claim -- COMMAND`: the command never outlives the claim by more than the grace time.

`holding` starts one, with a record of how long its command lives.

The command is the worst case: it does not end after SIGTERM, and neither does its child in another session. Both write
down the time continuously while they live. A plain kazoo client records when the owner node is deleted.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from kazoo.client import KazooClient
from kazoo.protocol.states import EventType, WatchedEvent

from tests.cutting import FOLLOWER, LEADER, cut_off, victim
from tests.lasting import lasting_client
from tests.waiting import eventually, is_alive
from zkgroups import Consumergroup, Owner, Registry, TopicPartition
from zkgroups.testing import TcpProxy, ZooKeeperEnsemble

from .running import COMMAND, TIMEOUT, Ended, ended_of, environment, interrupt, run, started

OWNER = "/consumers/invoices/owners/orders/0"
SESSION = 12.0
"""The shortest session that a machine does not end by standing still."""
GRACE = 0.7
LONG_GRACE = 2.0
"""For tests of a holder that reacts: a command that stands still gets SIGTERM before SIGKILL."""
PACE = 0.005
"""The pause between two beats, in seconds."""

STUBBORN = """
import os, signal, sys, time
def asked(*_):
    with open(sys.argv[1] + ".asked", "w") as file:
        file.write("SIGTERM")
signal.signal(signal.SIGTERM, asked)
child = os.fork()
if not child:
    os.setsid()
with open(sys.argv[1] + (".parent" if child else ".child"), "a", buffering=1) as file:
    while True:
        file.write(f"{os.getpid()} {time.time()}\\n")
        time.sleep(float(sys.argv[2]))
"""


@dataclass
class Holder:
    """A `zkgroups claim` with its command, and the records of both."""

    process: subprocess.Popen[str]
    hosts: str
    beats: Path
    gone: list[float]

    def last_beat(self) -> float:
        """The last time at which a process of the command was alive."""
        return max(time for _, time in self.last_beats())

    @property
    def has_been_asked(self) -> bool:
        """Whether the command got SIGTERM."""
        return self._file("asked").exists()

    def alive(self) -> bool:
        return any(is_alive(pid) for pid, _ in self.last_beats())

    def last_beats(self) -> list[tuple[int, float]]:
        """The last time that each process has written."""
        lines = [_last_line(self._file(who)) for who in ("parent", "child")]
        return [(int(line.split()[0]), float(line.split()[1])) for line in lines]

    def _file(self, who: str) -> Path:
        return self.beats.with_name(f"{self.beats.name}.{who}")

    def ended(self) -> Ended:
        return ended_of(self.process)

    def wait_gone(self) -> float:
        """Return when a plain client saw the owner node disappear."""
        assert eventually(lambda: self.gone)
        return self.gone[0]

    def next_claims(self) -> Ended:
        """Wait for the claim in another process, whose command prints the time."""
        tell = "import time; print(time.time())"
        arguments = ("claim", "invoices", "orders", "0", "--wait", "60", "--", sys.executable, "-c", tell)
        return run(*arguments, env={"ZKGROUPS_ZOOKEEPER": self.hosts})


def _last_line(path: Path) -> str:
    whole = path.read_text().rpartition("\n")[0]
    return whole.rpartition("\n")[2]


@contextmanager
def holding(
    eye: KazooClient,
    hosts: str,
    tmp_path: Path,
    *,
    through: str | None = None,
    program: Sequence[str] = (COMMAND,),
    grace: float = GRACE,
) -> Iterator[Holder]:
    """A claim of orders/0 at the address `through`, with a running command. Other clients use `hosts`."""
    beats = tmp_path / "beats"
    options = ("--session-timeout", str(SESSION), "--grace", str(grace), "--timeout", "15")
    command = (sys.executable, "-I", "-S", "-c", STUBBORN, str(beats), str(PACE))
    address = {"ZKGROUPS_ZOOKEEPER": through or hosts}
    arguments = ("claim", "invoices", "orders", "0", *options, "--", *command)
    with started(*arguments, env=address, program=program) as process:
        assert eventually(lambda: all(Path(f"{beats}.{who}").exists() for who in ("parent", "child")))
        assert eventually(lambda: all(_last_line(Path(f"{beats}.{who}")) for who in ("parent", "child")))
        gone: list[float] = []

        def note(event: WatchedEvent) -> None:
            if event.type == EventType.DELETED:
                gone.append(time.time())

        assert eventually(lambda: eye.exists(OWNER))  # its server may be another one
        assert eye.exists(OWNER, watch=note) is not None
        yield Holder(process, hosts, beats, gone)


def same_chroot(proxy: TcpProxy, hosts: str) -> str:
    return f"{proxy.address}/{hosts.partition('/')[2]}"


pytestmark = pytest.mark.zookeeper

AT = TopicPartition("orders", 0)


@pytest.fixture
def invoices(registry: Registry) -> Consumergroup:
    group = registry.group("invoices")
    group.create()
    return group


# The holder can still react


@pytest.mark.parametrize(
    ("fault", "said"),
    [("cut", "stopping the command: the connection was lost"), ("taken away", "orders/0 was taken away")],
)
def test_after_a_fault_the_command_gets_sigterm_and_after_the_grace_time_sigkill(
    zookeeper: Any,
    zookeeper_hosts: str,
    kazoo: KazooClient,
    invoices: Consumergroup,
    tmp_path: Path,
    fault: str,
    said: str,
) -> None:
    with (
        TcpProxy(zookeeper.address) as proxy,
        holding(
            kazoo, zookeeper_hosts, tmp_path, through=same_chroot(proxy, zookeeper_hosts), grace=LONG_GRACE
        ) as holder,
    ):
        begun = time.time()
        if fault == "cut":
            proxy.cut()
        else:
            owner = invoices.owner(AT)
            assert isinstance(owner, Owner)
            invoices.release(AT, expected_owner=owner.id)
        done = holder.ended()
        assert time.time() > begun + LONG_GRACE
        assert (done.code, holder.has_been_asked, holder.alive()) == (7, True, False)
        assert said in done.err
        if fault == "cut":
            assert begun < holder.last_beat() < holder.wait_gone()
        assert holder.next_claims().code == 0
        assert (invoices.instances(), list(invoices.owners())) == ([], [])


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


Fault = Callable[[Holder], object]


def kill_holder(holder: Holder) -> None:
    holder.process.kill()


def suspend_holder_and_supervisor(holder: Holder) -> None:
    command = holder.last_beats()[0][0]
    os.kill(parent_of(command), signal.SIGSTOP)
    holder.process.send_signal(signal.SIGSTOP)


@pytest.mark.parametrize("fault", [kill_holder, suspend_holder_and_supervisor])
def test_the_command_has_ended_before_the_session_and_a_second_claimer_gets_the_partition(
    zookeeper_hosts: str, kazoo: KazooClient, invoices: Consumergroup, tmp_path: Path, fault: Fault
) -> None:
    """If the server is silent: see the test of the wall clock below."""
    with holding(kazoo, zookeeper_hosts, tmp_path) as holder:
        fault(holder)
        begun = holder.next_claims()
        assert begun.code == 0
        assert holder.last_beat() < min(holder.wait_gone(), float(begun.out))
        assert not holder.alive()
        if fault is not kill_holder:
            holder.process.send_signal(signal.SIGCONT)
            assert holder.ended().code == 7


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


@pytest.mark.parametrize(
    "pair", [("holder", "supervisor"), ("guardian", "supervisor"), ("guardian", "holder"), ()], ids=str
)
def test_when_two_are_killed_together_nothing_of_the_command_is_left(
    seven: tuple[int, list[int]], pair: tuple[str, ...]
) -> None:
    """Without a pair: the holder and all with our name, as `pkill -9 -f supervisor.py` does it."""
    holder, command = seven
    supervisor = supervisor_of(command)
    ours = {"holder": holder, "supervisor": supervisor, "guardian": parent_of(supervisor)}

    def has_our_name(pid: int) -> bool:
        return b"supervisor.py" in Path(f"/proc/{pid}/cmdline").read_bytes()

    if not pair:
        assert eventually(lambda: not has_our_name(ours["guardian"]))  # it has had time to rename itself
        pair = ("holder", *(name for name in ("supervisor", "guardian") if has_our_name(ours[name])))
    kill_together(*(ours[name] for name in pair))
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


def test_a_claim_is_held_and_released_although_nobody_reads_what_its_command_says_and_logs(
    zookeeper: Any, zookeeper_hosts: str, invoices: Consumergroup, tmp_path: Path
) -> None:
    begun = tmp_path / "begun"
    command = ("--grace", "0.7", "-v", "--", "sh", "-c", f"echo > {begun}; sleep 100")
    with (
        TcpProxy(zookeeper.address) as proxy,
        claiming_into_a_full_pipe(same_chroot(proxy, zookeeper_hosts), *command) as (process, reader),
    ):
        assert eventually(begun.exists)
        proxy.cut()
        assert eventually(lambda: not list(invoices.owners()))
        drain(reader)
        assert process.wait(30) == 7


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


# Without a command


def test_in_the_foreground_a_claim_survives_a_short_loss_of_the_connection(
    zookeeper: Any, zookeeper_hosts: str, invoices: Consumergroup
) -> None:
    arguments = ("claim", "invoices", "orders", "0", "--session-timeout", "30", "--timeout", "60")
    with (
        TcpProxy(zookeeper.address) as proxy,
        started("-z", same_chroot(proxy, zookeeper_hosts), *arguments) as process,
    ):
        assert process.stderr is not None
        assert process.stderr.readline() == "Claimed. Ctrl-C releases.\n"
        proxy.refuse()
        proxy.cut()
        assert process.stderr.readline() == "Connection lost; claimed until the session expires.\n"
        proxy.accept()
        assert process.stderr.readline() == "Reconnected; still claimed.\n"
        assert isinstance(invoices.owner(AT), Owner)
        interrupt(process)
    assert process.returncode == 130
    assert list(invoices.owners()) == []


HOURS = 6 * 3600.0

STEPPED = """
import datetime, sys, time
from pathlib import Path
offset, wall, wall_ns = Path(sys.argv.pop(1)), time.time, time.time_ns
time.time = lambda: wall() + float(offset.read_text())
time.time_ns = lambda: wall_ns() + int(float(offset.read_text()) * 1e9)

class Stepped(datetime.datetime):
    @classmethod
    def now(cls, tz=None):
        return cls.fromtimestamp(time.time(), tz)

datetime.datetime = Stepped
from zkgroups_cli.main import main
sys.exit(main())
"""
"""Runs the command with a wall clock that is as many seconds ahead as a file says. Its child has the real clock."""


def test_failure_7_setting_the_wall_clock_neither_ends_nor_prolongs_a_claim(
    zookeeper: Any, zookeeper_hosts: str, kazoo: KazooClient, registry: Registry, tmp_path: Path
) -> None:
    registry.group("invoices").create()
    offset = tmp_path / "offset"

    def step(seconds: float) -> None:
        offset.with_suffix(".new").write_text(str(seconds))
        offset.with_suffix(".new").rename(offset)

    step(0.0)
    program = (sys.executable, "-c", STEPPED, str(offset))
    with (
        TcpProxy(zookeeper.address) as proxy,
        holding(
            kazoo, zookeeper_hosts, tmp_path, through=same_chroot(proxy, zookeeper_hosts), program=program
        ) as holder,
    ):
        for seconds in (HOURS, -HOURS):
            proofs = proxy.replies
            step(seconds)
            assert eventually(lambda proofs=proofs: proxy.replies > proofs + 2)
            assert not holder.has_been_asked, f"it was stopped after a step by {seconds} s"
        proxy.drop()
        begun = holder.next_claims()
        assert begun.code == 0
        assert holder.last_beat() < min(holder.wait_gone(), float(begun.out))
        assert holder.ended().code == 7


SOAK = int(os.environ.get("ZKGROUPS_SOAK_CUTS", "20"))


@pytest.fixture(scope="module")
def ensemble() -> Iterator[ZooKeeperEnsemble]:
    """A server that is cut off keeps answering for longer than a session lasts."""
    with ZooKeeperEnsemble(tick_time=0.5, sync_limit=SESSION + 1.0, cuttable=True) as ensemble:
        yield ensemble


def cut_once(ensemble: ZooKeeperEnsemble, role: str, directory: Path) -> float:
    """Cut off a server once. Return the seconds between the two commands."""
    node = victim(ensemble, role)
    others = ",".join(each.address for each in ensemble.nodes if each is not node)
    with Registry.connect(others) as registry, Registry.connect(node.address) as there:
        registry.group("invoices").create()
        assert eventually(there.group("invoices").exists)
    with (
        lasting_client(others) as eye,
        holding(eye, others, directory, through=node.address) as holder,
        cut_off(ensemble, node),
    ):
        begun = holder.next_claims()
        assert begun.code == 0, begun.err
        assert not holder.alive()
        assert holder.ended().code == 7
        return float(begun.out) - holder.last_beat()


def test_failure_25_a_command_has_ended_before_the_next_one_begins(ensemble: ZooKeeperEnsemble, tmp_path: Path) -> None:
    assert cut_once(ensemble, FOLLOWER, tmp_path) > 0


@pytest.mark.soak
@pytest.mark.timeout(0)
@pytest.mark.parametrize("role", [FOLLOWER, LEADER])
def test_soak_commands(ensemble: ZooKeeperEnsemble, role: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Many runs. Prints the smallest time between two commands."""
    left = sorted(cut_once(ensemble, role, tmp_path_factory.mktemp("cut-")) for _ in range(SOAK))
    assert left[0] > 0, left
    print(f"{role} cut off: {SOAK} runs, {left[0]:.2f} to {left[-1]:.2f} s between the two commands")
