"""The options of the migrate commands, and connecting to both sides before Spark is started."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import click
from click.core import ParameterSource

from zkgroups.core.migration.offset_decision import Policy, Renaming, Rule
from zkgroups.core.znodes.topic_partition import check_group
from zkgroups.exceptions import ZkgroupsException

from ..shared.connect import for_workers, missing_brokers
from ..shared.engine_options import EngineOptions as CommonEngineOptions
from ..shared.engine_options import engine_option as engine_option_of
from ..shared.engine_options import installed
from ..shared.messages import ShowText, is_hidden, progress
from ..shared.options import Options
from ..shared.parameter_types import Decorator, Duration, FolderUri, combined, usage_error

if TYPE_CHECKING:
    from zkgroups.kafka import BrokerOptions
    from zkgroups.migration.tasks import Engine
    from zkgroups.zookeeper.zookeeper_source import ZooKeeperSource


# Options shared by the migrate commands, and connecting to both sides before Spark is started.


class PlanUri(FolderUri):
    """The folder of a plan. It has a slash, which no name of a group has: the two cannot be confused."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Convert as for any folder, and refuse what may be a group."""
        found = super().convert(value, param, ctx)
        if "/" not in found and found not in (".", ".."):
            self.fail(f"{found!r} may be the name of a group: for a folder, write ./{found}", param, ctx)
        return found


plan_argument = click.argument("destination", metavar="PLAN", type=PlanUri())
"""Passes the folder of a plan as `destination`."""

without_zookeeper_option = click.option(
    "--without-zookeeper",
    is_flag=True,
    help="Skip all ZooKeeper checks, and do not lock targets against other plans. Use only after ZooKeeper has been "
    "shut down.",
)
"""Passes `without_zookeeper`, for plans made from a snapshot."""


writers_stopped_option = click.option(
    "--writers-stopped",
    is_flag=True,
    help="For a plan with another --layout: declare that nothing writes these offsets in ZooKeeper any more. zkgroups "
    "cannot see it.",
)
"""Passes `writers_stopped`."""


def broker_options(options: Options, *, what_for: str, other: str | None = None) -> BrokerOptions:
    """Return options that can be sent to Spark workers."""
    if options.bootstrap_server is None:
        raise missing_brokers(what_for, other=other)
    from zkgroups.kafka import BrokerOptions
    from zkgroups.kafka.wire.codec import check_installed

    check_installed()
    file = None if options.command_config is None else str(options.command_config.absolute())
    return BrokerOptions(options.bootstrap_server, file, options.timeout)


def source_options(options: Options, **chosen: Any) -> ZooKeeperSource:
    """Return options that can be sent to Spark workers."""
    from zkgroups.zookeeper.zookeeper_source import ZooKeeperSource

    return ZooKeeperSource(**for_workers(options), **chosen)


def check_brokers(brokers: BrokerOptions) -> None:
    """Connect once, so that errors are reported before Spark starts."""
    with brokers.connect() as connected:
        connected.cluster_id()


def check_zookeeper(zookeeper: ZooKeeperSource) -> list[str]:
    """Connect once, and return the selected groups."""
    with zookeeper.connect() as registry:
        registry.require_root(zookeeper.layout)
        return zookeeper.selected_groups(registry)


# `--engine`: move groups in this process, or with Spark.


LOCAL_GROUPS: Final = 4_000
LOCAL_OFFSETS: Final = 200_000
"""Up to this size, `auto` does not start Spark. Starting Spark and its workers takes as much processor time as this
process needs to apply 300,000 to 400,000 offsets, but Spark uses several cores for that."""

_STEPS: Final = 2
"""The calls of `on_progress` of each step."""


engine_option: Final = engine_option_of(
    "Where to do the work. local is this process, which starts faster. auto chooses Spark for a large plan, "
    "a folder on another file system, and with --master or --conf. -v says which and why.",
)


@dataclass(frozen=True, slots=True)
class EngineOptions(CommonEngineOptions):
    """The engine that moves groups, and how Spark runs."""

    @contextmanager
    def open(self, options: Options, *, local: bool) -> Iterator[Engine]:
        """Start the engine, and stop it afterwards."""
        if local:
            with installed("migrate"):
                from zkgroups.migration.local_engine import LocalEngine
                from zkgroups.rare_collections import rare_collections
            with rare_collections():
                yield LocalEngine()
            return
        with installed("spark"):
            from zkgroups.spark.migration.engine import SparkEngine
        with self.spark.session(options) as session:
            yield SparkEngine(session)


