"""The stats of nodes that we may not read: ZooKeeper before 3.9 reports them to everybody."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...core.znodes.values import ForbiddenNode
from ...exceptions import NoPermissionError
from ..session.registry_context import RegistryContext
from ..session.session import PIPELINE


def reported(context: RegistryContext, denied: Sequence[ForbiddenNode]) -> dict[str, ForbiddenNode]:
    """The nodes by path, with their session if the server reports it. Many requests are under way together."""
    found: dict[str, ForbiddenNode] = {}
    client = context.session.client
    for start in range(0, len(denied), PIPELINE):
        some = denied[start : start + PIPELINE]
        asked = [client.exists_async(node.path) for node in some]
        found.update((node.path, _with_stat(context, node, each)) for node, each in zip(some, asked, strict=True))
    return found


def _with_stat(context: RegistryContext, node: ForbiddenNode, asked: Any) -> ForbiddenNode:
    """After a loss of the connection, the request is repeated."""
    answers = iter([asked])
    client = context.session.client
    try:
        stat = context.session.call(
            lambda: next(answers, None) or client.exists_async(node.path), node.path, context.deadline()
        )
    except NoPermissionError:
        return node
    if stat is None:
        return node
    return ForbiddenNode(
        node.path,
        node.reason,
        stat.ephemeralOwner,
        stat.version,
        stat.ctime,
        persistent=stat.ephemeralOwner == 0 and stat.numChildren == 0,
    )
