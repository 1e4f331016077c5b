"""Who may see what: rules over the path, the `Host` and the credentials of a request.

    path                              needs, if there are users or a token
    /healthz  /readyz  /static/...    nothing
    /metrics  /api/...  /v3/...       the token, or a user
    all others: pages and events      a user

The `Host` must be an IP address, localhost, or one of the given names. Otherwise a page of somebody else could read
this one through a name that it points to this machine (DNS rebinding).
"""

from __future__ import annotations

import base64
import binascii
import hmac
import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

_OPEN: Final = ("/healthz", "/readyz", "/static/")
_FOR_PROGRAMS: Final = ("/metrics", "/api/", "/v3/")


class Decision(Enum):
    """The answer to a request: allowed, or an error with its status and text."""

    ALLOWED = (200, "")
    WRONG_HOST = (421, "This server does not have that name. Add it with --host-name.")
    NO_CREDENTIALS = (401, "Log in, or send a token.")
    NO_USERS = (403, "Pages need a user: start the server with --users-file.")

    @property
    def status(self) -> int:
        """The status of the answer."""
        return self.value[0]

    @property
    def text(self) -> str:
        """The text of the answer."""
        return self.value[1]


@dataclass(frozen=True, slots=True)
class Access:
    """The users with their passwords, the token for programs, and the names of this server. By default, all is open."""

    users: Mapping[str, str] = field(default_factory=dict, repr=False)
    token: str | None = field(default=None, repr=False)
    host_names: frozenset[str] = frozenset()

    @property
    def is_open(self) -> bool:
        """True if nobody has to log in."""
        return not self.users and self.token is None

    def decide(self, path: str, host: str, authorization: str) -> Decision:
        """Decide about a request.

        >>> access = Access(users={"anna": "secret"}, token="t0ken")
        >>> access.decide("/metrics", "127.0.0.1:9308", "Bearer t0ken").name
        'ALLOWED'
        >>> access.decide("/", "127.0.0.1:9308", "Bearer t0ken").name
        'NO_CREDENTIALS'
        >>> access.decide("/", "attacker.example", "").name
        'WRONG_HOST'
        """
        if not self._has_name(host):
            return Decision.WRONG_HOST
        if self.is_open or path.startswith(_OPEN):
            return Decision.ALLOWED
        is_for_programs = path.startswith(_FOR_PROGRAMS)
        if self._is_user(authorization) or (is_for_programs and self._has_token(authorization)):
            return Decision.ALLOWED
        return Decision.NO_CREDENTIALS if self.users or is_for_programs else Decision.NO_USERS

    @property
    def challenge(self) -> str:
        """The value of `WWW-Authenticate` for an answer without credentials."""
        return 'Basic realm="zkgroups", charset="UTF-8"' if self.users else 'Bearer realm="zkgroups"'

    def _has_name(self, host: str) -> bool:
        name = host.rsplit(":", 1)[0] if not host.endswith("]") else host
        name = name.strip("[]").lower().rstrip(".")
        return name == "localhost" or name in self.host_names or _is_address(name)

    def _is_user(self, authorization: str) -> bool:
        scheme, _, value = authorization.partition(" ")
        if scheme.lower() != "basic":
            return False
        try:
            name, colon, password = base64.b64decode(value.strip(), validate=True).decode().partition(":")
        except (binascii.Error, UnicodeDecodeError):
            return False
        # The same work for every name, so that the time tells nothing.
        known = self.users.get(name)
        is_right = hmac.compare_digest((known or "").encode(), password.encode())
        return bool(colon) and known is not None and is_right

    def _has_token(self, authorization: str) -> bool:
        scheme, _, value = authorization.partition(" ")
        if scheme.lower() != "bearer" or self.token is None:
            return False
        return hmac.compare_digest(self.token.encode(), value.strip().encode())


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def is_loopback(host: str) -> bool:
    """Return whether an address to listen on can only be reached from this machine.

    >>> [is_loopback(host) for host in ("127.0.0.1", "::1", "localhost", "0.0.0.0", "zk1")]
    [True, True, True, False, False]
    """
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
