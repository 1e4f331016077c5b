"""The groups that are followed, and what both ways have in common."""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Final

from ..core.migration.apply_rules import SourceSeen, TargetSeen, TopicIds, by_target, is_made_anew, of_source
from ..core.migration.follow_rules import ARRIVED, Ahead, Carried, FollowedGroup, FollowState, some
from ..core.migration.plan_rows import PlanRow
from ..core.migration.rules import LEGACY, Action, Reason, Rule, bad_target
from ..core.znodes.migration_mark import Mark, MarkState
from ..core.znodes.topic_partition import TopicPartition
from ..exceptions import ZkgroupsException
from ..kafka import Brokers
from ..zookeeper.admin import migration_marks as marks
from ..zookeeper.admin.migration_locks import LOST, Locks
from ..zookeeper.registry import Registry
from ..zookeeper.session.registry_context import context_of
from .current_state import look_at_sources

log = logging.getLogger("zkgroups.migration")

TOGETHER: Final = 200
"""Groups that are looked at in ZooKeeper together: of more, what was read would be in memory."""


JUST_LEFT: Final = "nobody is there any more: it is cut over if the next pass finds nobody, too"


class Followed:
    """One group on its way."""

    def __init__(self, rows: Sequence[PlanRow], *, to_zookeeper: bool) -> None:
        self.group, self.target, self.plan = rows[0].group, rows[0].target, rows[0].plan
        self.cluster = rows[0].cluster
        self.state = FollowState.FOLLOWING
        self.detail = ""
        self.behind = 0
        self.waits_since = 0
        """In which pass something became due that is not written yet."""
        self.was_there = False
        """Whether somebody was, on the side that is ahead, when it was last looked at."""
        self.hidden = ""
        """What of ZooKeeper's offsets cannot be seen at this moment."""
        self.carried = Carried() if to_zookeeper else Carried(_further(rows), _planned(rows))
        self._topic_ids = {row.topic: row.topic_id for row in rows if row.topic and row.topic_id is not None}
        self._moved_topics = frozenset(self._topic_ids if to_zookeeper else ())
        self._chosen = None if rows[0].topics is None else re.compile(rows[0].topics, re.DOTALL)
        self._before = {row.at: row.before for row in rows if row.action is not Action.COMMIT}
        self._stale = {row.at: row.zxid for row in rows if row.reason is Reason.STALE}
        if reasons := [reason for reason in rows[0].obstacles if not reason.startswith(LEGACY)]:
            self.leave("; ".join(reasons))
        for name in (self.group, self.target):
            if (reason := bad_target(name)) is not None:
                self.leave(f"a group cannot be called {name!r}: {reason}")

    @property
    def following(self) -> bool:
        """Whether it is still to be followed."""
        return self.state is FollowState.FOLLOWING

    def leave(self, why: str) -> None:
        """Something is in the way that does not go by itself."""
        self.state, self.detail = FollowState.LEFT, why

    def done(self, detail: str) -> None:
        """Both sides are at one, and nobody works on the side that was ahead."""
        self.state, self.detail = FollowState.DONE, detail
        self.carried.settle()
        self.measure()

    def measure(self) -> None:
        """How far the side that follows is behind now."""
        self.behind = self.carried.behind

    def wants(self, topic: str) -> bool:
        """Whether a topic was to be planned."""
        return self._chosen is None or self._chosen.fullmatch(topic) is not None

    def is_alone(self, anybody: bool) -> bool:
        """Whether it may be cut over: nobody is there, and where somebody was, nobody for the second time in a row.

        Where a consumer is only started anew, or its session has ended, it is back soon.
        """
        if anybody:
            self.was_there = True
        elif self.was_there and not self.detail:
            self.was_there, self.detail = False, JUST_LEFT
        return not anybody and not self.detail

    def topic_id(self, topic: str) -> str | None:
        """The id of a topic in the plan, or else when the topic was seen first; another id is another topic."""
        return self._topic_ids.get(topic)

    def see_topics(self, ids: TopicIds) -> list[str]:
        """Compare the ids that topics have now. Return the topics that were recreated since they were seen first."""
        known = self.topics
        for topic in known & ids.keys():
            self._topic_ids.setdefault(topic, ids[topic])
        return sorted(topic for topic in known if is_made_anew(topic, self._topic_ids.get(topic), ids))

    @property
    def topics(self) -> set[str]:
        """The topics of its offsets, and on the way back also the topics that the plan has moved."""
        return self.carried.topics | self._moved_topics

    def see_source(self, seen: SourceSeen) -> bool:
        """ZooKeeper has this, which is ahead; whether it is another than before.

        What was stale when it was planned is so until it is written again.
        """
        self.see_hidden(seen)
        found = {}
        for (topic, partition), node in seen.offsets.items():
            if topic is None or partition is None or node.zxid is None or not self.wants(topic):
                continue
            at = TopicPartition.checked(topic, partition)
            if self._stale.get(at) != node.zxid:
                found[at] = Ahead(node.offset, node.zxid)
        return self.carried.see(found, whole=not self.hidden)

    def see_hidden(self, seen: SourceSeen) -> None:
        """What of this group's offsets ZooKeeper does not let us see: whoever takes that for nothing loses it."""
        places = (place for place, node in seen.offsets.items() if node.zxid is None)
        wanted = [(topic, at) for topic, at in places if topic is None or self.wants(topic)]
        found = some("/".join(str(part) for part in place if part is not None) or "all" for place in wanted)
        self.hidden = f"offsets in ZooKeeper may not be read: {found}" if found else ""

    def see_target(self, seen: TargetSeen) -> bool:
        """The brokers have this, which is ahead; whether it is another than before.

        What they had when it was planned, and nobody has written since, is of no use to ZooKeeper.
        """
        wanted = ((at, found.offset) for at, found in seen.committed.items() if self.wants(at.topic))
        news = ((at, number) for at, number in wanted if self._before.get(at) != number or self.carried.has(at))
        return self.carried.see({at: Ahead(number, number) for at, number in news})

    def told(self) -> FollowedGroup:
        """As others see it."""
        detail = self.detail or (self.carried.failures if self.following else "")
        return FollowedGroup(self.group, self.target, self.state, self.behind, detail)


