"""One instance of a group: it registers, claims partitions, and releases them."""

from __future__ import annotations

import contextlib
import socket
import time
import uuid
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from types import MappingProxyType, TracebackType
from typing import Final, Self, TypeAlias

from ..core.znodes.codecs import encode_owner
from ..core.znodes.own_nodes import CommitDetails
from ..core.znodes.paths import GroupPaths
from ..core.znodes.registrations import decode_registration, encode_registration
from ..core.znodes.topic_partition import TopicPartition, check_at, check_instance
from ..core.znodes.values import (
    CommittedOffset,
    MalformedNode,
    Owner,
    Pattern,
    Registration,
    UnevaluableRegistration,
    UnreadableNode,
)
from ..deadline import Deadline
from ..exceptions import (
    AlreadyRegisteredError,
    InvalidOptionError,
    MalformedNodeError,
    NoPermissionError,
    NotClaimedError,
    NotRegisteredError,
    SessionLostError,
    ZkgroupsException,
)
from .claim import Claim, Claims
from .offsets import Offsets
from .ownership.claims import claim_partitions, find_owners, release_partitions, resume_claims
from .ownership.commits import fenced_commit
from .ownership.ownership import OwnerNode, Ownership, free_id, is_used_by_another, locked, register_together, take_id
from .ownership.registration import RegistrationVersion
from .requests.transaction import SessionFence, TransactionFailed
from .session.security import SessionCredentials
from .session.session import RegistryContext

Topics: TypeAlias = Iterable[str] | Mapping[str, int]
"""Names of topics, or names with the number of streams of each."""


