"""Kafka's own groups: the state of each and who takes part, and the end of those that nobody needs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from confluent_kafka import KafkaError

from ..core.kafka_values import NativeGroup, NativeMember, NativeState
from ..deadline import Deadline
from ..exceptions import GroupInUseError, GroupNotFoundError, NotConnectedError, OutcomeUnknownError
from ..input_errors import ZkgroupsException
from .errors import is_retriable, translate, words
from .isolated_client import AT_A_TIME, ask, ask_each, caused
from .retry import attempts
from .worker import Asker

# As confluent_kafka calls them; what it does not know, it calls UNKNOWN.
_STATES: Final = {
    "DEAD": NativeState.DEAD,
    "EMPTY": NativeState.EMPTY,
    "PREPARING_REBALANCING": NativeState.PREPARING_REBALANCE,
    "COMPLETING_REBALANCING": NativeState.COMPLETING_REBALANCE,
    "STABLE": NativeState.STABLE,
}
LOOK: Final = 1.0
"""Seconds that a look has at least, also when the time of what it is to clear up has passed."""


def described(asker: Asker, groups: Sequence[str], timeout: float) -> dict[str, NativeGroup | ZkgroupsException]:
    """What the coordinator of each group says of it, or why it was not had."""
    found = ask_each(asker, "describe", groups, timeout, _group)
    return {group: _dead(group) if isinstance(it, GroupNotFoundError) else it for group, it in found.items()}


def _dead(group: str) -> NativeGroup:
    return NativeGroup(group, NativeState.DEAD)


def _group(name: str, answer: tuple[str, Sequence[Sequence[Any]]]) -> NativeGroup:
    state, members = answer
    found = (NativeMember(*member) for member in members)
    return NativeGroup(name, _STATES.get(state, NativeState.UNKNOWN), tuple(sorted(found, key=lambda each: each.id)))


def in_use(asker: Asker, groups: Sequence[str], timeout: float) -> dict[str, GroupInUseError]:
    """The error for groups that were refused because somebody takes part in them, with who that is."""
    found = described(asker, groups, timeout) if groups else {}
    return {group: GroupInUseError(group, _names(it)) for group, it in found.items()}


def _names(group: NativeGroup | ZkgroupsException) -> list[str]:
    return [str(member) for member in group.members] if isinstance(group, NativeGroup) else []


def delete(asker: Asker, groups: Sequence[str], timeout: float) -> dict[str, ZkgroupsException | None]:
    """Delete these groups: for each None where it is gone now, or why it is not."""
    outcomes: dict[str, ZkgroupsException | None] = {}
    for first in range(0, len(groups), AT_A_TIME):
        outcomes |= _Deletion(asker, groups[first : first + AT_A_TIME], Deadline(timeout)).run()
    refused = [group for group, error in outcomes.items() if isinstance(error, GroupInUseError)]
    return outcomes | in_use(asker, refused, max(LOOK, timeout))


class _Deletion:
    """Some groups that are to go, and what became of each."""

    def __init__(self, asker: Asker, groups: Sequence[str], deadline: Deadline) -> None:
        self._asker = asker
        self._groups = groups
        self._deadline = deadline
        self._outcomes: dict[str, ZkgroupsException | None] = {}
        self._sent: set[str] = set()
        self._reason = KafkaError(KafkaError.NOT_COORDINATOR)

    def run(self) -> dict[str, ZkgroupsException | None]:
        for patience in attempts(self._deadline):
            self._send(patience)
            self._look(max(LOOK, patience))
            if not self._left():
                break
        return {
            group: self._outcomes[group] if group in self._outcomes else self._open(group) for group in self._groups
        }

    def _left(self) -> list[str]:
        return [group for group in self._groups if group not in self._outcomes]

    def _send(self, patience: float) -> None:
        left = self._left()
        answers = ask(self._asker, "delete", left, patience)
        self._outcomes |= {left[n]: None for n in answers.found}
        for n, error in answers.errors.items():
            if is_retriable(error):
                self._reason = error
            else:
                self._outcomes[left[n]] = self._answered(left[n], error)
        self._sent |= set(left[: answers.sent])

    def _answered(self, group: str, error: KafkaError) -> ZkgroupsException | None:
        # Not there any more: an earlier request of ours may have done it, and its answer was lost.
        if error.code() == KafkaError.GROUP_ID_NOT_FOUND and group in self._sent:
            return None
        return caused(translate(error, f"group {group!r}", group=group), error)

    def _look(self, patience: float) -> None:
        """Whether those are gone of which no answer has come."""
        unsure = [group for group in self._left() if group in self._sent]
        found = described(self._asker, unsure, patience) if unsure else {}
        self._outcomes |= {
            group: None for group, it in found.items() if isinstance(it, NativeGroup) and it.state is NativeState.DEAD
        }

    def _open(self, group: str) -> ZkgroupsException:
        text = f"within {self._deadline.seconds:g} s: {words(self._reason)}"
        if group in self._sent:
            return caused(
                OutcomeUnknownError(f"it is not known whether group {group!r} is deleted {text}"), self._reason
            )
        return caused(NotConnectedError(f"no broker could be told to delete group {group!r} {text}"), self._reason)
