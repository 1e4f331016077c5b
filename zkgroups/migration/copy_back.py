"""Carrying to ZooKeeper what was read on Kafka since: forward only, and only while nobody is registered there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from ..core.migration.apply_rules import Place, Rows, SourceSeen, TargetSeen, Znode, forward, progress, registered
from ..core.migration.plan_rows import Outcome, Step
from ..core.znodes.topic_partition import TopicPartition
from ..core.znodes.values import CommittedOffset
from ..exceptions import UnavailableError, ZkgroupsException
from ..zookeeper.registry import Registry
from .current_state import look_at_sources
from .report import Answers, Report


class Returning:
    """What is carried of some groups that this plan has moved."""

    def __init__(self, registry: Registry, report: Report, *, execute: bool) -> None:
        self._registry = registry
        self._report = report
        self._execute = execute

    def carry(self, plans: Mapping[str, Rows], seen: Mapping[str, TargetSeen]) -> dict[str, list[str]]:
        """Why targets must be left as they are: not all that was read there is in ZooKeeper."""
        sources = look_at_sources(self._registry, (rows[0].group for rows in plans.values()))
        left = {}
        for target, rows in plans.items():
            source = sources[rows[0].group]
            reasons = registered(source) or self._carry(rows, source, seen[target])
            if reasons:
                left[target] = reasons
        return left

    def _carry(self, rows: Rows, source: SourceSeen, seen: TargetSeen) -> list[str]:
        wanted = forward(progress(rows, seen.committed), source.offsets)
        if not wanted:
            return []
        if not self._execute:
            for at, offset in wanted.items():
                self._tell(rows, at, source, Outcome.WOULD_WRITE, detail=f"{offset} would be written")
            return []
        answers = self._write(rows[0].group, wanted)
        for at, error in answers.items():
            if error is None:
                self._tell(rows, at, source, Outcome.WRITTEN, written=wanted[at])
            else:
                self._tell(rows, at, source, Outcome.FAILED, detail=str(error))
        return [f"not all was carried to ZooKeeper: {error}" for error in filter(None, answers.values())][:1]

    def _write(self, group: str, wanted: Mapping[TopicPartition, int]) -> Answers:
        """Over what is there at this moment, and never over anything that is further."""
        offsets = self._registry.group(group).offsets
        try:
            found = offsets.fetch_many(wanted)
            numbers: dict[Place, Znode] = {
                (at.topic, at.partition): Znode(None, it.offset if isinstance(it, CommittedOffset) else None)
                for at, it in found.items()
            }
            behind = forward(wanted, numbers)
            return dict.fromkeys(behind) | offsets.replace(behind, expected=found)
        except UnavailableError:
            raise
        except ZkgroupsException as error:
            return dict.fromkeys(wanted, error)

    def _tell(
        self,
        rows: Rows,
        at: TopicPartition,
        source: SourceSeen,
        outcome: Outcome,
        *,
        written: int | None = None,
        detail: str = "",
    ) -> None:
        row = replace(rows[0], topic=at.topic, partition=at.partition)
        found = source.offsets.get((at.topic, at.partition))
        before = None if found is None else found.offset
        self._report.add(Step.TO_ZOOKEEPER, row, outcome, found=before, written=written, detail=detail)
