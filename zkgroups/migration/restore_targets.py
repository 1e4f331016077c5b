"""Writing a rollback: commit the earlier offsets of targets, and delete the offsets that they did not have before.

Additional offsets are deleted after the earlier ones are restored. Brokers before 2.4 cannot delete single offsets, so
there the group is deleted, and its earlier offsets are committed again. They are also committed before the deletion, to
see that the brokers accept them. If a run is killed in between, the target lacks offsets that the plan knows, and the
next run restores them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeAlias

from ..core.migration.obstacles import Obstacle, texts
from ..core.migration.rollback_rules import Restoration, changed_obstacles, changed_partitions
from ..core.migration.source_and_target_state import TargetState
from ..exceptions import GroupNotFoundError, GuardFailedError
from ..kafka import Brokers
from .current_state import read_targets
from .report import Answers

Check: TypeAlias = Callable[[Iterable[str]], Mapping[str, Sequence[Obstacle]]]
"""Returns why offsets of these targets must not be deleted any more, by target."""


class TargetRestorer:
    """Restores targets to their earlier offsets. `states` has the offsets that they have now."""

    def __init__(self, brokers: Brokers, states: Mapping[str, TargetState], check: Check) -> None:
        self._brokers = brokers
        self._states = states
        self._check = check

    def restore(self, todo: Mapping[str, Restoration]) -> dict[str, Answers]:
        """Restore these targets. Return the answers for all partitions that change, by target.

        If the additional offsets of a group must not be deleted, their answers are errors with the reason.
        """
        answers: dict[str, Answers] = {
            **self._brokers.commit(
                {target: it.commits for target, it in todo.items()},
                before={target: self._states[target].committed for target in todo},
            )
        }
        delete = {target: it for target, it in todo.items() if it.removed}
        kept: dict[str, Answers] = {
            target: dict.fromkeys(it.removed, _not_deleted(it, "not all of its earlier offsets can be restored"))
            for target, it in delete.items()
            if any(answers[target].values())
        }
        kept |= self._check_again({target: it for target, it in delete.items() if target not in kept})
        left = {target: it for target, it in delete.items() if target not in kept}
        before = {target: {**self._states[target].committed, **it.commits} for target, it in left.items()}
        kept |= self._brokers.delete_offsets(
            {target: it.removed for target, it in left.items() if not it.deletes_group}, before=before
        )
        deleted = self._brokers.delete_groups(
            (target for target, it in left.items() if it.deletes_group), before=before
        )
        kept |= {
            target: dict.fromkeys(todo[target].removed, error)
            for target, error in deleted.items()
            if error is not None and not isinstance(error, GroupNotFoundError)
        }
        again = {target: todo[target].commits for target in deleted if target not in kept}
        answers |= self._brokers.commit(again, before={})
        return answers | {target: {**answers[target], **of_target} for target, of_target in kept.items()}

    def _check_again(self, todo: Mapping[str, Restoration]) -> dict[str, Answers]:
        """Read the targets again before anything is deleted. Return the errors of groups that must not be deleted."""
        if not todo:
            return {}
        found: dict[str, Answers] = {}
        now = read_targets(self._brokers, todo, members=False)
        others = self._check(todo)
        for target, it in todo.items():
            expected = TargetState(committed={**self._states[target].committed, **it.commits})
            if obstacles := [*changed_obstacles(expected, now[target]), *others[target]]:
                error = _not_deleted(it, texts(obstacles))
                found[target] = dict.fromkeys([*it.removed, *changed_partitions(expected, now[target])], error)
        return found


def _not_deleted(todo: Restoration, reason: str) -> GuardFailedError:
    what = "the group was" if todo.deletes_group else "offsets that are new since the plan were"
    return GuardFailedError(f"{what} not deleted: {reason}")
