"""`zkgroups serve`: hand out metrics and a live page, in the foreground."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterable
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from zkgroups import Registry
from zkgroups.exceptions import RefusedError
from zkgroups.secret_file import read_secret_file
from zkgroups.serve import check_installed

from ..shared.arguments import expression
from ..shared.connect import address, brokers, find_topics, open_registry
from ..shared.global_options import Command
from ..shared.listening import HostName, file_limit, listening_tls, one_address, run_until_signal, tls_options
from ..shared.messages import show_warnings
from ..shared.options import Options
from ..shared.parameter_types import Duration, FilePath
from ..shared.signals import raise_recorded
from .status import limit_options

if TYPE_CHECKING:
    from zkgroups.kafka import Brokers
    from zkgroups.kafka.wire.errors import Address
    from zkgroups.serve.settings import MetricSettings
    from zkgroups.serve.sweeper import Sweeper
    from zkgroups.serve.web.access import Access
    from zkgroups.serve.web.app import App


# Who may use `zkgroups serve`: read users and the token from files, and refuse to be open to a network by accident.


def access_of(users_file: Path | None, token_file: Path | None, host_names: Iterable[str]) -> Access:
    """Read the files."""
    from zkgroups.serve.web.access import Access

    names = frozenset(name.lower().rstrip(".") for name in host_names)
    return Access(_users(users_file), _token(token_file), names)


def _users(file: Path | None) -> dict[str, str]:
    """Read NAME:PASSWORD lines. Empty lines and lines that begin with # are ignored."""
    if file is None:
        return {}
    users = {}
    for number, line in enumerate(_text("--users-file", file).splitlines(), start=1):
        if not line.strip() or line.startswith("#"):
            continue
        name, colon, password = line.partition(":")
        if not (name and colon and password):
            raise click.BadParameter(f"line {number} is not NAME:PASSWORD", param_hint="--users-file")
        users[name] = password
    if not users:
        raise click.BadParameter("it has no users", param_hint="--users-file")
    return users


def _token(file: Path | None) -> str | None:
    if file is None:
        return None
    token = _text("--token-file", file).strip()
    if not token:
        raise click.BadParameter("the file is empty", param_hint="--token-file")
    return token


def _text(option: str, file: Path) -> str:
    try:
        return read_secret_file(file).decode()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else f"it is not UTF-8 at byte {error.start}"
        raise click.BadParameter(f"{file} cannot be read: {reason}", param_hint=option) from error


def check_exposure(host: str, access: Access, *, has_client_ca: bool, told: bool) -> None:
    """Raise an error if everybody in a network could see all groups."""
    from zkgroups.serve.web.access import is_loopback

    if is_loopback(host) or not access.is_open or has_client_ca or told:
        return
    raise RefusedError(
        f"everybody who can reach {host} would see all groups: give --users-file, --token-file or --listen-client-ca, "
        "or allow that with --no-login"
    )


_FILE: Final[dict[str, Any]] = {"type": FilePath(path_type=Path), "metavar": "FILE"}
_SHORTEST: Final = 1.0
_MOST_CONNECTIONS: Final = 2000
"""The open files that the server asks the system for: 1000 pages, and as many others."""


