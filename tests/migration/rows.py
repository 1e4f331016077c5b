"""Plans of some groups, made from both sides by `decide` alone, and helpers to inspect both sides."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from zkgroups import Registry, TopicPartition
from zkgroups.core.kafka_values import NativeOffset, OffsetRange
from zkgroups.core.migration.offset_decision import Action, Decision, NoOffset, Reason, decide
from zkgroups.core.migration.plan_rows import PlanRow, ReportRow
from zkgroups.core.znodes.own_nodes import Mark, MarkState
from zkgroups.core.znodes.paths import join
from zkgroups.core.znodes.values import MalformedNode
from zkgroups.kafka import Brokers
from zkgroups.zookeeper.admin import migration_marks as marks

PLAN = "plan-1"
_ALL = OffsetRange(0, 2**63 - 1)


def plan_of(registry: Registry, brokers: Brokers, targets: Mapping[str, str], **options: Any) -> list[PlanRow]:
    """Plan these groups, given the target of each. `options` are fields of the rows."""
    before = brokers.committed(targets.values())
    rows = []
    for group, target in targets.items():
        there, seen = before[target], set()
        for found in registry.offsets([group]):
            at = _at(found) if isinstance(found, MalformedNode) else found.at
            offset = found if isinstance(found, MalformedNode) else found.offset
            seen.add(at)
            source = NoOffset.of(offset) if isinstance(offset, MalformedNode) else offset
            decision = decide(source, _ALL, there[at].offset if at in there else None)
            zxid = registry.client.get(join("/consumers", group, "offsets", at.topic, str(at.partition)))[1].mzxid
            rows.append(row(group, target, at, decision, there.get(at), offset, zxid, **options))
        only = Decision(Action.SKIP, Reason.ONLY_ON_TARGET)
        rows += [row(group, target, at, only, there[at], **options) for at in there if at not in seen]
    return rows


def row(
    group: str,
    target: str,
    at: TopicPartition,
    decision: Decision,
    before: NativeOffset | None = None,
    offset: int | MalformedNode | None = None,
    zxid: int | None = None,
    **options: Any,
) -> PlanRow:
    """Return one row of a plan."""
    fields: dict[str, Any] = {
        "plan": PLAN,
        "planned_ms": 1_795_255_543_000,
        "source": "zk1:2181/kafka",
        "brokers": "kafka1:9092",
        "retention_seconds": 604_800.0,
        "group": group,
        "topic": at.topic,
        "partition": at.partition,
        "offset": offset if isinstance(offset, int) else None,
        "zxid": zxid,
        "committed_ms": None,
        "stale": False,
        "problem": offset.reason if isinstance(offset, MalformedNode) else None,
        "target": target,
        "log_start": None,
        "log_end": None,
        "before": None if before is None else before.offset,
        "before_metadata": None if before is None else before.metadata,
        "before_epoch": None if before is None else before.leader_epoch,
        "action": decision.action,
        "reason": decision.reason,
        "planned": decision.offset,
        "obstacles": (),
    }
    return PlanRow(**fields | options)


def _at(found: MalformedNode) -> TopicPartition:
    topic, partition = found.path.split("/")[-2:]
    return TopicPartition(topic, int(partition))


def outcomes(report: Iterable[ReportRow]) -> set[str]:
    """Return the outcomes of all rows."""
    return {row.outcome.value for row in report}


def details(report: Iterable[ReportRow], target: str) -> set[str]:
    """Return the details of a target's rows."""
    return {row.detail for row in report if row.target == target}


def numbers(brokers: Brokers, target: str) -> dict[TopicPartition, int]:
    """Return the offsets of a target."""
    return {at: found.offset for at, found in brokers.committed([target])[target].items()}


def tree(client: Any, path: str) -> dict[str, bytes]:
    """Return the data of a znode and all nodes below it."""
    found = {path: client.get(path)[0]}
    for name in client.get_children(path):
        found |= tree(client, f"{path.rstrip('/')}/{name}")
    return found


def states(registry: Registry, groups: Iterable[str]) -> dict[str, MarkState]:
    """Return the states of the marks."""
    found = marks.read(registry._context, groups)
    return {group: mark.state for group, mark in found.items() if isinstance(mark, Mark)}
