"""The findings of the doctor in the nodes that every sweep reads anyway.

Checks that need more requests are left to `zkgroups doctor`: open access control lists, nodes below leaves, empty
directories. A finding that can disappear by itself is shown when two checks in a row have found it.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from ...core.doctor.all_checks import CHECKS, run_checks, run_log_checks, worst_first
from ...core.doctor.findings import CheckCode, Finding
from ...core.doctor.group_nodes import GroupNodes
from ...core.offsets.lag import GroupLag
from ...core.znodes.group_view import GroupView

LEFT_TO_DOCTOR: Final = frozenset({CheckCode.EMPTY_GROUP, CheckCode.NESTED_NODE, CheckCode.OPEN_ACL})
_TRANSIENT: Final = frozenset(check.code for check in CHECKS if check.is_transient)


class Findings:
    """The findings of all groups."""

    def __init__(self, *, stale_ms: int) -> None:
        self._stale_ms = stale_ms
        self._seen: dict[str, frozenset[tuple[CheckCode, str]]] = {}
        self._shown: dict[str, tuple[Finding, ...]] = {}

    def check(self, view: GroupView, lag: GroupLag, topics: Collection[str] | None, now_ms: int) -> tuple[Finding, ...]:
        """Check a group, and return its confirmed findings."""
        nodes = GroupNodes(view, topics=topics, now_ms=now_ms, stale_ms=self._stale_ms)
        found = [each for each in run_checks(nodes) if each.code not in LEFT_TO_DOCTOR]
        found = worst_first([*found, *run_log_checks(lag)])
        before = self._seen.get(view.group, frozenset())
        self._seen[view.group] = frozenset((each.code, each.path) for each in found)
        shown = tuple(each for each in found if each.code not in _TRANSIENT or (each.code, each.path) in before)
        self._shown[view.group] = shown
        return shown

    def last(self, group: str) -> tuple[Finding, ...]:
        """Return the findings of the last check of a group."""
        return self._shown.get(group, ())

    def keep_only(self, groups: Collection[str]) -> None:
        """Forget groups that do not exist any more."""
        for known in (self._seen, self._shown):
            for name in [name for name in known if name not in groups]:
                del known[name]
