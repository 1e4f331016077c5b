"""Faults for the members of a group, at random moments that a seed determines, and the verdict.

    kill      SIGKILL, and another process of the same id a little later
    leave     SIGTERM, and another process of a new id a little later
    stop      SIGSTOP for up to three session timeouts, and SIGCONT
    cut       its connection is cut
    delay     its requests, its replies, or both arrive late
    drop      its requests, its replies, or both vanish
    swallow   a watch event does not arrive
    expire    its session is expired at the server
    server    the server is killed, and starts again with its transaction log

The faults are drawn in advance (`plan`), so that a seed names them. Their exact times also depend on the machine.
"""

from __future__ import annotations

import heapq
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, Final, Self

from kazoo.client import KazooClient

from tests.lasting import lasting_client
from zkgroups import CommittedOffset, Consumergroup, GroupState, Registry, SessionCredentials, TopicPartition
from zkgroups.core.history.events import HistoryEvent
from zkgroups.exceptions import ZkgroupsException
from zkgroups.testing import TcpProxy, ZooKeeperServer, expire_session
from zkgroups.testing.proxy import Direction

from . import journal
from .history import Event, History, Kind, Violation, clock, judge, read

ROOT: Final = Path(__file__).parent.parent.parent

EVERYTHING: Final = ("kill", "leave", "stop", "cut", "delay", "drop", "swallow", "expire", "server")
ONE_FOR_ALL: Final = ("server",)
"""Faults that strike all members at once."""

# The shortest and longest duration, in session timeouts; without one, the fault is over at once.
_LASTS: Final = {
    "kill": (0.0, 1.5),
    "leave": (0.0, 1.0),
    "stop": (0.5, 3.0),
    "delay": (0.5, 2.0),
    "drop": (0.5, 3.0),
    "swallow": (1.0, 3.0),
    "server": (0.0, 0.5),
}
_FIRST: Final = 0.7
"""How long the first fault of a kind lasts at least, from the shortest (0.0) to the longest duration (1.0)."""
_DIRECTIONS: Final[tuple[Direction | None, ...]] = ("requests", "replies", None)


@dataclass(frozen=True, slots=True)
class Strike:
    """A fault that strikes a member at a moment and ends after a while, in session timeouts."""

    moment: float
    kind: str
    victim: int
    lasts: float = 0.0
    direction: Direction | None = None
    delay: float = 0.0

    def __str__(self) -> str:
        more = f" of {self.direction or 'both'}" if self.kind in ("delay", "drop") else ""
        return f"{self.moment:.2f} {self.kind}{more} {self.victim} for {self.lasts:.2f}"


def plan(seed: int, *, duration: float, members: int, kinds: Sequence[str] = EVERYTHING) -> list[Strike]:
    """Draw the faults within `duration`, in session timeouts, or until each kind has struck.

    Faults of one member never overlap. A kind strikes again only after all others have. The first fault of a kind is a
    long one: a session expires while its process is stopped.
    """
    rng = random.Random(seed)
    busy = [0.0] * members
    strikes: list[Strike] = []
    left: list[str] = []
    moment = 0.0
    while (moment := moment + rng.uniform(0.05, 0.6)) < duration or len(strikes) < len(kinds):
        idle = [victim for victim in range(members) if busy[victim] <= moment]
        drawn = [rng.random() for _ in range(4)]
        if not idle:
            continue
        left = left or rng.sample(kinds, len(kinds))
        kind = left.pop()
        victim = idle[int(drawn[0] * len(idle))]
        low, high = _LASTS.get(kind, (0.0, 0.0))
        share = drawn[1] if kind in {strike.kind for strike in strikes} else max(drawn[1], _FIRST)
        lasts = low + share * (high - low)
        strikes.append(Strike(moment, kind, victim, lasts, _DIRECTIONS[int(drawn[2] * 3)], drawn[3] * 0.3))
        for each in range(members) if kind in ONE_FOR_ALL else [victim]:
            busy[each] = max(busy[each], moment + lasts)
    return strikes


@dataclass
class Place:
    """The place of one member: its own proxy to the server, and one process after the other."""

    number: int
    proxy: Any
    id: str = ""
    process: subprocess.Popen[bytes] | None = None
    log: Path | None = None
    all: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def has_left(self, timeout: float) -> bool:
        """Wait until a process that was asked to leave has ended. Return whether it ended without an error, which does
        not count if it had not yet begun."""
        assert self.process is not None
        assert self.log is not None
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(timeout)
        begun = self.log.exists() and self.log.stat().st_size > 0
        return self.process.returncode == 0 or (self.process.returncode == -signal.SIGTERM and not begun)


