"""One instance of a group: it registers, claims partitions, and releases them."""

from __future__ import annotations

import contextlib
import socket
import time
import uuid
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from types import MappingProxyType, TracebackType
from typing import Self, TypeAlias

from ..core.znodes.names import check_instance
from ..core.znodes.owner_codec import encode_owner
from ..core.znodes.paths import GroupPaths
from ..core.znodes.registration_codec import decode_registration, encode_registration
from ..core.znodes.topic_partition import TopicPartition, check_at
from ..core.znodes.values import MalformedNode, Pattern, Registration, UnevaluableRegistration
from ..deadline import Deadline
from ..exceptions import (
    AlreadyRegisteredError,
    InvalidOptionError,
    MalformedNodeError,
    NotClaimedError,
    NotRegisteredError,
    SessionLostError,
    ZkgroupsException,
)
from .claim import Claim, Claims
from .ownership.claim_partitions import claim_partitions
from .ownership.instance_ids_in_use import free_id, take_id
from .ownership.ownership import Ownership
from .ownership.registration_fence import RegistrationVersion
from .ownership.release_partitions import release_partitions
from .ownership.resume_claims import resume_claims
from .requests.transaction import TransactionFailed
from .session.credentials import SessionCredentials
from .session.registry_context import RegistryContext

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

    # Registration

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
                self._delete_registration()
            with contextlib.suppress(SessionLostError):  # they may be of a later session
                ownership.fence.leftovers.delete_all()
            ownership.fence.forget()
            ownership.forget(nodes)
        free_id(ownership)

    def _delete_registration(self) -> None:
        while (registered := self._ownership.fence.current) is not None:
            if not take_id(self._ownership):
                return  # another instance with this id has registered since
            try:
                self._ownership.fence.delete(registered)
                return
            except TransactionFailed as failure:
                self._ownership.refresh(registered, failure)

    # Claims

    @property
    def claims(self) -> Mapping[TopicPartition, Claim]:
        """The current claims, by partition. Does not contact the server."""
        nodes = self._ownership.current()
        return MappingProxyType({at: Claim(self._ownership, node) for at, node in nodes.items()})

    def claim(self, at: TopicPartition, *, timeout: float | None = None) -> Claim:
        """Claim a partition, whether Kafka has registered its topic or not. The instance must be registered.

        Raise `ClaimedByOtherError` if another instance owns it. With a `timeout`, wait for its release, and raise
        `ClaimTimeout` after so many seconds. Both errors have the `owner`. Raise `AlreadyClaimedError` if this instance
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
        with self._ownership.registration_lock(), contextlib.suppress(SessionLostError):
            self._ownership.fence.leftovers.delete_all()

    # Leave

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
