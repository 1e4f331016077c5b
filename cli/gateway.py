"""`zkgroups gateway`: run a gateway in the foreground."""

from __future__ import annotations

import asyncio
import logging
import re
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Any, Final

import click

from .shared.connect import connected, missing_brokers
from .shared.global_options import Command
from .shared.listening import HostName, file_limit, listening_tls, one_address, run_until_signal, tls_options
from .shared.messages import show_warnings
from .shared.options import Options
from .shared.parameter_types import usage_error
from .shared.signals import raise_recorded

if TYPE_CHECKING:
    from zkgroups.coordinator import CoordinatorConfig, Storage
    from zkgroups.gateway import Gateway, GatewaySettings, NodePorts
    from zkgroups.gateway.gateway import StorageFactory
    from zkgroups.gateway.groups.coordinator_host import BrokerTopics, Report
    from zkgroups.gateway.protocol.addresses import GatewayAddress
    from zkgroups.kafka.wire.errors import Address
    from zkgroups.zookeeper.ownership.routes import GroupRoutes


# The message of `zkgroups gateway` after its start.


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


# Convert the options of `zkgroups gateway` for the ports of brokers, and for its own address.


_PORTS: Final = 100
_ANY: Final = ("0.0.0.0", "::")  # noqa: S104 -- compared, never a default
"""Hosts that stand for all addresses of the machine."""


def port_range(text: str | None, listen: Address) -> NodePorts:
    """Return the ports of brokers."""
    from zkgroups.gateway import NodePorts

    if text is None:
        return NodePorts(listen.port + 1, listen.port + _PORTS)
    found = re.fullmatch("([0-9]{1,5})-([0-9]{1,5})", text)
    if found is None:
        raise click.BadParameter("it must be a range of ports, like 19100-19199", param_hint="--broker-ports")
    ports = NodePorts(int(found[1]), int(found[2]))
    if ports.first <= listen.port <= ports.last:
        raise click.BadParameter("it must not contain the port of --listen", param_hint="--broker-ports")
    return ports


def reachable_address(settings: GatewaySettings) -> GatewayAddress:
    """Return the address to which other gateways send clients: advertised, or listened on, or this machine's."""
    from zkgroups.gateway.protocol.addresses import GatewayAddress

    host = settings.advertised_host or settings.listen.host
    return GatewayAddress(socket.getfqdn() if host in _ANY else host, settings.ports)


# Where `zkgroups gateway` keeps its groups: in ZooKeeper, or in memory.


@contextmanager
def group_storage(
    options: Options, address: GatewayAddress, *, memory: bool, foreign_assignor: str
) -> Iterator[tuple[StorageFactory, CoordinatorConfig, GroupRoutes | None]]:
    """Yield a function that opens the storage, the settings of the coordinator, and the routes of groups.

    Close the storage at the end.
    """
    if memory:
        if options.read_only:
            raise click.UsageError("--memory starts without groups, so --read-only is useless: leave one of them out")
        from zkgroups.coordinator import AssignmentBy, CoordinatorConfig
        from zkgroups.gateway.groups.coordinator_host import MemoryGroupStorage

        yield MemoryGroupStorage, CoordinatorConfig(assignment_by=AssignmentBy.COORDINATOR), None
        return
    if options.zookeeper is None:
        raise usage_error(
            "choose where to keep groups: in ZooKeeper (-z HOST:PORT/CHROOT), or for experiments in memory (--memory)"
        )
    from zkgroups.gateway.zookeeper_storage import GroupSettings, ZooKeeperStorage, coordinator_config
    from zkgroups.zookeeper.ownership.routes import GroupRoutes
    from zkgroups.zookeeper.session.session import context_of

    settings = GroupSettings(foreign_assignor=foreign_assignor)

    with connected(options) as registry, ExitStack() as stack:
        holder = f"the gateway at {address.host}"
        routes = GroupRoutes(context_of(registry), holder, logging.getLogger("zkgroups.gateway"))

        def opened(topics: BrokerTopics, report: Report) -> Storage:
            storage = ZooKeeperStorage(
                registry,
                report,
                read_only=options.read_only,
                settings=settings,
                address=address,
                routes=routes,
                brokers=topics,
            )
            return stack.enter_context(storage)

        yield opened, coordinator_config(), routes


