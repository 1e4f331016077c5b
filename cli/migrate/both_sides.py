"""Options shared by the migrate commands, and connecting to both sides before Spark is started."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from ..shared.brokers import missing_brokers
from ..shared.connect import for_workers
from ..shared.input_files import FolderUri
from ..shared.options import Options

if TYPE_CHECKING:
    from zkgroups.kafka import BrokerOptions
    from zkgroups.zookeeper.zookeeper_source import ZooKeeperSource

plan_argument = click.argument("destination", metavar="PLAN", type=FolderUri())
"""Passes the folder of a plan as `destination`."""

without_zookeeper_option = click.option(
    "--without-zookeeper",
    is_flag=True,
    help="Skip all ZooKeeper checks, and do not lock targets against other plans. Use only after ZooKeeper has been "
    "shut down.",
)
"""Passes `without_zookeeper`, for plans made from a snapshot."""


writers_stopped_option = click.option(
    "--writers-stopped",
    is_flag=True,
    help="For a plan with another --layout: declare that nothing writes these offsets in ZooKeeper any more. zkgroups "
    "cannot see it.",
)
"""Passes `writers_stopped`."""


def broker_options(options: Options, *, what_for: str) -> BrokerOptions:
    """Return options that can be sent to Spark workers."""
    if options.bootstrap_server is None:
        raise missing_brokers(what_for)
    from zkgroups.kafka import BrokerOptions
    from zkgroups.kafka.wire.codec import check_installed

    check_installed()
    file = None if options.command_config is None else str(options.command_config.absolute())
    return BrokerOptions(options.bootstrap_server, file, options.timeout)


def source_options(options: Options, **chosen: Any) -> ZooKeeperSource:
    """Return options that can be sent to Spark workers."""
    from zkgroups.zookeeper.zookeeper_source import ZooKeeperSource

    return ZooKeeperSource(**for_workers(options), **chosen)


def check_brokers(brokers: BrokerOptions) -> None:
    """Connect once, so that errors are reported before Spark starts."""
    with brokers.connect() as connected:
        connected.cluster_id()


def check_zookeeper(zookeeper: ZooKeeperSource) -> list[str]:
    """Connect once, and return the selected groups."""
    with zookeeper.connect() as registry:
        registry.require_root(zookeeper.layout)
        return zookeeper.selected_groups(registry)
