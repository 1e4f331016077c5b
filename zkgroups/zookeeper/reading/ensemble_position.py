"""Reading the position of an ensemble."""

from __future__ import annotations

from ...core.ensemble_position import EnsemblePosition
from ...core.znodes.paths import CONSUMERS
from ...exceptions import NoPermissionError, NotConnectedError
from ..registry import Registry
from ..session.registry_context import context_of


def ensemble_position(registry: Registry) -> EnsemblePosition:
    """Return the position of the server, after it has processed all earlier writes. Sends two small requests.

    Each answer contains the zxid of the server's last transaction. A server without a quorum may lag behind the others,
    or have processed transactions that are rolled back later.
    """
    registry.sync()
    if registry.server_is_read_only:
        raise NotConnectedError("the server has no quorum, so its last transaction is not reliable; try again later")
    context, client = context_of(registry), registry.client
    try:
        stat = context.session.call(lambda: client.exists_async(CONSUMERS), CONSUMERS, context.deadline())
    except NoPermissionError:
        stat = None
    created_zxid, created_ms = (0, 0) if stat is None else (stat.czxid, stat.ctime)
    return EnsemblePosition(int(client.last_zxid), int(created_zxid), int(created_ms))
