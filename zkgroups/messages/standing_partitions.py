"""Partitions that cannot be read now, and when to try again. It has no clock: the caller passes `now`."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from ..core.znodes.topic_partition import TopicPartition
from ..exceptions import ZkgroupsException

_FIRST_PAUSE: Final = 1.0
"""In seconds. Long enough for a log end to count as confirmed, see `core/offsets/start_offset.py`."""
_LONGEST_PAUSE: Final = 30.0

_RECOVERED_AFTER: Final = 5.0
"""In seconds: a partition has recovered if it was fetched for so long without an error."""


@dataclass(frozen=True, slots=True)
class _Failure:
    error: ZkgroupsException
    failures: int
    due: float


class StandingPartitions:
    """Each has its last error, until it was fetched for a while without another one.

    The pauses between attempts double, up to half a minute.

    >>> from zkgroups.exceptions import FetchFailedError
    >>> orders, standing = TopicPartition("orders", 0), StandingPartitions()
    >>> for now in (0.0, 1.0, 3.0):
    ...     standing.failed(orders, FetchFailedError(orders, "no leader"), now)
    ...     print(standing.take_due(now), standing.next_due)
    set() 1.0
    set() 3.0
    set() 7.0
    >>> standing.take_due(7.0), standing.next_due
    ({TopicPartition(topic='orders', partition=0)}, None)
    """

    def __init__(self) -> None:
        self._failures: dict[TopicPartition, _Failure] = {}
        self._tried: set[TopicPartition] = set()
        self._begun: dict[TopicPartition, float] = {}  # when they were fetched again

    def failed(self, at: TopicPartition, error: ZkgroupsException, now: float) -> None:
        """Note that a partition could not be read."""
        known = self._failures.get(at)
        failures = known.failures if known is not None else 0
        pause = min(_FIRST_PAUSE * 2.0 ** min(failures, 16), _LONGEST_PAUSE)
        self._failures[at] = _Failure(error, failures + 1, now + pause)
        self._tried.discard(at)
        self._begun.pop(at, None)

    def take_due(self, now: float) -> set[TopicPartition]:
        """Return the partitions to try again now. Each is returned once."""
        due = {at for at, failure in self._failures.items() if failure.due <= now and at not in self._tried}
        self._tried |= due
        return due

    @property
    def next_due(self) -> float | None:
        """When to call `take_due`; None if nothing waits for it."""
        return min((found.due for at, found in self._failures.items() if at not in self._tried), default=None)

    def begun(self, at: TopicPartition, now: float) -> None:
        """Note that a partition is fetched again. It has recovered if no error follows soon."""
        if at in self._failures:
            self._begun[at] = now

    def take_recovered(self, now: float) -> set[TopicPartition]:
        """Forget the errors of partitions that are fetched again. Return these partitions."""
        recovered = {at for at, since in self._begun.items() if now - since >= _RECOVERED_AFTER}
        self.forget(recovered)
        return recovered

    def forget(self, partitions: Iterable[TopicPartition]) -> None:
        """Forget the errors of these partitions."""
        for at in partitions:
            self._failures.pop(at, None)
            self._begun.pop(at, None)
            self._tried.discard(at)

    @property
    def waiting(self) -> frozenset[TopicPartition]:
        """The partitions that wait for their next attempt."""
        return frozenset(self._failures.keys() - self._tried)

    @property
    def errors(self) -> dict[TopicPartition, ZkgroupsException]:
        """The last error of each partition that has not been read since."""
        return {at: failure.error for at, failure in self._failures.copy().items()}  # the reader may change them
