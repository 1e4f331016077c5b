"""A client as seen by the requests that the gateway reads: its name, its permissions, and its broker's answers."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final

from ...kafka.wire import codec
from ...kafka.wire.address import Address
from ...kafka.wire.codec import RequestKind
from ..protocol.addresses import NAMES_BROKERS, add_gateways, brokers_in, hide_address_settings, replace_addresses
from ..protocol.api_versions import layout, limit_versions
from ..protocol.permissions import Permission
from .answer_queue import AnswerQueue, Captured
from .broker_addresses import BrokerAddresses
from .client_stream import ClientStream
from .group_permissions import GroupPermissions
from .upstream import Upstream

_CLIENT: Final = "zkgroups-gateway"
_WITHOUT_TOPICS: Final = 1
"""The first version of Metadata that can ask for the brokers without any topic."""


class Requester:
    """One client. Its methods are for requests about groups, and for answers of the broker that must be changed."""

    def __init__(
        self,
        stream: ClientStream,
        upstream: Upstream,
        answers: AnswerQueue,
        addresses: BrokerAddresses,
        *,
        node: int | None,
    ) -> None:
        self.host = f"/{stream.peer}"
        self.node = node
        self.name = ""
        """The name that the client gives itself."""
        self._local = stream.local
        self._upstream = upstream
        self._answers = answers
        self._addresses = addresses
        self._permissions = GroupPermissions(self._probe)
        self._versions: dict[int, int] = {}
        """The first version of each request that the broker supports."""

    # Answers of the broker

    def change(self, kind: RequestKind) -> Callable[[Any], Awaitable[int]]:
        """Return a function that changes an answer, and returns the version in which to write it."""

        async def change(answer: Any) -> int:
            if kind.key == codec.API_VERSIONS:
                self._learn_versions(answer)
                limit_versions(answer)
                return layout(answer, kind.version)
            if kind.key == codec.DESCRIBE_CONFIGS:
                hide_address_settings(answer)
            else:
                await self._replace_addresses(answer)
            return kind.version

        return change

    def _learn_versions(self, answer: Any) -> None:
        if not answer.error_code:
            self._versions = {each.api_key: each.min_version for each in answer.api_keys}

    async def _replace_addresses(self, answer: Any) -> None:
        if answer.API_KEY == codec.FIND_COORDINATOR:
            known = await self._addresses.add(brokers_in(answer), self._local)
        else:
            known = await self._addresses.replace(brokers_in(answer), self._local)
        replace_addresses(answer, known)
        if answer.API_KEY == codec.METADATA:
            add_gateways(answer, self._addresses.other_gateways.of((self.host, self.name)))

    # For requests about groups

    async def ask(self, message: Any, version: int) -> Any:
        """Return the answer of the broker to a request of the gateway, on this client's connection."""
        kind = RequestKind(message.API_KEY, version, 0)
        await self._upstream.open(answers_due=self._answers.waits_for_broker)
        waiting: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._answers.add(Captured(kind, waiting))
        self._upstream.send(codec.encode(message, version, kind.correlation_id, _CLIENT))
        answer = await waiting
        if answer.API_KEY in NAMES_BROKERS:
            await self._replace_addresses(answer)
        return answer

    async def allowed(self, permission: Permission, groups: Sequence[str]) -> set[str]:
        """Return the groups for which this client has a permission."""
        if permission is Permission.DELETE and not self._versions:
            self._learn_versions(await self.ask(codec.ApiVersionsRequest(), 0))
        deletes_offsets = codec.OFFSET_DELETE in self._versions
        return await self._permissions.allowed(permission, groups, deletes_offsets=deletes_offsets)

    async def brokers(self) -> Mapping[int, Address]:
        """Return the addresses at the gateway of all known brokers."""
        known = self._addresses.known(self._local)
        if not known:
            await self.ask(codec.MetadataRequest(topics=[]), _WITHOUT_TOPICS)
            known = self._addresses.known(self._local)
        return known

    def add_gateway(self, address: Address) -> int:
        """Return the id under which this client sees an elected gateway."""
        return self._addresses.other_gateways.add((self.host, self.name), address)

    async def _probe(self, message: Any) -> Any:
        return await self.ask(message, self._versions.get(message.API_KEY, 0))
