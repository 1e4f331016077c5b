"""The owner nodes that an instance has created, each with the state that its claim and its commits need."""

from __future__ import annotations

import os
import threading
from collections.abc import Collection
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from ...core.znodes.topic_partition import TopicPartition
from ..session.reentrant_locks import not_held


@dataclass(frozen=True, slots=True)
class LastCommit:
    """The offset node of a partition when it was last read or written through a claim."""

    version: int | None
    """The version to write over. None if the node does not exist."""
    offset: int | None
    """The committed offset. None if there is none, or if it cannot be read."""
    registration_version: int
    """The version of the registration at that time."""
    czxid: int | None = None
    """The zxid that created the node, or None if unknown: a recreated node may have the same version."""
    replaced_version: int | None = None
    """The version of an ephemeral offset node of another client, which the next commit replaces."""


class OwnerNode:
    """An owner node of this session: the claim on one partition."""

    def __init__(self, at: TopicPartition, session_id: int, data: bytes, *, version: int = 0) -> None:
        self.at = at
        self.session_id = session_id
        self.data = data
        self.version = version
        self.claimed_zxid = 0
        """The last transaction that the client had seen when the claim was confirmed; 0 for a resumed claim."""
        self.last_commit: LastCommit | None = None
        self.details_version: int | None = None
        """The version of the node with the details of the last commit: -1 if it does not exist, None if unknown."""
        self.uncertain = False
        """True during a release, and after a release whose outcome is unknown: then it can only be released again."""
        self.resumed = False
        """True if an earlier process of this session created it, until `claim` returns it."""
        self._lock = threading.RLock()
        self._pid = os.getpid()

    def lock(self) -> Any:
        """Return the lock to hold during commits and releases. Raise `ReentrantCallError` if this thread holds it."""
        if self._pid != os.getpid():  # in a fork, the thread that holds the lock may not exist
            self._lock, self._pid = threading.RLock(), os.getpid()
        return not_held(self._lock, f"the claim on {self.at}")


def locked(nodes: Collection[OwnerNode]) -> ExitStack:
    """Lock these owner nodes, always in the same order: otherwise two batches could wait for each other."""
    locks = [node.lock() for node in sorted(set(nodes), key=lambda node: node.at)]
    with ExitStack() as stack:  # Ctrl-C may end the wait for a lock: then the others must not stay locked
        for lock in locks:
            stack.enter_context(lock)
        return stack.pop_all()
