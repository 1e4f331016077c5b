"""`zkgroups groups explain`: say why each partition of a group is where it is."""

from __future__ import annotations

from typing import Final

import click

from zkgroups.core.rebalance.explanation import GroupExplanation, PlacedPartition
from zkgroups.core.rebalance.members import Stream
from zkgroups.core.znodes.migration_mark import Mark
from zkgroups.core.znodes.names import check_instance
from zkgroups.zookeeper.reading.explain_group import explain_group

from ..shared.arguments import group_argument
from ..shared.command_classes import Command
from ..shared.complete_names import complete_instances
from ..shared.connect import connected
from ..shared.options import Format, Options
from ..shared.output import Column, Output, Row, Table
from .explanation_text import explanation_lines

_PARTITIONS: Final = Table(
    "partitions",
    key="partition",
    columns=(
        Column("TOPIC", "topic"),
        Column("PARTITION", "partition", right=True),
        Column("OWNER", "owner"),
        Column("PLANNED", "planned"),
        Column("PLACEMENT", "placement"),
        Column("WITHOUT", "planned_without"),
    ),
)

EXPLANATIONS: Final = Table(
    "groups",
    key="group",
    columns=(Column("GROUP", "group"), Column("STRATEGY", "strategy")),
    details=(_PARTITIONS,),
    csv=_PARTITIONS,
)
"""The explanation of a group for programs. People get sentences."""


@click.command(cls=Command)
@group_argument
@click.option(
    "--without",
    metavar="INSTANCE",
    multiple=True,
    callback=lambda _ctx, _param, ids: tuple(dict.fromkeys(map(check_instance, ids))),
    shell_complete=complete_instances,
    help="Also say what happens if this instance leaves. May be repeated.",
)
@click.option(
    "--foreign-assignor",
    "foreign",
    type=click.Choice(["range", "roundrobin"]),
    help="The strategy for which Scala members are configured. By default, the one that fits the owners, or range.",
)
@click.pass_obj
def explain(options: Options, group: str, without: tuple[str, ...], foreign: str | None) -> None:
    """Say why each partition of a group is where it is, and what blocks. Nothing is changed.

    The command names the strategy and why the members follow it, what each member owns and should own, and why some
    partitions are not where they should be. `zkgroups doctor` finds more problems.

    The plan is what zkgroups and Scala members compute. Other clients may come to other results: members of
    wvanbergen/kafka sort partitions by their leaders first.

    \b
    Example:
      zkgroups -z zk1:2181/kafka groups explain billing
      zkgroups -z zk1:2181/kafka groups explain billing --without anna
      zkgroups -z zk1:2181/kafka groups explain billing -o json
    """
    output = Output(options)
    with connected(options) as registry:
        found = explain_group(registry, group, without=without, foreign=foreign)
    if output.format in {Format.TABLE, Format.WIDE}:
        for line in explanation_lines(found):
            output.line(line)
    else:
        output.write(EXPLANATIONS, [_row(found)])


def _row(found: GroupExplanation) -> Row:
    mark = found.description.mark
    return {
        "group": found.description.group,
        "state": found.description.state.value,
        "strategy": found.strategy,
        "reason": found.reason.value,
        "planner": found.planner,
        "plan_is_written": found.plan_is_written,
        "members": [
            {"instance": id, "dialect": each.dialect.value, "strategies": list(each.assignors)}
            for id, each in found.members.items()
        ],
        "without_share": list(found.idle),
        "topics": [
            {"topics": list(each.topics), "partitions": each.partitions, "streams": dict(each.readers)}
            for each in found.divisions
        ],
        "missing_topics": list(found.missing),
        "partitions": [_partition_row(each) for each in found.partitions],
        "findings": [
            {"severity": each.severity.value, "code": each.code.value, "path": each.path, "what": each.what}
            | {"fix": each.fix}
            for each in found.findings
        ],
        "migration": mark.shown if isinstance(mark, Mark) else None,
        "without": list(found.without),
        "strategy_without": found.strategy_without,
    }


def _partition_row(each: PlacedPartition) -> Row:
    return {
        "topic": each.at.topic,
        "partition": each.at.partition,
        "owner": each.owner,
        "planned": _text(each.planned),
        "placement": each.placement.value,
        "obstacle": each.obstacle and each.obstacle.value,
        "planned_without": _text(each.planned_without),
    }


def _text(stream: Stream | None) -> str | None:
    return None if stream is None else stream.instance
