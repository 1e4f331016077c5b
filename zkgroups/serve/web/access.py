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
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

# What endpoints need to know about a request, and about now.


def now_ms() -> int:
    """Return the time, for ages."""
    return time.time_ns() // 1_000_000


def raw_path(request: Request) -> str:
    """Return the path as it was sent, still encoded: a name in it may contain encoded slashes."""
    return str(request.scope.get("raw_path", b"").decode("ascii", "replace").partition("?")[0])


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


# The first and the last word on every request: access, methods, and the headers that protect a browser.


LONGEST_PATH: Final = 8192
"""In bytes. The work for a path grows with its length."""
_HEADERS: Final = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}


class Guard:
    """Wraps the application. No request with another method than GET or HEAD gets through: nothing can be written."""

    def __init__(self, app: ASGIApp, access: Access) -> None:
        self._app = app
        self._access = access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self._app(scope, receive, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers[name] = value
                headers.setdefault("Cache-Control", "no-store")
            await send(message)

        refusal = self._refusal(scope)
        await (refusal or self._app)(scope, receive, send_with_headers)

    def _refusal(self, scope: Scope) -> PlainTextResponse | None:
        headers = Headers(scope=scope)
        if "content-length" in headers and "transfer-encoding" in headers:
            # A proxy may see another end of this request, and so another next request (RFC 9112, 6.1).
            return PlainTextResponse("Content-Length and Transfer-Encoding.\n", 400, {"Connection": "close"})
        if len(scope["raw_path"]) > LONGEST_PATH:
            return PlainTextResponse("The path is too long.\n", 414)
        if scope["method"] not in ("GET", "HEAD"):
            return PlainTextResponse("Only GET and HEAD.\n", 405, {"Allow": "GET, HEAD"})
        decision = self._access.decide(scope["path"], headers.get("host", ""), headers.get("authorization", ""))
        if decision is Decision.ALLOWED:
            return None
        more = {"WWW-Authenticate": self._access.challenge} if decision is Decision.NO_CREDENTIALS else {}
        return PlainTextResponse(f"{decision.text}\n", decision.status, more)