@click.command(cls=Command)
@click.option(
    "--listen",
    required=True,
    metavar="HOST:PORT",
    help="The address to listen on. Clients use it as their bootstrap server.",
)
@click.option(
    "--broker-ports",
    metavar="FIRST-LAST",
    help="The ports for the brokers: FIRST + (broker id modulo the number of ports). By "
    "default, the 100 ports after the port of --listen.",
)
@click.option(
    "--advertise",
    type=HostName(),
    metavar="HOST",
    help="The host name of this gateway for clients. By default, the address to which a client has connected. "
    "Other gateways send clients to this name, too.",
)
@click.option(
    "--group",
    "pattern",
    metavar="REGEX",
    help="Answer for the groups whose whole name matches; all others stay with the brokers. By default, all groups.",
)
@click.option("--memory", is_flag=True, help="Keep groups in memory. Their offsets are lost when the gateway stops.")
@click.option(
    "--foreign-assignor",
    type=click.Choice(["range", "roundrobin"]),
    default="range",
    show_default=True,
    help="The strategy for which the Scala members are configured.",
)
@tls_options
@click.option(
    "--max-connections",
    type=click.IntRange(1),
    default=5000,
    show_default=True,
    help="The most connections of clients.",
)
@click.option(
    "--max-groups",
    type=click.IntRange(1),
    default=10_000,
    show_default=True,
    help="The most groups with members or new offsets.",
)
@click.option(
    "--max-members", type=click.IntRange(1), default=1000, show_default=True, help="The most members of a group."
)
@click.pass_obj
def gateway(options: Options, /, **given: Any) -> None:
    """Run a group coordinator that speaks Kafka's protocol, in front of the brokers.

    Clients use the address of --listen as their bootstrap server. All their requests go through the gateway, which
    never shows them the address of a broker. The gateway answers requests about groups itself, or with --group only
    those about matching groups.

    With -z, clients join the groups in ZooKeeper, beside Scala members and other old clients. Kafka's own tools show
    these groups: members, partitions, offsets. With --read-only, nobody can join or change them. With --memory, groups
    exist only in the gateway, for experiments. The brokers decide which groups a client may use, as without the
    gateway.

    \b
    Example:
      zkgroups gateway --listen 0.0.0.0:19092 -b kafka1:9092,kafka2:9092 -z zk1:2181/kafka --group 'billing|audit-.*'
      zkgroups gateway --listen 0.0.0.0:19092 -b kafka1:9092,kafka2:9092 -z zk1:2181/kafka --read-only
      zkgroups gateway --listen 0.0.0.0:19092 -b kafka1:9092 --memory --group 'test-.*' --advertise gateway.example.com
    """
    if options.bootstrap_server is None:
        raise missing_brokers("the gateway")
    settings = _settings(options, given)
    address = reachable_address(settings)
    kept = group_storage(options, address, memory=given["memory"], foreign_assignor=given["foreign_assignor"])
    with kept as (storage, config, routes):
        from zkgroups.gateway import Gateway

        show_warnings(options, logging.getLogger("zkgroups.gateway"))
        running = banner(options, settings, memory=given["memory"])
        opened = _opened(Gateway(settings, config, storage, routes))
        recorded = asyncio.run(run_until_signal(options, opened, str(settings.listen), "gateways", running))
    raise_recorded(recorded)


def _settings(options: Options, given: dict[str, Any]) -> GatewaySettings:
    from zkgroups.gateway import GatewaySettings, GroupRouting, Limits
    from zkgroups.kafka import read_properties
    from zkgroups.kafka.client_settings import client_settings
    from zkgroups.kafka.wire import codec

    codec.check_installed()
    listen = one_address(given["listen"])
    properties = read_properties(options.command_config) if options.command_config else {}
    file_limit(2 * given["max_connections"])
    return GatewaySettings(
        listen,
        port_range(given["broker_ports"], listen),
        str(options.bootstrap_server),
        client_settings(properties).security,
        given["advertise"],
        listening_tls(given["listen_cert"], given["listen_key"], given["listen_client_ca"]),
        GroupRouting(given["pattern"]),
        read_only=options.read_only,
        limits=Limits(connections=given["max_connections"], groups=given["max_groups"], members=given["max_members"]),
    )


@asynccontextmanager
async def _opened(gateway: Gateway) -> AsyncIterator[str]:
    async with gateway:
        yield str(gateway.address)
