"""All groups of a cluster: each coordinator lists its own."""

from __future__ import annotations

from typing import Final

from ...core.kafka_values import NativeState
from ...deadline import Deadline
from ...exceptions import NotConnectedError
from ..errors import error as error_of
from ..errors import is_temporary
from ..wire import codec
from ..wire.cluster import Cluster, Topic
from ..wire.error_codes import Code
from ..wire.errors import WireError
from .lanes import send_all
from .metadata import metadata
from .native_groups import state_of
from .retry import timed_out, tries

_TOPIC: Final = "__consumer_offsets"
"""The leaders of its partitions are the coordinators."""
_MOVED: Final = Code.words(Code.COORDINATOR_NOT_AVAILABLE)

States = dict[str, NativeState | None]


async def list_groups(cluster: Cluster, deadline: Deadline) -> States:
    """Return the state of every group; None from brokers before 2.6, which do not list states.

    Raise NotConnectedError unless all coordinators answer. Since release 4.0, a coordinator that has just taken
    over groups may not list them yet.
    """
    found = _List(cluster)
    async for timeout in tries(deadline):
        if await found.attempt(deadline, timeout):
            return dict(sorted(found.groups.items()))
    reason = found.reason or _MOVED
    raise NotConnectedError(f"not all brokers listed their groups within {deadline.seconds:g} s: {reason}")


class _List:
    """The groups that brokers have listed so far."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self.groups: States = {}
        self.reason = ""

    async def attempt(self, deadline: Deadline, timeout: float) -> bool:
        """Ask every coordinator. Return True if all answered, and no group can have moved meanwhile."""
        try:
            return await self._attempt(deadline, timeout)
        except NotConnectedError:
            if self.reason:  # this attempt had only the rest of the time, so its error tells less
                return False
            raise

    async def _attempt(self, deadline: Deadline, timeout: float) -> bool:
        coordinators = await self._coordinators(deadline)
        answered: set[int] = set()

        async def send(node: int, timeout: float) -> None:
            if await self._ask(node, timeout):
                answered.add(node)

        batches = {node: [timeout] for node in set(coordinators) if node >= 0}
        for failure in (await send_all(batches, send)).values():
            if not isinstance(failure, WireError):
                raise failure
            if not self.reason or not timed_out(failure):
                self.reason = str(failure)
        return answered == set(coordinators) and coordinators == await self._coordinators(deadline)

    async def _coordinators(self, deadline: Deadline) -> list[int]:
        """Return the leader of each partition; all brokers if this user may not see the topic, or it is missing."""
        found = await metadata(self._cluster, [_TOPIC], deadline)
        leaders = found.topics.get(_TOPIC, Topic({})).leaders
        return [leaders[partition] for partition in sorted(leaders)] or sorted(found.brokers)

    async def _ask(self, node: int, timeout: float) -> bool:
        request = codec.ListGroupsRequest(states_filter=[], types_filter=[])
        answer = await self._cluster.ask(node, request, timeout=timeout)
        if is_temporary(answer.error_code):
            self.reason = Code.words(answer.error_code)
            return False
        if answer.error_code != Code.NONE:
            raise error_of(answer.error_code, f"the list of groups of broker {node}")
        self.groups |= {
            each.group_id: state_of(each.group_state) if each.group_state else None for each in answer.groups
        }
        return True
