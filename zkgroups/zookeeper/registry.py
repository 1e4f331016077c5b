"""The registry: one ZooKeeper, or a chroot of it, with its consumer groups and the topics and brokers of Kafka.

Some methods import what they need when they are called, because listing groups needs only a fraction of this library.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self

from ..core.znodes.names import check_group
from ..core.znodes.paths import BROKER_IDS, BROKER_TOPICS, CONSUMERS, join
from ..deadline import Deadline
from ..exceptions import InvalidOptionError, MalformedNodeError, NoPermissionError, NotConnectedError
from .kazoo_compat.closing import close_client, disconnect_client
from .session import chroot_check, connection
from .session.acl import AclPolicy, KazooAcls
from .session.connection import OpenConnection
from .session.options import Digest, Sasl, Tls
from .session.registry_context import RegistryContext
from .session.session import Session

if TYPE_CHECKING:
    from ..core.doctor.findings import Checkup, Finding
    from ..core.znodes.group_description import GroupDescription
    from ..core.znodes.values import Broker, CommittedOffset, Topic, UnreadableNode
    from .group import Consumergroup
    from .session.credentials import SessionCredentials

STALE_AFTER: Final = 90 * 86_400.0
"""In seconds: offsets without a commit for as long are probably nobody's any more."""


class Registry:
    """The consumer groups of one ZooKeeper. Open it with `Registry.connect`, or give it a running kazoo client.

    A client that was given is not closed with the registry.
    """

    def __init__(self, client: Any, *, acl: AclPolicy | None = None, timeout: float = 15.0) -> None:
        Deadline.after("timeout", timeout)
        self._client = client
        self._context = RegistryContext(Session.of(client), KazooAcls(acl or AclPolicy()), float(timeout))
        self._opened: OpenConnection | None = None  # what is to be closed
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

        `session_timeout` is requested from the server, at most 300 s; `Registry.session_timeout` is what it grants.
        `timeout` is how long the connection, and later each call, may take. `unreachable_timeout` is shorter: after so
        many seconds connecting fails if every host is unknown, refuses connections, or is not a ZooKeeper server.
        `read_only` refuses every write, and also accepts a server that has lost its quorum.

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
        """End the session, if the registry opened it; with it go all registrations and claims made through it.

        With `leave=False` only the connection is closed: the session stays for whoever takes it over, which with a
        `session_file` is the next process, and ends by itself when nobody has after the session timeout. In a fork of
        the process that connected nothing happens.
        """
        if self._opened is None or self._pid != os.getpid():
            return
        file, ended = self._opened.file, False
        if leave:
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
        """The kazoo client underneath, for what is not offered here."""
        return self._client

    def sync(self) -> None:
        """Wait until the server we are with knows of everything that was written before this call.

        A server that has lost its quorum cannot find out, and is not asked.
        """
        if not self.server_is_read_only:
            self._context.session.call(lambda: self._client.sync_async("/"), "/", self._context.deadline())

    def require_root(self) -> None:
        """Raise `NoRegistryError` where this ZooKeeper, or the chroot, has neither groups nor brokers.

        Then the chroot is probably wrong, and `groups()` and `describe()` would find nothing.
        """
        chroot_check.require_root(self._context.session, self._context.deadline())

    # Groups

    def group(self, name: str) -> Consumergroup:
        """The group of that name, whether it exists or not."""
        from .group import Consumergroup

        return Consumergroup(name, self._context)

    def groups(self) -> list[str]:
        """The names of all groups, sorted: a group is whatever has registrations, owners or offsets."""
        return sorted(self._context.session.children(CONSUMERS, deadline=self._context.deadline()) or [])

    def offsets(self, groups: Iterable[str] | None = None) -> Iterator[CommittedOffset | UnreadableNode]:
        """Every committed offset of these groups, or of all, as an iterator whose memory does not grow with their
        number.

        What is no offset, or may not be read, is told as such and stops nothing.
        """
        from .reading import group_reader

        names = self.groups() if groups is None else [check_group(name) for name in groups]
        return group_reader.every_offset(self._context, names)

    def describe(self, groups: Iterable[str] | None = None) -> Iterator[GroupDescription]:
        """Describe these groups, or all, in their order: much quicker than one by one.

        One that is gone is described as dead.
        """
        from ..core.znodes.describe_group import describe
        from .reading import group_reader

        names = self.groups() if groups is None else [check_group(name) for name in groups]
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
        """Look for what is wrong in these groups, or all, in their order; offsets older than `stale_after` are stale.

        What each finding means is in `zkgroups.core.doctor.check_table.CHECKS`.
        """
        from .reading import doctor_reader

        if not 0 <= stale_after < float("inf"):
            raise InvalidOptionError("stale_after", stale_after, "it must be a number of seconds")
        names = self.groups() if groups is None else [check_group(name) for name in groups]
        return doctor_reader.check(self._context, names, stale_after=stale_after)

    def repair(self, finding: Finding) -> None:
        """Repair what `check` has found, if it is `repairable`; refused if somebody or something has come between."""
        from .admin import repair

        repair.repair(finding, self._context)

    def __iter__(self) -> Iterator[Consumergroup]:
        return map(self.group, self.groups())

    def __contains__(self, name: object) -> bool:
        return self._context.session.exists(join(CONSUMERS, check_group(name)), deadline=self._context.deadline())

    # Kafka

    def topics(self) -> list[str]:
        """The names of the topics that Kafka has registered, sorted."""
        return sorted(self._context.session.children(BROKER_TOPICS, deadline=self._context.deadline()) or [])

    def topic(self, name: str) -> Topic | None:
        """One topic with its partition numbers, None if Kafka has not registered it."""
        from ..core.znodes.values import ForbiddenNode, UnreadableNode
        from .reading import group_reader

        [found] = group_reader.read_topics(self._context, [name])
        if isinstance(found, ForbiddenNode):
            raise NoPermissionError(found.path)
        if isinstance(found, UnreadableNode):
            raise MalformedNodeError(found)
        return found

    def brokers(self) -> list[Broker | UnreadableNode]:
        """The living brokers, sorted by number."""
        from ..core.znodes.broker_codec import decode_broker
        from ..core.znodes.values import UnreadableNode
        from .requests import bulk_read

        ids = self._context.session.children(BROKER_IDS, deadline=self._context.deadline()) or []
        ordered = sorted(ids, key=lambda name: (len(name), name))
        nodes = bulk_read.nodes(self._context, (join(BROKER_IDS, name) for name in ordered))
        return [
            node if isinstance(node, UnreadableNode) else decode_broker(node.path, name, node.data)
            for name, node in zip(ordered, nodes, strict=True)
            if node is not None
        ]

    # The session

    @property
    def session_timeout(self) -> float | None:
        """The session timeout that the server granted, in seconds. It may differ from the requested one.

        If it was granted again, at a reconnect or when the session was resumed: the smallest one. None for a client
        that was connected before the registry was made.
        """
        return self._context.session.granted_timeout

    @property
    def session_id(self) -> int | None:
        """The id of the session, None while there is none."""
        return self._context.session.id

    @property
    def resumed(self) -> bool:
        """Whether it began with the session that an earlier process had left in the `session_file`."""
        return self._opened is not None and self._opened.file is not None and self._opened.file.resumed

    @property
    def server_is_read_only(self) -> bool:
        """Whether the server has lost its quorum: what it says may be old, and it takes no writes."""
        return self._context.session.server_is_read_only

    def credentials(self) -> SessionCredentials:
        """What a process keeps to end this session after a crash: see `Instance.register(past_session=...)`."""
        from .session.credentials import SessionCredentials

        found = self._client.client_id
        if found is None:
            raise NotConnectedError("there is no connection, so there is no session to remember")
        return SessionCredentials(*found)

    def __repr__(self) -> str:
        session = self._context.session
        return f"<Registry {session.servers}{session.chroot}>"
