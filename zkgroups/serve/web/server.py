"""uvicorn with the application: started and stopped from outside, on a socket that is open already."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Final

import uvicorn

from .app import App

GRACE: Final = 2
"""In seconds: how long answers in progress may take when the server stops."""
BACKLOG: Final = 512


class _Server(uvicorn.Server):
    """uvicorn, which leaves signals to the command."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Install no handlers."""
        yield


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
        http="h11",
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
