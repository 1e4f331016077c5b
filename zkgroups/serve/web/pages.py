"""Pages, and the stream of events that keeps a page up to date.

A stream sends the changing part of the page again, when there is a new picture. All streams of one page share the work:
it is made once for each picture.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Final

from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response, StreamingResponse

from ..page.views import View, page, view
from ..picture.values import Picture
from .feed import Feed
from .requests import now_ms, raw_path

STILL_THERE: Final = 10.0
"""In seconds: how often a stream without news sends a sign of life. Proxies close silent connections."""
SHORTEST_PAUSE: Final = 0.5
"""In seconds: the time between two events of a stream, at least."""
_STREAM: Final = "text/event-stream"
MOST_STREAMS: Final = 1000
MOST_PAGES: Final = 512
"""The number of different pages to keep for one picture."""


class Pages:
    """The endpoints of pages and event streams."""

    def __init__(self, feed: Feed) -> None:
        self._feed = feed
        self._streams = 0
        self._number = -1
        self._made: dict[str, asyncio.Task[View]] = {}

    @property
    def streams(self) -> int:
        """The number of open streams."""
        return self._streams

    async def page(self, request: Request) -> Response:
        """Return a page."""
        found = await self._view(self._feed.picture, _address(request))
        return HTMLResponse(page(found), 200 if found.exists else 404)

    async def events(self, request: Request) -> Response:
        """Return a stream of events for the page in the parameter `view`."""
        if self._streams >= MOST_STREAMS:
            return PlainTextResponse("Too many open pages.\n", 503, {"Retry-After": "30"})
        if request.method == "HEAD":
            return Response(media_type=_STREAM)
        address = request.query_params.get("view", "/")[:2000]
        return StreamingResponse(self._stream(address), media_type=_STREAM)

    async def _stream(self, address: str) -> AsyncIterator[str]:
        self._streams += 1
        try:
            yield "retry: 1000\n\n"
            number = -1
            while not self._feed.is_closed:
                picture = await self._feed.newer(number, STILL_THERE)
                if picture.number > number:
                    number = picture.number
                    yield await self._event(picture, address)
                    await asyncio.sleep(SHORTEST_PAUSE)
                else:
                    yield f"event: alive\ndata: {now_ms()}\n\n"
        finally:
            self._streams -= 1

    async def _event(self, picture: Picture, address: str) -> str:
        found = await self._view(picture, address)
        data = json.dumps({"title": found.title, "html": found.html})
        return f"id: {picture.number}\nevent: view\ndata: {data}\n\n"

    async def _view(self, picture: Picture, address: str) -> View:
        """Make a view in another thread, once for each picture."""
        if picture.number != self._number or len(self._made) >= MOST_PAGES:
            self._number, self._made = picture.number, {}
        made = self._made.get(address)
        if made is None:
            work = asyncio.to_thread(view, picture, address, now_ms())
            made = self._made[address] = asyncio.ensure_future(work)
        return await asyncio.shield(made)


def _address(request: Request) -> str:
    """Return the path as it was sent, and the parameters."""
    path = raw_path(request)
    query = request.scope.get("query_string", b"").decode("ascii", "replace")
    return f"{path}?{query}" if query else path
