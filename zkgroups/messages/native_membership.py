"""The membership of a consumer whose group was moved to the brokers. Its fence is the generation of the brokers."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Any, Final, TypeVar

from ..consumer.events import EventKind, MemberStats, Partitions
from ..consumer.generation import Offsets
from ..consumer.group_plan import unreadable_nodes
from ..consumer.membership import AnyMembership, GroupLook, Write, with_short_timeout
from ..consumer.options import Options
from ..core.znodes.topic_partition import TopicPartition
from ..core.znodes.values import CommittedOffset, CurrentOffset, Registration
from ..deadline import Deadline
from ..exceptions import InvalidOptionError, NotClaimedError, NotConnectedError, OutcomeUnknownError
from ..zookeeper.ownership.routes import GroupRoutes
from ..zookeeper.reading.observers import TopicObserver
from ..zookeeper.session.session import RegistryContext
from .broker_offsets import TAKEN, not_read, place_of, refused_to_member
from .fetcher import CLIENT_LOG, confluent, reason

# A member of a group on the brokers. It fetches nothing, and all its calls are made by one thread of its own.
#
# The client of confluent-kafka serves one call at a time, in no certain order. While one thread polls again and
# again, the calls of others may wait for ever. So they leave their calls in a queue, which is emptied between two
# polls.


log = logging.getLogger("zkgroups.consumer")

T = TypeVar("T")

_POLL: Final = 0.02
"""In seconds: the longest time of one poll, and so how long a call may wait for its turn."""

_FIRST_JOIN: Final = 10.0
"""In seconds: how long to wait for the answer to the first join before leaving."""


class NativeClient:
    """One membership, from joining to leaving.

    `changed` is called on the client's thread when partitions were assigned, revoked or lost. Revoked partitions can be
    committed until `released` returns True, at most for `patience` seconds. `may_stay` is asked before each poll: when
    it returns False, the client leaves the group.
    """

    def __init__(
        self,
        settings: Mapping[str, Any],
        *,
        changed: Callable[[], object],
        released: Callable[[], bool],
        may_stay: Callable[[], bool],
        patience: float,
        timeout: float,
    ) -> None:
        kafka = confluent()
        self._kafka = kafka
        self._changed = changed
        self._released = released
        self._may_stay = may_stay
        self._patience = patience
        self._timeout = timeout
        try:
            self._client = kafka.Consumer(dict(settings))
        except (kafka.KafkaException, TypeError, ValueError) as error:
            raise InvalidOptionError("kafka", ..., f"confluent-kafka refuses the settings: {reason(error)}") from error
        self._calls: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._leaving = False
        self._first_join = False  # True while the brokers have not answered it
        self._ended = threading.Event()
        self.lost = False
        """True after partitions were lost: another member may have them. The client is of no more use."""
        self.assigned: Partitions = frozenset()
        self.assignments = 0
        """How often partitions were assigned."""
        self._thread = threading.Thread(target=self._run, name="zkgroups-native-member", daemon=True)
        self._thread.start()

    # Any thread

    def subscribe(self, topics: Iterable[str]) -> None:
        """Subscribe to these topics, and join the group."""
        names = sorted(topics)
        subscribe = self._client.subscribe if names else self._client.unsubscribe
        callbacks = {"on_assign": self._on_assign, "on_revoke": self._on_revoke, "on_lost": self._on_lost}
        self._first_join = bool(names) and not self.assignments
        self._call(lambda: subscribe(names, **callbacks) if names else subscribe())

    def committed(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int | None]:
        """Return the committed offset of each partition; None without one."""
        chosen = list(partitions)
        wanted = [self._kafka.TopicPartition(*at) for at in chosen]
        if not wanted:
            return {}
        try:
            found = self._call(lambda: self._client.committed(wanted, timeout=self._timeout))
        except self._kafka.KafkaException as error:
            raise not_read(error.args[0], chosen[0]) from error
        for each in found:
            if each.error is not None:
                raise not_read(each.error, place_of(each))
        return {place_of(each): each.offset if each.offset >= 0 else None for each in found}

    def commit(self, offsets: Mapping[TopicPartition, int], *, assignment: int) -> None:
        """Commit as a member. The brokers refuse it after the partitions were given to others.

        `assignment` is the number of the assignment that has the partitions. A commit for an earlier one would be sent
        with the generation of the present one, so it is refused here.
        """
        wanted = [self._kafka.TopicPartition(*at, offset) for at, offset in sorted(offsets.items())]

        def commit() -> Any:
            if self.lost or self.assignments != assignment:
                first, *others = sorted(offsets)
                raise NotClaimedError(first, TAKEN, also=others)
            return self._client.commit(offsets=wanted, asynchronous=False)

        try:
            done = self._call(commit)
        except self._kafka.KafkaException as error:
            raise refused_to_member(error.args[0], sorted(offsets)) from error
        except NotConnectedError as error:
            raise OutcomeUnknownError(f"the brokers have not answered a commit: {error}") from error
        for each in done:
            if each.error is not None:
                raise refused_to_member(each.error, [place_of(each)])

    def close(self, timeout: float) -> bool:
        """Leave the group. Return False if that takes longer than the timeout: it goes on in the background."""
        self._leaving = True
        return self._ended.wait(timeout)

    def _call(self, call: Callable[[], T]) -> T:
        """Let the client's thread make a call, and return its result."""
        answer: Future[T] = Future()

        def make() -> None:
            if answer.set_running_or_notify_cancel():
                try:
                    answer.set_result(call())
                except BaseException as error:
                    answer.set_exception(error)

        self._calls.put(make)
        if self._ended.is_set():
            answer.cancel()
            raise NotConnectedError("the member on the brokers has ended")
        try:
            return answer.result(self._timeout)
        except FutureTimeoutError as error:
            answer.cancel()
            raise NotConnectedError(f"the brokers have not answered within {self._timeout:g} s") from error

    # The client's thread

    def _run(self) -> None:
        try:
            while not self._leaving and not self.lost and self._may_stay():
                if (message := self._client.poll(_POLL)) is not None and message.error() is not None:
                    log.debug("group on the brokers: %s", message.error().str())
                self._make_calls()
        except Exception:
            log.exception("the member on the brokers has ended unexpectedly")
        finally:
            self._leaving = True
            with suppress(Exception):
                self._await_first_join()
            with suppress(Exception):
                self._client.close()
            self._lose()
            self._ended.set()

    def _await_first_join(self) -> None:
        """Wait until the brokers have answered the first join, which tells this client its member id.

        Without the id it could not leave. Brokers before 2.2 would keep the member until its session times out.
        """
        deadline = Deadline(_FIRST_JOIN)
        while self._first_join and not deadline.passed:
            self._client.poll(_POLL)

    def _make_calls(self, timeout: float = 0.0) -> None:
        with suppress(Empty):
            self._calls.get(timeout=timeout)() if timeout else self._calls.get_nowait()()
            while True:
                self._calls.get_nowait()()

    def _on_assign(self, client: Any, partitions: Sequence[Any]) -> None:
        client.assign([])  # it is a member with these partitions, but another client fetches them
        self._first_join = False
        self.assignments += 1
        if not self._leaving:
            self.assigned = frozenset(map(place_of, partitions))
            self._changed()

    def _on_revoke(self, client: Any, _partitions: Sequence[Any]) -> None:
        """Let the member commit and release, then join the rebalance."""
        self.assigned = frozenset()
        self._changed()
        deadline = Deadline(self._patience)
        while not self._released() and not self._leaving and not deadline.passed and self._may_stay():
            self._make_calls(_POLL)
        client.unassign()
        if not self._released():
            self._lose()

    def _on_lost(self, client: Any, _partitions: Sequence[Any]) -> None:
        client.unassign()
        self._lose()

    def _lose(self) -> None:
        self.assigned, self.lost = frozenset(), True
        self._changed()


