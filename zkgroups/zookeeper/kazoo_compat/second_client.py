"""A second client like a given one: same servers, same identity, a session of its own or one to take over."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from kazoo.client import KazooClient
from kazoo.retry import KazooRetry

from .corrections import ConnectionLog, log_in_cleanly, share_time


def twin(
    client: Any,
    timeout: float,
    *,
    hosts: Sequence[tuple[str, int]] = (),
    client_id: tuple[int, bytes] | None = None,
    logger: logging.Logger | None = None,
) -> Any:
    """Make one, for these of the servers if any are named; it is not started yet, and has so long to connect."""
    made = KazooClient(
        hosts=",".join(
            f"{host}:{port}" if ":" not in host else f"[{host}]:{port}" for host, port in hosts or client.hosts
        ),
        timeout=client._session_timeout / 1000,
        client_id=client_id,
        logger=logger or ConnectionLog(),
        auth_data=client.auth_data,
        sasl_options=client._connection.sasl_options,
        connection_retry=KazooRetry(max_tries=-1, delay=0.05, backoff=1.5, max_delay=1.0),
        read_only=client.read_only,
        use_ssl=client.use_ssl,
        ca=client.ca,
        certfile=client.certfile,
        keyfile=client.keyfile,
        keyfile_password=client.keyfile_password,
        verify_certs=client.verify_certs,
        check_hostname=client.check_hostname,
    )
    share_time(made, timeout)
    log_in_cleanly(made)
    return made
