"""The operations of a transaction, and the error of a transaction that the server refused."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar

from kazoo.exceptions import RolledBackError, RuntimeInconsistency, ZookeeperError
from kazoo.protocol.states import ZnodeStat
from kazoo.security import ACL, OPEN_ACL_UNSAFE


@dataclass(frozen=True, slots=True)
class Create:
    """Create a node. Fails if it exists."""

    path: str
    data: bytes = b""
    ephemeral: bool = False
    acl: tuple[ACL, ...] = field(default=tuple(OPEN_ACL_UNSAFE), repr=False)


@dataclass(frozen=True, slots=True)
class Set:
    """Write a node. Fails if it does not exist or has another version."""

    path: str
    data: bytes
    version: int


@dataclass(frozen=True, slots=True)
class Delete:
    """Delete a node. Fails if it does not exist, has children, or has another version than the one given."""

    path: str
    version: int = -1


@dataclass(frozen=True, slots=True)
class Check:
    """Fail unless the node exists and has the version, if one is given."""

    path: str
    version: int = -1


Operation = Create | Set | Delete | Check
AnOperation = TypeVar("AnOperation", bound=Operation)


class SessionFence(NamedTuple):
    """Lets a transaction succeed only in this session, and only if the checks succeed."""

    session_id: int
    checks: tuple[Check, ...]


class TransactionFailed(Exception):
    """Strictly private to `zookeeper`: the first operation that failed. The caller raises a public error for it."""

    def __init__(self, index: int, operation: Operation, error: Exception) -> None:
        super().__init__(f"operation {index}, {operation}: {type(error).__name__}")
        self.index = index
        self.operation = operation
        self.error = error


def first_failure(operations: Sequence[Operation], results: Sequence[object]) -> TransactionFailed | None:
    """Return the failure in a server's answer, None if there was none.

    The results before the failed operation are `RolledBackError`, those after it `RuntimeInconsistency`.
    """
    for index, result in enumerate(results):
        if isinstance(result, ZookeeperError) and not isinstance(result, RolledBackError | RuntimeInconsistency):
            return TransactionFailed(index, operations[index], result)
    return None


def stats(results: Sequence[object]) -> list[ZnodeStat]:
    """Return the stats of the nodes that the `Set` operations wrote, in order."""
    return [result for result in results if isinstance(result, ZnodeStat)]


def last_write(operations: Sequence[Operation]) -> Operation:
    """Return the last operation that changes a node. If all are checks, return the last one."""
    changes = (operation for operation in reversed(operations) if not isinstance(operation, Check))
    return next(changes, operations[-1])


def is_divisible(operations: Sequence[Operation]) -> bool:
    """Return True if more than one operation changes a node. If so, the caller may try smaller transactions."""
    return sum(not isinstance(operation, Check) for operation in operations) > 1