def plant_topics(hosts: str, topics: dict[str, int]) -> None:
    """Register topics as Kafka does."""
    with lasting_client(hosts) as client:
        for topic, size in topics.items():
            partitions = ", ".join(f'"{number}": [1]' for number in range(size))
            path, data = f"/brokers/topics/{topic}", f'{{"version": 1, "partitions": {{{partitions}}}}}'.encode()
            client.ensure_path(path)
            client.set(path, data)


def _commits(group: Consumergroup) -> dict[TopicPartition, int]:
    """The last commit of each partition, as a zxid."""
    return {each.at: each.zxid for each in group.offsets if isinstance(each, CommittedOffset)}


class Scene:
    """A server, a group on it, and members in their own processes. Leaving the `with` block ends all of them."""

    group_name = "billing"
    program = "tests.consumer.worker"
    """The module that each process runs."""

    def __init__(
        self,
        directory: Path,
        *,
        members: int = 4,
        topics: dict[str, int] | None = None,
        session_timeout: float = 2.0,
        options: Sequence[str] = (),
    ) -> None:
        self.directory = directory
        self.timeout = session_timeout
        self._members = members
        self._topics = topics or {"orders": 5, "refunds": 3}
        self._options = options
        self._numbers = count(1)
        self._stack = ExitStack()

    @property
    def partitions(self) -> frozenset[TopicPartition]:
        """All partitions of the topics."""
        return frozenset(
            TopicPartition(topic, number) for topic, size in self._topics.items() for number in range(size)
        )

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            address = self._serve(stack)
            plant_topics(address, self._topics)
            registry = Registry.connect(self._hosts(address), session_timeout=self.timeout * 2, timeout=60.0)
            self.group: Consumergroup = stack.enter_context(registry).group(self.group_name)
            self.places = [Place(number, self._way(number, stack)) for number in range(self._members)]
            stack.callback(self._kill_all)
            for place in self.places:
                self.start(place)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _serve(self, stack: ExitStack) -> str:
        """Start the server. Its transaction log has everything from the beginning. The longest session is ten ticks."""
        self.server = stack.enter_context(ZooKeeperServer(tick_time=max(0.1, self.timeout / 20)))
        return self.server.address

    def _way(self, _number: int, stack: ExitStack) -> Any:
        """The proxy of one member."""
        return stack.enter_context(TcpProxy(self.server.address))

    @staticmethod
    def _hosts(address: str) -> str:
        """The address several times, so that a client soon retries a server that has just started."""
        return ",".join([address] * 5)

    # Members

    def start(self, place: Place, *options: str, new: bool = True) -> None:
        """Start a process for a member; with `new`, under a new id."""
        number = next(self._numbers)
        if new:
            place.id = f"w{place.number}.{number}"
        place.log = self.directory / f"{number:03}-{place.id}.jsonl"
        command = [sys.executable, "-m", self.program, "--hosts", self._hosts(place.proxy.address)]
        command += ["--group", self.group.name, "--topics", ",".join(self._topics), "--id", place.id]
        command += ["--log", str(place.log), "--session-timeout", str(self.timeout), *self._options, *options]
        with place.log.with_suffix(".err").open("wb") as errors:
            place.process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.DEVNULL, stderr=errors)
        place.all.append(place.process)

    def signal(self, place: Place, number: int) -> None:
        """Send a signal to a member, unless it has ended."""
        assert place.process is not None
        place.process.send_signal(number)

    def expire(self, place: Place) -> None:
        """Expire the session of a member at the server, if the session is known."""
        assert place.log is not None
        with suppress(OSError, TimeoutError):
            past = SessionCredentials.load(place.log.with_suffix(".session").read_text())
            self.note(Kind.ENDING, session=past.session_id)
            second = KazooClient(self.server.address, timeout=self.timeout)
            expire_session(second, client_id=(past.session_id, past.password), timeout=self.timeout)

    def _kill_all(self) -> None:
        for process in [process for place in self.places for process in place.all]:
            process.kill()
            process.wait()

    def end(self, *, timeout: float = 60.0) -> None:
        """Ask all members to leave, and record each member that does not leave, or ends with an error."""
        for place in self.places:
            self.signal(place, signal.SIGTERM)
        for place in self.places:
            self.await_leaving(place, timeout)

    def await_leaving(self, place: Place, timeout: float = 60.0) -> None:
        """Record a member that does not leave, or ends with an error, and kill it."""
        assert place.process is not None
        if not place.has_left(timeout):
            self.note(Kind.FAILED, f"{place.id} was asked to leave; status {place.process.returncode}")
            place.process.kill()

    # Records

    def note(self, kind: Kind, text: str = "", *, session: int | None = None) -> None:
        """Record an action of the nemesis."""
        with (self.directory / "nemesis.jsonl").open("a") as file:
            file.write(Event(kind, clock(), "nemesis", session=session, error=text).line() + "\n")

    def settle(self, bound: float = 90.0) -> bool:
        """Wait until the group is stable, and every partition has been worked on since this call."""
        before, end = _commits(self.group), time.monotonic() + bound
        while time.monotonic() < end:
            with suppress(ZkgroupsException):
                now = _commits(self.group)
                moved = all(now.get(at, 0) > before.get(at, 0) for at in self.partitions)
                if moved and self.group.describe().state is GroupState.STABLE:
                    return True
            time.sleep(0.05)
        return False

    def history(self) -> History:
        """The records of the members and of the server."""
        partitions = frozenset(map(str, self.partitions))
        return History(read(self.directory), partitions, self._journal(), session_timeout=self.timeout)

    def _journal(self) -> list[HistoryEvent]:
        return journal.read(self.server.data_dir, self.group.name)


