"""The answers of Burrow's API, for programs that poll it."""

from __future__ import annotations

import re
from typing import Any, Final
from urllib.parse import unquote

from starlette.requests import Request
from starlette.responses import Response

from ...core.health import burrow
from ...core.health.burrow import BurrowStatus
from ..picture.values import GroupPicture, PartitionPicture
from .api import answer
from .feed import Feed
from .requests import raw_path

_PATH: Final = re.compile("/v3/kafka/(?P<cluster>.+)/consumer(?:/(?P<group>[^/]+)/(?:status|lag))?")
"""The name of a cluster may contain slashes, encoded or not."""


class Burrow:
    """The endpoints below `/v3/kafka`."""

    def __init__(self, feed: Feed) -> None:
        self._feed = feed

    async def clusters(self, request: Request) -> Response:
        """Return the name of the cluster."""
        return _done(request, "cluster list returned", clusters=[self._feed.picture.cluster])

    async def consumers(self, request: Request) -> Response:
        """Return the names of all groups."""
        if _part(request, "cluster") != self._feed.picture.cluster:
            return _missing(request)
        return _done(request, "consumer list returned", consumers=list(self._feed.picture.groups))

    async def status(self, request: Request) -> Response:
        """Return the status of a group, with the partitions that are not OK."""
        return self._about_group(request, "consumer status returned", only_bad=True)

    async def lag(self, request: Request) -> Response:
        """Return the status of a group, with all partitions."""
        return self._about_group(request, "consumer status returned", only_bad=False)

    def _about_group(self, request: Request, message: str, *, only_bad: bool) -> Response:
        picture = self._feed.picture
        group = picture.groups.get(_part(request, "group"))
        if group is None or _part(request, "cluster") != picture.cluster:
            return _missing(request)
        return _done(request, message, status=group_status(picture.cluster, group, only_bad=only_bad))


def _part(request: Request, name: str) -> str:
    found = _PATH.fullmatch(raw_path(request))
    return unquote(found[name] or "") if found else ""


def group_status(cluster: str, group: GroupPicture, *, only_bad: bool) -> dict[str, Any]:
    """Return the status of a group in Burrow's form."""
    partitions = [_partition(group, each) for each in group.partitions]
    most = max(partitions, key=lambda each: each["current_lag"], default=None)
    shown = [each for each in partitions if each["status"] != BurrowStatus.OK.value] if only_bad else partitions
    return {
        "cluster": cluster,
        "group": group.name,
        "status": burrow.of_group(group.verdict).value,
        "complete": 1.0,
        "partitions": shown,
        "partition_count": len(partitions),
        "maxlag": most,
        "totallag": group.lag or 0,
    }


def _partition(group: GroupPicture, each: PartitionPicture) -> dict[str, Any]:
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
        "status": burrow.of_partition(each.verdict).value,
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