class Instance:
    """One instance of a group, which claims partitions that you choose. Make it with `group.instance()`.

    >>> with group.instance("anna") as anna:  # doctest: +SKIP
    ...     anna.register(["orders"])
    ...     with anna.claim_many([TopicPartition("orders", 0), TopicPartition("orders", 1)], timeout=30) as claims:
    ...         claims.commit({at: 100 for at in claims})

    Call `register` before the first claim. At the end of its `with` block it releases its partitions and deregisters.
    If its session expires, all of that is lost: calls raise `SessionLostError`, and it can register again. It may be
    used by several threads.

    An instance does not rebalance: it shares no partitions with other members, and gives none up. For that, use a
    `Member`. `id` is the id of the instance.
    """

    def __init__(self, paths: GroupPaths, context: RegistryContext, id: str | None = None) -> None:
        if id is None:
            if context.session.is_resumable:  # a process that resumes the session could not know the id
                raise InvalidOptionError("id", id, "with a session_file it must be given, and be the same each time")
            id = f"{socket.gethostname()}:{uuid.uuid4()}"
        self.id = check_instance(id)
        self._paths = paths
        self._context = context
        self._ownership = Ownership(paths, context, id)

    @property
    def group(self) -> str:
        """The name of the group."""
        return self._paths.group

    @property
    def registered(self) -> bool:
        """True while the instance is known to be registered, in a live session. Does not contact the server."""
        registration = self._ownership.fence.current
        return (
            registration is not None
            and registration.version >= 0
            and self._ownership.session.alive(registration.session_id)
        )

    @property
    def session_id(self) -> int | None:
        """The id of the session in which the instance registered. None before that."""
        registration = self._ownership.fence.current
        return None if registration is None else registration.session_id

    def register(
        self,
        topics: Topics | Registration = (),
        *,
        pattern: Pattern = Pattern.STATIC,
        timeout: float = 0.0,
        past_session: SessionCredentials | None = None,
    ) -> Registration:
        """Register the instance with its subscription. Return the registration as written.

        - `topics`: names of topics, or a mapping from names to numbers of streams. With a `pattern`, a regular
          expression instead. A subscription claims nothing. But if the group has members, they leave some partitions
          of these topics to this instance. They leave none to an instance without topics.
        - `timeout`: how long to wait if the id is still registered, in seconds; then raise `AlreadyRegisteredError`.
          After a crash, the old registration stays until its session expires.
        - `past_session`: the credentials of that session, from `Registry.credentials`, to end it at once. It is only
          ended if it has the registration.

        If this session already has the registration, because a killed process left it in the `session_file`, the
        instance takes it over with its claims: see `claims`. `claim` returns them too. Another instance of this process
        with the same id prevents that.
        """
        registration = topics if isinstance(topics, Registration) else _registration(topics, pattern)
        deadline = Deadline.after("timeout", timeout)
        data = encode_registration(registration)
        fence = self._ownership.fence
        while True:
            try:
                with self._ownership.registration_lock():
                    resumed = self._register(data)
                break
            except AlreadyRegisteredError as taken:
                fence.wait_until_deleted(taken, deadline, past_session)
                past_session = None  # closing it a second time has no effect
        return self.update(registration) if resumed else registration

    def _register(self, data: bytes) -> bool:
        """Register with these data, or take over the registration that this session has. Return True for the latter."""
        ownership, fence = self._ownership, self._ownership.fence
        may_resume = not self.registered and take_id(ownership)
        if is_used_by_another(ownership):
            fence.leftovers.discard([fence.path])
        try:
            registered = fence.register(data)
        except AlreadyRegisteredError as error:
            if may_resume and error.session == ownership.session.id and resume_claims(ownership):
                for node in ownership.nodes().values():
                    node.resumed = True
                return True
            raise
        finally:
            if fence.current is None:
                free_id(ownership)
        take_id(ownership, force=True)
        ownership.forget_other_sessions(registered.session_id)  # nothing fenced its claims without a registration
        fence.adopt(RegistrationVersion(registered.session_id), known=registered)
        return False

    def registration(self) -> Registration:
        """Read the registration, whichever client wrote it."""
        return read_registration(self._paths, self._context, self.id)

    def update(self, topics: Topics | Registration, *, pattern: Pattern = Pattern.STATIC) -> Registration:
        """Change the subscription in place. The instance stays registered and keeps its claims."""
        registration = topics if isinstance(topics, Registration) else _registration(topics, pattern)
        data = encode_registration(registration)
        while True:
            registered = self._ownership.fence.require()
            try:
                self._ownership.fence.rewrite(data, registered)
                return registration
            except TransactionFailed as failure:
                self._ownership.refresh(registered, failure)

    def deregister(self) -> None:
        """Release all partitions and delete the registration. Does nothing if both are gone.

        Nodes of other sessions are never deleted.
        """
        ownership = self._ownership
        with ownership.registration_lock():
            nodes = list(ownership.nodes().values())
            with contextlib.suppress(SessionLostError):  # ZooKeeper has deleted all of it
                release_partitions(ownership, nodes)
            self._delete_leftovers()
            with contextlib.suppress(SessionLostError):
                self._delete_registration()
            ownership.fence.forget()
            ownership.forget(nodes)
        free_id(ownership)

    def _delete_leftovers(self) -> None:
        """Delete leftover nodes before the registration: the next instance with this id would not know them."""
        if is_used_by_another(self._ownership):
            self._ownership.fence.leftovers.discard([self._ownership.fence.path])
        with contextlib.suppress(SessionLostError):
            self._ownership.fence.leftovers.delete_all()

    def _delete_registration(self) -> None:
        while (registered := self._ownership.fence.current) is not None:
            if not take_id(self._ownership):
                return  # another instance with this id has registered since
            try:
                self._ownership.fence.delete(registered)
                return
            except TransactionFailed as failure:
                self._ownership.refresh(registered, failure)

    @property
    def claims(self) -> Mapping[TopicPartition, Claim]:
        """The current claims, by partition. Does not contact the server."""
        nodes = self._ownership.current()
        return MappingProxyType({at: Claim(self._ownership, node) for at, node in nodes.items()})

    def claim(self, at: TopicPartition, *, timeout: float | None = None) -> Claim:
        """Claim a partition, whether Kafka has registered its topic or not. The instance must be registered.

        Raise `ClaimedByOtherError` if another instance owns it. With a `timeout`, wait for its release, and raise
        `ClaimTimeout` when it has passed. Both errors have the `owner`. Raise `AlreadyClaimedError` if this instance
        owns it.
        """
        return self.claim_many([at], timeout=timeout)[at]

    def claim_many(
        self,
        partitions: Iterable[TopicPartition],
        *,
        timeout: float | None = None,
        streams: Mapping[TopicPartition, int] | None = None,
    ) -> Claims:
        """Claim several partitions, all or none of them. Otherwise like `claim`; an error names one partition.

        With `streams`, each owner node also names the stream that reads the partition, as Scala members do. Without, it
        contains only the id, as kazoo-go expects. Kafka's own ConsumerGroupCommand fails on an id without a dash.
        """
        numbers = streams or {}
        contents = {check_at(at): encode_owner(self.id, numbers.get(at)) for at in partitions}
        return Claims(self._ownership, claim_partitions(self._ownership, contents, timeout=timeout))

    def release(self, *partitions: TopicPartition) -> None:
        """Release these partitions. Raise `NotClaimedError` if this instance does not hold one of them."""
        held = self._ownership.nodes()
        missing = [at for at in partitions if at not in held]
        if missing:
            raise NotClaimedError(missing[0])
        release_partitions(self._ownership, [held[at] for at in dict.fromkeys(partitions)])

    def release_all(self) -> None:
        """Release all partitions, and stay registered."""
        release_partitions(self._ownership, list(self._ownership.nodes().values()))
        with self._ownership.registration_lock():
            self._delete_leftovers()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.deregister()
        except ZkgroupsException as failure:
            if error is None:
                raise
            error.add_note(f"deregistering {self.id!r} failed too: {failure}")

    def __repr__(self) -> str:
        return (
            f"<Instance {self.id!r} of group {self.group!r}, {'registered' if self.registered else 'not registered'}>"
        )


