"""One question about many groups: sent to their coordinators, and again after moves, restarts and lost answers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from ..deadline import Deadline
from ..exceptions import NotConnectedError
from ..input_errors import ZkgroupsException
from .coordinators import Coordinators
from .errors import error as error_of
from .errors import is_temporary
from .lanes import parts, send_all
from .retry import tries
from .wire.error_codes import Code
from .wire.errors import WireError

Ask = Callable[[int, Sequence[str], float], Awaitable[Mapping[str, Any]]]
"""Asks a broker about groups, within a timeout. Returns for each group the answer, or its error as a `GroupCode`."""


class GroupCode(int):
    """An error code instead of an answer about a group."""


class Asked:
    """The answers so far. `sent` are groups whose request may have been carried out."""

    def __init__(self, coordinators: Coordinators) -> None:
        self.coordinators = coordinators
        self.found: dict[str, Any] = {}
        self.sent: set[str] = set()
        self.reason = Code.words(Code.COORDINATOR_NOT_AVAILABLE)

    async def attempt(self, groups: Sequence[str], size: int, ask: Ask, timeout: float) -> None:
        """Ask once about each of these groups. Temporary errors leave groups without an answer."""
        where = await self.coordinators.find(groups, timeout)
        self.found |= where.errors
        self.reason = where.reason

        async def send(node: int, names: Sequence[str]) -> None:
            try:
                answers = await ask(node, names, timeout)
            except WireError as error:
                if error.sent:
                    self.sent.update(names)
                raise
            self.sent.update(names)
            for group, answer in answers.items():
                self._answered(group, answer)

        batches = {node: parts(names, size) for node, names in where.by_node(groups).items()}
        failed = await send_all(batches, send)
        for node, failure in failed.items():
            left = [group for batch in batches[node] for group in batch if group not in self.found]
            if isinstance(failure, WireError):
                self.reason = str(failure)
                self.coordinators.forget(left)
            else:
                self.found |= dict.fromkeys(left, failure)

    def _answered(self, group: str, answer: Any) -> None:
        if not isinstance(answer, GroupCode):
            self.found[group] = answer
        elif is_temporary(answer):
            self.reason = Code.words(answer)
            if int(answer) != Code.COORDINATOR_LOAD_IN_PROGRESS:
                self.coordinators.forget([group])
        else:
            self.found[group] = error_of(answer, f"group {group!r}", group=group)


async def ask_groups(
    coordinators: Coordinators, groups: Sequence[str], size: int, ask: Ask, deadline: Deadline
) -> dict[str, Any]:
    """Ask a read-only question about groups, at most `size` per request. Return the answer or the error of each."""
    asked = Asked(coordinators)
    left = groups
    async for timeout in tries(deadline, lambda: len(asked.found)):
        try:
            await asked.attempt(left, size, ask, timeout)
        except WireError as error:
            asked.reason = str(error)
        left = [group for group in groups if group not in asked.found]
        if not left:
            break
    return {
        group: asked.found[group] if group in asked.found else _unanswered(group, asked.reason, deadline)
        for group in groups
    }


def _unanswered(group: str, reason: str, deadline: Deadline) -> ZkgroupsException:
    return NotConnectedError(f"no broker answered about group {group!r} within {deadline.seconds:g} s: {reason}")
