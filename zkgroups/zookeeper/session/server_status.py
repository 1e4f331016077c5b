"""What a server reports about itself: the four-letter word `srvr`, on a connection of its own, without a session."""

from __future__ import annotations

import re
from typing import Any, Final

from ...deadline import Deadline

_VERSION: Final = re.compile(rb"^Zookeeper version: (\d+)\.(\d+)\.")
_ZXID: Final = re.compile(rb"^Zxid: 0x([0-9a-f]{1,16})\r?\n", re.MULTILINE)
_LINES_TO_ZXID: Final = 8
_LONGEST: Final = 1024


def version(client: Any, host: str, address: str, port: int, deadline: Deadline) -> tuple[int, int] | None:
    """Its version; None if it does not report one, because four-letter words may be disabled."""
    found = _VERSION.match(_lines(client, host, address, port, deadline, 1))
    return None if found is None else (int(found[1]), int(found[2]))


def zxid(client: Any, host: str, address: str, port: int, deadline: Deadline) -> int | None:
    """The number of its last transaction; None if it does not report one."""
    found = _ZXID.search(_lines(client, host, address, port, deadline, _LINES_TO_ZXID))
    return None if found is None else int(found[1], 16)


def _lines(client: Any, host: str, address: str, port: int, deadline: Deadline, lines: int) -> bytes:
    """The first lines of the report. TLS checks the host name, and nothing else needs it."""
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