def read_registration(paths: GroupPaths, context: RegistryContext, id: str) -> Registration:
    """Read the registration of an instance, or raise why it has none that can be evaluated."""
    node = context.session.get(paths.instance(id), deadline=context.deadline())
    if node is None:
        raise NotRegisteredError(paths.group, id)
    found = decode_registration(node.path, node.data, session=node.session, version=node.version)
    match found:
        case UnevaluableRegistration():
            raise MalformedNodeError(found.node)
        case MalformedNode():
            raise MalformedNodeError(found)
        case Registration():
            return found


def _registration(topics: Topics, pattern: Pattern) -> Registration:
    """Return the registration for these topics, with one stream per topic if no number is given."""
    if isinstance(topics, str):
        topics = [topics]  # a string would be iterated by character
    if not isinstance(topics, Iterable):
        raise InvalidOptionError("topics", topics, "it must be names of topics")
    streams = dict(topics) if isinstance(topics, Mapping) else dict.fromkeys(topics, 1)
    return Registration(
        streams, pattern, timestamp=datetime.fromtimestamp(int(time.time()), UTC)
    )  # nodes store seconds


# The instance of a `Member`, with operations that only a member needs.


_DIGITS: Final = 10
"""The most digits of the number of a stream. Other clients can write to an owner node, and Python refuses thousands."""


