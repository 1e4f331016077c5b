"""The registry: the consumer groups, topics and brokers in one ZooKeeper ensemble or chroot.

Some methods import modules when they are called: a program that only lists groups should not load the whole library.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self

from ..core.znodes.paths import BROKER_TOPICS, CONSUMERS, join
from ..core.znodes.topic_partition import check_group
from ..deadline import Deadline
from ..exceptions import InvalidOptionError, MalformedNodeError, NoPermissionError, NotConnectedError
from .kazoo_compat.closing import close_client, disconnect_client
from .session import connection
from .session.connection import OpenConnection
from .session.session import KazooAcls, RegistryContext, Session, TopicSource

if TYPE_CHECKING:
    from ..core.doctor.findings import Checkup, Finding
    from ..core.layouts.layout import Layout
    from ..core.znodes.group_description import GroupDescription
    from ..core.znodes.values import Broker, CommittedOffset, Topic, UnreadableNode
    from .group import Consumergroup
    from .session.security import AclPolicy, Digest, Sasl, SessionCredentials, Tls
    from .watch import GroupChanges

LEGACY: Final = "legacy"
"""The layout of Kafka's own consumers."""
STALE_AFTER: Final = 90 * 86_400.0
"""In seconds. Groups without a commit for that long are probably unused."""


