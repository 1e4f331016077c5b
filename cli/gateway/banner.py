"""What `zkgroups gateway` says when it has started."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..shared.options import Options

if TYPE_CHECKING:
    from zkgroups.gateway import GatewaySettings


def banner(options: Options, settings: GatewaySettings, *, memory: bool) -> str:
    """Return which groups the gateway answers for, where it keeps them, and where clients find the brokers."""
    pattern, ports = settings.routing.pattern, settings.ports
    groups = "all groups" if pattern is None else f"groups that match {pattern!r}"
    kept = "in memory" if memory else f"in ZooKeeper at {options.zookeeper}"
    access = ", read-only" if settings.read_only else ""
    return (
        "The gateway is running. Ctrl-C stops it.\n"
        f"It answers for {groups}, {kept}{access}.\n"
        f"Clients reach the brokers at the ports {ports.first}-{ports.last}."
    )
