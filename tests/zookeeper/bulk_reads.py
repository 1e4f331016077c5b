"""Trees that are read in bulk, and clients that count their requests."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from zkgroups import CommittedOffset, ForbiddenNode
from zkgroups.zookeeper.requests.node import Node

from .test_large import seed

ODD = ["a b", " ", "a:b", "über", "日本語", "100%", "%2F", "'\"\\", "...", "-1", "+", "\u0301", "x" * 3_000]
"""Names that a server accepts, although other software might not."""


def plant(client: Any, paths: Iterable[str], data: bytes = b"7") -> list[str]:
    """Create nodes and their parents."""
    paths = list(paths)
    for above in sorted({path.rpartition("/")[0] for path in paths} - {""}):
        client.ensure_path(above)
    each(client.create_async(path, data) for path in paths)
    return paths


def each(answers: Iterable[Any]) -> list[Any]:
    """Return the answers to requests that are in flight together."""
    return [answer.get(timeout=60) for answer in list(answers)]


def plant_offsets(client: Any, groups: int, topics: int, partitions: int) -> list[str]:
    """Return offsets as `group/topic/partition`, in the order of reading."""
    names = [f"g{g:04}/t{t:02}/{p}" for g in range(groups) for t in range(topics) for p in range(partitions)]
    directories = [f"/consumers/g{g:04}" for g in range(groups)]
    client.ensure_path("/consumers")
    seed(client, directories)
    seed(client, [f"{directory}/offsets" for directory in directories])
    seed(client, [f"{directory}/offsets/t{t:02}" for directory in directories for t in range(topics)])
    seed(client, ["/consumers/{}/offsets/{}".format(*name.split("/", 1)) for name in names])
    return names


def shown(found: Iterable[object]) -> list[str]:
    """Offsets in the format of `plant_offsets`."""
    return [f"{o.group}/{o.at}" if isinstance(o, CommittedOffset) else repr(o) for o in found]


def data(found: Iterable[Node | ForbiddenNode | None]) -> list[bytes | None]:
    return [node.data if isinstance(node, Node) else None for node in found]


def run_together(calls: Sequence[Callable[[], object]], trouble: list[object]) -> None:
    def run(call: Callable[[], object]) -> None:
        try:
            call()
        except Exception as error:
            trouble.append(error)

    threads = [threading.Thread(target=run, args=(call,)) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
