"""The endpoint of metrics. Scrapes get finished bytes, so many scrapers cost little, and a slow one delays nobody.

The bytes are made after each picture, in the formats that were asked for lately. Until they are finished, scrapes get
those of the picture before. Only the first scrape of a format waits.
"""

from __future__ import annotations

import asyncio
import gzip
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Final, NamedTuple

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from ..metrics import own
from ..metrics.exposition import Format
from ..metrics.render import render
from ..picture.values import Picture
from ..settings import MetricSettings
from .feed import Feed
from .pages import now_ms

CHUNK: Final = 256 * 1024
"""The bytes to send at once: a slow scraper holds no more than this in memory."""
UNUSED_AFTER: Final = 10
"""A format that was not asked for during so many pictures is not made any more."""
FAST: Final = 1
"""The level of compression: the best one takes ten times as long, and saves a third."""


class _Kind(NamedTuple):
    format: Format
    is_compressed: bool


@dataclass(slots=True)
class _Finished:
    picture: Picture
    body: bytes
    asked: int
    """The number of the last picture during which it was asked for."""


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
        end = own.of_scrape(found.picture, kind.format, now_ms()).encode()
        if compressed:
            end = gzip.compress(end, FAST)
        headers = {"Content-Length": str(len(found.body) + len(end)), "Content-Type": kind.format.value}
        if compressed:
            headers["Content-Encoding"] = "gzip"
        return StreamingResponse(_chunks(found.body, end), headers={**headers, "Vary": "Accept, Accept-Encoding"})

    async def keep_up(self) -> None:
        """Make the formats in use again after each picture, until the feed is closed."""
        number = self._feed.picture.number
        while not self._feed.is_closed:
            picture = await self._feed.newer(number, 60.0)
            number = picture.number
            for kind, known in list(self._finished.items()):
                if known.asked + UNUSED_AFTER < number:
                    del self._finished[kind]
                elif known.picture.number < number:
                    async with self._lock:
                        await self._make(kind, picture, known.asked)

    async def _make(self, kind: _Kind, picture: Picture, asked: int = 0) -> _Finished:
        body = await asyncio.to_thread(_body, picture, self._settings, kind)
        found = self._finished[kind] = _Finished(picture, body, asked)
        return found


def _body(picture: Picture, settings: MetricSettings, kind: _Kind) -> bytes:
    body = render(picture, settings, kind.format).body
    return gzip.compress(body, FAST) if kind.is_compressed else body


async def _chunks(body: bytes, end: bytes) -> AsyncIterator[bytes]:
    for start in range(0, len(body), CHUNK):
        yield body[start : start + CHUNK]
    yield end