def has_few_offsets(destination: str) -> bool:
    """Return whether the plan in a folder is small."""
    from zkgroups.migration.plan_folder import PLAN

    return are_few(lambda engine: engine.count(engine.folder(destination).path(PLAN)))


def are_few(count: Callable[[Engine], int]) -> bool:
    """Return whether there are few offsets. Missing or damaged files count as few: reading them fails anyway."""
    with installed("migrate"):
        from zkgroups.migration.local_engine import LocalEngine
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


# The options of a plan: which offsets to write, and the new names of groups.


class _PolicyChoice(click.Choice[str]):
    """Also accepts `refuse`, the word of earlier versions for `block`."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        return super().convert("block" if value == "refuse" else value, param, ctx)


_DEFAULT_IS_THE_PLANS: Final = " The default is the choice of the plan."


def policy_options(*, of_plan: bool = False) -> Decorator[Any]:
    """Add the options `on_out_of_range` and `on_unreadable`. With `of_plan`, a plan has made the choice already."""
    options: dict[str, Any] = {"type": _PolicyChoice([each.value for each in Policy])}
    options |= {} if of_plan else {"default": Policy.BLOCK.value, "show_default": True}
    more = _DEFAULT_IS_THE_PLANS if of_plan else ""
    return combined(
        click.option(
            "--on-out-of-range",
            **options,
            help="How to treat an offset outside the log, or of an earlier topic with that name: as in --on-unreadable."
            f"{more}",
        ),
        click.option(
            "--on-unreadable",
            **options,
            help="How to treat a node that holds no offset: block its group, write the log start (earliest) or the log "
            f"end (latest), or skip it, and let auto.offset.reset decide.{more}",
        ),
    )


rule_options: Final = combined(
    policy_options(),
    click.option("--backward", is_flag=True, help="Write offsets even if the target has a higher one."),
)
"""The options that `rule_of` reads."""


def rule_is_given() -> bool:
    """Return whether any option of `rule_options` was given."""
    context = click.get_current_context()
    sources = {context.get_parameter_source(name) for name in ("on_out_of_range", "on_unreadable", "backward")}
    return sources != {ParameterSource.DEFAULT}


def rule_of(given: dict[str, Any], *, skip_stale: bool = False, planned: str | None = None) -> Rule:
    """Remove the values of `rule_options` or `policy_options` from the options of a command.

    `planned` is the rule of the plan that was followed, for choices that were not given.
    """
    rule = replace(Rule.parse(planned), backward=given.pop("backward", False), skip_stale=skip_stale)
    outside, unreadable = given.pop("on_out_of_range"), given.pop("on_unreadable")
    return replace(
        rule,
        on_out_of_range=rule.on_out_of_range if outside is None else Policy(outside),
        on_unreadable=rule.on_unreadable if unreadable is None else Policy(unreadable),
    )


stale_options: Final = combined(
    click.option(
        "--stale-after",
        type=Duration(needs_unit=True),
        help="Offsets not written for this long, such as 90d, are stale.",
    ),
    click.option("--skip-stale", is_flag=True, help="Skip stale offsets; needs --stale-after."),
)
"""For offsets that were not written for long."""


def check_stale(stale_after: float | None, *, skip_stale: bool) -> None:
    if skip_stale and stale_after is None:
        raise usage_error("--skip-stale needs --stale-after DURATION")


def _names(_ctx: click.Context, _param: click.Parameter, given: tuple[str, ...]) -> dict[str, str]:
    found: dict[str, str] = {}
    for text in given:
        if text.count("=") != 1:
            raise click.BadParameter(f"{text!r} is not of the form OLD=NEW; for a name with a =, use --rename-regex")
        old, _, new = text.partition("=")
        if found.setdefault(check_group(old), check_group(new)) != new:
            raise click.BadParameter(f"group {old!r} has two new names: give it only one")
    return found


rename_options: Final = combined(
    click.option(
        "--rename",
        "names",
        metavar="OLD=NEW",
        multiple=True,
        callback=_names,
        help="Give a group another name on the brokers; may be repeated.",
    ),
    click.option(
        "--rename-regex",
        "expression",
        nargs=2,
        metavar="REGEX NEW",
        help=r"Rename groups whose whole name matches; \1 in NEW is the text in the first parentheses.",
    ),
)
"""The options that `renaming_of` reads."""


def renaming_of(given: dict[str, Any]) -> Renaming:
    """Remove the values of `rename_options` from the options of a command."""
    return Renaming(given.pop("names"), *(given.pop("expression") or ()))
