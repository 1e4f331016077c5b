"""Pages, and the stream of events that keeps a page up to date.

A stream sends the changing part of the page again, when there is a new picture. All streams of one page share the work:
it is made once for each picture.
"""

from __future__ import annotations

import asyncio
import json
import zlib
from collections.abc import AsyncIterator, Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response, StreamingResponse

from ..metrics import own
from ..metrics.exposition import Format
from ..metrics.render import render
from ..page.views import View, page, view
from ..picture.values import Picture
from ..settings import MetricSettings
from ..sweeper import Publisher
from .access import now_ms, raw_path

# New pictures for coroutines: the sweeps run in a thread, and the server in an event loop.


class Feed:
    """The pictures of a publisher, for one event loop."""

    def __init__(self, publisher: Publisher) -> None:
        self._publisher = publisher
        self._loop: asyncio.AbstractEventLoop | None = None
        self._changed = asyncio.Event()
        self.is_closed = False

    @property
    def picture(self) -> Picture:
        """The last picture."""
        return self._publisher.picture

    def open(self) -> None:
        """Begin to listen, in the event loop."""
        self._loop = asyncio.get_running_loop()
        self._publisher.add(self._notify)

    def close(self) -> None:
        """End all waiting."""
        if not self.is_closed:
            self.is_closed = True
            self._publisher.remove(self._notify)
            self._wake()

    def _notify(self) -> None:
        """Called in the thread of the sweeps."""
        if self._loop is not None:
            with suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(self._wake)

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def newer(self, number: int, timeout: float) -> Picture:
        """Wait for a picture with a higher number, and return the last picture. Return it, too, after the timeout."""
        changed = self._changed
        if self.picture.number <= number and not self.is_closed:
            with suppress(TimeoutError):
                await asyncio.wait_for(changed.wait(), timeout)
        return self.picture


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


# The endpoint of metrics. Scrapes get finished bytes, so many scrapers cost little, and a slow one delays nobody.
#
# The bytes are made after each picture, in the formats that were asked for lately. Until they are finished, scrapes
# get those of the picture before. Only the first scrape of a format waits.


CHUNK: Final = 256 * 1024
"""The bytes to send at once: a slow scraper holds no more than this in memory."""
UNUSED_AFTER: Final = 10
"""After this many pictures without a request for a format, it is no longer rendered."""
_GZIP: Final = 31
"""For zlib: the format of gzip, with the largest window."""
FAST: Final = 1
"""The level of compression: the best one takes ten times as long, and saves a third."""


class _Kind(NamedTuple):
    format: Format
    is_compressed: bool


@dataclass(slots=True)
class _Finished:
    """The metrics of a picture. It does not keep the picture, which would stay in memory with the two after it."""

    number: int
    read_ms: int | None
    parts: tuple[bytes, ...]
    compressor: Any
    """The state of the compression after these parts; None without compression."""
    asked: int = 0
    """The number of the last picture during which it was asked for."""

    def end(self, text: str) -> bytes:
        """Return the end of an answer to one scrape."""
        if self.compressor is None:
            return text.encode()
        continued = self.compressor.copy()
        return bytes(continued.compress(text.encode()) + continued.flush())


class Scrapes:
    """The metrics as bytes, by format."""

    def __init__(self, feed: Feed, settings: MetricSettings) -> None:
        self._feed = feed
        self._settings = settings
        self._finished: dict[_Kind, _Finished] = {}
        self._lock = asyncio.Lock()

    async def metrics(self, request: Request) -> Response:
        """Return all metrics."""
        compressed = "gzip" in request.headers.get("accept-encoding", "")
        kind = _Kind(Format.accepted(request.headers.get("accept", "")), compressed)
        found = self._finished.get(kind)
        if found is None:
            async with self._lock:
                found = self._finished.get(kind) or await self._make(kind, self._feed.picture)
        found.asked = max(found.asked, self._feed.picture.number)
        end = found.end(own.of_scrape(found.read_ms, kind.format, now_ms()))
        length = sum(map(len, found.parts)) + len(end)
        headers = {"Content-Length": str(length), "Content-Type": kind.format.value}
        if compressed:
            headers["Content-Encoding"] = "gzip"
        return StreamingResponse(_chunks((*found.parts, end)), headers={**headers, "Vary": "Accept, Accept-Encoding"})

    async def keep_up(self) -> None:
        """Make the formats in use again after each picture, until the feed is closed."""
        number = self._feed.picture.number
        while not self._feed.is_closed:
            picture = await self._feed.newer(number, 60.0)
            number = picture.number
            for kind, known in list(self._finished.items()):
                if known.asked + UNUSED_AFTER < number:
                    del self._finished[kind]
                elif known.number < number:
                    async with self._lock:
                        await self._make(kind, picture, known.asked)

    async def _make(self, kind: _Kind, picture: Picture, asked: int = 0) -> _Finished:
        found = await asyncio.to_thread(_made, picture, self._settings, kind)
        found.asked = asked
        self._finished[kind] = found
        return found


def _made(picture: Picture, settings: MetricSettings, kind: _Kind) -> _Finished:
    """Write the metrics, and compress them up to the point where each scrape adds its end."""
    parts = render(picture, settings, kind.format).parts
    if not kind.is_compressed:
        return _Finished(picture.number, picture.zookeeper.read_ms, tuple(parts), None)
    compressor = zlib.compressobj(FAST, wbits=_GZIP)
    compressed = (*(compressor.compress(part) for part in parts), compressor.flush(zlib.Z_SYNC_FLUSH))
    return _Finished(picture.number, picture.zookeeper.read_ms, compressed, compressor)


async def _chunks(parts: Iterable[bytes]) -> AsyncIterator[bytes]:
    for part in parts:
        for start in range(0, len(part), CHUNK):
            yield part[start : start + CHUNK]
