"""A second client with the servers and the credentials of a first one, for a session of its own or a saved one."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from kazoo.client import KazooClient
from kazoo.retry import KazooRetry

from .client_log import ConnectionLog
from .connect_and_login import correct_sasl_login, limit_connect_time
from .internals import requested_timeout, sasl_options


def second_client(
    client: Any,
    timeout: float,
    *,
    hosts: Sequence[tuple[str, int]] = (),
    client_id: tuple[int, bytes] | None = None,
    logger: logging.Logger | None = None,
) -> Any:
    """Return a client that is not started, for `hosts` if given. `timeout` limits the time to connect, in seconds."""
    second = KazooClient(
        hosts=",".join(
            f"{host}:{port}" if ":" not in host else f"[{host}]:{port}" for host, port in hosts or client.hosts
        ),
        timeout=requested_timeout(client),
        client_id=client_id,
        logger=logger or ConnectionLog(),
        auth_data=client.auth_data,
        sasl_options=sasl_options(client),
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
    limit_connect_time(second, timeout)
    correct_sasl_login(second)
    return second


def connect_only_to(client: Any, hostname: str, address: str, port: int) -> None:
    """Let the client connect to this address only. TLS checks the certificate against `hostname`."""
    client._connection._expand_client_hosts = lambda: [(hostname, address, port)]
