"""`zkgroups zookeeper`: the embedded server in the foreground."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Final

import click

from zkgroups.exceptions import ServerStartError
from zkgroups.testing import ZooKeeperServer

from .shared.command_classes import Command
from .shared.input_files import FilePath
from .shared.messages import say
from .shared.options import Format, Options
from .shared.output import Column, Output, Table

_SERVERS: Final = Table("servers", key="address", columns=(Column("ADDRESS", "address"), Column("DATA", "data_dir")))
_TICK: Final = 2.0  # as in ZooKeeper's own sample configuration, so that sessions last as long as elsewhere
_POLL: Final = 0.5


@click.command(cls=Command)
@click.option("--port", type=click.IntRange(1, 65535), help="Where to listen; a free port if not given.")
@click.option(
    "--data-dir",
    type=FilePath(file_okay=False, path_type=Path),
    help="Where to keep the data; without it the data is thrown away at the end.",
)
@click.pass_obj
def zookeeper(options: Options, port: int | None, data_dir: Path | None) -> None:
    """Run a ZooKeeper server in the foreground, for trying things out, until Ctrl-C.

    It listens on the loopback interface only. Its address is the one line on stdout.

    \b
    Example:
      zkgroups zookeeper --port 2181
    """
    with ZooKeeperServer(tick_time=_TICK, port=port, data_dir=data_dir) as server:
        row = {"address": server.address, "data_dir": str(server.data_dir)}
        Output(options, default=Format.NAME).write(_SERVERS, [row])
        kept = f"its data stays in {data_dir}" if data_dir else "its data goes with it"
        say(options, f"ZooKeeper is running; Ctrl-C ends it, and {kept}.")
        while server.running:
            time.sleep(_POLL)
        raise ServerStartError(f"the server has ended by itself; the end of its log:\n{server.log_tail()}")
