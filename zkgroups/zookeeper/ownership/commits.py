"""Commit offsets through claims, fenced by the registration and the owner nodes."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Final, NoReturn

from kazoo.exceptions import BadVersionError, NodeExistsError, NoNodeError

from ...core.znodes.codecs import encode_offset
from ...core.znodes.own_nodes import CommitDetails, encode_details
from ...core.znodes.paths import join, parent
from ...core.znodes.topic_partition import TopicPartition
from ...core.znodes.values import CommittedOffset, ForbiddenNode, UnreadableNode
from ...exceptions import (
    NoPermissionError,
    NotConnectedError,
    OffsetConflictError,
    OffsetWouldGoBackError,
    OutcomeUnknownError,
    TooLargeError,
)
from ..reading import group_reader
from ..requests import bulk_read
from ..requests.node import Node
from ..requests.run_transaction import Batch, ensure_paths, first_batch, in_batches
from ..requests.transaction import Check, Create, Delete, Operation, Set, TransactionFailed, stats
from ..session.errors import translate
from .ownership import LastCommit, OwnerNode, Ownership, locked
from .registration import RegistrationVersion

# Check the fence of claims without writing anything: for offsets that are stored elsewhere.


def fenced_check(ownership: Ownership, nodes: Collection[OwnerNode]) -> None:
    """Raise an error unless the instance owns these partitions now, as a commit would.

    The answer is a transaction, so it comes from the leader, and proves the session.
    """
    with locked(nodes):
        check_locked(ownership, nodes)


def check_locked(ownership: Ownership, nodes: Collection[OwnerNode]) -> None:
    """Like `fenced_check`, for nodes that this thread has locked."""
    while True:
        registration = ownership.registration_of(nodes)
        try:
            _check(ownership, nodes, registration)
        except TransactionFailed as failure:
            ownership.refresh(registration, failure)
        except OutcomeUnknownError as error:
            raise NotConnectedError(f"ZooKeeper has not confirmed the claims in time: {error}") from error
        else:
            return


def _check(ownership: Ownership, nodes: Collection[OwnerNode], registration: RegistrationVersion) -> None:
    of_registration = ownership.fence.check(registration)

    def transact(batch: Batch[Operation]) -> None:
        operations = [*of_registration, *(operation for unit in batch for operation in unit)]
        session_id = registration.session_id
        deadline = ownership.context.within(session_id).deadline()
        ownership.session.transact(operations, session_id=session_id, deadline=deadline)

    units: list[list[Operation]] = [[Check(ownership.paths.owner(node.at), node.version)] for node in nodes]
    in_batches(ownership.session, units, transact, overhead=of_registration)


# Commit offsets through claims, fenced by the registration and the owner nodes.
#
# Each transaction checks that the registration and the owner nodes are unchanged, and writes each offset over the
# known version of its node. Registration and owner nodes are ephemeral nodes of the session in which the transaction
# is sent, so these checks are exact.
#
# An offset node that another tool deletes and recreates has version 0. So a commit overwrites version 0 only right
# after it has read the node, and a node created here is written twice in the same transaction. If the recreated node
# happens to have the known version, the write succeeds; its reply shows that the node is another one, and a warning
# is logged.
#
# An ephemeral offset node of another client would be deleted with its session, so a commit replaces it.
#
# The details of a commit (`core/znodes/own_nodes.py`) are written in the same transaction.


log = logging.getLogger("zkgroups.claim")


_NO_DETAILS: Final[Mapping[TopicPartition, CommitDetails]] = {}
_MISSING: Final = -1
"""The version of a node that does not exist, and the offset of one that will be deleted."""


def fenced_commit(
    ownership: Ownership,
    offsets: Mapping[OwnerNode, int | None],
    *,
    backward: bool | Mapping[TopicPartition, int] = False,
    details: Mapping[TopicPartition, CommitDetails] = _NO_DETAILS,
) -> None:
    """Commit offsets of partitions that the instance owns, some of them with details. None deletes an offset.

    If a successor has already committed, raise `SessionLostError` or `NotClaimedError`. They come before
    `OffsetConflictError` and `OffsetWouldGoBackError`.
    """
    nodes, left = list(offsets), dict(offsets)
    with locked(nodes):
        while left:
            registration = ownership.registration_of(nodes)
            attempt = _Attempt(ownership, registration, details)
            try:
                attempt.write(left, backward=backward)
            except TransactionFailed as failure:
                ownership.refresh(registration, failure)
            except (OffsetConflictError, OffsetWouldGoBackError):
                check_locked(ownership, nodes)
                raise


class _Attempt:
    """One attempt to commit, at one version of the registration. A failed check needs another attempt."""

    def __init__(
        self, ownership: Ownership, registration: RegistrationVersion, details: Mapping[TopicPartition, CommitDetails]
    ) -> None:
        self._paths = ownership.paths
        self._details = details
        self._context = ownership.context.within(registration.session_id)
        self._registration = registration
        self._check = ownership.fence.check(registration)

    def write(self, left: dict[OwnerNode, int | None], *, backward: bool | Mapping[TopicPartition, int]) -> None:
        """Write the offsets in batches, each as a whole or not at all, and remove them from `left` when written.

        Raise `TransactionFailed` if a check failed. Offset nodes are read again if the registration has been rewritten
        since: an administrator may have deleted offsets too, and a recreated node may have the version of the old one.
        An offset that must be deleted is read again, too: otherwise, one that another client has created since would
        stay. Raise `OffsetConflictError` if another client has changed an offset that was known.
        """
        data = {node: None if offset is None else encode_offset(offset) for node, offset in left.items()}
        version = self._registration.version
        known = {n for n in left if n.last_commit is not None and n.last_commit.registration_version == version}
        self._read([node for node, offset in left.items() if node not in known or offset is None])
        if not isinstance(backward, bool):
            self._refuse_to_go_back(left, backward)
        elif not backward:
            self._refuse_to_go_back(left, {})
        while left:
            self._write_batch(left, data)

    def _write_batch(self, left: dict[OwnerNode, int | None], data: Mapping[OwnerNode, bytes | None]) -> None:
        self._read_details([node for node in left if node.at in self._details and node.details_version is None])
        units = ([*self._write(node, data[node]), *self._write_details(node, left[node])] for node in left)
        batch = first_batch(self._context.session, units, overhead=self._check)
        nodes = list(left)[: len(batch)]
        operations = [*self._check, *(operation for unit in batch for operation in unit)]
        session_id, deadline = self._registration.session_id, self._context.deadline()
        try:
            results = self._context.session.transact(operations, session_id=session_id, deadline=deadline)
        except TooLargeError:
            if len(batch) == 1:
                raise
            return  # the next batch is smaller
        except TransactionFailed as failure:
            if isinstance(failure.operation, Check):
                raise
            path = failure.operation.path
            failed = next(node for node in nodes if path in (self._paths.offset(node.at), self._details_path(node)))
            self._handle_failure(nodes, failed, failure)
            return
        except OutcomeUnknownError:
            for node in nodes:
                node.last_commit = node.details_version = None  # the next commit may find the offset written here
            raise
        # Without results, the reply was lost, and the outcome was found by reading the nodes.
        written = [operation.path for operation in operations if isinstance(operation, Set)]
        czxids = {path: stat.czxid for path, stat in zip(written, stats(results), strict=bool(results))}
        for node in nodes:
            self._record(node, left.pop(node), czxids.get(self._paths.offset(node.at)))

    def _details_path(self, node: OwnerNode) -> str:
        return self._paths.details_of(node.at)

    def _read_details(self, nodes: Sequence[OwnerNode]) -> None:
        """Read the versions of the nodes with details."""
        for node, read in zip(nodes, bulk_read.nodes(self._context, map(self._details_path, nodes)), strict=True):
            if isinstance(read, ForbiddenNode):
                raise NoPermissionError(read.path)
            node.details_version = _MISSING if read is None else read.version

    def _write_details(self, node: OwnerNode, offset: int | None) -> Sequence[Operation]:
        if (details := self._details.get(node.at)) is None or offset is None:
            return []
        path, last = self._details_path(node), node.last_commit
        version = 1 if last is None or last.version is None else last.version + 1
        data = encode_details(details, offset=offset, version=version)
        if node.details_version in (None, _MISSING):
            return [Create(path, data, acl=self._context.acls.offsets)]
        return [Set(path, data, node.details_version or 0)]

    def _write(self, node: OwnerNode, data: bytes | None) -> Sequence[Operation]:
        path = self._paths.offset(node.at)
        check = Check(self._paths.owner(node.at), node.version)
        last = node.last_commit
        if data is None:
            versions = () if last is None else (last.version, last.replaced_version)
            return [check, *(Delete(path, version) for version in versions if version is not None)]
        if last is None or last.version is None:
            replaced = None if last is None else last.replaced_version
            delete = [] if replaced is None else [Delete(path, replaced)]
            return [check, *delete, Create(path, data, acl=self._context.acls.offsets), Set(path, data, 0)]
        return [check, Set(path, data, last.version)]

    def _record(self, node: OwnerNode, offset: int | None, czxid: int | None) -> None:
        last = node.last_commit
        if offset is None:
            node.last_commit = LastCommit(None, None, self._registration.version)
            return
        version, known = (0, None) if last is None else (last.version or 0, last.czxid)
        if None not in (known, czxid) and known != czxid:
            log.warning(
                "%s was deleted and recreated by another client; its offset was overwritten with %d",
                self._paths.offset(node.at),
                offset,
            )
        czxid = known if czxid is None else czxid
        node.last_commit = LastCommit(version + 1, offset, self._registration.version, czxid)
        if node.at in self._details:
            node.details_version = 0 if node.details_version is None else node.details_version + 1

    def _read(self, nodes: Sequence[OwnerNode]) -> None:
        """Read the committed offsets."""
        existing = self._with_offset_nodes(nodes)
        paths = [self._paths.offset(node.at) for node in existing]
        reads = dict(zip(existing, bulk_read.nodes(self._context, paths), strict=True))
        for node in nodes:
            if isinstance(read := reads.get(node), ForbiddenNode):
                raise NoPermissionError(read.path)
            found = None if read is None else group_reader.offset(self._paths.group, node.at, read)
            now = self._as_read(read, found)
            if node.last_commit is not None and not now.is_unchanged_since(node.last_commit):
                self._raise_conflict(node, found)
            node.last_commit = now

    def _as_read(self, read: Node | None, found: CommittedOffset | UnreadableNode | None) -> LastCommit:
        # A malformed offset may be overwritten: it is not an offset that could go back.
        offset = found.offset if isinstance(found, CommittedOffset) else None
        version = self._registration.version
        if read is None:
            return LastCommit(None, None, version)
        if read.session:
            return LastCommit(None, offset, version, replaced_version=read.version)
        return LastCommit(read.version, offset, version, read.czxid)

    def _raise_conflict(self, node: OwnerNode, found: CommittedOffset | UnreadableNode | None) -> NoReturn:
        node.last_commit = None  # after the conflict, the caller may commit again, over the current offset
        raise OffsetConflictError(node.at, found)

    def _with_offset_nodes(self, nodes: Sequence[OwnerNode]) -> list[OwnerNode]:
        """Leave out partitions without an offset. For several partitions of a topic, list its directory first."""
        counts = Counter(node.at.topic for node in nodes)
        topics = [topic for topic, count in counts.items() if count > 1]
        listed = bulk_read.children(self._context, map(self._paths.offset_topic, topics))
        existing = {
            topic: {join(self._paths.offset_topic(topic), name) for name in names or ()}
            for topic, names in zip(topics, listed, strict=True)
            if not isinstance(names, ForbiddenNode)
        }
        paths = {node: self._paths.offset(node.at) for node in nodes}
        return [node for node, path in paths.items() if path in existing.get(node.at.topic, {path})]

    def _refuse_to_go_back(
        self, offsets: Mapping[OwnerNode, int | None], allowed: Mapping[TopicPartition, int]
    ) -> None:
        """Rule 5: an offset goes back only if `allowed` names the committed offset that it goes back from."""
        back: dict[TopicPartition, tuple[int, int]] = {}
        for node, offset in offsets.items():
            committed = node.last_commit.offset if node.last_commit is not None else None
            wanted = _MISSING if offset is None else offset
            if committed is not None and wanted < committed != allowed.get(node.at):
                back[node.at] = committed, wanted
        if back:
            first, *also = back
            raise OffsetWouldGoBackError(self._paths.group, first, *back[first], also=also)

    def _handle_failure(self, nodes: Sequence[OwnerNode], node: OwnerNode, failure: TransactionFailed) -> None:
        """Create missing directories so that the caller can retry. Otherwise raise: another client has committed."""
        is_details = failure.operation.path == self._details_path(node)
        if isinstance(failure.error, NoNodeError) and isinstance(failure.operation, Create):
            path = self._details_path if is_details else lambda node: self._paths.offset(node.at)
            topics = (parent(path(each)) for each in nodes)
            ensure_paths(self._context, topics, session_id=self._registration.session_id)
            return
        if not isinstance(failure.error, NoNodeError | NodeExistsError | BadVersionError):
            raise translate(failure.error, failure.operation.path) from failure.error
        if is_details:
            node.details_version = None  # it is read again for the next attempt
            return
        read = self._context.session.get(failure.operation.path, deadline=self._context.deadline())
        self._raise_conflict(node, None if read is None else group_reader.offset(self._paths.group, node.at, read))
