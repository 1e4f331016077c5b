"""The application: all routes, the files of the page, and the guard around them."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager, suppress
from importlib.resources import files
from typing import Final

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from ..settings import MetricSettings
from ..sweeper import Publisher
from .access import Access, Guard
from .api import Api, Burrow
from .pages import Feed, Pages, Scrapes

STATIC: Final = {
    "page.js": "text/javascript; charset=utf-8",
    "morph.js": "text/javascript; charset=utf-8",
    "keys.js": "text/javascript; charset=utf-8",
    "stream.js": "text/javascript; charset=utf-8",
    "page.css": "text/css; charset=utf-8",
    "icon.svg": "image/svg+xml",
}
"""The files of the page. No other file is handed out."""


THREADS: Final = 2
"""One for the metrics, which take long, and one for pages."""


class App:
    """The application, and the feed that ends its streams."""

    def __init__(self, publisher: Publisher, metrics: MetricSettings, access: Access) -> None:
        self.feed = Feed(publisher)
        self.pages = Pages(self.feed)
        self._scrapes = Scrapes(self.feed, metrics)
        self._api = Api(self.feed)
        self._burrow = Burrow(self.feed)
        starlette = Starlette(routes=self._routes(), lifespan=self._lifespan)
        self.asgi: ASGIApp = Guard(starlette, access)

    def _routes(self) -> list[Route]:
        pages, api, burrow = self.pages, self._api, self._burrow
        return [
            Route("/", pages.page),
            Route("/topics", pages.page),
            Route("/topics/{topic:path}", pages.page),
            Route("/groups/{group:path}", pages.page),
            Route("/events", pages.events),
            Route("/metrics", self._scrapes.metrics),
            Route("/api/v1/openapi.json", api.openapi),
            Route("/api/v1/picture", api.picture),
            Route("/api/v1/groups", api.groups),
            Route("/api/v1/groups/{group:path}", api.group),
            Route("/api/v1/topics", api.topics),
            Route("/api/v1/topics/{topic:path}", api.topic),
            Route("/v3/kafka", burrow.clusters),
            Route("/v3/kafka/{rest:path}", burrow.consumer),
            Route("/healthz", api.healthz),
            Route("/readyz", api.readyz),
            Route("/static/{name}", _static),
        ]

    @asynccontextmanager
    async def _lifespan(self, _app: Starlette) -> AsyncIterator[None]:
        self.feed.open()
        # Each thread keeps the memory that it has once used.
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(THREADS, "zkgroups-serve"))
        keeping_up = asyncio.ensure_future(self._scrapes.keep_up())
        try:
            yield
        finally:
            self.feed.close()
            keeping_up.cancel()
            with suppress(asyncio.CancelledError):
                await keeping_up


async def _static(request: Request) -> Response:
    """Return a file of the page. Its address has the version, so browsers may keep it."""
    name = request.path_params["name"]
    if name not in STATIC:
        return PlainTextResponse("Not found.\n", 404)
    body = (files("zkgroups.serve.page") / "static" / name).read_bytes()
    return Response(body, headers={"Cache-Control": "no-cache"}, media_type=STATIC[name])


# uvicorn with the application: started and stopped from outside, on a socket that is open already.


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
