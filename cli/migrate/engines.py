"""`--engine`: move groups in this process, or with Spark."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeVar

from zkgroups.exceptions import ZkgroupsException

from ..shared.engine_options import EngineKind as EngineKind
from ..shared.engine_options import EngineOptions as CommonEngineOptions
from ..shared.engine_options import arrow_installed
from ..shared.engine_options import engine_option as engine_option_of
from ..shared.options import Options
from ..shared.progress import ShowText, is_hidden, progress
from ..shared.spark_options import spark_installed

if TYPE_CHECKING:
    from zkgroups.migration.engines.engine import Engine

Decorated = TypeVar("Decorated", bound=Callable[..., Any])

LOCAL_GROUPS: Final = 4_000
LOCAL_OFFSETS: Final = 200_000
"""Up to this size, `auto` does not start Spark. Starting Spark and its workers takes as much processor time as this
process needs to apply 300,000 to 400,000 offsets, but Spark uses several cores for that."""

_STEPS: Final = 2
"""The calls of `on_progress` of each step."""


def engine_option(command: Decorated) -> Decorated:
    """`--engine`, as `engine`: see `EngineOptions`."""
    return engine_option_of(
        EngineKind.AUTO,
        "Where to do the work. local is this process, which starts faster. auto chooses Spark for a large plan, "
        "a folder on another file system, and with --master or --conf.",
    )(command)


@dataclass(frozen=True, slots=True)
class EngineOptions(CommonEngineOptions):
    """The engine that moves groups, and how Spark runs."""

    @contextmanager
    def open(self, options: Options, *, local: bool) -> Iterator[Engine]:
        """Start the engine, and stop it afterwards."""
        if local:
            with arrow_installed("migrate"):
                from zkgroups.migration.engines.local_engine import LocalEngine
                from zkgroups.rare_collections import rare_collections
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
    with arrow_installed("migrate"):
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
def steps_shown(options: Options, engine: Engine, destination: str | None = None) -> Iterator[ShowText]:
    """Show a progress bar of a step; with the speed, if it processes the plan in this folder."""
    from zkgroups.migration.plan_folder import PLAN

    offsets = None
    if destination is not None and not is_hidden(options):
        with suppress(ZkgroupsException):
            offsets = engine.count(engine.folder(destination).path(PLAN))
    with progress(options, _STEPS, engine.share_done, offsets) as on_progress:
        yield on_progress
