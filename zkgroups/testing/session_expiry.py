"""Expire the session of a kazoo client at the server, without simulation.

A second connection takes over the session with its id and password, and closes it. Its ephemeral nodes are deleted at
once. The first client sees LOST when it reconnects.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kazoo.client import KazooClient

ClientId = tuple[int, bytes]


def expire_session(
    client: KazooClient, *, client_id: ClientId | None = None, address: str | None = None, timeout: float = 30.0
) -> None:
    """
    Expire the session of `client`, and wait until the server confirms it.

    `client_id` is an earlier session (id and password, as in `client.client_id`), also of a disconnected client. Give
    `address` if the client connects through a proxy.
    """
    victim: ClientId | None = client_id or client.client_id
    if victim is None:
        raise ValueError("the client has no session now: connect it first, or pass the client_id of an earlier session")
    deadline = time.monotonic() + timeout
    while not _ended(client, victim, address or _hosts(client), deadline):
        if time.monotonic() > deadline:
            raise TimeoutError(f"session 0x{victim[0]:x} was not ended within {timeout} s")


def _ended(client: KazooClient, victim: ClientId, hosts: str, deadline: float) -> bool:
    """Take over the session and close it. Return False if the client took it back meanwhile."""
    from kazoo.exceptions import AuthFailedError, ConnectionLoss, SessionExpiredError

    second = _second_client(client, victim, hosts)
    remaining = max(deadline - time.monotonic(), 0.1)
    try:
        second.start(timeout=remaining)
        if second.client_id is not None and second.client_id[0] != victim[0]:
            return True  # the server has expired the session, and kazoo has opened a new one
        return _close_session(second, remaining)
    except (AuthFailedError, ConnectionLoss, second.handler.timeout_exception):
        # kazoo raises this from `start`, too, when it was connected and lost the connection.
        # If the client takes the connection back during a login, kazoo reports a failed login.
        return False
    except SessionExpiredError:
        return True
    finally:
        second.stop()
        second.close()


def _close_session(second: KazooClient, timeout: float) -> bool:
    """Close the session, and return True if the server confirmed it. `KazooClient.stop` does not report this."""
    from kazoo.protocol.serialization import Close

    from ..zookeeper.kazoo_compat import internals

    class CloseAndTell(Close):  # type: ignore[misc]
        """A Close request that can be waited for. kazoo's own decodes no answer, and is falsy."""

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
    """Return the client's hosts without the chroot, which may not exist."""
    return ",".join(f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in client.hosts)
