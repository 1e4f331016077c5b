"""Whether a server answers many reads in one request, found out without harm.

Servers before ZooKeeper 3.6 do not, and close the connection that asked; and kazoo's thread may not survive their
answer where other requests are under way. So a second connection to the same server asks, as the same user and nothing
else. What it hears is kept with the session for as long as its connection lasts: the next one may lead to another
server, also under the same address. An ensemble may be of two minds while it is being upgraded.
"""

from __future__ import annotations

from typing import Any, Final

from kazoo.exceptions import KazooException
from kazoo.handlers.threading import KazooTimeoutError

from ..exceptions import ZkgroupsException
from .corrections import close
from .deadline import Deadline
from .multiread import Kind, MultiRead, operations
from .session import Peer, Session
from .twin import twin

PATIENCE: Final = 5.0
"""As long as this a walk may be held up, once; then it reads in the way that every server knows."""


def knows_multiread(session: Session, timeout: float) -> bool:
    """Whether the server we are with is known to. It is asked once for each connection of ours."""
    with session.probing:
        connection = _both_ends(session)
        if connection is not None and connection not in session.reads_many:
            session.reads_many = {connection: _ask(session.client, connection, Deadline(min(timeout, PATIENCE)))}
    return understands(session)


def understands(session: Session) -> bool:
    """The same of the server we are with at this moment, without asking it."""
    return session.reads_many.get(_both_ends(session) or (), False)


def _both_ends(session: Session) -> Peer | None:
    """What tells our connection from any other; on kazoo's own thread it is that of what is sent next."""
    try:
        socket = session.client._connection._socket
        return socket.getsockname(), socket.getpeername(), getattr(socket, "server_hostname", None)
    except (AttributeError, OSError):
        return None


def _ask(client: Any, connection: Peer, deadline: Deadline) -> bool:
    """Ask the server at the other end; no answer is as good as no."""
    second = _second(client, connection, deadline)
    answer = second.handler.async_result()
    session = Session.of(second)
    second.start_async()
    try:
        if not session.wait_connected(deadline):
            return False
        second._call(MultiRead(operations(Kind.NODE, b"", ["zookeeper"]), lambda: True), answer)
        answer.get(timeout=deadline.remaining)
        return True
    except (KazooException, KazooTimeoutError, ZkgroupsException):
        return False
    finally:
        close(second)


def _second(client: Any, connection: Peer, deadline: Deadline) -> Any:
    """A client for that very address: a name may stand for many. TLS checks the name, nothing else needs it."""
    _here, (address, port, *_), name = connection
    second = twin(client, deadline.seconds, hosts=[(name or address, port)])
    second._connection._expand_client_hosts = lambda: [(name or address, address, port)]
    return second
