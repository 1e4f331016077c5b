"""Following: while consumers still work on the one side, what they commit is carried to the other, again and again.

So that moving takes as long as stopping the consumers there and starting them here, and not as long as the copy. A pass
reads in bulk what the side that is ahead has, and writes what has changed, forward only. Where nobody works on that
side any more the group is cut over: looked at again, written for the last time, and compared.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import Final

from ..core.migration.follow_rules import FollowedGroup, FollowPass
from ..core.migration.plan_rows import PlanRow
from ..core.migration.rules import Rule
from ..exceptions import InvalidOptionError, UnavailableError
from ..kafka import Brokers
from ..zookeeper.registry import Registry
from .follow_to_kafka import ToKafka
from .follow_to_zookeeper import ToZooKeeper
from .followed_groups import Way, followed
from .report import check_asked, check_cluster

log = logging.getLogger("zkgroups.migration")

Told = Callable[[FollowPass], object]

BREATHER: Final = 0.5
"""So many times as long as a pass has taken is the pause after it, at least: there are others who ask the servers."""


def follow(
    rows: Sequence[PlanRow],
    brokers: Brokers,
    registry: Registry,
    *,
    execute: bool,
    to_zookeeper: bool = False,
    rule: Rule | None = None,
    every: float = 1.0,
    rate: float = 20_000.0,
    told: Told = lambda _: None,
    stop: threading.Event | None = None,
) -> list[FollowedGroup]:
    """Follow all groups of a plan until each is done or left, or `stop` is set; without `execute`, only look, once.

    From ZooKeeper to Kafka while legacy instances are registered, and with `to_zookeeper` back while native members
    take part, if this plan has moved the group. `every` is the time from one pass to the next, in seconds, and `rate`
    how many offsets are written in a second at most. Each pass is `told`. A server that is away is waited for.
    """
    check_asked(rows)
    if rows and rows[0].cluster is not None:
        check_cluster(rows[0].cluster, brokers)
    for option, number in (("every", every), ("rate", rate)):
        if not 0 < number < float("inf"):
            raise InvalidOptionError(option, number, "it must be more than 0")
    groups = followed(rows, to_zookeeper=to_zookeeper)
    kind = ToZooKeeper if to_zookeeper else ToKafka
    way = kind(groups, brokers, registry, rule or Rule(), stop or threading.Event(), execute=execute)
    try:
        _pass_by_pass(way, every, max(1, int(rate * every)), told)
    finally:
        way.end()
    return way.told()


def _pass_by_pass(way: Way, every: float, limit: int, told: Told) -> None:
    number = 0
    while not way.stop.is_set():
        number, began, trouble = number + 1, time.monotonic(), ""
        way.begin()
        try:
            way.one_pass(limit)
        except UnavailableError as error:
            if not way.execute:
                raise
            log.warning("could not update offsets, will retry: %s", error)
            trouble = str(error)
        told(FollowPass(number, way.behind, way.written, tuple(way.told()), trouble))
        if way.is_over or not way.execute:
            return
        took = time.monotonic() - began
        way.stop.wait(max(every - took, BREATHER * took))
