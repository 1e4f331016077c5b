"""A member of a group on the brokers. It fetches nothing, and all its calls are made by one thread of its own.

The client of confluent-kafka serves one call at a time, in no certain order. While one thread polls again and again,
the calls of others may wait for ever. So they leave their calls in a queue, which is emptied between two polls.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Any, Final, TypeVar

from ..core.znodes.topic_partition import TopicPartition
from ..deadline import Deadline
from ..exceptions import InvalidOptionError, NotClaimedError, NotConnectedError, OutcomeUnknownError
from .client_settings import confluent, reason
from .commit_errors import TAKEN, not_read, refused_to_member

log = logging.getLogger("zkgroups.consumer")

T = TypeVar("T")
Partitions = frozenset[TopicPartition]

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
                raise not_read(each.error, _place(each))
        return {_place(each): each.offset if each.offset >= 0 else None for each in found}

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
                raise refused_to_member(each.error, [_place(each)])

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
            self.assigned = frozenset(map(_place, partitions))
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


def _place(each: Any) -> TopicPartition:
    return TopicPartition(each.topic, each.partition)
