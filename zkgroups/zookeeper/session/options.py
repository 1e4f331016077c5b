"""Check the address and the session timeout before anything is sent."""

from __future__ import annotations

import re
import warnings
from typing import Final

from ...core.session_lifetime import PROOF_LIFETIME
from ...core.znodes.names import check_name
from ...exceptions import InvalidNameError, InvalidOptionError

MAX_SESSION_TIMEOUT: Final = 300.0
SHORT_SESSION_TIMEOUT: Final = 10.0
"""How long a server that is cut off from its leader keeps answering, in seconds: `syncLimit` × `tickTime` in
ZooKeeper's sample configuration. Servers do not report their own values."""


class ShortSessionWarning(UserWarning):
    """The session timeout is so short that a pause, an election or a server without its leader can end the claims."""


# An invalid name such as `zk..example` would end kazoo's thread.
_SERVER: Final = re.compile(
    r"(?:[A-Za-z0-9_-]{1,63}(?:\.[A-Za-z0-9_-]{1,63})*\.?"
    r"|\[[0-9A-Fa-f:.]+(?:%[A-Za-z0-9_.-]+)?\])"
    r"(?::(?P<port>[0-9]{1,5}))?"
)


def check_hosts(hosts: object) -> str:
    """Return a valid hosts string such as `zk1:2181,zk2:2181/kafka`, or raise `InvalidOptionError`."""
    if not isinstance(hosts, str) or not hosts.strip():
        raise InvalidOptionError("zookeeper", hosts, "it must be like host:port,host:port/chroot")
    servers, _, chroot = hosts.strip().partition("/")
    for server in servers.split(","):
        match = _SERVER.fullmatch(server.strip())
        if match is None or not 0 < int(match["port"] or 2181) < 65536:
            raise InvalidOptionError(
                "zookeeper",
                hosts,
                f"it must be like host:port,host:port/chroot ({server.strip()!r} is not a host and port)",
            )
    try:
        for name in chroot.rstrip("/").split("/") if chroot.rstrip("/") else ():
            check_name("chroot", name)
    except InvalidNameError as error:
        raise InvalidOptionError("zookeeper", hosts, f"it must be like host:port,host:port/chroot ({error})") from error
    return hosts.strip().rstrip("/")


def check_session_timeout(seconds: object) -> float:
    """Return a valid session timeout in seconds, or raise `InvalidOptionError`. Warn if it is short."""
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 < seconds <= MAX_SESSION_TIMEOUT:
        raise InvalidOptionError("session_timeout", seconds, f"it must be over 0 and at most {MAX_SESSION_TIMEOUT:g} s")
    if seconds < SHORT_SESSION_TIMEOUT:
        warnings.warn(
            f"a session timeout of {seconds:g} s is short: claims end if for {PROOF_LIFETIME * seconds:g} s nothing "
            "proves that the session is alive, for example during a long pause or an election, or if the server is "
            f"cut off from its leader; use {SHORT_SESSION_TIMEOUT:g} s or more",
            ShortSessionWarning,
            stacklevel=4,
        )
    return float(seconds)
