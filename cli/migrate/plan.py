"""`zkgroups migrate plan` and `show`: what is to become of every offset, written down and looked at."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import TYPE_CHECKING, Any, Final

import click

from zkgroups.core.migration.plan_rows import MatchRow, ReportRow
from zkgroups.core.migration.rules import Action, Reason
from zkgroups.exceptions import DamagedFileError

from ..shared.command_classes import Command
from ..shared.exit_codes import ExitCode
from ..shared.input_files import FolderUri
from ..shared.messages import say
from ..shared.options import Options
from ..shared.output import Column, Output, Row, Table
from ..shared.spark_options import moment_option, selection_options, spark_options, steps_shown, writing_options
from .both_sides import broker_options, installed, own_spark, plan_argument, source_options
from .options import check_stale, rename_options, renaming_of, rule_of, rule_options, stale_options
from .tables import MATCHES, OFFSETS, PLANNED, REPORT, days, key, plain, plan_told, planned_row

if TYPE_CHECKING:
    from zkgroups.spark import SourceOptions
    from zkgroups.spark.migration.planning import PlanSummary
    from zkgroups.spark.migration.sources import SnapshotSource

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
        Column("DESTINATION", "destination"),
    ),
)


@click.command(cls=Command)
@click.argument("destination", metavar="DEST", type=FolderUri())
@selection_options
@click.option(
    "--from-snapshot", "snapshot", metavar="DIR", type=FolderUri(), help="Read a snapshot instead of ZooKeeper."
)
@moment_option()
@rule_options
@rename_options
@stale_options
@click.option("--without-brokers", is_flag=True, help="Ask no broker: a plan to be shown and exported only.")
@click.option("--parallelism", type=click.IntRange(1, 1024), help="How many tasks read; one for each core by default.")
@writing_options
@click.pass_obj
def plan(
    options: Options,
    /,
    destination: str,
    snapshot: str | None,
    at: str | None,
    stale_after: float | None,
    skip_stale: bool,
    without_brokers: bool,
    **given: Any,
) -> None:
    """Write down what is to become of every offset, and why. Nothing else is written anywhere.

    DEST is a folder, or whatever else Spark can write to; it must not have a plan yet. Each offset is compared with the
    log and with what the group has on the brokers. It is skipped where there is nothing to move: no such topic, no
    number, the same already there, or further. A group is blocked, as a whole, where somebody takes part in it, in
    ZooKeeper or on the brokers, where an offset is out of range and nothing else was said, and where two groups would
    have the same name. With blocked groups the exit code is 4; `migrate show` says why, and the others can be moved.

    \b
    Example:
      zkgroups -z zk1:2181/kafka -b kafka1:9092 migrate plan /data/plan
      zkgroups -z zk1:2181/kafka -b kafka1:9092 migrate plan /data/plan --groups 'bill.*' --on-out-of-range earliest
      zkgroups -z zk1:2181/kafka -b kafka1:9092 migrate plan /data/plan --rename-regex 'old-(.*)' '\\1'
      zkgroups -b kafka1:9092 migrate plan /data/plan --from-snapshot /data/groups
    """
    check_stale(stale_after, skip_stale=skip_stale)
    rule, renaming, spark = rule_of(given, skip_stale=skip_stale), renaming_of(given), own_spark(given)
    with installed():
        from zkgroups.spark.migration import planning
    spark.check_writes_to(destination)
    brokers = None if without_brokers else broker_options(options, what_for="a plan (or --without-brokers)")
    source = _source(options, snapshot, at, given)
    say(options, f"Starting Spark to plan what becomes of the groups in {snapshot or options.zookeeper}.")
    with spark.session(options) as session, steps_shown(options, session, planning.STEPS) as told:
        made = planning.plan(
            session,
            destination,
            source,
            brokers,
            rule=rule,
            renaming=renaming,
            stale_after=stale_after,
            on_progress=told,
        )
    Output(options).write(_PLANS, [_plan_row(made)])
    if made.blocked:
        say(options, f"Blocked groups: {made.blocked} of {made.groups}. Why: zkgroups migrate show {destination}")
        raise click.exceptions.Exit(ExitCode.REFUSED)


def _source(
    options: Options, snapshot: str | None, at: str | None, chosen: dict[str, Any]
) -> SourceOptions | SnapshotSource:
    if snapshot is None:
        if at is not None:
            raise click.UsageError("--at needs --from-snapshot DIR", click.get_current_context())
        return source_options(options, **chosen)
    from zkgroups.spark.migration.sources import SnapshotSource

    chosen.pop("parallelism")
    return SnapshotSource(destination=snapshot, at=at or "latest", **chosen)


def _plan_row(made: PlanSummary) -> Row:
    actions = {action.value: made.counts.get(action, 0) for action in Action}
    reasons = {key(reason): made.counts[reason] for reason in Reason if reason in made.counts}
    fields = plain(made) | {"actions": actions, "reasons": reasons}
    del fields["counts"]
    return fields


@click.command(cls=Command)
@plan_argument
@click.option("--offsets", is_flag=True, help="Every offset, instead of the groups.")
@click.option(
    "--report",
    metavar="[NAME]",
    is_flag=False,
    flag_value=_LATEST,
    help="What became of every offset, by the latest report or the named one.",
)
@spark_options
@click.pass_obj
def show(options: Options, /, destination: str, offsets: bool, report: str | None, **given: Any) -> None:
    """Show a plan: which groups are ready, which are blocked and why, and what is left to read before and after.

    PLAN is the folder. With -o wide it also tells how long the brokers keep offsets of a group that nobody uses, and
    how many partitions there are of each reason. Nobody is asked: it is what was found when it was planned.

    \b
    Example:
      zkgroups migrate show /data/plan
      zkgroups migrate show /data/plan --offsets -o csv
      zkgroups migrate show /data/plan --report
    """
    spark, output = own_spark(given), Output(options)
    with installed():
        from zkgroups.spark.migration.plan_reader import plan_head, plan_rows, report_rows
        from zkgroups.spark.migration.planning import groups
    with spark.session(options) as session:
        if report is not None:
            _write_report(output, report_rows(session, destination, None if report == _LATEST else report))
            return
        head, found = plan_head(session, destination), groups(session, destination)
        if offsets:
            output.write(OFFSETS, map(plain, plan_rows(session, destination)))
        else:
            output.write(PLANNED, [planned_row(each, head.retention_seconds) for each in found])
    say(options, plan_told(head, found))


def _write_report(output: Output, rows: Iterator[ReportRow | MatchRow]) -> None:
    """All rows of one report, which are of one kind."""
    first = next(rows, None)
    if first is None:
        raise DamagedFileError("the rows of the report are missing")
    output.write(MATCHES if isinstance(first, MatchRow) else REPORT, map(plain, chain([first], rows)))
