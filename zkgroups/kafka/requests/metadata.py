"""Ask for the brokers and topics of a cluster until one of its brokers answers."""

from __future__ import annotations

import re
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, Final, TypeVar

from ...deadline import Deadline
from ...exceptions import NotConnectedError, UnreachableError
from ..errors import error as error_of
from ..wire.cluster import Cluster, Metadata
from ..wire.error_codes import Code
from ..wire.errors import NoListenerError, WireError
from ..wire.versions import Versions
from .retry import timed_out, tries

T = TypeVar("T")

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
