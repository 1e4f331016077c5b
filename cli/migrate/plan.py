"""`zkgroups migrate plan` and `show`: make a plan, and look at it."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from zkgroups.core.layouts.layout import Layout
from zkgroups.core.layouts.legacy import LEGACY
from zkgroups.core.migration.offset_decision import Action, Reason
from zkgroups.core.migration.plan_rows import MatchRow, ReportRow
from zkgroups.exceptions import DamagedFileError

from ..shared.engine_options import (
    at_option,
    installed,
    layout_options,
    selection_options,
    spark_options,
    writing_options,
)
from ..shared.global_options import Command
from ..shared.messages import say
from ..shared.options import ExitCode, Options
from ..shared.output import Column, Output, Row, Table
from ..shared.parameter_types import FilePath, FolderUri, usage_error
from .options import (
    LOCAL_GROUPS,
    EngineOptions,
    PlanUri,
    are_few,
    broker_options,
    check_brokers,
    check_stale,
    check_zookeeper,
    engine_option,
    plan_argument,
    rename_options,
    renaming_of,
    rule_of,
    rule_options,
    source_options,
    stale_options,
    steps_shown,
    stored_plan,
)
from .tables import MATCHES, OFFSETS, PLANNED, REPORT, days, key, plain, plan_summary, planned_row, reset_advice

if TYPE_CHECKING:
    from zkgroups.migration.planning import PlanSummary, Source


_LATEST: Final = "latest"

_PLANS: Final = Table(
    "plans",
    key="plan",
    columns=(
        Column("PLAN", "plan"),
        Column("GROUPS", "groups", right=True),
        Column("BLOCKED", "blocked", right=True),
        Column("COMMIT", "actions.commit", right=True),
        Column("SKIP", "actions.skip", right=True),
        Column("REFUSE", "actions.refuse", right=True),
        Column("SOURCE", "source", wide=True),
        Column("BROKERS", "brokers", wide=True),
        Column("KEPT-FOR", "retention_seconds", wide=True, right=True, show=days),
        Column("RULE", "rule", wide=True),
        Column("LAYOUT", "layout", wide=True),
        Column("DESTINATION", "destination"),
    ),
)


@click.command(cls=Command)
@click.argument("destination", metavar="DEST", type=PlanUri())
@selection_options
@click.option("--all", "everything", is_flag=True, help="Plan all groups. Without it, --groups must choose some.")
@click.option(
    "--from-snapshot", "snapshot", metavar="DIR", type=FolderUri(), help="Read a snapshot instead of ZooKeeper."
)
@at_option()
@rule_options
@rename_options
@stale_options
@click.option("--without-brokers", is_flag=True, help="Contact no brokers. The plan can only be shown and exported.")
@click.option("--parallelism", type=click.IntRange(1, 1024), help="Number of reading tasks; one per core by default.")
@engine_option
@writing_options
@layout_options
@click.pass_obj
def plan(
    options: Options,
    /,
    destination: str,
    everything: bool,
    snapshot: str | None,
    at: str | None,
    stale_after: float | None,
    skip_stale: bool,
    without_brokers: bool,
    layout: Layout,
    **given: Any,
) -> None:
    """Decide on every offset, and store the decisions with their reasons. Nothing else is written.

    DEST is a folder that has no plan yet, on this machine or any file system that Spark can write to. It is written
    with a slash, like ./plan, because a name without one may be that of a group. --groups or --all chooses the groups.

    Each offset is compared with the log and with the offset of the group on the brokers. An offset is skipped if
    nothing needs to be moved: the topic was deleted, or the brokers have the same or a higher offset. A whole group is
    blocked if it has active members in ZooKeeper or on the brokers, if an offset cannot be read or is out of range
    (unless --on-unreadable or --on-out-of-range says how to treat it), or if two groups would get the same name. The
    exit code is then 4; `migrate show` lists the reasons. The other groups can be moved.

    Give the new consumers auto.offset.reset=earliest. A partition without an offset is read by that setting, and with
    latest, the default, consumers skip all messages written before they start.

    With --layout, the plan moves offsets that another system keeps in ZooKeeper. The later steps read them from the
    same place.

    \b
    Example:
      zkgroups -z zk1:2181/kafka -b kafka1:9092 migrate plan /data/plan --all
      zkgroups -z zk1:2181/kafka -b kafka1:9092 migrate plan /data/plan --groups 'bill.*' --on-out-of-range earliest
      zkgroups -z zk1:2181/kafka -b kafka1:9092 migrate plan /data/plan --all --rename-regex 'old-(.*)' '\\1'
      zkgroups -b kafka1:9092 migrate plan /data/plan --all --from-snapshot /data/groups
      zkgroups -z zk1:2181 -b kafka1:9092 migrate plan /data/plan --all --layout storm:/kafkastorm
    """
    if everything == (given["groups"] is not None):
        raise usage_error("choose the groups: either --groups REGEX, or --all")
    check_stale(stale_after, skip_stale=skip_stale)
    rule, renaming, chosen = rule_of(given, skip_stale=skip_stale), renaming_of(given), EngineOptions.of(given)
    brokers = (
        None
        if without_brokers
        else broker_options(options, what_for="a plan", other="--without-brokers to plan without them")
    )
    source = _source(options, snapshot, at, layout, given)
    local = _is_local(source, chosen, destination)
    if not local:
        from zkgroups.zookeeper.zookeeper_source import ZooKeeperSource

        chosen.spark.check_writes_to(destination)
        if brokers is not None:
            check_brokers(brokers)
        if isinstance(source, ZooKeeperSource):
            check_zookeeper(source)
        say(options, f"Starting Spark to plan the groups in {snapshot or options.zookeeper}.")
    with chosen.open(options, local=local) as engine, steps_shown(options, engine) as on_progress:
        from zkgroups.migration import planning

        made = planning.plan(
            engine,
            destination,
            source,
            brokers,
            rule=rule,
            renaming=renaming,
            stale_after=stale_after,
            on_progress=on_progress,
        )
    Output(options).write(_PLANS, [_plan_row(made)])
    say(options, reset_advice(made.counts, made.rule))
    if made.blocked:
        say(options, f"Blocked groups: {made.blocked} of {made.groups}. Reasons: zkgroups migrate show {destination}")
        raise click.exceptions.Exit(ExitCode.REFUSED)


def _is_local(source: Source, chosen: EngineOptions, destination: str) -> bool:
    from zkgroups.zookeeper.zookeeper_source import ZooKeeperSource

    if not isinstance(source, ZooKeeperSource):
        return chosen.is_local(destination, source.destination, is_small=lambda: are_few(source.count))
    return chosen.is_local(destination, is_small=lambda: len(check_zookeeper(source)) <= LOCAL_GROUPS)


def _source(options: Options, snapshot: str | None, at: str | None, layout: Layout, selected: dict[str, Any]) -> Source:
    if snapshot is None:
        if at is not None:
            raise usage_error("--at needs --from-snapshot DIR")
        return source_options(options, layout=layout.text, **selected)
    if layout != LEGACY:
        raise usage_error("--layout cannot be combined with --from-snapshot, which knows its layout")
    with installed("migrate"):
        from zkgroups.migration.snapshot_source import SnapshotSource

    selected.pop("parallelism")
    return SnapshotSource(destination=snapshot, at=at or "latest", **selected)


def _plan_row(made: PlanSummary) -> Row:
    actions = {action.value: made.counts.get(action, 0) for action in Action}
    reasons = {key(reason): made.counts[reason] for reason in Reason if reason in made.counts}
    fields = plain(made) | {"actions": actions, "reasons": reasons}
    del fields["counts"]
    return fields


@click.command(cls=Command)
@plan_argument
@click.option("--offsets", is_flag=True, help="Show every offset instead of groups.")
@click.option(
    "--report",
    metavar="[NAME]",
    is_flag=False,
    flag_value=_LATEST,
    help="Show the result for every offset, from the latest report or the one named.",
)
@engine_option
@spark_options
@click.pass_obj
def show(options: Options, /, destination: str, offsets: bool, report: str | None, **given: Any) -> None:
    """Show a plan: which groups are ready, which are blocked and why, and their lag before and after.

    PLAN is the folder. The command shows the state at the time when the plan was made, and what to do about each kind
    of obstacle. It contacts no server. -o wide also shows how long the brokers keep the offsets of an unused group, and
    the number of partitions for each reason.

    \b
    Example:
      zkgroups migrate show /data/plan
      zkgroups migrate show /data/plan --offsets -o csv
      zkgroups migrate show /data/plan --report
    """
    output = Output(options)
    with stored_plan(options, destination, given) as engine:
        from zkgroups.migration.summaries import first_row, groups, plan_rows, report_rows

        if report is not None:
            _write_report(output, report_rows(engine, destination, None if report == _LATEST else report))
            return
        head, found = first_row(engine.folder(destination)), groups(engine, destination)
        if offsets:
            output.write(OFFSETS, map(plain, plan_rows(engine, destination)))
        else:
            output.write(PLANNED, [planned_row(each, head.retention_seconds) for each in found])
    say(options, plan_summary(head, found))


def _write_report(output: Output, rows: Iterator[ReportRow | MatchRow]) -> None:
    first = next(rows, None)
    if first is None:
        raise DamagedFileError("the report has no rows: its files are missing or damaged")
    output.write(MATCHES if isinstance(first, MatchRow) else REPORT, map(plain, chain([first], rows)))


# `zkgroups migrate export`: write a plan as files for kafka-consumer-groups.sh.


_EXPORTS: Final = Table(
    "exports",
    key="script",
    columns=(
        Column("GROUPS", "groups", right=True),
        Column("BLOCKED", "blocked", right=True),
        Column("OFFSETS", "offsets", right=True),
        Column("SCRIPT", "script"),
    ),
)


@click.command(cls=Command)
@plan_argument
@click.argument("folder", metavar="DIR", type=FilePath(file_okay=False, path_type=Path))
@engine_option
@spark_options
@click.pass_obj
def export(options: Options, /, destination: str, folder: Path, **given: Any) -> None:
    """Write a plan as files for kafka-consumer-groups.sh, to write the offsets with that tool.

    DIR is a new folder on this machine. It gets a file for each group with offsets to write (lines
    topic,partition,offset), and the script reset-offsets.sh, which calls the tool for each file. Without --execute,
    the script only shows what it would do. The script does not check whether members are registered in ZooKeeper.
    Blocked groups have no file; the exit code is then 4.

    \b
    Example:
      zkgroups migrate export /data/plan files
    """
    with stored_plan(options, destination, given) as engine:
        from zkgroups.migration.summaries import export, first_row, groups, plan_rows, plan_totals

        head, counts = first_row(engine.folder(destination)), plan_totals(groups(engine, destination))
        written = export(plan_rows(engine, destination), folder)
    row = {
        "groups": written.groups,
        "blocked": len(written.blocked),
        "offsets": written.offsets,
        "script": str(written.script),
    }
    Output(options).write(_EXPORTS, [row])
    say(options, reset_advice(counts, head.rule))
    if written.blocked:
        say(
            options,
            f"Blocked groups without a file: {len(written.blocked)}. Reasons: zkgroups migrate show {destination}",
        )
        raise click.exceptions.Exit(ExitCode.REFUSED)
