"""Which member of a group must write the shared plan, and who takes over if it hangs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class AwaitedPlan:
    """The member that must write the next plan, and the version of the plan node that it must replace."""

    planner: str
    version: int


class PlannerElection:
    """Decides which member must write the plan, from the view of the member `own`. It has no clock: see `skip`.

    Members that hang are skipped in growing steps: one, two, four. A member skips itself only after its own turn. As
    soon as another member writes a plan, all start again with the lowest id. So members that see the group differently
    replace each other's plans only once per time limit.

    >>> planners = PlannerElection("e")
    >>> awaited = planners.awaited("abcde", version=4)
    >>> planners.skip(awaited), planners.skip(planners.awaited("abcde", version=4))
    (['a'], ['b', 'c'])
    >>> [planners.awaited("abcde", version).planner for version in (4, 5)]
    ['d', 'a']
    """

    def __init__(self, own: str) -> None:
        self._own = own
        self._version: int | None = None
        self._in_order: list[str] = []
        self._start_again()

    def _start_again(self) -> None:
        self._skipped: frozenset[str] = frozenset()
        self._step = 1

    def awaited(self, ids: Iterable[str], version: int) -> AwaitedPlan:
        """Return the plan to wait for: by the lowest id that was not skipped since the plan node got this version."""
        self._in_order = sorted(ids)
        if version != self._version or self._skipped.issuperset(self._in_order):
            self._start_again()
        self._version = version
        return AwaitedPlan(next(id for id in self._in_order if id not in self._skipped), version)

    def skip(self, awaited: AwaitedPlan) -> list[str]:
        """Skip a planner that did not write in time; repeatedly, also the planners after it. Return the skipped ids.

        If the plan node has a new version by now, nobody is skipped.
        """
        if awaited.version != self._version:
            return []
        later = [id for id in self._in_order if id > awaited.planner and id != self._own]
        skipped = [awaited.planner, *later][: 1 if awaited.planner == self._own else self._step]
        self._skipped |= set(skipped)
        self._step *= 2
        return skipped

    def wrote(self, version: int) -> None:
        """Note that this member has replaced that version. The planners that it skipped stay skipped."""
        if version == self._version:
            self._version = version + 1
