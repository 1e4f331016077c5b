"""A lane: messages that are handled one after the other. And a run: the part of a lane that a worker has taken."""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Generic, TypeVar

from ..znodes.topic_partition import TopicPartition

M = TypeVar("M")


class LaneState(Enum):
    """What a lane waits for."""

    READY = auto()
    """A worker."""
    RUNNING = auto()
    """The end of its run."""
    DELAYED = auto()
    """The time of the next attempt."""
    DEAD_LETTER = auto()
    """The confirmation that its first message was written to another topic."""
    PARKED = auto()
    """Nothing: its first message has failed for the last time."""


@dataclass(slots=True, eq=False)
class Lane(Generic[M]):
    """The messages of one lane that are not finished."""

    at: TopicPartition
    key: Hashable
    waiting: deque[tuple[int, M]] = field(default_factory=deque)
    """Offsets and messages that no worker has taken, in the order of the log."""
    run: Run[M] | None = None
    state: LaneState = LaneState.READY
    failures: int = 0
    """How often the first message has failed."""

    @property
    def first(self) -> int | None:
        """The offset of the first message that is not finished; None without messages."""
        if self.run is not None and (offset := self.run.next_offset) is not None:
            return offset
        return self.waiting[0][0] if self.waiting else None

    def take(self, most: int) -> Run[M]:
        """Take the next messages for a worker. A message that has failed before is taken alone."""
        if self.failures:
            most = 1
        if len(self.waiting) <= most:
            taken = list(self.waiting)
            self.waiting.clear()
        else:
            taken = [self.waiting.popleft() for _ in range(most)]
        self.state = LaneState.RUNNING
        self.run = Run(self, taken)
        return self.run

    def put_back(self, run: Run[M]) -> None:
        """Put the unfinished messages of the run back."""
        if run.done < len(run.messages):
            self.waiting.extendleft(reversed(run.messages[run.done :]))
        self.run = None


@dataclass(slots=True, eq=False)
class Run(Generic[M]):
    """Messages of one lane, for one worker.

    The worker iterates over it. A message is finished when the worker asks for the next one. The iteration ends early
    when the run is cancelled.
    """

    lane: Lane[M]
    messages: list[tuple[int, M]]
    """Offsets and messages."""
    done: int = 0
    """The number of finished messages. Only the worker changes it."""
    begun: bool = False
    """True when the worker begins, before it looks at `cancelled`."""
    cancelled: bool = False
    """True after the partition was revoked: begin no other message of this run."""

    def __iter__(self) -> Iterator[M]:
        self.begun = True
        for _offset, message in self.messages:
            if self.cancelled:
                return
            yield message
            self.done += 1

    @property
    def reached(self) -> int:
        """The offset of the last message of a run that has begun. It may be that of the next one for a moment."""
        return self.messages[min(self.done, len(self.messages) - 1)][0]

    @property
    def finished(self) -> list[int]:
        """The offsets of the finished messages."""
        return [offset for offset, _message in self.messages[: self.done]]

    @property
    def next_offset(self) -> int | None:
        """The offset of the first unfinished message; None if all are finished."""
        done = self.done
        return self.messages[done][0] if done < len(self.messages) else None
