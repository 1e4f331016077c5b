"""Answers requests about groups: from the coordinator here, from the brokers, or from both."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final, Protocol

from ...coordinator.values.answers import LocateAnswer, refusal
from ...coordinator.values.kafka_errors import KafkaError
from ...coordinator.values.requests import LocateRequest
from ...kafka.wire import codec
from ...kafka.wire.address import Address
from ...kafka.wire.codec import ReceivedRequest
from ..protocol.addresses import FIRST_WITH_SEVERAL_KEYS, NO_NODE, NOBODY, addresses_at
from ..protocol.group_answers import to_client
from ..protocol.group_requests import groups_of, to_coordinator
from ..protocol.group_routing import GroupRouting, Route, coordinator_node
from ..protocol.permissions import NEEDED, WRITES, Permission
from ..protocol.splitting import join, only
from .coordinator_host import CoordinatorHost
from .moved_groups import MovedGroups, Routes, Verdict, is_simple_commit
from .refusal_log import RefusalLog

_GROUP: Final = 0
"""Kafka's key type for the coordinators of groups. Transactions have another one."""


class Client(Protocol):
    """The connection of a client, with the methods that requests about groups need."""

    @property
    def host(self) -> str:
        """The address of the client, as descriptions of groups show it."""

    @property
    def node(self) -> int | None:
        """The broker under whose address the client has connected; None for the bootstrap address."""

    async def ask(self, message: Any, version: int) -> Any:
        """Return the answer of the broker to a request of the gateway, on the client's own connection."""

    async def allowed(self, permission: Permission, groups: Sequence[str]) -> set[str]:
        """Return the groups for which the client has a permission."""

    async def brokers(self) -> Mapping[int, Address]:
        """Return the addresses at the gateway of all known brokers."""

    def add_gateway(self, address: Address) -> int:
        """Return the id under which the client sees an elected gateway."""


class GroupService:
    """Answers requests about groups by their names. With `read_only`, requests that change a group are refused.

    - `routes`: the routes of groups that were moved live. Without it, only their names decide.
    """

    def __init__(
        self, host: CoordinatorHost, routing: GroupRouting, *, read_only: bool, routes: Routes | None = None
    ) -> None:
        self._host = host
        self._moved = MovedGroups(routes, read_only=read_only)
        self._routing = routing
        self._read_only = read_only
        self._refusals = RefusalLog()

    async def answer(self, received: ReceivedRequest, client: Client) -> Any | None:
        """Return the answer to a request; None if the request must be forwarded to the broker unchanged."""
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
            answers.append(to_client(chosen, await self._host.answer(to_coordinator(chosen, client.host))))
        for error, refused in self._refused(verdicts, set(valid) - allowed).items():
            chosen = only(received, refused)
            answers.append(to_client(chosen, refusal(to_coordinator(chosen, client.host), error)))
        first, *rest = answers
        for each in rest:
            join(first, each)
        return first

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
        own = to_client(received, await self._host.answer(to_coordinator(received, client.host)))
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

    An elected gateway has an id of its own. With the id of a broker, librdkafka would not notice that another gateway
    has taken over: it ignores a new address under the same id.
    """
    other = located.groups.get(group)
    reachable = addresses if other is None else addresses_at(other, addresses)
    if (node := coordinator_node(group, reachable)) is None:
        return NO_NODE, NOBODY
    return client.add_gateway(reachable[node]) if located.are_elected else node, reachable[node]


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
