"""A generation: the partitions of one member until the next rebalance, and the workers bound to it."""

from __future__ import annotations

import inspect
import logging
import os
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final, TypeAlias
from weakref import WeakSet

from ..core.kafka_values import OffsetRange
from ..core.offsets.reset import PastEnd, start_offset
from ..core.znodes.codecs import check_offset
from ..core.znodes.topic_partition import TopicPartition, check_at
from ..core.znodes.values import StartAt, UnreadableNode
from ..deadline import Deadline, uptime
from ..exceptions import (
    CommittedOutOfRangeError,
    GenerationEndedError,
    InvalidOptionError,
    NotClaimedError,
    OffsetWouldGoBackError,
    PastLogEndError,
)
from ..zookeeper.session.errors import not_held

log = logging.getLogger("zkgroups.member")

Offsets: TypeAlias = Mapping[TopicPartition, int]

_CURE: Final = "start at the offset that generation.start_offset returns"


@dataclass(frozen=True, slots=True)
class Reset:
    """A position that was outside of the log, and the offset that `out_of_range` chose instead."""

    at: TopicPartition
    position: int
    committed: int | None
    log: OffsetRange
    chosen: int

    def back_from(self, offset: int) -> int | None:
        """Return the committed offset, if a commit of `offset` may go back from it. Otherwise None."""
        return self.committed if self.chosen <= offset and self.chosen < (self.committed or 0) else None

    def __str__(self) -> str:
        kind = "committed" if self.position == self.committed else "marked"
        found = f"{kind} offset {self.position} is outside of the log ({self.log.start} to {self.log.end})"
        return f"{found}; starting at {self.chosen}"


