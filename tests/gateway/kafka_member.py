"""A member as a client of Kafka's group protocol behaves: it joins, syncs, sends heartbeats, and joins again."""

from __future__ import annotations

import threading
import time
from concurrent.futures import Future
from typing import Any, Self

from tests.waiting import LONGEST, eventually
from zkgroups import TopicPartition, coordinator
from zkgroups.coordinator import KafkaError

from .served import Served

HEARTBEAT = 0.1
_NOTHING: frozenset[TopicPartition] = frozenset()


class KafkaMember:
    """One client. `assigned` has the partitions on which it works now.

    With `cooperative`, it keeps its partitions while it joins, and gives up only what is no longer assigned to it.
    """

    def __init__(
        self,
        served: Served,
        group: str,
        *topics: str,
        client_id: str = "app",
        cooperative: bool = False,
        instance_id: str | None = None,
        session_timeout: float = 10.0,
        strategy: str = "",
    ) -> None:
        self.assigned = _NOTHING
        self.errors: list[str] = []
        self.member_id = ""
        self.generation = -1
        self.history: list[frozenset[TopicPartition]] = []
        self._served, self._group, self._topics = served, group, frozenset(topics)
        self._client_id, self._instance_id = client_id, instance_id
        self._cooperative, self._session_timeout = cooperative, session_timeout
        self._strategy = strategy or ("cooperative-sticky" if cooperative else "range")
        self._paused, self._rests = threading.Event(), threading.Event()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name=client_id)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self.kill()

    # The test's side

    def kill(self) -> None:
        """Send nothing any more."""
        self._stopped.set()
        self._thread.join(LONGEST)

    def leave(self) -> None:
        """Leave the group in order."""
        assert eventually(lambda: self.member_id), "it has not joined"
        self.kill()
        self.assigned = _NOTHING
        answer = self._served.ask(
            coordinator.LeaveRequest(self._group, (coordinator.MemberIdentity(self.member_id, self._instance_id),))
        )
        assert {error.name for error in answer.members} == {"NONE"}

    def pause(self) -> None:
        """Send no heartbeats, as a client that processes a message for long. None is under way when this returns."""
        self._paused.set()
        assert self._rests.wait(LONGEST)

    def go_on(self) -> None:
        self._paused.clear()
        self._rests.clear()

    def send_use(self, offset: int, *partitions: TopicPartition, **details: Any) -> Future[Any]:
        """Commit the offset for these partitions, or for all that are assigned."""
        value = coordinator.CommittedValue(offset, **details)
        offsets = dict.fromkeys(partitions or sorted(self.assigned), value)
        return self._served.send(coordinator.CommitRequest(self._group, offsets, self.member_id, self.generation))

    def commit(self, offset: int, *partitions: TopicPartition, **details: Any) -> dict[TopicPartition, str]:
        """Commit, and return the errors."""
        answer = self.send_use(offset, *partitions, **details).result(LONGEST)
        return {at: error.name for at, error in answer.errors.items()}

    def on_revoked(self) -> None:
        """Called on the client's thread before it joins again. It may still commit."""

    # The client's thread

    def _run(self) -> None:
        while not self._stopped.is_set():
            error = self._join() or self._sync() or self._work()
            if self._stopped.is_set():
                break  # a process that is suspended still believes in its partitions
            if error:
                self.errors.append(error.name)
            if error in (KafkaError.UNKNOWN_MEMBER_ID, KafkaError.FENCED_INSTANCE_ID):
                self.assigned, self.member_id = _NOTHING, ""
            elif error is KafkaError.ILLEGAL_GENERATION or not self._cooperative:
                self.assigned = _NOTHING
            if error not in (KafkaError.NONE, KafkaError.REBALANCE_IN_PROGRESS, KafkaError.MEMBER_ID_REQUIRED):
                time.sleep(HEARTBEAT)

    def _ask(self, request: Any) -> Any:
        answer = self._served.send(request)
        while not self._stopped.is_set():
            try:
                return answer.result(HEARTBEAT)
            except TimeoutError:
                continue
        return None

    def _join(self) -> KafkaError:
        owned = self.assigned if self._cooperative else _NOTHING
        metadata = coordinator.encode_subscription(coordinator.Subscription(self._topics, owned))
        answer = self._ask(
            coordinator.JoinRequest(
                self._group,
                self.member_id,
                (coordinator.GroupProtocol(self._strategy, metadata),),
                self._session_timeout,
                20.0,
                instance_id=self._instance_id,
                client_id=self._client_id,
                client_host="/10.0.0.7",
            )
        )
        if answer is None:
            return KafkaError.REBALANCE_IN_PROGRESS
        if answer.error in (KafkaError.NONE, KafkaError.MEMBER_ID_REQUIRED):
            self.member_id, self.generation = answer.member_id, answer.generation
        return KafkaError(answer.error)

    def _sync(self) -> KafkaError:
        answer = self._ask(coordinator.SyncRequest(self._group, self.member_id, self.generation, {}, self._instance_id))
        if answer is None:
            return KafkaError.REBALANCE_IN_PROGRESS
        if answer.error:
            return KafkaError(answer.error)
        assigned = coordinator.decode_assignment(answer.assignment) or _NOTHING
        self.history.append(assigned)  # before a test sees the partitions
        before, self.assigned = self.assigned, assigned
        # A cooperative client joins again after it has given up partitions.
        return KafkaError.REBALANCE_IN_PROGRESS if before - self.assigned else KafkaError.NONE

    def _work(self) -> KafkaError:
        while not self._stopped.wait(HEARTBEAT):
            if self._paused.is_set():
                self._rests.set()
                continue
            answer = self._ask(
                coordinator.HeartbeatRequest(self._group, self.member_id, self.generation, self._instance_id)
            )
            if answer is not None and answer.error:
                if answer.error == KafkaError.REBALANCE_IN_PROGRESS:
                    self.on_revoked()
                return KafkaError(answer.error)
        return KafkaError.NONE
