"""The base of `apply` and `rollback`: the groups of one call, the reasons to leave some unchanged, and their locks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress

from ..core.columns import column
from ..core.layouts.parse_layout import parse_layout
from ..core.migration.changes_since_plan import PlanRows
from ..core.migration.obstacles import Obstacle, ObstacleKind
from ..core.migration.target_names import name_error
from ..input_errors import ZkgroupsException
from ..kafka import Brokers
from ..zookeeper.admin.migration_target_locks import MigrationTargetLocks
from ..zookeeper.registry import Registry
from ..zookeeper.session.registry_context import context_of
from .report import Report


class RunContext:
    """One call for whole groups of one plan. `plans` maps each target to its rows."""

    def __init__(
        self,
        plans: Mapping[str, PlanRows],
        brokers: Brokers,
        registry: Registry | None,
        *,
        execute: bool,
        writers_stopped: bool,
    ) -> None:
        self._first = next(iter(plans.values()))[0]
        self._plan = self._first.plan
        self._layout = parse_layout(self._first.layout)
        self._plans = plans
        self._brokers = brokers
        self._registry = registry
        self._execute = execute
        self._writers_stopped = writers_stopped
        self._report = Report()
        self._left: dict[str, list[Obstacle]] = {}
        """Why targets are left unchanged."""
        self._locks: MigrationTargetLocks | None = None
        self._unlocked: set[str] = set()
        """Targets that are left because their locks were lost: another run may be working on them."""

    def leave(self, target: str, obstacles: Sequence[Obstacle]) -> None:
        """Leave this target unchanged if there are any obstacles."""
        if obstacles:
            self._left.setdefault(target, []).extend(obstacles)

    def writers_unknown(self) -> list[Obstacle]:
        """Return an obstacle if jobs may still write the offsets in ZooKeeper. For a dry run, it does not matter."""
        if not self._execute or self._writers_stopped or self._registry is None or self._layout.has_registrations:
            return []
        return [Obstacle(ObstacleKind.WRITERS_UNKNOWN, detail=self._layout.location)]

    def leave_invalid_names(self) -> None:
        """Leave groups with invalid names, as in a plan that was edited."""
        for target, rows in self._plans.items():
            for name in (column(rows, "group")[0], target):
                if (error := name_error(name)) is not None:
                    self.leave(target, [invalid_name(name, error)])

    @contextmanager
    def locked(self, targets: Iterable[str], *, rollback: bool = False) -> Iterator[None]:
        """Lock these targets. A target that another plan has locked is left unchanged.

        Pass `rollback` for a rollback: it and the other steps of a plan leave the targets of each other unchanged.
        """
        if self._registry is None or not self._execute:
            yield
            return
        self._locks = MigrationTargetLocks(
            context_of(self._registry), cluster=self._first.cluster, plan=self._plan, rollback=rollback
        )
        taken = self._locks.take(targets)
        for target, error in taken.items():
            self.leave(target, [] if error is None else [Obstacle(ObstacleKind.LOCKED, detail=str(error))])
        try:
            yield
        finally:
            with suppress(ZkgroupsException):  # they end with the session at the latest
                self._locks.release(target for target, error in taken.items() if error is None)

    def lost_locks(self, targets: Iterable[str]) -> list[str]:
        """Return the targets whose locks were lost, as after a pause that was longer than the session timeout."""
        return [] if self._locks is None else self._locks.lost(targets)

    def leave_unlocked(self, targets: Iterable[str]) -> None:
        """Leave targets whose locks were lost. Call this right before they are written."""
        for target in self.lost_locks(targets):
            self._unlocked.add(target)
            self.leave(target, [Obstacle(ObstacleKind.LOCK_LOST)])


def invalid_name(name: str, error: str) -> Obstacle:
    """Return the obstacle for a name that no group can have."""
    return Obstacle(ObstacleKind.INVALID_NAME, (name,), 1, detail=error)
