"""Where `zkgroups gateway` keeps its groups: in ZooKeeper, or in memory."""

from __future__ import annotations

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


@contextmanager
def group_storage(
    options: Options, address: GatewayAddress, *, memory: bool, foreign_assignor: str
) -> Iterator[tuple[StorageFactory, CoordinatorConfig]]:
    """Yield a function that opens the storage, and the settings of the coordinator. Close the storage at the end."""
    if memory:
        if options.read_only:
            raise click.UsageError("--memory has no groups to read: leave out --read-only, or give -z")
        from zkgroups.coordinator import AssignmentBy, CoordinatorConfig
        from zkgroups.gateway.groups.memory_group_storage import MemoryGroupStorage

        yield MemoryGroupStorage, CoordinatorConfig(assignment_by=AssignmentBy.COORDINATOR)
        return
    if options.zookeeper is None:
        raise click.UsageError(
            "say where groups are kept: in ZooKeeper (-z HOST:PORT/CHROOT), or for experiments in memory (--memory)",
            click.get_current_context(),
        )
    from zkgroups.gateway.zookeeper_storage import GroupSettings, ZooKeeperStorage, coordinator_config

    settings = GroupSettings(foreign_assignor=foreign_assignor)

    with connected(options) as registry, ExitStack() as stack:

        def opened(_counts: PartitionCounts, report: Report) -> Storage:
            storage = ZooKeeperStorage(
                registry, report, read_only=options.read_only, settings=settings, address=address
            )
            return stack.enter_context(storage)

        yield opened, coordinator_config()
