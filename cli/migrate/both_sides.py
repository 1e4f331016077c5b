"""Options shared by the migrate commands, and connecting to both sides before Spark is started."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from ..shared.brokers import missing_brokers
from ..shared.connect import for_workers
from ..shared.input_files import FolderUri
from ..shared.options import Options
from ..shared.spark_options import SparkOptions, spark_installed

if TYPE_CHECKING:
    from zkgroups.kafka import BrokerOptions
    from zkgroups.spark import SourceOptions

plan_argument = click.argument("destination", metavar="PLAN", type=FolderUri())
"""Passes the folder of a plan as `destination`."""

without_zookeeper_option = click.option(
    "--without-zookeeper",
    is_flag=True,
    help="Skip all ZooKeeper checks, and do not lock targets against other plans. Use only after ZooKeeper has been "
    "shut down.",
)
"""Passes `without_zookeeper`, for plans made from a snapshot."""


def broker_options(options: Options, *, what_for: str) -> BrokerOptions:
    """Connect to the brokers once, and return options that can be sent to Spark workers."""
    if options.bootstrap_server is None:
        raise missing_brokers(what_for)
    from zkgroups.kafka import BrokerOptions

    file = None if options.command_config is None else str(options.command_config.absolute())
    found = BrokerOptions(options.bootstrap_server, file, options.timeout)
    with found.connect() as brokers:
        brokers.cluster_id()
    return found


def source_options(options: Options, **chosen: Any) -> SourceOptions:
    """Connect to ZooKeeper once, and return options that can be sent to Spark workers."""
    with spark_installed():
        from zkgroups.spark import SourceOptions
    found = SourceOptions(**for_workers(options), **chosen)
    with found.connect() as registry:
        registry.require_root()
    return found


def own_spark(given: dict[str, Any]) -> SparkOptions:
    """Remove the values of `spark_options` from the options of a command."""
    return SparkOptions(given.pop("master"), given.pop("settings"))
