"""A `zkgroups claim -- COMMAND`, with a record of how long its command lives.

The command is the worst case: it does not end after SIGTERM, and neither does its child in another session. Both write
down the time continuously while they live, and these beats are the clock of the tests: a busy machine slows it down as
well. A plain kazoo client records when the owner node is deleted.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from kazoo.client import KazooClient
from kazoo.protocol.states import EventType, WatchedEvent

from tests.testing.waiting import eventually, is_alive
from zkgroups.testing import TcpProxy

from .running import COMMAND, TIMEOUT, Ended, run, started

OWNER = "/consumers/invoices/owners/orders/0"
SESSION = 12.0
"""The shortest session that a machine does not end by standing still. It ends only seconds after `REACTION`."""
GRACE = 0.7
LONG_GRACE = 2.0
"""For tests of a holder that reacts: a command that stands still gets SIGTERM before SIGKILL."""
PACE = 0.005
"""The pause between two beats, in seconds."""
REACTION = 1.0
"""In seconds of beats: how soon after a fault the command gets SIGTERM, and after its grace time SIGKILL."""

STUBBORN = """
import os, signal, sys, time
def asked(*_):
    with open(sys.argv[1] + ".asked", "w") as file:
        file.write(f"{time.time()}\\n")
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
    session_id: int
    beats: Path
    gone: list[float]
    grace: float

    def last_beat(self) -> float:
        """The last time at which a process of the command was alive."""
        return max(time for _, time in self._beats())

    @property
    def has_been_asked(self) -> bool:
        """Whether the command got SIGTERM."""
        asked = self._file("asked")
        return asked.exists() and asked.read_text().endswith("\n")

    def asked(self) -> float:
        """When the command got SIGTERM."""
        return float(self._file("asked").read_text())

    def ran(self, since: float, until: float) -> float:
        """How long the command could run in between, in seconds of beats."""
        lines = [self._file(who).read_text().split("\n")[:-1] for who in ("parent", "child")]
        return PACE * max(sum(since < float(line.split()[1]) <= until for line in those) for those in lines)

    def assert_ended_in_time(self, fault: float) -> None:
        """The command was asked to end soon after the fault, and killed soon after its grace time."""
        assert not self.alive()
        asked, end = self.asked(), self.last_beat()
        print(f"asked after {self.ran(fault, asked):.2f} s, killed {self.ran(asked, end):.2f} s later")
        assert self.ran(fault, asked) <= REACTION
        assert self.ran(asked, end) <= self.grace + REACTION

    def alive(self) -> bool:
        return any(is_alive(pid) for pid, _ in self._beats())

    @property
    def command(self) -> int:
        """The pid of the command."""
        return self._beats()[0][0]

    def _beats(self) -> list[tuple[int, float]]:
        """The last time that each process has written."""
        lines = [_last_line(self._file(who)) for who in ("parent", "child")]
        return [(int(line.split()[0]), float(line.split()[1])) for line in lines]

    def _file(self, who: str) -> Path:
        return self.beats.with_name(f"{self.beats.name}.{who}")

    def ended(self) -> Ended:
        out, err = self.process.communicate(timeout=TIMEOUT)
        return Ended(self.process.returncode, out, err)

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
        stat = eye.exists(OWNER, watch=note)
        assert stat is not None
        yield Holder(process, hosts, stat.ephemeralOwner, beats, gone, grace)


def same_chroot(proxy: TcpProxy, hosts: str) -> str:
    return f"{proxy.address}/{hosts.partition('/')[2]}"
