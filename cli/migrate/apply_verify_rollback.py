"""`zkgroups migrate apply`, `verify`, `rollback` and `status`: a plan carried out, compared, and taken back."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from zkgroups.core.migration.plan_rows import Match

from ..shared.arguments import execute_option
from ..shared.command_classes import Command
from ..shared.connect import refuse_read_only
from ..shared.exit_codes import ExitCode
from ..shared.messages import say
from ..shared.options import Options
from ..shared.output import Output
from ..shared.progress import is_hidden
from ..shared.spark_options import spark_options, steps_shown, writing_options
from .both_sides import broker_options, installed, own_spark, plan_argument, source_options, without_zookeeper_option
from .tables import DONE, MATCHES, STATES, counted, done_row, plain

if TYPE_CHECKING:
    from zkgroups.kafka import BrokerOptions
    from zkgroups.spark import SourceOptions
    from zkgroups.spark.migration.execution import ExecutionResult

    from ..shared.progress import ShowText


@dataclass(frozen=True, slots=True)
class Work:
    """What is to be done with a plan, and where."""

    options: Options
    session: Any
    destination: str
    brokers: BrokerOptions
    zookeeper: SourceOptions | None

    @contextmanager
    def shown(self) -> Iterator[ShowText]:
        """How far it is."""
        from zkgroups.spark.migration.execution import STEPS
        from zkgroups.spark.migration.planning import read_plan

        offsets = None if is_hidden(self.options) else read_plan(self.session, self.destination).count()
        with steps_shown(self.options, self.session, STEPS, offsets) as told:
            yield told


@contextmanager
def at_work(
    options: Options, destination: str, given: dict[str, Any], *, what_for: str, reports: bool = True
) -> Iterator[Work]:
    """Check both sides, and the folder of the report, before Spark is started, which takes seconds."""
    spark = own_spark(given)
    with installed():
        import zkgroups.spark.migration.execution  # noqa: F401
    if reports:
        spark.check_writes_to(destination)
    brokers = broker_options(options, what_for=what_for)
    zookeeper = None if given.pop("without_zookeeper", False) else source_options(options)
    with spark.session(options) as session:
        yield Work(options, session, destination, brokers, zookeeper)


@click.command(cls=Command)
@plan_argument
@without_zookeeper_option
@execute_option
@writing_options
@click.pass_obj
def apply(options: Options, /, destination: str, execute: bool, **given: Any) -> None:
    """Write the offsets that a plan has, for the groups that nothing stands in the way of.

    Only what would be done is shown, until --execute is given. A group is left as it is, as a whole, where somebody has
    registered or committed since it was planned, on either side; the exit code is then 4, or 9 where brokers did not
    take an offset, or where somebody came to ZooKeeper while it was written. Each group is marked in ZooKeeper before
    it is looked at: members that use zkgroups do not join it any more. Other members do not know of that: stop them
    before. Killed anywhere and run again, it ends the same; until then groups may stay marked, which only another run,
    `migrate rollback` or `migrate unmark` ends. A group that was blocked when it was planned stays so: it needs a new
    plan in another folder, or `migrate follow`. What became of each offset is written down beside the plan.

    While a plan writes to a group on the brokers, the group is locked in the old ZooKeeper against other plans. Plans
    with another ZooKeeper or another chroot do not see the lock: do not run two of them with the same target at the
    same time. If a run is paused, loses its lock, and writes then, the group is reported as overtaken.

    \b
    Example:
      zkgroups -z zk1:2181/kafka -b kafka1:9092 migrate apply /data/plan
      zkgroups -z zk1:2181/kafka -b kafka1:9092 migrate apply /data/plan --execute
    """
    if execute:
        refuse_read_only(options)
    with at_work(options, destination, given, what_for="migrate apply") as work:
        carry_out(work, execute=execute)


def carry_out(work: Work, *, execute: bool) -> None:
    """Apply the plan, show what became of its groups, and end with the exit code that says so."""
    from zkgroups.spark.migration.execution import apply

    with work.shown() as told:
        done = apply(work.session, work.destination, work.brokers, work.zookeeper, execute=execute, on_progress=told)
    _finish(work, done)


def _finish(work: Work, done: ExecutionResult) -> None:
    from zkgroups.spark.migration.reports import by_groups

    Output(work.options).write(DONE, map(done_row, by_groups(work.session, work.destination, done.report)))
    say(work.options, _told(done))
    if not done.executed:
        say(work.options, "Nothing was changed: --execute does it.")
    if done.failed:
        say(work.options, f"Why offsets have failed: zkgroups migrate show {work.destination} --report")
    if done.left:
        raise click.exceptions.Exit(ExitCode.REFUSED)
    if done.failed:
        raise click.exceptions.Exit(ExitCode.PARTIAL)


def _told(done: ExecutionResult) -> str:
    """What was done, for people, and where all of it is written down."""
    return (
        f"{done.groups} {'group' if done.groups == 1 else 'groups'} in {done.seconds:.1f} s; "
        f"offsets: {counted(done.counts)}.\nThe report is {done.destination}/reports/{done.report}"
    )


@click.command(cls=Command)
@plan_argument
@without_zookeeper_option
@writing_options
@click.pass_obj
def verify(options: Options, /, destination: str, **given: Any) -> None:
    """Read both sides anew, and show every offset that is not as the plan says.

    Where there is one the exit code is 10. DUAL-COMMIT says from which side a consumer that commits to both would go
    on. Offsets may also be equal while old members still work: `migrate status` tells which groups are closed to them.

    \b
    Example:
      zkgroups -z zk1:2181/kafka -b kafka1:9092 migrate verify /data/plan
      zkgroups -z zk1:2181/kafka -b kafka1:9092 migrate verify /data/plan -o jsonl
    """
    with at_work(options, destination, given, what_for="migrate verify") as work:
        from zkgroups.spark.migration.execution import verify
        from zkgroups.spark.migration.reports import differing

        with work.shown() as told:
            done = verify(work.session, destination, work.brokers, work.zookeeper, on_progress=told)
        Output(options).write(MATCHES, map(plain, differing(work.session, destination, done.report)))
    say(options, _told(done))
    if set(done.counts) - {Match.EQUAL}:
        raise click.exceptions.Exit(ExitCode.FINDINGS)


@click.command(cls=Command)
@plan_argument
@click.option(
    "--force",
    is_flag=True,
    help="Also where somebody has committed on the brokers since, and where no mark says that the plan has moved it.",
)
@click.option(
    "--to-zookeeper",
    is_flag=True,
    help="First carry what was read on the brokers into ZooKeeper, forward only. A group whose offsets were moved back "
    "on the brokers is left, unless --force is given: ZooKeeper then keeps the higher offsets.",
)
@without_zookeeper_option
@execute_option
@writing_options
@click.pass_obj
def rollback(
    options: Options, /, destination: str, force: bool, to_zookeeper: bool, execute: bool, **given: Any
) -> None:
    """Put the groups of a plan back as they were on the brokers, offset by offset, and let members join again.

    Only what would be done is shown, until --execute is given. A group that had nothing there is deleted there. One in
    which somebody takes part, or has committed since, or that has no mark of this plan, is left as it is, and the exit
    code is then 4. With --to-zookeeper what was read on the brokers is not read again: it is carried into ZooKeeper
    before. Offsets of topics that were deleted or made anew are skipped. If the group has offsets of a topic that was
    made anew, it is left; --force keeps them.

    \b
    Example:
      zkgroups -z zk1:2181/kafka -b kafka1:9092 migrate rollback /data/plan
      zkgroups -z zk1:2181/kafka -b kafka1:9092 migrate rollback /data/plan --to-zookeeper --execute
    """
    if execute:
        refuse_read_only(options)
    with at_work(options, destination, given, what_for="migrate rollback") as work:
        from zkgroups.spark.migration.execution import rollback

        with work.shown() as told:
            done = rollback(
                work.session,
                destination,
                work.brokers,
                work.zookeeper,
                execute=execute,
                force=force,
                to_zookeeper=to_zookeeper,
                on_progress=told,
            )
        if done.left and not force:
            say(options, "Some were left; where nobody takes part, --force puts them back, whatever was committed.")
        _finish(work, done)


@click.command(cls=Command)
@plan_argument
@without_zookeeper_option
@spark_options
@click.pass_obj
def status(options: Options, /, destination: str, **given: Any) -> None:
    """Show how far each group of a plan is: not begun, partly, done, rolled back, or moved on by its new consumers.

    `apply` and `rollback` are run again to go on.

    \b
    Example:
      zkgroups -z zk1:2181/kafka -b kafka1:9092 migrate status /data/plan
    """
    with at_work(options, destination, given, what_for="migrate status", reports=False) as work:
        from zkgroups.spark.migration.status import status

        with work.shown() as told:
            found = status(work.session, destination, work.brokers, work.zookeeper, on_progress=told)
    Output(options).write(STATES, map(plain, found))
