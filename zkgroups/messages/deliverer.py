"""The part of a consumer that hands out messages: a loop (`loop_delivery.py`) or workers (`runs.py`)."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Final, Protocol

from ..consumer.events import Partitions
from ..core.znodes.topic_partition import TopicPartition
from ..deadline import Deadline

_LOOK: Final = 0.05
"""In seconds: how soon it is noticed that the claims are not certain any more."""

_SHARE: Final = 0.5
"""In this part of the time, messages are begun. A message that begins later may not finish in time."""


class Deliverer(Protocol):
    """Knows which messages are finished. The lock of `Reading` is held during each call."""

    @property
    def count(self) -> int:
        """A number that changes when messages are handed out or finished."""

    def assign(self, at: TopicPartition, position: int) -> None:
        """Begin a partition, or begin it again elsewhere. Its earlier messages no longer count. By the reader."""

    def revoke(self, partitions: Iterable[TopicPartition]) -> None:
        """Begin no more messages of these partitions. Those under way may still finish."""

    def wind_down(self, partitions: Iterable[TopicPartition]) -> None:
        """Begin only messages of these partitions that come before finished ones. Those are not handled again then."""

    def is_busy(self, partitions: Partitions) -> bool:
        """True while messages of these are under way or must still begin. When that ends, notify `changed`."""

    def give_up(self, partitions: Partitions) -> None:
        """Wait no longer for messages under way. Cancel what can be cancelled."""

    def positions(self, partitions: Partitions) -> Mapping[TopicPartition, int]:
        """Return the offsets to commit: everything before them is finished."""

    def received(self, at: TopicPartition) -> int | None:
        """Return the offset after the last message that was taken, or the position. None for an unknown partition."""

    def forget(self, partitions: Iterable[TopicPartition]) -> None:
        """Forget these partitions. Their messages no longer count."""


def wind_down(
    deliverer: Deliverer,
    partitions: Partitions,
    changed: threading.Condition,
    timeout: float,
    *,
    alive: Callable[[], bool] = lambda: True,
) -> bool:
    """Let a deliverer finish what it has begun of these partitions. Return False if it was given up.

    That happens after the timeout, and when `alive` returns False: then others may have the partitions. The caller
    holds the lock of `changed`.
    """

    def is_finished(deadline: Deadline) -> bool:
        while deliverer.is_busy(partitions):
            if deadline.passed or not alive():
                return False
            changed.wait(min(_LOOK, deadline.remaining))
        return True

    half, end = Deadline(_SHARE * timeout), Deadline(timeout)
    deliverer.wind_down(partitions)
    if is_finished(half):
        return True
    deliverer.revoke(partitions)
    if is_finished(end):
        return True
    deliverer.give_up(partitions)
    return False
