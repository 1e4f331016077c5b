"""Offsets that a consumer commits on the brokers, or also there, while its group is in ZooKeeper."""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from typing import Final

from ..consumer.generation import Offsets
from ..consumer.member_offsets import OffsetsInZooKeeper, Write
from ..core.znodes.topic_partition import TopicPartition
from ..core.znodes.values import CommittedOffset, CurrentOffset
from ..deadline import uptime
from ..exceptions import ZkgroupsException
from ..zookeeper.claim import Claims
from ..zookeeper.group import Consumergroup
from ..zookeeper.session.reentrant_locks import not_held
from .broker_copy import BrokerCopy
from .broker_offsets import BrokerOffsets
from .deliverer import Partitions
from .zookeeper_copy import ZooKeeperCopy

log = logging.getLogger("zkgroups.consumer")

RENEWAL: Final = 600.0
"""In seconds: how often to commit unchanged offsets again. Brokers delete offsets that were not committed for long."""


class OffsetsWithCopy(OffsetsInZooKeeper):
    """The truth is in ZooKeeper, and is copied to the brokers."""

    def __init__(self, group: Consumergroup, copy: BrokerCopy) -> None:
        super().__init__(group)
        self._copy = copy

    def writer(self, claims: Claims) -> Write:
        """Return a function that commits through these claims, and lets the copy follow."""
        commit = super().writer(claims)
        self._copy.use(claims)

        def write(offsets: Offsets, back_from: Offsets) -> None:
            commit(offsets, back_from)
            self._copy.put(offsets, back_from)

        return write

    def read(self, partitions: Partitions) -> Mapping[TopicPartition, CurrentOffset]:
        """Read the committed offsets, and let the copy be compared with them."""
        found = super().read(partitions)
        readable = {at: each for at, each in found.items() if each is None or isinstance(each, CommittedOffset)}
        self._copy.begin({at: None if each is None else each.offset for at, each in readable.items()})
        return found

    def leave(self, partitions: Partitions) -> None:
        """Wait until these are copied."""
        self._copy.settle(partitions)

    def close(self) -> None:
        """End the thread that copies."""
        self._copy.close()


class OffsetsOnBrokers:
    """The truth is on the brokers. Implements `MemberOffsets`.

    - `copy`: the copy in ZooKeeper, if there is one.
    - `initial`: begin a partition without an offset on the brokers at that in ZooKeeper.
    - `writes`: with False, write nothing.

    Brokers do not fence these commits. So each is sent right after a transaction in ZooKeeper that proves the claims,
    and only while the session is certain to live.
    """

    def __init__(
        self,
        group: Consumergroup,
        brokers: BrokerOffsets,
        copy: ZooKeeperCopy | None,
        *,
        initial: bool,
        writes: bool,
    ) -> None:
        self._group = group
        self._brokers = brokers
        self._copy = copy
        self._initial = initial
        self._writes = writes
        self._committing = threading.RLock()  # two commits must not overtake each other
        self._claims: Claims | None = None
        self._committed: dict[TopicPartition, int] = {}
        self._renew_at = 0.0

    def writer(self, claims: Claims) -> Write:
        """Return a function that commits through these claims."""
        self._claims = claims

        def write(offsets: Offsets, back_from: Offsets) -> None:
            with not_held(self._committing, f"group {self._group.name!r}"):
                if self._copy is not None:
                    self._copy.write(claims, offsets, back_from)
                else:
                    claims.check()
                self._commit(claims, offsets)

        return write

    def _commit(self, claims: Claims, offsets: Offsets) -> None:
        """Commit offsets of claims that were proved just now."""
        self._committed.update(offsets)  # first: if the outcome is unknown, no older offset must follow
        self._brokers.commit(offsets, claims.certain_until - uptime())

    def read(self, partitions: Partitions) -> Mapping[TopicPartition, CurrentOffset]:
        """Read the committed offsets. Those that are missing begin at those in ZooKeeper, if the user wants that."""
        on_brokers = self._brokers.committed(partitions)
        found: dict[TopicPartition, CurrentOffset] = {
            at: None if offset is None else CommittedOffset(self._group.name, at, offset)
            for at, offset in on_brokers.items()
        }
        for at, offset in on_brokers.items():
            if offset is None:
                self._committed.pop(at, None)
            else:
                self._committed[at] = offset
        if self._copy is not None and self._claims is not None:
            self._copy.begin(on_brokers, self._claims)
        if self._initial and (missing := frozenset(at for at, each in found.items() if each is None)):
            found |= self._begin_in_zookeeper(missing)
        return found

    def _begin_in_zookeeper(self, missing: Partitions) -> Mapping[TopicPartition, CurrentOffset]:
        found = self._group.offsets.fetch_many(sorted(missing))
        offsets = {at: each.offset for at, each in found.items() if isinstance(each, CommittedOffset)}
        if offsets and self._writes and self._claims is not None:
            self._claims.check()
            self._commit(self._claims, offsets)
            shown = ", ".join(f"{at}: {offset}" for at, offset in sorted(offsets.items()))
            log.info("group %s: copied offsets from ZooKeeper to the brokers: %s", self._group.name, shown)
        return found

    def look(self) -> None:
        """Commit unchanged offsets again when it is time."""
        claims, now = self._claims, uptime()
        if claims is None or not self._writes or now < self._renew_at:
            return
        first, self._renew_at = not self._renew_at, now + RENEWAL
        if first or not self._committing.acquire(blocking=False):
            return  # a commit under way is as good
        try:
            kept = {at: offset for at, offset in self._committed.items() if at in claims and claims[at].held}
            found = self._brokers.committed(kept)
            # others have changed the rest: that stays until the next commit
            due = {at: offset for at, offset in kept.items() if found[at] in (None, offset)}
            if due:
                claims.check()
                self._commit(claims, due)
        except ZkgroupsException as error:
            log.warning("group %s: unchanged offsets could not be committed again: %s", self._group.name, error)
        finally:
            self._committing.release()

    def leave(self, partitions: Partitions) -> None:
        """Forget these partitions. Each commit was answered."""
        for at in partitions:
            self._committed.pop(at, None)

    def close(self) -> None:
        """Close the connections to the brokers."""
        self._brokers.close()
