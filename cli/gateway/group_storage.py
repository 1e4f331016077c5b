"""Where `zkgroups gateway` keeps its groups: in ZooKeeper, or in memory."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

import click

from ..shared.connect import connected
from ..shared.options import Options

if TYPE_CHECKING:
    from zkgroups.coordinator import CoordinatorConfig, Storage
    from zkgroups.gateway.gateway import StorageFactory
    from zkgroups.gateway.groups.coordinator_host import Report
    from zkgroups.gateway.groups.memory_group_storage import PartitionCounts
    from zkgroups.gateway.protocol.node_ports import GatewayAddress
    from zkgroups.zookeeper.ownership.followed_routes import GroupRoutes


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
        from zkgroups.gateway.groups.memory_group_storage import MemoryGroupStorage

        yield MemoryGroupStorage, CoordinatorConfig(assignment_by=AssignmentBy.COORDINATOR), None
        return
    if options.zookeeper is None:
        raise click.UsageError(
            "choose where to keep groups: in ZooKeeper (-z HOST:PORT/CHROOT), or for experiments in memory (--memory)",
            click.get_current_context(),
        )
    from zkgroups.gateway.zookeeper_storage import GroupSettings, ZooKeeperStorage, coordinator_config
    from zkgroups.zookeeper.ownership.followed_routes import GroupRoutes
    from zkgroups.zookeeper.session.registry_context import context_of

    settings = GroupSettings(foreign_assignor=foreign_assignor)

    with connected(options) as registry, ExitStack() as stack:
        holder = f"the gateway at {address.host}"
        routes = GroupRoutes(context_of(registry), holder, logging.getLogger("zkgroups.gateway"))

        def opened(_counts: PartitionCounts, report: Report) -> Storage:
            storage = ZooKeeperStorage(
                registry,
                report,
                read_only=options.read_only,
                settings=settings,
                address=address,
                routes=routes,
            )
            return stack.enter_context(storage)

        yield opened, coordinator_config(), routes
