"""Whether a server answers many reads in one request, found out without harm.

Servers before ZooKeeper 3.6 do not, and close the connection that asked; and kazoo's thread may not survive their
answer where other requests are under way. So a second connection to the same server asks, as the same user and nothing
else, and what it hears is kept with the session under the server's address. An ensemble may be of two minds while it is
being upgraded.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator
from typing import Any, Final

from kazoo.exceptions import KazooException, UnimplementedError
from kazoo.handlers.threading import KazooTimeoutError

from ..exceptions import ZkgroupsException
from .corrections import close
from .deadline import Deadline
from .multiread import Kind, MultiRead, operations
from .session import Peer, Session
from .twin import twin

PATIENCE: Final = 5.0
"""As long as this a walk may be held up; then it reads in the way that every server knows."""


def knows_multiread(session: Session, timeout: float) -> bool:
    """Whether the server we are with does. A server is asked once, unless there was no answer."""
    deadline = Deadline(min(timeout, PATIENCE))
    session.wait_connected(deadline)
    peer = session.peer
    if peer is not None and peer not in session.reads_many:
        _ask(session, peer, deadline)
    return understands(session)


def understands(session: Session) -> bool:
    """Whether the server we are with at this moment is known to."""
    return session.reads_many.get(session.peer or (), False)


def _ask(session: Session, peer: Peer, deadline: Deadline) -> None:
    second = twin(session.client, deadline.seconds, hosts=list(_hosts_at(session.client, peer)))
    other = Session.of(second)
    second.start_async()
    try:
        if not other.wait_connected(deadline) or (asked := other.peer) is None:
            return
        answer = second.handler.async_result()
        second._call(MultiRead(operations(Kind.NODE, b"", [b"zookeeper"]), lambda: True), answer)
        try:
            answer.get(timeout=deadline.remaining)
            session.reads_many[asked] = True
        except UnimplementedError:
            session.reads_many[asked] = False
    except (KazooException, KazooTimeoutError, ZkgroupsException):
        return  # nothing is known, and nothing is lost
    finally:
        close(second)


def _hosts_at(client: Any, peer: Peer) -> Iterator[tuple[str, int]]:
    """The names by which the client knows this server: TLS checks names."""
    for host, port in client.hosts:
        try:
            addresses = {found[4][0] for found in socket.getaddrinfo(host, port, proto=socket.IPPROTO_TCP)}
        except OSError:
            continue
        if port == peer[1] and peer[0] in addresses:
            yield host, port
