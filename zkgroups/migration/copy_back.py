"""Copying progress from the brokers back to ZooKeeper: forward only, and only while no instance is registered there."""

from __future__ import annotations

from collections.abc import Mapping

from ..core.layouts.layout import OneOffsetPerNode
from ..core.layouts.legacy import LEGACY
from ..core.migration.changes_since_plan import PlanRows, instance_obstacles
from ..core.migration.obstacles import Obstacle, ObstacleKind
from ..core.migration.plan_rows import MigrationStep, Outcome
from ..core.migration.rollback_rules import forward_only, progress
from ..core.migration.source_and_target_state import OffsetKey, OffsetNode, SourceState, TargetState
from ..core.znodes.topic_partition import TopicPartition
from ..core.znodes.values import CommittedOffset
from ..exceptions import UnavailableError
from ..input_errors import ZkgroupsException
from ..zookeeper.layout_writer import advance_offsets
from ..zookeeper.registry import Registry
from ..zookeeper.session.registry_context import context_of
from .report import Answers, Report


class CopyBack:
    """Copies the progress of groups that this plan has moved."""

    def __init__(self, registry: Registry, layout: OneOffsetPerNode, report: Report, *, execute: bool) -> None:
        self._registry = registry
        self._layout = layout
        self._report = report
        self._execute = execute

    def copy(
        self, plans: Mapping[str, PlanRows], sources: Mapping[str, SourceState], states: Mapping[str, TargetState]
    ) -> dict[str, list[Obstacle]]:
        """Copy the progress of these targets. Return the obstacles of targets that could not be copied completely."""
        left = {}
        for target, rows in plans.items():
            source = sources[target]
            if obstacles := instance_obstacles(source) or self._copy_group(rows, source, states[target]):
                left[target] = obstacles
        return left

    def _copy_group(self, rows: PlanRows, source: SourceState, state: TargetState) -> list[Obstacle]:
        wanted = forward_only(progress(rows, state.committed), source.offsets)
        if not wanted:
            return []
        if not self._execute:
            for at, offset in wanted.items():
                self._add(rows, at, source, Outcome.WOULD_WRITE, detail=f"{offset} would be written")
            return []
        answers = self._write(rows[0].group, wanted)
        for at, error in answers.items():
            if error is None:
                self._add(rows, at, source, Outcome.WRITTEN, written=wanted[at])
            else:
                self._add(rows, at, source, Outcome.FAILED, detail=str(error))
        errors = [error for error in answers.values() if error is not None]
        return [Obstacle(ObstacleKind.COPY_BACK_FAILED, detail=str(error)) for error in errors[:1]]

    def _write(self, group: str, wanted: Mapping[TopicPartition, int]) -> Answers:
        """Write these offsets, unless ZooKeeper has higher ones by now."""
        offsets = self._registry.group(group).offsets
        try:
            if self._layout != LEGACY:
                return advance_offsets(context_of(self._registry), self._layout, group, wanted)
            found = offsets.fetch_many(wanted)
            nodes: dict[OffsetKey, OffsetNode] = {
                (at.topic, at.partition): OffsetNode(None, it.offset if isinstance(it, CommittedOffset) else None)
                for at, it in found.items()
            }
            behind = forward_only(wanted, nodes)
            return dict.fromkeys(behind) | offsets.replace(behind, expected=found)
        except UnavailableError:
            raise
        except ZkgroupsException as error:
            return dict.fromkeys(wanted, error)

    def _add(
        self,
        rows: PlanRows,
        at: TopicPartition,
        source: SourceState,
        outcome: Outcome,
        *,
        written: int | None = None,
        detail: str = "",
    ) -> None:
        row = rows[0]._replace(topic=at.topic, partition=at.partition)
        node = source.offsets.get((at.topic, at.partition))
        found = None if node is None else node.offset
        self._report.add(MigrationStep.TO_ZOOKEEPER, row, outcome, found=found, written=written, detail=detail)
