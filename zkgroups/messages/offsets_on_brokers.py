"""Offsets that a consumer commits on the brokers, or also there, while its group is in ZooKeeper."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from ..consumer.events import Partitions
from ..consumer.generation import Offsets
from ..consumer.membership import MemberOffsets, Write
from ..core.offsets.changes import TwoOffsets, compared
from ..core.znodes.topic_partition import TopicPartition
from ..core.znodes.values import CommittedOffset, CurrentOffset
from ..deadline import uptime
from ..exceptions import OffsetWouldGoBackError, ZkgroupsException
from ..zookeeper.claim import Claims
from ..zookeeper.group import Consumergroup
from ..zookeeper.session.errors import not_held
from .broker_offsets import BrokerOffsets, SideReports

# Copies offsets that were committed in ZooKeeper to the brokers, on a thread of its own.
#
# The commit in ZooKeeper counts. So a broker that does not answer delays no commit and no rebalance: the copy is
# tried again until it succeeds, or until the partition is released.
#
# The copy is not fenced. It is written only while the claims are certain to be held, and never replaces a higher
# offset.


log = logging.getLogger("zkgroups.consumer")

_FIRST_PAUSE: Final = 1.0
_LONGEST_PAUSE: Final = 30.0
"""In seconds: the pauses after failed attempts. They double."""


@dataclass(frozen=True, slots=True)
class _Wanted:
    offset: int
    may_go_back: bool


class BrokerCopy:
    """The copies that are to be written. Any thread may call all methods.

    `writes`: with False, only report differences.
    """

    def __init__(self, brokers: BrokerOffsets, reports: SideReports, *, writes: bool) -> None:
        self._brokers = brokers
        self._reports = reports
        self._writes = writes
        self._changed = threading.Condition()
        self._claims: Claims | None = None
        self._begun: dict[TopicPartition, int | None] = {}  # the truth, to be compared with the copy
        self._wanted: dict[TopicPartition, _Wanted] = {}
        self._is_writing = False
        self._failures = 0  # in a row
        self._thread: threading.Thread | None = None

    def use(self, claims: Claims) -> None:
        """Write copies only while these claims are held."""
        with self._changed:
            self._claims = claims

    def begin(self, truth: Mapping[TopicPartition, int | None]) -> None:
        """Compare the copies with these offsets, report differences, and replace copies that are behind."""
        with self._changed:
            self._begun.update(truth)
            self._work()

    def put(self, offsets: Offsets, back: Iterable[TopicPartition]) -> None:
        """Copy these offsets, which are committed now. Those of `back` may replace higher ones."""
        with self._changed:
            going_back = {*back, *(at for at, each in self._wanted.items() if each.may_go_back)}
            self._wanted.update({at: _Wanted(offset, at in going_back) for at, offset in offsets.items()})
            self._work()

    def settle(self, partitions: Partitions) -> None:
        """Wait for the copies of partitions that are about to be released. Give up those that cannot be written now."""
        with self._changed:
            self._changed.wait_for(lambda: self._is_settled(partitions), self._brokers.timeout)
            left = partitions & self._wanted.keys()
            for at in partitions:
                self._begun.pop(at, None)
                self._wanted.pop(at, None)
            self._changed.wait_for(lambda: not self._is_writing)  # it has its own timeout, and may begin late
        if left:
            log.warning(
                "offsets of %s were not copied to the brokers before the release", ", ".join(map(str, sorted(left)))
            )

    def _is_settled(self, partitions: Partitions) -> bool:
        return not self._is_writing and (self._failures > 0 or not partitions & self._wanted.keys())

    def close(self) -> None:
        """Give up what is left, and end the thread."""
        with self._changed:
            self._begun.clear()
            self._wanted.clear()
            self._thread, self._failures = None, 0
            self._changed.notify_all()
        self._brokers.close()

    def _work(self) -> None:
        """Start the thread, or wake it. The caller holds the lock."""
        if self._thread is None:
            name = f"zkgroups-copy-{self._brokers.group}"
            self._thread = threading.Thread(target=self._run, name=name, daemon=True)
            self._thread.start()
        self._changed.notify_all()

    # On the thread

    def _run(self) -> None:
        while self._wait_for_work():
            try:
                self._copy()
            except Exception as error:
                if not isinstance(error, ZkgroupsException):
                    log.exception("copying offsets to the brokers has failed unexpectedly")
                with self._changed:
                    self._failures += 1
                    self._changed.notify_all()
                    partitions = frozenset(self._wanted)
                self._reports.cannot(error, partitions)
                self._pause()
            else:
                self._failures = 0
                self._reports.can()

    def _wait_for_work(self) -> bool:
        """Return False if this thread is to end."""
        with self._changed:
            self._changed.wait_for(lambda: self._begun or self._wanted or self._is_closed)
            return not self._is_closed

    @property
    def _is_closed(self) -> bool:
        return self._thread is not threading.current_thread()

    def _pause(self) -> None:
        pause = min(_FIRST_PAUSE * 2.0 ** min(self._failures - 1, 16), _LONGEST_PAUSE)
        with self._changed:
            self._changed.wait_for(lambda: self._is_closed, pause)

    def _copy(self) -> None:
        """Read the copies, compare them, and write those that are behind."""
        with self._changed:
            self._drop_lost()
            begun, asked = dict(self._begun), {*self._begun, *self._wanted}
        found = self._brokers.committed(asked)
        self._reports.compared(compared(begun, found))
        with self._changed:
            self._end_comparison(begun)
            wanted = {at: each for at, each in self._wanted.items() if at in found}
            due = {at: each.offset for at, each in wanted.items() if _is_due(each, found[at])}
            self._is_writing = True
        done: Mapping[TopicPartition, _Wanted] = {}
        try:
            self._write(due)
            done = wanted
        finally:
            with self._changed:
                self._is_writing = False
                for at, each in done.items():
                    if self._wanted.get(at) is each:
                        del self._wanted[at]
                self._changed.notify_all()

    def _write(self, offsets: Offsets) -> None:
        if offsets and self._writes and self._claims is not None:
            self._brokers.commit(offsets, self._claims.certain_until - uptime())

    def _end_comparison(self, begun: Mapping[TopicPartition, int | None]) -> None:
        """Note that these were compared: a copy that is behind gets their offsets. The caller holds the lock."""
        for at, truth in begun.items():
            if at in self._begun and self._begun[at] == truth:
                del self._begun[at]
                if truth is not None:
                    self._wanted.setdefault(at, _Wanted(truth, may_go_back=False))

    def _drop_lost(self) -> None:
        """Forget partitions that are not held any more. The caller holds the lock."""
        claims = self._claims
        for at in {*self._begun, *self._wanted}:
            if claims is None or at not in claims or not claims[at].held:
                self._begun.pop(at, None)
                self._wanted.pop(at, None)


def _is_due(wanted: _Wanted, copy: int | None) -> bool:
    """True if the copy is to be replaced."""
    return TwoOffsets(wanted.offset, copy).is_behind or (wanted.may_go_back and wanted.offset != copy)


# The copy in ZooKeeper of offsets that are committed on the brokers.
#
# It is written first, in the transaction that checks the claims. So the brokers get no offset of a consumer that has
# lost its claims. The copy never goes back by itself: while it is ahead, only the claims are checked.


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


RENEWAL: Final = 600.0
"""In seconds: how often to commit unchanged offsets again. Brokers delete offsets that were not committed for long."""


class OffsetsWithCopy(MemberOffsets):
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


class OffsetsOnBrokers(MemberOffsets):
    """The truth is on the brokers.

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
        super().__init__(group)
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