_STRATEGIES: Final = ("range", "roundrobin")
"""Clients of all languages support them, so clients of other kinds can share the group on the brokers."""

_NOT_HELD: Final = "is not held on the brokers any more: stop working on it"


class NativeMembership(AnyMembership):
    """The place of a member of a group on the brokers.

    It needs a permit in ZooKeeper as long as it is in the group (`zookeeper/ownership/routes.py`). Its client waits for
    brokers by itself.
    """

    def __init__(
        self,
        context: RegistryContext,
        group: str,
        id: str,
        registration: Registration,
        *,
        routes: GroupRoutes,
        settings: Mapping[str, Any],
        options: Options,
        tell: Callable[[Partitions | None], object],
        stats: MemberStats,
    ) -> None:
        context = with_short_timeout(context)
        super().__init__(context.session)
        self.group_name, self.id, self.timeout = group, id, context.timeout
        self._registration = registration
        self._routes = routes
        self._settings = native_settings(settings, group, id, options)
        self._patience = 2 * options.release_timeout + context.timeout
        self._tell = tell
        self._stats = stats
        self._observer = TopicObserver(context, lambda _at: tell(None), options.partitions)
        self._client: NativeClient | None = None
        self._subscribed: frozenset[str] | None = None
        self._held: Partitions = frozenset()

    def __str__(self) -> str:
        return f"{self.id!r} of group {self.group_name!r} on the brokers"

    @property
    def alive(self) -> bool:
        """True if the group is certain not to be in ZooKeeper again, and the brokers have taken nothing away."""
        return self._client is not None and not self._client.lost and self._routes.holds_permit(self.group_name)

    def register(self) -> None:
        """Get a permit, and create a client. It joins the group after the first look at the topics."""
        self._leave()
        if not self._routes.begin_use(self.group_name):
            self._routes.refresh()
            if not self._routes.begin_use(self.group_name):
                raise NotConnectedError(f"group {self.group_name!r} is being moved: waiting until that is finished")
        try:
            self._client = NativeClient(
                self._settings,
                changed=lambda: self._tell(None),
                released=lambda: not self._held,
                may_stay=lambda: self._routes.holds_permit(self.group_name),
                patience=self._patience,
                timeout=self.timeout,
            )
        except BaseException:
            self._routes.end_use(self.group_name)
            raise

    def deregister(self) -> None:
        self._leave()

    def _leave(self) -> None:
        self._held, self._subscribed = frozenset(), None
        if self._client is None:
            return
        if not self._client.close(self.timeout):
            raise NotConnectedError(f"the brokers have not let {self} leave within {self.timeout:g} s")
        self._client = None
        self._routes.end_use(self.group_name)

    def close(self) -> None:
        """Stop observing topics, and leave the group if that has not happened."""
        self._observer.close()
        if self._client is not None:
            self._client.close(self.timeout)

    # Planning: the brokers do it

    def look(self) -> GroupLook:
        """Subscribe to the topics that exist now. Return the partitions that the brokers have assigned."""
        self._stats.looks += 1
        client = self._joined()
        found = self._observer.topics(self._registration)
        topics = frozenset(found.partitions)
        notes = {EventKind.MALFORMED: unreadable_nodes(found.unreadable)}
        if topics != self._subscribed:
            client.subscribe(topics)
            self._subscribed = topics
        return GroupLook(client.assignments, dict.fromkeys(client.assigned, 0), self._held, {}, notes)

    def _joined(self) -> NativeClient:
        if self._client is None:
            raise NotConnectedError(f"{self} is not in its group")
        return self._client

    def claim(self, partitions: Partitions) -> Partitions:
        """Take the partitions that are still assigned."""
        client = self._joined()
        self._held |= partitions  # first: a revocation from now on waits until they are released
        granted = partitions & client.assigned
        self._held -= partitions - granted
        return granted

    def release(self, partitions: Partitions) -> None:
        """Release these partitions. The rebalance on the brokers goes on when all are released."""
        self._held -= partitions

    def writer(self, _partitions: Partitions, /) -> Write:
        client = self._joined()
        assignment = client.assignments

        def write(offsets: Offsets, _back_from: Offsets) -> None:
            if client is not self._client or not self.alive:
                first, *others = sorted(offsets)
                raise NotClaimedError(first, _NOT_HELD, also=others)
            client.commit(offsets, assignment=assignment)

        return write

    def committed(self, partitions: Partitions) -> Mapping[TopicPartition, CurrentOffset]:
        return {
            at: None if offset is None else CommittedOffset(self.group_name, at, offset)
            for at, offset in self._joined().committed(sorted(partitions)).items()
        }


def native_settings(settings: Mapping[str, Any], group: str, id: str, options: Options) -> dict[str, Any]:
    """Return the settings of a client that is a member of the group on the brokers, and fetches nothing."""
    strategies = [name for name in options.strategies() if name in _STRATEGIES] or [*_STRATEGIES]
    own = {
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        "error_cb": lambda _error: None,  # the client that fetches reports the same errors
        "group.id": group,
        "partition.assignment.strategy": ",".join(strategies),
    }
    users = {name: value for name, value in settings.items() if name not in ("stats_cb", "throttle_cb")}
    return {"client.id": id, "logger": CLIENT_LOG, **users, **own}
