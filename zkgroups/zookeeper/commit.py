"""A fenced commit of offsets through claims: what is written, in which transactions, and what a failure means.

Each transaction is {registration unchanged; for each claim: owner unchanged, offset written over the version known}.
Registration and owners are ephemerals of the session that the transaction is pinned to, so the checks are exact.

An offset node that another tool deletes and recreates has version 0. So a claim overwrites version 0 only right after
it has read the node, and a node that is created here is written once more in the same transaction. If the recreated
node has been written as often as the old one, the write succeeds. Its answer shows that the node is another one, and a
warning is logged.

A node that another client created as an ephemeral one would take the offset with it. So it is replaced.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping, Sequence

from kazoo.exceptions import BadVersionError, NodeExistsError, NoNodeError

from ..core.znodes.offset_codec import encode_offset
from ..core.znodes.paths import GroupPaths, join
from ..core.znodes.topic_partition import TopicPartition
from ..core.znodes.values import CommittedOffset, ForbiddenNode
from ..exceptions import (
    NoPermissionError,
    OffsetConflictError,
    OffsetWouldGoBackError,
    OutcomeUnknownError,
    TooLargeError,
)
from .claim import Claim, LastCommit
from .reading import group_reader
from .registration import Tenure
from .requests import bulk_read
from .requests.batching import first_batch
from .requests.directories import ensure_paths
from .requests.transaction import Check, Create, Delete, Operation, Set, TransactionFailed, stats
from .session.errors import translate
from .session.registry_context import RegistryContext

log = logging.getLogger("zkgroups.claim")


class Commit:
    """One attempt of `commit`, under the registration as it is known; after a failed check there is another."""

    def __init__(self, paths: GroupPaths, context: RegistryContext, tenure: Tenure, guard: Sequence[Check]) -> None:
        self._paths = paths
        self._context = context
        self._tenure = tenure
        self._guard = guard

    def write(self, left: dict[Claim, int], *, backward: bool | Mapping[TopicPartition, int]) -> None:
        """Write the offsets and take them out of `left`, one batch after the other, each as a whole or not at all.

        `TransactionFailed` where a check failed, for the instance to find out what that means. What was read before
        the registration was last written anew is read again: who did that may have deleted offsets, too, and a node
        made since then would have the version of the one before.
        """
        data = {claim: encode_offset(offset) for claim, offset in left.items()}
        version = self._tenure.version
        self._learn([claim for claim in left if claim.last is None or claim.last.tenure_version != version])
        if not isinstance(backward, bool):
            self._refuse_to_go_back(left, backward)
        elif not backward:
            self._refuse_to_go_back(left, {})
        while left:
            self._write_batch(left, data)

    def _write_batch(self, left: dict[Claim, int], data: Mapping[Claim, bytes]) -> None:
        units = (self._unit(claim, data[claim]) for claim in left)
        batch = first_batch(self._context.session, units, overhead=self._guard)
        claims = list(left)[: len(batch)]
        operations = [*self._guard, *(operation for unit in batch for operation in unit)]
        session_id, deadline = self._tenure.session_id, self._context.deadline()
        try:
            results = self._context.session.transact(operations, session_id=session_id, deadline=deadline)
        except TooLargeError:
            if len(batch) == 1:
                raise
            return  # the next batch is smaller
        except TransactionFailed as failure:
            if isinstance(failure.operation, Check):
                raise
            failed = next(c for c in claims if self._paths.offset(c.at) == failure.operation.path)
            self._offset_failed(claims, failed, failure)
            return
        except OutcomeUnknownError:
            for claim in claims:
                claim.last = None  # what the next commit finds may be our own
            raise
        # No results: the answer was lost, and the outcome was found by reading the nodes.
        made = [stat.czxid for stat in stats(results)] or [None] * len(claims)
        for claim, zxid in zip(claims, made, strict=True):
            self._written(claim, left.pop(claim), zxid)

    def _unit(self, claim: Claim, data: bytes) -> Sequence[Operation]:
        path = self._paths.offset(claim.at)
        owner = Check(self._paths.owner(claim.at), claim.version)
        if claim.last is None or claim.last.version is None:
            replaced = None if claim.last is None else claim.last.replaces
            fleeting = [] if replaced is None else [Delete(path, replaced)]
            return [owner, *fleeting, Create(path, data, acl=self._context.acls.offsets), Set(path, data, 0)]
        return [owner, Set(path, data, claim.last.version)]

    def _written(self, claim: Claim, offset: int, made: int | None) -> None:
        version, known = (0, None) if claim.last is None else (claim.last.version or 0, claim.last.made)
        if None not in (known, made) and known != made:
            log.warning(
                "%s was deleted and recreated by another client; its offset was overwritten with %d",
                self._paths.offset(claim.at),
                offset,
            )
        claim.last = LastCommit(version + 1, offset, self._tenure.version, known if made is None else made)

    def _learn(self, claims: Sequence[Claim]) -> None:
        """Read what was committed before, by whomever."""
        claims = self._with_a_node(claims)
        paths = [self._paths.offset(claim.at) for claim in claims]
        for claim, node in zip(claims, bulk_read.nodes(self._context, paths), strict=True):
            if isinstance(node, ForbiddenNode):
                raise NoPermissionError(node.path)
            found = None if node is None else group_reader.offset(self._paths.group, claim.at, node)
            # Something that cannot be read as an offset may be written over: it is no offset to fall behind.
            offset = found.offset if isinstance(found, CommittedOffset) else None
            if node is not None and node.session:
                claim.last = LastCommit(None, offset, self._tenure.version, replaces=node.version)
                continue
            version, made = (None, None) if node is None else (node.version, node.czxid)
            claim.last = LastCommit(version, offset, self._tenure.version, made)

    def _with_a_node(self, claims: Sequence[Claim]) -> list[Claim]:
        """Those where something may be committed. Of several in a topic, its directory tells all that have nothing."""
        counts = Counter(claim.at.topic for claim in claims)
        topics = [topic for topic, count in counts.items() if count > 1]
        found = bulk_read.children(self._context, map(self._paths.offset_topic, topics))
        there = {
            topic: {join(self._paths.offset_topic(topic), name) for name in names or ()}
            for topic, names in zip(topics, found, strict=True)
            if not isinstance(names, ForbiddenNode)
        }
        left: list[Claim] = []
        for claim in claims:
            path = self._paths.offset(claim.at)
            if path in there.get(claim.at.topic, {path}):
                left.append(claim)
            else:
                claim.last = LastCommit(None, None, self._tenure.version)
        return left

    def _refuse_to_go_back(self, offsets: Mapping[Claim, int], allowed: Mapping[TopicPartition, int]) -> None:
        """Rule 5: no offset goes back, unless `allowed` names the committed offset that it goes back from."""
        for claim, offset in offsets.items():
            committed = claim.last.offset if claim.last is not None else None
            if committed is not None and offset < committed != allowed.get(claim.at):
                raise OffsetWouldGoBackError(self._paths.group, claim.at, committed, offset)

    def _offset_failed(self, claims: Sequence[Claim], claim: Claim, failure: TransactionFailed) -> None:
        """The offset node is not as it was: a missing directory is made, anything else is somebody else's commit."""
        if isinstance(failure.error, NoNodeError) and isinstance(failure.operation, Create):
            topics = (self._paths.offset_topic(each.at.topic) for each in claims)
            ensure_paths(self._context, topics, session_id=self._tenure.session_id)
            return
        if not isinstance(failure.error, NoNodeError | NodeExistsError | BadVersionError):
            raise translate(failure.error, failure.operation.path) from failure.error
        claim.last = None  # the caller, told of the conflict, may commit again over what is there then
        node = self._context.session.get(failure.operation.path, deadline=self._context.deadline())
        found = None if node is None else group_reader.offset(self._paths.group, claim.at, node)
        raise OffsetConflictError(claim.at, found) from failure.error