class Generation:
    """The partitions to work on until the next rebalance. Members create generations; see `Member.generations`.

    A generation ends when partitions are added or taken away, when one of its workers ends, when the session expires,
    and when the member is closed. Workers must check `active`, or call `wait`, and return soon after the end. The
    member waits for them for `release_timeout`, and then releases the partitions anyway.

    - `group`, `member`: the name of the group and the id of the member.
    - `number`: the number of the plan. It never decreases, and is equal for all members that follow one plan. It is not
      a fence: a member may have several generations with one number.
    - `partitions`: the partitions to work on, each with its committed offset, or the member's `start_at`. Pass the
      range of a partition's log to `start_offset` to get the offset to read from.
    - `streams`: for each partition, the stream of the member that reads it, counted from 0.
    - `unreadable`: claimed partitions that are ignored, because their committed offset is unreadable.
    """

    def __init__(
        self,
        *,
        group: str,
        member: str,
        number: int,
        partitions: Mapping[TopicPartition, int | StartAt],
        streams: Mapping[TopicPartition, int],
        unreadable: Mapping[TopicPartition, UnreadableNode],
        out_of_range: StartAt | None,
        past_end: PastEnd,
        write: Callable[[Offsets, Offsets], None],
        committed: Callable[[Offsets], None],
        reset: Callable[[Reset], None],
        alive: Callable[[], bool],
        connected: Callable[[], bool],
        ended: Callable[[BaseException | None], None],
    ) -> None:
        self.group = group
        self.member = member
        self.number = number
        self.partitions = MappingProxyType(dict(partitions))
        self.streams = MappingProxyType(dict(streams))
        self.unreadable = MappingProxyType(dict(unreadable))
        self._out_of_range = out_of_range
        self._past_end = past_end
        self._write = write
        self._tell_committed = committed
        self._tell_reset = reset
        self._alive = alive
        self._connected = connected
        self._tell_end = ended
        self._over = threading.Event()
        self._closed = False
        self._committing = threading.RLock()  # held during a commit, so that closing waits for it
        self._marked: dict[TopicPartition, int] = {}
        self._committed: dict[TopicPartition, int] = {}
        self._stored = {at: start for at, start in partitions.items() if isinstance(start, int)}  # in ZooKeeper
        self._starts = dict(self._stored)  # a reset changes them
        self._floors = dict(self._stored)  # a lower offset could never be committed
        self._first_starts: dict[TopicPartition, int] = {}  # where partitions without a committed offset start
        self._resets: dict[TopicPartition, Reset] = {}  # each lets one commit go back
        self._condition = threading.Condition()
        self._workers: list[object] = []  # threads and tasks that have not ended yet
        self._at_end: list[Callable[[], object]] = []  # called at the end
        self._finished: Callable[[], Offsets] | None = None  # see `_mark_from`
        self._last_activity = uptime()
        self._asked_at: Callable[[], float] | None = None  # when the loop of a consumer last asked for messages
        _ALL.add(self)

    def after_fork(self) -> None:
        """In a fork, which has no session: end the generation, and replace the locks, whose threads do not exist."""
        self._condition, self._committing, self._over = threading.Condition(), threading.RLock(), threading.Event()
        self._workers, self._at_end = [], []
        self._closed = True
        self._over.set()

    # For the workers

    @property
    def active(self) -> bool:
        """True until the generation ends, while the session is certain to be alive. Sends no request."""
        return not self._over.is_set() and self._alive()

    @property
    def paused(self) -> bool:
        """True while the connection is lost.

        As long as the generation is `active`, its partitions are still held, but nothing can be committed. A careful
        worker starts nothing new.
        """
        return not self._connected()

    def start(self, work: Callable[[Generation], object]) -> None:
        """Run `work(generation)` on a new thread. When it returns or raises, the generation ends.

        Several workers may be started. `Member.generations` raises their errors again. If the generation has already
        ended, `work` is called all the same, because its caller may wait for it: check `generation.active` first. The
        member does not wait for such a worker.
        """
        if not callable(work) or inspect.iscoroutinefunction(work):
            raise InvalidOptionError("work", work, "it must be a function; `zkgroups.aio` has members for coroutines")
        name = f"zkgroups-work-{self.group}-{self.number:x}"
        thread = threading.Thread(target=self._run, args=(work,), name=name, daemon=True)
        with self._condition:
            thread.start()
            if not self._over.is_set():
                self._workers.append(thread.ident or 0)

    def _run(self, work: Callable[[Generation], object]) -> None:
        error: BaseException | None = None
        try:
            work(self)
        except BaseException as raised:
            error = raised
            if not isinstance(raised, Exception):
                log.error("a worker of group %s ended with %r", self.group, raised)
        finally:
            self._leave()
            self._end_by_worker(error)

    def _end_by_worker(self, error: BaseException | None) -> None:
        """End the generation because a worker has ended."""
        if self._over.is_set() and not isinstance(error, Exception):
            return
        if self._over.is_set() and isinstance(error, GenerationEndedError | NotClaimedError):
            log.info("a worker of group %s failed after its generation had ended: %s", self.group, error)
            return
        self._end()
        self._tell_end(error)

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until the generation ends. Return False if the timeout passes first."""
        return self._over.wait(None if timeout is None else Deadline.after("timeout", timeout).remaining)

    def start_offset(self, at: TopicPartition, *, log_start: int, log_end: int) -> int:
        """Return the offset at which to start reading a partition.

        `log_start` is the first offset that a broker still has, `log_end` the offset of the next message.

        This is the position of the partition: the highest offset that is committed, or marked in this generation.
        Without one, the member's `start_at` decides. If the position is outside of the log, the member's
        `out_of_range` decides: raise `CommittedOutOfRangeError`, or start at the start or the end of the log. The
        chosen offset is then marked. If it is lower than the committed offset, one commit may go back to it, unless the
        committed offset has changed meanwhile.

        Read the range from a broker (not from a client's cache) after the generation began. A position past the log end
        raises `PastLogEndError`, until a call at least a second later confirms it. Catch the error and call again, or
        let the worker fail: `Member.generations` raises the error, and the member starts another generation.
        """
        self._check_mine(at)
        log = OffsetRange(check_offset(log_start), check_offset(log_end))
        if log.end < log.start:
            raise InvalidOptionError("log_end", log_end, f"it must be at least log_start ({log_start})")
        while True:
            position = self._position(at)
            if position is None:
                return self._first_start(at, log)
            if position in log:
                self._past_end.forget(at)
                return position
            self._check_outside(at, position, log)
            if (reset := self._reset(at, position, log)) is not None:
                self._tell_reset(reset)
                return reset.chosen

    def _position(self, at: TopicPartition) -> int | None:
        """Return the offset up to which a partition is processed; None if nothing is committed or marked."""
        with self._condition:
            found = (known.get(at) for known in (self._starts, self._committed, self._marked))
            return max((offset for offset in found if offset is not None), default=None)

    def _first_start(self, at: TopicPartition, log: OffsetRange) -> int:
        """Apply `start_at` once. Later calls only move the result into the log: "latest" would skip new messages."""
        with self._condition:
            first = self._first_starts.setdefault(at, start_offset(self.partitions[at], log) or 0)
        return min(max(first, log.start), log.end)

    def _check_outside(self, at: TopicPartition, position: int, log: OffsetRange) -> None:
        """Raise an error if the log end may be stale, or if `out_of_range` is "error"."""
        if position > log.end and not self._past_end.is_confirmed(at, position, uptime()):
            if self.over:
                raise GenerationEndedError(self.group, self.number)
            raise PastLogEndError(self.group, at, position, log.end)
        if self._out_of_range is None:
            raise CommittedOutOfRangeError(self.group, at, position, log.start, log.end)

    def _reset(self, at: TopicPartition, position: int, log: OffsetRange) -> Reset | None:
        """Move the position to the offset that `out_of_range` chooses. None if the position has changed meanwhile."""
        chosen = start_offset(self._out_of_range or StartAt.EARLIEST, log) or 0
        with self._commits(), self._condition:  # a commit under way would bring the old position back
            if self._position(at) != position:
                return None
            reset = self._resets[at] = Reset(at, position, self._stored.get(at), log, chosen)
            self._starts[at] = self._marked[at] = chosen
            self._floors[at] = min(chosen, self._floors.get(at, chosen))
            self._committed.pop(at, None)
        self._past_end.forget(at)
        return reset

    def mark(self, at: TopicPartition, offset: int) -> None:
        """Record that everything before `offset` is processed: `offset` is the next message to read.

        It is committed every `auto_commit_every` seconds, when the generation ends, and by `commit`.

        A lower offset than the last mark changes nothing: it only shows that the worker is alive. An offset lower than
        the committed one raises `OffsetWouldGoBackError`. If `start_offset` chose an offset lower than the committed
        one, only offsets lower than the chosen one raise it.
        """
        self._check_mine(at)
        if self._closed:
            raise GenerationEndedError(self.group, self.number)
        check_offset(offset)
        if self.group and offset < self._floors.get(at, 0):
            raise OffsetWouldGoBackError(self.group, at, self._floors[at], offset, cure=_CURE)
        with self._condition:
            self._marked[at] = max(offset, self._marked.get(at, 0))
        self._last_activity = uptime()

    def _mark_from(self, finished: Callable[[], Offsets], asked_at: Callable[[], float] | None = None) -> None:
        """Call `finished` before each commit, on the thread that commits, and mark the offsets that it returns."""
        self._finished, self._asked_at = finished, asked_at

    def _mark_finished(self) -> None:
        """Mark what is finished. Other partitions, and offsets that could not be committed, are left out."""
        for at, offset in (self._finished() if self._finished is not None else {}).items():
            if at in self.partitions and offset >= self._floors.get(at, 0):
                with self._condition:
                    self._marked[at] = max(offset, self._marked.get(at, 0))

    def _check_mine(self, at: object) -> None:
        if check_at(at) in self.unreadable:
            raise NotClaimedError(check_at(at), "is ignored until its unreadable committed offset is repaired")
        if at not in self.partitions:
            raise NotClaimedError(check_at(at), "does not belong to this generation: use generation.partitions only")

    @property
    def marked(self) -> Offsets:
        """For each partition, the highest offset that was marked in this generation, committed or not."""
        with self._condition:
            return dict(self._marked)

    def commit(self, offsets: Mapping[TopicPartition, int] | None = None) -> None:
        """Commit these offsets now, by default all marked offsets. An offset is the next message to read.

        An error means that nothing was changed, with two exceptions. `OutcomeUnknownError` means that the offsets may
        have been committed. Thousands of offsets may need several transactions, and then the first ones may have been
        committed. If the partitions may belong to another member, the error is `GenerationEndedError`,
        `SessionLostError` or `NotClaimedError`. If an offset would go back, the error is `OffsetWouldGoBackError`.
        """
        if not isinstance(offsets, Mapping | None):
            raise InvalidOptionError("offsets", offsets, "it must be a mapping of TopicPartition to offset")
        for at in offsets or ():
            self._check_mine(at)
        with self._commits():
            if self._closed:
                raise GenerationEndedError(self.group, self.number)
            chosen = self._unsaved() if offsets is None else dict(offsets)
            self._save(chosen)
        self._last_activity = uptime()
        if chosen:
            self._tell_committed(chosen)

    def _commits(self) -> Any:
        """Return the lock for commits. Raise `ReentrantCallError` in a signal handler that interrupted one."""
        return not_held(self._committing, f"generation {self.number}")

    # For the member

    @property
    def over(self) -> bool:
        """True after the end of the generation."""
        return self._over.is_set()

    def _end(self) -> None:
        """End the generation: `active` becomes False."""
        with self._condition:
            self._over.set()
            callbacks, self._at_end = self._at_end, []
        for callback in callbacks:
            callback()

    def _call_at_end(self, callback: Callable[[], object]) -> None:
        """Call `callback` on the thread that ends the generation, or at once if it has ended."""
        with self._condition:
            if not self._over.is_set():
                self._at_end.append(callback)
                return
        callback()

    def _enter(self, worker: object = None) -> bool:
        """Count the current thread (or this task) as a worker until `_leave`.

        Return False if the generation has ended: nobody waits for new workers any more, so they must not begin.
        """
        with self._condition:
            if self._over.is_set():
                return False
            self._workers.append(worker or threading.get_ident())
            return True

    def _leave(self, worker: object = None) -> None:
        """Stop counting the current thread (or this task) as a worker."""
        worker = worker or threading.get_ident()
        with self._condition:
            if worker in self._workers:
                self._workers.remove(worker)
            self._condition.notify_all()

    def _is_idle(self, limit: float) -> bool:
        """True if nothing was marked, committed or asked for within the last `limit` seconds."""
        last = self._asked_at() if self._asked_at is not None else 0.0
        return uptime() - max(self._last_activity, last) > limit

    def _hangs(self, limit: float) -> bool:
        """True while workers have not ended. A consumer hangs until its loop asks again."""
        return bool(self._workers) if self._asked_at is None else self._is_idle(limit)

    def _wait_for_workers(self, deadline: Deadline) -> bool:
        """Wait until all workers have ended. Return False if the deadline passes first."""
        with self._condition:
            return self._condition.wait_for(lambda: not self._workers, deadline.remaining)

    def _commit_marked(self, among: frozenset[TopicPartition]) -> int:
        """Commit the marked offsets of these partitions, after any commit under way. Return how many."""
        with self._committing:
            chosen = {at: offset for at, offset in self._unsaved().items() if at in among}
            self._save(chosen)
        if chosen:
            self._tell_committed(chosen)
        return len(chosen)

    def _save(self, chosen: Offsets) -> None:
        """Commit these offsets. The first commit after a reset may go back as far as the offset that was chosen."""
        if not chosen:
            return
        allowed = {at: self._resets[at].back_from(offset) for at, offset in chosen.items() if at in self._resets}
        self._write(chosen, {at: committed for at, committed in allowed.items() if committed is not None})
        self._committed.update(chosen)
        self._stored.update(chosen)
        for at in chosen:
            self._resets.pop(at, None)

    def _close(self, deadline: Deadline) -> None:
        """Refuse all further commits. Wait for a commit under way, at most until the deadline."""
        self._end()
        waited = self._committing.acquire(timeout=deadline.remaining)
        self._closed = True
        if waited:
            self._committing.release()

    def _unsaved(self) -> dict[TopicPartition, int]:
        self._mark_finished()
        return {at: offset for at, offset in self.marked.items() if self._committed.get(at, -1) < offset}

    def __repr__(self) -> str:
        state = "active" if self.active else "ended"
        return f"<Generation {self.number} of {self.member!r}, {len(self.partitions)} partitions, {state}>"


_ALL: WeakSet[Generation] = WeakSet()


def _after_fork() -> None:
    for generation in list(_ALL):
        generation.after_fork()


os.register_at_fork(after_in_child=_after_fork)
