"""Following legacy instances: what they commit to ZooKeeper is carried to the brokers, until nobody is registered.

A group is cut over when nobody is, twice in a row: it is marked, so that none of ours can come any more, looked at
again, written for the last time, and looked at once more, because those of other kinds know no marks. Only if nobody
has come, all can be seen, nothing is gone, and both sides are at one, it is done. Whoever comes back or commits later,
as long as others are followed, is followed again; the group stays marked.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Final

from ..core.kafka_values import NativeGroup
from ..core.migration.apply_rules import SourceSeen, TargetSeen, living
from ..core.migration.follow_rules import FollowState, Judge, some
from ..core.migration.rules import Decision, Unknown, decide
from ..core.znodes.migration_mark import MarkState
from ..core.znodes.topic_partition import TopicPartition
from ..exceptions import UnavailableError, UnknownPartitionError, ZkgroupsException
from ..zookeeper.admin import migration_marks as marks
from ..zookeeper.session.registry_context import context_of
from .current_state import look_at_targets, taking_part
from .followed_groups import Followed, Way
from .log_ranges import Logs, topics_made

Writes = Mapping[str, Mapping[TopicPartition, int]]
"""By target."""


LOOK_AT_NATIVE: Final = 10
"""In so many passes once: brokers refuse to commit for a group that somebody takes part in, so that this is only to say
so early, also where nothing is to be committed."""


class ToKafka(Way):
    """From ZooKeeper to the brokers."""

    def one_pass(self, limit: int) -> None:
        """Look at all, write what has changed, and cut over where nobody is registered."""
        self.read_marks()
        self.lock()
        if self.number % LOOK_AT_NATIVE == 1:
            self._leave_living()
        alone = self._look()
        some = _so_many([each for each in self.following if each.carried.due], limit)
        writes = self._decide(some, self._logs(some), limit)
        for each in self.following:
            each.measure()
        self.behind = sum(each.behind for each in self.following)
        if not self.execute:
            self._would_write(writes, alone)
            return
        if not self.stop.is_set():
            self._write(writes)
        if not self.stop.is_set():
            self._cut_over([each for each in alone if each.following])

    # Looking

    def _leave_living(self) -> None:
        found = self.brokers.groups(each.target for each in self.following)
        for each in self.following:
            native = found[each.target]
            if isinstance(native, NativeGroup) and (members := taking_part(native)):
                each.leave("; ".join(living(TargetSeen(members))))

    def _look(self) -> list[Followed]:
        """See what has changed; return the groups where nobody is registered."""
        alone: list[Followed] = []
        back: list[Followed] = []
        for each, seen in self.sources(each for each in self.groups if each.state is not FollowState.LEFT):
            if each.state is FollowState.DONE:
                if not seen.instances and not each.see_source(seen):
                    continue
                each.state, each.detail = FollowState.FOLLOWING, ""
                self.moved.add(each.group)  # and stays marked so: who has come knows no marks
            self._see(each, seen)
            if each.is_alone(bool(seen.instances)):
                alone.append(each)
            elif seen.instances:
                back.append(each)
        if self.execute:
            self.unmark(back)
        return alone

    def _see(self, each: Followed, seen: SourceSeen) -> bool:
        changed = each.see_source(seen)
        each.detail = "; ".join(filter(None, (seen.unreadable, each.hidden)))
        each.waits_since = (each.waits_since or self.number) if each.carried.due else 0
        return changed

    def _logs(self, groups: Sequence[Followed]) -> Logs:
        due = {at for each in groups for at in each.carried.due}
        logs = Logs(self.brokers, topics_made(self.registry, {at.topic for at in due}))
        logs.ask(due)
        for each in groups:
            each.see_topics(logs.ids)
        return logs

    def _judge(self, each: Followed, logs: Logs) -> Judge:
        rule = replace(self.rule, backward=False)

        def judge(at: TopicPartition, number: int, there: int | Unknown | None) -> Decision:
            log = logs.log(at, each.carried.sign(at), each.topic_id(at.topic))
            return decide(number, log, there, rule)

        return judge

    # Writing

    def _decide(self, groups: Sequence[Followed], logs: Logs, limit: int | None) -> Writes:
        """What is to be written, by what the targets have at this moment."""
        writes: dict[str, Mapping[TopicPartition, int]] = {}
        if not groups:
            return writes
        left = limit
        for target, found in self.brokers.committed_or_error(each.target for each in groups).items():
            each = self.by_target[target]
            if isinstance(found, ZkgroupsException):
                _could_not(each, found)
                continue
            there = {at: offset.offset for at, offset in found.items()}
            writes[target] = each.carried.decide(self._judge(each, logs), there, left)
            left = None if left is None else left - len(writes[target])
        return writes

    def _write(self, writes: Writes) -> None:
        """Commit all of it; what could not be written stays due, and who cannot be written to is left."""
        locked = self.locked(target for target, those in writes.items() if those)
        offsets = {target: those for target, those in writes.items() if target in locked}
        answered = self.brokers.commit(offsets) if offsets else {}
        for target, answers in answered.items():
            each = self.by_target[target]
            for at, error in answers.items():
                if error is None:
                    self.written += 1
                    each.carried.wrote(at, offsets[target][at])
                elif each.following:
                    each.carried.failed(at, str(error))
                    _could_not(each, error)
        self.check_locks()

    def _would_write(self, writes: Writes, alone: Sequence[Followed]) -> None:
        for each in self.following:
            count = len(writes.get(each.target, ()))
            self.written += count
            would = f"{count} offsets would be written" + (", and it would be cut over" if each in alone else "")
            each.detail = "; ".join(filter(None, (each.detail, each.carried.failures, would)))

    # The end of it

    def _cut_over(self, groups: Sequence[Followed]) -> None:
        if not groups:
            return
        marked = self._mark(groups)
        alone = []
        for each, seen in self.sources(marked):
            self._see(each, seen)
            if each.is_alone(bool(seen.instances)):
                each.carried.again()
                alone.append(each)
        logs = self._logs(alone)
        self._write(self._decide(alone, logs, None))
        self._judge_all([each for each in alone if each.following], logs)
        self.unmark(each for each in marked if each.state is not FollowState.DONE)

    def _mark(self, groups: Sequence[Followed]) -> list[Followed]:
        targets = {each.group: each.target for each in groups if each.group not in self.moved}
        errors = marks.put(context_of(self.registry), targets, plan=self.plan, state=MarkState.MOVING)
        for each in groups:
            error = errors.get(each.group)
            if error is not None:
                each.leave(f"it could not be marked: {error}")
            elif each.group in targets:
                self.our_marks.add(each.group)
        return [each for each in groups if each.following]

    def _judge_all(self, groups: Sequence[Followed], logs: Logs) -> None:
        """Whether both sides are at one, and nobody has come."""
        self.leave_made_anew(groups)
        groups = [each for each in groups if each.following]
        targets = look_at_targets(self.brokers, [each.target for each in groups])
        done = {}
        for each, seen in self.sources(groups):
            if self._is_done(each, seen, targets[each.target], logs):
                done[each.group] = each
        put = {group: each.target for group, each in done.items()}
        for group, error in marks.put(context_of(self.registry), put, plan=self.plan, state=MarkState.MOVED).items():
            if error is None:
                self.our_marks.discard(group)
            else:
                done[group].leave(f"it could not be marked as moved: {error}")

    def _is_done(self, each: Followed, seen: SourceSeen, target: TargetSeen, logs: Logs) -> bool:
        changed = self._see(each, seen)
        if not each.is_alone(bool(seen.instances)) or changed:
            return False  # somebody has come, or committed: the next pass sees
        if reasons := living(target):
            each.leave("; ".join(reasons))
            return False
        there = {at: offset.offset for at, offset in target.committed.items()}
        verdict = each.carried.verdict(self._judge(each, logs), there)
        if verdict.obstacles:
            each.leave(some(verdict.obstacles))
        elif not verdict.open:
            each.done(verdict.detail)
        return each.state is FollowState.DONE


def _so_many(groups: Sequence[Followed], limit: int) -> list[Followed]:
    """As many of the groups as have so many offsets due, and the one with which there are more."""
    before = accumulate((len(each.carried.due) for each in groups), initial=0)
    return [each for each, count in zip(groups, before, strict=False) if count < limit]


def _could_not(each: Followed, error: ZkgroupsException) -> None:
    """What goes by itself is waited for."""
    if isinstance(error, UnavailableError | UnknownPartitionError):
        each.detail = str(error)
    else:
        each.leave(str(error))
