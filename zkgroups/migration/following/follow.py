"""Following: copy commits from one side to the other, pass after pass, while consumers still work.

Moving a group then takes only as long as stopping its consumers on one side and starting them on the other. Each pass
reads the leading side in bulk and writes changed offsets, forward only. A group without members on the leading side is
cut over: read again, written for the last time, and compared.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import Final

from ...core.layouts.legacy import LEGACY
from ...core.migration.follow_rules import FollowedGroup, FollowPass
from ...core.migration.offset_decision import Rule
from ...core.migration.plan_rows import PlanRow
from ...exceptions import UnavailableError
from ...input_errors import InvalidOptionError
from ...kafka import Brokers
from ...zookeeper.registry import Registry
from ..report import check_cluster, check_made_with_brokers
from .follow_to_kafka import FollowToKafka
from .follow_to_zookeeper import FollowToZooKeeper
from .follower import Follower
from .tracked_group import tracked_groups

log = logging.getLogger("zkgroups.migration")

OnProgress = Callable[[FollowPass], object]

MIN_PAUSE: Final = 0.5
"""The shortest pause after a pass, relative to its duration: other clients need the servers, too."""


def follow(
    rows: Sequence[PlanRow],
    brokers: Brokers,
    registry: Registry,
    *,
    execute: bool,
    to_zookeeper: bool = False,
    writers_stopped: bool = False,
    rule: Rule | None = None,
    every: float = 1.0,
    rate: float = 20_000.0,
    on_progress: OnProgress | None = None,
    stop: threading.Event | None = None,
) -> list[FollowedGroup]:
    """Follow all groups of a plan until each is done or left, or `stop` is set.

    Without `execute`, run one pass that only reads. Follow from ZooKeeper to Kafka while legacy instances are
    registered; with `to_zookeeper`, back while native members are active, for groups that this plan has moved.

    Nothing in ZooKeeper shows whether the jobs of other systems still run. So their groups are followed until `stop` is
    set, or cut over at once if `writers_stopped` declares that the jobs do not run.

    `every` is the time between passes in seconds, and `rate` the most offsets to write per second. `on_progress` is
    called with a `FollowPass` after each pass. Passes are retried while a server is unavailable.
    """
    check_made_with_brokers(rows)
    if rows and rows[0].cluster is not None:
        check_cluster(rows[0].cluster, brokers)
    for option, number in (("every", every), ("rate", rate)):
        if not 0 < number < float("inf"):
            raise InvalidOptionError(option, number, "it must be more than 0")
    groups = tracked_groups(rows, to_zookeeper=to_zookeeper)
    if to_zookeeper and (other := next((group.layout for group in groups if group.layout != LEGACY), None)):
        reason = f"offsets of layout {other.location} cannot be followed back: use `migrate rollback --to-zookeeper`"
        raise InvalidOptionError("to_zookeeper", True, reason)
    kind = FollowToZooKeeper if to_zookeeper else FollowToKafka
    options = {"execute": execute, "writers_stopped": writers_stopped}
    follower = kind(groups, brokers, registry, rule or Rule(), stop or threading.Event(), **options)
    try:
        _run_passes(follower, every, max(1, int(rate * every)), on_progress)
    finally:
        follower.close()
    return follower.results()


def _run_passes(follower: Follower, every: float, limit: int, on_progress: OnProgress | None) -> None:
    number = 0
    while not follower.stop.is_set():
        number, began, trouble = number + 1, time.monotonic(), ""
        follower.begin_pass()
        try:
            follower.run_pass(limit)
        except UnavailableError as error:
            if not follower.execute:
                raise
            log.warning("could not update offsets, retrying: %s", error)
            trouble = str(error)
        if on_progress is not None:
            on_progress(FollowPass(number, follower.behind, follower.written, tuple(follower.results()), trouble))
        if follower.is_finished or not follower.execute:
            return
        took = time.monotonic() - began
        follower.stop.wait(max(every - took, MIN_PAUSE * took))
