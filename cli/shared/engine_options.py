"""`--engine`: do the work in this process, or with Spark."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from enum import StrEnum
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final, Self

import click

from zkgroups.core.layouts.layout import Stored
from zkgroups.core.layouts.legacy import LEGACY
from zkgroups.core.selection import check_expression
from zkgroups.exceptions import MissingDependencyError

from .arguments import complete_layouts
from .messages import ShowText, progress, say, status_line
from .options import Options
from .parameter_types import Decorator, SnapshotChoice, combined, usage_error

if TYPE_CHECKING:
    from zkgroups.core.layouts.layout import Layout


# `--layout`, `--stored` and `--value`: where the offsets are, and how they are stored. Commands get one `layout`.


_STORED: Final = "zkgroups.layout.stored"
_VALUE: Final = "zkgroups.layout.value"


def _part_option(name: str, key: str, **attributes: Any) -> Decorator[Any]:
    """Return an option whose value the callback of `--layout` uses, which runs later."""

    def keep(ctx: click.Context, _param: click.Parameter, text: str | None) -> None:
        ctx.meta[key] = text

    return click.option(name, is_eager=True, expose_value=False, callback=keep, **attributes)


def _layout(ctx: click.Context, _param: click.Parameter, text: str | None) -> Layout:
    stored, value = ctx.meta.get(_STORED), ctx.meta.get(_VALUE)
    if text is None:
        if stored is not None or value is not None:
            raise click.UsageError("--stored and --value need --layout", ctx)
        return LEGACY
    from zkgroups.core.layouts.template import parse_layout

    words = [text] if stored is None else [text, f"--stored {stored}"]
    return parse_layout(" ".join(words if value is None else [*words, f"--value {value}"]))


layout_options: Final = combined(
    click.option(
        "--layout",
        metavar="LAYOUT",
        callback=_layout,
        shell_complete=complete_layouts,
        help="Read offsets that another system keeps: kafka-1.1.0, storm:/PATH, trident:/PATH, spark:/PATH, or a path "
        "such as '/x/{group}/{topic}/{partition}'. `zkgroups layouts detect` finds them.",
    ),
    _part_option(
        "--stored",
        _STORED,
        type=click.Choice([each.value for each in Stored]),
        help="With a path: the number is the next message to read (next, the default) or the last processed one "
        "(last). With spark: from or until.",
    ),
    _part_option(
        "--value",
        _VALUE,
        metavar="FORMAT",
        help="With a path: where the number is in the node: decimal (the default), json:FIELD or regex:EXPRESSION.",
    ),
)
"""Three options, which pass a `Layout` as `layout`; `LEGACY` by default."""

# Options of commands that run Spark, and a Spark session with a progress bar.


_SHARED: Final = "spark.zkgroups.sharedFileSystem"
"""The setting of `zkgroups.spark.files`, which `--help` does not import."""


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
        with installed("spark"):
            from zkgroups.spark.files import check_shared_before_start
            from zkgroups.spark.session import LOCAL

        check_shared_before_start(self.master or LOCAL, self.settings, destination)

    @contextmanager
    def session(self, options: Options, what_for: str | None = None) -> Iterator[Any]:
        """Run Spark for this command, and stop it afterwards."""
        with installed("spark"):
            from zkgroups.spark.session import LOCAL, own_session
        if what_for is not None:
            say(options, f"Starting Spark to {what_for}.")
        with ExitStack() as stack:
            with status_line(options) as show:
                show("starting Spark")
                started = own_session(self.settings, master=self.master or LOCAL, verbose=options.verbose > 0)
                session = stack.enter_context(started)
            yield session


def _shared(ctx: click.Context, _param: click.Parameter, given: bool) -> None:
    """Store the flag for the callback of --conf, which runs later and adds it to the settings."""
    if given:
        ctx.meta[_SHARED] = "true"


def _regex(_ctx: click.Context, param: click.Parameter, text: str | None) -> str | None:
    if text is not None:
        check_expression(str(param.name), text)
    return text


def _settings(ctx: click.Context, _param: click.Parameter, given: tuple[str, ...]) -> dict[str, str]:
    for setting in given:
        if "=" not in setting:
            raise click.BadParameter(f"{setting!r} is not like KEY=VALUE")
    shared = {_SHARED: ctx.meta[_SHARED]} if _SHARED in ctx.meta else {}
    return dict(setting.split("=", 1) for setting in given) | shared


spark_options: Final = combined(
    click.option("--master", metavar="URL", help="The Spark master. By default Spark runs on this machine."),
    click.option(
        "--conf",
        "settings",
        metavar="KEY=VALUE",
        multiple=True,
        callback=_settings,
        help="A Spark setting; may be repeated.",
    ),
)
"""`--master` and `--conf`, as `master` and `settings`: see `SparkOptions`."""

writing_options: Final = combined(
    click.option(
        "--shared-file-system",
        is_flag=True,
        is_eager=True,
        expose_value=False,
        callback=_shared,
        help="With --master: declare that all machines of Spark have mounted the folder.",
    ),
    spark_options,
)
"""`spark_options`, and `--shared-file-system` for commands whose workers write files."""

selection_options: Final = combined(
    *(
        click.option(f"--{what}", metavar="REGEX", callback=_regex, help=f"Only {what} whose whole name matches.")
        for what in ("groups", "topics")
    )
)
"""`--groups` and `--topics`, as `groups` and `topics`. Bad expressions are reported before anything is read."""


def at_option(default: str = "latest by default") -> Decorator[Any]:
    """`--at`, as `at`: it chooses one of the snapshots in a folder, with the same words in every command."""
    return click.option(
        "--at",
        type=SnapshotChoice(),
        help=f"latest, previous, a name, or a time (the last snapshot started by then); {default}.",
    )


cluster_option: Final = click.option(
    "--cluster",
    metavar="NAME",
    help="The cluster to use if DEST has data of several; by default the cluster of -z.",
)
"""`--cluster`, as `cluster`: it chooses the cluster if a folder holds snapshots of several."""


@contextmanager
def installed(extra: str) -> Iterator[None]:
    """If Arrow or Spark is not installed, raise an error with the command that installs it as part of an extra."""
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] not in {"pyspark", "pyarrow", "py4j"}:
            raise
        needed = "this needs Spark" if extra == "spark" else "this command needs Arrow"
        raise MissingDependencyError(f"{needed}; from the checkout: pip install '.[{extra}]'") from error


@contextmanager
def steps_shown(options: Options, session: Any, steps: int, offsets: int | None = None) -> Iterator[ShowText]:
    """Show a progress bar of several Spark steps. `offsets` is the number of offsets in the first step, if known."""
    from zkgroups.spark.session import share_done

    with progress(options, steps, lambda: share_done(session), offsets) as show:
        yield show


class EngineKind(StrEnum):
    """The values of `--engine`."""

    AUTO = "auto"
    LOCAL = "local"
    SPARK = "spark"


AUTO_ENGINE: Final = (
    "Where to do the work. auto is this process if DEST is on this machine; it is Spark for another file system, and "
    "with --master or --conf. -v says which and why."
)


def engine_option(help: str = AUTO_ENGINE) -> Decorator[Any]:
    """`--engine`, as `engine`: see `EngineOptions`."""
    kinds = click.Choice([each.value for each in EngineKind])
    return click.option("--engine", type=kinds, default=EngineKind.AUTO.value, show_default=True, help=help)


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """The engine, and how Spark runs."""

    kind: EngineKind
    spark: SparkOptions

    @classmethod
    def of(cls, given: dict[str, Any]) -> Self:
        """Remove the values of `spark_options`, and of `engine_option` if there are any, from those of a command."""
        kind = EngineKind(given.pop("engine", EngineKind.AUTO))
        found = cls(kind, SparkOptions(given.pop("master"), given.pop("settings")))
        if found.kind is EngineKind.LOCAL and found.spark.are_given:
            raise usage_error("--master and --conf need --engine spark")
        return found

    @contextmanager
    def started(self, options: Options, what_for: str, *, local: bool, extra: str = "snapshots") -> Iterator[Any]:
        """Yield a Spark session, or None for work in this process. The error for a missing package names its extra."""
        if local:
            with installed(extra):
                yield None
            return
        with self.spark.session(options, what_for) as session:
            yield session

    def is_local(
        self, *folders: str, is_small: Callable[[], bool] = lambda: True, needs_spark: str | None = None
    ) -> bool:
        """Return whether to work in this process. With -v, say so and why.

        - `is_small`: called if everything else leaves the choice open.
        - `needs_spark`: a given option that only Spark has.
        """
        local, reason = self._choice(folders, is_small, needs_spark)
        context = click.get_current_context(silent=True)
        options = None if context is None else context.find_object(Options)
        if options is not None and options.verbose:
            say(options, f"Engine: {'local' if local else 'spark'}, because {reason}.")
        return local

    def _choice(
        self, folders: Sequence[str], is_small: Callable[[], bool], needs_spark: str | None
    ) -> tuple[bool, str]:
        from zkgroups.storage.files import local_path, other_file_system

        elsewhere = next((folder for folder in folders if local_path(folder) is None), None)
        if self.kind is EngineKind.LOCAL:
            self._check_local(elsewhere, needs_spark)
        if self.kind is not EngineKind.AUTO:
            return self.kind is EngineKind.LOCAL, f"--engine {self.kind} was given"
        if self.spark.are_given or needs_spark is not None:
            return False, f"{needs_spark or '--master or --conf'} was given"
        if elsewhere is not None:
            return False, f"{elsewhere} is not on this machine"
        without_scheme = [folder for folder in folders if not folder.lower().startswith("file:")]
        if without_scheme and (setting := other_file_system()):
            return False, f"{setting} may set another file system than this machine's for {without_scheme[0]}"
        if is_small():
            return True, "it is enough for this work on this machine"
        if find_spec("pyspark") is None:
            return True, "Spark is not installed"
        return False, "there are too many offsets or groups for one process"

    def _check_local(self, elsewhere: str | None, needs_spark: str | None) -> None:
        if elsewhere is not None:
            needed = f"--engine local needs a folder on this machine: use --engine spark for {elsewhere}"
            raise usage_error(needed)
        if needs_spark is not None:
            raise usage_error(f"{needs_spark} needs --engine spark")
