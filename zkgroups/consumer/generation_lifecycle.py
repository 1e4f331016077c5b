"""The current generation of one member: begin it, stop its workers, commit its offsets, report its partitions."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Final

from ..core.offsets.reset import PastEnd
from ..core.rebalance.state_machine import StartGeneration
from ..core.znodes.paths import GroupPaths
from ..core.znodes.topic_partition import TopicPartition
from ..core.znodes.values import CommittedOffset, CurrentOffset, StartAt, UnreadableNode
from ..deadline import Deadline, uptime
from ..exceptions import (
    NoPermissionError,
    NotClaimedError,
    OffsetConflictError,
    OffsetWouldGoBackError,
    UnavailableError,
    ZkgroupsException,
)
from .events import EventKind, MemberStats, Partitions
from .generation import Generation, Offsets, Reset
from .group_plan import few
from .membership import AnyMembership
from .options import Callbacks, Options

# Detect that a committed offset went back: somebody moved it, or ZooKeeper was restored from a backup.


class SeenOffsets:
    """The last committed offset that a member has read or written, for each partition that it had.

    `topic_zxid` returns the zxid that created a topic: a recreated topic has no earlier offsets.
    """

    def __init__(self, topic_zxid: Callable[[str], int | None]) -> None:
        self._topic_zxid = topic_zxid
        self._seen: dict[TopicPartition, tuple[int | None, int]] = {}

    def committed(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Record offsets that this member has committed. May be called on any thread."""
        for at, offset in offsets.items():
            self._seen[at] = self._topic_zxid(at.topic), offset

    def read(self, found: Mapping[TopicPartition, CurrentOffset]) -> tuple[Partitions, str]:
        """Record offsets that were read. Return the partitions whose offset went back, and how far, as text."""
        back: dict[TopicPartition, str] = {}
        for at, value in found.items():
            if isinstance(value, UnreadableNode):
                continue
            zxid, seen = self._seen.pop(at, (None, None))
            now = value.offset if isinstance(value, CommittedOffset) else None
            if seen is not None and zxid == self._topic_zxid(at.topic) and (now is None or now < seen):
                back[at] = f"{at} from {seen} to {'nothing' if now is None else now}"
            if now is not None:
                self.committed({at: now})
        return frozenset(back), few(back.values())


log = logging.getLogger("zkgroups.member")


_LAST_ATTEMPTS: Final = 2
"""How often to commit before partitions are released. The timeouts of members leave time for two attempts."""

_WHY_BACK = "somebody moved them, or ZooKeeper was restored from a backup"


