"""Requests to many brokers at a time: to coordinators, and again after moves, restarts and lost connections."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from ...deadline import Deadline
from ...exceptions import NotConnectedError, UnreachableError
from ...input_errors import ZkgroupsException
from ..errors import error as error_of
from ..errors import is_temporary
from ..wire import codec
from ..wire.cluster import Cluster, Metadata
from ..wire.connection import Code, Versions
from ..wire.errors import NoListenerError, WireError

# Attempts within a deadline, for asynchronous requests.


# In seconds. A broker that writes to other brokers first may take 5 s for its answer. A slow broker gets more time with
# every attempt.
_FIRST: Final = 6.0
_PAUSE: Final = 0.05
_LONGEST_PAUSE: Final = 1.0
_SHORTEST: Final = 0.01
LOOK: Final = 1.0
"""The shortest timeout in seconds for a read that clears up an unknown outcome, even after the deadline."""


def _nothing() -> int:
    return 0


def timed_out(error: WireError) -> bool:
    """Return whether an attempt had too little time, as the last one before a deadline. Its error tells little."""
    return isinstance(error.__cause__, TimeoutError)


async def tries(deadline: Deadline, answers: Callable[[], int] = _nothing) -> AsyncIterator[float]:
    """Yield the timeout of each attempt, in seconds, until the deadline has passed. There is at least one attempt.

    The timeout starts again after each attempt with new answers, so large work completes as long as brokers answer.
    """
    timeout, pause, before = _FIRST, _PAUSE, answers()
    while True:
        yield max(_SHORTEST, min(timeout, deadline.remaining))
        if (now := answers()) > before:
            deadline, timeout, pause, before = Deadline(deadline.seconds), _FIRST, _PAUSE, now
        if deadline.passed:
            return
        await asyncio.sleep(min(pause, deadline.remaining))
        timeout *= 2
        pause = min(pause * 2, _LONGEST_PAUSE)


# Send requests to many brokers at a time. Each broker has several in flight. A broker that fails gets no more.


_IN_FLIGHT: Final = 16
"""The most requests in flight at each broker: one for each link."""

T = TypeVar("T")


async def send_all(
    batches: Mapping[int, Sequence[T]], send: Callable[[int, T], Awaitable[None]]
) -> dict[int, WireError | ZkgroupsException]:
    """Send the batches of each broker, by its id. Return the first error of each broker that failed.

    The remaining batches of such a broker are not sent.
    """
    failed: dict[int, WireError | ZkgroupsException] = {}

    async def work(node: int, left: Iterator[T]) -> None:
        for batch in left:
            if node in failed:
                return
            try:
                await send(node, batch)
            except (WireError, ZkgroupsException) as error:
                failed.setdefault(node, error)

    async with asyncio.TaskGroup() as tasks:
        for node, those in batches.items():
            left = iter(those)
            for _ in range(min(_IN_FLIGHT, len(those))):
                tasks.create_task(work(node, left))
    return failed


def parts(items: Sequence[T], size: int) -> list[Sequence[T]]:
    """Split items into parts of this size."""
    return [items[first : first + size] for first in range(0, len(items), size)]


# Ask for the brokers and topics of a cluster until one of its brokers answers.


_POSSIBLE: Final = re.compile("[a-zA-Z0-9._-]{1,249}")
"""The names that topics can have."""


async def metadata(cluster: Cluster, topics: Iterable[str] | None, deadline: Deadline) -> Metadata:
    """Return the brokers, the cluster's id, and these topics, or all. No topic is created.

    Raise NotConnectedError if no broker answers.
    """
    wanted = None if topics is None else [topic for topic in topics if _POSSIBLE.fullmatch(topic)]
    return await _until_answered(cluster, deadline, lambda timeout: cluster.metadata(wanted, timeout=timeout))


async def versions(cluster: Cluster, deadline: Deadline) -> Versions:
    """Return the versions of requests that a broker supports. Raise NotConnectedError if no broker answers."""
    return await _until_answered(cluster, deadline, lambda timeout: cluster.versions(timeout=timeout))


async def _until_answered(cluster: Cluster, deadline: Deadline, ask: Callable[[float], Coroutine[Any, Any, T]]) -> T:
    reason = ""
    async for timeout in tries(deadline):
        try:
            return await ask(timeout)
        except WireError as error:
            if not reason or not timed_out(error):
                reason = str(error)
            limit = cluster.unreachable_timeout
            if limit is not None and isinstance(error, NoListenerError) and deadline.elapsed >= limit:
                raise UnreachableError(
                    f"no broker at {cluster.bootstrap} answered within {limit:g} s: {error}"
                ) from error
    raise NotConnectedError(f"no broker at {cluster.bootstrap} answered within {deadline.seconds:g} s: {reason}")


async def topic_ids(cluster: Cluster, topics: Iterable[str], deadline: Deadline) -> dict[str, str]:
    """Return the id of each topic. Missing topics are left out, and all topics if the brokers have no ids.

    A topic that is deleted and recreated has the same name, but another id.
    """
    found = (await metadata(cluster, topics, deadline)).topics
    for name, topic in found.items():
        if topic.error not in (Code.NONE, Code.UNKNOWN_TOPIC_OR_PARTITION):
            raise error_of(topic.error, f"topic {name!r}")
    return {name: topic.id for name, topic in found.items() if topic.id is not None}


async def hidden_topics(cluster: Cluster, topics: Iterable[str], deadline: Deadline) -> set[str]:
    """Return the topics that brokers do not describe, although they may exist."""
    found = (await metadata(cluster, topics, deadline)).topics
    missing = (Code.NONE, Code.UNKNOWN_TOPIC_OR_PARTITION, Code.INVALID_TOPIC_EXCEPTION)
    return {name for name, topic in found.items() if topic.error not in missing}


# The coordinators of groups: the broker that keeps the offsets of a group.
#
# Brokers since 3.0 are asked about many groups in one request. Older brokers take one group per request, so for them
# the coordinator is computed first: the leader of the partition of `__consumer_offsets` that the hash of the name
# selects. If that is wrong, the broker answers that it is not the coordinator. Then a broker is asked for the
# coordinator.


_BATCHED: Final = 4
"""From this version on, one FindCoordinator request names many groups."""
_AT_A_TIME: Final = 500
_TOPIC: Final = "__consumer_offsets"
_INT: Final = 0xFFFF_FFFF
_SIGN: Final = 0x7FFF_FFFF


@dataclass(frozen=True, slots=True)
class Found:
    """The coordinators that were found, the permanent errors, and why other coordinators are missing."""

    nodes: Mapping[str, int] = field(default_factory=dict)
    errors: Mapping[str, ZkgroupsException] = field(default_factory=dict)
    reason: str = Code.words(Code.COORDINATOR_NOT_AVAILABLE)

    def by_node(self, groups: Iterable[str]) -> dict[int, list[str]]:
        """Return the groups of each coordinator."""
        found: dict[int, list[str]] = {}
        for group in groups:
            if group in self.nodes:
                found.setdefault(self.nodes[group], []).append(group)
        return found


class Coordinators:
    """A cache of the coordinators in one cluster. An answer that contradicts it removes entries."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._known: dict[str, int] = {}
        self._wrong: set[str] = set()
        """Groups whose computed coordinator was wrong."""

    async def find(self, groups: Sequence[str], timeout: float) -> Found:
        """Return the coordinators of these groups. Raise an error if no broker can be reached."""
        errors: dict[str, ZkgroupsException] = {}
        reasons: list[str] = []
        if missing := [group for group in groups if group not in self._known]:
            try:
                async with asyncio.timeout(timeout):
                    await self._ask(missing, timeout, errors, reasons)
            except TimeoutError:
                reasons.append(f"no answer about coordinators within {timeout:.3g} s")
        known = {group: self._known[group] for group in groups if group in self._known}
        return Found(known, errors, reasons[-1] if reasons else Found().reason)

    async def _ask(
        self, missing: Sequence[str], timeout: float, errors: dict[str, ZkgroupsException], reasons: list[str]
    ) -> None:
        many = ((await self._cluster.versions()).best(codec.FIND_COORDINATOR) or 0) >= _BATCHED
        if not many:
            await self._compute([group for group in missing if group not in self._wrong])

        async def ask(_: int, names: Sequence[str]) -> None:
            answer = await self._cluster.ask(None, _request(names), timeout=timeout)
            for group, node, code in _answers(names, answer):
                if code == Code.NONE:
                    self._known[group] = node
                    self._wrong.discard(group)
                elif is_temporary(code):
                    reasons.append(Code.words(code))
                else:
                    errors[group] = error_of(code, f"group {group!r}", group=group)

        left = [group for group in missing if group not in self._known]
        for failure in (await send_all({0: parts(left, _AT_A_TIME if many else 1)}, ask)).values():
            if not isinstance(failure, WireError):
                raise failure
            reasons.append(str(failure))

    def forget(self, groups: Iterable[str]) -> None:
        """Forget the coordinators of these groups, because they did not answer or have changed."""
        for group in groups:
            if self._known.pop(group, None) is not None:
                self._wrong.add(group)

    async def _compute(self, groups: Sequence[str]) -> None:
        topic = (await self._cluster.metadata([_TOPIC])).topics.get(_TOPIC) if groups else None
        if topic is None or not topic.leaders:
            return
        for group in groups:
            leader = topic.leaders.get(partition_of(group, len(topic.leaders)), -1)
            if leader >= 0:
                self._known[group] = leader


def partition_of(group: str, partitions: int) -> int:
    """Return the partition of `__consumer_offsets` that stores a group, by Java's hash of its name.

    >>> partition_of("billing", 50), partition_of("größe/日本", 50)
    (9, 41)
    """
    units = memoryview(group.encode("utf-16-le", "surrogatepass")).cast("H")
    found = 0
    for unit in units:
        found = (found * 31 + unit) & _INT
    magnitude = found if found <= _SIGN else -(found - _INT - 1)
    return (0 if magnitude > _SIGN else magnitude) % partitions


def _request(names: Sequence[str]) -> Any:
    """Return a request for all groups. Old versions encode only the first one."""
    return codec.FindCoordinatorRequest(key=names[0], key_type=0, coordinator_keys=list(names))


def _answers(names: Sequence[str], answer: Any) -> list[tuple[str, int, int]]:
    if answer.coordinators:
        return [(each.key, each.node_id, each.error_code) for each in answer.coordinators]
    return [(names[0], answer.node_id, answer.error_code)]


# Send one question about many groups to their coordinators, and again after moves, restarts and lost answers.


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
