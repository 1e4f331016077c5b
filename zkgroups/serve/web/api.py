"""The API in JSON: `openapi.json` beside this file documents it. And the answers for probes."""

from __future__ import annotations

import json
from importlib.resources import files
from typing import Any
from urllib.parse import unquote

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from ..page.queries import Query, paged
from .feed import Feed
from .json_values import group_json, picture_json, summary_json, topic_json
from .requests import now_ms, raw_path

MOST_PER_PAGE = 1000


class Api:
    """The endpoints below `/api/v1`, and those of probes."""

    def __init__(self, feed: Feed) -> None:
        self._feed = feed

    async def openapi(self, _request: Request) -> Response:
        """Return the description of the API."""
        return Response((files(__package__) / "openapi.json").read_bytes(), media_type="application/json")

    async def picture(self, _request: Request) -> Response:
        """Return the state of the server."""
        return answer(picture_json(self._feed.picture, now_ms()))

    async def groups(self, request: Request) -> Response:
        """Return a page of the groups that match, in order."""
        query, picture = Query.parse(request.query_params), self._feed.picture
        per_page = _number(request.query_params.get("per_page", ""), 100, MOST_PER_PAGE)
        chosen = query.chosen(query.found(picture))
        shown, page, pages = paged(chosen, query.page, per_page)
        return answer(
            {"total": len(chosen), "page": page, "pages": pages, "groups": [summary_json(group) for group in shown]}
        )

    async def group(self, request: Request) -> Response:
        """Return one group."""
        found = self._feed.picture.groups.get(last_name(request))
        return missing("group") if found is None else answer(group_json(found))

    async def topics(self, _request: Request) -> Response:
        """Return the names of all topics that groups read."""
        return answer({"topics": list(self._feed.picture.topics)})

    async def topic(self, request: Request) -> Response:
        """Return one topic."""
        name = last_name(request)
        found = self._feed.picture.topics.get(name)
        return missing("topic") if found is None else answer(topic_json(name, found))

    async def healthz(self, _request: Request) -> Response:
        """Answer that the server works, whatever its sources do. A restart would not help them."""
        return PlainTextResponse("ok\n")

    async def readyz(self, _request: Request) -> Response:
        """Answer whether there is a picture to hand out. No addresses: this needs no login."""
        picture = self._feed.picture
        if not picture.is_ready:
            reason = "ZooKeeper does not answer" if picture.zookeeper.problem else "the first sweep has not ended"
            return PlainTextResponse(f"not ready: {reason}\n", 503)
        age = picture.age(now_ms()) or 0.0
        return PlainTextResponse(f"ready, read {age:.0f} s ago\n")


def answer(value: Any, status: int = 200) -> Response:
    """Return a value as JSON."""
    return Response(json.dumps(value, separators=(",", ":")), status, media_type="application/json")


def missing(kind: str) -> Response:
    """Return the answer for an object that does not exist."""
    return answer({"error": f"there is no such {kind}"}, 404)


def last_name(request: Request) -> str:
    """Return the name at the end of the path."""
    return unquote(raw_path(request).rpartition("/")[2])


def _number(text: str, default: int, most: int) -> int:
    return min(max(1, int(text)), most) if text.isascii() and text.isdigit() and len(text) < 9 else default
