"""The text of a broker's server.properties."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from .java_properties import properties, quoted

NODE: Final = "1"
"""The broker's id, unless the configuration says otherwise."""
PLAINTEXT: Final = "PLAINTEXT"
CONTROLLER: Final = "CONTROLLER"
SASL: Final = "SASL"

# One replica, few partitions in internal topics, no delays, little memory.
_SMALL: Final = {
    "auto.create.topics.enable": "false",
    "offsets.topic.replication.factor": "1",
    "offsets.topic.num.partitions": "4",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "transaction.state.log.num.partitions": "1",
    "group.initial.rebalance.delay.ms": "0",
    "num.network.threads": "2",
    "num.io.threads": "2",
    # Tests write messages with old times. The brokers would delete them after some minutes.
    "log.retention.ms": "-1",
    "log.cleaner.dedupe.buffer.size": "2097152",
    "log.index.size.max.bytes": "65536",
}
_SESSION_MS = "8000"
"""A killed broker stays registered this long. A machine may stand still for almost as long."""


def server_properties(
    *,
    data_dir: Path,
    listeners: Mapping[str, str],
    zookeeper: str | None,
    users: Mapping[str, str],
    extra: Mapping[str, str],
) -> str:
    """Return the text of server.properties. `listeners` has an address for each name; lines of `extra` come last."""
    names = [PLAINTEXT, *([] if zookeeper else [CONTROLLER]), *([SASL] if users else [])]
    used = {name: listeners[name] for name in names}
    mode = _with_zookeeper(zookeeper) if zookeeper else _without_zookeeper(listeners[CONTROLLER])
    lines = _SMALL | {"log.dirs": str(data_dir / "data")} | mode | _listening(used) | _sasl(users)
    return properties(lines | dict(extra))


def _with_zookeeper(zookeeper: str) -> dict[str, str]:
    return {"zookeeper.connect": zookeeper, "zookeeper.session.timeout.ms": _SESSION_MS, "broker.id": NODE}


def _without_zookeeper(controller: str) -> dict[str, str]:
    return {
        "process.roles": "broker,controller",
        "node.id": NODE,
        "broker.session.timeout.ms": _SESSION_MS,
        "broker.heartbeat.interval.ms": "1000",
        # Otherwise an idle broker writes two empty records per second, a third of its CPU time.
        "metadata.max.idle.interval.ms": "0",
        "controller.quorum.voters": f"{NODE}@{controller}",
        "controller.listener.names": CONTROLLER,
    }


def _listening(addresses: Mapping[str, str]) -> dict[str, str]:
    protocols = {name: "SASL_PLAINTEXT" if name == SASL else "PLAINTEXT" for name in addresses}
    where = {name: f"{name}://{address}" for name, address in addresses.items()}
    return {
        "listeners": ",".join(where.values()),
        "advertised.listeners": ",".join(at for name, at in where.items() if name != CONTROLLER),
        "listener.security.protocol.map": ",".join(f"{name}:{protocol}" for name, protocol in protocols.items()),
        "inter.broker.listener.name": PLAINTEXT,
    }


def _sasl(users: Mapping[str, str]) -> dict[str, str]:
    if not users:
        return {}
    entries = "".join(f" user_{name}={quoted(password)}" for name, password in users.items())
    login = f"org.apache.kafka.common.security.plain.PlainLoginModule required{entries};"
    return {"sasl.enabled.mechanisms": "PLAIN", "listener.name.sasl.plain.sasl.jaas.config": login}
