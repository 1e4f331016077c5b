"""The application: all routes, the files of the page, and the guard around them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from importlib.resources import files
from typing import Final

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from ..settings import MetricSettings
from ..sweep.publisher import Publisher
from .access import Access
from .api import Api
from .burrow import Burrow
from .feed import Feed
from .guard import Guard
from .pages import Pages
from .scrapes import Scrapes

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
        consumers = "/v3/kafka/{cluster:path}/consumer"
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
            Route(consumers, burrow.consumers),
            Route(consumers + "/{group:path}/status", burrow.status),
            Route(consumers + "/{group:path}/lag", burrow.lag),
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
