"""Temporary ZooKeeper servers and Kafka brokers for tests and demos, with ways to break them; a harness for handlers.

    from zkgroups.testing import TcpProxy, ZooKeeperServer

    with ZooKeeperServer() as server, TcpProxy(server.address) as proxy:
        ...

Names are imported on first use, so that importing this package stays cheap.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .child_process import ChildProcess
    from .handler_harness import HandlerHarness, HandlerOutcome
    from .kafka_broker import KafkaBroker
    from .proxy import Fault, Op, TcpProxy
    from .server_choice import ExternalZooKeeper, Server, fresh_chroot, is_required, missing, zookeeper
    from .session_expiry import expire_session
    from .zookeeper_container import ZooKeeperContainer
    from .zookeeper_ensemble import ZooKeeperEnsemble
    from .zookeeper_server import Sasl, Tls, ZooKeeperServer

_HOMES = {
    "ChildProcess": "child_process",
    "ExternalZooKeeper": "server_choice",
    "Fault": "proxy",
    "HandlerHarness": "handler_harness",
    "HandlerOutcome": "handler_harness",
    "KafkaBroker": "kafka_broker",
    "Op": "proxy",
    "Sasl": "zookeeper_server",
    "Server": "server_choice",
    "TcpProxy": "proxy",
    "Tls": "zookeeper_server",
    "ZooKeeperContainer": "zookeeper_container",
    "ZooKeeperEnsemble": "zookeeper_ensemble",
    "ZooKeeperServer": "zookeeper_server",
    "expire_session": "session_expiry",
    "fresh_chroot": "server_choice",
    "is_required": "server_choice",
    "missing": "server_choice",
    "zookeeper": "server_choice",
}

__all__ = [
    "ChildProcess",
    "ExternalZooKeeper",
    "Fault",
    "HandlerHarness",
    "HandlerOutcome",
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
