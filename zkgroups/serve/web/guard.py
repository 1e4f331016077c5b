"""The first and the last word on every request: access, methods, and the headers that protect a browser."""

from __future__ import annotations

from typing import Final

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .access import Access, Decision

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
        if scope["method"] not in ("GET", "HEAD"):
            return PlainTextResponse("Only GET and HEAD.\n", 405, {"Allow": "GET, HEAD"})
        headers = Headers(scope=scope)
        decision = self._access.decide(scope["path"], headers.get("host", ""), headers.get("authorization", ""))
        if decision is Decision.ALLOWED:
            return None
        more = {"WWW-Authenticate": self._access.challenge} if decision is Decision.NO_CREDENTIALS else {}
        return PlainTextResponse(f"{decision.text}\n", decision.status, more)
