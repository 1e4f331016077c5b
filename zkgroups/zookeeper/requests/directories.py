"""Making many directories in few requests, e.g. those of all topics of a claim."""

from __future__ import annotations

from collections.abc import Iterable

from ...core.znodes.paths import parent
from ..session.registry_context import RegistryContext
from . import bulk_read
from .batching import Batch, in_batches
from .transaction import Create, TransactionFailed


def ensure_all(context: RegistryContext, directories: Iterable[str], *, session_id: int | None = None) -> None:
    """Make the directories and those above them where they are missing; with `session_id`, only in that session."""
    wanted = list(dict.fromkeys(directories))
    for above in dict.fromkeys(map(parent, wanted)):
        _ensure(context, above, session_id)
    missing = [path for path, node in zip(wanted, bulk_read.nodes(context, wanted), strict=True) if node is None]
    units = [[Create(path, acl=context.acls.directories)] for path in missing]

    def make(batch: Batch[Create]) -> None:
        creates = [create for [create] in batch]
        try:
            context.session.transact(creates, session_id=session_id, deadline=context.deadline())
        except TransactionFailed:  # somebody makes or deletes some of them at this very moment
            for create in creates:
                _ensure(context, create.path, session_id)

    in_batches(context.session, units, make)


def _ensure(context: RegistryContext, path: str, session_id: int | None) -> None:
    context.session.ensure(path, acl=context.acls.directories, session_id=session_id, deadline=context.deadline())
