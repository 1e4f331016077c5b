"""The API in JSON: `openapi.json` beside this file documents it. And the answers for probes."""

from __future__ import annotations

import json
from importlib.resources import files
from typing import Any
from urllib.parse import unquote

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from ...core import health
from ...core.health import BurrowStatus
from ..page.overview import Query, paged
from ..picture.values import GroupPicture, PartitionPicture
from .access import now_ms, raw_path
from .json_values import group_json, picture_json, summary_json, topic_json
from .pages import Feed

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
        query, picture = Query.parse({"all": "1", **request.query_params}), self._feed.picture
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
        """Return the names of all topics."""
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


# The answers of Burrow's API, for programs that poll it.


class Burrow:
    """The endpoints below `/v3/kafka`."""

    def __init__(self, feed: Feed) -> None:
        self._feed = feed

    async def clusters(self, request: Request) -> Response:
        """Return the name of the cluster."""
        return _done(request, "cluster list returned", clusters=[self._feed.picture.cluster])

    async def consumer(self, request: Request) -> Response:
        """Return the names of all groups, or the status of one. `lag` has all partitions, `status` those not OK.

        The path ends with CLUSTER/consumer or CLUSTER/consumer/GROUP/lag. The name of a cluster may contain slashes.
        """
        picture = self._feed.picture
        parts = raw_path(request).removeprefix("/v3/kafka/").split("/")
        if parts[-1] == "consumer" and unquote("/".join(parts[:-1])) == picture.cluster:
            return _done(request, "consumer list returned", consumers=list(picture.groups))
        group = picture.groups.get(unquote(parts[-2])) if parts[-3:-2] == ["consumer"] else None
        is_known = group is not None and unquote("/".join(parts[:-3])) == picture.cluster
        if group is None or not is_known or parts[-1] not in ("status", "lag"):
            return _missing(request)
        status = group_status(picture.cluster, group, only_bad=parts[-1] == "status")
        return _done(request, "consumer status returned", status=status)


def group_status(cluster: str, group: GroupPicture, *, only_bad: bool) -> dict[str, Any]:
    """Return the status of a group in Burrow's form."""
    partitions = [_burrow_partition(group, each) for each in group.partitions]
    most = max(partitions, key=lambda each: each["current_lag"], default=None)
    shown = [each for each in partitions if each["status"] != BurrowStatus.OK.value] if only_bad else partitions
    return {
        "cluster": cluster,
        "group": group.name,
        "status": health.of_group(group.verdict).value,
        "complete": 1.0,
        "partitions": shown,
        "partition_count": len(partitions),
        "maxlag": most,
        "totallag": group.lag or 0,
    }


def _burrow_partition(group: GroupPicture, each: PartitionPicture) -> dict[str, Any]:
    member = next((member for member in group.members if member.id == each.owner), None)
    commit = None
    if each.offset is not None:
        commit = {
            "offset": each.offset,
            "timestamp": each.committed_ms,
            "observedTimestamp": each.committed_ms,
            "lag": each.lag,
        }
    return {
        "topic": each.at.topic,
        "partition": each.at.partition,
        "owner": (member.host if member else None) or each.owner or "",
        "client_id": (member.client_id if member else None) or "",
        "status": health.of_partition(each.verdict).value,
        "start": commit,
        "end": commit,
        "current_lag": each.lag or 0,
        "complete": 1.0,
    }


def _done(request: Request, message: str, **more: Any) -> Response:
    return answer({"error": False, "message": message, **more, "request": _request(request)})


def _missing(request: Request) -> Response:
    return answer({"error": True, "message": "cluster or consumer not found", "request": _request(request)}, 404)


def _request(request: Request) -> dict[str, str]:
    return {"url": request.url.path, "host": request.headers.get("host", "")}
