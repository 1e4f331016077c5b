"""What all commands of a migration need: the two sides, reached before Spark is started, and Spark with its bar."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from ..shared.brokers import kafka_installed, missing_brokers
from ..shared.connect import for_workers
from ..shared.input_files import FolderUri
from ..shared.options import Options
from ..shared.spark_options import SparkOptions, spark_installed

if TYPE_CHECKING:
    from zkgroups.kafka import BrokerOptions
    from zkgroups.spark import SourceOptions

plan_argument = click.argument("destination", metavar="PLAN", type=FolderUri())
"""The folder of a plan, as `destination`."""

without_zookeeper_option = click.option(
    "--without-zookeeper",
    is_flag=True,
    help="The old ZooKeeper is gone: nobody looks there who is registered, and what has moved since. Targets are not "
    "locked against other plans.",
)
"""As `without_zookeeper`: for plans that were made from a snapshot."""


@contextmanager
def installed() -> Iterator[None]:
    """Say what to type where a package is missing."""
    with spark_installed(), kafka_installed():
        yield


def broker_options(options: Options, *, what_for: str) -> BrokerOptions:
    """The brokers that the options name, as a value that may travel; they are reached, or an error says why not."""
    if options.bootstrap_server is None:
        raise missing_brokers(what_for)
    with kafka_installed():
        from zkgroups.kafka import BrokerOptions
    file = None if options.command_config is None else str(options.command_config.absolute())
    found = BrokerOptions(options.bootstrap_server, file, options.timeout)
    with found.connect() as brokers:
        brokers.cluster_id()
    return found


def source_options(options: Options, **chosen: Any) -> SourceOptions:
    """The ZooKeeper that the options name, as a value that may travel; it is reached, or an error says why not."""
    with spark_installed():
        from zkgroups.spark import SourceOptions
    found = SourceOptions(**for_workers(options), **chosen)
    with found.connect() as registry:
        registry.require_root()
    return found


def own_spark(given: dict[str, Any]) -> SparkOptions:
    """Takes what `spark_options` has brought out of the options of a command."""
    return SparkOptions(given.pop("master"), given.pop("settings"))
