"""Groups on the brokers: reading their states and members, and deleting them."""

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

# The names in confluent_kafka; it calls unknown states UNKNOWN.
_STATES: Final = {
    "DEAD": NativeState.DEAD,
    "EMPTY": NativeState.EMPTY,
    "PREPARING_REBALANCING": NativeState.PREPARING_REBALANCE,
    "COMPLETING_REBALANCING": NativeState.COMPLETING_REBALANCE,
    "STABLE": NativeState.STABLE,
}
LOOK: Final = 1.0
"""The shortest timeout in seconds for a read that clears up an unknown outcome, even after the deadline."""


def described(asker: Asker, groups: Sequence[str], timeout: float) -> dict[str, NativeGroup | ZkgroupsException]:
    """Return the state of each group, or the error."""
    found = ask_each(asker, "describe", groups, timeout, _group)
    return {group: _dead(group) if isinstance(it, GroupNotFoundError) else it for group, it in found.items()}


def _dead(group: str) -> NativeGroup:
    return NativeGroup(group, NativeState.DEAD)


def _group(name: str, answer: tuple[str, Sequence[Sequence[Any]]]) -> NativeGroup:
    state, members = answer
    found = (NativeMember(*member) for member in members)
    return NativeGroup(name, _STATES.get(state, NativeState.UNKNOWN), tuple(sorted(found, key=lambda each: each.id)))


def in_use(asker: Asker, groups: Sequence[str], timeout: float) -> dict[str, GroupInUseError]:
    """Return the error for groups that were refused because of active members, with their names."""
    found = described(asker, groups, timeout) if groups else {}
    return {group: GroupInUseError(group, _names(it)) for group, it in found.items()}


def _names(group: NativeGroup | ZkgroupsException) -> list[str]:
    return [str(member) for member in group.members] if isinstance(group, NativeGroup) else []


def delete(asker: Asker, groups: Sequence[str], timeout: float) -> dict[str, ZkgroupsException | None]:
    """Delete these groups. Return None or the error for each."""
    outcomes: dict[str, ZkgroupsException | None] = {}
    for first in range(0, len(groups), AT_A_TIME):
        outcomes |= _Deletion(asker, groups[first : first + AT_A_TIME], Deadline(timeout)).run()
    refused = [group for group, error in outcomes.items() if isinstance(error, GroupInUseError)]
    return outcomes | in_use(asker, refused, max(LOOK, timeout))


class _Deletion:
    """Groups to delete, and the outcome of each."""

    def __init__(self, asker: Asker, groups: Sequence[str], deadline: Deadline) -> None:
        self._asker = asker
        self._groups = groups
        self._deadline = deadline
        self._outcomes: dict[str, ZkgroupsException | None] = {}
        self._sent: set[str] = set()
        self._last_error = KafkaError(KafkaError.NOT_COORDINATOR)

    def run(self) -> dict[str, ZkgroupsException | None]:
        for timeout in attempts(self._deadline):
            self._send(timeout)
            self._read_back(max(LOOK, timeout))
            if not self._left():
                break
        return {
            group: self._outcomes[group] if group in self._outcomes else self._timeout_error(group)
            for group in self._groups
        }

    def _left(self) -> list[str]:
        return [group for group in self._groups if group not in self._outcomes]

    def _send(self, timeout: float) -> None:
        left = self._left()
        answers = ask(self._asker, "delete", left, timeout)
        self._outcomes |= {left[n]: None for n in answers.found}
        for n, error in answers.errors.items():
            if is_retriable(error):
                self._last_error = error
            else:
                self._outcomes[left[n]] = self._answered(left[n], error)
        self._sent |= set(left[: answers.sent])

    def _answered(self, group: str, error: KafkaError) -> ZkgroupsException | None:
        # An earlier request may have deleted it, with its answer lost.
        if error.code() == KafkaError.GROUP_ID_NOT_FOUND and group in self._sent:
            return None
        return caused(translate(error, f"group {group!r}", group=group), error)

    def _read_back(self, timeout: float) -> None:
        """Find out which groups without an answer were deleted."""
        unsure = [group for group in self._left() if group in self._sent]
        found = described(self._asker, unsure, timeout) if unsure else {}
        self._outcomes |= {
            group: None for group, it in found.items() if isinstance(it, NativeGroup) and it.state is NativeState.DEAD
        }

    def _timeout_error(self, group: str) -> ZkgroupsException:
        text = f"within {self._deadline.seconds:g} s: {words(self._last_error)}"
        if group in self._sent:
            return caused(
                OutcomeUnknownError(f"it is not known whether group {group!r} was deleted {text}"), self._last_error
            )
        return caused(
            NotConnectedError(f"no broker accepted the request to delete group {group!r} {text}"), self._last_error
        )