def _further(rows: Iterable[PlanRow]) -> dict[TopicPartition, int]:
    """Where the target was ahead when it was planned, and may stay so."""
    return {
        row.at: row.before
        for row in rows
        if row.at is not None and row.before is not None and row.reason is Reason.TARGET_AHEAD
    }


def _planned(rows: Iterable[PlanRow]) -> list[TopicPartition]:
    """The offsets of ZooKeeper that are to be on the target in the end, or were there already."""
    return [row.at for row in rows if row.at is not None and (row.action is Action.COMMIT or row.reason in ARRIVED)]


def followed(rows: Iterable[PlanRow], *, to_zookeeper: bool) -> list[Followed]:
    """The groups of a plan, of those that have anything in ZooKeeper."""
    found = (those for those in by_target(rows).values() if any(of_source(row) for row in those))
    return [Followed(those, to_zookeeper=to_zookeeper) for those in found]


class Way:
    """One of the two ways, over as many passes as it takes."""

    def __init__(
        self,
        groups: Sequence[Followed],
        brokers: Brokers,
        registry: Registry,
        rule: Rule,
        stop: threading.Event,
        *,
        execute: bool,
    ) -> None:
        self.groups = groups
        self.plan = groups[0].plan if groups else ""
        self.by_target = {each.target: each for each in groups}
        self.brokers = brokers
        self.registry = registry
        self.rule = rule
        self.stop = stop
        self.execute = execute
        self.number = 0
        self.behind = 0
        self.written = 0
        self.our_marks: set[str] = set()
        """Groups that are marked by us as moving; at the end there are none."""
        self.moved: set[str] = set()
        """Groups that were done before, and stay marked as moved."""
        self._marks_read = False
        self._locks: Locks | None = None
        """Those of the session below."""
        self._locked: set[str] = set()
        """Targets that are locked in that session."""
        self._session: int | None = None
        self._unsure: set[str] = set()
        """Targets that were written, and whose locks were not looked at since."""

    def begin(self) -> None:
        """A pass begins."""
        self.number += 1
        self.written = 0

    def one_pass(self, limit: int) -> None:
        """Look at all groups, and write at most so many offsets; those of groups that are cut over beside."""
        raise NotImplementedError

    @property
    def following(self) -> list[Followed]:
        """Those that are still to be followed; the one that has waited longest comes first."""
        found = [each for each in self.groups if each.following]
        return sorted(found, key=lambda each: each.waits_since or self.number)

    @property
    def is_over(self) -> bool:
        """Whether there is nothing to follow any more."""
        return not any(each.following for each in self.groups)

    def told(self) -> list[FollowedGroup]:
        """Where each group is."""
        return [each.told() for each in self.groups]

    # Marks

    def read_marks(self) -> None:
        """Once: the groups of other plans are left; what an earlier run of this one has marked is ours."""
        if self._marks_read:
            return
        groups = {each.group: each for each in self.following}
        for group, found in marks.read(context_of(self.registry), groups).items():
            each = groups[group]
            if not isinstance(found, Mark) or found.plan != each.plan:
                each.leave(str(marks.migrated(group, found)))
            else:  # one that is moving an earlier run was killed over
                (self.moved if found.state is MarkState.MOVED else self.our_marks).add(group)
        self._marks_read = True

    def unmark(self, groups: Iterable[Followed]) -> None:
        """Take away the marks that say that these groups are moving: they are not, or not yet."""
        if ours := self.our_marks & {each.group for each in groups}:
            for group, error in marks.remove(context_of(self.registry), ours, plan=self.plan).items():
                if error is not None:
                    log.warning("could not remove the mark of group %r: %s", group, error)
            self.our_marks -= ours

    def end(self) -> None:
        """Whatever has happened: no group stays marked that is not cut over, if a server answers."""
        if self.execute:
            with suppress(ZkgroupsException):
                self.unmark(self.groups)
                if self._locks is not None:
                    self._locks.release(self._locked)

    def lock(self) -> None:
        """Lock all followed targets against other plans. Groups whose target another plan has locked are left out."""
        if not self.execute:
            return
        self.check_locks()
        if self._session != context_of(self.registry).session.id or self._locks is None:
            self._locked.clear()
            self._session = context_of(self.registry).session.id
            self._locks = Locks(context_of(self.registry), cluster=self.groups[0].cluster, plan=self.plan)
        wanted = {each.target: each for each in self.following if each.target not in self._locked}
        if not wanted:
            return
        for target, error in self._locks.take(wanted).items():
            if error is None:
                self._locked.add(target)
            else:
                wanted[target].leave(str(error))

    def locked(self, targets: Iterable[str]) -> set[str]:
        """Those of these targets that may be written now. Groups whose locks another run has taken are left out."""
        names = set(targets)
        lost = set(self._locks.lost(names)) if self._locks is not None else set()
        if self._session == context_of(self.registry).session.id:
            for target in lost:
                self.by_target[target].leave("another run of this plan has taken its lock")
        self._unsure |= names - lost
        return names - lost

    def check_locks(self) -> None:
        """Leave groups that were written without a lock: other plans may have written to their targets."""
        if self._locks is not None and self._unsure:
            for target in self._locks.lost(self._unsure):
                self.by_target[target].leave(LOST)
        self._unsure.clear()

    # Looking

    def leave_made_anew(self, groups: Iterable[Followed]) -> None:
        """Leave groups whose topics were recreated: offsets of the earlier topics mean nothing there."""
        following = [each for each in groups if each.following]
        names = {topic for each in following for topic in each.topics}
        ids = self.brokers.topic_ids(self.brokers.partitions(names)) if names else {}
        for each in following:
            if anew := each.see_topics(ids):
                each.leave(some(f"{topic}: {Reason.MADE_ANEW}" for topic in anew))

    def sources(self, groups: Iterable[Followed]) -> Iterator[tuple[Followed, SourceSeen]]:
        """What ZooKeeper has of these groups now."""
        wanted = list(groups)
        for first in range(0, len(wanted), TOGETHER):
            those = wanted[first : first + TOGETHER]
            seen = look_at_sources(self.registry, (each.group for each in those))
            yield from ((each, seen[each.group]) for each in those)
