"""What has to be known to carry a plan out, in whichever direction."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress

from ..core.plain import of_all
from ..core.plan import PlanRow
from ..exceptions import ZkgroupsException
from ..kafka import Brokers
from ..zookeeper import locks
from ..zookeeper.registry import Registry
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
        whose = {"cluster": of_all(next(iter(self._plans.values())), "cluster"), "plan": self._plan}
        taken = locks.take(self._registry.handle, targets, **whose)
        for target, error in taken.items():
            self.leave(target, [] if error is None else [str(error)])
        try:
            yield
        finally:
            with suppress(ZkgroupsException):  # they end with the session at the latest
                locks.release(self._registry.handle, [each for each in taken if taken[each] is None], **whose)
