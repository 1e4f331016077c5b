"""What has to be known to carry a plan out, in whichever direction."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress

from ..core.migration.plain_groups import of_all
from ..core.migration.plan_rows import PlanRow
from ..core.migration.rules import bad_target
from ..exceptions import ZkgroupsException
from ..kafka import Brokers
from ..zookeeper.admin.migration_locks import Locks
from ..zookeeper.registry import Registry
from ..zookeeper.session.registry_context import context_of
from .report import Report


class Carrier:
    """One call, for some whole groups of one plan: their rows by targets."""

    def __init__(
        self, plans: Mapping[str, Sequence[PlanRow]], brokers: Brokers, registry: Registry | None, *, execute: bool
    ) -> None:
        self._plan: str = of_all(next(iter(plans.values())), "plan")
        self._plans = plans
        self._brokers = brokers
        self._registry = registry
        self._execute = execute
        self._report = Report()
        self._left: dict[str, list[str]] = {}
        """Why the targets are left that are."""
        self._locks: Locks | None = None

    def leave(self, target: str, reasons: Sequence[str]) -> None:
        """Leave this target unchanged, if there are any reasons."""
        if reasons:
            self._left.setdefault(target, []).extend(reasons)

    @contextmanager
    def locked(self, targets: Iterable[str]) -> Iterator[None]:
        """Lock these targets against other plans. A target that another plan has locked is left unchanged."""
        if self._registry is None or not self._execute:
            yield
            return
        cluster = of_all(next(iter(self._plans.values())), "cluster")
        self._locks = Locks(context_of(self._registry), cluster=cluster, plan=self._plan)
        taken = self._locks.take(targets)
        for target, error in taken.items():
            self.leave(target, [] if error is None else [str(error)])
        try:
            yield
        finally:
            with suppress(ZkgroupsException):  # they end with the session at the latest
                self._locks.release(target for target, error in taken.items() if error is None)

    def lost(self, targets: Iterable[str]) -> list[str]:
        """Those of these targets whose locks are lost, as after a pause that was longer than the session."""
        return [] if self._locks is None else self._locks.lost(targets)

    def leave_bad_names(self) -> None:
        """Leave groups with names that can be no group's, as in a plan that was edited."""
        for target, rows in self._plans.items():
            for name in (of_all(rows, "group"), target):
                reason = bad_target(name)
                self.leave(target, [] if reason is None else [f"a group cannot be called {name!r}: {reason}"])

    def leave_unlocked(self, targets: Iterable[str]) -> None:
        """Leave targets whose locks are lost; to be called right before they are written."""
        for target in self.lost(targets):
            self.leave(target, ["the lock of this target was lost before anything was written: try again"])
