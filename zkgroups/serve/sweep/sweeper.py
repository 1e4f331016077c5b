"""The thread that sweeps: it reads everything every few seconds, and in between the groups that have changed.

Nothing it reads is changed, and no error ends it. While ZooKeeper does not answer, the last picture stays, and only its
age and the reason change.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Iterable
from dataclasses import replace
from typing import Final, Self

from ...deadline import Deadline, uptime
from ...exceptions import AccessError, NotConnectedError, UnavailableError, ZkgroupsException
from ...kafka import Brokers
from ...rare_collections import rare_collections
from ...zookeeper.group_changes import GroupChanges
from ...zookeeper.reading import group_reader
from ...zookeeper.registry import Registry
from ...zookeeper.session.registry_context import RegistryContext, context_of
from ..picture.build_group import Rules
from ..picture.values import Picture, SourceState, SweepStats
from ..settings import SweepSettings
from .broker_reader import BrokerReader
from .cluster_state import ClusterState, ReadGroup
from .publisher import Publisher

log = logging.getLogger("zkgroups.serve")

PAUSE: Final = 0.2
"""In seconds: how long to collect changes before the changed groups are read."""
MANY: Final = 0.25
"""If more than this part of all groups has changed, everything is read."""
CHECK_EVERY: Final = 1.0
"""In seconds: how often to look whether there is a connection, and whether the watch must be set again."""
LOOK_EVERY: Final = 0.2
"""In seconds: the same without a connection."""
CONNECT_EVERY: Final = 5.0
"""In seconds: the longest pause between two attempts to connect."""


class Sweeper:
    """Sweeps in a thread of its own, from `start` to `stop`."""

    def __init__(
        self,
        connect: Callable[[], Registry],
        brokers: Brokers | None,
        settings: SweepSettings,
    ) -> None:
        self._connect = connect
        self._settings = settings
        self.state = ClusterState(Rules(settings.limits, asks_brokers=brokers is not None))
        """All that is remembered between two sweeps. Change it only before `start`."""
        self._brokers = None if brokers is None else BrokerReader(brokers, self.state.ends)
        self._zookeeper = SourceState()
        self._stats = SweepStats()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="zkgroups-serve-sweeps", daemon=True)
        self._is_lost = False  # True if the connection was lost after the last sweep
        self._registry: Registry | None = None
        self._changes: GroupChanges | None = None
        self.publisher = Publisher(self._picture(0))

    # Life

    def start(self) -> Self:
        """Connect, and begin to sweep.

        If ZooKeeper does not answer, the thread goes on trying: that passes. Raises all other errors of the first
        connection, e.g. of a wrong password or chroot, because they need a change of the settings.
        """
        try:
            self._open()
        except UnavailableError as error:
            self._note_failure(str(error))
        self._thread.start()
        return self

    def stop(self, timeout: float = 5.0) -> None:
        """Stop, and close the connection. A request in progress is waited for, at most until the timeout."""
        self._ended.set()
        if self._changes is not None:
            self._changes.close()
        if self._thread.is_alive():
            self._thread.join(timeout)
        self._close()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _open(self) -> None:
        self._registry = self._connect()
        self._changes = self._registry.group_changes()

    def _close(self) -> None:
        if self._changes is not None:
            self._changes.close()
        if self._registry is not None:
            self._registry.close()
        self._registry, self._changes = None, None

    def _run(self) -> None:
        while not self._ended.is_set():
            due = uptime() + self._settings.every
            self._guarded(self._sweep)
            if self._registry is None:
                due = min(due, uptime() + CONNECT_EVERY)
            while (left := due - uptime()) > 0 and not self._ended.is_set():
                if self._wait_for_changes(min(left, CHECK_EVERY)):
                    self._ended.wait(self._stats.last_seconds)  # however much changes, half of the time is free
                    break
        self._close()  # a connection that was opened after `stop` had given up waiting

    # One sweep

    def _guarded(self, step: Callable[[], None]) -> None:
        """Run one step, and note its failure."""
        try:
            step()
        except ZkgroupsException as error:
            self._note_failure(str(error))
            if isinstance(error, AccessError) or _is_closed(self._registry):
                self._close()
        except Exception as error:
            log.exception("unexpected error in a sweep")
            self._note_failure(f"unexpected error: {error!r}")

    def _note_failure(self, problem: str) -> None:
        if self._ended.is_set():
            return
        if not self._zookeeper.problem:
            log.warning("ZooKeeper does not answer: %s", problem)
        since_ms = self._zookeeper.since_ms or _now_ms()
        self._zookeeper = replace(self._zookeeper, problem=problem, since_ms=since_ms)
        self._stats = replace(self._stats, failures=self._stats.failures + 1)
        self._publish()

    @rare_collections()
    def _sweep(self) -> None:
        """Read everything."""
        if self._registry is None:
            self._open()
        registry, started = self._required(), uptime()
        context = context_of(registry)
        if not context.session.wait_connected(Deadline(CHECK_EVERY)):
            raise NotConnectedError("the connection is lost")
        self._is_lost = False
        before = context.session.requests_sent
        if self._settings.live and self._changes is not None and self._changes.begin():
            self._changes.wait(0.0)  # all changes until now are read now
        topics = _topics(registry)
        found = _read(context, registry.groups())
        read_ms = _now_ms()
        self._read_brokers(found, is_complete=True)
        self.state.replace_all(found, topics, _now_ms())
        requests = _sent_since(before, context.session.requests_sent)
        self._note_success(registry, read_ms)
        self._stats = replace(
            self._stats,
            sweeps=self._stats.sweeps + 1,
            requests=self._stats.requests + requests,
            last_seconds=uptime() - started,
            last_requests=requests,
        )
        self._publish()

    def _wait_for_changes(self, timeout: float) -> bool:
        """Wait, and read the groups that change meanwhile. Return True if everything must be read now."""
        changes, registry = self._changes, self._registry
        if changes is None or registry is None:
            self._ended.wait(timeout)
            return False
        if not context_of(registry).session.connected:
            if not self._is_lost:
                self._note_failure("the connection is lost")
            self._is_lost = True
            self._ended.wait(LOOK_EVERY)
            return False
        if self._is_lost:
            return True
        if self._settings.live and not changes.is_live:
            changes.begin()
        changed = changes.wait(timeout, pause=PAUSE)
        if not self._settings.live or not changed or self._ended.is_set():
            return False
        if changed.everything or len(changed.groups) > max(10.0, MANY * len(self.state.groups)):
            return True
        self._guarded(lambda: self._sweep_some(registry, changed.groups))
        return False

    def _sweep_some(self, registry: Registry, names: Collection[str]) -> None:
        """Read the groups that have changed."""
        context = context_of(registry)
        before = context.session.requests_sent
        found = _read(context, sorted(names))
        self._read_brokers(found, is_complete=False)
        self.state.replace_some(found, _now_ms())
        requests = _sent_since(before, context.session.requests_sent)
        self._stats = replace(self._stats, requests=self._stats.requests + requests)
        self._publish()

    def _read_brokers(self, found: Iterable[ReadGroup], *, is_complete: bool) -> None:
        if self._brokers is not None:
            self._brokers.read([each.description for each in found], is_complete=is_complete, clock=_now_ms)

    def _note_success(self, registry: Registry, read_ms: int) -> None:
        if self._zookeeper.problem:
            log.warning("ZooKeeper answers again")
        self._zookeeper = SourceState(read_ms, is_read_only=registry.server_is_read_only)

    def _required(self) -> Registry:
        if self._registry is None:
            raise NotConnectedError("there is no connection to ZooKeeper")
        return self._registry

    # The picture

    def _publish(self) -> None:
        self.publisher.publish(self._picture(self.publisher.picture.number + 1))

    def _picture(self, number: int) -> Picture:
        return Picture(
            number=number,
            cluster=self._settings.cluster,
            zookeeper=self._zookeeper,
            brokers=None if self._brokers is None else self._brokers.state,
            live=self._settings.live and self._changes is not None and self._changes.is_live,
            groups=self.state.groups,
            topics=self.state.topics,
            stats=self._stats,
        )


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _read(context: RegistryContext, names: Iterable[str]) -> list[ReadGroup]:
    return [ReadGroup.of(view) for view in group_reader.read_groups(context, names)]


def _topics(registry: Registry) -> frozenset[str] | None:
    """Return all topics. None if they are forbidden, or not in this ZooKeeper."""
    try:
        return frozenset(registry.topics()) or None
    except AccessError:
        return None


def _sent_since(before: int, now: int) -> int:
    """Return the number of requests in between. The count begins anew with each connection."""
    return now - before if now >= before else now


def _is_closed(registry: Registry | None) -> bool:
    """Return True if the client has given up, and will not connect again by itself."""
    return registry is not None and registry.client.client_state in {"CLOSED", "AUTH_FAILED"}
