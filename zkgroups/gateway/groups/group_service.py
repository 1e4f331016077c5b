"""Answers requests about groups: from the coordinator here, from the brokers, or from both."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any, Final, Protocol, TypeVar

from ...coordinator.memory_storage import BY_KAFKAS_NAME
from ...coordinator.values import JoinAnswer, KafkaError, LocateAnswer, LocateRequest, refusal
from ...core.znodes.own_nodes import RouteState
from ...kafka.wire import codec
from ...kafka.wire.codec import ReceivedRequest
from ...kafka.wire.errors import Address
from ..protocol.addresses import FIRST_WITH_SEVERAL_KEYS, NO_NODE, NOBODY, addresses_at
from ..protocol.group_messages import check_entries, groups_of, is_long, to_client, to_coordinator
from ..protocol.offered_apis import NEEDED, WRITES, GroupRouting, Permission, Route, coordinator_node, join, only
from ..settings import Turns
from .coordinator_host import CoordinatorHost

# The log of refused requests that need a change of settings: once for each kind of request and client.


_log = logging.getLogger("zkgroups.gateway")

_MOST_LOGGED: Final = 1000
"""The most refusals to log. Clients choose their ids, so the number of ids has no limit."""
_MOST_SHOWN: Final = 10


class RefusalLog:
    """Logs refused requests, and remembers which it has logged."""

    def __init__(self) -> None:
        self._logged: set[tuple[int, str | None, str]] = set()

    def _is_new(self, received: ReceivedRequest, host: str) -> bool:
        """Return whether no request of this kind and client was logged before."""
        kind = (received.kind.key, received.client_id, host)
        if kind in self._logged or len(self._logged) >= _MOST_LOGGED:
            return False
        self._logged.add(kind)
        return True

    def add_join(self, received: ReceivedRequest, host: str) -> None:
        """Log a client that offers no strategy with which it can join the group."""
        message = received.message
        if self._is_new(received, host):
            _log.warning(
                "refused client %r at %s in group %r: it offers %s for members of the type %r, but a consumer must "
                "offer a strategy that all members of its group support, and that the gateway knows: %s",
                received.client_id,
                host,
                message.group_id,
                ", ".join(repr(each.name) for each in message.protocols[:_MOST_SHOWN]),
                message.protocol_type,
                ", ".join(BY_KAFKAS_NAME),
            )

    def add(self, received: ReceivedRequest, groups: Sequence[str], host: str) -> None:
        """Log a request that a read-only gateway refuses."""
        if not self._is_new(received, host):
            return
        name = codec.SERVED[received.kind.key].name
        _log.warning(
            "refused the request %s of client %r at %s for %s: this gateway is read-only; start it without "
            "--read-only, or give the client another address",
            name,
            received.client_id,
            host,
            ", ".join(map(repr, groups)),
        )


# Requests about groups that are, or were, moved live between ZooKeeper and the brokers (`core/znodes/own_nodes.py`).
#
#     | request                   | `moving-to-kafka`       | `kafka`    | `moving-to-zookeeper`                     |
#     |---------------------------|-------------------------|------------|-------------------------------------------|
#     | find, describe, list      | answered here           | forwarded  | forwarded                                 |
#     | heartbeat, sync           | by the coordinator here | forwarded  | refused: the client commits and rejoins   |
#     | commit of a member, leave | by the coordinator here | forwarded  | forwarded: the broker knows its members   |
#     | join                      | by the coordinator here | forwarded  | refused; the gateway lets a member leave  |
#     | fetch offsets             | answered here           | forwarded  | refused: try again                        |
#     | commit without a member   | refused by the mark     | forwarded  | refused: try again                        |
#     | delete                    | refused: try again      | forwarded  | refused: try again                        |
#
# Requests are forwarded in the state `kafka` only if the gateway has a permit. Otherwise clients must try again. This
# is also the answer to version 0 of commits and fetches: brokers would use the offsets in ZooKeeper for them. The
# coordinator here lets its members leave by itself, because its storage knows the routes, too.


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
        if received.kind.version == 0 and key in (codec.OFFSET_COMMIT, codec.OFFSET_FETCH):
            return _TRY_AGAIN
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


_GROUP: Final = 0
"""Kafka's key type for the coordinators of groups. Transactions have another one."""
_GROUPS_AT_A_TIME: Final = 500
"""The most groups that are answered for before other clients are served."""


T = TypeVar("T")


