"""Options of commands that run Spark, and a Spark session with a progress bar."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import click

from zkgroups.core.selection import check_expression
from zkgroups.exceptions import MissingDependencyError

from .options import Options
from .progress import ShowText, progress, status_line

Decorated = TypeVar("Decorated", bound=Callable[..., Any])

_SHARED: Final = "spark.zkgroups.sharedFileSystem"
"""The setting of `zkgroups.spark.storage.writing`, which `--help` does not import."""


@dataclass(frozen=True, slots=True)
class SparkOptions:
    """The Spark master and settings."""

    master: str | None
    settings: dict[str, str]

    @property
    def are_given(self) -> bool:
        """Whether the user chose how Spark runs."""
        return self.master is not None or bool(self.settings)

    def check_writes_to(self, destination: str) -> None:
        """Refuse a folder that Spark's workers may not share with this machine, before Spark starts."""
        with spark_installed():
            from zkgroups.spark.session import LOCAL
            from zkgroups.spark.storage.writing import check_shared_before_start

        check_shared_before_start(self.master or LOCAL, self.settings, destination)

    @contextmanager
    def session(self, options: Options) -> Iterator[Any]:
        """Run Spark for this command, and stop it afterwards."""
        from zkgroups.spark.session import LOCAL, own_session

        with ExitStack() as stack:
            with status_line(options) as show:
                show("starting Spark")
                started = own_session(self.settings, master=self.master or LOCAL, verbose=options.verbose > 0)
                session = stack.enter_context(started)
            yield session


def spark_options(command: Decorated) -> Decorated:
    """`--master` and `--conf`, as `master` and `settings`: see `SparkOptions`."""
    conf = click.option(
        "--conf",
        "settings",
        metavar="KEY=VALUE",
        multiple=True,
        callback=_settings,
        help="A Spark setting; may be repeated.",
    )
    master = click.option("--master", metavar="URL", help="The Spark master. By default Spark runs on this machine.")
    return master(conf(command))


def writing_options(command: Decorated) -> Decorated:
    """`spark_options`, and `--shared-file-system` for commands whose workers write files."""
    shared = click.option(
        "--shared-file-system",
        is_flag=True,
        is_eager=True,
        expose_value=False,
        callback=_shared,
        help="With --master: declare that all machines of Spark have mounted the folder.",
    )
    return shared(spark_options(command))


def _shared(ctx: click.Context, _param: click.Parameter, given: bool) -> None:
    """Store the flag for the callback of --conf, which runs later and adds it to the settings."""
    if given:
        ctx.meta[_SHARED] = "true"


def selection_options(command: Decorated) -> Decorated:
    """`--groups` and `--topics`, as `groups` and `topics`. Bad expressions are reported before anything is read."""
    groups, topics = (
        click.option(f"--{what}", metavar="REGEX", callback=_regex, help=f"Only {what} whose whole name matches.")
        for what in ("groups", "topics")
    )
    return groups(topics(command))


def _regex(_ctx: click.Context, param: click.Parameter, text: str | None) -> str | None:
    if text is not None:
        check_expression(str(param.name), text)
    return text


def at_option(default: str = "latest by default") -> Callable[[Decorated], Decorated]:
    """`--at`, as `at`: it chooses one of the snapshots in a folder, with the same words in every command."""
    return click.option(
        "--at",
        metavar="SNAPSHOT",
        callback=checked_at,
        help=f"latest, previous, a name, or a time (the last snapshot started by then); {default}.",
    )


def cluster_option(command: Decorated) -> Decorated:
    """`--cluster`, as `cluster`: it chooses the cluster if a folder holds snapshots of several."""
    return click.option(
        "--cluster",
        metavar="NAME",
        help="The cluster to use if DEST has data of several; by default the cluster of -z.",
    )(command)


def checked_at(_ctx: click.Context, _param: click.Parameter, text: str | None) -> str | None:
    """The callback of a parameter that chooses a snapshot. It reports a bad value before Spark is started."""
    if text is not None:
        from zkgroups.storage.choose_snapshot import is_snapshot_choice

        if not is_snapshot_choice(text):
            raise click.BadParameter(
                f"{text!r} is neither latest, previous, the name of a snapshot, nor a time such as 2026-01-31T12:00"
            )
    return text


def _settings(ctx: click.Context, _param: click.Parameter, given: tuple[str, ...]) -> dict[str, str]:
    for setting in given:
        if "=" not in setting:
            raise click.BadParameter(f"{setting!r} is not like KEY=VALUE")
    shared = {_SHARED: ctx.meta[_SHARED]} if _SHARED in ctx.meta else {}
    return dict(setting.split("=", 1) for setting in given) | shared


@contextmanager
def spark_installed() -> Iterator[None]:
    """If Spark is not installed, raise an error with the command that installs it."""
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] not in {"pyspark", "pyarrow", "py4j"}:
            raise
        raise MissingDependencyError("this needs Spark: pip install 'zkgroups[spark]'") from error


@contextmanager
def steps_shown(options: Options, session: Any, steps: int, offsets: int | None = None) -> Iterator[ShowText]:
    """Show a progress bar of several Spark steps. `offsets` is the number of offsets in the first step, if known."""
    from zkgroups.spark.session import share_done

    with progress(options, steps, lambda: share_done(session), offsets) as show:
        yield show
