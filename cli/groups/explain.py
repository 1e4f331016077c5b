"""`zkgroups groups explain`: say why each partition of a group is where it is."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby, islice
from typing import Final

import click

from zkgroups import Dialect, Finding, TopicPartition
from zkgroups.core.doctor.findings import command
from zkgroups.core.rebalance.explanation import (
    GroupExplanation,
    PlacedPartition,
    Placement,
    StrategyReason,
    TopicDivision,
)
from zkgroups.core.rebalance.members import Stream, sorted_streams
from zkgroups.core.znodes.group_description import Obstacle
from zkgroups.core.znodes.own_nodes import Mark
from zkgroups.core.znodes.topic_partition import check_instance
from zkgroups.zookeeper.reading.doctor_reader import explain_group

from ..shared.arguments import complete_instances, group_argument
from ..shared.connect import connected_with_topics
from ..shared.global_options import Command
from ..shared.messages import complain
from ..shared.options import Format, Options
from ..shared.output import AT, Column, Output, Row, Table

# The explanation of a group in sentences. They say only what matters: partitions in place are counted.


_MOST_NAMES: Final = 8
"""How many topics, streams or ranges of partitions a line shows."""

_MOST_FINDINGS: Final = 3
"""How many findings of one kind are shown."""

_OBSTACLES: Final = {
    Obstacle.NOT_REGISTERED: "owned by {owner}, which is not registered",
    Obstacle.NOT_SUBSCRIBED: "owned by {owner}, which does not subscribe to the topic",
    Obstacle.REGISTRATION_UNREADABLE: "owned by {owner}, whose registration cannot be read",
    Obstacle.OWNER_UNREADABLE: "the owner node cannot be read",
}


def explanation_lines(found: GroupExplanation) -> Iterator[str]:
    """Yield the lines of the explanation, in paragraphs."""
    yield _headline(found)
    if isinstance(found.description.mark, Mark):
        yield f"It {found.description.mark.shown}: zkgroups members cannot join it."
    paragraphs: list[tuple[str, Callable[[GroupExplanation], Iterator[str]]]] = [
        ("", _strategy),
        ("Members, in this order:", _members),
        ("Not as planned:", _misplaced),
        ("What blocks:", _blocking),
        ("", _without),
    ]
    for title, lines in paragraphs:
        if some := list(lines(found)):
            yield ""
            yield from [title, *some] if title else some
    if not found.findings and found.members:
        yield ""
        yield "Nothing blocks the group."


def _headline(found: GroupExplanation) -> str:
    group, state = found.description.group, found.description.state.value
    if not found.members:
        return f"Group {group} is {state}: no member shares partitions, so nobody reads."
    planned = [each for each in found.partitions if each.planned is not None or each.placement is Placement.UNKNOWN]
    who = f"{_count(len(found.members), 'member')} {'shares' if len(found.members) == 1 else 'share'}"
    text = f"Group {group} is {state}. {who} {_count(len(planned), 'partition')}"
    if not found.plan_is_known:
        return f"{text}."
    away = sum(each.placement is not Placement.AS_PLANNED for each in found.partitions)
    return f"{text}; {f'not as planned: {away}' if away else 'all are as planned'}."


# The strategy


def _strategy(found: GroupExplanation) -> Iterator[str]:
    if not found.members:
        return
    yield f"Strategy {found.strategy}: {_reason(found)}"
    yield from _how(found)
    for topic in found.missing:
        yield f"  {topic}: not registered by Kafka, so nobody gets partitions of it."


def _reason(found: GroupExplanation) -> str:
    first = next(iter(found.members))
    silent = _some([id for id, each in found.members.items() if not each.assignors])
    match found.reason:
        case StrategyReason.AGREED:
            return f"the first one in the list of {first} that all members support."
        case StrategyReason.GIVEN:
            return f"as you say. In ZooKeeper, {silent} cannot announce one."
        case StrategyReason.INFERRED:
            return f"{silent} cannot announce one, but the owners are as it puts them."
        case StrategyReason.ASSUMED:
            return f"the default, as {silent} cannot announce one. --foreign-assignor roundrobin shows the other one."
        case StrategyReason.NOT_COMMON:
            lists = [f"{id} {'/'.join(each.assignors) or '(none)'}" for id, each in found.members.items()]
            return f"the default, because the members support no common one: {_some(lists)}."


def _how(found: GroupExplanation) -> Iterator[str]:
    if found.planner is not None:
        plan = "They follow the plan in ZooKeeper" if found.plan_is_written else "They wait for a new plan"
        yield f"{found.planner} plans for all members. {plan}."
        if not found.plan_is_known:
            yield "This command cannot compute it: it is a strategy of your program."
    for division in islice(found.divisions, _MOST_NAMES):
        yield f"  {_some(division.topics)}: {_division(division, found.strategy)}"
    if (more := len(found.divisions) - _MOST_NAMES) > 0:
        yield f"  and {more} more sets of topics"


def _division(division: TopicDivision, strategy: str) -> str:
    streams = _some([str(each) for each in islice(sorted_streams(division.readers), _MOST_NAMES)], division.streams)
    each = "" if len(division.topics) == 1 else " each"
    text = f"{_count(division.partitions, 'partition')}{each}, for {_count(division.streams, 'stream')} ({streams})"
    if strategy == "roundrobin":
        return f"{text}, dealt in turn"
    if strategy != "range":
        return text
    share, more = divmod(division.partitions, division.streams)
    if not share:
        return f"{text}: one for each of the first {more}, and none for the others"
    return f"{text}: {share} in a row for each" + (f", and one more for the first {more}" if more else "")


# Members and partitions


def _members(found: GroupExplanation) -> Iterator[str]:
    width = max(map(len, found.members), default=0)
    for id, registration in found.members.items():
        dialect = registration.dialect
        owned = [each.at for each in found.partitions if each.owner == id]
        planned = [each.at for each in found.partitions if each.planned is not None and each.planned.instance == id]
        text = f"owns {_shown(owned)}"
        if found.plan_is_known and owned != planned:
            text += f"; should own {_shown(planned)}"
        if dialect is Dialect.ZKGROUPS and not registration.assignors:
            text += "; chooses its partitions itself, whatever the plan is"
        yield f"  {id:{width}}  {dialect.value:<8}  {text}"
    for id in found.idle:
        yield f"  {id:{width}}  {'-':<8}  gets no share: no client is behind it, or its subscription cannot be read"


def _misplaced(found: GroupExplanation) -> Iterator[str]:
    alike: dict[tuple[object, ...], list[PlacedPartition]] = {}
    for each in found.partitions:
        if each.placement not in (Placement.AS_PLANNED, Placement.UNKNOWN):
            alike.setdefault((each.placement, each.owner, _instance(each.planned), each.obstacle), []).append(each)
    for some in alike.values():
        yield f"  {_shown(each.at for each in some)}: {_problem(some, found)}."


def _problem(some: Sequence[PlacedPartition], found: GroupExplanation) -> str:
    """Return why these partitions, which have the same problem, are not as planned."""
    each, them = some[0], "it" if len(some) == 1 else "them"
    planned = _instance(each.planned)
    if each.obstacle is not None:
        what = _OBSTACLES[each.obstacle].format(owner=each.owner)
        return what if planned is None else f"{what}, so {planned} cannot claim {them}"
    if planned is None:
        reason = "its partitions are unknown" if each.at.topic in found.missing else "no member subscribes to the topic"
        return f"owned by {each.owner}, but {reason}"
    if each.owner is None:
        return f"no owner; {planned} should claim {them}{' in its next rebalance' if _is_scala(planned, found) else ''}"
    return f"owned by {each.owner}; {planned} waits until {each.owner} releases {them}"


def _is_scala(id: str, found: GroupExplanation) -> bool:
    return id in found.members and found.members[id].dialect is Dialect.SCALA


def _blocking(found: GroupExplanation) -> Iterator[str]:
    for code, some in groupby(sorted(found.findings, key=lambda each: each.code), key=lambda each: each.code):
        findings = list(some)
        for each in findings[:_MOST_FINDINGS]:
            yield from _finding(each)
        if (more := len(findings) - _MOST_FINDINGS) > 0:
            doctor = command("doctor", found.description.group)
            yield f"  and {more} more of {code.value}: {doctor}"


def _finding(found: Finding) -> Iterator[str]:
    yield f"  {found.what}"
    yield f"    {found.fix}"


# Without some members


def _without(found: GroupExplanation) -> Iterator[str]:
    if not found.without:
        return
    goes = f"If {_some(found.without)} {'leaves' if len(found.without) == 1 else 'leave'}"
    staying = [id for id in found.members if id not in found.without]
    if not staying:
        yield f"{goes}, nobody reads: no other member shares partitions."
        return
    strategy = "" if found.strategy_without == found.strategy else f" The strategy becomes {found.strategy_without}."
    if not any(each.planned_without for each in found.partitions):
        yield f"{goes}, only the others can compute their plan.{strategy}"
        return
    changed = [each for each in found.partitions if _instance(each.planned_without) != _instance(each.planned)]
    yield f"{goes}, partitions that move: {len(changed)}.{strategy}"
    for id in staying:
        yield from _changes(id, changed)
    if left := [each.at for each in changed if each.planned_without is None]:
        yield f"  nobody subscribes any more to {_shown(left)}"


def _changes(id: str, changed: Sequence[PlacedPartition]) -> Iterator[str]:
    gets = [each.at for each in changed if _instance(each.planned_without) == id]
    gives = [each.at for each in changed if _instance(each.planned) == id]
    texts = [f"gets {_shown(gets)}" if gets else "", f"gives up {_shown(gives)}" if gives else ""]
    if gets or gives:
        yield f"  {id} {' and '.join(filter(None, texts))}"


def _instance(stream: Stream | None) -> str | None:
    return None if stream is None else stream.instance


# Words


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _some(names: Sequence[str], total: int | None = None) -> str:
    """List the first names, and count the others."""
    shown = names[:_MOST_NAMES]
    more = (len(names) if total is None else total) - len(shown)
    return ", ".join(shown) + (f" and {more} more" if more > 0 else "")


def _shown(partitions: Iterable[TopicPartition]) -> str:
    """List partitions by topic, with consecutive numbers as ranges."""
    topics: dict[str, list[int]] = {}
    for at in sorted(partitions):
        topics.setdefault(at.topic, []).append(at.partition)
    return _some([f"{topic} {_some(_ranges(numbers))}" for topic, numbers in topics.items()]) or "nothing"


def _ranges(numbers: Sequence[int]) -> list[str]:
    """Write sorted numbers as ranges.

    >>> _ranges([0, 1, 2, 5])
    ['0-2', '5']
    """
    runs = groupby(enumerate(numbers), key=lambda pair: pair[1] - pair[0])
    ends = [(run[0][1], run[-1][1]) for run in (list(pairs) for _, pairs in runs)]
    return [str(first) if first == last else f"{first}-{last}" for first, last in ends]


_PARTITIONS: Final = Table(
    "partitions",
    key="partition",
    columns=(
        *AT,
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

    Brokers in KRaft mode do not register their topics in ZooKeeper: give the brokers with -b.

    The plan is what zkgroups and Scala members compute. Other clients may come to other results: members of
    wvanbergen/kafka sort partitions by their leaders first.

    \b
    Example:
      zkgroups -z zk1:2181/kafka groups explain billing
      zkgroups -z zk1:2181/kafka groups explain billing --without anna
      zkgroups -z zk1:2181/kafka groups explain billing -o json
    """
    output = Output(options)
    with connected_with_topics(options, report=complain) as registry:
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
        "partitions": [
            {
                "topic": each.at.topic,
                "partition": each.at.partition,
                "owner": each.owner,
                "planned": _text(each.planned),
                "placement": each.placement.value,
                "obstacle": each.obstacle and each.obstacle.value,
                "planned_without": _text(each.planned_without),
            }
            for each in found.partitions
        ],
        "findings": [
            {"severity": each.severity.value, "code": each.code.value, "path": each.path, "what": each.what}
            | {"fix": each.fix}
            for each in found.findings
        ],
        "migration": mark.shown if isinstance(mark, Mark) else None,
        "without": list(found.without),
        "strategy_without": found.strategy_without,
    }


def _text(stream: Stream | None) -> str | None:
    return None if stream is None else stream.instance
