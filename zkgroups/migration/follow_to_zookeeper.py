"""Following native members: what they commit to the brokers is carried to ZooKeeper, until none of them is left.

Forward only, over what was read just before, and only while no legacy instance is registered; and only of groups that
the plan has moved, which its mark says: what others do in a group of that name is none of ZooKeeper's. Where nobody
takes part any more both sides are looked at once more; if they are at one the mark of the migration goes, so that
members may register again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from ..core.migration.apply_rules import SourceSeen, TargetSeen, registered
from ..core.migration.follow_rules import FollowState, forward, some
from ..core.migration.rules import Unknown
from ..core.znodes.topic_partition import TopicPartition
from ..core.znodes.values import CommittedOffset, UnreadableNode
from ..exceptions import UnavailableError, ZkgroupsException
from ..zookeeper.admin import migration_marks as marks
from ..zookeeper.session.registry_context import context_of
from .current_state import look_at_targets
from .followed_groups import Followed, Way

NOT_MOVED: Final = "this plan has not moved it, or it is back already: there is no mark"


class ToZooKeeper(Way):
    """From the brokers to ZooKeeper."""

    def one_pass(self, limit: int) -> None:
        """Look at all, write what has changed, and finish where nobody takes part any more."""
        self.read_marks()
        self.moved |= self.our_marks  # whatever they say, members of ours are to stay out until it is done
        self.our_marks.clear()
        for each in self.following:
            if each.group not in self.moved:
                each.leave(NOT_MOVED)
        alone = self._look()
        self.behind = 0
        for each in self.following:
            each.measure()
            if limit > self.written and not self.stop.is_set():
                self._carry(each, limit - self.written)
            self.behind += each.behind
        if not self.execute:
            self._would_write(alone)
        elif not self.stop.is_set():
            self._finish([each for each in alone if each.following])

    def _look(self) -> list[Followed]:
        """See what has changed; return the groups where nobody takes part."""
        targets = look_at_targets(self.brokers, [each.target for each in self.following])
        for each, source in self.sources(self.following):
            if reasons := registered(source):
                each.leave("; ".join(reasons))
        for each in self.following:
            self._see(each, targets[each.target])
        self.leave_made_anew(self.following)
        return [each for each in self.following if each.is_alone(bool(targets[each.target].members))]

    def _see(self, each: Followed, seen: TargetSeen) -> bool:
        each.detail = seen.unreadable
        changed = not each.detail and each.see_target(seen)
        each.waits_since = (each.waits_since or self.number) if each.carried.due else 0
        return changed

    # Writing

    def _carry(self, each: Followed, limit: int | None) -> None:
        """Write what is due, over what is there at this moment; refused while somebody is registered."""
        due = each.carried.due
        if not due:
            return
        offsets = self.registry.group(each.group).offsets
        try:
            found = offsets.fetch_many(due)
            writes = each.carried.decide(forward, {at: _number(it) for at, it in found.items()}, limit)
            each.measure()
            errors = offsets.replace(writes, expected=found) if writes and self.execute else {}
        except UnavailableError:
            raise
        except ZkgroupsException as error:
            each.leave(str(error))
            return
        self.written += len(writes.keys() - errors.keys())
        for at, number in writes.items() if self.execute else ():
            if at in errors:  # somebody else has written it: it is looked at again
                each.carried.failed(at, str(errors[at]))
            else:
                each.carried.wrote(at, number)

    def _would_write(self, alone: Sequence[Followed]) -> None:
        for each in self.following:
            would = "what is new would be written" + (", and it would be done" if each in alone else "")
            each.detail = "; ".join(filter(None, (each.detail, each.carried.failures, would)))

    # The end of it

    def _finish(self, alone: Sequence[Followed]) -> None:
        """The last pass over these groups, and whether both sides are at one then."""
        if not alone:
            return
        for each in alone:
            each.carried.again()
            self._carry(each, None)
        left = [each for each in alone if each.following]
        targets = look_at_targets(self.brokers, [each.target for each in left])
        self.leave_made_anew(left)
        left = [each for each in left if each.following]
        done = [each for each, source in self.sources(left) if self._is_at_one(each, source, targets[each.target])]
        answers = marks.remove(context_of(self.registry), [each.group for each in done], plan=self.plan)
        for each in done:
            if (error := answers[each.group]) is not None:
                each.leave(f"it is still marked: {error}")

    def _is_at_one(self, each: Followed, source: SourceSeen, target: TargetSeen) -> bool:
        changed = self._see(each, target)
        if not each.is_alone(bool(target.members)) or changed:
            return False  # somebody has come, or committed: the next pass sees
        there = {
            TopicPartition.checked(topic, partition): Unknown.TARGET if node.offset is None else node.offset
            for (topic, partition), node in source.offsets.items()
            if topic is not None and partition is not None
        }
        verdict = each.carried.verdict(forward, there)
        if reasons := [*registered(source), *verdict.obstacles]:
            each.leave(some(reasons))
        elif not verdict.open:
            each.done(verdict.detail)
        else:
            each.see_hidden(source)
            each.detail = each.hidden  # it is written there, perhaps, but nobody can see that
        return each.state is FollowState.DONE


def _number(found: CommittedOffset | UnreadableNode | None) -> int | Unknown | None:
    if isinstance(found, UnreadableNode):
        return Unknown.TARGET
    return None if found is None else found.offset