class GenerationLifecycle:
    """The current generation, if any, and the partitions last reported to the user's callbacks."""

    def __init__(
        self,
        membership: AnyMembership,
        options: Options,
        stats: MemberStats,
        callbacks: Callbacks,
        *,
        ended: Callable[[Generation, BaseException | None], None],
        commit_failed: Callable[[ZkgroupsException], None],
        reset: Callable[[Reset], None],
    ) -> None:
        self.membership = membership
        self._name = str(membership)
        self._options = options
        self._stats = stats
        self._callbacks = callbacks
        self._ended = ended
        self._commit_failed = commit_failed
        self._tell_reset = reset
        self._assigned: Partitions = frozenset()
        self._begun_at = 0.0
        self._past_end = PastEnd()
        self._seen = SeenOffsets(lambda topic: self.membership.topic_zxid(topic))
        self.generation: Generation | None = None
        self.stopping: Generation | None = None
        """The generation whose workers are being stopped."""

    @property
    def age(self) -> float:
        """Seconds since the last generation began."""
        return uptime() - self._begun_at

    def begin(self, begin: StartGeneration) -> Generation:
        """Make a new generation and call `on_assigned`. Raise if the committed offsets cannot be read."""
        write = self.membership.writer(begin.partitions)
        found = self.membership.committed(begin.partitions)
        back, how_far = self._seen.read(found)
        if back:
            self._callbacks.event(EventKind.BACK, back, f"{how_far}; {_WHY_BACK}")
        self._stats.generations += 1
        self.generation = generation = self._made(begin, found, write)
        self._begun_at = uptime()
        new, self._assigned = begin.partitions - self._assigned, begin.partitions
        if new:
            self._callbacks.call(self._options.on_assigned, new)
            self._callbacks.event(EventKind.ASSIGNED, new)
        return generation

    def _made(
        self,
        begin: StartGeneration,
        found: Mapping[TopicPartition, CurrentOffset],
        write: Callable[[Offsets, Offsets], None],
    ) -> Generation:
        start_at, membership = StartAt(self._options.start_at), self.membership
        unreadable = {at: value for at, value in found.items() if isinstance(value, UnreadableNode)}
        for node in unreadable.values():
            log.error(
                "member %s ignores the partition of %s, whose offset cannot be read (%s)",
                self._name,
                node.path,
                node.reason,
            )
        starts: dict[TopicPartition, int | StartAt] = {
            at: value.offset if isinstance(value, CommittedOffset) else start_at
            for at, value in sorted(found.items())
            if at not in unreadable
        }
        generation = Generation(
            group=membership.group_name,
            member=membership.id,
            number=begin.number,
            partitions=starts,
            streams={at: membership.stream(at) for at in starts},
            unreadable=unreadable,
            out_of_range=self._options.when_out_of_range,
            past_end=self._past_end,
            write=write,
            committed=self._tell_committed,
            reset=self._tell_reset,
            alive=lambda: membership.alive,
            connected=lambda: membership.connected,
            ended=lambda error: self._ended(generation, error),
        )
        return generation

    def _tell_committed(self, offsets: Offsets) -> None:
        """Report a commit, on the thread that made it."""
        self._stats.commits += len(offsets)
        self._seen.committed(offsets)
        self._callbacks.worked("commit")
        self._callbacks.event(EventKind.COMMITTED, frozenset(offsets))

    def is_readable_now(self) -> bool:
        """Return True if an offset that could not be read before can be read now."""
        unreadable = frozenset(self.generation.unreadable) if self.generation is not None else frozenset()
        found = self.membership.committed(unreadable) if unreadable else {}
        return any(not isinstance(value, UnreadableNode) for value in found.values())

    def stop(self, moving: Partitions, held: Partitions) -> None:
        """Stop the workers, then commit the partitions that the member still holds. Releasing comes afterwards."""
        generation, self.generation = self.generation, None
        self.stopping = generation
        revoked = moving & self._assigned
        if generation is not None:
            self._stats.interruptions += 1
            deadline = Deadline(self._options.release_timeout)
            generation._end()
            if not generation._wait_for_workers(deadline):
                log.warning("workers of member %s did not end within %g s", self._name, deadline.seconds)
        if revoked and self.membership.alive:  # otherwise they are reported as lost
            self._callbacks.call(self._options.on_revoked, revoked)
            self._callbacks.event(EventKind.REVOKED, revoked)
            self._assigned -= revoked
        if generation is not None:
            try:
                self._commit(generation, held, attempts=_LAST_ATTEMPTS)
            finally:
                generation._close(Deadline(self._options.release_timeout))

    def drop(self, partitions: Partitions, held: Partitions) -> None:
        """End the generation because these partitions are lost. The partitions that are still held are committed."""
        generation, self.generation = self.generation, None
        self.stopping = generation
        lost = partitions & self._assigned
        self._assigned -= lost
        self._stats.lost += len(partitions)
        if generation is not None:
            self._stats.interruptions += 1
            generation._end()
        if lost:
            self._callbacks.call(self._options.on_lost, lost)
            self._callbacks.event(EventKind.LOST, lost)
        if generation is not None:
            deadline = Deadline(self._options.release_timeout)
            generation._wait_for_workers(deadline)
            if kept := held - partitions:
                self._commit(generation, kept, attempts=_LAST_ATTEMPTS)
            generation._close(deadline)

    def commit_marked(self, held: Partitions) -> None:
        """Commit the marked offsets of the partitions that are held."""
        if self.generation is not None:
            self._commit(self.generation, held)

    def _commit(self, generation: Generation, among: Partitions, *, attempts: int = 1) -> None:
        """Commit the marked offsets. Lost partitions, or offsets that would go back, do not block others.

        All partitions of the member may be blocked, so this is a loop: recursion might be too deep. `attempts` counts
        those without an answer.
        """
        while among:
            try:
                blocked = self._blocked(generation, among)
            except UnavailableError as error:
                attempts -= 1
                if not attempts or not self.membership.alive:
                    self._commit_failed(error)
                    return
            else:
                if not blocked:
                    return
                among -= blocked

    def _blocked(self, generation: Generation, among: Partitions) -> Partitions:
        """Commit the marked offsets of all these partitions, or return partitions that prevent it.

        Raise `UnavailableError` without an answer.
        """
        try:
            try:
                self.membership.commit_marked(generation, among)
            except OffsetConflictError:  # the second attempt overwrites new values, unless an offset would go back
                self.membership.forget_offsets(among)
                self.membership.commit_marked(generation, among)
        except (NotClaimedError, OffsetWouldGoBackError) as error:
            self._commit_failed(error)
            return among & {error.at, *error.also}
        except OffsetConflictError as error:
            self._commit_failed(error)
            return among & {error.at}
        except NoPermissionError as error:
            self._commit_failed(error)
            paths = GroupPaths(self.membership.group_name)  # of the offset, or of the directory above it
            return frozenset(at for at in among if error.path in (paths.offset(at), paths.offset_topic(at.topic)))
        except UnavailableError:
            raise
        except ZkgroupsException as error:
            self._commit_failed(error)
        return frozenset()
