"""Faults of an ensemble, in an order that a seed determines. One ends before the next one begins.

leader    the leader is killed, and starts again a little later
cut       a follower is cut off from the others, for a shorter or longer time than it takes to notice that
moved     a follower hears from the leader late, and all clients of one route can reach only that follower
rolling   the servers restart, one after the other
quorum    two of three servers are killed, and start again a little later
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, Final

from tests.cutting import whole
from tests.waiting import eventually
from zkgroups.testing import TcpProxy, ZooKeeperEnsemble, ZooKeeperServer
from zkgroups.testing.zookeeper_server import RELEASE_OPTIONS, release_jars

KINDS: Final = ("leader", "cut", "moved", "rolling", "quorum")

# In session timeouts: the shortest and the longest duration, and the pause before a fault.
_LASTS: Final = {"leader": (0.0, 1.5), "cut": (2.0, 3.0), "moved": (0.5, 1.5), "quorum": (0.0, 2.0)}
_PAUSE: Final = (0.1, 0.5)
_LATE: Final = (0.05, 0.25)
"""How late a lagging follower hears from the leader. A client must be able to connect to it."""
_UNTIL_MOVED: Final = 0.5

CURRENT, OLD = "3.9", "3.4.14"
RELEASES: Final = (CURRENT, OLD)


@dataclass(frozen=True, slots=True)
class Strike:
    """A fault that begins after a pause. The times are in session timeouts; `choice` selects servers and clients."""

    kind: str
    pause: float
    lasts: float
    late: float
    choice: int

    def __str__(self) -> str:
        more = f", {self.late:.2f} late" if self.kind == "moved" else ""
        return f"{self.kind} for {self.lasts:.2f} after {self.pause:.2f}{more} (choice {self.choice})"


def plan(seed: int, *, rounds: int = 1) -> list[Strike]:
    """Draw faults: each kind once in each round."""
    rng = random.Random(seed)
    kinds = [kind for _ in range(rounds) for kind in rng.sample(KINDS, len(KINDS))]
    return [
        Strike(kind, rng.uniform(*_PAUSE), rng.uniform(*_LASTS.get(kind, (0.0, 0.0))), rng.uniform(*_LATE), number)
        for kind, number in zip(kinds, rng.choices(range(12), k=len(kinds)), strict=True)
    ]


class Route:
    """A proxy in front of each server, for some of the clients."""

    def __init__(self, ensemble: ZooKeeperEnsemble, stack: ExitStack) -> None:
        self._proxies = {node: stack.enter_context(TcpProxy(node.address)) for node in ensemble.nodes}

    @property
    def address(self) -> str:
        """The hosts string with all servers."""
        return ",".join(proxy.address for proxy in self._proxies.values())

    def only(self, node: ZooKeeperServer) -> None:
        """Move all clients to this server."""
        others = [proxy for each, proxy in self._proxies.items() if each is not node]
        for proxy in others:
            proxy.refuse()
        for proxy in others:
            proxy.cut()

    def heal(self) -> None:
        """Let clients reach all servers again."""
        for proxy in self._proxies.values():
            proxy.heal()


@contextmanager
def ensemble_with_routes(session_timeout: float, release: str) -> Iterator[tuple[ZooKeeperEnsemble, list[Route]]]:
    """Three servers, and two routes to them. A server that is cut off keeps answering for three session timeouts."""
    old: dict[str, Any] = {"jars": release_jars(OLD), "jvm_options": RELEASE_OPTIONS} if release == OLD else {}
    limit = 3 * session_timeout
    with (
        ZooKeeperEnsemble(tick_time=session_timeout / 10, sync_limit=limit, cuttable=True, **old) as ensemble,
        ExitStack() as stack,
    ):
        yield ensemble, [Route(ensemble, stack) for _ in range(2)]


class Nemesis:
    """Carries out the planned faults, and calls `note` with each."""

    def __init__(
        self, ensemble: ZooKeeperEnsemble, routes: Sequence[Route], session_timeout: float, note: Callable[[str], None]
    ) -> None:
        self._ensemble, self._routes, self._timeout, self._note = ensemble, routes, session_timeout, note
        self._wait = threading.Event()

    def run(self, strikes: Sequence[Strike]) -> None:
        """Carry out all faults. After each, wait until the ensemble is whole again."""
        for strike in strikes:
            self._pass(strike.pause)
            self._note(str(strike))
            getattr(self, f"_{strike.kind}")(strike)
            assert eventually(lambda: whole(self._ensemble)), f"after {strike}: {self._modes()}"

    def _modes(self) -> list[str | None]:
        return [node.mode() for node in self._ensemble.nodes]

    def _pass(self, session_timeouts: float) -> None:
        self._wait.wait(session_timeouts * self._timeout)

    def _follower(self, strike: Strike) -> ZooKeeperServer:
        leader = self._ensemble.leader()
        followers = [node for node in self._ensemble.nodes if node is not leader]
        return followers[strike.choice % len(followers)]

    def _leader(self, strike: Strike) -> None:
        self._kill([self._ensemble.leader()], strike)

    def _quorum(self, strike: Strike) -> None:
        survivor = strike.choice % len(self._ensemble.nodes)
        self._kill([node for number, node in enumerate(self._ensemble.nodes) if number != survivor], strike)

    def _kill(self, nodes: Sequence[ZooKeeperServer], strike: Strike) -> None:
        for node in nodes:
            node.kill()
        self._pass(strike.lasts)
        for node in nodes:
            node.launch()

    def _cut(self, strike: Strike) -> None:
        node = self._ensemble.leader() if strike.choice % 4 == 0 else self._follower(strike)
        route = self._routes[strike.choice % len(self._routes)]
        route.only(node)
        self._pass(_UNTIL_MOVED)
        self._ensemble.cut_off(node)
        self._pass(strike.lasts)
        self._ensemble.heal()
        route.heal()

    def _moved(self, strike: Strike) -> None:
        node, route = self._follower(strike), self._routes[strike.choice % len(self._routes)]
        self._ensemble.lag(node, strike.late * self._timeout)
        route.only(node)
        self._pass(strike.lasts)
        self._ensemble.heal()
        route.heal()

    def _rolling(self, strike: Strike) -> None:
        nodes = self._ensemble.nodes
        for number in range(len(nodes)):
            node = nodes[(number + strike.choice) % len(nodes)]
            node.stop()
            node.launch()
            assert eventually(lambda: whole(self._ensemble)), f"in {strike}: {self._modes()}"
