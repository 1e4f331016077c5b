"""`--engine`: do the work in this process, or with Spark."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from importlib.util import find_spec
from typing import Any, Final, Self, TypeVar

import click

from zkgroups.exceptions import MissingDependencyError

from .spark_options import SparkOptions

Decorated = TypeVar("Decorated", bound=Callable[..., Any])


class EngineKind(StrEnum):
    """The values of `--engine`."""

    AUTO = "auto"
    LOCAL = "local"
    SPARK = "spark"


LOCAL_OR_SPARK: Final = "Where to do the work. local is this process: it starts no Spark, and DEST is on this machine."


def engine_option(default: EngineKind, help: str) -> Callable[[Decorated], Decorated]:
    """`--engine`, as `engine`: see `EngineOptions`. Only commands whose default it is have the value `auto`."""
    return click.option(
        "--engine",
        type=click.Choice([each.value for each in EngineKind if each is not EngineKind.AUTO or default is each]),
        default=default.value,
        show_default=True,
        help=help,
    )


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

    def is_on_this_machine(self, destination: str) -> bool:
        """Return whether to use a folder of this machine without Spark. Refuse other file systems for `local`."""
        from zkgroups.storage.files import local_path

        if self.kind is EngineKind.LOCAL and local_path(destination) is None:
            raise click.UsageError(
                f"--engine local needs a folder on this machine: use --engine spark for {destination}",
                click.get_current_context(),
            )
        return self.is_local(destination, is_small=lambda: True)


@contextmanager
def arrow_installed(extra: str) -> Iterator[None]:
    """If Arrow is not installed, raise an error with the command that installs it as part of an extra."""
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != "pyarrow":
            raise
        raise MissingDependencyError(f"this command needs Arrow: pip install 'zkgroups[{extra}]'") from error
