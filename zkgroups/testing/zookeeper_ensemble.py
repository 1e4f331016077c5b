"""An ensemble of ZooKeeper servers on loopback. Each server can be broken separately.

    with ZooKeeperEnsemble() as ensemble:
        client = KazooClient(ensemble.address)
        ensemble.leader().kill()

Leaving the `with` block stops all servers and deletes their data.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Self

from zkgroups.exceptions import ServerStartError

from . import local_server
from .local_server import PORT_TAKEN
from .proxy import TcpProxy
from .zookeeper_server import Sasl, Tls, ZooKeeperServer

_ATTEMPTS = 3
_POLL = 0.01
# In seconds: how long a member may take to fetch the data, and how long a leader hears nothing from one before it
# goes on without it. Short, so that a suspended member is soon noticed; long enough for a busy machine.
_INIT_LIMIT = 10.0
_SYNC_LIMIT = 2.0
_READ_ONLY_OPTIONS = ("-Dreadonlymode.enabled=true",)
# Without these, ZooKeeper 3.9 refuses every session in read-only mode, old and new.
_READ_ONLY_CONFIG = {"localSessionsEnabled": "true", "localSessionsUpgradingEnabled": "true"}


class ZooKeeperEnsemble:
    """
    An ensemble of `size` servers. Each item of `nodes` is a `ZooKeeperServer`.

    With `read_only`, a node without a quorum serves reads to clients that ask for it. Sessions are then local: they end
    with their connection, unless they have created an ephemeral node. `sync_limit` is in seconds: how long a server
    keeps running without hearing from its leader, or a leader from its followers. With `cuttable` the nodes reach each
    other through proxies, so that `cut_off` can separate one from the others, and `lag` can let one fall behind. The
    other options are those of `ZooKeeperServer`, for every node.
    """

    def __init__(
        self,
        size: int = 3,
        *,
        tick_time: float = 0.2,
        sync_limit: float = _SYNC_LIMIT,
        cuttable: bool = False,
        read_only: bool = False,
        config: Mapping[str, str] | None = None,
        jvm_options: Sequence[str] = (),
        jars: Sequence[Path] | None = None,
        tls: Tls | None = None,
        sasl: Sasl | None = None,
    ) -> None:
        self._size = size
        self._tick_time = tick_time
        self._sync_limit = sync_limit
        self._cuttable = cuttable
        self._ways: dict[tuple[int, int], tuple[TcpProxy, TcpProxy]] = {}
        self._config = (_READ_ONLY_CONFIG if read_only else {}) | dict(config or {})
        self._jvm_options = (*(_READ_ONLY_OPTIONS if read_only else ()), *jvm_options)
        self._jars = jars
        self._tls = tls
        self._sasl = sasl
        self._nodes: tuple[ZooKeeperServer, ...] = ()
        self._reserved: list[local_server.ReservedPort] = []
        self._directory: Path | None = None
        self._owner = os.getpid()

    @property
    def nodes(self) -> tuple[ZooKeeperServer, ...]:
        """All servers, running or not."""
        return self._nodes

    @property
    def address(self) -> str:
        """The hosts string with all nodes."""
        return ",".join(node.address for node in self._nodes)

    @property
    def secure_address(self) -> str:
        """The hosts string with the addresses of all nodes for TLS."""
        return ",".join(node.secure_address for node in self._nodes)

    def leader(self, *, timeout: float = 30.0) -> ZooKeeperServer:
        """Return the leader. Wait for the end of an election."""
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline:
            for node in self._nodes:
                if node.mode() == "leader":
                    return node
            time.sleep(_POLL)
        raise ServerStartError(f"no node was elected leader within {timeout} s")

    def followers(self) -> tuple[ZooKeeperServer, ...]:
        """Return the nodes that follow a leader now."""
        return tuple(node for node in self._nodes if node.mode() == "follower")

    def cut_off(self, node: ZooKeeperServer) -> None:
        """Hold back all traffic between this node and the others until `heal`. Connections stay open."""
        number = self._nodes.index(node) + 1
        for way, proxies in self._ways.items():
            if number in way:
                for proxy in proxies:
                    proxy.hold()

    def lag(self, node: ZooKeeperServer, seconds: float) -> None:
        """Until `heal`, delay what the leader sends to this follower, so that its clients read an old state."""
        number, leader = (self._nodes.index(each) + 1 for each in (node, self.leader()))
        peers, _elections = self._ways[number, leader]
        peers.delay(seconds, direction="replies")

    def heal(self) -> None:
        """Deliver the traffic that was held back, and let the nodes reach each other again."""
        for proxies in self._ways.values():
            for proxy in proxies:
                proxy.heal()

    def start(self, *, timeout: float = 60.0) -> Self:
        """Start all nodes, and wait until each serves."""
        for attempt in range(_ATTEMPTS):
            self._build()
            try:
                self._start_nodes(timeout)
                break
            except ServerStartError as error:
                self.close()
                if attempt + 1 == _ATTEMPTS or PORT_TAKEN not in str(error):
                    raise
        return self

    def close(self) -> None:
        """Stop all nodes and delete their data."""
        # A forked child that leaves its copy of the `with` block must not stop the parent's servers.
        if os.getpid() != self._owner:
            return
        for node in self._nodes:
            node.kill()
            node.close()
        for proxies in self._ways.values():
            for proxy in proxies:
                proxy.close()
        self._ways.clear()
        for port in self._reserved:
            port.release()
        self._reserved.clear()
        if self._directory is not None:
            shutil.rmtree(self._directory, ignore_errors=True)

    def _build(self) -> None:
        self._directory = Path(tempfile.mkdtemp(prefix="zkgroups-ensemble-"))
        numbers = range(1, self._size + 1)
        ports_of = {number: (self._reserve(), self._reserve()) for number in numbers}
        self._nodes = tuple(self._node(number, self._members(number, ports_of) | self._config) for number in numbers)

    def _members(self, own: int, ports_of: Mapping[int, tuple[int, int]]) -> dict[str, str]:
        """Return the addresses by which one node reaches all nodes: ports for followers and for elections."""
        members = {}
        for number, (peers, elections) in ports_of.items():
            if self._cuttable and number != own:
                peers, elections = map(_port, self._way(own, number, ports_of))
            members[f"server.{number}"] = f"{local_server.HOST}:{peers}:{elections}"
        return members | {"initLimit": self._ticks(_INIT_LIMIT), "syncLimit": self._ticks(self._sync_limit)}

    def _way(self, own: int, other: int, ports_of: Mapping[int, tuple[int, int]]) -> tuple[TcpProxy, TcpProxy]:
        """Return the proxies by which one node reaches another.

        In an election, the node with the higher id connects back to the address that the other node has sent.
        """
        if (own, other) not in self._ways:
            peers, elections = (f"{local_server.HOST}:{port}" for port in ports_of[other])
            back = None
            if own < other:
                told, way = f"{local_server.HOST}:{ports_of[own][1]}", self._way(other, own, ports_of)[1]
                back = told.encode(), way.address.encode()
            self._ways[own, other] = (
                TcpProxy(peers, framed=False).start(),
                TcpProxy(elections, framed=False, replace=back).start(),
            )
        return self._ways[own, other]

    def _node(self, number: int, config: Mapping[str, str]) -> ZooKeeperServer:
        assert self._directory is not None
        data_dir = self._directory / f"node{number}"
        data_dir.mkdir()
        (data_dir / "myid").write_text(str(number))
        return ZooKeeperServer(
            tick_time=self._tick_time,
            data_dir=data_dir,
            port=self._reserve(),
            config=config,
            jvm_options=self._jvm_options,
            jars=self._jars,
            tls=self._tls,
            sasl=self._sasl,
        )

    def _start_nodes(self, timeout: float) -> None:
        deadline = time.monotonic() + timeout
        for node in self._nodes:
            node.launch()
        for node in self._nodes:
            node.wait_until_serving(timeout=deadline - time.monotonic())

    def _reserve(self) -> int:
        self._reserved.append(local_server.reserve())
        return self._reserved[-1].number

    def _ticks(self, seconds: float) -> str:
        return str(max(2, round(seconds / self._tick_time)))

    def __enter__(self) -> Self:
        try:
            return self.start()
        except BaseException:
            self.close()
            raise

    def __exit__(self, *_: object) -> None:
        self.close()


def _port(proxy: TcpProxy) -> int:
    return int(proxy.address.rpartition(":")[2])
