"""Ask a server for its version and last transaction: the four-letter word `srvr`, on a connection without a session."""

from __future__ import annotations

import re
from typing import Any, Final

from ...deadline import Deadline

_VERSION: Final = re.compile(rb"^Zookeeper version: (\d+)\.(\d+)\.")
_ZXID: Final = re.compile(rb"^Zxid: 0x([0-9a-f]{1,16})\r?\n", re.MULTILINE)
_LINES_TO_ZXID: Final = 8
_LONGEST: Final = 1024


def version(client: Any, host: str, address: str, port: int, deadline: Deadline) -> tuple[int, int] | None:
    """Return the server's version. None if it does not report one, because four-letter words may be disabled."""
    match = _VERSION.match(_first_lines(client, host, address, port, deadline, 1))
    return None if match is None else (int(match[1]), int(match[2]))


def last_zxid(client: Any, host: str, address: str, port: int, deadline: Deadline) -> int | None:
    """Return the number of the server's last transaction. None if it does not report one."""
    match = _ZXID.search(_first_lines(client, host, address, port, deadline, _LINES_TO_ZXID))
    return None if match is None else int(match[1], 16)


def _first_lines(client: Any, host: str, address: str, port: int, deadline: Deadline, lines: int) -> bytes:
    """Return the first lines of the report. With TLS, the certificate must be that of `host`."""
    answer = b""
    try:
        sock = client.handler.create_connection(
            address=(address, port),
            hostname=host,
            timeout=deadline.remaining,
            use_ssl=client.use_ssl,
            keyfile=client.keyfile,
            certfile=client.certfile,
            ca=client.ca,
            keyfile_password=client.keyfile_password,
            verify_certs=client.verify_certs,
            check_hostname=client.check_hostname,
        )
        with sock:
            sock.settimeout(max(deadline.remaining, 0.001))
            sock.sendall(b"srvr")
            # A server that is just starting does not close the connection.
            while answer.count(b"\n") < lines and len(answer) < _LONGEST:
                sock.settimeout(max(deadline.remaining, 0.001))
                if not (more := sock.recv(_LONGEST)):
                    break
                answer += more
    except OSError:
        return b""
    return answer
