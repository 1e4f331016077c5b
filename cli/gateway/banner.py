"""The message of `zkgroups gateway` after its start."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..shared.options import Options

if TYPE_CHECKING:
    from zkgroups.gateway import GatewaySettings


def banner(options: Options, settings: GatewaySettings, *, memory: bool) -> str:
    """Name the groups that the gateway serves, the place where they are kept, and the ports for the brokers."""
    pattern, ports = settings.routing.pattern, settings.ports
    groups = "all groups" if pattern is None else f"the groups that match {pattern!r}"
    kept = "in memory" if memory else f"in ZooKeeper at {options.zookeeper}"
    access = ", read-only" if settings.read_only else ""
    return (
        "The gateway is running. Ctrl-C stops it.\n"
        f"It serves {groups} {kept}{access}.\n"
        f"Clients reach the brokers at its ports {ports.first}-{ports.last}."
    )
