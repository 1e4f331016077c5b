"""The coordinators of groups: the broker that keeps the offsets of a group.

Brokers since 3.0 are asked about many groups in one request. Older brokers take one group per request, so for them the
coordinator is computed first: the leader of the partition of `__consumer_offsets` that the hash of the name selects. If
that is wrong, the broker answers that it is not the coordinator. Then a broker is asked for the coordinator.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from ...input_errors import ZkgroupsException
from ..errors import error as error_of
from ..errors import is_temporary
from ..wire import codec
from ..wire.cluster import Cluster
from ..wire.error_codes import Code
from ..wire.errors import WireError
from .lanes import parts, send_all

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
