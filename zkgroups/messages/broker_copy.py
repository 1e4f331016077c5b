"""Copies offsets that were committed in ZooKeeper to the brokers, on a thread of its own.

The commit in ZooKeeper counts. So a broker that does not answer delays no commit and no rebalance: the copy is tried
again until it succeeds, or until the partition is released.

The copy is not fenced. It is written only while the claims are certain to be held, and never replaces a higher offset.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from ..consumer.generation import Offsets
from ..core.offsets.copy_rules import TwoOffsets, compared
from ..core.znodes.topic_partition import TopicPartition
from ..deadline import uptime
from ..exceptions import ZkgroupsException
from ..zookeeper.claim import Claims
from .broker_offsets import BrokerOffsets
from .deliverer import Partitions
from .side_reports import SideReports

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
