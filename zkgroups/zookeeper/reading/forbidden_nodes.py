"""Read the stats of forbidden nodes. ZooKeeper before 3.9 reports them to all clients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...core.times import from_ms
from ...core.znodes.values import ForbiddenNode
from ...exceptions import NoPermissionError
from ..session.registry_context import RegistryContext
from ..session.session import PIPELINE


def with_stats(context: RegistryContext, forbidden: Sequence[ForbiddenNode]) -> dict[str, ForbiddenNode]:
    """Return the nodes by path, with the fields of their stats if the server reports them."""
    nodes: dict[str, ForbiddenNode] = {}
    client = context.session.client
    for start in range(0, len(forbidden), PIPELINE):
        window = forbidden[start : start + PIPELINE]
        answers = [client.exists_async(node.path) for node in window]
        nodes.update((node.path, _with_stat(context, node, each)) for node, each in zip(window, answers, strict=True))
    return nodes


def _with_stat(context: RegistryContext, node: ForbiddenNode, answer: Any) -> ForbiddenNode:
    session = context.session

    def send() -> Any:
        return session.client.exists_async(node.path)

    try:
        stat = session.call_pending(answer, send, node.path, context.deadline())
    except NoPermissionError:
        return node
    if stat is None:
        return node
    return ForbiddenNode(
        node.path,
        node.reason,
        stat.ephemeralOwner,
        stat.version,
        from_ms(stat.ctime),
        persistent=stat.ephemeralOwner == 0 and stat.numChildren == 0,
    )
