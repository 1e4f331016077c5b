"""Create many directories in few requests, for example those of all topics of a claim."""

from __future__ import annotations

from collections.abc import Iterable

from ...core.znodes.paths import parent
from ..session.registry_context import RegistryContext
from . import bulk_read
from .transaction import Create, TransactionFailed
from .transaction_batches import Batch, in_batches


def ensure_paths(context: RegistryContext, directories: Iterable[str], *, session_id: int | None = None) -> None:
    """Create the directories and their parents if they are missing. With `session_id`, only in that session."""
    wanted = list(dict.fromkeys(directories))
    for directory in dict.fromkeys(map(parent, wanted)):
        _ensure(context, directory, session_id)
    missing = [path for path, node in zip(wanted, bulk_read.nodes(context, wanted), strict=True) if node is None]
    units = [[Create(path, acl=context.acls.directories)] for path in missing]

    def create_all(batch: Batch[Create]) -> None:
        creates = [create for [create] in batch]
        try:
            context.session.transact(creates, session_id=session_id, deadline=context.deadline())
        except TransactionFailed:  # another client creates or deletes some of them at the same time
            for create in creates:
                _ensure(context, create.path, session_id)

    in_batches(context.session, units, create_all)


def _ensure(context: RegistryContext, path: str, session_id: int | None) -> None:
    context.session.ensure_path(path, acl=context.acls.directories, session_id=session_id, deadline=context.deadline())
