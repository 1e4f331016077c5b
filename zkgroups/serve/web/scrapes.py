"""The endpoint of metrics. Scrapes get finished bytes, so many scrapers cost little, and a slow one delays nobody.

The bytes are made after each picture, in the formats that were asked for lately. Until they are finished, scrapes get
those of the picture before. Only the first scrape of a format waits.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from ..metrics import own
from ..metrics.exposition import Format
from ..metrics.render import render
from ..picture.values import Picture
from ..settings import MetricSettings
from .feed import Feed
from .requests import now_ms

CHUNK: Final = 256 * 1024
"""The bytes to send at once: a slow scraper holds no more than this in memory."""
UNUSED_AFTER: Final = 10
"""A format that was not asked for during so many pictures is not made any more."""
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
