"""The clock of the server, which the times of all nodes come from. The clock of this machine may be wrong."""

from __future__ import annotations

from typing import Final

from ...core.znodes.paths import join
from ...exceptions import OutcomeUnknownError
from ..requests.transaction import Create, Delete, Set, TransactionFailed
from ..session.errors import translate
from ..session.registry_context import RegistryContext

_NAME: Final = "zkgroups-clock"
"""The name of a node that is created and deleted in one transaction, so no client ever sees it."""

_ATTEMPTS: Final = 3


def server_time_ms(context: RegistryContext, directory: str) -> int:
    """Return the time of the server in milliseconds. Needs the permissions to create and delete in this directory.

    ZooKeeper has no request for it, but the answer to a write contains the time of that write.
    """
    path = join(directory, _NAME)
    for _ in range(_ATTEMPTS):
        try:
            results = context.session.transact(
                [Create(path), Set(path, b"", 0), Delete(path)], deadline=context.deadline()
            )
        except TransactionFailed as failure:
            raise translate(failure.error, path) from failure.error
        if results:  # otherwise the reply was lost
            return int(results[1].mtime)
    raise OutcomeUnknownError(f"the replies to writes in {directory} were lost: try again")
