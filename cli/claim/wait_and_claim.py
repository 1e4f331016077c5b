"""Claim the partitions of `zkgroups claim`: wait until they are free, and refuse topics of live members."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from zkgroups import Claims, Consumergroup, Instance, Owner, Registration, Registry, TopicPartition, UnreadableNode
from zkgroups.core.znodes.subscribed_topics import subscribed_topics
from zkgroups.deadline import Deadline
from zkgroups.exceptions import ClaimedByOtherError, ClaimTimeout, GroupInUseError, GroupNotFoundError

WAITING_INTERVAL: Final = 0.5
"""The interval between two checks for members while waiting, in seconds."""


@dataclass(frozen=True, slots=True)
class ClaimRequest:
    """The partitions to claim, and the options."""

    group: str
    partitions: Sequence[TopicPartition]
    id: str | None
    wait: float | None
    force: bool


@contextlib.contextmanager
def claimed(registry: Registry, request: ClaimRequest) -> Iterator[tuple[Instance, Claims]]:
    """Claim the partitions. At the end, release them and deregister the instance."""
    group = registry.group(request.group)
    if not group.exists():
        raise GroupNotFoundError(request.group)
    deadline = Deadline(request.wait or 0.0)
    _wait_until_possible(group, request, deadline)
    with group.instance(request.id) as instance:
        instance.register(timeout=deadline.remaining)
        yield instance, _claim(group, instance, request, deadline)


def _claim(group: Consumergroup, instance: Instance, request: ClaimRequest, deadline: Deadline) -> Claims:
    """Retry until the partitions are claimed or the time is up. Members may register between two attempts.

    The owner nodes contain `<id>-0`, as those of Scala members do. Kafka's own tool cuts off the part after the last
    dash, and fails for the whole group if an owner has no dash.
    """
    streams = dict.fromkeys(request.partitions, 0)
    while True:
        _wait_until_possible(group, request, deadline)
        try:
            wait = min(deadline.remaining, WAITING_INTERVAL)
            return instance.claim_many(request.partitions, timeout=wait, streams=streams)
        except ClaimTimeout as taken:
            if deadline.passed:
                raise _still_owned(taken.at, taken.owner, request) from None


def _wait_until_possible(group: Consumergroup, request: ClaimRequest, deadline: Deadline) -> None:
    """Wait until the partitions have no owner. Then raise GroupInUseError if live members subscribe to the topic.

    Owners are reported first, also if their nodes cannot be read.
    """
    while True:
        members = [] if request.force else _subscribers(group, request.partitions[0].topic)
        held = _held(group, request.partitions)
        if held is None and members:
            raise GroupInUseError(group.name, members)
        if held is None:
            return
        if deadline.passed:
            raise _still_owned(*held, request)
        time.sleep(min(deadline.remaining, WAITING_INTERVAL))


def _still_owned(at: TopicPartition, owner: Owner | UnreadableNode | None, request: ClaimRequest) -> Exception:
    if request.wait is None and owner is not None:
        return ClaimedByOtherError(at, owner)
    return ClaimTimeout(at, owner, request.wait or 0.0)


def _held(
    group: Consumergroup, partitions: Sequence[TopicPartition]
) -> tuple[TopicPartition, Owner | UnreadableNode] | None:
    wanted = {group.paths.owner(at): at for at in partitions}
    for owner in group.owners():
        at = owner.at if isinstance(owner, Owner) else wanted.get(owner.path)
        if at is not None and at in partitions:
            return at, owner
    return None


def _subscribers(group: Consumergroup, topic: str) -> list[str]:
    """Return the live members that subscribe to the topic, or that have an unreadable registration."""
    return [
        instance.id
        for instance in group.living()
        if not isinstance(instance.registration, Registration)
        or topic in subscribed_topics(instance.registration, [topic])
    ]
