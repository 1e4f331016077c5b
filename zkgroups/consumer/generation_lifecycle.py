"""What one member works on: its generation, from the moment it is handed out until everything is committed."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TypeAlias

from ..core.offsets.start_offset import PastEnd
from ..core.rebalance.state_machine import Begin
from ..core.znodes.paths import GroupPaths
from ..core.znodes.topic_partition import TopicPartition
from ..core.znodes.values import CommittedOffset, StartAt, UnreadableNode
from ..deadline import Deadline, uptime
from ..exceptions import (
    NoPermissionError,
    NotClaimedError,
    OffsetConflictError,
    OffsetWouldGoBackError,
    ZkgroupsException,
)
from .events import EventKind, MemberStats
from .generation import Generation, Offsets, Reset
from .lone_membership import LoneSeat
from .membership import Seat
from .notifications import Telling
from .options import Options

log = logging.getLogger("zkgroups.member")

Partitions = frozenset[TopicPartition]
AnySeat: TypeAlias = Seat | LoneSeat


class Work:
    """The generation that there is, if there is one, and what the user was told to have."""

    def __init__(
        self,
        seat: AnySeat,
        options: Options,
        stats: MemberStats,
        telling: Telling,
        *,
        ended: Callable[[Generation, BaseException | None], None],
        commit_failed: Callable[[ZkgroupsException], None],
        reset: Callable[[Reset], None],
    ) -> None:
        self._seat = seat
        self._name = str(seat)
        self._options = options
        self._stats = stats
        self._telling = telling
        self._ended = ended
        self._commit_failed = commit_failed
        self._tell_reset = reset
        self._assigned: Partitions = frozenset()
        self._begun_at = 0.0
        self._past_end = PastEnd()
        self.generation: Generation | None = None
        self.stopping: Generation | None = None
        """The one whose workers are waited for."""

    @property
    def age(self) -> float:
        """In seconds: since the last generation began."""
        return uptime() - self._begun_at

    # Beginning

    def begin(self, begin: Begin) -> Generation:
        """A new generation, which the user was told of; an error where it cannot be found out where to begin."""
        write = self._seat.writer(begin.partitions)
        found = self._seat.committed(begin.partitions)
        self._stats.generations += 1
        self.generation = generation = self._made(begin, found, write)
        self._begun_at = uptime()
        new, self._assigned = begin.partitions - self._assigned, begin.partitions
        if new:
            self._telling.call(self._options.on_assigned, new)
            self._telling.event(EventKind.ASSIGNED, new)
        return generation

    def _made(
        self,
        begin: Begin,
        found: dict[TopicPartition, CommittedOffset | UnreadableNode | None],
        write: Callable[[Offsets, Offsets], None],
    ) -> Generation:
        start_at = StartAt(self._options.start_at)
        unreadable = {at: value for at, value in found.items() if isinstance(value, UnreadableNode)}
        for node in unreadable.values():
            log.error("member %s ignores a partition with a bad offset: %s: %s", self._name, node.path, node.reason)
        starts: dict[TopicPartition, int | StartAt] = {
            at: value.offset if isinstance(value, CommittedOffset) else start_at
            for at, value in sorted(found.items())
            if at not in unreadable
        }
        generation = Generation(
            group=self._seat.group_name,
            member=self._seat.id,
            number=begin.number,
            partitions=starts,
            streams={at: self._seat.stream(at) for at in starts},
            unreadable=unreadable,
            out_of_range=self._options.when_out_of_range,
            past_end=self._past_end,
            write=write,
            committed=self._tell_committed,
            reset=self._tell_reset,
            alive=lambda: self._seat.alive,
            connected=lambda: self._seat.connected,
            ended=lambda error: self._ended(generation, error),
        )
        return generation

    def _tell_committed(self, offsets: Offsets) -> None:
        """On the thread that has committed them."""
        self._stats.commits += len(offsets)
        self._telling.worked("commit")
        self._telling.event(EventKind.COMMITTED, frozenset(offsets))

    def is_readable_now(self) -> bool:
        """Whether an offset can be read of a partition that was left because of its offset."""
        unreadable = frozenset(self.generation.unreadable) if self.generation is not None else frozenset()
        found = self._seat.committed(unreadable) if unreadable else {}
        return any(not isinstance(value, UnreadableNode) for value in found.values())

    # Ending

    def stop(self, moving: Partitions, held: Partitions) -> None:
        """Stop the workers; what is still the member's own is committed, and only then is anything given up."""
        generation, self.generation = self.generation, None
        self.stopping = generation
        revoked = moving & self._assigned
        if generation is not None:
            self._stats.interruptions += 1
            deadline = Deadline(self._options.release_timeout)
            generation.end()
            if not generation.wait_for_workers(deadline):
                log.warning("workers of member %s did not end within %g s", self._name, deadline.seconds)
        if revoked and self._seat.alive:  # else they are lost, and told to be
            self._telling.call(self._options.on_revoked, revoked)
            self._telling.event(EventKind.REVOKED, revoked)
            self._assigned -= revoked
        if generation is not None:
            self._commit(generation, held)
            generation.close(Deadline(self._options.release_timeout))

    def drop(self, partitions: Partitions, held: Partitions) -> None:
        """The generation has ended, and these are lost. What of it is still the member's own can be committed."""
        generation, self.generation = self.generation, None
        self.stopping = generation
        lost = partitions & self._assigned
        self._assigned -= lost
        self._stats.lost += len(partitions)
        if generation is not None:
            self._stats.interruptions += 1
            generation.end()
        if lost:
            self._telling.call(self._options.on_lost, lost)
            self._telling.event(EventKind.LOST, lost)
        if generation is not None:
            deadline = Deadline(self._options.release_timeout)
            generation.wait_for_workers(deadline)
            if kept := held - partitions:
                self._commit(generation, kept)
            generation.close(deadline)

    # Committing

    def commit_marked(self, held: Partitions) -> None:
        """Commit what was marked, of what is held."""
        if self.generation is not None:
            self._commit(self.generation, held)

    def _commit(self, generation: Generation, among: Partitions) -> None:
        """Commit what is marked; what is taken away, or where somebody went further, does not keep the rest from it."""
        try:
            try:
                self._seat.commit_marked(generation, among)
            except OffsetConflictError:  # it can be written over what is there now, unless that would be back
                self._seat.commit_marked(generation, among)
        except (NotClaimedError, OffsetConflictError, OffsetWouldGoBackError) as error:
            self._commit_failed(error)
            if error.at in among:
                self._commit(generation, among - {error.at})
        except NoPermissionError as error:
            self._commit_failed(error)
            if denied := self._offsets_at(error.path, among):
                self._commit(generation, among - denied)
        except ZkgroupsException as error:
            self._commit_failed(error)

    def _offsets_at(self, path: str, among: Partitions) -> Partitions:
        """The partitions whose offset node, or the directory above it, has this path."""
        paths = GroupPaths(self._seat.group_name)
        return frozenset(at for at in among if path in (paths.offset(at), paths.offset_topic(at.topic)))
