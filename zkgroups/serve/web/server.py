"""uvicorn with the application: started and stopped from outside, on a socket that is open already."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Final

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from .app import App

GRACE: Final = 2
"""In seconds: how long answers in progress may take when the server stops."""
BACKLOG: Final = 512
REQUEST_WITHIN: float = 10.0
"""In seconds: how long a client may take to send a request. A connection without a whole request is then closed."""


class _Server(uvicorn.Server):
    """uvicorn, which leaves signals to the command."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Install no handlers."""
        yield


class _Connection(H11Protocol):
    """A connection that ends if the client does not send a request in time. uvicorn waits for ever."""

    _timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Wait for the first request."""
        super().connection_made(transport)
        self._wait_for_request()

    def on_response_complete(self) -> None:
        """Wait for the next request."""
        self._wait_for_request()
        super().on_response_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        """Do not wait any more."""
        self._stop_waiting()
        super().connection_lost(exc)

    def _wait_for_request(self) -> None:
        self._stop_waiting()
        self._timer = self.loop.call_later(REQUEST_WITHIN, self._close_without_request)

    def _stop_waiting(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _close_without_request(self) -> None:
        if self.cycle is None or self.cycle.response_complete:
            self.transport.close()


def listening_socket(host: str, port: int) -> socket.socket:
    """Return a socket that listens on this address. Raises OSError if that is not possible."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    found = socket.socket(family, socket.SOCK_STREAM)
    try:
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind((host, port))
        found.listen(BACKLOG)
    except OSError:
        found.close()
        raise
    return found


@asynccontextmanager
async def served(app: App, listening: socket.socket, tls: ssl.SSLContext | None = None) -> AsyncIterator[None]:
    """Serve the application until the block ends. Then end all streams, and close the socket."""
    config = uvicorn.Config(
        app.asgi,
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=GRACE,
        http=_Connection,
        ws="none",
        lifespan="on",
    )
    config.load()
    config.ssl = tls
    server = _Server(config)
    running = asyncio.ensure_future(server.serve(sockets=[listening]))
    while not server.started and not running.done():
        await asyncio.sleep(0.01)
    try:
        yield
    finally:
        app.feed.close()
        server.should_exit = True
        await running
