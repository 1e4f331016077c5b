"""Throw-away servers for tests and demonstrations: a real ZooKeeper, a real Kafka, and ways to break them.

    from zkgroups.testing import TcpProxy, ZooKeeperServer

    with ZooKeeperServer() as server, TcpProxy(server.address) as proxy:
        ...

Names are imported when they are first used: the pytest plugin lives here, and every pytest run loads it.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .choose import ExternalZooKeeper, Server, fresh_chroot, zookeeper
    from .configuration import Sasl, Tls
    from .containers import ZooKeeperContainer
    from .ensemble import ZooKeeperEnsemble
    from .faults import Fault
    from .frames import Op
    from .kafka import KafkaBroker
    from .process import ChildProcess
    from .proxy import TcpProxy
    from .require import is_required, missing
    from .server import ZooKeeperServer
    from .session import expire_session

_HOMES = {
    "ChildProcess": "process",
    "ExternalZooKeeper": "choose",
    "Fault": "faults",
    "KafkaBroker": "kafka",
    "Op": "frames",
    "Sasl": "configuration",
    "Server": "choose",
    "TcpProxy": "proxy",
    "Tls": "configuration",
    "ZooKeeperContainer": "containers",
    "ZooKeeperEnsemble": "ensemble",
    "ZooKeeperServer": "server",
    "expire_session": "session",
    "fresh_chroot": "choose",
    "is_required": "require",
    "missing": "require",
    "zookeeper": "choose",
}

__all__ = [
    "ChildProcess",
    "ExternalZooKeeper",
    "Fault",
    "KafkaBroker",
    "Op",
    "Sasl",
    "Server",
    "TcpProxy",
    "Tls",
    "ZooKeeperContainer",
    "ZooKeeperEnsemble",
    "ZooKeeperServer",
    "expire_session",
    "fresh_chroot",
    "is_required",
    "missing",
    "zookeeper",
]


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{_HOMES[name]}", __name__), name)