class Client(Broker, Protocol):
    """The connection of a client, with the methods that requests about groups need."""

    @property
    def host(self) -> str:
        """The address of the client, as descriptions of groups show it."""

    @property
    def node(self) -> int | None:
        """The broker under whose address the client has connected; None for the bootstrap address."""

    @property
    def keeps_addresses(self) -> bool:
        """True if the client does not notice that a coordinator has another address under the same id."""

    async def allowed(self, permission: Permission, groups: Sequence[str]) -> set[str]:
        """Return the groups for which the client has a permission."""

    async def brokers(self) -> Mapping[int, Address]:
        """Return the addresses at the gateway of all known brokers."""

    def add_gateway(self, address: Address) -> int:
        """Return the id under which the client sees a gateway that coordinates a group."""


class GroupService:
    """Answers requests about groups by their names. With `read_only`, requests that change a group are refused.

    - `routes`: the routes of groups that were moved live. Without it, only their names decide.
    - `most_entries`: the most groups, topics, partitions and members in a request that is not only for the brokers.
    """

    def __init__(
        self,
        host: CoordinatorHost,
        routing: GroupRouting,
        *,
        read_only: bool,
        most_entries: int,
        routes: Routes | None = None,
    ) -> None:
        self._most_entries = most_entries
        self._host = host
        self._moved = MovedGroups(routes, read_only=read_only)
        self._routing = routing
        self._read_only = read_only
        self._refusals = RefusalLog()
        self._turns = Turns()

    async def answer(self, received: ReceivedRequest, client: Client) -> Any | None:
        """Return the answer to a request; None if the request must be forwarded to the broker unchanged."""
        names = list(dict.fromkeys(groups_of(received) or ()))
        is_for_brokers = 0 < len(names) <= self._most_entries and all(
            self._routing.route(name) is Route.KAFKA for name in names
        )
        if not is_for_brokers:
            check_entries(received, self._most_entries)
        if is_for_brokers or len(names) <= _GROUPS_AT_A_TIME:
            return await self._answer(received, client)
        answer = None
        for first in range(0, len(names), _GROUPS_AT_A_TIME):
            some = only(received, set(names[first : first + _GROUPS_AT_A_TIME]))
            part = await self._answer(some, client)
            if part is None:
                part = await client.ask(some.message, some.kind.version)
            answer = part if answer is None else join(answer, part)
            await asyncio.sleep(0)
        return answer

    async def _answer(self, received: ReceivedRequest, client: Client) -> Any | None:
        match received.kind.key:
            case codec.FIND_COORDINATOR:
                return await self._find_coordinators(received, client)
            case codec.LIST_GROUPS:
                return await self._list(received, client)
        verdicts = {name: await self._verdict(received, name, client) for name in groups_of(received) or []}
        of_brokers = [name for name, verdict in verdicts.items() if verdict is Route.KAFKA]
        if len(of_brokers) == len(verdicts):
            if not is_simple_commit(received) or self._routing.route(of_brokers[0]) is Route.KAFKA:
                return None
            return await self._moved.commit(received, of_brokers[0], client)
        here = {name: verdict for name, verdict in verdicts.items() if verdict is not Route.KAFKA}
        answer = await self._answer_here(only(received, here), here, client)
        if of_brokers:
            asked = only(received, of_brokers)
            answer = join(answer, await client.ask(asked.message, asked.kind.version))
        return answer

    async def _verdict(self, received: ReceivedRequest, name: str, client: Client) -> Verdict:
        route = self._routing.route(name)
        return await self._moved.decide(received, name, client) if route is Route.HERE else route

    def _route(self, name: str) -> Route:
        """Return where a group is listed, and where clients find its coordinator."""
        route = self._routing.route(name)
        return self._moved.read_at(name) if route is Route.HERE else route

    def _of_brokers(self, names: Sequence[str]) -> list[str]:
        return [name for name in names if self._route(name) is Route.KAFKA]

    async def _answer_here(self, received: ReceivedRequest, verdicts: Mapping[str, Verdict], client: Client) -> Any:
        """Let the coordinator answer for groups that are here. Refuse the others, and those without permission."""
        valid = [name for name, verdict in verdicts.items() if verdict is Route.HERE]
        allowed = await self._allowed(received, valid, client)
        answers = []
        if allowed:
            chosen = only(received, allowed)
            answers.append(await self._ask_host(chosen, client))
        for error, refused in self._refused(verdicts, set(valid) - allowed).items():
            chosen = only(received, refused)
            answers.append(to_client(chosen, refusal(to_coordinator(chosen, client.host), error)))
        first, *rest = answers
        for each in rest:
            join(first, each)
        return first

    async def _ask_host(self, received: ReceivedRequest, client: Client) -> Any:
        request = await self._convert(received, partial(to_coordinator, received, client.host))
        answer = await self._host.answer(request)
        if isinstance(answer, JoinAnswer) and answer.error == KafkaError.INCONSISTENT_GROUP_PROTOCOL:
            self._refusals.add_join(received, client.host)
        return await self._convert(received, partial(to_client, received, answer))

    async def _convert(self, received: ReceivedRequest, step: Callable[[], T]) -> T:
        return await self._turns.run(step) if is_long(received) else step()

    def _refused(self, verdicts: Mapping[str, Verdict], forbidden: set[str]) -> dict[KafkaError, set[str]]:
        """Return the groups to refuse, by error."""
        found = {KafkaError.GROUP_AUTHORIZATION_FAILED: forbidden} if forbidden else {}
        for name, verdict in verdicts.items():
            if verdict is not Route.HERE:
                error = verdict if isinstance(verdict, KafkaError) else KafkaError.INVALID_GROUP_ID
                found.setdefault(error, set()).add(name)
        return found

    async def _allowed(self, received: ReceivedRequest, names: Sequence[str], client: Client) -> set[str]:
        key = received.kind.key
        if self._read_only and key in WRITES:
            self._refusals.add(received, names, client.host)
            return set()
        return await client.allowed(NEEDED[key], names)

    async def _list(self, received: ReceivedRequest, client: Client) -> Any:
        """List the groups of the broker, and the groups here for which clients see this broker as the coordinator."""
        listed = await client.ask(received.message, received.kind.version)
        listed.groups = [each for each in listed.groups if self._route(each.group_id) is Route.KAFKA]
        own = await self._ask_host(received, client)
        nodes = await client.brokers()
        groups = [each for each in own.groups if self._is_listed(each.group_id, nodes, client)]
        allowed = await client.allowed(Permission.DESCRIBE, [each.group_id for each in groups])
        listed.groups += [each for each in groups if each.group_id in allowed]
        listed.error_code = listed.error_code or own.error_code
        return listed

    def _is_listed(self, group: str, nodes: Collection[int], client: Client) -> bool:
        if self._route(group) is not Route.HERE:
            return False
        return client.node is None or client.node not in nodes or coordinator_node(group, nodes) == client.node

    async def _find_coordinators(self, received: ReceivedRequest, client: Client) -> Any | None:
        message, several = received.message, received.kind.version >= FIRST_WITH_SEVERAL_KEYS
        if message.key_type not in (None, _GROUP):
            return None
        keys = groups_of(received) or []
        of_brokers = self._of_brokers(keys)
        if len(of_brokers) == len(keys):
            return None
        here = [key for key in keys if key not in of_brokers]
        addresses = await client.brokers()
        allowed = await client.allowed(Permission.DESCRIBE, here)
        located = await self._locate([key for key in here if self._route(key) is Route.HERE and key in allowed])
        found = []
        for key in here:
            error = KafkaError.NONE if key in allowed else KafkaError.GROUP_AUTHORIZATION_FAILED
            node, address = _coordinator(key, addresses, located, client)
            found.append(_found(key, error or located.error, node, address, several=several))
        if not several:
            return found[0]
        answer = codec.FindCoordinatorResponse(coordinators=found)
        if of_brokers:
            asked = only(received, of_brokers)
            join(answer, await client.ask(asked.message, asked.kind.version))
        return answer

    async def _locate(self, groups: Sequence[str]) -> LocateAnswer:
        """Find the groups that another gateway coordinates."""
        if not groups:
            return LocateAnswer(KafkaError.NONE)
        answer = await self._host.answer(LocateRequest(tuple(groups)))
        assert isinstance(answer, LocateAnswer)
        return answer