class MemberInstance(Instance):
    """An instance that shares partitions with other members. For use inside zkgroups only."""

    @property
    def session_alive(self) -> bool:
        """True while the session of the registration is certain to live, and so are the claims."""
        registration = self._ownership.fence.current
        return registration is not None and self._ownership.session.alive(registration.session_id)

    def check_registered(self) -> bool:
        """Read the registration, and return whether it exists. If it was deleted, it can be recreated."""
        fence = self._ownership.fence
        try:
            registration = fence.require()
        except NotRegisteredError:
            return False
        found = fence.read(registration)
        if found.version < 0:
            fence.adopt(found, known=registration)
        return found.version >= 0

    def resume(self) -> bool:
        """Take over the registration of this id in this session, with its claims. Return False if there is none."""
        return resume_claims(self._ownership)

    def free_id(self) -> None:
        """Let other objects of this process use the id."""
        free_id(self._ownership)

    def find_owners(
        self, partitions: Iterable[TopicPartition], ids: Collection[str]
    ) -> tuple[dict[TopicPartition, int], dict[TopicPartition, Owner | UnreadableNode]]:
        """Read the owners of these partitions, and of all partitions of this instance.

        Return the partitions of this instance with their streams, and the owners of the others. `ids` are the
        registered ids. Delete what is left of claims with unknown outcomes: other members may want these partitions.
        """
        own, others = find_owners(self._ownership, partitions, ids)
        with suppress(NoPermissionError):
            self._ownership.fence.leftovers.delete_all()
        return {at: self._stream(node.data) for at, node in own.items()}, others

    @property
    def streams(self) -> dict[TopicPartition, int] | None:
        """The partitions that this instance owns, with their streams. Sends no request.

        None after a claim or a release with an unknown outcome: then only `find_owners` can tell.
        """
        current = self._ownership.current()
        if self._ownership.fence.leftovers.any or any(node.uncertain for node in current.values()):
            return None
        return {at: self._stream(node.data) for at, node in current.items()}

    def _stream(self, data: bytes) -> int:
        number = data.decode().removeprefix(f"{self.id}-")
        return int(number) if number.isdecimal() and len(number) <= _DIGITS else 0

    def forget_lost_claims(self) -> None:
        """Read the owner nodes, and forget the claims whose nodes other clients have deleted or replaced."""
        self._ownership.forget_lost(list(self._ownership.current().values()))

    def forget_offsets(self, partitions: Collection[TopicPartition]) -> None:
        """Make the next commit read the committed offsets of these partitions again."""
        nodes = [node for at, node in self._ownership.current().items() if at in partitions]
        with locked(nodes):
            for node in nodes:
                node.last_commit = None

    def commit_for_client(
        self, offsets: Mapping[TopicPartition, int | None], details: Mapping[TopicPartition, CommitDetails]
    ) -> None:
        """Commit offsets for a client that chooses its offsets freely: it may seek back, and commit there.

        An offset goes back only if this client knows it: it has committed that offset itself, or it was committed
        before the claim. An offset that another client has committed since never goes back. None deletes an offset by
        the same rule. Raise `NotClaimedError` if a partition is not held.
        """
        current = self._ownership.current()
        if missing := [at for at in offsets if at not in current]:
            raise NotClaimedError(missing[0], also=missing[1:])
        nodes = {current[at]: offset for at, offset in offsets.items()}
        before = {node: node.last_commit for node in nodes}
        try:
            fenced_commit(self._ownership, nodes, backward=self._known_offsets(nodes), details=details)
        except BaseException:
            for node, last in before.items():
                if node.last_commit is not last:  # it was only read, perhaps after another client's commit
                    node.last_commit = None
            raise

    def _known_offsets(self, nodes: Collection[OwnerNode]) -> dict[TopicPartition, int]:
        last = {node.at: node.last_commit for node in nodes}
        known = {at: each.offset for at, each in last.items() if each is not None and each.offset is not None}
        before = {node.at: node.claimed_zxid for node in nodes if node.last_commit is None}
        if before:
            for at, found in Offsets(self._paths, self._context).fetch_many(before).items():
                if isinstance(found, CommittedOffset) and found.zxid <= before[at]:
                    known[at] = found.offset
        return known

    def claims_on(self, partitions: Collection[TopicPartition]) -> Claims:
        """Return the claims on these partitions. Raise `NotClaimedError` if one is not held."""
        current = self._ownership.current()
        for at in partitions:
            if at not in current or current[at].uncertain:
                raise NotClaimedError(at)
        return Claims(self._ownership, [current[at] for at in sorted(partitions)])


def register_all(
    context: RegistryContext, registrations: Mapping[MemberInstance, Registration], fence: SessionFence | None = None
) -> None:
    """Register several instances of one group in one transaction. See `register_together`."""
    contents = {each._ownership: encode_registration(found) for each, found in registrations.items()}
    register_together(context, contents, fence)
