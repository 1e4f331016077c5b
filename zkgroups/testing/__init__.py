"""Temporary ZooKeeper servers and Kafka brokers for tests and demos, with ways to break them.

    from zkgroups.testing import TcpProxy, ZooKeeperServer

    with ZooKeeperServer() as server, TcpProxy(server.address) as proxy:
        ...

Names are imported on first use, so that importing this package stays cheap.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .containers import ZooKeeperContainer
    from .ensemble import ZooKeeperEnsemble
    from .kafka import KafkaBroker
    from .process import ChildProcess
    from .proxy.faults import Fault
    from .proxy.frames import Op
    from .proxy.proxy import TcpProxy
    from .requirements import is_required, missing
    from .server import ZooKeeperServer
    from .server_choice import ExternalZooKeeper, Server, fresh_chroot, zookeeper
    from .server_configuration import Sasl, Tls
    from .session_expiry import expire_session

_HOMES = {
    "ChildProcess": "process",
    "ExternalZooKeeper": "server_choice",
    "Fault": "proxy.faults",
    "KafkaBroker": "kafka",
    "Op": "proxy.frames",
    "Sasl": "server_configuration",
    "Server": "server_choice",
    "TcpProxy": "proxy.proxy",
    "Tls": "server_configuration",
    "ZooKeeperContainer": "containers",
    "ZooKeeperEnsemble": "ensemble",
    "ZooKeeperServer": "server",
    "expire_session": "session_expiry",
    "fresh_chroot": "server_choice",
    "is_required": "requirements",
    "missing": "requirements",
    "zookeeper": "server_choice",
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