@click.command(cls=Command)
@click.option(
    "--listen",
    default="127.0.0.1:9308",
    show_default=True,
    metavar="HOST:PORT",
    help="The address to listen on. If other machines can reach it, a login is required.",
)
@click.option("--every", type=Duration(), default="15s", show_default=True, help="The time between two sweeps.")
@click.option("--cluster", metavar="NAME", help="The name of the cluster. By default, the address of ZooKeeper.")
@click.option(
    "--names",
    type=click.Choice(["kafka-exporter", "lag-exporter"]),
    default="kafka-exporter",
    show_default=True,
    help="Name the metrics as this exporter does, with topics that no group reads if it has them (kafka-exporter). "
    "Metrics with the prefix zkgroups_ are always there.",
)
@click.option(
    "--granularity",
    type=click.Choice(["partition", "topic", "group"]),
    default="partition",
    show_default=True,
    help="The finest level of the metrics. Coarser levels are always there.",
)
@click.option(
    "--max-series",
    type=click.IntRange(1),
    default=2_000_000,
    show_default=True,
    help="If there are more series, hand out a coarser level. zkgroups_series_left_out counts the missing ones.",
)
@click.option(
    "--groups",
    "matching",
    metavar="REGEX",
    callback=expression,
    help="Only groups whose whole name matches: '(?!test-).*' leaves out all that begin with test-.",
)
@limit_options
@click.option("--no-live", is_flag=True, help="Do not watch members and owners. They are only read in each sweep.")
@click.option(
    "--history",
    metavar="DIR",
    help="Read the last commits from this folder of snapshots or of an audit. Statuses are then right earlier.",
)
@click.option("--users-file", **_FILE, help="The users for pages, metrics and the API, one NAME:PASSWORD per line.")
@click.option("--token-file", **_FILE, help="The token for metrics and the API.")
@click.option("--no-login", is_flag=True, help="Allow everybody who can reach the address to see everything.")
@click.option(
    "--host-name",
    "host_names",
    multiple=True,
    type=HostName(),
    metavar="NAME",
    help="A name of this server that browsers use. IP addresses and localhost are always accepted. Repeatable.",
)
@tls_options
@click.pass_obj
def serve(options: Options, /, **given: Any) -> None:
    """Serve metrics for Prometheus, a JSON API, and a live page of all groups.

    Every few seconds, a sweep reads all groups, and with -b the log ends of their partitions. Pages, metrics and the
    API only show the last sweep. So ZooKeeper and the brokers do not notice how many people and programs look.

    Nothing is ever written. The server listens only on this machine, unless a login is configured.

    \b
    Pages:
      /                     all groups, the worst first, live
      /metrics              for Prometheus
      /api/v1/openapi.json  describes the API
      /healthz, /readyz     for probes

    \b
    Example:
      zkgroups serve -z zk1:2181/kafka -b kafka1:9092
      zkgroups serve -z zk1:2181/kafka -b kafka1:9092 --listen 0.0.0.0:9308 --users-file users --token-file token
      zkgroups serve -z zk1:2181/kafka -b kafka1:9092 --names lag-exporter --granularity topic
    """
    if given["every"] < _SHORTEST:
        raise click.BadParameter(f"it must be at least {_SHORTEST:g} s", param_hint="--every")
    check_installed()
    from zkgroups.serve.settings import share_one_pool
    from zkgroups.serve.web.app import App

    listen = one_address(given["listen"])
    access = access_of(given["users_file"], given["token_file"], [*given["host_names"], listen.host])
    tls = listening_tls(given["listen_cert"], given["listen_key"], given["listen_client_ca"])
    check_exposure(listen.host, access, has_client_ca=given["listen_client_ca"] is not None, told=given["no_login"])
    file_limit(_MOST_CONNECTIONS)
    share_one_pool()
    show_warnings(options, logging.getLogger("zkgroups.serve"))
    with ExitStack() as stack:
        sweeper = stack.enter_context(_sweeper(options, given, stack))
        app = App(sweeper.publisher, _metric_settings(given), access)
        running = "The server is running. Ctrl-C stops it."
        opened = _opened(app, listen, tls)
        recorded = asyncio.run(run_until_signal(options, opened, str(listen), "servers", running))
    raise_recorded(recorded)


def _sweeper(options: Options, given: dict[str, Any], stack: ExitStack) -> Sweeper:
    from zkgroups.serve.settings import SweepSettings
    from zkgroups.serve.sweeper import Sweeper, prime

    settings = SweepSettings(
        cluster=given["cluster"] or address(options),
        every=given["every"],
        allowed_lag=given["allowed_lag"],
        abandoned_after=given["abandoned_after"],
        stale_after=given["stale_after"],
        matching=given["matching"],
        all_topics=given["names"] == "kafka-exporter",
        live=not given["no_live"],
    )
    asked = None
    if options.bootstrap_server is not None:
        asked = stack.enter_context(brokers(options, what_for="lag"))
    sweeper = Sweeper(lambda: _connect(options, asked), asked, settings)
    if given["history"] is not None:
        prime(sweeper.state, given["history"])
    return sweeper


def _connect(options: Options, asked: Brokers | None) -> Registry:
    """Connect, unless the chroot is probably wrong."""
    registry = open_registry(options)
    try:
        registry.require_root()
        if asked is not None:
            find_topics(registry, asked)
    except BaseException:
        registry.close()
        raise
    return registry


def _metric_settings(given: dict[str, Any]) -> MetricSettings:
    from zkgroups.serve.settings import Granularity, MetricNames, MetricSettings

    return MetricSettings(
        names=MetricNames(given["names"]),
        granularity=Granularity(given["granularity"]),
        most_series=given["max_series"],
    )


@asynccontextmanager
async def _opened(app: App, listen: Address, tls: Any) -> AsyncIterator[str]:
    from zkgroups.serve.web.app import listening_socket, served

    listening = listening_socket(listen.host, listen.port)
    async with served(app, listening, tls):
        host, port = listening.getsockname()[:2]
        yield f"{'http' if tls is None else 'https'}://{f'[{host}]' if ':' in host else host}:{port}"
