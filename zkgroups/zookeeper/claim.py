"""What it means to hold partitions: a `Claim` for one, `Claims` for several taken together.

Both are context managers that let go at the end, and both commit offsets under the fence of the instance: a commit is
one transaction, in the session of the claim, that checks the registration and the owner nodes and writes the offsets.
One whose session has ended, or whose claim is gone, gets a typed error and changes nothing (rule 4).
"""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Self

from ..core.znodes.topic_partition import TopicPartition
from ..core.znodes.values import CommittedOffset
from ..exceptions import NotClaimedError, ZkgroupsException
from .session.reentrant_locks import not_held

if TYPE_CHECKING:
    from .instance import Instance


@dataclass(frozen=True, slots=True)
class LastCommit:
    """What a claim knows of the offset node: the version to write over, and the offset not to go below."""

    version: int | None
    """None where there is no node yet."""
    offset: int | None
    """None where nothing that can be read was committed."""
    tenure_version: int
    """The version of our registration under which this was learned."""
    made: int | None = None
    """The zxid that created the node, or None if unknown: a recreated node may have the same version."""
    replaces: int | None = None
    """The version of a node that another client created for as long as its session lasts."""


class Claim:
    """One partition, held by an instance until `release()` or the end of the `with` block.

    >>> with instance.claim(TopicPartition("orders", 0)) as claim:  # doctest: +SKIP
    ...     claim.commit(100)
    """

    def __init__(
        self, instance: Instance, at: TopicPartition, session_id: int, data: bytes, *, version: int = 0
    ) -> None:
        self._instance = instance
        self.at = at
        self.session_id = session_id
        self.data = data
        self.version = version
        self.last: LastCommit | None = None
        self.doubtful = False  # a release whose outcome nobody learned: it can only be released
        self.lock = threading.RLock()
        self.pid = os.getpid()

    @property
    def held(self) -> bool:
        """Whether it is certainly still ours, as far as can be known without asking: see `verify` for asking."""
        return self._instance._holds(self)

    def verify(self) -> bool:
        """Ask the server whether the owner node carries our id and our session (rule 1)."""
        return self._instance._verify([self]) == [self]

    def fetch(self) -> CommittedOffset | None:
        """The offset to start from, None where nothing was committed."""
        return self._instance.group.offsets.fetch(self.at)

    def commit(self, offset: int, *, backward: bool = False) -> None:
        """Write the next message to read; lower than what is committed only with `backward` (rule 5)."""
        self._instance._commit({self: offset}, backward=backward)

    def release(self) -> None:
        """Let go, as does leaving the `with` block; nothing happens if it is gone already."""
        self._instance._let_go([self])

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _leave(self.release, error)

    def __repr__(self) -> str:
        return f"<Claim of {self.at} by {self._instance.id!r}, {'held' if self.held else 'not held'}>"


class Claims(Mapping[TopicPartition, Claim]):
    """Several partitions, taken all or none, committed and let go together."""

    def __init__(self, instance: Instance, claims: Sequence[Claim]) -> None:
        self._instance = instance
        self._claims = {claim.at: claim for claim in claims}

    def __getitem__(self, at: TopicPartition) -> Claim:
        return self._claims[at]

    def __iter__(self) -> Iterator[TopicPartition]:
        return iter(self._claims)

    def __len__(self) -> int:
        return len(self._claims)

    @property
    def held(self) -> bool:
        """Whether all of them are certainly still ours."""
        return all(claim.held for claim in self.values())

    @property
    def certain_until(self) -> float:
        """Until when, on the clock of `uptime`, their session is certain to live without another proof."""
        return min((self._instance.certain_until(claim) for claim in self.values()), default=-math.inf)

    def verify(self) -> list[TopicPartition]:
        """Ask the server which of them are still ours."""
        return [claim.at for claim in self._instance._verify(list(self.values()))]

    def commit(
        self, offsets: Mapping[TopicPartition, int], *, backward: bool | Mapping[TopicPartition, int] = False
    ) -> None:
        """Write offsets of any of them, in as few transactions as the server's limit allows; each is all or none.

        With `backward=True` any offset may go back. With a mapping, an offset may go back only if the committed offset
        is the one in the mapping.
        """
        unknown = [at for at in offsets if at not in self._claims]
        if unknown:
            raise NotClaimedError(unknown[0])
        self._instance._commit({self[at]: offset for at, offset in offsets.items()}, backward=backward)

    def release(self) -> None:
        """Let go of all of them, as does leaving the `with` block."""
        self._instance._let_go(list(self.values()))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _leave(self.release, error)

    def __repr__(self) -> str:
        return f"<Claims of {len(self)} partitions by {self._instance.id!r}>"


def _leave(release: Callable[[], None], error: BaseException | None) -> None:
    """Let go at the end of a `with` block, without hiding the error that ended it."""
    try:
        release()
    except ZkgroupsException as trouble:
        if error is None:
            raise
        error.add_note(f"and letting go failed: {trouble}")


def locked(claims: Sequence[Claim]) -> ExitStack:
    """Keep two commits of one claim apart; in one order always, so that two batches cannot wait for each other."""
    ordered = sorted(set(claims), key=lambda claim: claim.at)
    for claim in ordered:
        if claim.pid != os.getpid():  # a fork: the thread that holds the lock may not run here
            claim.lock, claim.pid = threading.RLock(), os.getpid()
        not_held(claim.lock, f"the claim on {claim.at}")
    stack = ExitStack()
    for claim in ordered:
        stack.enter_context(claim.lock)
    return stack
