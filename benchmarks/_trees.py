"""Trees to measure on: groups with topics with partitions, each with an offset, made quickly."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Any

from kazoo.client import KazooClient

UNDER_WAY = 20


def seed(hosts: str, *, groups: int, topics: int = 5, partitions: int = 20) -> int:
    """Make that many groups of legacy consumers; the number of offsets is returned."""
    client = KazooClient(hosts)
    client.start()
    client.ensure_path("/consumers")
    commit_all(_group(client, group, topics, partitions) for group in range(groups))
    client.stop()
    client.close()
    return groups * topics * partitions


def commit_all(transactions: Iterable[Any]) -> None:
    """Some of them under way at once."""
    waiting: deque[Any] = deque()
    for transaction in transactions:
        waiting.append(transaction.commit_async())
        while len(waiting) > UNDER_WAY:
            waiting.popleft().get()
    for answer in waiting:
        answer.get()


def _group(client: Any, number: int, topics: int, partitions: int) -> Any:
    """One transaction for each group; offsets of one to eleven digits, as they are found."""
    made = client.transaction()
    root = f"/consumers/service-{number:05d}"
    for directory in (root, f"{root}/ids", f"{root}/owners", f"{root}/offsets"):
        made.create(directory)
    for topic in range(topics):
        directory = f"{root}/offsets/events.{(number * 7 + topic) % 997:03d}"
        made.create(directory)
        for partition in range(partitions):
            offset = (number * 1_000_003 + topic * 10_007 + partition * 101) ** (1 + partition % 2) % 10**11
            made.create(f"{directory}/{partition}", b"%d" % offset)
    return made
