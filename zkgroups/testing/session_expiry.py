"""Ending a kazoo client's session for good, at the server, as an expiry does: nothing about it is simulated.

A second connection takes the session over with its id and password, and closes it. The ephemeral nodes vanish at once,
and the first client hears LOST when it has connected again.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kazoo.client import KazooClient

ClientId = tuple[int, bytes]


def expire_session(
    client: KazooClient, *, client_id: ClientId | None = None, address: str | None = None, timeout: float = 10.0
) -> None:
    """
    End the session of `client` and return when the server says that it is gone.

    `client_id` names an earlier session (id and password, as in `client.client_id`), also of a client that is not
    connected. `address` is where to connect, when the client itself goes through a proxy.
    """
    victim: ClientId | None = client_id or client.client_id
    if victim is None:
        raise ValueError("the client has no session now: connect it first, or pass the client_id of an earlier session")
    deadline = time.monotonic() + timeout
    while not _ended(client, victim, address or _hosts(client), deadline):
        if time.monotonic() > deadline:
            raise TimeoutError(f"session 0x{victim[0]:x} was not ended within {timeout} s")


def _ended(client: KazooClient, victim: ClientId, hosts: str, deadline: float) -> bool:
    """Take the session over and close it; False when the victim took it back in between."""
    from kazoo.exceptions import AuthFailedError, ConnectionLoss, SessionExpiredError

    second = _second_client(client, victim, hosts)
    remaining = max(deadline - time.monotonic(), 0.1)
    try:
        second.start(timeout=remaining)
        if second.client_id is not None and second.client_id[0] != victim[0]:
            return True  # the server does not know it any more, and kazoo quietly opened another
        return _close_session(second, remaining)
    except (AuthFailedError, ConnectionLoss, second.handler.timeout_exception):
        # Also from start, and long before its timeout: kazoo says so, too, when it was connected and is no more.
        # And a connection that the victim took from it in the middle of a login, kazoo calls a login that failed.
        return False
    except SessionExpiredError:
        return True
    finally:
        second.stop()
        second.close()


def _close_session(second: KazooClient, timeout: float) -> bool:
    """Like `KazooClient.stop`, which does not tell whether the server ever heard of it."""
    from kazoo.protocol.serialization import Close

    from ..zookeeper.kazoo_compat import internals

    class CloseAndTell(Close):  # type: ignore[misc]
        """kazoo's own request cannot be waited for: it decodes no answer, and as an empty tuple it is false."""

        def __bool__(self) -> bool:
            return True

        @classmethod
        def deserialize(cls, _data: bytes, _offset: int) -> bool:
            return True

    answer = second.handler.async_result()
    internals.send(second, CloseAndTell(), answer)
    return bool(answer.get(timeout=timeout))


def _second_client(client: KazooClient, victim: ClientId, hosts: str) -> KazooClient:
    from kazoo.client import KazooClient

    from ..zookeeper.kazoo_compat import internals

    sasl = internals.sasl_options(client)
    return KazooClient(
        hosts,
        client_id=victim,
        timeout=internals.requested_timeout(client),
        sasl_options=dict(sasl) if sasl else None,
        use_ssl=client.use_ssl,
        verify_certs=client.verify_certs,
        check_hostname=client.check_hostname,
        certfile=client.certfile,
        keyfile=client.keyfile,
        keyfile_password=client.keyfile_password,
        ca=client.ca,
    )


def _hosts(client: KazooClient) -> str:
    """Where the client connects to, without its chroot, which may not exist."""
    return ",".join(f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in client.hosts)
