"""Connect to the Kafka brokers of the global options, and go on without them where ZooKeeper has something to show."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import click

from zkgroups.exceptions import InvalidInputError, UnreachableError, ZkgroupsException

from .connect import UNREACHABLE_TIMEOUT
from .errors_to_exit_codes import Tally, sentence
from .options import Options

if TYPE_CHECKING:
    from zkgroups.kafka import Brokers

LAG_UNKNOWN: Final = "log ends and lag are unknown"
"""The beginning of the message without brokers."""


@contextmanager
def brokers(options: Options, *, what_for: str = "this", patient: bool = False) -> Iterator[Brokers]:
    """Connect to the brokers of the options. Without any, the error says that `what_for` needs them.

    Unless `--timeout` is given, brokers that refuse connections are not waited for. A long command is `patient`.
    """
    if options.bootstrap_server is None:
        raise missing_brokers(what_for)
    from zkgroups.kafka import Brokers, read_properties

    properties = read_properties(options.command_config) if options.command_config else {}
    limit = None if patient or "timeout" in options.given else UNREACHABLE_TIMEOUT
    with Brokers.connect(
        options.bootstrap_server, properties=properties, timeout=options.timeout, unreachable_timeout=limit
    ) as found:
        try:
            yield found
        except UnreachableError as error:
            if not getattr(error, "__notes__", None):  # one about ZooKeeper has a note
                error.add_note("use --timeout SECONDS to wait for brokers that are starting")
            raise


def brokers_for_workers(options: Options) -> dict[str, Any]:
    """Return the brokers of the options, if any, as options of a table. They contain no secret."""
    if options.bootstrap_server is None:
        return {}
    file = options.command_config
    config = {} if file is None else {"command_config": str(file.absolute())}
    return {"bootstrap_servers": options.bootstrap_server, **config}


@contextmanager
def reported_as(missing: str, tally: Tally) -> Iterator[None]:
    """Ask the brokers in this block. If they do not answer, report what is `missing`, and count a failed step.

    The command goes on, and shows what ZooKeeper holds. Only a wrong option ends it.
    """
    try:
        yield
    except InvalidInputError:
        raise
    except ZkgroupsException as error:
        tally.missed(error, f"{missing}: {sentence(error)}")


def missing_brokers(what_for: str) -> click.UsageError:
    """Return the error for a command line without brokers."""
    return click.UsageError(
        f"{what_for} needs the Kafka brokers: give -b HOST:PORT, or set ZKGROUPS_BOOTSTRAP_SERVER",
        click.get_current_context(),
    )