class Registry:
    """The consumer groups in one ZooKeeper ensemble or chroot.

    Open it with `Registry.connect`, or pass a running kazoo client, which `close` does not stop. `acl` and `timeout`
    are those of `connect`. Leaving the `with` block closes it. Several threads may share it.

        with Registry.connect("zk1:2181/kafka") as registry:
            for group in registry.describe():
                print(group.group, group.state, group.members, group.last_commit_at)

    `for group in registry` yields a `Consumergroup` for each group; `"billing" in registry` checks for one. A group
    gives access to its offsets, and its instances register, claim partitions and commit:

        with Registry.connect("zk1:2181/kafka") as registry:
            with registry.group("billing").instance("anna") as anna:  # leaving releases and deregisters
                anna.register(["orders"])
                with anna.claim(TopicPartition("orders", 0), timeout=30) as claim:
                    committed = claim.fetch()  # a CommittedOffset, or None
                    claim.commit((committed.offset if committed else 0) + 100)

    A call that gets no answer within `timeout` raises `NotConnectedError`. See `zkgroups.exceptions` for all errors.
    """

    def __init__(self, client: Any, *, acl: AclPolicy | None = None, timeout: float = 15.0) -> None:
        Deadline.after("timeout", timeout)
        self._client = client
        self._context = RegistryContext(Session.of(client), _kazoo_acls(acl), float(timeout))
        self._opened: OpenConnection | None = None  # None for a client that was passed
        self._pid = 0

    @classmethod
    def connect(
        cls,
        hosts: str,
        *,
        session_timeout: float = 30.0,
        timeout: float = 15.0,
        unreachable_timeout: float | None = None,
        auth: Sequence[Digest | Sasl] = (),
        tls: Tls | None = None,
        acl: AclPolicy | None = None,
        read_only: bool = False,
        session_file: str | os.PathLike[str] | None = None,
    ) -> Self:
        """Connect to `host:port,host:port/chroot`, e.g. `Registry.connect("zk1:2181,zk2:2181/kafka")`.

        All durations are in seconds.

        - `session_timeout`: how long the session, with its registrations and claims, survives without a connection. It
          is requested from the server, at most 300; `Registry.session_timeout` is what the server grants.
        - `timeout`: how long the connection, and later each call, may take.
        - `unreachable_timeout`: a shorter time, after which connecting fails if every host is unknown, refuses
          connections, or is not a ZooKeeper server.
        - `auth`: the users to authenticate as: any number of `Digest`, and at most one `Sasl`.
        - `tls`: connect with TLS, using the files of this `Tls`.
        - `acl`: the access control lists of the nodes that zkgroups creates. By default, everybody may do everything.
        - `read_only`: refuse every write, and also accept a server that has lost its quorum.

        Raise `NotConnectedError` if no server answers within `timeout`, `AuthenticationError` if the credentials are
        not accepted, and `NoRegistryError` if the chroot does not exist. To detect a wrong chroot, call `require_root`.

        With `session_file` the session outlives a process that is killed, or closed with `leave=False`. The next
        process with the same file resumes the session, with all registrations and claims, if it starts within the
        session timeout. Each instance needs the same id every time. The other members do not notice the restart:

            registry = Registry.connect("zk1:2181/kafka", session_file="/var/lib/billing/session")
            with Member(registry.group("billing"), ["orders"], id="worker-1") as member:
                signal.signal(signal.SIGTERM, lambda *_: member.stop(leave=False))
                for generation in member.generations():
                    generation.start(work)
                    generation.wait()
            registry.close(leave=False)

        Only its owner can read the file. It belongs on a disk of this machine, and is locked while it is in use:
        `SessionInUseError` names the process that uses it. A copy of the file, or a reboot, starts a new session.
        A `Member` deregisters other ids of its group that the session has, and that this process has not used for a
        session timeout. In other groups, they stay as long as the session. A saved session for another chroot is
        ignored. Another ensemble reports it as expired.
        """
        opened = connection.connect(
            hosts,
            session_timeout=session_timeout,
            timeout=timeout,
            unreachable_timeout=unreachable_timeout,
            auth=auth,
            tls=tls,
            read_only=read_only,
            session_file=session_file,
        )
        registry = cls(opened.client, acl=acl, timeout=timeout)
        registry._opened, registry._pid = opened, os.getpid()
        return registry

    def close(self, *, leave: bool = True) -> None:
        """Close the session with all its registrations and claims. Does nothing for a client that was passed.

        With `leave=False`, only the connection is closed. The session lives on until its timeout, and the next process
        with the same `session_file` resumes it. In a fork of the process that connected, `close` does nothing.
        """
        if self._opened is None or self._pid != os.getpid():
            return
        file, ended = self._opened.file, False
        if leave and (file is None or (self._client.connected and file.begin_close())):
            ended = close_client(self._client)
        else:
            if file is not None:
                file.save()  # a new session may not be saved yet
            disconnect_client(self._client)
        if file is not None:
            file.close(ended=ended)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def client(self) -> Any:
        """The kazoo client, for requests that zkgroups does not offer."""
        return self._client

    def sync(self) -> None:
        """Wait until the connected server has applied all writes made before this call.

        Does nothing if the server has lost its quorum, because then it cannot know.
        """
        if not self.server_is_read_only:
            self._context.session.sync(deadline=self._context.deadline())

    def require_root(self, layout: Layout | str = LEGACY) -> None:
        """Raise `NoRegistryError` if there are neither groups nor brokers: the chroot is probably wrong.

        With a `layout`, raise it if the root of the layout is missing. Without this check, `groups()` and `describe()`
        return nothing in these cases.
        """
        other = _other_layout(layout)
        if other is None or other.has_registrations:
            connection.require_root(self._context.session, self._context.deadline())
        else:
            connection.require_node(self._context.session, other.root, self._context.deadline())

    def group(self, name: str) -> Consumergroup:
        """Return the group with this name, whether it exists or not."""
        from .group import Consumergroup

        return Consumergroup(name, self._context)

    def groups(self, layout: Layout | str = LEGACY) -> list[str]:
        """Return the names of all groups, sorted. A group has registrations, owners or offsets.

        With a `layout`, return the groups that have offsets there.
        """
        if (other := _other_layout(layout)) is not None:
            from .reading import layouts

            return layouts.groups_of(self._context, other)
        return sorted(self._context.session.children(CONSUMERS, deadline=self._context.deadline()) or [])

    def offsets(
        self, groups: Iterable[str] | None = None, *, layout: Layout | str = LEGACY
    ) -> Iterator[CommittedOffset | UnreadableNode]:
        """Yield every committed offset of these groups, or of all groups, in constant memory.

        A node that cannot be read is yielded as an `UnreadableNode`: a `MalformedNode` or a `ForbiddenNode`. Both have
        `path` and `reason`, but no `offset`, so check the type: `isinstance(found, CommittedOffset)`.

        `layout` says where the offsets are, if not where Kafka's own consumers keep them: `storm:/kafkastorm`, or any
        other text that docs/layouts.md explains. Each offset is the next message to read, whatever is stored.
        """
        names = self.groups(layout) if groups is None else [check_group(name) for name in groups]
        if (other := _other_layout(layout)) is not None:
            from .reading import layouts

            read = layouts.read_offsets(self._context, other, names)
            return (each.found for _group, offsets in read for each in offsets)
        from .reading import group_reader

        return group_reader.every_offset(self._context, names)

    def describe(
        self, groups: Iterable[str] | None = None, *, layout: Layout | str = LEGACY
    ) -> Iterator[GroupDescription]:
        """Describe these groups, or all groups, in the given order. Much faster than one call per group.

        A missing group has the state Dead. With a `layout`, the offsets are read from there: see `offsets`. Systems
        other than Kafka register no instances.
        """
        from ..core.znodes.group_description import describe

        names = self.groups(layout) if groups is None else [check_group(name) for name in groups]
        if (other := _other_layout(layout)) is not None:
            from .reading import layouts

            return map(describe, layouts.read_groups(self._context, other, names))
        from .reading import group_reader

        return map(describe, group_reader.read_groups(self._context, names))

    def created_at(self, groups: Iterable[str]) -> dict[str, datetime]:
        """Return when each group was created. Missing and unreadable groups are left out."""
        from ..core.times import from_ms
        from .requests import bulk_read
        from .requests.node import Node

        names = [check_group(name) for name in groups]
        nodes = bulk_read.nodes(self._context, (join(CONSUMERS, name) for name in names))
        times = ((n, from_ms(node.created_ms)) for n, node in zip(names, nodes, strict=True) if isinstance(node, Node))
        return {name: time for name, time in times if time is not None}

    def check(self, groups: Iterable[str] | None = None, *, stale_after: float = STALE_AFTER) -> Iterator[Checkup]:
        """Check the health of these groups, or of all groups, in the given order, as `zkgroups doctor` does.

        Offsets without a commit for `stale_after` seconds, by default 90 days, are stale.
        `zkgroups.core.doctor.all_checks.CHECKS` explains the code of each finding.
        """
        from .reading import doctor_reader

        if not 0 <= stale_after < float("inf"):
            raise InvalidOptionError("stale_after", stale_after, "it must be a number of seconds")
        names = self.groups() if groups is None else [check_group(name) for name in groups]
        return doctor_reader.check(self._context, names, stale_after=stale_after)

    def repair(self, finding: Finding) -> None:
        """Repair a finding of `check`. Raise an error if it is not `repairable`, or if the nodes have changed since."""
        from .admin import repair

        repair.repair(finding, self._context)

    def group_changes(self) -> GroupChanges:
        """Return an object that reports at once which groups have changed: see `GroupChanges`."""
        from .watch import GroupChanges

        return GroupChanges(self._context)

    def __iter__(self) -> Iterator[Consumergroup]:
        return map(self.group, self.groups())

    def __contains__(self, name: object) -> bool:
        return self._context.session.exists(join(CONSUMERS, check_group(name)), deadline=self._context.deadline())

    def topics(self) -> list[str]:
        """Return the names of the topics that Kafka has registered, sorted."""
        if (source := self._context.topics) is not None and (found := source(None)) is not None:
            return sorted(found)
        return sorted(self._context.session.children(BROKER_TOPICS, deadline=self._context.deadline()) or [])

    def read_topics_from(self, source: TopicSource) -> None:
        """Ask a function for topics from now on, because the brokers do not register them in this ZooKeeper.

        It gets names of topics, or None for all, and returns their partitions, as `Brokers.partitions` does:

            registry.read_topics_from(brokers.partitions)

        Changes of topics are not noticed by watches then. Objects made before still read ZooKeeper.
        """
        self._context = self._context._replace(topics=source)

    def topic(self, name: str) -> Topic | None:
        """Return a topic with its partition numbers, or None if Kafka has not registered it."""
        from ..core.znodes.values import ForbiddenNode, UnreadableNode
        from .reading import group_reader

        [found] = group_reader.read_topics(self._context, [name])
        if isinstance(found, ForbiddenNode):
            raise NoPermissionError(found.path)
        if isinstance(found, UnreadableNode):
            raise MalformedNodeError(found)
        return found

    def brokers(self) -> list[Broker | UnreadableNode]:
        """Return the live brokers, sorted by id."""
        from .reading import group_reader

        return group_reader.read_brokers(self._context)

    # The session

    @property
    def session_timeout(self) -> float | None:
        """The session timeout that the server granted, in seconds. It may differ from the requested one.

        If it was granted several times, at reconnects or when the session was resumed, this is the smallest one. None
        for a client that was connected before it was passed to `Registry`.
        """
        return self._context.session.granted_timeout

    @property
    def session_id(self) -> int | None:
        """The id of the session. None before the first connection."""
        return self._context.session.id

    @property
    def resumed(self) -> bool:
        """True if the registry resumed the session of an earlier process from the `session_file`."""
        return self._opened is not None and self._opened.file is not None and self._opened.file.resumed

    @property
    def server_is_read_only(self) -> bool:
        """True if the server has lost its quorum: it refuses writes, and its replies may be outdated."""
        return self._context.session.server_is_read_only

    def credentials(self) -> SessionCredentials:
        """Return the credentials to close this session after a crash: see `Instance.register(past_session=...)`."""
        from .session.security import SessionCredentials

        found = self._client.client_id
        if found is None:
            raise NotConnectedError("the session has no credentials before the first connection: connect first")
        return SessionCredentials(*found)

    def __repr__(self) -> str:
        session = self._context.session
        return f"<Registry {session.servers}{session.chroot}>"


def _kazoo_acls(policy: AclPolicy | None) -> KazooAcls:
    if policy is None:
        return KazooAcls()
    from .session.security import kazoo_acls

    return kazoo_acls(policy)


def _other_layout(layout: Layout | str) -> Layout | None:
    """Return a layout other than the legacy one; None for that, without importing the others."""
    if layout == LEGACY:
        return None
    from ..core.layouts import legacy
    from ..core.layouts.template import parse_layout

    found = parse_layout(layout)
    return None if found == legacy.LEGACY else found
