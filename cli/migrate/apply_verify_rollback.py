"""`zkgroups migrate apply`, `verify`, `rollback` and `status`: carry out a plan, check it, and take it back."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import click

from zkgroups.core.migration.obstacles import NEXT_STEPS, ObstacleKind
from zkgroups.core.migration.plan_rows import Match, Outcome
from zkgroups.core.times import utc
from zkgroups.core.znodes.own_nodes import GroupRoute, Mark

from ..offsets.read import marks_of
from ..shared.arguments import execute_option
from ..shared.connect import connected, refuse_read_only
from ..shared.engine_options import spark_options, writing_options
from ..shared.global_options import Command
from ..shared.messages import say
from ..shared.options import ExitCode, Options
from ..shared.output import Column, Output, Row, Table
from .options import (
    EngineOptions,
    PlanUri,
    broker_options,
    check_brokers,
    engine_option,
    has_few_offsets,
    plan_argument,
    source_options,
    steps_shown,
    without_zookeeper_option,
    writers_stopped_option,
)
from .tables import DONE, MATCHES, RESET_ADVICE, STATES, counts_text, done_row, plain, plan_size, reset_advice

if TYPE_CHECKING:
    from zkgroups.kafka import BrokerOptions
    from zkgroups.migration.steps import ExecutionResult
    from zkgroups.migration.tasks import Engine, OnProgress
    from zkgroups.zookeeper.zookeeper_source import ZooKeeperSource


# `zkgroups migrate status` without a plan: the groups that were moved to the brokers, or are being moved.


_MOVED: Final = Table(
    "groups",
    key="group",
    columns=(
        Column("GROUP", "group"),
        Column("TARGET", "target"),
        Column("STATE", "state", styles={"kafka": "green", "moved": "green", "unreadable": "red"}),
        Column("BY-PLAN", "plan"),
        Column("SINCE", "since_ms", show=utc),
        Column("ON-BROKERS", "holders"),
    ),
)


def show_moved_groups(options: Options) -> None:
    """Show each group with a mark or a route. For a route, also show who uses the brokers for the group."""
    from zkgroups.zookeeper.admin.migration_marks import permit_holders
    from zkgroups.zookeeper.ownership.routes import read_routes
    from zkgroups.zookeeper.session.session import context_of

    with connected(options) as registry:
        context = context_of(registry)
        routes = {group: route for group, (route, _version) in read_routes(context).items()}
        marks = marks_of(registry, registry.groups())
        rows = [
            _row(group, marks.get(group), routes.get(group), permit_holders(context, group) if group in routes else [])
            for group in sorted(marks.keys() | routes.keys())
        ]
    Output(options).write(_MOVED, rows)
    if not rows:
        say(options, "No group was moved.")


def _row(group: str, mark: object, route: object, holders: list[str]) -> Row:
    known = next((each for each in (route, mark) if each is not None), None)
    readable = known if isinstance(known, GroupRoute | Mark) else None
    return {
        "group": group,
        "target": mark.target if isinstance(mark, Mark) else None,
        "state": "unreadable" if readable is None else str(readable.state),
        "plan": None if readable is None else readable.plan,
        "since_ms": None if readable is None else readable.since_ms,
        "holders": holders,
    }


@dataclass(frozen=True, slots=True)
class MigrationSession:
    """An engine, the folder of a plan, and the addresses of both sides."""

    options: Options
    engine: Engine
    destination: str
    brokers: BrokerOptions
    zookeeper: ZooKeeperSource | None

    @contextmanager
    def progress(self) -> Iterator[OnProgress]:
        """Show a progress bar for a step."""
        with steps_shown(self.options, self.engine, self.destination) as on_progress:
            yield on_progress


@contextmanager
def migration_session(
    options: Options, destination: str, given: dict[str, Any], *, what_for: str, reports: bool = True
) -> Iterator[MigrationSession]:
    """Choose the engine and start it. Before Spark starts, connect to both sides and check the folder of the report."""
    chosen = EngineOptions.of(given)
    brokers = broker_options(options, what_for=what_for)
    zookeeper = None if given.pop("without_zookeeper", False) else source_options(options)
    local = chosen.is_local(destination, is_small=lambda: has_few_offsets(destination))
    if not local:
        if reports:
            chosen.spark.check_writes_to(destination)
        check_brokers(brokers)
        if zookeeper is not None:
            zookeeper.connect().close()
    with chosen.open(options, local=local) as engine:
        yield MigrationSession(options, engine, destination, brokers, zookeeper)


@click.command(cls=Command)
@plan_argument
@without_zookeeper_option
@writers_stopped_option
@execute_option
@engine_option
@writing_options
@click.pass_obj
def apply(options: Options, /, destination: str, writers_stopped: bool, execute: bool, **given: Any) -> None:
    """Write the planned offsets of all unblocked groups.

    Without --execute, the command only shows what it would do. It writes nothing to a group if an instance has
    registered, or offsets were committed on either side, since the plan was made. The exit code is then 4. It is 9 if
    brokers refused an offset, or if a client registered or committed in ZooKeeper during the write.

    Each group is marked in ZooKeeper before it is read: zkgroups members then no longer join it. Other clients ignore
    the mark, so stop them first. If a run is killed, the groups that it has not finished stay marked: run the command
    again to finish them, or undo the run with `migrate rollback`. A group that was blocked when the plan was made stays
    blocked: make a new plan in another folder, or use `migrate follow`. The result for each offset is stored in a
    report in the folder of the plan.

    While a plan writes to a group on the brokers, it holds a lock in ZooKeeper that other plans respect. Plans with
    another ZooKeeper or chroot do not see the lock: never run two such plans with one target at once. If a run is
    paused, loses its lock and then writes, the group is reported as overtaken.

    For a plan with another --layout, nothing in ZooKeeper shows whether the jobs that write its offsets still run. Stop
    them first, and add --writers-stopped. Otherwise nothing is written.

    \b
    Example:
      zkgroups -z zk1:2181/kafka -b kafka1:9092 migrate apply /data/plan
      zkgroups -z zk1:2181/kafka -b kafka1:9092 migrate apply /data/plan --execute
    """
    if execute:
        refuse_read_only(options)
    with migration_session(options, destination, given, what_for="migrate apply") as migration:
        apply_plan(migration, execute=execute, writers_stopped=writers_stopped)


def apply_plan(migration: MigrationSession, *, execute: bool, writers_stopped: bool) -> None:
    """Apply the plan, show the result for each group, and exit with the matching code."""
    from zkgroups.migration.steps import apply
    from zkgroups.migration.summaries import first_row, groups, plan_totals

    rule = first_row(migration.engine.folder(migration.destination)).rule
    found = groups(migration.engine, migration.destination)
    say(migration.options, plan_size(found))

    with migration.progress() as on_progress:
        run = apply(
            migration.engine,
            migration.destination,
            migration.brokers,
            migration.zookeeper,
            execute=execute,
            writers_stopped=writers_stopped,
            on_progress=on_progress,
        )
    say(migration.options, reset_advice(plan_totals(found), rule))
    _show_results(migration, run)


def _show_results(migration: MigrationSession, run: ExecutionResult) -> None:
    from zkgroups.migration.summaries import group_results

    results = group_results(migration.engine, migration.destination, run.report)
    Output(migration.options).write(DONE, map(done_row, results))
    say(migration.options, _summary(run))
    if not run.executed:
        say(migration.options, "Nothing was changed: add --execute to apply.")
    if run.failed:
        say(migration.options, f"To see the errors: zkgroups migrate show {migration.destination} --report")
    if run.left:
        raise click.exceptions.Exit(ExitCode.REFUSED)
    if run.failed:
        raise click.exceptions.Exit(ExitCode.PARTIAL)


def _summary(run: ExecutionResult) -> str:
    return (
        f"{run.groups} {'group' if run.groups == 1 else 'groups'} in {run.seconds:.1f} s; "
        f"offsets: {counts_text(run.counts)}.\nReport: {run.destination}/reports/{run.report}"
    )


@click.command(cls=Command)
@plan_argument
@without_zookeeper_option
@engine_option
@writing_options
@click.pass_obj
def verify(options: Options, /, destination: str, **given: Any) -> None:
    """Read both sides again, and show every offset that differs from the plan.

    If any differs, the exit code is 10. It is 4 if the only difference is that blocked groups were not moved. "no
    offset" is a partition for which the plan writes no offset, and the brokers have none. It does not change the exit
    code: new consumers start there by their auto.offset.reset.

    DUAL-COMMIT names the side from which a consumer with dual.commit.enabled would continue. Offsets can be equal while
    legacy members still work: `migrate status` shows which groups are closed to them.

    \b
    Example:
      zkgroups -z zk1:2181/kafka -b kafka1:9092 migrate verify /data/plan
      zkgroups -z zk1:2181/kafka -b kafka1:9092 migrate verify /data/plan -o jsonl
    """
    with migration_session(options, destination, given, what_for="migrate verify") as migration:
        from zkgroups.migration.steps import verify
        from zkgroups.migration.summaries import differing

        with migration.progress() as on_progress:
            run = verify(migration.engine, destination, migration.brokers, migration.zookeeper, on_progress=on_progress)
        different = set(run.counts) - {Match.EQUAL, Match.NO_OFFSET}
        found = differing(migration.engine, destination, run.report) if set(run.counts) - {Match.EQUAL} else ()
        Output(options).write(MATCHES, map(plain, found))
    say(options, _summary(run))
    if Match.NO_OFFSET in run.counts:
        say(options, f"No offset: the plan writes none. {RESET_ADVICE}")
    if Match.BLOCKED in different:
        say(options, f"Blocked groups were not moved. Reasons: zkgroups migrate show {destination}")
    if different:
        raise click.exceptions.Exit(ExitCode.REFUSED if different == {Match.BLOCKED} else ExitCode.FINDINGS)


@click.command(cls=Command)
@plan_argument
@click.option(
    "--force",
    is_flag=True,
    help="Also restore groups with later commits on the brokers, or without a mark of this plan.",
)
@click.option(
    "--to-zookeeper",
    is_flag=True,
    help="First copy the progress on the brokers to ZooKeeper, forward only. A group whose offsets were moved back on "
    "the brokers is left alone. With --force, ZooKeeper keeps the higher offsets.",
)
@without_zookeeper_option
@writers_stopped_option
@execute_option
@engine_option
@writing_options
@click.pass_obj
def rollback(
    options: Options,
    /,
    destination: str,
    force: bool,
    to_zookeeper: bool,
    writers_stopped: bool,
    execute: bool,
    **given: Any,
) -> None:
    """Restore the earlier offsets of all groups on the brokers, and let legacy members join again.

    Without --execute, the command only shows what it would do. A group that did not exist on the brokers before is
    deleted there. A group with active members, with later commits, or without a mark of this plan is left unchanged,
    and the exit code is then 4. With --to-zookeeper, legacy members continue where the new consumers stopped: this
    progress is copied to ZooKeeper first. Offsets of deleted topics are not restored. A group with offsets of a
    recreated topic is left unchanged; with --force all other offsets are restored. Offsets that legacy members have
    committed in ZooKeeper since the plan are kept, and reported. For a plan with another --layout, --to-zookeeper needs
    --writers-stopped. It is not possible for spark and trident.

    \b
    Example:
      zkgroups -z zk1:2181/kafka -b kafka1:9092 migrate rollback /data/plan
      zkgroups -z zk1:2181/kafka -b kafka1:9092 migrate rollback /data/plan --to-zookeeper --execute
    """
    if execute:
        refuse_read_only(options)
    with migration_session(options, destination, given, what_for="migrate rollback") as migration:
        from zkgroups.migration.steps import rollback
        from zkgroups.migration.summaries import groups

        say(options, plan_size(groups(migration.engine, destination)))

        with migration.progress() as on_progress:
            run = rollback(
                migration.engine,
                destination,
                migration.brokers,
                migration.zookeeper,
                execute=execute,
                force=force,
                to_zookeeper=to_zookeeper,
                writers_stopped=writers_stopped,
                on_progress=on_progress,
            )
        if run.left and not force:
            say(
                options,
                "Some groups were left unchanged; the column WHY has the reason. If a group has later commits on the "
                "brokers, --to-zookeeper copies this progress to ZooKeeper first, and --force discards it.",
            )
        if run.counts.get(Outcome.NEWER):
            kind = ObstacleKind.SOURCE_COMMITTED_SINCE
            say(options, f"Some offsets in ZooKeeper are newer than the plan, and are kept. {NEXT_STEPS[kind]}")
        _show_results(migration, run)


@click.command(cls=Command)
@click.argument("destination", metavar="[PLAN]", type=PlanUri(), required=False)
@without_zookeeper_option
@engine_option
@spark_options
@click.pass_obj
def status(options: Options, /, destination: str | None, **given: Any) -> None:
    """Show the progress of each group: not begun, partly, done, rolled back, or moved on by its new consumers.

    To finish a group that is partly done, run `migrate apply` or `migrate rollback` again.

    Without PLAN, show all groups that a plan or `migrate switch` has moved to the brokers, or is moving. For those of
    `switch`, also show who uses the brokers for them: consumers and gateways.

    \b
    Example:
      zkgroups -z zk1:2181/kafka -b kafka1:9092 migrate status /data/plan
      zkgroups -z zk1:2181/kafka migrate status
    """
    if destination is None:
        show_moved_groups(options)
        return
    with migration_session(options, destination, given, what_for="migrate status", reports=False) as migration:
        from zkgroups.migration.steps import status

        with migration.progress() as on_progress:
            found = status(
                migration.engine, destination, migration.brokers, migration.zookeeper, on_progress=on_progress
            )
    Output(options).write(STATES, map(plain, found))
