"""Requests about groups that are, or were, moved live between ZooKeeper and the brokers (`core/znodes/group_route.py`).

    | request                   | `moving-to-kafka`       | `kafka`    | `moving-to-zookeeper`                     |
    |---------------------------|-------------------------|------------|-------------------------------------------|
    | find, describe, list      | answered here           | forwarded  | forwarded                                 |
    | heartbeat, sync           | by the coordinator here | forwarded  | refused: the client commits and rejoins   |
    | commit of a member, leave | by the coordinator here | forwarded  | forwarded: the broker knows its members   |
    | join                      | by the coordinator here | forwarded  | refused; the gateway lets a member leave  |
    | fetch offsets             | answered here           | forwarded  | refused: try again                        |
    | commit without a member   | refused by the mark     | forwarded  | refused: try again                        |
    | delete                    | refused: try again      | forwarded  | refused: try again                        |

Requests are forwarded in the state `kafka` only if the gateway has a permit. Otherwise clients must try again.
The coordinator here lets its members leave by itself, because its storage knows the routes, too.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final, Protocol

from ...coordinator.values.answers import refusal
from ...coordinator.values.kafka_errors import KafkaError
from ...core.znodes.group_route import RouteState
from ...kafka.wire import codec
from ...kafka.wire.codec import ReceivedRequest
from ..protocol.group_answers import to_client
from ..protocol.group_requests import to_coordinator
from ..protocol.group_routing import Route
from ..protocol.permissions import WRITES

LAST_COMMITS: Final = 5.0
"""In seconds: how long members may take to commit and join again. Then the gateway lets them leave."""
_PAUSE: Final = 0.5
"""In seconds: clients that must wait ask again at once."""
_TRY_AGAIN: Final = KafkaError.NOT_COORDINATOR
"""All clients retry after this error, whichever request they have sent. Some fail after others, like 14 and 15."""
_DELETIONS: Final = {codec.DELETE_GROUPS, codec.OFFSET_DELETE}
_MEMBERS_ONLY: Final = {codec.HEARTBEAT, codec.SYNC_GROUP}

Verdict = Route | KafkaError
"""Who answers a request, or the error with which it is refused."""


class Routes(Protocol):
    """The routes of groups. The methods do not block."""

    def state(self, group: str) -> RouteState | None:
        """Return the state of a group. None: it is in ZooKeeper."""

    def age(self, group: str) -> float:
        """Return for how many seconds the state has been known."""

    def may_forward(self, group: str) -> bool:
        """True if requests may be forwarded to the brokers now. Otherwise clients must retry."""

    def begin_use(self, group: str) -> bool:
        """Like `may_forward`. If True, the group stays on the brokers until `end_use`."""

    def end_use(self, group: str) -> None:
        """Note that a broker has answered a commit."""


class Broker(Protocol):
    """The connection of a client, with the method that is needed here."""

    async def ask(self, message: Any, version: int) -> Any:
        """Return the answer of the broker to a request of the gateway, on the client's own connection."""


class MovedGroups:
    """Decides who answers requests about groups with a route. Without `routes`, no group has one."""

    def __init__(self, routes: Routes | None, *, read_only: bool) -> None:
        self._routes = routes
        self._read_only = read_only

    def state(self, group: str) -> RouteState | None:
        """Return the state of a group. None: it is in ZooKeeper."""
        return None if self._routes is None else self._routes.state(group)

    def read_at(self, group: str) -> Route:
        """Return where a group is listed, and where clients find its coordinator."""
        return Route.HERE if self.state(group) in (None, RouteState.MOVING_TO_KAFKA) else Route.KAFKA

    async def decide(self, received: ReceivedRequest, group: str, client: Broker) -> Verdict:
        """Return who answers a request. A member of the brokers may be removed first."""
        key, state = received.kind.key, self.state(group)
        if state is None or (self._read_only and key in WRITES):
            return Route.HERE
        if state is RouteState.MOVING_TO_KAFKA:
            return _TRY_AGAIN if key in _DELETIONS else Route.HERE
        if key not in WRITES and (self._read_only or key != codec.OFFSET_FETCH):
            return Route.KAFKA
        assert self._routes is not None
        if state is RouteState.KAFKA:
            return Route.KAFKA if self._routes.may_forward(group) else _TRY_AGAIN
        return await self._while_returning(received, group, client)

    async def _while_returning(self, received: ReceivedRequest, group: str, client: Broker) -> Verdict:
        """Let the members of the brokers commit, join again, and leave."""
        assert self._routes is not None
        key = received.kind.key
        if key == codec.LEAVE_GROUP or (key == codec.OFFSET_COMMIT and not is_simple_commit(received)):
            return Route.KAFKA
        is_late = key in _MEMBERS_ONLY and self._routes.age(group) > LAST_COMMITS
        if (is_late or key == codec.JOIN_GROUP) and (member := received.message.member_id):
            await client.ask(codec.LeaveGroupRequest(group_id=group, member_id=member), 0)
            return KafkaError.UNKNOWN_MEMBER_ID
        if key in _MEMBERS_ONLY:
            return KafkaError.REBALANCE_IN_PROGRESS
        if key == codec.JOIN_GROUP:
            await asyncio.sleep(_PAUSE)
        return _TRY_AGAIN

    async def commit(self, received: ReceivedRequest, group: str, client: Broker) -> Any:
        """Forward a commit without a member, and wait for its answer. Meanwhile the group stays on the brokers."""
        if self._routes is None or not self._routes.begin_use(group):
            return to_client(received, refusal(to_coordinator(received, ""), _TRY_AGAIN))
        try:
            return await client.ask(received.message, received.kind.version)
        finally:
            self._routes.end_use(group)


def is_simple_commit(received: ReceivedRequest) -> bool:
    """Return whether this is a commit without a member. A broker accepts it as long as the group has no members."""
    return received.kind.key == codec.OFFSET_COMMIT and received.message.generation_id_or_member_epoch < 0
