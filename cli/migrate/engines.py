"""`--engine`: move groups in this process, or with Spark."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from enum import StrEnum
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar

import click

from zkgroups.exceptions import MissingDependencyError, ZkgroupsException

from ..shared.options import Options
from ..shared.progress import ShowText, is_hidden, progress
from ..shared.spark_options import SparkOptions, spark_installed

if TYPE_CHECKING:
    from zkgroups.migration.engines.engine import Engine

Decorated = TypeVar("Decorated", bound=Callable[..., Any])

LOCAL_GROUPS: Final = 4_000
LOCAL_OFFSETS: Final = 200_000
"""Up to this size, `auto` does not start Spark. Starting Spark and its workers takes as much processor time as this
process needs to apply 300,000 to 400,000 offsets, but Spark uses several cores for that."""

_STEPS: Final = 2
"""The calls of `on_progress` of each step."""


class EngineKind(StrEnum):
    """The values of `--engine`."""

    AUTO = "auto"
    LOCAL = "local"
    SPARK = "spark"


def engine_option(command: Decorated) -> Decorated:
    """`--engine`, as `engine`: see `EngineOptions`."""
    return click.option(
        "--engine",
        type=click.Choice([each.value for each in EngineKind]),
        default=EngineKind.AUTO.value,
        show_default=True,
        help="Where to do the work. local is this process, which starts faster. auto chooses Spark for a large plan, "
        "a folder on another file system, and with --master or --conf.",
    )(command)


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """The engine, and how Spark runs."""

    kind: EngineKind
    spark: SparkOptions

    @classmethod
    def of(cls, given: dict[str, Any]) -> Self:
        """Remove the values of `engine_option` and `spark_options` from the options of a command."""
        found = cls(EngineKind(given.pop("engine")), SparkOptions(given.pop("master"), given.pop("settings")))
        if found.kind is EngineKind.LOCAL and found.spark.are_given:
            raise click.UsageError("--master and --conf need --engine spark", click.get_current_context())
        return found

    def is_local(self, *folders: str, is_small: Callable[[], bool]) -> bool:
        """Return whether to work in this process. `is_small` is called if the other options leave that open."""
        if self.kind is not EngineKind.AUTO:
            return self.kind is EngineKind.LOCAL
        from zkgroups.storage.files import local_path, may_have_hadoop_settings

        on_disk = all(map(local_path, folders))
        has_no_scheme = any(not folder.lower().startswith("file:") for folder in folders)
        if self.spark.are_given or not on_disk or (has_no_scheme and may_have_hadoop_settings()):
            return False
        return is_small() or find_spec("pyspark") is None

    @contextmanager
    def open(self, options: Options, *, local: bool) -> Iterator[Engine]:
        """Start the engine, and stop it afterwards."""
        if local:
            with arrow_installed():
                from zkgroups.migration.engines.garbage import rare_collections
                from zkgroups.migration.engines.local_engine import LocalEngine
            with rare_collections():
                yield LocalEngine()
            return
        with spark_installed():
            from zkgroups.spark.migration.engine import SparkEngine
        with self.spark.session(options) as session:
            yield SparkEngine(session)


def has_few_offsets(destination: str) -> bool:
    """Return whether the plan in a folder is small."""
    from zkgroups.migration.plan_folder import PLAN

    return are_few(lambda engine: engine.count(engine.folder(destination).path(PLAN)))


def are_few(count: Callable[[Engine], int]) -> bool:
    """Return whether there are few offsets. Missing or damaged files count as few: reading them fails anyway."""
    with arrow_installed():
        from zkgroups.migration.engines.local_engine import LocalEngine
    offsets = 0
    with suppress(ZkgroupsException):
        offsets = count(LocalEngine())
    return offsets <= LOCAL_OFFSETS


@contextmanager
def stored_plan(options: Options, destination: str, given: dict[str, Any]) -> Iterator[Engine]:
    """Start the engine for a command that only reads a plan."""
    chosen = EngineOptions.of(given)
    local = chosen.is_local(destination, is_small=lambda: has_few_offsets(destination))
    with chosen.open(options, local=local) as engine:
        yield engine


@contextmanager
def arrow_installed() -> Iterator[None]:
    """If Arrow is not installed, raise an error with the command that installs it."""
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != "pyarrow":
            raise
        raise MissingDependencyError("this command needs Arrow: pip install 'zkgroups[migrate]'") from error


@contextmanager
def steps_shown(options: Options, engine: Engine, destination: str | None = None) -> Iterator[ShowText]:
    """Show a progress bar of a step; with the speed, if it processes the plan in this folder."""
    from zkgroups.migration.plan_folder import PLAN

    offsets = None
    if destination is not None and not is_hidden(options):
        with suppress(ZkgroupsException):
            offsets = engine.count(engine.folder(destination).path(PLAN))
    with progress(options, _STEPS, engine.share_done, offsets) as on_progress:
        yield on_progress
