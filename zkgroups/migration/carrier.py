"""What has to be known to carry a plan out, in whichever direction."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..core.plain import of_all
from ..core.plan import PlanRow
from ..kafka import Brokers
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
