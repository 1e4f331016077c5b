"""`zkgroups history check`: find the events that break a rule of groups."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any, Final

import click

from zkgroups.core.history.violations import Rule, Violation, violations

from ..shared.command_classes import Command
from ..shared.exit_codes import ExitCode
from ..shared.messages import say
from ..shared.options import Options
from ..shared.output import Column, Row, Table
from ..shared.streamed_output import StreamedOutput
from .columns import DIALECT, GROUP, HOST, INSTANCE, PARTITION, SESSION, TIME, TOPIC, ZXID, event_row, instance_row
from .options import HistoryOptions, HistoryRun, group_argument, history_options

_VIOLATIONS: Final = Table(
    "violations",
    key="zxid",
    columns=(
        TIME,
        ZXID,
        Column("RULE", "rule", styles={"went-back": "red", "two-owners": "red", "commit-not-owner": "red"}),
        GROUP,
        TOPIC,
        PARTITION,
        DIALECT._replace(wide=False),
        INSTANCE,
        HOST,
        SESSION._replace(wide=True),
        Column("WHAT", "what"),
    ),
)

_UNREGISTERED: Final = "not registered"


@click.command(cls=Command)
@group_argument
@history_options
@click.option(
    "--ignore",
    type=click.Choice([rule.value for rule in Rule]),
    metavar="RULE",
    multiple=True,
    help="Leave out the violations of this rule. May be repeated.",
)
@click.pass_obj
def check(options: Options, /, ignore: tuple[str, ...], **given: Any) -> None:
    """Find the events in the logs that break a rule of groups, and show who broke it. The exit code is then 10.

    \b
    two-owners           a partition was claimed while another owner had it
    claim-taken          an owner node was deleted by another session
    claim-unregistered   a partition was claimed by a session without a registration
    commit-not-owner     a partition was committed while another session owned it
    commit-unowned       a partition was committed while nobody owned it
    commit-unregistered  a partition was committed by its owner, which had no registration
    went-back            an offset became lower
    malformed            an offset was written that clients cannot read
    deleted              an offset was deleted

    Tools of administrators break some of these rules on purpose, and so do programs that commit without joining the
    group: leave these rules out with --ignore. DIALECT is the client of the instance that broke the rule. It is empty
    if the session had not registered an instance. Nothing is reported that may be due to missing transactions.

    \b
    Example:
      zkgroups history check --from-data-dir /var/lib/zookeeper --chroot /kafka
      zkgroups history check billing --from-data-dir /backup/zookeeper --ignore deleted --ignore commit-unowned
    """
    run, counts = HistoryRun(options, HistoryOptions.of(given)), Counter[str]()
    StreamedOutput(options).stream(_VIOLATIONS, _rows(run, set(ignore), counts))
    run.check_groups()
    say(options, _summary(counts))
    run.finish()
    if counts:
        raise click.exceptions.Exit(ExitCode.FINDINGS)


def _rows(run: HistoryRun, ignored: set[str], counts: Counter[str]) -> Iterator[Row]:
    for event in run.events():
        for violation in violations(event):
            if violation.rule not in ignored:
                counts[violation.dialect or _UNREGISTERED] += 1
                yield _row(violation)


def _row(violation: Violation) -> Row:
    event = violation.event
    return {
        **event_row(event),
        "rule": violation.rule.value,
        "topic": event.topic,
        "partition": event.partition,
        **instance_row(violation.by),
        "what": violation.text,
    }


def _summary(counts: Counter[str]) -> str:
    if not counts:
        return "No violations found."
    by_dialect = ", ".join(f"{dialect}: {count}" for dialect, count in counts.most_common())
    return f"Violations: {counts.total()} ({by_dialect})."
