"""The settings of the client that fetches, from the global options."""

from __future__ import annotations

from typing import Any

from zkgroups import Registry
from zkgroups.core.znodes.values import Broker

from ..shared.brokers import missing_brokers
from ..shared.options import Options


def kafka_settings(options: Options, registry: Registry) -> dict[str, Any]:
    """Return the settings. Without -b, take the brokers that have registered in ZooKeeper, as old consumers do."""
    addresses = options.bootstrap_server or ",".join(_registered(registry))
    if not addresses:
        raise missing_brokers("consume")
    settings: dict[str, Any] = {"bootstrap.servers": addresses, "enable.partition.eof": True}
    if options.command_config is not None:
        from zkgroups.kafka import read_properties
        from zkgroups.kafka.settings.librdkafka import librdkafka_settings

        settings |= librdkafka_settings(read_properties(options.command_config))
    return settings


def _registered(registry: Registry) -> list[str]:
    brokers = [found for found in registry.brokers() if isinstance(found, Broker)]
    return [f"{broker.host}:{broker.port}" for broker in brokers if broker.host and broker.port]
