"""From the global options to Kafka's brokers, for what only they know: log starts and ends, committed offsets."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from zkgroups.exceptions import MissingDependencyError

from .options import Options

if TYPE_CHECKING:
    from zkgroups.kafka import Brokers


@contextmanager
def brokers(options: Options, *, what_for: str = "this") -> Iterator[Brokers]:
    """The brokers that the options name; an error says that `what_for` needs some where none are named."""
    if options.bootstrap_server is None:
        raise click.UsageError(
            f"{what_for} needs Kafka's brokers: -b HOST:PORT, or the environment variable ZKGROUPS_BOOTSTRAP_SERVER",
            click.get_current_context(),
        )
    try:
        from zkgroups.kafka import Brokers, read_properties
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != "confluent_kafka":
            raise
        raise MissingDependencyError("this needs a Kafka client: pip install 'zkgroups[kafka]'") from error
    properties = read_properties(options.command_config) if options.command_config else {}
    with Brokers.connect(options.bootstrap_server, properties=properties, timeout=options.timeout) as found:
        yield found
