"""`zkgroups zookeeper`: a ZooKeeper server in the foreground."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Final

import click

from zkgroups.exceptions import ServerStartError
from zkgroups.testing import ZooKeeperServer

from .shared.global_options import Command
from .shared.messages import say
from .shared.options import Format, Options
from .shared.output import Column, Output, Table
from .shared.parameter_types import FilePath

_SERVERS: Final = Table("servers", key="address", columns=(Column("ADDRESS", "address"), Column("DATA", "data_dir")))
_TICK: Final = 2.0  # the value of ZooKeeper's sample configuration, for the usual session timeouts
_POLL: Final = 0.5


@click.command(cls=Command)
@click.option("--port", type=click.IntRange(1, 65535), help="The port to listen on; by default a free one.")
@click.option(
    "--data-dir",
    type=FilePath(file_okay=False, path_type=Path),
    metavar="DIR",
    help="A folder that keeps the data; by default it is deleted at the end.",
)
@click.pass_obj
def zookeeper(options: Options, port: int | None, data_dir: Path | None) -> None:
    """Run a ZooKeeper server in the foreground until Ctrl-C, for experiments.

    The server listens only on the loopback interface. The command prints its address on stdout.

    \b
    Example:
      zkgroups zookeeper --port 2181
    """
    with ZooKeeperServer(tick_time=_TICK, port=port, data_dir=data_dir) as server:
        row = {"address": server.address, "data_dir": str(server.data_dir)}
        Output(options, default=Format.NAME).write(_SERVERS, [row])
        kept = f"keeps its data in {data_dir}" if data_dir else "deletes its data"
        say(options, f"ZooKeeper is running. Ctrl-C stops it and {kept}.")
        while server.running:
            time.sleep(_POLL)
        raise ServerStartError(f"the server stopped unexpectedly; its last log lines:\n{server.log_tail()}")