def _coordinator(
    group: str, addresses: Mapping[int, Address], located: LocateAnswer, client: Client
) -> tuple[int, Address]:
    """Return the node that a client must see as the coordinator of a group: here, or at another gateway.

    Here it is one of the brokers: many clients look for its id in a list of brokers that they already have. Another
    gateway has an id of its own, because its address differs from that of the broker in this list. For librdkafka, this
    gateway has one, too: otherwise it would not notice that the gateway has taken over the group from another one.
    """
    other = located.groups.get(group)
    reachable = addresses if other is None else addresses_at(other, addresses)
    if (node := coordinator_node(group, reachable)) is None:
        return NO_NODE, NOBODY
    needs_id = other is not None or (located.are_elected and client.keeps_addresses)
    return client.add_gateway(reachable[node]) if needs_id else node, reachable[node]


def _found(group: str, error: KafkaError, node: int, address: Address, *, several: bool) -> Any:
    """Return a whole answer, or one entry of an answer with several coordinators."""
    if error:
        node, address = NO_NODE, NOBODY
    elif node == NO_NODE:
        error = KafkaError.COORDINATOR_NOT_AVAILABLE
    fields = {"error_code": error, "node_id": node, "host": address.host, "port": address.port}
    if several:
        return codec.FindCoordinatorResponse.Coordinator(key=group, **fields)
    return codec.FindCoordinatorResponse(**fields)
