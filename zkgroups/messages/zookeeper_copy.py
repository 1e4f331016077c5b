"""The copy in ZooKeeper of offsets that are committed on the brokers.

It is written first, in the transaction that checks the claims. So the brokers get no offset of a consumer that has lost
its claims. The copy never goes back by itself: while it is ahead, only the claims are checked.
"""

from __future__ import annotations

from collections.abc import Mapping

from ..consumer.generation import Offsets
from ..core.offsets.copy_rules import compared
from ..core.znodes.topic_partition import TopicPartition
from ..core.znodes.values import CommittedOffset
from ..exceptions import OffsetWouldGoBackError
from ..zookeeper.claim import Claims
from ..zookeeper.group import Consumergroup
from .side_reports import SideReports


class ZooKeeperCopy:
    """The copies of one member. `writes`: with False, only report differences."""

    def __init__(self, group: Consumergroup, reports: SideReports, *, writes: bool) -> None:
        self._group = group
        self._reports = reports
        self._writes = writes

    def begin(self, truth: Mapping[TopicPartition, int | None], claims: Claims) -> None:
        """Compare the copies with these offsets, report differences, and replace copies that are behind."""
        nodes = self._group.offsets.fetch_many(sorted(truth))
        copies = {at: node.offset if isinstance(node, CommittedOffset) else None for at, node in nodes.items()}
        found = compared(truth, copies)
        self._reports.compared(found)
        behind = {at: each.truth for at, each in found.items() if each.is_behind and each.truth is not None}
        if behind and self._writes:
            self._commit(claims, behind, {})

    def write(self, claims: Claims, offsets: Offsets, back_from: Offsets) -> None:
        """Write these offsets, and check all their claims. Those of `back_from` may replace higher ones."""
        written = self._commit(claims, offsets, back_from)
        if written.keys() != offsets.keys():
            claims.check()

    def _commit(self, claims: Claims, offsets: Offsets, back_from: Offsets) -> Offsets:
        """Write these offsets except where the copy is ahead. Return those that were written."""
        due, allowed = dict(offsets), dict[TopicPartition, int]()
        while due:
            try:
                claims.commit(due, backward=allowed)
                break
            except OffsetWouldGoBackError as error:
                if error.at in back_from:
                    allowed[error.at] = error.committed
                for at in {error.at, *error.also} - back_from.keys():
                    del due[at]
        return due
