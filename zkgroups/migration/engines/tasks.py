"""The work on rows: functions from Arrow batches to Arrow batches, which an engine calls once per task.

A task opens its own connections, and processes chunks of whole groups. It can be repeated after it was killed, with the
same result.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Protocol

from ...core.migration.group_status import GroupStatus
from ...core.migration.plan_rows import MatchRow, PlanRow, ReportRow
from ...core.migration.tally import Tally
from ...kafka import BrokerOptions, Brokers
from ...rare_collections import rare_collections
from ...zookeeper.connection_options import ConnectionOptions
from ...zookeeper.registry import Registry
from ..apply import apply_groups
from ..plan import Planner, PlanSettings, SourceNode
from ..report import check_cluster
from ..rollback import rollback_groups
from ..source_nodes import NamedGroup, source_chunks
from ..verify import status_of_groups, verify_groups
from .arrow_rows import batches
from .chunks import group_chunks
from .tallies import TallySum


@dataclass(frozen=True, slots=True)
class MigrationConnections:
    """The connections of a migration to brokers and ZooKeeper. They have no secrets, so they can be sent to workers."""

    brokers: BrokerOptions
    zookeeper: ConnectionOptions | None

    @classmethod
    def of(cls, brokers: BrokerOptions, zookeeper: ConnectionOptions | None) -> MigrationConnections:
        """Drop the options of a subclass, so that workers need not import that class."""
        return cls(brokers, None if zookeeper is None else zookeeper.connection)

    def check(self, cluster: str | None) -> None:
        """Connect to both, and compare the Kafka cluster with that of the plan."""
        with ExitStack() as stack:
            brokers, _registry = self.open(stack)
            check_cluster(cluster, brokers)

    def open(self, stack: ExitStack) -> tuple[Brokers, Registry | None]:
        """Connect to both until the stack is closed."""
        registry = None if self.zookeeper is None else stack.enter_context(self.zookeeper.connect())
        return stack.enter_context(self.brokers.connect()), registry


# Planning


@dataclass(frozen=True, slots=True)
class PlanGroups:
    """Reads groups from ZooKeeper, and plans them."""

    zookeeper: ConnectionOptions
    brokers: BrokerOptions | None
    settings: PlanSettings
    counted: TallySum

    def __call__(self, found: Iterator[Any]) -> Iterator[Any]:
        with rare_collections(), ExitStack() as stack:
            registry = None
            planner = _LazyPlanner(self.brokers, self.settings, self.counted, stack)
            for groups in group_chunks(NamedGroup, found):
                if registry is None:  # a task without rows does not connect
                    registry = stack.enter_context(self.zookeeper.connect())
                    registry.sync()
                for chunk in source_chunks(registry, groups, self.settings.topics):
                    yield from planner.batches(chunk)


@dataclass(frozen=True, slots=True)
class PlanNodes:
    """Plans groups whose nodes were read before."""

    brokers: BrokerOptions | None
    settings: PlanSettings
    counted: TallySum

    def __call__(self, found: Iterator[Any]) -> Iterator[Any]:
        with rare_collections(), ExitStack() as stack:
            planner = _LazyPlanner(self.brokers, self.settings, self.counted, stack)
            for chunk in group_chunks(SourceNode, found):
                yield from planner.batches(chunk)


class _LazyPlanner:
    """A planner that connects when it gets the first groups."""

    def __init__(
        self, brokers: BrokerOptions | None, settings: PlanSettings, counted: TallySum, stack: ExitStack
    ) -> None:
        self._brokers = brokers
        self._settings = settings
        self._counted = counted
        self._stack = stack
        self._planner: Planner | None = None

    def batches(self, nodes: Sequence[SourceNode]) -> Iterator[Any]:
        """Plan these groups."""
        if self._planner is None:
            brokers = None if self._brokers is None else self._stack.enter_context(self._brokers.connect())
            self._planner = Planner(self._settings, brokers)
        return _batches(PlanRow, self._planner.plan(nodes), self._counted)


def _batches(kind: type[Any], rows: Sequence[Any], counted: TallySum) -> Iterator[Any]:
    counted.add(Tally.of(kind, rows))
    return batches(kind, rows)


# Steps of a plan


class ChunkOperation(Protocol):
    """The work on a chunk of whole groups."""

    kind: type[Any]
    """The type of the results."""

    def __call__(self, rows: Sequence[PlanRow], brokers: Brokers, registry: Registry | None, /) -> Sequence[Any]:
        """Process these groups and return the results."""


@dataclass(frozen=True, slots=True)
class ChunkTask:
    """Processes the rows of a plan chunk by chunk."""

    connections: MigrationConnections
    operation: ChunkOperation
    constants: Mapping[str, Any]
    """The values that are the same in all rows of the plan."""
    counted: TallySum

    def __call__(self, found: Iterator[Any]) -> Iterator[Any]:
        with rare_collections(), ExitStack() as stack:
            opened: tuple[Brokers, Registry | None] | None = None
            for chunk in group_chunks(PlanRow, found, self.constants):
                opened = opened or self.connections.open(stack)  # a task without rows does not connect
                yield from _batches(self.operation.kind, self.operation(chunk, *opened), self.counted)


@dataclass(frozen=True, slots=True)
class ApplyOperation:
    """`apply_groups` with its options."""

    execute: bool

    kind = ReportRow

    def __call__(self, rows: Sequence[PlanRow], brokers: Brokers, registry: Registry | None, /) -> Sequence[ReportRow]:
        return apply_groups(rows, brokers, registry, execute=self.execute)


@dataclass(frozen=True, slots=True)
class RollbackOperation:
    """`rollback_groups` with its options."""

    execute: bool
    force: bool
    to_zookeeper: bool

    kind = ReportRow

    def __call__(self, rows: Sequence[PlanRow], brokers: Brokers, registry: Registry | None, /) -> Sequence[ReportRow]:
        options = {"execute": self.execute, "force": self.force, "to_zookeeper": self.to_zookeeper}
        return rollback_groups(rows, brokers, registry, **options)


@dataclass(frozen=True, slots=True)
class VerifyOperation:
    """`verify_groups`."""

    kind = MatchRow

    def __call__(self, rows: Sequence[PlanRow], brokers: Brokers, registry: Registry | None, /) -> Sequence[MatchRow]:
        return verify_groups(rows, brokers, registry)


@dataclass(frozen=True, slots=True)
class StatusOperation:
    """`status_of_groups`."""

    kind = GroupStatus

    def __call__(
        self, rows: Sequence[PlanRow], brokers: Brokers, registry: Registry | None, /
    ) -> Sequence[GroupStatus]:
        return status_of_groups(rows, brokers, registry)