class Nemesis:
    """Carry out the planned faults, and end them in time."""

    def __init__(self, scene: Any) -> None:
        self._scene = scene
        self._due: list[tuple[float, int, Callable[[], object]]] = []
        self._order = count()
        self._wait = threading.Event()

    def run(self, strikes: Sequence[Strike]) -> None:
        """Carry out all faults, each for as long as planned."""
        begun, timeout = time.monotonic(), self._scene.timeout
        for strike in strikes:
            self._at(begun + strike.moment * timeout, partial(self._strike, strike, begun))
        while self._due:
            due, _, act = heapq.heappop(self._due)
            self._wait.wait(max(0.0, due - time.monotonic()))
            act()

    def _at(self, moment: float, act: Callable[[], object]) -> None:
        heapq.heappush(self._due, (moment, next(self._order), act))

    def _strike(self, strike: Strike, begun: float) -> None:
        """A fault ends when the plan says so, even if it began late. So the next fault finds the planned state."""
        self._scene.note(Kind.STRUCK, str(strike))
        undo = getattr(self, f"_{strike.kind}")(self._scene.places[strike.victim], strike)
        if undo is not None:
            self._at(begun + (strike.moment + strike.lasts) * self._scene.timeout, undo)

    def _kill(self, place: Place, _strike: Strike) -> Callable[[], object]:
        self._scene.signal(place, signal.SIGKILL)
        return lambda: self._scene.start(place, new=False)

    def _leave(self, place: Place, _strike: Strike) -> Callable[[], object]:
        self._scene.signal(place, signal.SIGTERM)
        return lambda: self._come_back(place)

    def _come_back(self, place: Place) -> None:
        """Start the next process once the previous one has left."""
        self._scene.await_leaving(place)
        self._scene.start(place)

    def _stop(self, place: Place, _strike: Strike) -> Callable[[], object]:
        self._scene.signal(place, signal.SIGSTOP)
        return lambda: self._scene.signal(place, signal.SIGCONT)

    def _cut(self, place: Place, _strike: Strike) -> None:
        place.proxy.cut()

    def _delay(self, place: Place, strike: Strike) -> Callable[[], object]:
        place.proxy.delay(strike.delay * self._scene.timeout, direction=strike.direction)
        return place.proxy.heal

    def _drop(self, place: Place, strike: Strike) -> Callable[[], object]:
        place.proxy.drop(direction=strike.direction)
        return place.proxy.heal

    def _swallow(self, place: Place, _strike: Strike) -> Callable[[], object]:
        place.proxy.swallow_watch_events()
        return place.proxy.heal

    def _expire(self, place: Place, _strike: Strike) -> None:
        self._scene.expire(place)

    def _server(self, _place: Place, _strike: Strike) -> Callable[[], object]:
        self._scene.server.kill()
        return self._scene.server.start


@dataclass(frozen=True)
class Verdict:
    """The outcome of a run."""

    history: History
    violations: list[Violation]
    settled_after: float

    def summary(self) -> str:
        """Numbers of the run."""
        kinds = {kind: sum(1 for _ in self.history.of(kind)) for kind in Kind}
        told = ", ".join(f"{number} {kind}" for kind, number in kinds.items() if number)
        return f"{told}; {sum(1 for _ in self.history.commits)} commits, settled after {self.settled_after:.1f} s"


def run(scene: Scene, strikes: Sequence[Strike], *, bound: float, once: bool = False) -> Verdict:
    """Let the faults strike a settled group, and judge."""
    if not scene.settle(bound + 10):
        scene.note(Kind.FAILED, "the group did not settle before anything was broken")
    Nemesis(scene).run(strikes)
    scene.note(Kind.CALM)
    began = time.monotonic()
    scene.settle(bound)
    took = time.monotonic() - began
    scene.end()
    history = scene.history()
    return Verdict(history, judge(history, bound=bound, once=once), took)
